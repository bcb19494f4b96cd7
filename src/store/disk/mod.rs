//! The disk store: one replica with a volume. A claim is on the disk before its upstream is called, a settlement before its
//! client is answered; both outlast a crash and a power cut.
//!
//! - `folder`: the folder, private and one process's only; `database`: SQLite, its tables and statements.
//! - `queue` → `writer` → `batch`: one thread decides and writes, all that waits in one transaction. Claims are answered, and
//!   settlements, when they are durable.
//! - the `cache` of the room above: settled records in memory. A look asks the cache alone: what is not there could claim, for all it knows, and
//!   `begin` then finds what the database has. So a fresh key costs no read before its claim.
//! - `shared` has the readers, who fetch an answer that is not in the cache: the writer never reads a body.
//! - `operator`, `reads`: lists, look-ups by the first digits, purges and resolutions.
//! - `rows` and `routes` say how records become rows, `room` how many there may be.
//!
//! At the start, claims of a predecessor become unknown: the lock of the folder proves that it is gone. Time goes on where it
//! ended, even if the wall clock was set back.

mod batch;
mod database;
mod done;
#[cfg(test)]
mod faults;
mod folder;
mod operator;
mod queue;
mod reads;
mod room;
mod routes;
mod rows;
mod shared;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::{
    database::{Database, Open, Unusable},
    folder::Folder,
    queue::{Beginning, Command, Queue, Reply, Said, Settling},
    shared::Shared,
    writer::Writer,
};
use super::{
    Begin, Claim, Eviction, Held, Levels, Settled, StoreError, Unsettled,
    cache::Cache,
    clock::{Clock, SystemClock, wall},
    digest, draw_token,
    seal::Seal,
};
use crate::{
    config::{DiskStore as Settings, MemoryLimits, SealKeys},
    core::{
        policy::Terms,
        record::{Record, RecordId},
        time::Timestamp,
        transition::{self, Ask, Found, Settlement},
    },
    tasks::{self, JoinThread},
    telemetry::metrics::StoreMetrics,
};

/// The disk store.
pub struct DiskStore {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    writer: Option<JoinThread>,
    /// The writer has ended.
    ended: CancellationToken,
    /// Given back last, when nothing writes any more.
    _folder: Folder,
    #[cfg(test)]
    faults: faults::Faults,
}

/// Why a disk store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Something about the folder.
    #[error("store.disk.path: {path} {what}: {error}", path = path.display())]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// What cannot be done with it.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Something else stands there.
    #[error("store.disk.path: {path} is no folder", path = .0.display())]
    NoFolder(PathBuf),
    /// Another process has it.
    #[error("store.disk.path: {path} is in use by another process", path = .0.display())]
    InUse(PathBuf),
    /// The database in it is not ours, or does not work.
    #[error("the database {path} cannot be used: {why}", path = path.display())]
    Database {
        /// Its file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The system gives no thread.
    #[error("the disk store's writer cannot be started: {0}")]
    Thread(io::Error),
}

impl OpenError {
    fn folder(what: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Folder {
            path: path.to_owned(),
            what,
            error,
        }
    }
}

impl DiskStore {
    /// Opens the store in its folder. `cache` bounds what is kept in memory of what is on the disk. Blocks, but reads no more
    /// than what was in flight: how many records there are does not matter.
    ///
    /// # Errors
    /// [`OpenError`], which names the path.
    pub fn open(
        settings: &Settings,
        cache: MemoryLimits,
        keys: Option<&SealKeys>,
        metrics: StoreMetrics,
    ) -> Result<Self, OpenError> {
        let clock = |last| Arc::new(start_clock(last)) as Arc<dyn Clock>;
        Self::open_at(settings, cache, keys, metrics, clock)
    }

