//! What the memory store holds and how much it may: every bound is kept here, under one short lock.

use parking_lot::Mutex;

use crate::{
    config::{MemoryLimits, OnFull},
    core::record::NotRetained,
    store::{Eviction, Levels, StoreError},
};

/// What a claim counts with `on_full = "reject"` until it is settled, in bytes: the room its answer will need is
/// not known yet, and a call whose answer has no room at all should not be made.
const CLAIM_BYTES: u64 = 1024;

/// The levels of one store, and its limits. A leaf: nothing else is locked or called while it is locked.
#[derive(Debug)]
pub(super) struct Room {
    limits: MemoryLimits,
    taken: Mutex<Taken>,
}

/// What is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Claims, unknown records and tombstones.
    pub(super) claims: usize,
    /// The claims among them that are not settled yet.
    pub(super) unsettled: u64,
    /// Complete records.
    pub(super) complete: u64,
    /// What these weigh.
    pub(super) bytes: u64,
    /// Complete records evicted for room, ever.
    pub(super) evicted_size: u64,
    /// Records of any kind dropped after their end, ever.
    pub(super) evicted_expired: u64,
}

/// What a claim is written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Nothing that takes room among the claims.
    Nothing,
    /// A settled record.
    Settled,
    /// A claim that nobody settled.
    Unsettled,
}

impl Room {
    pub(super) fn new(limits: MemoryLimits) -> Self {
        Self {
            limits,
            taken: Mutex::new(Taken::default()),
        }
    }

    /// Takes the room of a claim. Nothing is taken if there is none.
    pub(super) fn claim(&self, over: Over) -> Result<(), StoreError> {
        let mut taken = self.taken.lock();
        let after = match over {
            Over::Unsettled => return Ok(()),
            Over::Settled => Taken {
                unsettled: taken.unsettled + 1,
                ..*taken
            },
            Over::Nothing => Taken {
                unsettled: taken.unsettled + 1,
                claims: taken.claims + 1,
                ..*taken
            },
        };
        if after.claims > self.limits.max_claims.max(taken.claims) || !self.holds_reserved(&after) {
            return Err(StoreError::Full);
        }
        *taken = after;
        Ok(())
    }

    /// Trades a claim's room for that of its answer; the weight it is kept with. Nothing changes if there is none.
    pub(super) fn keep(&self, weight: usize) -> Result<u32, NotRetained> {
        let mut taken = self.taken.lock();
        let weight = u32::try_from(weight)
            .ok()
            .filter(|weight| u64::from(*weight) <= self.limits.max_bytes)
            .ok_or(NotRetained::TooLarge)?;
        let after = Taken {
            claims: taken.claims.saturating_sub(1),
            unsettled: taken.unsettled.saturating_sub(1),
            complete: taken.complete + 1,
            bytes: taken.bytes + u64::from(weight),
            ..*taken
        };
        if !self.holds_reserved(&after) {
            return Err(NotRetained::NoRoom);
        }
        *taken = after;
        Ok(weight)
    }

    /// A claim became an unknown record or a tombstone.
    pub(super) fn settle(&self) {
        let mut taken = self.taken.lock();
        taken.unsettled = taken.unsettled.saturating_sub(1);
    }

    /// A claim was released.
    pub(super) fn release(&self) {
        let mut taken = self.taken.lock();
        taken.unsettled = taken.unsettled.saturating_sub(1);
        taken.claims = taken.claims.saturating_sub(1);
    }

    /// So many claims, unknown records and tombstones were dropped after their end.
    pub(super) fn drop_expired(&self, records: usize, unsettled: usize) {
        let mut taken = self.taken.lock();
        taken.claims = taken.claims.saturating_sub(records);
        taken.unsettled = taken.unsettled.saturating_sub(unsettled as u64);
        taken.evicted_expired += records as u64;
    }

    /// A record was written over after its end.
    pub(super) fn count_expired(&self) {
        self.taken.lock().evicted_expired += 1;
    }

    /// A complete record of this weight is gone; why, if it was not replaced.
    pub(super) fn remove_complete(&self, weight: u32, cause: Option<Eviction>) {
        let mut taken = self.taken.lock();
        taken.complete = taken.complete.saturating_sub(1);
        taken.bytes = taken.bytes.saturating_sub(u64::from(weight));
        match cause {
            Some(Eviction::Size) => taken.evicted_size += 1,
            Some(Eviction::Expired) => taken.evicted_expired += 1,
            None => {}
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
            records: taken.claims as u64 + taken.complete,
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
        }
    }

    /// Whether complete records weigh more than they may. Never with `on_full = "reject"`.
    pub(super) fn over_bytes(&self) -> bool {
        self.taken().bytes > self.limits.max_bytes
    }

    /// Whether there are more complete records than there may be. Never with `on_full = "reject"`.
    pub(super) fn over_records(&self) -> bool {
        self.limits
            .max_records
            .is_some_and(|max| self.taken().complete > max)
    }

    /// With `on_full = "reject"`, whether complete records and all that may become one fit. Where the oldest give
    /// way, everything fits.
    fn holds_reserved(&self, taken: &Taken) -> bool {
        match self.limits.on_full {
            OnFull::Evict => true,
            OnFull::Reject => {
                let records = taken.complete + taken.unsettled;
                taken.bytes + self.reserved_bytes(taken) <= self.limits.max_bytes
                    && self.limits.max_records.is_none_or(|max| records <= max)
            }
        }
    }

    fn reserved_bytes(&self, taken: &Taken) -> u64 {
        match self.limits.on_full {
            OnFull::Evict => 0,
            OnFull::Reject => taken.unsettled.saturating_mul(CLAIM_BYTES),
        }
    }
}
