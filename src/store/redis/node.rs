//! One server that has records: its connection, which all requests share, its circuit breaker, the estimate of its clock, and how long
//! what is cached of it may be believed. While there is no connection that was found good, every operation fails at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use ::redis::aio::MultiplexedConnection;
use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

use super::{place::Place, replicas::Lanes};
use crate::{core::time::Timestamp, store::StoreError};

/// One of it a server; behind Sentinel one for whichever is the master.
#[derive(Debug)]
pub(super) struct Node {
    /// Host and port as the cluster has them; what it is called elsewhere.
    address: String,
    live: ArcSwapOption<Live>,
    /// Somebody found the connection broken.
    pub(super) broken: Notify,
    started: Instant,
    /// So far the server's clock is ahead of the time since `started`, at most, in milliseconds.
    ahead: AtomicI64,
    /// What is cached may be believed until then, in milliseconds since `started`.
    believed_until: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// How many replicas follow it, by its own word.
    replicas: AtomicU32,
}

/// A connection, and where it leads.
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    pub(super) place: Place,
    /// Where claims that were made over it wait for replicas, if they do.
    pub(super) lanes: Option<Lanes>,
}

impl Live {
    pub(super) const fn new(connection: MultiplexedConnection, place: Place) -> Self {
        Self {
            connection,
            place,
            lanes: None,
        }
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Node {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            live: ArcSwapOption::empty(),
            broken: Notify::new(),
            started: Instant::now(),
            ahead: AtomicI64::new(0),
            believed_until: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            replicas: AtomicU32::new(0),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Closes the breaker.
    pub(super) fn up(&self, live: Live) {
        self.live.store(Some(Arc::new(live)));
    }

    /// Opens it.
    pub(super) fn down(&self) {
        self.live.store(None);
        self.believed_until.store(0, Relaxed);
    }

    /// Opens it, unless another connection was made meanwhile: what is said of this one says nothing of that.
    pub(super) fn down_if(&self, live: &Live) {
        let own = self.live.load();
        if own.as_deref().is_some_and(|own| std::ptr::eq(own, live)) {
            let before = self.live.compare_and_swap(&own, None);
            if before.as_deref().is_some_and(|own| std::ptr::eq(own, live)) {
                self.believed_until.store(0, Relaxed);
            }
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.live.load().is_some()
    }

    /// The connection that was found good.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: there is none.
    pub(super) fn live(&self) -> Result<Arc<Live>, StoreError> {
        self.live.load_full().ok_or(StoreError::Unavailable)
    }

    /// It says that it has so many replicas now; how many it had.
    pub(super) fn has_replicas(&self, connected: u32) -> u32 {
        self.replicas.swap(connected, Relaxed)
    }

    /// What it lacks where claims wait for `wanted` replicas; `None`: nothing.
    pub(super) fn lacks(&self, wanted: u32) -> Option<String> {
        let connected = self.replicas.load(Relaxed);
        (connected < wanted)
            .then(|| format!("has {connected} of the {wanted} replicas that claims wait for"))
    }

    /// Milliseconds since the node was first heard of.
    pub(super) fn local(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The latest time that the server's clock may show now, by what it showed last.
    pub(super) fn latest(&self) -> Timestamp {
        let local = i64::try_from(self.local()).unwrap_or(i64::MAX);
        let now = local.saturating_add(self.ahead.load(Relaxed));
        Timestamp::from_millis(u64::try_from(now).unwrap_or(0))
    }

    /// What was sent at `sent` met the time `server`.
    pub(super) fn learn(&self, sent: u64, server: u64) {
        let (Ok(server), Ok(sent)) = (i64::try_from(server), i64::try_from(sent)) else {
            return;
        };
        self.ahead.store(server.saturating_sub(sent), Relaxed);
    }

    /// Everything that this server published up to `sent` has come; so what is cached of it may be believed for a while.
    pub(super) fn believe(&self, sent: u64) {
        self.believed_until
            .fetch_max(sent.saturating_add(BELIEVED_MS), Relaxed);
    }

    pub(super) fn believes(&self) -> bool {
        self.local() < self.believed_until.load(Relaxed)
    }
}

/// How long the cache is believed after the last answer that proves that nothing published is missing.
const BELIEVED_MS: u64 = 3_000;
