//! The store as the proxy uses it: every operation counted and timed.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    core::{
        policy::Terms,
        record::RecordId,
        transition::{Ask, Found, Settlement},
    },
    store::{
        Awaited, Begin, Claim, Eviction, Held, Levels, Runs, Settled, StoreError, Stores, Unsettled,
    },
    telemetry::metrics::{Metrics, StoreLevels, StoreMetrics, StoreOp, StoreResult},
};

/// A store and what is counted of it. The operations are those of [`Stores`]; so is what dropping their futures does.
#[derive(Debug)]
pub struct Records {
    store: Arc<Stores>,
    metrics: StoreMetrics,
    unprotected: Mutex<Unprotected>,
}

/// Requests that were forwarded without the store's word.
#[derive(Debug, Default)]
struct Unprotected {
    /// When that was last told.
    at: Option<Instant>,
    /// How many there were since.
    requests: u64,
}

const WARN_EVERY: Duration = Duration::from_secs(1);

impl Records {
    /// Counts what is done with `store`, and lets `metrics` see its levels.
    #[must_use]
    pub fn new(store: Stores, metrics: &Metrics) -> Self {
        let kind = store.as_str();
        let store = Arc::new(store);
        let watched = Arc::clone(&store);
        metrics.watch_store(kind, Arc::new(move || levels(&watched)));
        Self {
            store,
            metrics: metrics.store(kind),
            unprotected: Mutex::default(),
        }
    }

    /// The store itself, for what is not part of a request.
    #[must_use]
    pub fn store(&self) -> &Stores {
        &self.store
    }

    /// The store, for operators.
    #[must_use]
    pub fn shared(&self) -> Arc<Stores> {
        Arc::clone(&self.store)
    }

    /// Tells what keeps the store from answering, for as long as somebody wants to know.
    pub fn watch(&self) -> impl Fn() -> Option<String> + Send + Sync + 'static {
        let store = Arc::clone(&self.store);
        move || store.trouble()
    }

    pub(super) async fn look(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
    ) -> Result<Option<Found>, StoreError> {
        self.timed(StoreOp::Look, self.store.look(id, ask), |_| StoreResult::Ok)
            .await
    }

    pub(super) async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Result<Begin, StoreError> {
        self.timed(StoreOp::Begin, self.store.begin(id, ask), |_| {
            StoreResult::Ok
        })
        .await
    }

    /// Not timed: how long it takes is how long the call does.
    pub(super) async fn wait_for_change(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
        max: usize,
        runs: Runs,
    ) -> Result<Awaited, StoreError> {
        self.store.wait_for_change(id, ask, max, runs).await
    }

    pub(super) fn awaited(&self, id: &RecordId) -> bool {
        self.store.awaited(id)
    }

    /// Counts a request that is forwarded without the store's word; at most once a second, how many there were since it was last told.
    pub(super) fn unprotected(&self) -> Option<u64> {
        let mut told = self.unprotected.lock();
        told.requests += 1;
        if told.at.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return None;
        }
        told.at = Some(Instant::now());
        Some(std::mem::take(&mut told.requests))
    }

    pub(super) async fn renew(&self, claim: &Claim, terms: &Terms) -> Result<Held, StoreError> {
        let result = |held: &Held| match held {
            Held::Yes => StoreResult::Ok,
            Held::Lost => StoreResult::Lost,
        };
        self.timed(StoreOp::Renew, self.store.renew(claim, terms), result)
            .await
    }

    pub(super) async fn settle(
        &self,
        claim: Claim,
        settlement: Settlement,
        terms: &Terms,
    ) -> Result<Settled, Unsettled> {
        let result = |settled: &Settled| match settled {
            Settled::Lost => StoreResult::Lost,
            Settled::Kept(_) | Settled::Released => StoreResult::Ok,
        };
        self.timed(
            StoreOp::Settle,
            self.store.settle(claim, settlement, terms),
            result,
        )
        .await
    }

    async fn timed<T, E: Why>(
        &self,
        operation: StoreOp,
        work: impl Future<Output = Result<T, E>>,
        result: impl FnOnce(&T) -> StoreResult,
    ) -> Result<T, E> {
        let started = Instant::now();
        let done = work.await;
        let result = match &done {
            Ok(value) => result(value),
            Err(error) => match error.why() {
                StoreError::Full => StoreResult::Full,
                StoreError::Unavailable | StoreError::None => StoreResult::Unavailable,
            },
        };
        self.metrics.operation(operation, result, started.elapsed());
        done
    }
}

fn levels(store: &Stores) -> StoreLevels {
    let Levels { records, bytes, .. } = store.levels();
    StoreLevels {
        records,
        bytes,
        evicted_size: store.evictions(Eviction::Size),
        evicted_expired: store.evictions(Eviction::Expired),
        evicted_purged: store.evictions(Eviction::Purged),
        up: store.answers(),
    }
}

/// An error that says why the store could not answer.
trait Why {
    fn why(&self) -> StoreError;
}

impl Why for StoreError {
    fn why(&self) -> StoreError {
        *self
    }
}

impl Why for Unsettled {
    fn why(&self) -> StoreError {
        self.why
    }
}
