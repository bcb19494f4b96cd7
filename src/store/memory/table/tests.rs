//! The table beside a plain list of what it should hold.

use proptest::prelude::*;

use super::*;
use crate::core::{
    fixtures::{answer, id, request, route, token},
    policy::AfterExpiry,
    record::Print,
};

impl Table {
    /// How many records of each class are here, counted one by one, and what the complete ones weigh. Every link
    /// and every number is looked at on the way.
    pub(in crate::store::memory) fn counted(&self) -> (u64, u64, u64, u64) {
        let (mut unsettled, mut settled, mut complete, mut bytes) = (0, 0, 0, 0);
        for at in &self.index {
            let slot = self.slot(*at).expect("a slot for each id");
            assert!(slot.record.is_some() && self.find(&slot.id) == Some(*at));
            match slot.class() {
                Class::Unsettled => unsettled += 1,
                Class::Settled => settled += 1,
                Class::Complete(weight) => {
                    complete += 1;
                    bytes += u64::from(weight);
                }
            }
            if slot.weight == 0 {
                assert_eq!(slot.links, Links::NONE, "in no list");
            }
        }
        let uses = self.walk(self.uses);
        assert!(uses.iter().all(|slot| slot.weight > 0));
        assert!(uses.is_sorted_by(|one, next| one.used < next.used));
        assert_eq!(
            self.oldest_use,
            uses.first().map_or(NEVER, |slot| slot.used)
        );
        let vacant = self.walk(self.vacant);
        assert!(
            vacant
                .iter()
                .all(|slot| slot.record.is_none() && slot.weight == 0)
        );
        assert_eq!(uses.len() as u64, complete);
        assert_eq!(vacant.len() + self.index.len(), self.slots.len());
        (unsettled, settled, complete, bytes)
    }

    /// For how many records there is room.
    pub(in crate::store::memory) fn capacity(&self) -> usize {
        self.slots.capacity().max(self.index.capacity())
    }

    /// What a list holds, from first to last.
    fn walk(&self, list: List) -> Vec<&Slot> {
        let (mut before, mut at, mut walked) = (NONE, list.first(), Vec::new());
        while let Some(slot) = self.slot(at) {
            assert_eq!(slot.links.before, before);
            assert!(walked.len() < self.slots.len(), "a circle");
            walked.push(slot);
            (before, at) = (at, slot.links.after);
        }
        assert_eq!((at, list.last()), (NONE, before));
        walked
    }
}

fn record(state: State, ends_at: u64) -> Arc<Record> {
    let ends_at = Timestamp::from_millis(ends_at);
    let print = match state {
        State::InFlight { .. } => Print::Live(request("a")),
        _ => Print::Settled(request("a").digests()),
    };
    Arc::new(Record {
        print,
        state,
        started_at: Timestamp::from_millis(0),
        expires_at: ends_at,
        after_expiry: AfterExpiry::Execute,
        route: route(),
    })
}

fn claim(ends_at: u64) -> Arc<Record> {
    let state = State::InFlight {
        token: token(1),
        lease_until: Timestamp::from_millis(0),
    };
    record(state, ends_at)
}

fn complete(ends_at: u64) -> Arc<Record> {
    record(State::Complete(answer(b"x")), ends_at)
}

fn unknown(ends_at: u64) -> Arc<Record> {
    let since = Timestamp::from_millis(0);
    record(State::Unknown { since }, ends_at)
}

fn table() -> Table {
    Table::new(IdHash::new())
}

/// One step. Ids and times are few, so that steps meet.
#[derive(Clone, Debug)]
enum Step {
    Claim { id: u64, ends_at: u64 },
    Unknown { id: u64, ends_at: u64 },
    Complete { id: u64, ends_at: u64, weight: u32 },
    Look { id: u64 },
    Get { id: u64 },
    Remove { id: u64 },
    TakeOldest,
    Expire { most: usize },
    Pass { ms: u64 },
    Shrink { most: usize },
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (id, ends_at, weight) = (0..100u64, 0..200u64, 1..5u32);
    let step = prop_oneof![
        4 => (id.clone(), ends_at.clone()).prop_map(|(id, ends_at)| Step::Claim { id, ends_at }),
        2 => (id.clone(), ends_at.clone()).prop_map(|(id, ends_at)| Step::Unknown { id, ends_at }),
        8 => (id.clone(), ends_at, weight).prop_map(|(id, ends_at, weight)| Step::Complete { id, ends_at, weight }),
        4 => id.clone().prop_map(|id| Step::Look { id }),
        1 => id.clone().prop_map(|id| Step::Get { id }),
        2 => id.prop_map(|id| Step::Remove { id }),
        2 => Just(Step::TakeOldest),
        1 => (1..60usize).prop_map(|most| Step::Expire { most }),
        1 => (0..20u64).prop_map(|ms| Step::Pass { ms }),
        2 => (1..60usize).prop_map(|most| Step::Shrink { most }),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 1..400)
}

