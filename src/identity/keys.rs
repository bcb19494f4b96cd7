//! The keys in force: replaced as a whole, counted by generation, and asked for ahead of time.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{KeySet, fetch};

/// So long after an attempt an unknown key starts no other one.
const PAUSE: Duration = Duration::from_secs(10);

/// The keys in force, and how they came to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Current {
    pub(super) set: Arc<KeySet>,
    /// Counts the sets: what was verified by another one is verified anew.
    pub(super) generation: u64,
    /// Counts the attempts to read keys, with success or without.
    attempts: u64,
}

/// Keys that can be replaced under those who use them.
#[derive(Debug)]
pub(super) struct Keys {
    current: watch::Sender<Current>,
    phase: Mutex<Phase>,
    wanted: Notify,
}

/// Whether keys are being read.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// They are not, since then; `None`: they never were.
    Resting { since: Option<Instant> },
    /// They are, or are about to be.
    Reading,
}

/// What an attempt has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replaced,
    Same,
}

impl Keys {
    pub(super) fn new(set: Arc<KeySet>) -> Self {
        let current = Current {
            set,
            ..Current::default()
        };
        Self {
            current: watch::Sender::new(current),
            phase: Mutex::new(Phase::Resting { since: None }),
            wanted: Notify::new(),
        }
    }

    pub(super) fn current(&self) -> Current {
        self.current.borrow().clone()
    }

    /// An attempt begins.
    pub(super) fn begin(&self) {
        *self.phase.lock() = Phase::Reading;
    }

    /// An attempt ends, with keys or without.
    pub(super) fn end(&self, set: Option<KeySet>) -> Change {
        let mut change = Change::Same;
        self.current.send_modify(|current| {
            current.attempts += 1;
            if let Some(set) = set
                && *current.set != set
            {
                current.set = Arc::new(set);
                current.generation += 1;
                change = Change::Replaced;
            }
        });
        *self.phase.lock() = Phase::Resting {
            since: Some(Instant::now()),
        };
        change
    }

    /// Completes when keys are asked for ahead of time.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether there are other keys than `seen`, now or after an attempt, which this starts where the last one is long enough
    /// ago. Whoever comes while one runs waits for it too.
    pub(super) async fn newer_than(&self, seen: &Current) -> bool {
        let waits = {
            let mut phase = self.phase.lock();
            match *phase {
                Phase::Reading => true,
                Phase::Resting { since } if since.is_some_and(|at| at.elapsed() < PAUSE) => false,
                Phase::Resting { .. } => {
                    *phase = Phase::Reading;
                    self.wanted.notify_one();
                    true
                }
            }
        };
        if waits {
            let mut changes = self.current.subscribe();
            let attempt = changes.wait_for(|current| current.attempts != seen.attempts);
            // Nobody reads keys any more where the process ends.
            let _ = timeout(fetch::PATIENCE + Duration::from_secs(1), attempt).await;
        }
        self.current.borrow().generation != seen.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    fn set() -> KeySet {
        KeySet::parse(ONE.as_bytes()).expect("a key")
    }

    #[tokio::test(start_paused = true)]
    async fn many_wait_for_one_attempt() {
        let keys = Keys::new(Arc::default());
        let seen = keys.current();
        let issuer = async {
            keys.wanted().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            keys.end(Some(set()))
        };
        let answers = tokio::join!(issuer, keys.newer_than(&seen), keys.newer_than(&seen));
        assert_eq!(answers, (Change::Replaced, true, true));
        let again = timeout(Duration::ZERO, keys.wanted()).await;
        assert!(again.is_err(), "one attempt was asked for");
        assert!(keys.newer_than(&seen).await, "it is there already");
    }

    #[tokio::test(start_paused = true)]
    async fn soon_after_an_attempt_there_is_no_other() {
        let keys = Keys::new(Arc::default());
        keys.begin();
        assert_eq!(keys.end(None), Change::Same);
        let seen = keys.current();
        let started = Instant::now();
        assert!(!keys.newer_than(&seen).await);
        assert_eq!(started.elapsed(), Duration::ZERO);
        tokio::time::sleep(PAUSE).await;
        let issuer = async {
            keys.wanted().await;
            keys.end(Some(set()))
        };
        assert_eq!(
            tokio::join!(keys.newer_than(&seen), issuer),
            (true, Change::Replaced)
        );
        assert_eq!(keys.end(Some(set())), Change::Same, "the same keys again");
        assert!(!keys.newer_than(&keys.current()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let keys = Keys::new(Arc::default());
        let started = Instant::now();
        assert!(!keys.newer_than(&keys.current()).await);
        assert_eq!(started.elapsed(), Duration::from_secs(6));
    }
}
