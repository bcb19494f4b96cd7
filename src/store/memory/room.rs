//! What the memory store holds and how much it may: every bound is kept here, under one short lock.

use parking_lot::Mutex;

use super::table::Class;
use crate::{
    config::{MemoryLimits, OnFull},
    core::record::NotRetained,
    store::{Eviction, Levels, StoreError},
};

/// What a claim counts with `on_full = "reject"` until it is settled, in bytes: the room its answer will need is
/// not known yet, and a call whose answer has no room at all should not be made.
const CLAIM_BYTES: u64 = 1024;

/// What the marker of a complete record that has expired counts with, in bytes: an answer without headers and body.
const MARKER_BYTES: u32 = 400;

/// More records than this are never held, so that a `u32` counts the slots of any shard.
const MOST_RECORDS: u64 = u32::MAX as u64 - 1;

/// The levels of one store, and its limits. A leaf: nothing else is locked or called while it is locked.
#[derive(Debug)]
pub(super) struct Room {
    limits: MemoryLimits,
    taken: Mutex<Taken>,
}

/// What is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Claims, unknown records and tombstones, and the markers of such as have expired.
    pub(super) claims: usize,
    /// The claims among them that are not settled yet.
    pub(super) unsettled: u64,
    /// Complete records, and the markers of such as have expired.
    pub(super) complete: u64,
    /// What these weigh.
    pub(super) bytes: u64,
    /// Complete records and markers evicted for room, ever.
    pub(super) evicted_size: u64,
    /// Records of any kind dropped when they were forgotten, ever.
    pub(super) evicted_expired: u64,
    /// Records of any kind that operators purged, ever.
    pub(super) evicted_purged: u64,
}

impl Taken {
    /// Records of every kind.
    const fn records(&self) -> u64 {
        self.claims as u64 + self.complete
    }

    /// A record of this class is gone.
    fn remove(&mut self, class: Class) {
        match class {
            Class::Unsettled => {
                self.claims = self.claims.saturating_sub(1);
                self.unsettled = self.unsettled.saturating_sub(1);
            }
            Class::Settled => self.claims = self.claims.saturating_sub(1),
            Class::Complete(weight) => {
                self.complete = self.complete.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(u64::from(weight));
            }
        }
    }
}

impl Room {
    pub(super) fn new(limits: MemoryLimits) -> Self {
        Self {
            limits,
            taken: Mutex::new(Taken::default()),
        }
    }

    /// Takes the room of a claim that is written over a record of this class, or over none. Nothing is taken if there
    /// is none. A complete record has left its room before: see [`Room::drop_expired`].
    pub(super) fn claim(&self, over: Option<Class>) -> Result<(), StoreError> {
        let mut taken = self.taken.lock();
        let after = match over {
            Some(Class::Unsettled) => return Ok(()),
            Some(Class::Settled) => Taken {
                unsettled: taken.unsettled + 1,
                ..*taken
            },
            Some(Class::Complete(_)) | None => Taken {
                unsettled: taken.unsettled + 1,
                claims: taken.claims + 1,
                ..*taken
            },
        };
        if after.claims > self.limits.max_claims.max(taken.claims)
            || after.records() > MOST_RECORDS
            || !self.admits(&taken)
        {
            return Err(StoreError::Full);
        }
        *taken = after;
        Ok(())
    }

    /// Trades the room of a claim, or of an unknown record, for that of its answer; the weight it is kept with. Nothing changes if
    /// there is none.
    pub(super) fn keep(&self, class: Class, weight: usize) -> Result<u32, NotRetained> {
        let mut taken = self.taken.lock();
        let weight = u32::try_from(weight)
            .ok()
            .filter(|weight| u64::from(*weight) <= self.limits.max_bytes)
            .ok_or(NotRetained::TooLarge)?;
        let mut after = *taken;
        after.remove(class);
        after.complete += 1;
        after.bytes += u64::from(weight);
        if self.limits.on_full == OnFull::Reject && !self.holds(&after, 0, 0) {
            return Err(NotRetained::NoRoom);
        }
        *taken = after;
        Ok(weight)
    }

