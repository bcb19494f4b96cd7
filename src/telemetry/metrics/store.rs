//! What is counted for a store.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{
    labels::{StoreOp, StoreResult},
    series::{Counter, Histogram, STORE_BOUNDS, Table},
};

/// Reads a store's levels when the text is asked for.
pub type ReadStoreLevels = Arc<dyn Fn() -> StoreLevels + Send + Sync>;

/// What is counted for one store. Cheap to clone.
#[derive(Clone)]
pub struct StoreMetrics(pub(super) Arc<StoreSeries>);

pub(super) struct StoreSeries {
    pub(super) kind: &'static str,
    pub(super) operations: Table<StoreOp, Operation>,
    /// How long it took to make what waited durable, at once.
    pub(super) commits: Histogram,
    /// How much that was.
    pub(super) committed: Counter,
    /// What a store on a network costs.
    pub(super) network: Network,
    pub(super) watched: Mutex<Watched>,
}

#[derive(Default)]
pub(super) struct Network {
    pub(super) round_trips: Counter,
    pub(super) reconnects: Counter,
    pub(super) script_misses: Counter,
}

pub(super) struct Operation {
    pub(super) took: Histogram,
    pub(super) results: Table<StoreResult, Counter>,
}

#[derive(Default)]
pub(super) struct Watched {
    pub(super) read: Option<ReadStoreLevels>,
    /// What was told last.
    pub(super) last: StoreLevels,
}

/// What a store says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreLevels {
    /// Records it holds, claims among them.
    pub records: u64,
    /// Bytes they take.
    pub bytes: u64,
    /// Records that went for want of room, ever.
    pub evicted_size: u64,
    /// Records that went because their retention had passed, ever.
    pub evicted_expired: u64,
    /// Records that an operator purged, ever.
    pub evicted_purged: u64,
    /// Whether it answers.
    pub up: bool,
}

impl StoreMetrics {
    pub(super) fn new(kind: &'static str) -> Self {
        Self(Arc::new(StoreSeries {
            kind,
            operations: Table::new(|| Operation {
                took: Histogram::new(STORE_BOUNDS),
                results: Table::new(Counter::default),
            }),
            commits: Histogram::new(STORE_BOUNDS),
            committed: Counter::default(),
            network: Network::default(),
            watched: Mutex::default(),
        }))
    }

    /// Counts an operation that ended so, after so long.
    pub fn operation(&self, operation: StoreOp, result: StoreResult, took: Duration) {
        self.0.operations.on(operation, |series| {
            series.took.observe(took);
            series.results.on(result, Counter::add_one);
        });
    }

    /// Counts so many operations that were made durable at once, in so long.
    pub fn committed(&self, operations: u64, took: Duration) {
        self.0.commits.observe(took);
        self.0.committed.add(operations);
    }

    /// Counts a command that was sent to the store's server.
    pub fn round_trip(&self) {
        self.0.network.round_trips.add_one();
    }

    /// Counts a connection to the store's server that was made again.
    pub fn reconnected(&self) {
        self.0.network.reconnects.add_one();
    }

    /// Counts a script that the store's server had forgotten.
    pub fn script_missed(&self) {
        self.0.network.script_misses.add_one();
    }

    /// What the store says of itself now; `None` where nobody watches it. What is counted never goes back, even
    /// where another store of the kind began again at 0.
    pub(super) fn levels(&self) -> Option<StoreLevels> {
        let mut watched = self.0.watched.lock();
        let now = watched.read.as_ref()?();
        let last = watched.last;
        watched.last = StoreLevels {
            evicted_size: now.evicted_size.max(last.evicted_size),
            evicted_expired: now.evicted_expired.max(last.evicted_expired),
            evicted_purged: now.evicted_purged.max(last.evicted_purged),
            ..now
        };
        Some(watched.last)
    }
}

impl fmt::Debug for StoreMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreMetrics").field(&self.0.kind).finish()
    }
}
