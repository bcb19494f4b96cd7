//! What the writer is asked to do, and the queue it is asked through. All that waits goes into one transaction.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{
    core::{
        fingerprint::Fingerprint,
        policy::{RouteName, Terms},
        record::{ClaimToken, RecordId},
        transition::{Ask, Found, Resolution, Settlement},
    },
    store::{Claim, Held, Outcome, Purged, Settled, StoreError},
};

/// Where the answer to a command goes. Whoever dropped the other end is not told.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// One thing to do.
#[derive(Debug)]
pub(super) enum Command {
    /// [`crate::store::Stores::begin`]
    Begin(Box<Beginning>, Reply<Said>),
    /// [`crate::store::Stores::renew`]
    Renew {
        id: RecordId,
        token: ClaimToken,
        terms: Terms,
        reply: Reply<Held>,
    },
    /// [`crate::store::Stores::settle`]
    Settle(Box<Settling>, Reply<Settled>),
    /// A claim that nobody took over, and under which nothing was executed: it never was.
    Abandon { id: RecordId, token: ClaimToken },
    /// Frees all that has expired by now.
    Sweep(Reply<()>),
    /// [`crate::store::Stores::purge`]
    Purge(RecordId, Reply<Purged>),
    /// [`crate::store::Stores::resolve`]
    Resolve(Box<Resolving>, Reply<Outcome>),
}

/// What `resolve` is asked with.
#[derive(Debug)]
pub(super) struct Resolving {
    pub(super) id: RecordId,
    /// What the record is held under from then on.
    pub(super) token: ClaimToken,
    pub(super) resolution: Resolution,
    /// The answer as it is kept, if there is one.
    pub(super) answer: Option<Vec<u8>>,
}

/// What `begin` is asked with.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) id: RecordId,
    pub(super) token: ClaimToken,
    pub(super) fingerprint: Arc<Fingerprint>,
    pub(super) terms: Terms,
    pub(super) route: RouteName,
}

impl Beginning {
    pub(super) fn ask(&self) -> Ask<'_> {
        Ask {
            fingerprint: &self.fingerprint,
            terms: &self.terms,
            route: &self.route,
        }
    }
}

/// What `settle` is asked with.
#[derive(Debug)]
pub(super) struct Settling {
    pub(super) id: RecordId,
    pub(super) token: ClaimToken,
    pub(super) settlement: Settlement,
    pub(super) terms: Terms,
    /// The answer as it is kept, of a settlement that completes.
    pub(super) answer: Option<Vec<u8>>,
}

/// What the writer says to `begin`.
#[derive(Debug)]
pub(super) enum Said {
    /// It is claimed.
    Claimed(Grant),
    /// Something else is there.
    Found(Found),
    /// An answer is there, which the writer did not read: it holds nobody up with large bodies.
    Cold,
}

/// A claim on its way to who asked for it. If it does not arrive, the record is let go: nothing was executed under it.
#[derive(Debug)]
pub(super) struct Grant {
    id: RecordId,
    token: ClaimToken,
    /// `None`: it has arrived.
    queue: Option<Arc<Queue>>,
}

impl Grant {
    pub(super) fn new(id: RecordId, token: ClaimToken, queue: Arc<Queue>) -> Self {
        Self {
            id,
            token,
            queue: Some(queue),
        }
    }

    /// It has arrived: from here on its holder says what becomes of it.
    pub(super) fn accept(mut self) -> Claim {
        self.queue = None;
        Claim {
            id: self.id,
            token: self.token,
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.push(Command::Abandon {
                id: self.id,
                token: self.token,
            });
        }
    }
}

/// Commands in the order in which they came, but that what lets go comes first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    commands: VecDeque<Command>,
    closed: bool,
}