    /// A record of this class expired, and its marker stands in its room: what a complete one weighed beyond
    /// [`MARKER_BYTES`] is free. What it returns is what the marker weighs; 0: it cannot be evicted.
    pub(super) fn mark(&self, class: Class) -> u32 {
        let mut taken = self.taken.lock();
        match class {
            Class::Unsettled => {
                taken.unsettled = taken.unsettled.saturating_sub(1);
                0
            }
            Class::Settled => 0,
            Class::Complete(weight) => {
                let left = weight.min(MARKER_BYTES);
                taken.bytes = taken.bytes.saturating_sub(u64::from(weight - left));
                left
            }
        }
    }

    /// A claim became an unknown record or a tombstone.
    pub(super) fn settle(&self) {
        let mut taken = self.taken.lock();
        taken.unsettled = taken.unsettled.saturating_sub(1);
    }

    /// An operator said of a lapsed claim, or of an unknown record, that it was not executed.
    pub(super) fn resolve(&self, class: Class) {
        self.taken.lock().remove(class);
    }

    /// A claim was released.
    pub(super) fn release(&self) {
        self.taken.lock().remove(Class::Unsettled);
    }

    /// Records of these classes were dropped when they were forgotten.
    pub(super) fn drop_expired(&self, classes: impl Iterator<Item = Class>) {
        let mut taken = self.taken.lock();
        for class in classes {
            taken.remove(class);
            taken.evicted_expired += 1;
        }
    }

    /// A record that takes its successor's room was written over when it was forgotten.
    pub(super) fn count_expired(&self) {
        self.taken.lock().evicted_expired += 1;
    }

    /// A complete record, or a marker in its place, gave way to others; or any record was purged.
    pub(super) fn evict(&self, class: Class, cause: Eviction) {
        let mut taken = self.taken.lock();
        taken.remove(class);
        match cause {
            Eviction::Size => taken.evicted_size += 1,
            Eviction::Expired => taken.evicted_expired += 1,
            Eviction::Purged => taken.evicted_purged += 1,
        }
    }

    /// What is there now.
    pub(super) fn taken(&self) -> Taken {
        *self.taken.lock()
    }

    /// What is there now, as it is shown.
    pub(super) fn levels(&self) -> Levels {
        let taken = self.taken();
        Levels {
            records: taken.records(),
            bytes: taken.bytes + self.reserved_bytes(&taken),
            claims: taken.claims as u64,
        }
    }

    /// How often a record was evicted for this cause.
    pub(super) fn evictions(&self, cause: Eviction) -> u64 {
        let taken = self.taken();
        match cause {
            Eviction::Size => taken.evicted_size,
            Eviction::Expired => taken.evicted_expired,
            Eviction::Purged => taken.evicted_purged,
        }
    }

    /// Whether complete records weigh more, or are more, than they may. Never with `on_full = "reject"`.
    pub(super) fn is_over(&self) -> bool {
        let taken = self.taken();
        taken.bytes > self.limits.max_bytes
            || self
                .limits
                .max_records
                .is_some_and(|max| taken.complete > max)
    }

    /// Whether one more claim may be made beside these. Where the oldest give way, it may.
    ///
    /// With `on_full = "reject"` there has to be room for an answer of the size that is usual here: one KiB, or the
    /// mean of the answers that are held, if that is more. Otherwise a store whose answers are large would never be
    /// full: it would go on having operations executed whose answers it cannot keep, and say so only afterwards.
    fn admits(&self, taken: &Taken) -> bool {
        match self.limits.on_full {
            OnFull::Evict => true,
            OnFull::Reject => {
                let usual = taken.bytes.checked_div(taken.complete).unwrap_or(0);
                self.holds(taken, 1, usual.max(CLAIM_BYTES))
            }
        }
    }

    /// With `on_full = "reject"`, whether complete records, what is set aside for claims, and so many records and
    /// bytes more fit.
    fn holds(&self, taken: &Taken, records: u64, bytes: u64) -> bool {
        let records = taken.complete + taken.unsettled + records;
        let bytes = taken
            .bytes
            .saturating_add(self.reserved_bytes(taken))
            .saturating_add(bytes);
        bytes <= self.limits.max_bytes && self.limits.max_records.is_none_or(|max| records <= max)
    }

    fn reserved_bytes(&self, taken: &Taken) -> u64 {
        match self.limits.on_full {
            OnFull::Evict => 0,
            OnFull::Reject => taken.unsettled.saturating_mul(CLAIM_BYTES),
        }
    }
}
