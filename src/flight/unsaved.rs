//! What this proxy knows of a record and its store does not: a settlement that is still to be saved, or a call that goes on behind its
//! flight.
//!
//! A store that cannot answer for such a record is answered for from here, where the alternative is to call the upstream without its
//! word. An entry lives as long as the value that holds it.

use std::{
    collections::{HashMap, hash_map},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::core::record::{Record, RecordId, ShortId, State};

/// All that is not saved. Mostly empty.
#[derive(Debug, Default)]
pub struct Unsaved {
    entries: Mutex<Entries>,
    /// How many there are, for those who look without the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Entries {
    latest: HashMap<RecordId, Entry>,
    /// How many there ever were: what tells a record's entries apart.
    made: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The record as it would be saved; `None`: it is to be removed.
    record: Option<Arc<Record>>,
}

/// One entry; it goes with this.
#[derive(Debug)]
#[must_use = "what is dropped is forgotten"]
pub struct Entered {
    unsaved: Arc<Unsaved>,
    id: RecordId,
    number: u64,
}

/// The records that something is still to be done for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Their calls go on.
    pub running: Vec<ShortId>,
    /// Their calls have ended, and what came of them is not saved.
    pub unsaved: Vec<ShortId>,
}

impl Unsaved {
    /// From now on it is known of the record that it would be saved so, or, with `None`, removed. The latest word counts.
    pub fn enter(self: &Arc<Self>, id: RecordId, record: Option<Record>) -> Entered {
        let record = record.map(Arc::new);
        let mut entries = self.entries.lock();
        entries.made += 1;
        let number = entries.made;
        entries.latest.insert(id, Entry { number, record });
        self.count.store(entries.latest.len(), Ordering::Release);
        drop(entries);
        Entered {
            unsaved: Arc::clone(self),
            id,
            number,
        }
    }

    /// What is known of the record, where it says more than that it is to be removed.
    #[must_use]
    pub fn find(&self, id: &RecordId) -> Option<Arc<Record>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.entries.lock().latest.get(id)?.record.clone()
    }

    /// What is still to be done.
    #[must_use]
    pub fn outstanding(&self) -> Outstanding {
        let mut outstanding = Outstanding::default();
        for (id, Entry { record, .. }) in &self.entries.lock().latest {
            let state = record.as_ref().map(|record| &record.state);
            match state {
                Some(State::InFlight { .. }) => outstanding.running.push(id.short()),
                Some(_) | None => outstanding.unsaved.push(id.short()),
            }
        }
        outstanding
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut entries = self.unsaved.entries.lock();
        // A later word is not this one's to take back.
        if let hash_map::Entry::Occupied(there) = entries.latest.entry(self.id)
            && there.get().number == self.number
        {
            there.remove();
        }
        let left = entries.latest.len();
        self.unsaved.count.store(left, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        fixtures::{id, request, route, terms, token},
        time::Timestamp,
        transition::{Ask, Begun, begin},
    };

    fn running() -> Record {
        let (fingerprint, terms, route) = (request("a"), terms(), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &terms,
            route: &route,
        };
        match begin(None, &ask, token(1), Timestamp::from_millis(1)) {
            Begun::Claimed(record) => record,
            Begun::Found(found) => panic!("nothing was there: {found:?}"),
        }
    }

    #[test]
    fn the_latest_word_counts_and_goes_with_its_entry_alone() {
        let unsaved = Arc::<Unsaved>::default();
        assert!(unsaved.find(&id(1)).is_none());
        let runs = unsaved.enter(id(1), Some(running()));
        assert!(unsaved.find(&id(1)).is_some());
        assert!(unsaved.find(&id(2)).is_none());
        assert_eq!(unsaved.outstanding().running, [id(1).short()]);
        let ended = unsaved.enter(id(1), None);
        assert!(unsaved.find(&id(1)).is_none());
        drop(runs);
        let left = Outstanding {
            running: Vec::new(),
            unsaved: vec![id(1).short()],
        };
        assert_eq!(unsaved.outstanding(), left);
        drop(ended);
        assert_eq!(unsaved.outstanding(), Outstanding::default());
    }
}
