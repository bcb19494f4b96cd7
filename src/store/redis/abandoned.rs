//! Claims of which nobody knows whether they were made: to be let go, some at a time.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Inner;
use crate::core::record::{ClaimToken, RecordId};

/// All of a store's.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Mutex<Vec<One>>);

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct One {
    pub(super) id: RecordId,
    pub(super) token: ClaimToken,
    /// From then on it was made or never will be.
    due: Instant,
    /// By then it has ended by itself.
    ends: Instant,
}

impl Abandoned {
    /// To be let go once it was made or never will be, `within` from now, and for as long as it may `last` then.
    pub(super) fn add(&self, id: RecordId, token: ClaimToken, within: Duration, last: Duration) {
        let mut all = self.0.lock();
        if all.len() < MOST {
            let due = Instant::now() + within;
            let ends = due.checked_add(last).unwrap_or(due + LONGEST);
            all.push(One {
                id,
                token,
                due,
                ends,
            });
        }
    }

    /// Those that are due, so many at most; those that have ended are forgotten.
    pub(super) fn due(&self, most: usize) -> Vec<One> {
        let mut all = self.0.lock();
        let now = Instant::now();
        let mut due = Vec::new();
        all.retain(|one| {
            let taken = one.due <= now && one.ends > now && due.len() < most;
            if taken {
                due.push(one.clone());
            }
            one.ends > now && !taken
        });
        due
    }

    /// How many there are, due or not.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Not yet: the server did not take it, or was not asked. Others come first.
    pub(super) fn again(&self, ones: impl IntoIterator<Item = One>) {
        self.0.lock().extend(ones);
    }
}

/// So many can wait to be let go; one more is left to its lease.
const MOST: usize = 100_000;

/// One that lasts for ever is tried for so long.
const LONGEST: Duration = Duration::from_hours(24 * 365);

impl Inner {
    /// Lets go, before the end, of all that nobody holds, within this time: who asks for such a key next would wait for its lease, and be told
    /// that its outcome is unknown.
    pub(super) async fn let_go_at_last(&self, within: Duration) {
        let abandoned = &self.link.abandoned;
        let all = async {
            while abandoned.len() > 0 {
                self.let_go().await;
                tokio::time::sleep(BETWEEN).await;
            }
        };
        if tokio::time::timeout(within, all).await.is_err() {
            let claims = abandoned.len();
            tracing::warn!(
                claims,
                "claims that may have been made, and under which nothing ran, could not be let go: their outcomes are unknown once their leases have run out"
            );
        }
    }

    /// Lets claims go that nobody holds: some of them, for whoever does it has other work, and the rest at the next beat.
    pub(super) async fn let_go(&self) {
        let began = Instant::now();
        let mut due = self.link.abandoned.due(LET_GO).into_iter();
        while began.elapsed() < LET_GO_WITHIN {
            let Some(one) = due.next() else {
                return;
            };
            if self.release(&one.id, one.token).await.is_err() {
                self.link.abandoned.again([one]);
            }
        }
        self.link.abandoned.again(due);
    }
}

/// So many claims are let go at a beat, and none is begun with later than this.
const LET_GO: usize = 256;
const LET_GO_WITHIN: Duration = Duration::from_millis(250);

/// At the end, what is still left is tried again after so long.
const BETWEEN: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::fixtures::id;

    fn ids(due: &[One]) -> Vec<RecordId> {
        due.iter().map(|one| one.id).collect()
    }

    #[test]
    fn a_few_at_a_time_are_let_go_in_turn_and_none_that_has_ended() {
        let all = Abandoned::default();
        let (now, last) = (Duration::ZERO, Duration::from_mins(1));
        let add = |n, within, last| {
            let token = ClaimToken::from_random([1; 16]);
            all.add(id(n), token, within, last);
        };
        add(1, now, Duration::ZERO);
        add(2, last, last);
        for n in 3..=5 {
            add(n, now, last);
        }
        let first = all.due(2);
        assert_eq!(ids(&first), [id(3), id(4)]);
        all.again(first);
        assert_eq!(ids(&all.due(2)), [id(5), id(3)]);
        assert_eq!(ids(&all.due(2)), [id(4)]);
        assert!(all.due(2).is_empty());
    }
}
