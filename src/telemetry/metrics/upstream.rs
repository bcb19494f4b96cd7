//! What is counted for one upstream, and whether it could be reached when that was tried last.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    labels::ConnectFailure,
    series::{Counter, Table},
};

/// The part of one upstream. Cheap to clone; shared by the pools of all workers.
#[derive(Clone)]
pub struct UpstreamMetrics(Arc<Series>);

struct Series {
    name: String,
    failures: Table<ConnectFailure, Counter>,
    /// Taken when a connection is made, and when somebody asks; never by a request on a connection that stands.
    seen: Mutex<Option<Seen>>,
}

/// What was seen last, and since when it has been so.
#[derive(Clone, Copy)]
struct Seen {
    reached: Reached,
    since: Instant,
}

/// Whether an upstream could be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The last connection was made.
    Yes,
    /// It was not, for this reason.
    No(ConnectFailure),
}

/// How an upstream looks from here, told by the connections that were made anyway: nobody asks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamState {
    /// Nobody has tried to reach it yet.
    Untried,
    /// It could be reached, or not, for so long now.
    Tried {
        /// Which of the two. Of the reasons the last one.
        reached: Reached,
        /// Since the first connection that showed it.
        lasts: Duration,
    },
}

impl UpstreamMetrics {
    pub(super) fn new(name: &str) -> Self {
        Self(Arc::new(Series {
            name: name.to_owned(),
            failures: Table::new(Counter::default),
            seen: Mutex::default(),
        }))
    }

    /// The upstream's name: its label. `""` is `[upstream]`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A connection was made. Tells whether this is news: the last one was not.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.see(Reached::Yes)
    }

    /// A connection could not be made, and is counted. Tells whether this is news: the last one could, or there was none.
    #[must_use]
    pub fn connect_failed(&self, why: ConnectFailure) -> bool {
        self.0.failures.on(why, Counter::add_one);
        self.see(Reached::No(why))
    }

    fn see(&self, now: Reached) -> bool {
        let mut seen = self.0.seen.lock();
        let was_reached = seen.map(|seen| seen.reached == Reached::Yes);
        let is_reached = now == Reached::Yes;
        match seen.as_mut() {
            Some(seen) if was_reached == Some(is_reached) => seen.reached = now,
            _ => {
                let since = Instant::now();
                *seen = Some(Seen {
                    reached: now,
                    since,
                });
            }
        }
        match was_reached {
            None => !is_reached,
            Some(was) => was != is_reached,
        }
    }

    /// How it looks now.
    #[must_use]
    pub fn state(&self) -> UpstreamState {
        let seen = *self.0.seen.lock();
        seen.map_or(UpstreamState::Untried, |seen| UpstreamState::Tried {
            reached: seen.reached,
            lasts: seen.since.elapsed(),
        })
    }

    pub(super) fn failures(&self) -> &Table<ConnectFailure, Counter> {
        &self.0.failures
    }

    /// Whether somebody calls it, beside those who count.
    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl fmt::Debug for UpstreamMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UpstreamMetrics")
            .field(&self.0.name)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_is_news() {
        let upstream = UpstreamMetrics::new("billing");
        assert_eq!(upstream.state(), UpstreamState::Untried);
        assert!(!upstream.connected(), "it was not known to be down");
        assert!(upstream.connect_failed(ConnectFailure::Connect));
        assert!(!upstream.connect_failed(ConnectFailure::Dns));
        let UpstreamState::Tried { reached, .. } = upstream.state() else {
            panic!("it was tried");
        };
        assert_eq!(reached, Reached::No(ConnectFailure::Dns), "the last reason");
        assert!(upstream.connected());
        assert!(!upstream.connected());
    }

    #[test]
    fn one_that_is_down_from_the_start_is_news() {
        let upstream = UpstreamMetrics::new("");
        assert!(upstream.connect_failed(ConnectFailure::Timeout));
        assert!(upstream.connected());
    }
}
