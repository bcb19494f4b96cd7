//! The records of one shard under their ids, and the order in which the complete ones were used.
//!
//! Every record has a slot, and the index says which. The slots of complete records are a list from the least to the
//! most recently used, vacant ones are another, and a slot of a claim, an unknown record or a tombstone is in
//! neither: what is not in the list of uses cannot be evicted. The marker of an expired key stays where the record
//! stood that it is written over, and weighs as little as an answer can. Times, uses and weights are arguments.

use std::{hash::BuildHasher, sync::Arc};

use hashbrown::HashTable;

use super::list::{Linked, Links, List, NONE};
use crate::{
    core::{
        record::{Record, RecordId, State},
        time::Timestamp,
        transition,
    },
    store::IdHash,
};

/// The records of one shard.
#[derive(Debug)]
pub(super) struct Table {
    /// The slot of every record, found by the hash of the id that stands in the slot.
    index: HashTable<u32>,
    hash: IdHash,
    slots: Vec<Slot>,
    /// Complete records, the least recently used first.
    uses: List,
    vacant: List,
    /// When the first of `uses` was used; [`NEVER`] where there is none.
    oldest_use: u64,
}

/// What one record counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A claim that nobody settled.
    Unsettled,
    /// An unknown record or a tombstone, or the marker in its place.
    Settled,
    /// A complete record, or the marker in its place, of this weight in bytes, which is not 0.
    Complete(u32),
}

/// A record that has left the table. It is dropped by who took it, after the shard is unlocked.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) record: Arc<Record>,
    pub(super) class: Class,
}

/// What a look at some slots found.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// What was forgotten, and is gone.
    pub(super) forgotten: Vec<Taken>,
    /// What has expired and still stands there; a marker is to be written over it.
    pub(super) expired: Vec<(RecordId, Arc<Record>)>,
}

/// How far work in pieces has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to do.
    GoesOn,
    /// There is not.
    AtTheEnd,
}

/// The use of a shard that has no complete record: none is as late.
pub(super) const NEVER: u64 = u64::MAX;

/// Slots that a table keeps, however empty it is.
const FEW: usize = 16;

/// The place of one record. What sweeping and evicting ask for stands here, so that they follow no pointer.
#[derive(Debug)]
struct Slot {
    id: RecordId,
    /// `None`: vacant.
    record: Option<Arc<Record>>,
    /// [`transition::changes_at`]
    due_at: Timestamp,
    /// When it was last used, if it is complete.
    used: u64,
    /// 0: not complete.
    weight: u32,
    links: Links,
}

impl Linked for Slot {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Slot {
    fn class(&self) -> Class {
        match (self.weight, self.record.as_deref()) {
            (
                0,
                Some(Record {
                    state: State::InFlight { .. },
                    ..
                }),
            ) => Class::Unsettled,
            (0, _) => Class::Settled,
            (weight, _) => Class::Complete(weight),
        }
    }
}

impl Table {
    /// A table without records.
    pub(super) const fn new(hash: IdHash) -> Self {
        Self {
            index: HashTable::new(),
            hash,
            slots: Vec::new(),
            uses: List::EMPTY,
            vacant: List::EMPTY,
            oldest_use: NEVER,
        }
    }

    /// The record under this id, and what it counts as. It does not count as a use.
    pub(super) fn get(&self, id: &RecordId) -> Option<(&Arc<Record>, Class)> {
        let slot = self.slot(self.find(id)?)?;
        Some((slot.record.as_ref()?, slot.class()))
    }

    /// The record under this id. If it can be evicted and counts for what it is, it is the most recently used from now on,
    /// and `stamp` says when that was.
    pub(super) fn look(
        &mut self,
        id: &RecordId,
        now: Timestamp,
        stamp: impl FnOnce() -> u64,
    ) -> Option<&Arc<Record>> {
        let at = self.find(id)?;
        let slot = self.slot(at)?;
        if slot.weight > 0 && !slot.due_at.reached(now) {
            self.relink(at, |uses, slots| uses.move_last(slots, at), stamp());
        }
        self.slot(at)?.record.as_ref()
    }

    /// Puts a claim, an unknown record or a tombstone in the place of what is there under its id.
    pub(super) fn put_held(&mut self, id: RecordId, record: Arc<Record>) {
        self.put(id, record, 0, NEVER);
    }

