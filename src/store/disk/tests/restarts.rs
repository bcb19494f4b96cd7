//! What a restart finds.

use super::*;
use crate::core::{
    policy::{AfterExpiry, UnknownOutcome},
    record::NotRetained,
    transition::HoldLeft,
};

#[tokio::test]
async fn everything_that_is_settled_outlasts_a_restart() {
    let mut timed = Timed::new(Setup::default());
    timed.execute(1, 100).await;
    let tombstone = Settlement::Tombstone {
        status: http::StatusCode::ACCEPTED,
        why: NotRetained::Stream,
    };
    timed.settle(timed.claim(2).await, tombstone).await;
    timed
        .settle(timed.claim(3).await, Settlement::Unknown)
        .await;
    timed
        .settle(timed.claim(4).await, Settlement::Release)
        .await;
    let mut before = Vec::new();
    for record in 1..4 {
        before.push(timed.meets(record).await);
    }
    for _ in 0..3 {
        timed.restart();
        assert_eq!(timed.store().levels().records, 3);
        for (record, met) in (1..).zip(&before) {
            assert_eq!(&timed.meets(record).await, met);
        }
        timed.assert_counted();
    }
    assert_eq!(timed.meets(4).await, Met::Nothing);
}

#[tokio::test]
async fn a_claim_of_a_predecessor_is_unknown_from_the_restart_on() {
    let held = Terms {
        unknown: UnknownOutcome::HoldFor(Duration::from_secs(5)),
        ..terms()
    };
    let mut timed = Timed::new(Setup::default());
    let lost = timed.claim(1).await;
    timed.pass(Duration::from_secs(10)).await;
    timed.restart();
    let met = |begun: Result<Begin, StoreError>| match begun {
        Ok(Begin::Found(found)) => Met::from(&found),
        other => panic!("{other:?}"),
    };
    let five = HoldLeft::For(Duration::from_secs(5));
    assert_eq!(met(timed.try_begin(1, &held).await), Met::Unknown(five));
    assert_eq!(timed.meets(1).await, Met::Unknown(HoldLeft::Forever));
    // Another restart does not begin the hold anew, and nobody has the old claim.
    timed.pass(Duration::from_secs(2)).await;
    timed.restart();
    let three = HoldLeft::For(Duration::from_secs(3));
    assert_eq!(met(timed.try_begin(1, &held).await), Met::Unknown(three));
    assert_eq!(timed.renew(&lost, &held).await, Held::Lost);
    timed.pass(Duration::from_secs(3)).await;
    let again = timed.try_begin(1, &held).await;
    assert!(matches!(again, Ok(Begin::Claimed(_))), "{again:?}");
    timed.assert_counted();
}

#[tokio::test]
async fn a_claim_that_had_lapsed_before_is_unknown_since_then() {
    let held = Terms {
        unknown: UnknownOutcome::HoldFor(Duration::from_secs(5)),
        ..terms()
    };
    let mut timed = Timed::new(Setup::default());
    drop(timed.claim(1).await);
    timed.pass(Duration::from_secs(63)).await;
    timed.restart();
    let begun = timed.try_begin(1, &held).await;
    let Ok(Begin::Found(found)) = begun else {
        panic!("{begun:?}")
    };
    let two = HoldLeft::For(Duration::from_secs(2));
    assert_eq!(Met::from(&found), Met::Unknown(two));
}

#[tokio::test]
async fn with_release_a_restart_frees_what_ran() {
    let release = Terms {
        unknown: UnknownOutcome::Release,
        ..terms()
    };
    let mut timed = Timed::new(Setup::default());
    assert!(matches!(
        timed.try_begin(1, &release).await,
        Ok(Begin::Claimed(_))
    ));
    timed.restart();
    assert!(matches!(
        timed.try_begin(1, &release).await,
        Ok(Begin::Claimed(_))
    ));
}

#[tokio::test]
async fn a_thousand_claims_are_found() {
    let mut timed = Timed::new(Setup::default());
    let claims = (0..1200).map(|record| timed.claim(record));
    for claim in claims.collect::<Vec<_>>() {
        drop(claim.await);
    }
    assert_eq!(timed.store().levels().claims, 1200);
    timed.restart();
    assert_eq!(timed.store().levels().claims, 0);
    assert_eq!(counted(&timed.path()), [0, 1200, 0, 0, 0]);
    assert_eq!(timed.meets(1199).await, Met::Unknown(HoldLeft::Forever));
}

