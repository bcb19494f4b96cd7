//! One of the shards that the records live in, and how it is locked.

use std::sync::Arc;

use parking_lot::Mutex;

use super::table::{NEVER, Progress, Swept, Table, Taken};
use crate::core::{
    record::{Record, RecordId},
    time::Timestamp,
};

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

    /// Looks at the next slots, `most` of them: see [`Table::sweep`]. Before it begins at the first slot
    /// again, room that nobody needs is given back: never amid a pass, for that would move records out of its way.
    pub(super) fn sweep(&mut self, most: usize, now: Timestamp) -> (Swept, Progress) {
        if self.cursor == 0 && self.table.shrink(most) == Progress::GoesOn {
            return (Swept::default(), Progress::GoesOn);
        }
        let (swept, next) = self.table.sweep(self.cursor, most, now);
        self.cursor = next.unwrap_or(0);
        let progress = next.map_or(Progress::AtTheEnd, |_| Progress::GoesOn);
        (swept, progress)
    }

    /// The least recently used complete record, if it was last used then and not since.
    pub(super) fn oldest(&self, used: u64) -> Option<(&RecordId, &Arc<Record>)> {
        (used != NEVER && self.table.oldest_use() == used)
            .then(|| self.table.oldest())
            .flatten()
    }

    /// Takes it out.
    pub(super) fn evict(&mut self, used: u64) -> Option<Taken> {
        self.oldest(used)?;
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
