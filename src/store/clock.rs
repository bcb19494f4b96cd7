//! Clocks: where a store's time comes from. The core takes every point in time as an argument; stores read it here.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use crate::core::time::Timestamp;

/// What tells a store the time. It never goes back.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time, in milliseconds.
    fn now(&self) -> Timestamp;
}

/// The wall clock's time, which may be set: for what others have dated, and for nothing that is kept.
#[must_use]
pub fn wall() -> Timestamp {
    Timestamp::from_millis(0).after(since_epoch())
}

/// The same, as exactly as it is known: for what others compare with their own.
#[must_use]
pub fn since_epoch() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the wall clock is read"
    )]
    let wall = SystemTime::now();
    // A wall clock before 1970 is wrong anyway; records need an order of time, not the date.
    wall.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// The system's time: the wall clock is read once, at start, and from there on only the monotonic clock counts. So
/// a step of the wall clock neither expires a record nor revives one; what it shows drifts from the wall by the
/// steps made since the start.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
}

impl SystemClock {
    /// A clock that starts at the wall clock's time.
    #[must_use]
    pub fn start() -> Self {
        Self::start_not_before(Timestamp::from_millis(0))
    }

    /// The same, but at `earliest` where the wall clock is behind that: a store that outlives its process goes on where it
    /// ended, so that a wall clock that was set back revives nothing.
    #[must_use]
    pub fn start_not_before(earliest: Timestamp) -> Self {
        Self {
            started: Instant::now(),
            started_at: wall().max(earliest),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.started_at.after(self.started.elapsed())
    }
}

/// A clock that stands until it is moved, for tests. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `at`.
    #[must_use]
    pub fn at(at: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(at.as_millis())))
    }

    /// Moves it on by `span`, in whole milliseconds.
    pub fn pass(&self, span: Duration) {
        let later = self.now().after(span);
        self.0.store(later.as_millis(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_starts_at_the_wall_clocks_time_and_never_goes_back() {
        let clock = SystemClock::start();
        let first = clock.now();
        #[expect(clippy::disallowed_methods, reason = "the time to compare with")]
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970");
        let apart = u128::from(first.as_millis()).abs_diff(wall.as_millis());
        assert!(apart < 60_000, "{apart} ms from the wall clock");
        std::thread::sleep(Duration::from_millis(3));
        assert!(clock.now() > first);
    }

    #[test]
    fn a_clock_that_has_been_later_starts_there() {
        let future = wall().after(Duration::from_hours(24));
        let now = SystemClock::start_not_before(future).now();
        assert!(now >= future && now < future.after(Duration::from_hours(1)));
        let past = Timestamp::from_millis(1);
        assert!(SystemClock::start_not_before(past).now() > past.after(Duration::from_hours(24)));
    }

    #[test]
    fn a_manual_clock_moves_when_it_is_told_to() {
        let clock = ManualClock::at(Timestamp::from_millis(5));
        let same = clock.clone();
        clock.pass(Duration::from_millis(7));
        assert_eq!(same.now(), Timestamp::from_millis(12));
    }
}