    /// The same with a complete record, which is the most recently used from now on. `weight` is not 0, and `used`
    /// later than every use before.
    pub(super) fn put_complete(
        &mut self,
        id: RecordId,
        record: Arc<Record>,
        weight: u32,
        used: u64,
    ) {
        debug_assert!(weight > 0, "a complete record weighs something");
        self.put(id, record, weight, used);
    }

    fn put(&mut self, id: RecordId, record: Arc<Record>, weight: u32, used: u64) {
        let at = self.place(id);
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return;
        };
        let was_complete = slot.weight > 0;
        slot.due_at = transition::changes_at(&record);
        slot.record = Some(record);
        slot.weight = weight;
        match (was_complete, weight > 0) {
            (false, false) => {}
            (false, true) => self.relink(at, |uses, slots| uses.push_last(slots, at), used),
            (true, true) => self.relink(at, |uses, slots| uses.move_last(slots, at), used),
            (true, false) => self.relink(at, |uses, slots| uses.unlink(slots, at), used),
        }
    }

    /// Writes the marker of an expired key over its record, if that is still `standing`. It stays in the same place
    /// among the uses; `weigh` says what it weighs in the place of a record of this class. What was there before, to
    /// be dropped later.
    pub(super) fn put_marker(
        &mut self,
        id: &RecordId,
        standing: &Arc<Record>,
        marker: Record,
        weigh: impl FnOnce(Class) -> u32,
    ) -> Option<Taken> {
        let at = self.find(id)?;
        let slot = self.slots.get_mut(at as usize)?;
        if !slot
            .record
            .as_ref()
            .is_some_and(|there| Arc::ptr_eq(there, standing))
        {
            return None;
        }
        let class = slot.class();
        slot.due_at = transition::changes_at(&marker);
        let record = slot.record.replace(Arc::new(marker))?;
        slot.weight = weigh(class);
        debug_assert_eq!(slot.weight > 0, matches!(class, Class::Complete(_)));
        Some(Taken { record, class })
    }

    /// Takes the record under this id out.
    pub(super) fn remove(&mut self, id: &RecordId) -> Option<Taken> {
        let at = self.find(id)?;
        self.take(at)
    }

    /// When the least recently used complete record was used; [`NEVER`] if there is none.
    pub(super) const fn oldest_use(&self) -> u64 {
        self.oldest_use
    }

    /// The least recently used complete record.
    pub(super) fn oldest(&self) -> Option<(&RecordId, &Arc<Record>)> {
        let slot = self.slot(self.uses.first())?;
        Some((&slot.id, slot.record.as_ref()?))
    }

    /// Takes the least recently used complete record out.
    pub(super) fn take_oldest(&mut self) -> Option<Taken> {
        self.take(self.uses.first())
    }

    /// Takes out what is forgotten in `most` slots from `cursor` on, shows what has expired and has no marker yet, and
    /// says where to go on; `None`: the end has come.
    pub(super) fn sweep(
        &mut self,
        cursor: usize,
        most: usize,
        now: Timestamp,
    ) -> (Swept, Option<usize>) {
        let end = cursor.saturating_add(most).min(self.slots.len());
        let looked_at = self.slots.get(cursor..end).unwrap_or_default();
        let mut swept = Swept::default();
        let mut forgotten: Vec<u32> = Vec::new();
        for (at, slot) in (cursor..).zip(looked_at) {
            let Some(record) = slot.record.as_ref().filter(|_| slot.due_at.reached(now)) else {
                continue;
            };
            if !transition::forgotten(record, now) {
                swept.expired.push((slot.id, Arc::clone(record)));
            } else if let Ok(at) = u32::try_from(at) {
                forgotten.push(at);
            }
        }
        swept.forgotten = forgotten
            .into_iter()
            .filter_map(|at| self.take(at))
            .collect();
        (swept, (end < self.slots.len()).then_some(end))
    }

