//! The memory store: one replica, nothing survives a restart.
//!
//! Records stand under their ids in 64 locked shards, whatever their state: an operation sees and writes its record
//! under one lock, so no one claims what another has claimed since it looked. Claims, unknown records and tombstones
//! are never evicted, and `max_claims` bounds them. Complete records are bounded by bytes and number: the one of all
//! shards that was least recently used gives way (`Recency`), and the answer that is settled always has its place.
//! A use is a look at a record that has not expired. No operation holds two locks of shards.
//!
//! Where the key of an expired record is refused for a while, a marker takes the record's place, so that no answer is
//! held for that long: when somebody looks at it, when it would be evicted, or when it is swept. A marker needs no
//! room that its record did not have, so no bound can stand in its way: that of a complete record weighs as an answer
//! without headers and body and is evicted like one, then counted as lost protection; that of an unknown record or a
//! tombstone stays among those, and is never evicted.
//!
//! What may follow from what is found there is the core's to say ([`transition`]). Nothing here waits, and no lock
//! is held while canonical fingerprints are computed. Time comes from the [`Clock`] alone.

#[cfg(test)]
mod interleavings;
mod list;
mod operator;
mod recency;
mod room;
mod shard;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;

use std::{fmt, hash::BuildHasher, sync::Arc};

use parking_lot::Mutex;

