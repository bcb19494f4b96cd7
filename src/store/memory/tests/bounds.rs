//! What bounds the store, what is evicted and what is swept.

use super::*;

#[test]
fn the_bytes_are_never_exceeded_and_the_newest_is_always_admitted() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: MIB,
        ..ROOMY
    });
    for record in 0..50 {
        assert!(is_complete(&timed.execute(record, 300 << 10)));
        assert!(timed.store.levels().bytes <= MIB);
        assert!(timed.holds(record), "{record} is the newest");
    }
    assert_eq!(timed.complete(50), [47, 48, 49]);
    assert_eq!(timed.store.evictions(Eviction::Size), 47);
    assert_eq!(timed.store.evictions(Eviction::Expired), 0);
}

#[test]
fn the_least_recently_used_goes_first_and_a_replay_is_a_use() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: MIB,
        ..ROOMY
    });
    for record in 0..3 {
        timed.execute(record, 300 << 10);
    }
    assert!(matches!(timed.look(0), Met::Complete(..)));
    timed.execute(3, 300 << 10);
    assert_eq!(timed.complete(4), [0, 2, 3]);
}

#[test]
fn a_new_answer_is_admitted_however_popular_the_old_ones() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: MIB,
        ..ROOMY
    });
    for record in 0..3 {
        timed.execute(record, 300 << 10);
    }
    for _ in 0..1000 {
        (0..3).for_each(|record| assert!(matches!(timed.look(record), Met::Complete(..))));
    }
    timed.execute(3, 300 << 10);
    assert_eq!(timed.complete(4).len(), 3);
    assert!(matches!(timed.look(3), Met::Complete(..)));
}

#[test]
fn one_large_answer_may_push_out_many_small_ones() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: MIB,
        ..ROOMY
    });
    for record in 0..2000 {
        timed.execute(record, 0);
    }
    timed.execute(2000, (1 << 20) - 1000);
    assert_eq!(timed.complete(2001), [1999, 2000]);
    assert!(timed.store.levels().bytes <= MIB);
}

#[test]
fn an_answer_heavier_than_the_store_becomes_a_tombstone() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: 10_000,
        ..ROOMY
    });
    let head = answer(b"").weight();
    assert!(is_complete(&timed.execute(0, 10_000 - head)));
    assert_eq!(
        tombstone_of(timed.execute(1, 10_001 - head)),
        NotRetained::TooLarge
    );
    assert_eq!(
        timed.look(1),
        Met::Tombstone(http::StatusCode::CREATED, NotRetained::TooLarge)
    );
    assert!(
        matches!(timed.look(0), Met::Complete(..)),
        "nothing was evicted for it"
    );
}

#[test]
fn the_number_of_complete_records_is_exact_whatever_they_weigh() {
    let timed = Timed::new(MemoryLimits {
        max_records: Some(5),
        ..ROOMY
    });
    for record in 0..40 {
        let body = if record % 3 == 0 { 40_000 } else { 3 };
        assert!(is_complete(&timed.execute(record, body)));
        let expected: Vec<u64> = (record.saturating_sub(4)..=record).collect();
        assert_eq!(timed.complete(41), expected);
    }
    assert!(matches!(timed.look(35), Met::Complete(..)));
    timed.execute(40, 0);
    assert_eq!(timed.complete(41), [35, 37, 38, 39, 40]);
    assert_eq!(timed.store.evictions(Eviction::Size), 36);
}

#[test]
fn the_number_holds_in_a_store_larger_than_one_weight() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: 20 << 30,
        max_records: Some(2),
        ..ROOMY
    });
    for record in 0..4 {
        timed.execute(record, 10);
    }
    assert_eq!(timed.complete(4), [2, 3]);
}

#[test]
fn both_bounds_hold_together() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: MIB,
        max_records: Some(5),
        ..ROOMY
    });
    for record in 0..5 {
        timed.execute(record, 100);
    }
    timed.execute(5, 900 << 10);
    assert_eq!(timed.complete(6), [1, 2, 3, 4, 5]);
    timed.execute(6, 900 << 10);
    assert_eq!(
        timed.complete(7),
        [6],
        "the oldest made room, and the large one before it"
    );
}

