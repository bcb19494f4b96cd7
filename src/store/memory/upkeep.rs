//! What gives way: records that are forgotten are freed, those that have expired are marked, and complete ones are evicted where the limits ask
//! for it.

use std::{sync::Arc, time::Duration};

use super::{
    MemoryStore, SHARDS,
    shard::{Shard, ShardLock},
    table::{Progress, Taken},
};
use crate::{
    core::{
        record::{Record, RecordId},
        time::Timestamp,
        transition,
    },
    store::{Eviction, clock::Clock},
};

/// When it was last said that protection was lost.
#[derive(Debug, Default)]
pub(super) struct Warned {
    at: Option<Timestamp>,
    pub(super) evicted: u64,
}

impl<C: Clock, L: ShardLock> MemoryStore<C, L> {
    /// Looks at some of the records, frees those that are forgotten and marks those that have expired, and says if
    /// protection was lost. Without a sweep every second or so an idle store frees nothing.
    ///
    /// It goes on where it ended the last time: at most `SWEEP_SLOTS` records a shard, so that a million records are
    /// looked at within eight sweeps.
    pub fn sweep(&self) {
        (0..SHARDS).for_each(|shard| self.sweep_shard(shard));
        self.warn_of_evictions();
    }

    /// [`MemoryStore::sweep`], letting others run after each shard, which takes some microseconds.
    ///
    /// On a worker, and not on a thread of its own: were that thread put aside while it holds a shard, requests would
    /// wait for it. Dropping the future leaves the rest to the next sweep.
    pub async fn sweep_slowly(&self) {
        for shard in 0..SHARDS {
            self.sweep_shard(shard);
            tokio::task::yield_now().await;
        }
        self.warn_of_evictions();
    }

    fn sweep_shard(&self, shard: usize) {
        for _ in 0..SWEEP_SLOTS / SWEEP_STEP {
            let (swept, now, progress) = self.in_shard_at(shard, |shard, now| {
                let (swept, progress) = shard.sweep(SWEEP_STEP, now);
                // Counted under the lock, so that the levels never fall behind what is there; freed after it.
                if !swept.forgotten.is_empty() {
                    let classes = swept.forgotten.iter().map(|taken| taken.class);
                    self.room.drop_expired(classes);
                }
                (swept, now, progress)
            });
            drop(swept.forgotten);
            for (id, record) in swept.expired {
                self.age(&id, &record, now);
            }
            if progress == Progress::AtTheEnd {
                break;
            }
        }
    }

    /// Whether the last sweep for want of room is long enough ago: a full store is not swept for every request.
    pub(super) fn may_sweep(&self) -> bool {
        let now = self.clock.now();
        let mut swept = self.swept_for_room.lock();
        let due = swept.is_none_or(|at| at.after(SWEEP_FOR_ROOM_EVERY).reached(now));
        if due {
            *swept = Some(now);
        }
        due
    }

    /// Evicts the least recently used complete record of all, again and again, until the limits hold.
    pub(super) fn make_room(&self) {
        while self.room.is_over() {
            // No shard shows a record: what is over is being settled at this moment, by who will then make room.
            let Some((shard, used)) = self.recency.oldest() else {
                return;
            };
            let evicted = self.in_shard_at(shard, |shard, now| {
                if let Some(marked) = self.mark_oldest(shard, used, now) {
                    return Some(marked);
                }
                let evicted = shard.evict(used)?;
                let cause = if transition::forgotten(&evicted.record, now) {
                    Eviction::Expired
                } else {
                    Eviction::Size
                };
                self.room.evict(evicted.class, cause);
                Some(evicted)
            });
            // Freed while no shard is locked. `None`: it was used again, or another took it.
            drop(evicted);
        }
    }

    /// Instead of evicting what was last used then, writes its marker, if it has expired and has none yet. What that
    /// frees may be room enough.
    fn mark_oldest(&self, shard: &mut Shard, used: u64, now: Timestamp) -> Option<Taken> {
        let (id, standing) = shard.oldest(used)?;
        let (id, standing) = (*id, Arc::clone(standing));
        // A complete record's digests are there: nothing is computed under the lock.
        let marker = transition::aged(&standing, now)?;
        self.mark(shard, &id, &standing, marker)
    }

    /// Writes the marker of an expired record, if it has none yet and still stands there.
    pub(super) fn age(&self, id: &RecordId, standing: &Arc<Record>, now: Timestamp) {
        // Made before the shard is locked: digests may have to be computed.
        if let Some(marker) = transition::aged(standing, now) {
            // What stood there is freed after the shard is unlocked.
            let _before = self.in_shard(id, |shard, _| self.mark(shard, id, standing, marker));
        }
    }

    fn mark(
        &self,
        shard: &mut Shard,
        id: &RecordId,
        standing: &Arc<Record>,
        marker: Record,
    ) -> Option<Taken> {
        shard
            .table
            .put_marker(id, standing, marker, |class| self.room.mark(class))
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

/// How many records of a shard one sweep looks at.
pub(super) const SWEEP_SLOTS: usize = 2048;

/// How many of them it looks at under one lock.
const SWEEP_STEP: usize = 256;

/// How often lost protection is warned of.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// How often a full store is swept for a request that wants room, beside the sweeps of every second.
const SWEEP_FOR_ROOM_EVERY: Duration = Duration::from_millis(100);