/// One record as the plain list has it.
struct Row {
    id: u64,
    record: Arc<Record>,
    class: Class,
    used: u64,
}

/// Everything in one list, in no order.
#[derive(Default)]
struct Plain {
    rows: Vec<Row>,
    now: u64,
    uses: u64,
    cursor: usize,
}

impl Plain {
    fn put(&mut self, id: u64, record: &Arc<Record>, class: Class) -> u64 {
        self.uses += 1;
        self.rows.retain(|row| row.id != id);
        self.rows.push(Row {
            id,
            record: Arc::clone(record),
            class,
            used: self.uses,
        });
        self.uses
    }

    fn oldest(&self) -> Option<u64> {
        let complete = self
            .rows
            .iter()
            .filter(|row| matches!(row.class, Class::Complete(_)));
        complete.min_by_key(|row| row.used).map(|row| row.id)
    }

    fn row(&mut self, id: u64) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.id == id)
    }

    fn take(&mut self, id: u64) -> Option<Row> {
        let at = self.rows.iter().position(|row| row.id == id)?;
        Some(self.rows.swap_remove(at))
    }

    fn agrees(row: Option<Row>, taken: Option<Taken>) {
        match (row, taken) {
            (None, None) => {}
            (Some(row), Some(taken)) => {
                assert!(Arc::ptr_eq(&row.record, &taken.record));
                assert_eq!(row.class, taken.class);
            }
            (row, taken) => panic!("{:?} and {taken:?}", row.map(|row| row.id)),
        }
    }

    fn step(&mut self, table: &mut Table, step: &Step) {
        let now = Timestamp::from_millis(self.now);
        match *step {
            Step::Claim { id: n, ends_at } => {
                let record = claim(ends_at);
                self.put(n, &record, Class::Unsettled);
                table.put_held(id(n), record);
            }
            Step::Unknown { id: n, ends_at } => {
                let record = unknown(ends_at);
                self.put(n, &record, Class::Settled);
                table.put_held(id(n), record);
            }
            Step::Complete {
                id: n,
                ends_at,
                weight,
            } => {
                let record = complete(ends_at);
                let used = self.put(n, &record, Class::Complete(weight));
                table.put_complete(id(n), record, weight, used);
            }
            Step::Look { id: n } => {
                let (next, now_ms) = (self.uses + 1, self.now);
                let mut drawn = false;
                let stamp = || {
                    drawn = true;
                    next
                };
                let looked = table.look(&id(n), now, stamp).cloned();
                let row = self.row(n);
                assert_eq!(
                    looked.as_ref().map(Arc::as_ptr),
                    row.as_ref().map(|row| Arc::as_ptr(&row.record))
                );
                let counts = row.filter(|row| {
                    matches!(row.class, Class::Complete(_))
                        && row.record.expires_at.as_millis() > now_ms
                });
                assert_eq!(drawn, counts.is_some());
                if let Some(row) = counts {
                    row.used = next;
                    self.uses = next;
                }
            }
            Step::Get { id: n } => {
                let row = self.row(n).map(|row| (Arc::as_ptr(&row.record), row.class));
                let got = table
                    .get(&id(n))
                    .map(|(record, class)| (Arc::as_ptr(record), class));
                assert_eq!(row, got);
            }
            Step::Remove { id: n } => Self::agrees(self.take(n), table.remove(&id(n))),
            Step::TakeOldest => {
                let row = self.oldest().and_then(|n| self.take(n));
                Self::agrees(row, table.take_oldest());
            }
            Step::Expire { most } => self.expire(table, most),
            Step::Pass { ms } => self.now += ms,
            Step::Shrink { most } => {
                let _ = table.shrink(most);
            }
            Step::Clear => {
                for row in std::mem::take(&mut self.rows) {
                    let taken = table.remove(&id(row.id));
                    Self::agrees(Some(row), taken);
                }
            }
        }
    }

    fn expire(&mut self, table: &mut Table, most: usize) {
        let now = Timestamp::from_millis(self.now);
        let (swept, next) = table.sweep(self.cursor, most, now);
        assert!(swept.forgotten.len() <= most && swept.expired.is_empty());
        for taken in swept.forgotten {
            let at = self
                .rows
                .iter()
                .position(|row| Arc::ptr_eq(&row.record, &taken.record))
                .expect("it was there, once");
            let row = self.rows.swap_remove(at);
            assert!(row.record.expires_at.reached(now));
            Self::agrees(Some(row), Some(taken));
        }
        self.cursor = next.unwrap_or(0);
    }
}