#[test]
fn claims_unknown_records_and_tombstones_are_never_evicted() {
    let timed = Timed::new(MemoryLimits {
        max_bytes: 128 << 10,
        ..ROOMY
    });
    let running = timed.claim(1000);
    timed.settle(timed.claim(1001), Settlement::Unknown);
    let status = http::StatusCode::OK;
    timed.settle(
        timed.claim(1002),
        Settlement::Tombstone {
            status,
            why: NotRetained::Stream,
        },
    );
    for record in 0..60 {
        timed.execute(record, 8192);
    }
    assert!(matches!(timed.look(1000), Met::InFlight(_)));
    assert!(matches!(timed.look(1001), Met::Unknown(_)));
    assert!(matches!(timed.look(1002), Met::Tombstone(..)));
    assert!(is_complete(
        &timed.settle(running, Settlement::Complete(answer(b"x")))
    ));
    assert!(matches!(timed.look(1000), Met::Complete(..)));
}

#[test]
fn over_max_claims_new_claims_are_refused_and_held_ones_settle_as_they_like() {
    let timed = Timed::new(MemoryLimits {
        max_claims: 3,
        ..ROOMY
    });
    let held: Vec<_> = (0..3).map(|record| timed.claim(record)).collect();
    assert_eq!(timed.try_begin(3, &terms()).err(), Some(StoreError::Full));
    assert!(
        matches!(timed.try_begin(0, &terms()), Ok(Begin::Found(_))),
        "a copy is no new claim"
    );
    let status = http::StatusCode::OK;
    let say = [
        Settlement::Unknown,
        Settlement::Tombstone {
            status,
            why: NotRetained::TooLarge,
        },
        Settlement::Release,
    ];
    for (claim, settlement) in held.into_iter().zip(say) {
        timed.settle(claim, settlement);
    }
    assert_eq!(timed.store.levels().claims, 2);
    let claim = timed.claim(3);
    assert_eq!(timed.try_begin(4, &terms()).err(), Some(StoreError::Full));
    timed.settle(claim, Settlement::Complete(answer(b"x")));
    let _claim = timed.claim(4);
}

#[test]
fn taking_over_what_stands_among_the_claims_needs_no_room() {
    let timed = Timed::new(MemoryLimits {
        max_claims: 1,
        ..ROOMY
    });
    let release = Terms {
        unknown: crate::core::policy::UnknownOutcome::Release,
        ..terms()
    };
    drop(timed.claim(0));
    timed.clock.pass(Duration::from_mins(1));
    let taken = timed.try_begin(0, &release);
    let Ok(Begin::Claimed(claim)) = taken else {
        panic!("{taken:?}")
    };
    timed.settle(claim, Settlement::Unknown);
    assert!(matches!(
        timed.try_begin(0, &release),
        Ok(Begin::Claimed(_))
    ));
    assert_eq!(timed.store.levels().claims, 1);
}

fn rejecting(max_bytes: u64) -> Timed {
    Timed::new(MemoryLimits {
        max_bytes,
        on_full: OnFull::Reject,
        ..ROOMY
    })
}

#[test]
fn with_reject_a_claim_counts_until_it_is_settled_and_one_that_does_not_fit_is_refused() {
    let timed = rejecting(2 * 1024);
    let (first, second) = (timed.claim(0), timed.claim(1));
    assert_eq!(timed.store.levels().bytes, 2048);
    assert_eq!(timed.try_begin(2, &terms()).err(), Some(StoreError::Full));
    timed.settle(first, Settlement::Release);
    assert_eq!(timed.store.levels().bytes, 1024);
    let third = timed.claim(2);
    timed.settle(second, Settlement::Unknown);
    timed.settle(third, Settlement::Complete(answer(b"")));
    assert_eq!(timed.store.levels().bytes, answer(b"").weight() as u64);
    assert!(matches!(timed.look(2), Met::Complete(..)));
}

#[test]
fn with_reject_a_store_whose_answers_are_large_refuses_before_anything_is_executed() {
    let timed = rejecting(MIB);
    for record in 0..3 {
        assert!(is_complete(&timed.execute(record, 300 << 10)));
    }
    let left = MIB - timed.store.levels().bytes;
    assert!(left > 100 << 10, "{left} bytes are left");
    assert_eq!(timed.try_begin(3, &terms()).err(), Some(StoreError::Full));
    assert_eq!(timed.complete(3), [0, 1, 2]);
    assert_eq!(timed.store.evictions(Eviction::Size), 0);
}

