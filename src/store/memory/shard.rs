//! One of the shards that claims, unknown records and tombstones live in, how it is locked, and the hash of ids.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::core::{
    record::{Record, RecordId},
    time::Timestamp,
    transition,
};

/// The records of one shard, and nothing else: none of them is complete, and none is ever evicted.
#[derive(Debug)]
pub struct Shard {
    records: HashMap<RecordId, Arc<Record>, IdHash>,
    /// No record ends before this point.
    soonest_end: Timestamp,
}

impl Shard {
    /// A shard without records.
    pub(super) fn new(hash: IdHash) -> Self {
        Self {
            records: HashMap::with_hasher(hash),
            soonest_end: Timestamp::from_millis(u64::MAX),
        }
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<&Arc<Record>> {
        self.records.get(id)
    }

    /// Writes a record in the place of the one that was there.
    pub(super) fn put(&mut self, id: RecordId, record: Arc<Record>) {
        self.soonest_end = self.soonest_end.min(transition::ends_at(&record));
        self.records.insert(id, record);
    }

    pub(super) fn remove(&mut self, id: &RecordId) {
        self.records.remove(id);
    }

    /// Takes out at most `batch` records that have expired. Costs nothing while no record can have.
    pub(super) fn take_expired(&mut self, now: Timestamp, batch: usize) -> Vec<Arc<Record>> {
        if !self.soonest_end.reached(now) {
            return Vec::new();
        }
        let taken: Vec<_> = self
            .records
            .extract_if(|_, record| transition::expired(record, now))
            .take(batch)
            .map(|(_, record)| record)
            .collect();
        if taken.len() < batch {
            let ends = self
                .records
                .values()
                .map(|record| transition::ends_at(record));
            self.soonest_end = ends.min().unwrap_or(Timestamp::from_millis(u64::MAX));
            // Room for a burst that is long over is given back.
            if self.records.len() < self.records.capacity() / 4 {
                self.records.shrink_to(self.records.len() * 2);
            }
        }
        taken
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> impl Iterator<Item = (&RecordId, &Arc<Record>)> {
        self.records.iter()
    }
}

/// How a shard is locked. In service this is [`parking_lot::Mutex`]; a test of interleavings brings its own.
pub trait ShardLock: Send + Sync + 'static {
    /// A lock around `shard`.
    fn new(shard: Shard) -> Self;

    /// Runs `work` alone with the shard. `work` neither waits nor locks another shard.
    fn with<R>(&self, work: impl FnOnce(&mut Shard) -> R) -> R;

    /// Stands between the two structures that one operation sees or writes: a test lets other threads run here.
    fn between_steps() {}
}

impl ShardLock for Mutex<Shard> {
    fn new(shard: Shard) -> Self {
        Mutex::new(shard)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Shard) -> R) -> R {
        work(&mut self.lock())
    }
}

/// Hashes record ids. They are SHA-256 already, so a few of their bytes will do; but clients choose what goes into
/// them, so they are folded with a secret of this process: nobody can aim many ids at one place of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdHash {
    secret: u64,
}

impl IdHash {
    /// A hash with a fresh secret.
    pub(super) fn new() -> Self {
        Self {
            secret: RandomState::new().hash_one(()),
        }
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.secret)
    }
}

/// The state of one [`IdHash`].
#[derive(Debug)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<8>();
        for word in words.iter().take(2) {
            let mixed = u128::from(self.0 ^ u64::from_le_bytes(*word)) * u128::from(ODD);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "both halves of the product are wanted"
            )]
            let folded = (mixed >> 64) as u64 ^ mixed as u64;
            self.0 = folded;
        }
    }

    /// The length of an id, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// 2^64 divided by the golden ratio, odd.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::fixtures::id;

    #[test]
    fn ids_that_clients_choose_spread_and_no_two_processes_spread_them_alike() {
        let (one, other) = (IdHash::new(), IdHash::new());
        let spread = |hash: &IdHash| {
            let mut shards = [0u32; 64];
            for n in 0..6_400 {
                // The first and the last bytes are equal in all of them.
                let mut bytes = [7; 32];
                bytes[8..16].copy_from_slice(&u64::to_le_bytes(n));
                shards[usize::try_from(hash.hash_one(RecordId::from_bytes(bytes)) >> 40)
                    .expect("fits")
                    % 64] += 1;
            }
            shards
        };
        let shards = spread(&one);
        assert!(shards.iter().all(|n| (30..300).contains(n)), "{shards:?}");
        assert_ne!(one.hash_one(id(1)), other.hash_one(id(1)));
        assert_eq!(one.hash_one(id(1)), one.hash_one(id(1)));
        assert_ne!(one.hash_one(id(1)), one.hash_one(id(2)));
    }
}
