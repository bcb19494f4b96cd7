//! The memory store: one replica, nothing survives a restart.
//!
//! Two structures hold its records. Claims, unknown records and tombstones stand in 64 locked shards; they are
//! never evicted, and `max_claims` bounds them. Complete records stand in a cache, where the least recently used
//! gives way. Each operation sees and writes both under the lock of its record's shard: no one ever finds a record in
//! neither, and no one claims what another has claimed since it looked.
//!
//! What may follow from what is found there is the core's to say ([`transition`]). Nothing here waits, and no lock
//! is held while canonical fingerprints are computed. Time comes from the [`Clock`] alone.

mod answers;
#[cfg(test)]
mod interleavings;
mod room;
mod shard;
#[cfg(test)]
mod tests;

use std::{fmt, hash::BuildHasher, sync::Arc, time::Duration};

use parking_lot::Mutex;

use self::{
    answers::Answers,
    room::{Over, Room},
    shard::{IdHash, Shard, ShardLock},
};
use super::{
    Begin, Claim, Eviction, Held, Levels, Settled, StoreError,
    clock::{Clock, SystemClock},
};
use crate::{
    config::MemoryLimits,
    core::{
        policy::Terms,
        record::{ClaimToken, Record, RecordId, State},
        time::Timestamp,
        transition::{self, After, Ask, Begun, Found, Settlement},
    },
};

/// The memory store.
pub struct MemoryStore<C: Clock = SystemClock, L: ShardLock = Mutex<Shard>> {
    clock: C,
    hash: IdHash,
    shards: Box<[L]>,
    answers: Answers,
    room: Arc<Room>,
    warned: Mutex<Warned>,
}

/// When it was last said that protection was lost.
#[derive(Debug, Default)]
struct Warned {
    at: Option<Timestamp>,
    evicted: u64,
}

impl MemoryStore {
    /// An empty store with the system's clock.
    #[must_use]
    pub fn new(limits: MemoryLimits) -> Self {
        Self::with_clock(limits, SystemClock::start())
    }
}

impl<C: Clock, L: ShardLock> MemoryStore<C, L> {
    /// An empty store with a clock of its own.
    #[must_use]
    pub fn with_clock(limits: MemoryLimits, clock: C) -> Self {
        let hash = IdHash::new();
        let room = Arc::new(Room::new(limits));
        Self {
            clock,
            hash,
            shards: (0..SHARDS).map(|_| L::new(Shard::new(hash))).collect(),
            answers: Answers::new(&limits, hash, Arc::clone(&room)),
            room,
            warned: Mutex::default(),
        }
    }