#[tokio::test]
async fn retention_and_refusal_go_on_over_restarts() {
    let refusing = Terms {
        retention: Duration::from_secs(50),
        after_expiry: AfterExpiry::RefuseFor(Duration::from_secs(100)),
        ..terms()
    };
    let mut timed = Timed::new(Setup::default());
    let Ok(Begin::Claimed(claim)) = timed.try_begin(1, &refusing).await else {
        panic!("nothing stands in the way")
    };
    let done = Settlement::Complete(answer(b"1"));
    let settled = timed.store().settle(claim, done, &refusing).await;
    assert!(matches!(settled, Ok(Settled::Kept(_))), "{settled:?}");
    timed.pass(Duration::from_millis(49_999)).await;
    timed.restart();
    assert!(matches!(timed.meets(1).await, Met::Complete(..)));
    timed.pass(Duration::from_millis(1)).await;
    timed.restart();
    assert_eq!(timed.meets(1).await, Met::Expired);
    timed.sweep().await;
    assert_eq!(counted(&timed.path()), [0, 0, 0, 0, 1]);
    timed.pass(Duration::from_millis(99_999)).await;
    timed.restart();
    assert_eq!(timed.meets(1).await, Met::Expired);
    timed.pass(Duration::from_millis(1)).await;
    timed.restart();
    assert_eq!(timed.meets(1).await, Met::Nothing);
}

#[tokio::test]
async fn time_goes_on_where_it_ended_even_if_the_wall_clock_was_set_back() {
    let timed = Timed::new(Setup {
        clock: ManualClock::at(wall().after(Duration::from_hours(48))),
        ..Setup::default()
    });
    timed.execute(1, 10).await;
    let (last, path) = (timed.setup.clock.now(), timed.path());
    let Timed { store, folder, .. } = timed;
    drop(store);
    let settings = Settings {
        path: path.clone(),
        max_bytes: 64 << 20,
    };
    let metrics = Metrics::new(&[]).store("disk");
    let store = DiskStore::open(&settings, CACHE, None, metrics).expect("it opens");
    assert!(store.shared.clock.now() >= last);
    let record = store
        .read(&id(1))
        .await
        .expect("it can be read")
        .expect("it is there");
    assert!(!transition::expired(&record, store.shared.clock.now()));
    drop((store, folder));
}

/// Run by hand: how long a start takes does not depend on how many records there are.
#[tokio::test]
#[ignore = "writes some hundred megabytes"]
async fn a_million_records_are_open_in_a_moment() {
    let mut timed = Timed::new(Setup {
        max_bytes: 4 << 30,
        ..Setup::default()
    });
    timed.execute(1, 300).await;
    timed.store = None;
    let database = rusqlite::Connection::open(timed.path().join("records.db")).expect("a database");
    database
        .execute_batch(
            "BEGIN; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
             INSERT INTO record SELECT randomblob(32), state, token, route, started_at + i, due_at + i, head, answer FROM record, n;
             UPDATE house SET complete = complete + 1000000; COMMIT;",
        )
        .expect("a million rows");
    drop(database);
    let started = Instant::now();
    timed.restart();
    println!("open after {:?}", started.elapsed());
    assert_eq!(timed.store().levels().records, 1_000_001);
    let started = Instant::now();
    assert!(matches!(timed.meets(1).await, Met::Complete(..)));
    println!("a cold replay after {:?}", started.elapsed());
    let started = Instant::now();
    for record in 10..1010 {
        timed.execute(record, 300).await;
    }
    println!(
        "1000 executions one after the other: {:?}",
        started.elapsed()
    );
}

/// As the first format had them.
const INDEXES_OF_FORMAT_1: &str = "
DROP INDEX record_claim;
DROP INDEX record_due;
DROP INDEX record_state;
CREATE INDEX record_due ON record (due_at);
CREATE INDEX record_state ON record (state, started_at);
CREATE INDEX record_route ON record (route, state, started_at);
PRAGMA user_version = 1;
";

#[tokio::test]
async fn a_database_of_the_first_format_goes_on_as_one_of_this() {
    let mut timed = Timed::new(Setup::default());
    let indexes = |path: &Path| {
        let database = rusqlite::Connection::open(path.join("records.db")).expect("a database");
        let all = "SELECT sql FROM sqlite_schema WHERE type = 'index' ORDER BY name";
        let mut all = database.prepare(all).expect("SQL");
        let all = all.query_map([], |row| row.get::<_, String>(0));
        all.expect("rows")
            .map(|sql| sql.expect("text"))
            .collect::<Vec<_>>()
    };
    timed.execute(1, 100).await;
    let claim = timed.claim(2).await;
    timed.store = None;
    let new = indexes(&timed.path());
    {
        let database = rusqlite::Connection::open(timed.path().join("records.db"));
        let database = database.expect("a database");
        database
            .execute_batch(INDEXES_OF_FORMAT_1)
            .expect("the old indexes");
    }
    assert_ne!(indexes(&timed.path()), new);
    timed.restart();
    assert_eq!(indexes(&timed.path()), new);
    assert!(matches!(timed.meets(1).await, Met::Complete(..)));
    assert_eq!(timed.meets(2).await, Met::Unknown(HoldLeft::Forever));
    drop(claim);
    timed.assert_counted();
    // And a claim of its own is found by the index that has claims.
    let _own = timed.claim(3).await;
    timed.restart();
    assert_eq!(timed.meets(3).await, Met::Unknown(HoldLeft::Forever));
}
