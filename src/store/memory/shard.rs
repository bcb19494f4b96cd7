//! One of the shards that the records live in, and how it is locked.

use parking_lot::Mutex;

use super::table::{NEVER, Progress, Table, Taken};
use crate::core::time::Timestamp;

/// A table, and how far it has been swept. It begins a cache line of its own, so that two processors that work in
/// two shards do not wait for each other.
#[derive(Debug)]
#[repr(align(128))]
pub struct Shard {
    pub(super) table: Table,
    cursor: usize,
}

impl Shard {
    pub(super) const fn new(table: Table) -> Self {
        Self { table, cursor: 0 }
    }

    /// Looks at the next slots, `most` of them, and takes out what has expired. Before it begins at the first slot
    /// again, room that nobody needs is given back: never amid a pass, for that would move records out of its way.
    pub(super) fn sweep(&mut self, most: usize, now: Timestamp) -> (Vec<Taken>, Progress) {
        if self.cursor == 0 && self.table.shrink(most) == Progress::GoesOn {
            return (Vec::new(), Progress::GoesOn);
        }
        let (expired, next) = self.table.take_expired(self.cursor, most, now);
        self.cursor = next.unwrap_or(0);
        let progress = next.map_or(Progress::AtTheEnd, |_| Progress::GoesOn);
        (expired, progress)
    }

    /// Takes out the least recently used complete record, if it was last used then and not since.
    pub(super) fn evict(&mut self, used: u64) -> Option<Taken> {
        if used == NEVER || self.table.oldest_use() != used {
            return None;
        }
        self.table.take_oldest()
    }
}

/// How a shard is locked. In service this is [`parking_lot::Mutex`]; a test of interleavings brings its own.
pub trait ShardLock: Send + Sync + 'static {
    /// A lock around `shard`.
    fn new(shard: Shard) -> Self;

    /// Runs `work` alone with the shard. `work` neither waits nor locks another shard.
    fn with<R>(&self, work: impl FnOnce(&mut Shard) -> R) -> R;
}

impl ShardLock for Mutex<Shard> {
    fn new(shard: Shard) -> Self {
        Mutex::new(shard)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Shard) -> R) -> R {
        work(&mut self.lock())
    }
}
