//! The numbers behind the metrics: atomics that a request adds to without a lock, a look-up or an allocation.
//!
//! They are our own because the `prometheus` crate's take a fallible constructor each, keep a request's count twice
//! (counter and histogram), and add a sum of floats by compare-and-swap. That crate renders them.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::labels::Label;

/// What only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What goes up and down.
#[derive(Debug, Default)]
pub(super) struct Gauge(AtomicI64);

impl Gauge {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn take_one(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    pub(super) fn value(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// The upper bounds of a histogram's buckets, in nanoseconds, ascending; the last, infinite one goes without saying.
pub(super) type Bounds = &'static [u64];

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// For requests and upstream calls: 0.1 ms (a hit) to 60 s (the longest time-outs).
#[rustfmt::skip]
pub(super) const REQUEST_BOUNDS: Bounds = &[
    100 * US, 250 * US, 500 * US, MS, 2_500 * US, 5 * MS, 10 * MS, 25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS,
    1_000 * MS, 2_500 * MS, 5_000 * MS, 10_000 * MS, 30_000 * MS, 60_000 * MS,
];

/// For store operations: 1 µs (memory) to 1 s (a store over the network, at its time-out).
#[rustfmt::skip]
pub(super) const STORE_BOUNDS: Bounds = &[
    US, 10 * US, 50 * US, 100 * US, 250 * US, 500 * US, MS, 2_500 * US, 5 * MS, 10 * MS, 25 * MS, 50 * MS, 100 * MS,
    250 * MS, 500 * MS, 1_000 * MS,
];

/// How long things took. One observation is two additions.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: Bounds,
    /// One a bound and the infinite one; each counts its own observations alone.
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn observe(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // A bound belongs to its bucket (`le`).
        let place = self.bounds.partition_point(|bound| *bound < ns);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Adds each bucket to that of `into`; all observations.
    pub(super) fn add_to(&self, into: &mut [u64]) -> u64 {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let added = counts.zip(into).map(|(count, into)| {
            *into += count;
            count
        });
        added.sum()
    }

    /// What it holds now; `None` where nothing was ever observed. The count is that of the buckets read, so that
    /// they agree; the sum may be an observation ahead or behind.
    pub(super) fn read(&self) -> Option<Snapshot> {
        let mut count = 0;
        let mut cumulative = Vec::with_capacity(self.bounds.len());
        for (place, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Relaxed);
            if let Some(bound_ns) = self.bounds.get(place) {
                cumulative.push((*bound_ns, count));
            }
        }
        (count > 0).then(|| Snapshot {
            cumulative,
            count,
            sum_ns: self.sum_ns.load(Relaxed),
        })
    }
}

/// A histogram at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Each bound, in nanoseconds, and how many observations were not over it.
    pub(super) cumulative: Vec<(u64, u64)>,
    /// All observations.
    pub(super) count: u64,
    /// What they come to, in nanoseconds.
    pub(super) sum_ns: u64,
}

/// One cell for each value of a label.
#[derive(Debug)]
pub(super) struct Table<L, T> {
    cells: Box<[T]>,
    labels: PhantomData<fn(L)>,
}

impl<L: Label, T> Table<L, T> {
    pub(super) fn new(cell: impl Fn() -> T) -> Self {
        Self {
            cells: L::ALL.iter().map(|_| cell()).collect(),
            labels: PhantomData,
        }
    }

    /// Does something to the label's cell. Every label has one.
    pub(super) fn on(&self, label: L, act: impl FnOnce(&T)) {
        if let Some(cell) = self.cells.get(label.index()) {
            act(cell);
        }
    }

    /// Every cell with its label's spelling.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &T)> {
        L::ALL.iter().map(|label| label.text()).zip(&self.cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_on_a_bound_is_not_over_it() {
        let histogram = Histogram::new(&[10, 20]);
        assert!(histogram.read().is_none());
        for ns in [0, 10, 11, 20, 21, u64::MAX / 2] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let snapshot = histogram.read().unwrap();
        assert_eq!(snapshot.cumulative, [(10, 2), (20, 4)]);
        assert_eq!(snapshot.count, 6);
        assert_eq!(snapshot.sum_ns, 62 + u64::MAX / 2);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [REQUEST_BOUNDS, STORE_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
