//! What happens when there is no room.

use super::*;
use crate::core::record::NotRetained;

const MIB: u64 = 1 << 20;

fn small() -> Setup {
    Setup {
        max_bytes: MIB,
        ..Setup::default()
    }
}

fn size(timed: &Timed) -> u64 {
    let database = timed.path().join("records.db");
    std::fs::metadata(database).expect("a file").len()
}

#[tokio::test]
async fn a_full_store_refuses_new_keys_and_forgets_nothing() {
    let timed = Timed::new(small());
    let mut kept = 0;
    let refused = loop {
        match timed.try_begin(kept, &terms()).await {
            Ok(Begin::Claimed(claim)) => {
                let done = Settlement::Complete(answer(&vec![b'x'; 50_000]));
                assert!(is_complete(&timed.settle(claim, done).await), "{kept}");
                kept += 1;
            }
            other => break other,
        }
        assert!(kept < 100, "it never gets full");
    };
    assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
    assert!(kept > 10, "{kept}");
    for record in 0..kept {
        assert!(
            matches!(timed.meets(record).await, Met::Complete(..)),
            "{record}"
        );
    }
    timed.assert_counted();
    assert!(timed.store().levels().bytes <= MIB);
    assert!(size(&timed) <= MIB, "{}", size(&timed));
    // What expires makes room, without a sweep.
    timed.pass(Duration::from_hours(24)).await;
    let claim = timed.claim(1000).await;
    let done = Settlement::Complete(answer(&vec![b'x'; 50_000]));
    assert!(is_complete(&timed.settle(claim, done).await));
}

#[tokio::test]
async fn an_answer_without_room_becomes_a_tombstone_that_outlasts_a_restart() {
    let mut timed = Timed::new(small());
    let mut claims = Vec::new();
    for record in 0..4 {
        claims.push(timed.claim(record).await);
    }
    let mut tombstones = 0;
    for claim in claims {
        let done = Settlement::Complete(answer(&vec![b'x'; 400_000]));
        let Settled::Kept(record) = timed.settle(claim, done).await else {
            panic!("it is settled")
        };
        if let State::Tombstone { why, .. } = &record.state {
            assert_eq!(*why, NotRetained::NoRoom);
            tombstones += 1;
        }
    }
    assert_eq!(tombstones, 2);
    timed.restart();
    let gone = Met::Tombstone(http::StatusCode::CREATED, NotRetained::NoRoom);
    assert_eq!(timed.meets(3).await, gone);
    assert!(size(&timed) <= MIB);
}

#[tokio::test]
async fn pages_are_used_again() {
    let timed = Timed::new(small());
    let mut largest = 0;
    for round in 0..20 {
        for record in 0..8 {
            timed.execute(100 * round + record, 60_000).await;
        }
        largest = largest.max(size(&timed));
        timed.pass(Duration::from_hours(24)).await;
        timed.sweep().await;
    }
    assert!(largest <= MIB, "{largest}");
    timed.assert_counted();
}