proptest! {
    #[test]
    fn the_table_holds_what_a_plain_list_holds(steps in steps()) {
        let (mut table, mut plain) = (table(), Plain::default());
        for step in &steps {
            plain.step(&mut table, step);
            let (unsettled, settled, complete, bytes) = table.counted();
            prop_assert_eq!(unsettled + settled + complete, plain.rows.len() as u64);
            let weights = plain.rows.iter().map(|row| match row.class {
                Class::Complete(weight) => u64::from(weight),
                Class::Unsettled | Class::Settled => 0,
            });
            prop_assert_eq!(bytes, weights.sum::<u64>());
            let oldest = plain.oldest().and_then(|id| plain.row(id)).map_or(NEVER, |row| row.used);
            prop_assert_eq!(table.oldest_use(), oldest);
        }
        // In the end they go in the order of their uses.
        while let Some(oldest) = plain.oldest() {
            Plain::agrees(plain.take(oldest), table.take_oldest());
        }
        prop_assert!(table.take_oldest().is_none());
    }
}

#[test]
fn a_slot_is_small() {
    assert!(size_of::<Slot>() <= 80, "{}", size_of::<Slot>());
}

#[test]
fn a_pass_looks_at_every_slot_in_pieces() {
    let (mut table, end) = (table(), Timestamp::from_millis(10));
    (0..1000).for_each(|n| table.put_held(id(n), unknown(10)));
    let (mut cursor, mut taken) = (0, Vec::new());
    for _ in 0..3 {
        let (swept, next) = table.sweep(cursor, 256, end);
        taken.push(swept.forgotten.len());
        cursor = next.expect("there is more");
    }
    let (rest, next) = table.sweep(cursor, 256, end);
    assert_eq!(
        (taken, rest.forgotten.len(), next),
        (vec![256; 3], 232, None)
    );
    assert_eq!(table.counted(), (0, 0, 0, 0));
}

#[test]
fn what_a_burst_needed_is_given_back_in_pieces_and_nothing_is_lost() {
    let mut table = table();
    for n in 0..10_000 {
        table.put_complete(id(n), complete(10), 1, n);
    }
    for n in (0..10_000).filter(|n| n % 100 != 0) {
        table.remove(&id(n));
    }
    let mut pieces = 1;
    let mut before = table.slots.len();
    while table.shrink(256) == Progress::GoesOn {
        assert_eq!(before - table.slots.len(), 256);
        before = table.slots.len();
        pieces += 1;
    }
    assert_eq!(pieces, (10_000 - 200usize).div_ceil(256));
    assert!(table.slots.capacity() < 400 && table.index.capacity() < 800);
    assert_eq!(table.counted(), (0, 0, 100, 100));
    for n in 0..100 {
        let taken = table.remove(&id(n * 100));
        assert_eq!(taken.map(|taken| taken.class), Some(Class::Complete(1)));
    }
    assert_eq!(table.shrink(256), Progress::AtTheEnd);
    assert!(table.slots.capacity() <= FEW && table.slots.len() <= FEW);
    table.put_held(id(1), claim(10));
    assert_eq!(table.counted(), (1, 0, 0, 0));
}

#[test]
fn a_marker_stands_where_its_record_stood_and_only_over_that_record() {
    let mut table = table();
    let refused = |record: &Arc<Record>| {
        let mut record = Record::clone(record);
        record.after_expiry = AfterExpiry::RefuseFor(std::time::Duration::from_millis(5));
        Arc::new(record)
    };
    let (first, held) = (refused(&complete(10)), refused(&unknown(10)));
    table.put_complete(id(1), Arc::clone(&first), 900, 1);
    table.put_complete(id(2), complete(10), 2, 2);
    table.put_held(id(3), Arc::clone(&held));
    let at = Timestamp::from_millis;
    let (swept, _) = table.sweep(0, 10, at(9));
    assert!(swept.forgotten.is_empty() && swept.expired.is_empty());
    let (swept, _) = table.sweep(0, 10, at(10));
    let expired: Vec<_> = swept.expired.iter().map(|(id, _)| *id).collect();
    assert_eq!(
        (expired, swept.forgotten.len()),
        (vec![id(1), id(3)], 1),
        "the second is not refused"
    );
    for (number, record, class, weight) in [
        (1, &first, Class::Complete(900), 400),
        (3, &held, Class::Settled, 0),
    ] {
        let marker = || transition::aged(record, at(10)).expect("it has expired");
        let other = complete(10);
        let nothing = table.put_marker(&id(number), &other, marker(), |_| 7);
        assert!(nothing.is_none(), "another record stands there");
        let before = table
            .put_marker(&id(number), record, marker(), |before| {
                assert_eq!(before, class);
                weight
            })
            .expect("it stands there");
        assert!(Arc::ptr_eq(&before.record, record));
    }
    assert_eq!(table.oldest_use(), 1, "a marker is no use");
    assert_eq!(table.counted(), (0, 1, 1, 400));
    let (swept, _) = table.sweep(0, 10, at(14));
    assert!(swept.forgotten.is_empty() && swept.expired.is_empty());
    let (swept, _) = table.sweep(0, 10, at(15));
    assert_eq!((swept.forgotten.len(), swept.expired.len()), (2, 0));
    assert_eq!(table.counted(), (0, 0, 0, 0));
}
