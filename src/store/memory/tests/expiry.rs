//! The markers of expired keys: what they hold, what they count as, and that no bound is passed for them.

use super::*;
use crate::core::{policy::AfterExpiry, record::StoredAnswer};

const SECOND: Duration = Duration::from_secs(1);

/// 50 s of retention, and 100 s of refusal.
fn refusing() -> Terms {
    Terms {
        retention: 50 * SECOND,
        after_expiry: AfterExpiry::RefuseFor(100 * SECOND),
        ..terms()
    }
}

impl Timed {
    fn refused(&self, record: u64, settlement: Settlement) -> Settled {
        let claimed = self.try_begin(record, &refusing());
        let Ok(Begin::Claimed(claim)) = claimed else {
            panic!("{claimed:?}")
        };
        let settled = self.store.settle(claim, settlement, &refusing());
        self.store.assert_counted();
        settled
    }

    fn answered(&self, record: u64, body: usize) -> Settled {
        self.refused(record, Settlement::Complete(answer(&vec![b'x'; body])))
    }

    /// Whether a marker stands there, without using it.
    fn is_marked(&self, record: u64) -> bool {
        let id = id(record);
        self.store.in_shard(&id, |shard, _| {
            let standing = shard.table.get(&id).map(|(record, _)| &record.state);
            matches!(standing, Some(State::Expired))
        })
    }

    fn bytes(&self) -> u64 {
        self.store.levels().bytes
    }
}

#[test]
fn whoever_looks_at_an_expired_answer_frees_it() {
    let timed = Timed::new(ROOMY);
    timed.answered(1, 100_000);
    assert!(timed.bytes() > 100_000);
    timed.clock.pass(50 * SECOND);
    assert_eq!(timed.look(1), Met::Expired);
    assert!(timed.is_marked(1));
    assert_eq!(timed.bytes(), StoredAnswer::OVERHEAD as u64);
    assert_eq!(timed.look(1), Met::Expired);
    assert_eq!(timed.store.levels().records, 1);
    assert_eq!(timed.store.evictions(Eviction::Expired), 0, "not yet");
}

#[test]
fn an_idle_store_frees_expired_answers_by_itself_and_later_their_markers() {
    let timed = Timed::new(ROOMY);
    let tombstone = Settlement::Tombstone {
        status: http::StatusCode::OK,
        why: NotRetained::Stream,
    };
    timed.answered(1, 100_000);
    timed.refused(2, Settlement::Unknown);
    timed.refused(3, tombstone);
    let Ok(Begin::Claimed(lapsed)) = timed.try_begin(4, &refusing()) else {
        panic!("nothing stands in its way")
    };
    timed.clock.pass(60 * SECOND);
    timed.store.sweep();
    timed.store.assert_counted();
    for record in 1..=4 {
        assert!(timed.is_marked(record), "{record}");
    }
    let levels = Levels {
        records: 4,
        bytes: StoredAnswer::OVERHEAD as u64,
        claims: 3,
    };
    assert_eq!(timed.store.levels(), levels);
    assert!(matches!(
        timed.settle(lapsed, Settlement::Release),
        Settled::Lost
    ));
    timed.clock.pass(100 * SECOND);
    timed.store.sweep();
    timed.store.assert_counted();
    assert_eq!(timed.store.levels(), Levels::default());
    assert_eq!(timed.store.evictions(Eviction::Expired), 4);
    assert_eq!(timed.store.evictions(Eviction::Size), 0);
}

#[test]
fn a_full_store_takes_the_answers_of_expired_keys_before_their_protection() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: 20_000,
        ..ROOMY
    });
    timed.answered(1, 10_000);
    timed.clock.pass(50 * SECOND);
    timed.execute(2, 12_000);
    assert_eq!(timed.store.evictions(Eviction::Size), 0);
    assert_eq!(timed.look(1), Met::Expired);
    assert!(timed.holds(2));
    // Where that is not enough, the least recently used goes: a marker is no better than an answer, and counted.
    assert!(matches!(timed.look(2), Met::Complete(..)));
    timed.execute(3, 6_800);
    assert_eq!(timed.complete(4), [2, 3]);
    assert_eq!(timed.look(1), Met::Nothing);
    assert_eq!(timed.store.evictions(Eviction::Size), 1);
}

#[test]
fn markers_need_no_room_that_their_records_did_not_have() {
    let timed = Timed::new(MemoryLimits {
        max_claims: 2,
        max_records: Some(2),
        on_full: OnFull::Reject,
        ..ROOMY
    });
    timed.answered(1, 100);
    timed.refused(2, Settlement::Unknown);
    timed.answered(3, 100);
    let before = timed.store.levels();
    timed.clock.pass(50 * SECOND);
    timed.store.sweep();
    timed.store.assert_counted();
    let levels = timed.store.levels();
    assert_eq!(
        (levels.records, levels.claims),
        (before.records, before.claims)
    );
    assert!(levels.bytes < before.bytes);
    assert_eq!(
        timed.try_begin(4, &terms()).err(),
        Some(StoreError::Full),
        "a refused key is a promise, and counts"
    );
    timed.clock.pass(100 * SECOND);
    timed.store.sweep();
    let _claim = timed.claim(4);
}

#[test]
fn an_answer_that_is_late_for_its_own_retention_leaves_a_marker() {
    let timed = Timed::new(ROOMY);
    let terms = Terms {
        retention_from: crate::core::policy::RetentionFrom::Start,
        ..refusing()
    };
    let Ok(Begin::Claimed(claim)) = timed.try_begin(1, &terms) else {
        panic!("nothing stands in its way")
    };
    timed.clock.pass(55 * SECOND);
    let settled = timed
        .store
        .settle(claim, Settlement::Complete(answer(b"x")), &terms);
    timed.store.assert_counted();
    assert!(is_complete(&settled), "its own client gets it");
    assert_eq!(timed.look(1), Met::Expired);
    timed.clock.pass(95 * SECOND);
    assert_eq!(timed.look(1), Met::Nothing);
}
