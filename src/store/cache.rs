//! Settled records in memory, in front of a store outside this process: what a replay takes.
//!
//! A settled record never changes but by its end, which every look judges by the clock. So whatever is here may be believed,
//! and whatever is not may still be in the store. The bounds are those of `[store.memory]`; what was not used for the
//! longest time goes first, by one round of grace: a record that was used since it was last passed over is passed over again.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::core::record::{Record, RecordId, State, StoredAnswer};

/// Complete records and tombstones, bounded.
#[derive(Debug)]
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    records: HashMap<RecordId, Kept>,
    /// Each record once, the one that is asked to go next first; ids that are gone may linger here.
    order: VecDeque<RecordId>,
    bytes: usize,
    max_bytes: usize,
    max_records: usize,
    /// How often something was written here: a reader that was overtaken puts nothing back.
    writes: u64,
}

#[derive(Debug)]
struct Kept {
    record: Arc<Record>,
    weight: usize,
    used: bool,
}

/// Which writes a reader has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Cache {
    /// At most so many bytes and, if that is bounded, records.
    pub(super) fn new(max_bytes: u64, max_records: Option<u64>) -> Self {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let max_records =
            max_records.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        // Every shard has room for some answers of a usual size.
        let shards = (max_bytes / SHARD_BYTES).min(max_records).clamp(1, SHARDS);
        let shard = |_| {
            Mutex::new(Shard {
                records: HashMap::new(),
                order: VecDeque::new(),
                bytes: 0,
                max_bytes: max_bytes / shards,
                max_records: (max_records / shards).max(1),
                writes: 0,
            })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
        }
    }

    /// The record, if it is here.
    pub(super) fn get(&self, id: &RecordId) -> Option<Arc<Record>> {
        let mut shard = self.shard(id).lock();
        let kept = shard.records.get_mut(id)?;
        kept.used = true;
        Some(Arc::clone(&kept.record))
    }

    /// What has been written up to now, for a reader that is about to look into the database.
    pub(super) fn seen(&self, id: &RecordId) -> Seen {
        Seen(self.shard(id).lock().writes)
    }

    /// Puts in what a reader found, unless something was written meanwhile.
    pub(super) fn fill(&self, id: RecordId, record: &Arc<Record>, seen: Seen) {
        let mut shard = self.shard(&id).lock();
        if Seen(shard.writes) == seen {
            shard.put(id, record);
        }
    }

    /// What the database has now under this id: called by the writer after each commit.
    pub(super) fn written(&self, id: RecordId, record: Option<&Arc<Record>>) {
        let mut shard = self.shard(&id).lock();
        shard.writes = shard.writes.wrapping_add(1);
        match record {
            Some(record) => shard.put(id, record),
            None => shard.take(&id),
        }
    }

    /// Forgets everything; readers that are under way put nothing back.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.writes = shard.writes.wrapping_add(1);
            shard.records.clear();
            shard.order.clear();
            shard.bytes = 0;
        }
    }

    fn shard(&self, id: &RecordId) -> &Mutex<Shard> {
        let [.., high, low] = *id.as_bytes();
        let at = usize::from(u16::from_be_bytes([high, low])) % self.shards.len().max(1);
        #[expect(
            clippy::indexing_slicing,
            reason = "there is at least one shard, and the index is less than their number"
        )]
        &self.shards[at]
    }
}

impl Shard {
    /// Puts a settled record in the place of what is there; any other only takes that away.
    fn put(&mut self, id: RecordId, record: &Arc<Record>) {
        self.take(&id);
        let weight = match &record.state {
            State::Complete(answer) => answer.weight(),
            State::Tombstone { .. } => StoredAnswer::OVERHEAD,
            State::InFlight { .. } | State::Unknown { .. } | State::Expired => return,
        };
        if weight > self.max_bytes {
            return;
        }
        while self.bytes + weight > self.max_bytes || self.records.len() >= self.max_records {
            if !self.evict() {
                break;
            }
        }
        let kept = Kept {
            record: Arc::clone(record),
            weight,
            used: false,
        };
        self.records.insert(id, kept);
        self.order.push_back(id);
        self.bytes += weight;
        if self.order.len() > 2 * self.records.len() + LINGER {
            let records = &self.records;
            self.order.retain(|id| records.contains_key(id));
        }
    }