    /// Every record, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RecordId, &Arc<Record>)> {
        self.slots
            .iter()
            .filter_map(|slot| Some((&slot.id, slot.record.as_ref()?)))
    }

    /// Gives back the room of a burst that is long over: once no more than a quarter of the slots that there is room
    /// for has a record. At most `most` slots are looked at, and as many records moved, before the whole is made smaller.
    pub(super) fn shrink(&mut self, most: usize) -> Progress {
        let wanted = (2 * self.index.len()).max(FEW);
        if self.slots.capacity() <= 2 * wanted {
            return Progress::AtTheEnd;
        }
        for _ in 0..most {
            if self.slots.len() <= wanted {
                break;
            }
            self.drop_last_slot();
        }
        if self.slots.len() > wanted {
            return Progress::GoesOn;
        }
        self.slots.shrink_to(wanted);
        let (slots, hash) = (&self.slots, self.hash);
        self.index.shrink_to(wanted, |at| hash_at(slots, hash, *at));
        Progress::AtTheEnd
    }

    /// Takes the last slot away. If it has a record, that moves to a vacant one; there is one while a table shrinks.
    fn drop_last_slot(&mut self) {
        let Some((last, slot)) = self.slots.len().checked_sub(1).zip(self.slots.last()) else {
            return;
        };
        let Ok(from) = u32::try_from(last) else {
            return;
        };
        if slot.record.is_none() {
            self.vacant.unlink(&mut self.slots, from);
            self.slots.pop();
            return;
        }
        let to = self.vacant.last();
        if to == NONE {
            return;
        }
        self.vacant.unlink(&mut self.slots, to);
        let Some(slot) = self.slots.pop() else { return };
        let (id, complete) = (slot.id, slot.weight > 0);
        if let Some(place) = self.slots.get_mut(to as usize) {
            *place = slot;
        }
        let hash = self.hash.hash_one(id);
        if let Some(place) = self.index.find_mut(hash, |at| *at == from) {
            *place = to;
        }
        if complete {
            self.uses.moved(&mut self.slots, to);
        }
    }

    /// The slot of this id, made if there is none.
    fn place(&mut self, id: RecordId) -> u32 {
        if let Some(at) = self.find(&id) {
            return at;
        }
        let mut at = self.vacant.last();
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.id = id;
            self.vacant.unlink(&mut self.slots, at);
        } else {
            // The store never has so many records that this is more than a u32: see `Room::claim`.
            at = u32::try_from(self.slots.len()).unwrap_or(NONE);
            self.slots.push(Slot {
                id,
                record: None,
                due_at: Timestamp::from_millis(0),
                used: NEVER,
                weight: 0,
                links: Links::NONE,
            });
        }
        let (slots, hash) = (&self.slots, self.hash);
        self.index
            .insert_unique(hash.hash_one(id), at, |at| hash_at(slots, hash, *at));
        at
    }

    fn take(&mut self, at: u32) -> Option<Taken> {
        let slot = self.slots.get_mut(at as usize)?;
        let class = slot.class();
        let record = slot.record.take()?;
        slot.weight = 0;
        let hash = self.hash.hash_one(slot.id);
        if let Ok(entry) = self.index.find_entry(hash, |own| *own == at) {
            entry.remove();
        }
        if let Class::Complete(_) = class {
            self.relink(at, |uses, slots| uses.unlink(slots, at), NEVER);
        }
        self.vacant.push_last(&mut self.slots, at);
        Some(Taken { record, class })
    }

    /// Changes the place of the slot `at` among the uses, and says when it was used.
    fn relink(&mut self, at: u32, change: impl FnOnce(&mut List, &mut [Slot]), used: u64) {
        let first = self.uses.first();
        change(&mut self.uses, &mut self.slots);
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.used = used;
        }
        if self.uses.first() != first || first == at {
            self.oldest_use = self.slot(self.uses.first()).map_or(NEVER, |slot| slot.used);
        }
    }

    /// The slot of this id, if it has one.
    fn find(&self, id: &RecordId) -> Option<u32> {
        let is_it = |at: &u32| self.slot(*at).is_some_and(|slot| slot.id == *id);
        self.index.find(self.hash.hash_one(id), is_it).copied()
    }

    fn slot(&self, at: u32) -> Option<&Slot> {
        self.slots.get(at as usize)
    }
}

/// What the index goes by, where it has to find a new place for a slot that it has.
fn hash_at(slots: &[Slot], hash: IdHash, at: u32) -> u64 {
    slots
        .get(at as usize)
        .map_or(0, |slot| hash.hash_one(slot.id))
}

#[cfg(test)]
mod tests;
