//! Disks that fail, and come back.

use super::*;
use crate::store::disk::faults::Fault;

/// Waits until the store answers, or does not.
async fn becomes(timed: &Timed, answers: bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while timed.store().answers() != answers {
        assert!(Instant::now() < until, "it never does");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const FAULTS: [Fault; 2] = [Fault::BeforeCommit, Fault::AfterCommit];

#[tokio::test]
async fn a_claim_whose_commit_failed_is_refused_and_blocks_nobody() {
    for fault in FAULTS {
        let timed = Timed::new(Setup::default());
        timed.execute(1, 10).await;
        timed.store().faults.push(fault);
        let refused = timed.try_begin(2, &terms()).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable)),
            "{refused:?}"
        );
        assert!(!timed.store().answers());
        becomes(&timed, true).await;
        timed.assert_counted();
        assert_eq!(timed.meets(2).await, Met::Nothing, "{fault:?}");
        assert!(matches!(timed.meets(1).await, Met::Complete(..)));
    }
}

#[tokio::test]
async fn a_settlement_whose_commit_failed_comes_back_and_is_settled_once() {
    for fault in FAULTS {
        let timed = Timed::new(Setup::default());
        let claim = timed.claim(1).await;
        timed.store().faults.push(fault);
        let done = Settlement::Complete(answer(b"done"));
        let unsettled = timed.store().settle(claim, done, &terms()).await;
        let Unsettled {
            claim,
            settlement,
            why,
        } = unsettled.expect_err("it failed");
        assert_eq!(why, StoreError::Unavailable);
        becomes(&timed, true).await;
        let settled = timed.settle(claim, settlement).await;
        let Settled::Kept(record) = settled else {
            panic!("{fault:?}: {settled:?}")
        };
        assert!(matches!(&record.state, State::Complete(answer) if answer.body() == "done"));
        assert!(matches!(timed.meets(1).await, Met::Complete(..)));
        timed.assert_counted();
    }
}

#[tokio::test]
async fn a_renewal_whose_commit_failed_is_tried_again() {
    for fault in FAULTS {
        let timed = Timed::new(Setup::default());
        let claim = timed.claim(1).await;
        timed.pass(Duration::from_secs(20)).await;
        timed.store().faults.push(fault);
        let renewed = timed.store().renew(&claim, &terms()).await;
        assert_eq!(renewed, Err(StoreError::Unavailable));
        becomes(&timed, true).await;
        assert_eq!(timed.renew(&claim, &terms()).await, Held::Yes);
        assert_eq!(timed.meets(1).await, Met::InFlight(Duration::from_mins(1)));
    }
}

#[tokio::test]
async fn all_who_are_in_a_batch_that_fails_are_told_so() {
    let (timed, terms) = (Timed::new(Setup::default()), terms());
    for fault in FAULTS {
        timed.store().faults.push(fault);
        let begins = (0..20).map(|record| timed.try_begin(record, &terms));
        let outcomes: Vec<_> = futures_all(begins).await;
        let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert!(refused > 0);
        becomes(&timed, true).await;
        timed.assert_counted();
        for (record, outcome) in (0..).zip(outcomes) {
            match outcome {
                Ok(Begin::Claimed(claim)) => {
                    timed.settle(claim, Settlement::Release).await;
                }
                Ok(Begin::Found(found)) => panic!("{found:?}"),
                Err(_) => {
                    let claim = timed.claim(record).await;
                    timed.settle(claim, Settlement::Release).await;
                }
            }
        }
        assert_eq!(timed.store().levels().records, 0);
    }
}

/// Waits for all of them, which run together.
pub(super) async fn futures_all<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.map(|one| (Some(Box::pin(one)), None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (running, ended) in &mut all {
            if let Some(future) = running {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(output) => {
                        *ended = Some(output);
                        *running = None;
                    }
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    all.into_iter().filter_map(|(_, ended)| ended).collect()
}

#[tokio::test]
async fn a_database_that_is_taken_away_is_not_made_anew_and_is_found_when_it_is_back() {
    let mut timed = Timed::new(Setup {
        cache: NO_CACHE,
        ..Setup::default()
    });
    timed.execute(1, 10).await;
    let held = timed.claim(2).await;
    let (store, away) = (timed.path(), timed.folder.path().join("away"));
    std::fs::create_dir(&away).expect("a folder");
    let names = ["records.db", "records.db-wal", "records.db-shm"];
    let carry = |from: &Path, to: &Path| {
        for name in names {
            if from.join(name).exists() {
                std::fs::rename(from.join(name), to.join(name)).expect("it is moved");
            }
        }
    };
    carry(&store, &away);
    becomes(&timed, false).await;
    let refused = timed.try_begin(3, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    assert_eq!(
        timed.store().renew(&held, &terms()).await,
        Err(StoreError::Unavailable)
    );
    // It goes on trying, and makes nothing.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(!store.join("records.db").exists() && !timed.store().answers());
    carry(&away, &store);
    becomes(&timed, true).await;
    assert!(matches!(timed.meets(1).await, Met::Complete(..)));
    assert_eq!(timed.renew(&held, &terms()).await, Held::Yes);
    assert!(is_complete(
        &timed.settle(held, Settlement::Complete(answer(b"2"))).await
    ));
    timed.restart();
    assert!(matches!(timed.meets(2).await, Met::Complete(..)));
}

#[tokio::test]
async fn what_only_the_log_had_is_not_lost_when_the_log_is_taken_away() {
    let mut timed = Timed::new(Setup {
        cache: NO_CACHE,
        ..Setup::default()
    });
    for record in 0..10 {
        timed.execute(record, 10).await;
    }
    std::fs::remove_file(timed.path().join("records.db-wal")).expect("there is a log");
    becomes(&timed, false).await;
    becomes(&timed, true).await;
    for record in 0..10 {
        assert!(
            matches!(timed.meets(record).await, Met::Complete(..)),
            "{record}"
        );
    }
    timed.restart();
    for record in 0..10 {
        assert!(
            matches!(timed.meets(record).await, Met::Complete(..)),
            "{record}"
        );
    }
}

#[tokio::test]
async fn an_older_copy_is_not_taken_for_the_database() {
    let timed = Timed::new(Setup::default());
    let (here, copy) = (timed.path(), timed.folder.path().join("copy"));
    let database = here.join("records.db");
    timed.execute(1, 10).await;
    {
        let reader = rusqlite::Connection::open(&database).expect("ours");
        let sql = format!("VACUUM INTO '{}'", copy.display());
        reader.execute_batch(&sql).expect("a copy");
    }
    timed.execute(2, 10).await;
    let away = timed.folder.path().join("away");
    std::fs::create_dir(&away).expect("a folder");
    let names = ["records.db", "records.db-wal", "records.db-shm"];
    for name in names {
        std::fs::rename(here.join(name), away.join(name)).expect("it is moved");
    }
    std::fs::copy(&copy, &database).expect("it is restored");
    becomes(&timed, false).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(!timed.store().answers());
    let refused = timed.try_begin(3, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    for name in names {
        let _ = std::fs::remove_file(here.join(name));
        let _ = std::fs::rename(away.join(name), here.join(name));
    }
    becomes(&timed, true).await;
    assert!(matches!(timed.meets(2).await, Met::Complete(..)));
}