    /// The same with a clock of its own, which is told the latest time that the store ever knew.
    fn open_at(
        settings: &Settings,
        cache: MemoryLimits,
        keys: Option<&SealKeys>,
        metrics: StoreMetrics,
        clock: impl FnOnce(Timestamp) -> Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let started = Instant::now();
        let folder = Folder::open(&settings.path)?;
        let path = folder.database().to_owned();
        let unusable = |why: Unusable| OpenError::Database {
            path: path.clone(),
            why: why.to_string(),
        };
        let database = Database::open(&path, Open::Start, settings.max_bytes).map_err(unusable)?;
        let last = database
            .house()
            .map_err(|error| unusable(error.into()))?
            .clock;
        let shared = Arc::new(Shared::new(
            clock(last),
            Seal::new(keys),
            Cache::new(cache.max_bytes, cache.max_records),
            path.clone(),
            metrics,
        ));
        let queue = Arc::new(Queue::default());
        let (writer, inventory) = Writer::start(
            Arc::clone(&shared),
            Arc::clone(&queue),
            database,
            settings.max_bytes,
        )
        .map_err(|error| unusable(error.into()))?;
        #[cfg(test)]
        let faults = writer.faults();
        let ended = CancellationToken::new();
        let end = AtTheEnd {
            shared: Arc::clone(&shared),
            queue: Arc::clone(&queue),
            _ended: ended.clone().drop_guard(),
        };
        let work = move || {
            let _end = end;
            writer.run();
        };
        let thread = tasks::thread("disk-store", work).map_err(OpenError::Thread)?;
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (path, records) = (path.display(), inventory.records);
        let (interrupted, bytes) = (inventory.claims, inventory.bytes);
        tracing::info!(%path, records, interrupted, bytes, took_ms, "the disk store is open");
        if interrupted > 0 {
            tracing::warn!(
                interrupted,
                "calls were interrupted when the last process died: their outcomes are unknown"
            );
        }
        Ok(Self {
            shared,
            queue,
            writer: Some(thread),
            ended,
            _folder: folder,
            #[cfg(test)]
            faults,
        })
    }

