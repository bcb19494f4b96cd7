//! The complete records of the memory store: bounded by bytes and by number, the least recently used goes first.
//!
//! A moka cache with plain LRU: its default policy would refuse a fresh answer that is not popular yet. Expiry is
//! decided by the core with the store's clock; moka's own clock only sweeps what nobody asks for any more.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use moka::{Expiry, notification::RemovalCause, policy::EvictionPolicy, sync::Cache};
use parking_lot::Mutex;

use super::{room::Room, shard::IdHash};
use crate::{
    config::{MemoryLimits, OnFull},
    core::{
        record::{Record, RecordId},
        time::Timestamp,
    },
    store::Eviction,
};

/// The complete records.
pub(super) struct Answers {
    cache: Cache<RecordId, Entry, IdHash>,
    /// What the cache is bounded by, in bytes.
    max_bytes: u64,
    /// Held while an answer is put in, and while room is made: neither sees the other half done.
    entrance: Mutex<()>,
    room: Arc<Room>,
}

/// What stands in the cache.
#[derive(Clone)]
enum Entry {
    /// A complete record.
    Answer {
        record: Arc<Record>,
        weight: u32,
        /// How long until moka may drop it, from the moment it was put in.
        lives: Duration,
    },
    /// Nothing but weight, for a moment: see [`Answers::push_out_one`].
    Ballast { weight: u32 },
}

impl Answers {
    pub(super) fn new(limits: &MemoryLimits, hash: IdHash, room: Arc<Room>) -> Self {
        // With `reject` nothing is ever evicted: what does not fit is not put in.
        let max_bytes = match limits.on_full {
            OnFull::Evict => limits.max_bytes,
            OnFull::Reject => u64::MAX,
        };
        let removed = Arc::clone(&room);
        let cache = Cache::builder()
            .max_capacity(max_bytes)
            .initial_capacity(INITIAL_CAPACITY)
            .eviction_policy(EvictionPolicy::lru())
            .weigher(|_, entry: &Entry| entry.weight())
            .expire_after(Lives)
            // Runs inside moka's maintenance, and only counts.
            .eviction_listener(move |_, entry, cause| match entry {
                Entry::Answer { weight, .. } => removed.remove_complete(weight, eviction(cause)),
                Entry::Ballast { .. } => {}
            })
            .build_with_hasher(hash);
        Self {
            cache,
            max_bytes,
            entrance: Mutex::new(()),
            room,
        }
    }

    /// The record, which is the most recently used from now on. It may have expired.
    pub(super) fn get(&self, id: &RecordId) -> Option<Arc<Record>> {
        match self.cache.get(id)? {
            Entry::Answer { record, .. } => Some(record),
            Entry::Ballast { .. } => None,
        }
    }

    /// Whether a record is here; it does not count as a use.
    pub(super) fn contains(&self, id: &RecordId) -> bool {
        self.cache.contains_key(id)
    }

    /// Puts in a record that [`Room::keep`] has found room for. Room for it is made by [`Answers::make_room`].
    pub(super) fn put(&self, id: RecordId, record: Arc<Record>, weight: u32, now: Timestamp) {
        let lives = record.expires_at.left(now).saturating_add(AFTERLIFE);
        let _alone = self.entrance.lock();
        self.cache.insert(
            id,
            Entry::Answer {
                record,
                weight,
                lives,
            },
        );
    }

    /// Drops a record that has expired.
    pub(super) fn remove(&self, id: &RecordId) {
        self.cache.invalidate(id);
    }

    /// Evicts the least recently used until the limits hold. They hold when this returns.
    pub(super) fn make_room(&self) {
        if !self.room.over_bytes() && !self.room.over_records() {
            return;
        }
        let _alone = self.entrance.lock();
        self.repeat_while(Room::over_bytes, Self::sweep);
        self.repeat_while(Room::over_records, Self::push_out_one);
    }

    /// Does what moka has put off: uses are put in order, what expired is freed, what is over is evicted.
    pub(super) fn sweep(&self) {
        self.cache.run_pending_tasks();
    }

    /// Evicts one record, the least recently used. moka evicts by weight alone, and two bounds cannot be one
    /// weight; so a ballast that weighs one byte more than there is room for is put in for a moment.
    fn push_out_one(&self) {
        self.sweep();
        let mut over = self
            .max_bytes
            .saturating_sub(self.cache.weighted_size())
            .saturating_add(1);
        let mut pieces = 0u64;
        while over > 0 {
            let weight = u32::try_from(over).unwrap_or(u32::MAX);
            self.cache
                .insert(ballast(pieces), Entry::Ballast { weight });
            over -= u64::from(weight);
            pieces += 1;
        }
        self.sweep();
        (0..pieces).for_each(|piece| self.cache.invalidate(&ballast(piece)));
        self.sweep();
    }

    /// Repeats `step` as long as it is needed: moka works in batches, breaks off after 100 ms, and passes over a
    /// record that is used at this very moment. If it is foiled time and again, the next answer goes on.
    fn repeat_while(&self, needed: impl Fn(&Room) -> bool, step: impl Fn(&Self)) {
        let mut tries = TRIES;
        while needed(&self.room) && tries > 0 {
            let before = self.room.taken().complete;
            step(self);
            let helped = self.room.taken().complete < before;
            tries = if helped { TRIES } else { tries - 1 };
        }
    }

    /// Number and weight of what the cache really holds.
    #[cfg(test)]
    pub(super) fn counted(&self) -> (u64, u64) {
        self.sweep();
        let weights = self
            .cache
            .iter()
            .map(|(_, entry)| u64::from(entry.weight()));
        weights.fold((0, 0), |(records, bytes), weight| {
            (records + 1, bytes + weight)
        })
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers")
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl Entry {
    fn weight(&self) -> u32 {
        match self {
            Self::Answer { weight, .. } | Self::Ballast { weight } => *weight,
        }
    }

    fn lives(&self) -> Option<Duration> {
        match self {
            Self::Answer { lives, .. } => Some(*lives),
            Self::Ballast { .. } => None,
        }
    }
}

/// Gives each entry the time that its record has; a use changes nothing.
struct Lives;

impl Expiry<RecordId, Entry> for Lives {
    fn expire_after_create(&self, _: &RecordId, entry: &Entry, _: Instant) -> Option<Duration> {
        entry.lives()
    }

    fn expire_after_update(
        &self,
        _: &RecordId,
        entry: &Entry,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        entry.lives()
    }
}

/// How an entry's end is counted; `None`: not at all, for its place was taken by its successor.
const fn eviction(cause: RemovalCause) -> Option<Eviction> {
    match cause {
        RemovalCause::Size => Some(Eviction::Size),
        RemovalCause::Expired => Some(Eviction::Expired),
        RemovalCause::Explicit | RemovalCause::Replaced => None,
    }
}

/// The id of one piece of ballast; no record has it, unless SHA-256 is broken.
fn ballast(piece: u64) -> RecordId {
    let mut bytes = [0xff; 32];
    bytes
        .iter_mut()
        .zip(piece.to_be_bytes())
        .for_each(|(byte, part)| *byte = part);
    RecordId::from_bytes(bytes)
}

/// How long a record stays beyond its end, so that moka's clock is never the one that says it has come.
const AFTERLIFE: Duration = Duration::from_secs(1);

/// How often in a row making room may be foiled.
const TRIES: u32 = 16;

/// Room for so many records from the start; the table grows by itself.
const INITIAL_CAPACITY: usize = 1024;