    fn take(&mut self, id: &RecordId) {
        if let Some(kept) = self.records.remove(id) {
            self.bytes = self.bytes.saturating_sub(kept.weight);
            // The place in the order goes too, so that the next record of this id has one alone.
            if self.order.back() == Some(id) {
                self.order.pop_back();
            } else {
                self.order.retain(|other| other != id);
            }
        }
    }

    /// Lets one go; whether there was one.
    fn evict(&mut self) -> bool {
        while let Some(id) = self.order.pop_front() {
            match self.records.entry(id) {
                Entry::Occupied(mut kept) if kept.get().used => {
                    kept.get_mut().used = false;
                    self.order.push_back(id);
                }
                Entry::Occupied(kept) => {
                    self.bytes = self.bytes.saturating_sub(kept.remove().weight);
                    return true;
                }
                Entry::Vacant(_) => {}
            }
        }
        false
    }
}

const SHARDS: usize = 64;

/// What a shard has at least, so that answers of a usual size fit.
const SHARD_BYTES: usize = 4 << 20;

/// Ids that may linger in the order of a small shard.
const LINGER: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        fixtures::{answer, id, request, route},
        policy::AfterExpiry,
        record::Print,
        time::Timestamp,
    };

    fn complete(body: usize) -> Arc<Record> {
        Arc::new(Record {
            print: Print::Settled(request("a").digests()),
            state: State::Complete(answer(&vec![b'x'; body])),
            started_at: Timestamp::from_millis(1),
            expires_at: Timestamp::from_millis(2),
            after_expiry: AfterExpiry::Execute,
            route: route(),
        })
    }

    fn here(cache: &Cache, n: u64) -> Vec<u64> {
        let holds = |n: &u64| {
            let id = id(*n);
            cache.shard(&id).lock().records.contains_key(&id)
        };
        (0..n).filter(holds).collect()
    }

    #[test]
    fn bytes_are_bounded_and_the_used_stay() {
        let cache = Cache::new(10_000, None);
        for n in 0..4 {
            cache.written(id(n), Some(&complete(1_900)));
        }
        assert_eq!(here(&cache, 4), [0, 1, 2, 3]);
        assert!(cache.get(&id(0)).is_some());
        for n in 4..6 {
            cache.written(id(n), Some(&complete(1_900)));
        }
        assert_eq!(here(&cache, 6), [0, 3, 4, 5]);
        cache.written(id(6), Some(&complete(20_000)));
        assert_eq!(
            here(&cache, 7),
            [0, 3, 4, 5],
            "what never fits takes nobody's room"
        );
    }

    #[test]
    fn records_are_bounded() {
        let cache = Cache::new(1 << 30, Some(3));
        for n in 0..50 {
            cache.written(id(n), Some(&complete(1)));
        }
        assert!(here(&cache, 50).len() <= 3);
        assert!(!here(&cache, 50).is_empty());
    }

    #[test]
    fn a_record_that_goes_and_comes_again_and_again_leaves_nothing_behind() {
        let cache = Cache::new(100_000, None);
        for _ in 0..10_000 {
            cache.written(id(1), Some(&complete(1)));
            cache.written(id(1), None);
        }
        let shard = cache.shard(&id(1)).lock();
        assert_eq!(
            (shard.bytes, shard.records.len(), shard.order.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_reader_that_was_overtaken_puts_nothing_back() {
        let cache = Cache::new(100_000, None);
        let seen = cache.seen(&id(1));
        cache.written(id(1), None);
        cache.fill(id(1), &complete(1), seen);
        assert!(cache.get(&id(1)).is_none());
        let seen = cache.seen(&id(1));
        cache.fill(id(1), &complete(1), seen);
        assert!(cache.get(&id(1)).is_some());
    }
}
