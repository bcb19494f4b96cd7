//! Which complete record of the whole store was least recently used, without a list of them all.
//!
//! Every use gets the next number, under the lock of its record's shard. So each shard's own list is in the order of
//! uses, and the one that was used least recently is the first of some shard's list: of the shard that shows the
//! smallest number here.

use std::sync::atomic::{AtomicU64, Ordering};

use super::table::NEVER;

/// The numbers of uses.
#[derive(Debug)]
pub(super) struct Recency {
    next: Box<Next>,
    /// For each shard, when its least recently used complete record was used.
    oldest: Box<[AtomicU64]>,
}

/// The number of the next use. All processors write it: nothing that they only read shares its cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Next(AtomicU64);

impl Recency {
    /// No uses yet, in so many shards.
    pub(super) fn new(shards: usize) -> Self {
        Self {
            next: Box::default(),
            oldest: (0..shards).map(|_| AtomicU64::new(NEVER)).collect(),
        }
    }

    /// The number of a use that is made now. Called under the lock of its record's shard, which is what orders it.
    pub(super) fn stamp(&self) -> u64 {
        self.next.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Shows when a shard's least recently used record was used. Called under the shard's lock.
    pub(super) fn show(&self, shard: usize, oldest: u64) {
        if let Some(shown) = self.oldest.get(shard) {
            shown.store(oldest, Ordering::Release);
        }
    }

    /// The shard that has the least recently used record, and when that was used; `None`: no shard shows one.
    ///
    /// It may have been used again, or be gone, when the shard is locked. If it stands there as shown it is the least
    /// recently used of all: meanwhile other shards could only come to show greater numbers.
    pub(super) fn oldest(&self) -> Option<(usize, u64)> {
        self.oldest
            .iter()
            .map(|shown| shown.load(Ordering::Acquire))
            .enumerate()
            .min_by_key(|(_, used)| *used)
            .filter(|(_, used)| *used != NEVER)
    }

    /// What a shard shows.
    #[cfg(test)]
    pub(super) fn shown(&self, shard: usize) -> u64 {
        self.oldest[shard].load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_with_the_smallest_number_is_the_one() {
        let recency = Recency::new(3);
        assert_eq!(recency.oldest(), None);
        let (first, second) = (recency.stamp(), recency.stamp());
        assert!(first < second);
        recency.show(2, second);
        assert_eq!(recency.oldest(), Some((2, second)));
        recency.show(1, first);
        assert_eq!(recency.oldest(), Some((1, first)));
        recency.show(1, NEVER);
        assert_eq!(recency.oldest(), Some((2, second)));
    }
}
