//! How long a request may still be begun: whoever sends it may lose the right to meanwhile, by the passing of time alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// A point in time that goes on while the machine sleeps, in milliseconds since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let whole = u64::try_from(now.tv_sec).unwrap_or(0);
        let rest = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
        Self(whole.saturating_mul(1000).saturating_add(rest))
    }

    fn after(self, span: Duration) -> u64 {
        let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        self.0.saturating_add(span)
    }
}

/// Leave to begin a request, until it ends. Clones are one.
#[derive(Clone, Debug)]
pub struct Leave(Arc<AtomicU64>);

impl Leave {
    /// One that was asked for then, and holds for so long from that moment: it is given later, and counts from before.
    #[must_use]
    pub fn new(asked: Moment, span: Duration) -> Self {
        Self(Arc::new(AtomicU64::new(asked.after(span))))
    }

    /// It was asked for again then.
    pub fn extend(&self, asked: Moment, span: Duration) {
        self.0.fetch_max(asked.after(span), Relaxed);
    }

    /// It is over, and is not to be asked for again.
    pub fn end(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether a request that needs it may no longer be begun.
    #[must_use]
    pub fn is_over(&self) -> bool {
        Moment::now().0 >= self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_counts_from_when_it_was_asked_for() {
        let asked = Moment(Moment::now().0 - 5_000);
        assert!(Leave::new(asked, Duration::from_secs(4)).is_over());
        let leave = Leave::new(asked, Duration::from_mins(1));
        assert!(!leave.is_over());
        // What was asked for earlier takes nothing back.
        leave.extend(asked, Duration::from_secs(1));
        assert!(!leave.is_over());
        let over = Leave::new(asked, Duration::ZERO);
        over.extend(Moment::now(), Duration::from_mins(1));
        assert!(!over.clone().is_over(), "it was given again");
        over.end();
        assert!(over.is_over(), "it was taken back");
    }
}