    /// What a request finds; `None`: it could claim. Looking at a complete record makes it the most recently used.
    #[must_use]
    pub fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        let (standing, now) = self.standing(id);
        transition::look(standing.as_ref(), ask, now)
    }

    /// Claims the record under `token`, unless something stands in the way.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing stands in the way, but there is no room for another claim.
    pub fn begin(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
        token: ClaimToken,
    ) -> Result<Begin, StoreError> {
        // Canonical fingerprints, where they are needed to tell, are computed here, before the lock is taken to claim.
        let (standing, now) = self.standing(id);
        if let Begun::Found(found) = transition::begin(standing.as_ref(), ask, token, now) {
            return Ok(Begin::Found(found));
        }
        drop(standing);
        self.in_shard(id, |shard, now| {
            let standing = self.standing_in(shard, id);
            let record = match transition::begin(standing.as_ref(), ask, token, now) {
                Begun::Found(found) => return Ok(Begin::Found(found)),
                Begun::Claimed(record) => record,
            };
            let over = match shard.get(id).map(|old| &old.state) {
                None => Over::Nothing,
                Some(State::InFlight { .. }) => Over::Unsettled,
                Some(_) => Over::Settled,
            };
            let ended = standing.is_some_and(|old| transition::expired(&old, now));
            if ended && over == Over::Nothing {
                // A complete record: its room is free before the claim asks for its own.
                self.answers.remove(id);
                self.room.count_expired();
            }
            self.room.claim(over)?;
            if ended && over != Over::Nothing {
                self.room.count_expired();
            }
            L::between_steps();
            shard.put(*id, Arc::new(record));
            Ok(Begin::Claimed(Claim { id: *id, token }))
        })
    }

    /// Draws out a claim's lease.
    pub fn renew(&self, claim: &Claim, terms: &Terms) -> Held {
        self.in_shard(&claim.id, |shard, now| {
            match transition::renew(shard.get(&claim.id), claim.token, terms, now) {
                Some(record) => {
                    shard.put(claim.id, Arc::new(record));
                    Held::Yes
                }
                None => Held::Lost,
            }
        })
    }

    /// Settles a claim, and makes room for its answer. An answer that has no room, or weighs more than the whole
    /// store may, becomes a tombstone.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a claim is used up by settling it"
    )]
    pub fn settle(&self, claim: Claim, settlement: Settlement, terms: &Terms) -> Settled {
        let Claim { id, token } = claim;
        self.compute_digests(&id, &settlement);
        let settled = self.in_shard(&id, |shard, now| {
            let record = match transition::settle(shard.get(&id), token, settlement, terms, now) {
                After::Lost => return Settled::Lost,
                After::Released => {
                    shard.remove(&id);
                    self.room.release();
                    return Settled::Released;
                }
                After::Kept(record) => record,
            };
            self.keep(shard, id, record, now)
        });
        self.answers.make_room();
        settled
    }

    /// Frees what has expired, does what the cache has put off, and says if protection was lost. Called every
    /// second, on a thread that may block; without it an idle store frees nothing.
    pub fn sweep(&self) {
        for shard in &self.shards {
            loop {
                // Counted under the lock, so that the levels never fall behind what is there; freed after it.
                let expired = shard.with(|shard| {
                    let expired = shard.take_expired(self.clock.now(), SWEEP_BATCH);
                    let unsettled = expired
                        .iter()
                        .filter(|old| matches!(old.state, State::InFlight { .. }));
                    self.room.drop_expired(expired.len(), unsettled.count());
                    expired
                });
                if expired.len() < SWEEP_BATCH {
                    break;
                }
            }
        }
        self.answers.sweep();
        self.warn_of_evictions();
    }

    /// What it holds.
    #[must_use]
    pub fn levels(&self) -> Levels {
        self.room.levels()
    }

    /// How many records it has evicted for this cause.
    #[must_use]
    pub fn evictions(&self, cause: Eviction) -> u64 {
        self.room.evictions(cause)
    }

    /// Puts a settled record where its kind belongs.
    fn keep(&self, shard: &mut Shard, id: RecordId, record: Record, now: Timestamp) -> Settled {
        let room = match &record.state {
            // A retention that counts from the start may be over by now: nothing is evicted for what is gone.
            State::Complete(_) if transition::expired(&record, now) => {
                shard.remove(&id);
                self.room.drop_expired(1, 1);
                return Settled::Kept(Arc::new(record));
            }
            State::Complete(answer) => Some(self.room.keep(answer.weight())),
            _ => None,
        };
        let record = match room {
            Some(Ok(weight)) => {
                let record = Arc::new(record);
                self.answers.put(id, Arc::clone(&record), weight, now);
                L::between_steps();
                shard.remove(&id);
                return Settled::Kept(record);
            }
            Some(Err(why)) => transition::without_answer(record, why),
            None => record,
        };
        let record = Arc::new(record);
        shard.put(id, Arc::clone(&record));
        self.room.settle();
        Settled::Kept(record)
    }

    /// The record that stands under this id, expired or not, and the time at which it was seen.
    fn standing(&self, id: &RecordId) -> (Option<Arc<Record>>, Timestamp) {
        self.in_shard(id, |shard, now| (self.standing_in(shard, id), now))
    }

    fn standing_in(&self, shard: &Shard, id: &RecordId) -> Option<Arc<Record>> {
        shard.get(id).cloned().or_else(|| {
            L::between_steps();
            self.answers.get(id)
        })
    }

    /// Has the digests of a claim's request computed where they will be kept, before the shard is locked for it.
    fn compute_digests(&self, id: &RecordId, settlement: &Settlement) {
        if matches!(settlement, Settlement::Release) {
            return;
        }
        if let Some(claimed) = self.in_shard(id, |shard, _| shard.get(id).cloned()) {
            let _ = claimed.print.digests();
        }
    }

    /// Runs `work` alone with the shard of this id. The time is read under its lock, so that it never goes back
    /// between two operations on one record.
    fn in_shard<R>(&self, id: &RecordId, work: impl FnOnce(&mut Shard, Timestamp) -> R) -> R {
        // The bits that neither table uses first: one takes the lowest, the other the highest.
        let index = usize::try_from((self.hash.hash_one(id) >> 32) % SHARDS).unwrap_or_default();
        #[expect(
            clippy::indexing_slicing,
            reason = "there are SHARDS shards, and the index is less"
        )]
        let shard = &self.shards[index];
        shard.with(|shard| {
            let result = work(shard, self.clock.now());
            self.check_invariants(shard, id);
            result
        })
    }

    /// What holds for a record whenever nobody works on it; looked at in debug builds alone.
    fn check_invariants(&self, shard: &Shard, id: &RecordId) {
        if !cfg!(debug_assertions) {
            return;
        }
        let Some(record) = shard.get(id) else { return };
        transition::check_invariants(record);
        debug_assert!(
            !matches!(record.state, State::Complete(_)),
            "complete records are in the cache alone"
        );
        debug_assert!(!self.answers.contains(id), "a record is in one place");
    }

    /// Says that unexpired records were evicted, with their number, at most every [`WARN_EVERY`].
    fn warn_of_evictions(&self) {
        let evicted = self.room.evictions(Eviction::Size);
        let now = self.clock.now();
        let mut warned = self.warned.lock();
        let due = warned.at.is_none_or(|at| at.after(WARN_EVERY).reached(now));
        if evicted == warned.evicted || !due {
            return;
        }
        tracing::warn!(
            evicted = evicted - warned.evicted,
            "the memory store is full: records were evicted before their retention ended, and a retry of their requests will execute again"
        );
        *warned = Warned {
            at: Some(now),
            evicted,
        };
    }
}

impl<C: Clock, L: ShardLock> fmt::Debug for MemoryStore<C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("levels", &self.levels())
            .finish_non_exhaustive()
    }
}

/// How many shards claims are spread over.
const SHARDS: u64 = 64;

/// How many expired records are taken out of a shard under one lock.
const SWEEP_BATCH: usize = 256;

/// How often lost protection is warned of.
const WARN_EVERY: Duration = Duration::from_secs(10);