impl Queue {
    /// Asks. Once the queue is closed, the command is dropped, and with it the other end of its reply.
    pub(super) fn push(&self, command: Command) {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            // Dropped after the lock is given back: what it drops may ask again.
            drop(waiting);
            drop(command);
            return;
        }
        if matches!(command, Command::Abandon { .. }) {
            // Before whoever asked while the claim was on its way to nobody: they are not to find it.
            waiting.commands.push_front(command);
        } else {
            waiting.commands.push_back(command);
        }
        drop(waiting);
        self.came.notify_one();
    }

    /// Takes all that waits, but not more than one transaction should have; waits for something if there is nothing, but not
    /// longer than `patience`. `None`: the queue is closed, and empty.
    pub(super) fn take(&self, patience: Duration) -> Option<Vec<Command>> {
        let mut waiting = self.waiting.lock();
        if waiting.commands.is_empty() && !waiting.closed && !patience.is_zero() {
            self.came.wait_for(&mut waiting, patience);
        }
        if waiting.commands.is_empty() {
            return (!waiting.closed).then(Vec::new);
        }
        let (mut count, mut bytes) = (0, 0);
        for command in &waiting.commands {
            bytes += command.bytes();
            if count == MOST_COMMANDS || (count > 0 && bytes > MOST_BYTES) {
                break;
            }
            count += 1;
        }
        Some(waiting.commands.drain(..count).collect())
    }

    /// Takes nothing more.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.came.notify_one();
    }

    /// Takes nothing more, and does nothing of what waits.
    pub(super) fn abandon(&self) {
        self.close();
        let left = std::mem::take(&mut self.waiting.lock().commands);
        drop(left);
    }
}

impl Command {
    fn bytes(&self) -> usize {
        match self {
            Self::Settle(settling, _) => settling.answer.as_ref().map_or(0, Vec::len),
            Self::Resolve(resolving, _) => resolving.answer.as_ref().map_or(0, Vec::len),
            Self::Begin(..)
            | Self::Renew { .. }
            | Self::Abandon { .. }
            | Self::Sweep(_)
            | Self::Purge(..) => 0,
        }
    }
}

/// So many commands go into one transaction.
const MOST_COMMANDS: usize = 512;

/// And so many bytes of answers, unless one alone has more.
const MOST_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::fixtures::{id, token};

    fn abandon(n: u64) -> Command {
        Command::Abandon {
            id: id(n),
            token: token(n),
        }
    }

    #[test]
    fn all_that_waits_is_taken_at_once_but_not_more_than_fits() {
        let queue = Queue::default();
        assert!(
            queue
                .take(Duration::ZERO)
                .is_some_and(|taken| taken.is_empty())
        );
        for n in 0..MOST_COMMANDS as u64 + 2 {
            queue.push(abandon(n));
        }
        let taken = queue.take(Duration::from_mins(1)).expect("open");
        assert_eq!(taken.len(), MOST_COMMANDS);
        assert_eq!(queue.take(Duration::ZERO).map(|taken| taken.len()), Some(2));
    }

    #[test]
    fn what_came_before_the_end_is_done_and_nothing_after_it() {
        let queue = Queue::default();
        queue.push(abandon(1));
        queue.close();
        queue.push(abandon(2));
        assert_eq!(
            queue.take(Duration::from_mins(1)).map(|taken| taken.len()),
            Some(1)
        );
        assert!(queue.take(Duration::from_mins(1)).is_none());
    }

    #[test]
    fn a_grant_that_does_not_arrive_is_taken_back() {
        let queue = Arc::new(Queue::default());
        let arrived = Grant::new(id(1), token(1), Arc::clone(&queue)).accept();
        assert_eq!(arrived.id(), &id(1));
        drop(Grant::new(id(2), token(2), Arc::clone(&queue)));
        let taken = queue.take(Duration::from_mins(1)).expect("open");
        assert!(
            matches!(&taken[..], [Command::Abandon { id: own, .. }] if *own == id(2)),
            "{taken:?}"
        );
        queue.abandon();
        drop(Grant::new(id(3), token(3), Arc::clone(&queue)));
        assert!(queue.take(Duration::ZERO).is_none());
    }
}