use self::{
    recency::Recency,
    room::Room,
    shard::{Shard, ShardLock},
    table::{Class, Table},
    upkeep::Warned,
};
use super::{
    Begin, Claim, Eviction, Held, IdHash, Levels, Settled, StoreError,
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
    recency: Recency,
    room: Room,
    warned: Mutex<Warned>,
    swept_for_room: Mutex<Option<Timestamp>>,
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
        let shard = || L::new(Shard::new(Table::new(hash)));
        Self {
            clock,
            hash,
            shards: (0..SHARDS).map(|_| shard()).collect(),
            recency: Recency::new(SHARDS),
            room: Room::new(limits),
            warned: Mutex::default(),
            swept_for_room: Mutex::default(),
        }
    }

    /// What a request finds; `None`: it could claim. Looking at a complete record makes it the most recently used.
    #[must_use]
    pub fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        let (standing, now) = self.standing(id);
        let found = transition::look(standing.as_ref(), ask, now);
        if let (Some(Found::Expired), Some(standing)) = (&found, standing) {
            self.age(id, &standing, now);
        }
        found
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
        loop {
            // Where nothing stands, nothing is to be compared.
            let begun = self.in_shard(id, |shard, now| {
                if shard.table.get(id).is_some() {
                    return None;
                }
                Some(self.begin_under_lock(shard, id, ask, token, now))
            });
            let begun = match begun {
                Some(begun) => Some(begun),
                None => self.begin_over(id, ask, token),
            };
            match begun {
                None => {}
                // What has expired takes nobody's room, even if no sweep has come by yet.
                Some(Err(StoreError::Full)) if self.may_sweep() => self.sweep(),
                Some(begun) => return begun,
            }
        }
    }

    /// [`Self::begin`] where something stands. `None`: another record stands there now; everything is to be looked at again.
    fn begin_over(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
        token: ClaimToken,
    ) -> Option<Result<Begin, StoreError>> {
        // Canonical fingerprints, where they are needed to tell, are computed here, before the shard is locked.
        let (standing, now) = self.standing(id);
        if let Begun::Found(found) = transition::begin(standing.as_ref(), ask, token, now) {
            return Some(Ok(Begin::Found(found)));
        }
        self.in_shard(id, |shard, now| {
            let there = shard.table.get(id).map(|(record, _)| record);
            if there.map(Arc::as_ptr) != standing.as_ref().map(Arc::as_ptr) {
                return None;
            }
            Some(self.begin_under_lock(shard, id, ask, token, now))
        })
    }

    fn begin_under_lock(
        &self,
        shard: &mut Shard,
        id: &RecordId,
        ask: &Ask<'_>,
        token: ClaimToken,
        now: Timestamp,
    ) -> Result<Begin, StoreError> {
        let there = shard.table.get(id).map(|(record, _)| record);
        match transition::begin(there, ask, token, now) {
            Begun::Found(found) => Ok(Begin::Found(found)),
            Begun::Claimed(record) => self.claim(shard, id, record, token, now),
        }
    }

    /// Draws out a claim's lease.
    pub fn renew(&self, claim: &Claim, terms: &Terms) -> Held {
        self.in_shard(&claim.id, |shard, now| {
            let standing = shard.table.get(&claim.id).map(|(record, _)| record);
            match transition::renew(standing, claim.token, terms, now) {
                Some(record) => {
                    shard.table.put_held(claim.id, Arc::new(record));
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
        let mut settlement = settlement;
        let (settled, claimed) = loop {
            let done = self.in_shard(&id, |shard, now| {
                let standing = shard.table.get(&id).map(|(record, _)| record);
                // Held until the end, so that the request it holds is let go while no shard is locked.
                let claimed = standing.cloned();
                if let Some(claimed) = &claimed
                    && !matches!(settlement, Settlement::Release)
                    && claimed.print.unread() > 0
                {
                    return Err((Arc::clone(claimed), settlement));
                }
                let settled = match transition::settle(standing, token, settlement, terms, now) {
                    After::Lost => Settled::Lost,
                    After::Released => {
                        shard.table.remove(&id);
                        self.room.release();
                        Settled::Released
                    }
                    After::Kept(record) => Settled::Kept(self.keep(shard, id, record, now)),
                };
                Ok((settled, claimed))
            });
            match done {
                Ok(done) => break done,
                Err((claimed, back)) => {
                    // Computed where they will be kept, while no shard is locked.
                    let _ = claimed.print.digests();
                    settlement = back;
                }
            }
        };
        drop(claimed);
        self.make_room();
        settled
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

    /// Writes a claim in the place of what counts for nothing any more, if there is room for it.
    fn claim(
        &self,
        shard: &mut Shard,
        id: &RecordId,
        record: Record,
        token: ClaimToken,
        now: Timestamp,
    ) -> Result<Begin, StoreError> {
        let standing = shard.table.get(id);
        let ended = standing.is_some_and(|(old, _)| transition::forgotten(old, now));
        let over = standing.map(|(_, class)| class);
        if let Some(class @ Class::Complete(_)) = over {
            // It is forgotten, and its room is free before the claim asks for its own.
            shard.table.remove(id);
            self.room.drop_expired([class].into_iter());
            self.room.claim(None)?;
        } else {
            self.room.claim(over)?;
            if ended {
                self.room.count_expired();
            }
        }
        shard.table.put_held(*id, Arc::new(record));
        Ok(Begin::Claimed(Claim { id: *id, token }))
    }

    /// Puts a settled record in its claim's place, as what there is room for; the record as it is kept.
    fn keep(&self, shard: &mut Shard, id: RecordId, record: Record, now: Timestamp) -> Arc<Record> {
        let room = match &record.state {
            // A retention that counts from the start may be over by now: nothing is evicted for what is gone.
            State::Complete(_) if transition::expired(&record, now) => {
                if let Some(marker) = transition::aged(&record, now) {
                    shard.table.put_held(id, Arc::new(marker));
                    self.room.settle();
                } else {
                    shard.table.remove(&id);
                    self.room.drop_expired([Class::Unsettled].into_iter());
                }
                return Arc::new(record);
            }
            State::Complete(answer) => Some(self.room.keep(Class::Unsettled, answer.weight())),
            _ => None,
        };
        let record = match room {
            Some(Ok(weight)) => {
                let record = Arc::new(record);
                let used = self.recency.stamp();
                shard
                    .table
                    .put_complete(id, Arc::clone(&record), weight, used);
                return record;
            }
            Some(Err(why)) => transition::without_answer(record, why),
            None => record,
        };
        let record = Arc::new(record);
        shard.table.put_held(id, Arc::clone(&record));
        self.room.settle();
        record
    }

    /// The record that stands under this id, expired or not, and the time at which it was seen.
    fn standing(&self, id: &RecordId) -> (Option<Arc<Record>>, Timestamp) {
        self.in_shard(id, |shard, now| {
            let record = shard.table.look(id, now, || self.recency.stamp());
            (record.cloned(), now)
        })
    }

    /// Runs `work` alone with the shard of this id.
    fn in_shard<R>(&self, id: &RecordId, work: impl FnOnce(&mut Shard, Timestamp) -> R) -> R {
        self.in_shard_at(self.shard_of(id), |shard, now| {
            let result = work(shard, now);
            check_invariants(shard, id);
            result
        })
    }

    /// Which shard a record of this id stands in.
    fn shard_of(&self, id: &RecordId) -> usize {
        // The bits that the table does not use first: it takes the lowest and the highest.
        usize::try_from((self.hash.hash_one(id) >> 32) % SHARDS as u64).unwrap_or_default()
    }

    /// Runs `work` alone with this shard, and shows when its least recently used record was used. The time is read
    /// under its lock, so that it never goes back between two operations on one record.
    fn in_shard_at<R>(&self, index: usize, work: impl FnOnce(&mut Shard, Timestamp) -> R) -> R {
        #[expect(
            clippy::indexing_slicing,
            reason = "there are SHARDS shards, and every index is less"
        )]
        let shard = &self.shards[index];
        shard.with(|shard| {
            let shown = shard.table.oldest_use();
            let result = work(shard, self.clock.now());
            let oldest = shard.table.oldest_use();
            if oldest != shown {
                self.recency.show(index, oldest);
            }
            result
        })
    }
}

impl<C: Clock, L: ShardLock> fmt::Debug for MemoryStore<C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("levels", &self.levels())
            .finish_non_exhaustive()
    }
}

/// What holds for a record whenever nobody works on it; looked at in debug builds alone.
fn check_invariants(shard: &Shard, id: &RecordId) {
    if !cfg!(debug_assertions) {
        return;
    }
    let Some((record, class)) = shard.table.get(id) else {
        return;
    };
    transition::check_invariants(record);
    let evictable = matches!(class, Class::Complete(_));
    debug_assert!(
        matches!(record.state, State::Expired)
            || evictable == matches!(record.state, State::Complete(_)),
        "complete records, and their markers, alone can be evicted"
    );
}

/// How many shards records are spread over.
const SHARDS: usize = 64;
