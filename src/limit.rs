//! Bounds: a level that never passes its limit, and permits that give back what they took when they go. A limit can be moved while
//! it is in use.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A bound on something that is held for a while: connections, executions, buffered bytes.
#[derive(Debug)]
pub struct Limit {
    level: AtomicUsize,
    max: AtomicUsize,
}

impl Limit {
    /// A bound of `max` units.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            level: AtomicUsize::new(0),
            max: AtomicUsize::new(max),
        })
    }

    /// Takes `units`, or nothing at all where they would pass the limit.
    #[must_use]
    pub fn take(self: &Arc<Self>, units: usize) -> Option<Permit> {
        self.raise(units).then(|| Permit {
            limit: Arc::clone(self),
            units,
        })
    }

    /// How much is taken.
    #[must_use]
    pub fn level(&self) -> usize {
        self.level.load(Ordering::Relaxed)
    }

    /// How much may be taken.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// From now on `max` units. What is taken beyond it stays taken until it is given back.
    pub fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn raise(&self, units: usize) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let raised = |level: usize| level.checked_add(units).filter(|sum| *sum <= max);
        self.level
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, raised)
            .is_ok()
    }
}

/// Units of a [`Limit`], given back on drop.
#[derive(Debug)]
#[must_use = "what was taken is given back on drop"]
pub struct Permit {
    limit: Arc<Limit>,
    units: usize,
}

impl Permit {
    /// How much it holds.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units
    }

    /// The permit for whoever takes over what it holds; this one holds nothing from now on.
    pub fn hand_over(&mut self) -> Self {
        Self {
            limit: Arc::clone(&self.limit),
            units: std::mem::take(&mut self.units),
        }
    }

    /// Makes this permit one of at least `units`; `false`, and nothing changed, where the limit forbids it.
    #[must_use]
    pub fn grow_to(&mut self, units: usize) -> bool {
        let more = units.saturating_sub(self.units);
        let fits = more == 0 || self.limit.raise(more);
        if fits {
            self.units += more;
        }
        fits
    }

    /// Gives back what is more than `units`.
    pub fn shrink_to(&mut self, units: usize) {
        let less = self.units.saturating_sub(units);
        self.limit.level.fetch_sub(less, Ordering::Relaxed);
        self.units -= less;
    }

    /// Makes this permit one of at least `units`, past the limit if need be: for what is already promised and can
    /// no longer be refused. New takers then find the limit reached.
    pub fn force_to(&mut self, units: usize) {
        let more = units.saturating_sub(self.units);
        self.limit.level.fetch_add(more, Ordering::Relaxed);
        self.units += more;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.level.fetch_sub(self.units, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_reached_and_never_passed() {
        let limit = Limit::new(10);
        let mut first = limit.take(4).expect("there is room");
        assert!(limit.take(7).is_none());
        assert!(first.grow_to(10));
        assert!(first.grow_to(3), "a permit does not shrink by that");
        assert!(!first.grow_to(11));
        assert_eq!(limit.level(), 10);
        assert!(limit.take(1).is_none());
        first.force_to(15);
        assert_eq!(limit.level(), 15);
        first.shrink_to(12);
        first.shrink_to(13);
        assert_eq!(limit.level(), 12);
        assert!(limit.take(usize::MAX).is_none());
        let second = first.hand_over();
        drop(first);
        assert_eq!((limit.level(), second.units()), (12, 12));
        drop(second);
        assert_eq!(limit.level(), 0);
    }

    #[test]
    fn a_limit_that_moves_takes_nothing_away() {
        let limit = Limit::new(10);
        let first = limit.take(8).expect("there is room");
        limit.set_max(5);
        assert_eq!(limit.level(), 8);
        assert!(limit.take(1).is_none());
        limit.set_max(9);
        let second = limit.take(1).expect("there is room again");
        assert!(limit.take(1).is_none());
        drop((first, second));
        assert_eq!(limit.level(), 0);
    }
}
