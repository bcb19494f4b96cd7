//! What the writer, the readers and those who ask have in common.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{
    database::Database,
    reads,
    rows::{self, Unreadable},
};
use crate::{
    core::{
        record::{Record, RecordId, ShortId},
        time::Timestamp,
    },
    store::{Levels, StoreError, cache::Cache, clock::Clock, seal::Seal},
    telemetry::metrics::StoreMetrics,
};

/// One of it a store.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seal: Seal,
    pub(super) cache: Cache,
    /// The database's file.
    pub(super) path: PathBuf,
    pub(super) metrics: StoreMetrics,
    pub(super) gauges: Gauges,
    /// Set while nothing can be promised.
    pub(super) down: AtomicBool,
    /// Idle connections that read.
    readers: Mutex<Vec<Connection>>,
    /// So many read at a time.
    pub(super) reading: Semaphore,
    complained: Mutex<Option<Timestamp>>,
}

/// What the store holds, as of the last commit.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub(super) records: AtomicU64,
    pub(super) claims: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Records that were dropped when they were forgotten, since the start.
    pub(super) expired: AtomicU64,
    /// Records that operators purged, since the start.
    pub(super) purged: AtomicU64,
}

impl Gauges {
    pub(super) fn levels(&self) -> Levels {
        Levels {
            records: self.records.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            claims: self.claims.load(Relaxed),
        }
    }
}

impl Shared {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        seal: Seal,
        cache: Cache,
        path: PathBuf,
        metrics: StoreMetrics,
    ) -> Self {
        Self {
            clock,
            seal,
            cache,
            path,
            metrics,
            gauges: Gauges::default(),
            down: AtomicBool::new(false),
            readers: Mutex::default(),
            reading: Semaphore::new(READERS),
            complained: Mutex::default(),
        }
    }

    /// The record as the database has it, whether or not it has expired. Blocks.
    pub(super) fn read(&self, id: &RecordId) -> Result<Option<Arc<Record>>, StoreError> {
        let seen = self.cache.seen(id);
        let found = self.with_reader(|reader| reads::read_whole(reader, id));
        let found = found.map_err(|error| {
            self.complain(id, &error);
            StoreError::Unavailable
        })?;
        let Some((kept, answer)) = found else {
            return Ok(None);
        };
        let record = rows::read_whole(&self.seal, id, &kept, answer);
        let record = Arc::new(record.map_err(|why| self.unreadable(id, why))?);
        self.cache.fill(*id, &record, seen);
        Ok(Some(record))
    }

    /// Reads something. Blocks.
    pub(super) fn with_reader<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let reader = self.readers.lock().pop();
        let reader = reader.map_or_else(|| Database::open_reader(&self.path), Ok)?;
        let read = work(&reader)?;
        if !self.down.load(Relaxed) {
            self.readers.lock().push(reader);
        }
        Ok(read)
    }

    /// Closes the connections that read.
    pub(super) fn close_readers(&self) {
        self.readers.lock().clear();
    }

    /// Says that a record cannot be read. It is there all the same, so nobody may claim it.
    pub(super) fn unreadable(&self, id: &RecordId, why: Unreadable) -> StoreError {
        self.complain(id, &why);
        StoreError::Unavailable
    }

    fn complain(&self, id: &RecordId, error: &dyn std::error::Error) {
        let now = self.clock.now();
        let mut complained = self.complained.lock();
        if complained.is_some_and(|at| !at.after(COMPLAIN_EVERY).reached(now)) {
            return;
        }
        *complained = Some(now);
        let (record, path): (ShortId, _) = (id.short(), self.path.display());
        tracing::error!(%record, %path, %error, "a record cannot be read; its key is refused, and nothing is executed under it");
    }
}

/// How many read at a time.
const READERS: usize = 4;

/// How often it is said that a record cannot be read.
const COMPLAIN_EVERY: Duration = Duration::from_secs(1);