#[test]
fn with_reject_a_claim_asks_for_the_mean_of_the_answers_and_counts_with_a_kibibyte() {
    let weight = |body: u64| answer(b"").weight() as u64 + body;
    let (small, large) = (weight(10_000), weight(50_000));
    let mean = u64::midpoint(small, large);
    let room = |left| {
        let timed = rejecting(small + large + left);
        // Both are claimed while nothing says yet how large answers are here.
        let (first, second) = (timed.claim(0), timed.claim(1));
        for (claim, body) in [(first, 10_000), (second, 50_000)] {
            let settlement = Settlement::Complete(answer(&vec![0; body]));
            assert!(is_complete(&timed.settle(claim, settlement)));
        }
        timed
    };
    let timed = room(mean - 1);
    assert_eq!(timed.try_begin(2, &terms()).err(), Some(StoreError::Full));
    let timed = room(mean);
    let _claim = timed.claim(2);
    assert_eq!(timed.store.levels().bytes, small + large + 1024);
    assert_eq!(timed.try_begin(3, &terms()).err(), Some(StoreError::Full));
    let timed = room(mean + 1024);
    let _claims = [timed.claim(2), timed.claim(3)];
}

#[test]
fn with_reject_an_answer_that_does_not_fit_becomes_a_tombstone_and_nothing_is_evicted() {
    let timed = rejecting(MIB);
    for record in 0..2 {
        timed.execute(record, 300 << 10);
    }
    let why = tombstone_of(timed.execute(2, 500 << 10));
    assert_eq!(why, NotRetained::NoRoom);
    assert_eq!(
        timed.look(2),
        Met::Tombstone(http::StatusCode::CREATED, NotRetained::NoRoom)
    );
    assert_eq!(
        tombstone_of(timed.execute(3, 2 << 20)),
        NotRetained::TooLarge
    );
    assert_eq!(timed.complete(4), [0, 1]);
    assert_eq!(timed.store.evictions(Eviction::Size), 0);
}

#[test]
fn with_reject_the_number_of_records_refuses_too() {
    let timed = Timed::new(MemoryLimits {
        max_records: Some(2),
        on_full: OnFull::Reject,
        ..ROOMY
    });
    timed.execute(0, 10);
    let claim = timed.claim(1);
    assert_eq!(timed.try_begin(2, &terms()).err(), Some(StoreError::Full));
    assert!(is_complete(
        &timed.settle(claim, Settlement::Complete(answer(b"x")))
    ));
    assert_eq!(timed.try_begin(2, &terms()).err(), Some(StoreError::Full));
    assert_eq!(timed.complete(3), [0, 1]);
}

#[test]
fn with_reject_an_expired_record_gives_its_room_to_its_successor() {
    let timed = rejecting(2000);
    timed.execute(0, 1000);
    assert_eq!(timed.try_begin(1, &terms()).err(), Some(StoreError::Full));
    timed.clock.pass(Duration::from_hours(24));
    assert!(is_complete(&timed.execute(0, 1000)));
    assert_eq!(timed.store.evictions(Eviction::Expired), 1);
}

#[test]
fn threads_that_fill_the_store_at_once_leave_it_within_its_bounds() {
    let limits = MemoryLimits {
        max_bytes: 200_000,
        max_records: Some(64),
        ..ROOMY
    };
    let store = MemoryStore::new(limits);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let (fingerprint, route, terms) = (request("a"), route(), terms());
                let ask = Ask {
                    fingerprint: &fingerprint,
                    terms: &terms,
                    route: &route,
                };
                for n in 0..2_000 {
                    let record = thread * 1_000_000 + n;
                    let begun = store.begin(&id(record), &ask, token(record));
                    let Ok(Begin::Claimed(claim)) = begun else {
                        panic!("{begun:?}")
                    };
                    let body = vec![0; usize::try_from(record * 7919 % 20_000).expect("small")];
                    assert!(is_complete(&store.settle(
                        claim,
                        Settlement::Complete(answer(&body)),
                        &terms
                    )));
                    let _ = store.look(&id(record.saturating_sub(20)), &ask);
                }
            });
        }
    });
    store.assert_counted();
    let taken = store.room.taken();
    assert!(taken.bytes <= 200_000 && taken.complete <= 64, "{taken:?}");
    assert_eq!(taken.complete + taken.evicted_size, 8_000);
}

#[test]
fn lost_protection_is_warned_of_with_its_number_and_not_again_at_once() {
    let timed = Timed::new(MemoryLimits {
        max_records: Some(1),
        ..ROOMY
    });
    let warned = |at: &Timed| {
        at.store.sweep();
        at.store.warned.lock().evicted
    };
    timed.execute(0, 1);
    assert_eq!(warned(&timed), 0, "nothing was lost");
    timed.execute(1, 1);
    timed.execute(2, 1);
    assert_eq!(warned(&timed), 2);
    timed.execute(3, 1);
    timed.clock.pass(Duration::from_millis(9_999));
    assert_eq!(warned(&timed), 2, "not yet");
    timed.clock.pass(Duration::from_millis(1));
    assert_eq!(warned(&timed), 3);
}