    /// What a request finds among the records that are in memory; `None`: it could claim, for all that is known there.
    #[must_use]
    pub fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        let record = self.shared.cache.get(id)?;
        transition::look(Some(&record), ask, self.shared.clock.now())
    }

    /// Claims the record, durably, unless something stands in the way.
    ///
    /// Dropping the future leaves no claim behind.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Unavailable`]
    pub async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Result<Begin, StoreError> {
        // A claim outlives this process, and its request does not: both digests are written down. Not by the writer, for whom
        // all others wait.
        digest(ask).await;
        loop {
            let beginning = Box::new(Beginning {
                id: *id,
                token: draw_token()?,
                fingerprint: Arc::clone(ask.fingerprint),
                terms: *ask.terms,
                route: ask.route.clone(),
            });
            let said = self.ask(|reply| Command::Begin(beginning, reply)).await?;
            match said {
                Said::Claimed(grant) => return Ok(Begin::Claimed(grant.accept())),
                Said::Found(found) => return Ok(Begin::Found(found)),
                Said::Cold => {}
            }
            let record = self.read(id).await?;
            // It may have expired meanwhile: then nothing stands in the way any more.
            if let Some(found) = transition::look(record.as_ref(), ask, self.shared.clock.now()) {
                return Ok(Begin::Found(found));
            }
        }
    }

    /// Draws out a claim's lease, durably.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn renew(&self, claim: &Claim, terms: &Terms) -> Result<Held, StoreError> {
        let (id, token, terms) = (claim.id, claim.token, *terms);
        self.ask(|reply| Command::Renew {
            id,
            token,
            terms,
            reply,
        })
        .await
    }

    /// Settles a claim, durably. An answer that has no room becomes a tombstone.
    ///
    /// # Errors
    /// Claim and settlement come back.
    pub async fn settle(
        &self,
        claim: Claim,
        settlement: Settlement,
        terms: &Terms,
    ) -> Result<Settled, Unsettled> {
        let settled = self.try_settle(&claim, &settlement, terms).await;
        settled.map_err(|why| Unsettled {
            claim,
            settlement,
            why,
        })
    }

    async fn try_settle(
        &self,
        claim: &Claim,
        settlement: &Settlement,
        terms: &Terms,
    ) -> Result<Settled, StoreError> {
        let answer = match settlement {
            Settlement::Complete(answer) => {
                let answer = rows::write_answer(&self.shared.seal, &claim.id, claim.token, answer);
                Some(answer.map_err(|_| StoreError::Unavailable)?)
            }
            Settlement::Release | Settlement::Unknown | Settlement::Tombstone { .. } => None,
        };
        let settling = Box::new(Settling {
            id: claim.id,
            token: claim.token,
            settlement: settlement.clone(),
            terms: *terms,
            answer,
        });
        self.ask(|reply| Command::Settle(settling, reply)).await
    }

    /// Frees what is forgotten, and the answers of what has expired: in small transactions, so that no request waits long. Returns
    /// when all that is due was looked at.
    ///
    /// Dropping the future changes nothing.
    pub async fn sweep(&self) {
        // While the store is down there is nothing to sweep.
        let _ = self.ask(Command::Sweep).await;
    }

    /// What it holds, as of the last commit. Of claims those that are in flight: nothing else bounds them.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.shared.gauges.levels()
    }

    /// How many records it has dropped for this cause since it was opened. None is ever dropped for want of room.
    #[must_use]
    pub fn evictions(&self, cause: Eviction) -> u64 {
        match cause {
            Eviction::Size => 0,
            Eviction::Expired => self.shared.gauges.expired.load(Relaxed),
            Eviction::Purged => self.shared.gauges.purged.load(Relaxed),
        }
    }

    /// Whether it can promise anything now.
    #[must_use]
    pub fn answers(&self) -> bool {
        !self.shared.down.load(Relaxed)
    }

    /// The record as the database has it.
    async fn read(&self, id: &RecordId) -> Result<Option<Arc<Record>>, StoreError> {
        let id = *id;
        self.reading(move |shared| shared.read(&id)).await
    }

    /// Does what blocks where that is allowed, by some at a time.
    async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let reading = self.shared.reading.acquire().await;
        let _reading = reading.map_err(|_| StoreError::Unavailable)?;
        let shared = Arc::clone(&self.shared);
        let read = tasks::elsewhere(move || work(&shared)).await;
        read.unwrap_or(Err(StoreError::Unavailable))
    }

    /// As [`crate::store::Stores::end`]: what was asked is done, and the log is moved into the database.
    pub async fn end(&self) {
        self.queue.close();
        self.ended.cancelled().await;
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, said) = oneshot::channel();
        self.queue.push(command(reply));
        // A writer that is gone drops what it is asked.
        said.await.unwrap_or(Err(StoreError::Unavailable))
    }
}

/// Ends when all that was asked is done.
impl Drop for DiskStore {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked was reported by the panic hook.
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore")
            .field("path", &self.shared.path)
            .field("levels", &self.levels())
            .finish_non_exhaustive()
    }
}

/// What holds when the writer ends, in whatever way: nobody waits for it.
struct AtTheEnd {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    _ended: DropGuard,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        self.shared.down.store(true, Relaxed);
        self.queue.abandon();
    }
}

/// The system's clock, not before the latest time that the store ever knew.
fn start_clock(last: Timestamp) -> SystemClock {
    let behind = last.left(wall());
    if behind > MAY_BE_BEHIND {
        tracing::warn!(
            seconds = behind.as_secs(),
            "the wall clock is behind the time at which the disk store was last written; the store goes on from there"
        );
    }
    SystemClock::start_not_before(last)
}

/// Clocks that are corrected are behind by so much, and nobody needs to know.
const MAY_BE_BEHIND: Duration = Duration::from_mins(1);
