//! What operators ask of a memory store. Every shard is looked at, one after the other: this is not for the way of a request.

use std::sync::Arc;

use super::{MemoryStore, SHARDS, shard::ShardLock, transition};
use crate::{
    core::{
        record::{RecordId, ShortId, State},
        transition::{Resolution, Resolved},
    },
    store::{Eviction, Outcome, Purged, Query, Row, StoreError, clock::Clock},
};

impl<C: Clock, L: ShardLock> MemoryStore<C, L> {
    /// As [`crate::store::Stores::list`].
    #[must_use]
    pub fn list(&self, query: &Query) -> Vec<Row> {
        (0..SHARDS).fold(Vec::new(), |rows, shard| {
            self.listed_with(rows, shard, query)
        })
    }

    /// The same, with room for others between two shards.
    pub async fn list_slowly(&self, query: &Query) -> Vec<Row> {
        let mut rows = Vec::new();
        for shard in 0..SHARDS {
            rows = self.listed_with(rows, shard, query);
            tokio::task::yield_now().await;
        }
        rows
    }

    fn listed_with(&self, mut rows: Vec<Row>, shard: usize, query: &Query) -> Vec<Row> {
        rows.extend(self.rows(shard, |row| query.wants(row)));
        // What cannot be among the first is not kept until the end.
        rows.sort_by_key(|row| row.place().order());
        rows.truncate(query.limit);
        rows
    }

    /// As [`crate::store::Stores::row`].
    #[must_use]
    pub fn row(&self, id: &RecordId) -> Option<Row> {
        self.in_shard(id, |shard, now| {
            let (record, _) = shard.table.get(id)?;
            Row::of(*id, record, now, bytes(record))
        })
    }

    /// As [`crate::store::Stores::find`].
    #[must_use]
    pub fn find(&self, short: ShortId) -> Vec<Row> {
        let fits = |row: &Row| row.id.short() == short;
        let mut found: Vec<Row> = (0..SHARDS).flat_map(|at| self.rows(at, fits)).collect();
        found.truncate(2);
        found
    }

    fn rows(&self, shard: usize, wanted: impl Fn(&Row) -> bool) -> Vec<Row> {
        self.in_shard_at(shard, |shard, now| {
            let row = |(id, record): (&RecordId, &Arc<_>)| Row::of(*id, record, now, bytes(record));
            shard.table.iter().filter_map(row).filter(&wanted).collect()
        })
    }

    /// As [`crate::store::Stores::purge`].
    pub fn purge(&self, id: &RecordId) -> Purged {
        // What is taken is dropped after the shard is unlocked.
        let (purged, _taken) = self.in_shard(id, |shard, now| {
            let there = shard.table.get(id);
            let purged = there.map_or(Purged::Absent, |(record, _)| transition::purge(record, now));
            let gone = purged == Purged::Gone;
            let taken = gone.then(|| shard.table.remove(id)).flatten();
            if let Some(taken) = &taken {
                self.room.evict(taken.class, Eviction::Purged);
            }
            (purged, taken)
        });
        purged
    }

    /// As [`crate::store::Stores::resolve`]. An answer that has no room is refused, and the outcome stays unknown.
    ///
    /// # Errors
    /// [`StoreError::Full`]
    pub fn resolve(&self, id: &RecordId, resolution: Resolution) -> Result<Outcome, StoreError> {
        // Held until the end, and its digests computed, while no shard is locked.
        let claimed = self.in_shard(id, |shard, _| {
            shard.table.get(id).map(|(record, _)| Arc::clone(record))
        });
        if let Some(claimed) = &claimed {
            let _ = claimed.print.digests();
        }
        let outcome = self.in_shard(id, |shard, now| {
            let standing = shard.table.get(id);
            let there = standing.map(|(record, _)| record);
            match transition::resolve(there, resolution, now) {
                Resolved::Absent => Ok(Outcome::Absent),
                Resolved::NotUnknown => Ok(Outcome::NotUnknown),
                Resolved::Released => {
                    if let Some(taken) = shard.table.remove(id) {
                        self.room.resolve(taken.class);
                    }
                    Ok(Outcome::Released)
                }
                Resolved::Kept(record) => {
                    let (State::Complete(answer), Some((_, class))) = (&record.state, standing)
                    else {
                        return Ok(Outcome::NotUnknown);
                    };
                    let weight = self.room.keep(class, answer.weight());
                    let weight = weight.map_err(|_| StoreError::Full)?;
                    let record = Arc::new(record);
                    let row = Row::of(*id, &record, now, bytes(&record));
                    let used = self.recency.stamp();
                    shard.table.put_complete(*id, record, weight, used);
                    Ok(row.map_or(Outcome::Absent, Outcome::Kept))
                }
            }
        });
        self.make_room();
        outcome
    }
}

fn bytes(record: &crate::core::record::Record) -> u64 {
    match &record.state {
        State::Complete(answer) => answer.weight() as u64,
        _ => 0,
    }
}
