//! What is freed without being asked for, and in what steps.

use super::{super::upkeep::SWEEP_SLOTS, *};

#[test]
fn a_sweep_frees_what_expired_among_the_claims_and_nothing_that_lives() {
    let timed = Timed::new(MemoryLimits {
        max_claims: 10_000,
        ..ROOMY
    });
    for record in 0..3000 {
        timed
            .store
            .settle(claim_quietly(&timed, record), Settlement::Unknown, &terms());
    }
    drop(timed.claim(5000));
    timed.clock.pass(Duration::from_millis(86_399_999));
    let living = timed.claim(5001);
    timed.store.sweep();
    assert_eq!(timed.store.levels().claims, 3002);
    timed.clock.pass(Duration::from_millis(1));
    timed.store.sweep();
    timed.store.assert_counted();
    assert_eq!(timed.store.levels().claims, 1);
    assert_eq!(timed.store.evictions(Eviction::Expired), 3001);
    assert!(is_complete(
        &timed.settle(living, Settlement::Complete(answer(b"x")))
    ));
}

/// A claim without counting everything, where there are many.
fn claim_quietly(timed: &Timed, record: u64) -> Claim {
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    match timed.store.begin(&id(record), &ask, token(record + 1)) {
        Ok(Begin::Claimed(claim)) => claim,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_idle_store_empties_by_itself_in_bounded_steps() {
    let timed = Timed::new(MemoryLimits {
        max_claims: 1_000_000,
        ..ROOMY
    });
    // More records than one sweep looks at, of every kind.
    let records = 3 * (SHARDS * SWEEP_SLOTS) as u64 / 2;
    for record in 0..records {
        let claim = claim_quietly(&timed, record);
        let settlement = match record % 10 {
            0 => Settlement::Complete(answer(b"x")),
            1 => continue,
            _ => Settlement::Unknown,
        };
        timed.store.settle(claim, settlement, &terms());
    }
    timed.store.assert_counted();
    timed.clock.pass(Duration::from_millis(86_399_999));
    (0..4).for_each(|_| timed.store.sweep());
    assert_eq!(timed.store.levels().records, records, "nothing has expired");
    timed.clock.pass(Duration::from_millis(1));
    let mut sweeps = 0;
    while timed.store.levels() != Levels::default() {
        let before = timed.store.levels().records;
        timed.store.sweep();
        sweeps += 1;
        let freed = before - timed.store.levels().records;
        assert!(freed <= (SHARDS * SWEEP_SLOTS) as u64, "{freed} at once");
        assert!(sweeps <= 4, "{:?}", timed.store.levels());
    }
    assert!(sweeps > 1, "that was more than a step");
    // What is left to do: to give the room back.
    (0..4).for_each(|_| timed.store.sweep());
    for shard in &timed.store.shards {
        assert!(shard.lock().table.capacity() <= 64);
    }
    timed.store.assert_counted();
    assert_eq!(timed.store.evictions(Eviction::Expired), records);
    assert_eq!(timed.store.evictions(Eviction::Size), 0);
}

#[test]
fn an_expired_record_that_gives_way_took_no_protection_with_it() {
    let timed = Timed::new(MemoryLimits {
        max_records: Some(2),
        ..ROOMY
    });
    timed.execute(0, 1);
    timed.clock.pass(Duration::from_hours(23));
    timed.execute(1, 1);
    timed.clock.pass(Duration::from_hours(1));
    assert_eq!(timed.look(0), Met::Nothing, "which is no use either");
    timed.execute(2, 1);
    assert_eq!(timed.complete(3), [1, 2]);
    assert_eq!(timed.store.evictions(Eviction::Expired), 1);
    assert_eq!(timed.store.evictions(Eviction::Size), 0);
}

#[test]
fn what_has_expired_takes_nobodys_room_even_before_the_next_sweep() {
    let timed = Timed::new(MemoryLimits {
        max_claims: 2,
        ..ROOMY
    });
    for record in 0..2 {
        timed
            .store
            .settle(claim_quietly(&timed, record), Settlement::Unknown, &terms());
    }
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    let full = timed.store.begin(&id(2), &ask, token(9));
    assert!(matches!(full, Err(StoreError::Full)), "{full:?}");
    timed.clock.pass(Duration::from_hours(24));
    drop(claim_quietly(&timed, 2));
    timed.store.assert_counted();
}
