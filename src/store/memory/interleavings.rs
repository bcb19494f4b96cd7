//! Every interleaving of a few threads on one record, or a great many of them: who executes, and what others see.
//!
//! shuttle runs the threads one at a time and changes between them wherever a shard is locked.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use shuttle::thread;

use super::*;
use crate::{
    config::OnFull,
    core::{
        fixtures::{answer, id, request, route, terms, token},
        policy::{AfterExpiry, UnknownOutcome},
    },
    store::clock::ManualClock,
};

/// A lock that shuttle knows of.
struct Watched(shuttle::sync::Mutex<Shard>);

impl ShardLock for Watched {
    fn new(shard: Shard) -> Self {
        Self(shuttle::sync::Mutex::new(shard))
    }

    fn with<R>(&self, work: impl FnOnce(&mut Shard) -> R) -> R {
        work(&mut self.0.lock().expect("no thread panicked"))
    }
}

type Store = MemoryStore<ManualClock, Watched>;

/// One store, and what the threads that share it have seen.
struct Scene {
    store: Store,
    clock: ManualClock,
    terms: Terms,
    running: AtomicU32,
    executions: AtomicU32,
}

impl Scene {
    fn new(terms: Terms) -> Arc<Self> {
        Self::within(None, terms)
    }

    fn within(max_records: Option<u64>, terms: Terms) -> Arc<Self> {
        let limits = MemoryLimits {
            max_bytes: 1 << 20,
            max_records,
            max_claims: 10,
            on_full: OnFull::Evict,
        };
        let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
        Arc::new(Self {
            store: Store::with_clock(limits, clock.clone()),
            clock,
            terms,
            running: AtomicU32::new(0),
            executions: AtomicU32::new(0),
        })
    }

    fn begin(&self, n: u64) -> Begin {
        self.begin_on(1, n)
    }

    fn begin_on(&self, record: u64, n: u64) -> Begin {
        let (fingerprint, route) = (request("a"), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &self.terms,
            route: &route,
        };
        self.store.begin(&id(record), &ask, token(n)).expect("room")
    }

    fn look(&self) -> Option<Found> {
        self.look_at(1)
    }

    fn look_at(&self, record: u64) -> Option<Found> {
        let (fingerprint, route) = (request("a"), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &self.terms,
            route: &route,
        };
        self.store.look(&id(record), &ask)
    }

    /// Runs the operation if it may, and settles; whether it ran.
    fn execute(&self, n: u64, settlement: Settlement) -> bool {
        let Begin::Claimed(claim) = self.begin(n) else {
            return false;
        };
        assert_eq!(
            self.running.fetch_add(1, Ordering::SeqCst),
            0,
            "two execute at a time"
        );
        thread::yield_now();
        assert_eq!(self.store.renew(&claim, &self.terms), Held::Yes);
        thread::yield_now();
        self.executions.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_sub(1, Ordering::SeqCst);
        assert!(!matches!(
            self.store.settle(claim, settlement, &self.terms),
            Settled::Lost
        ));
        true
    }
}

fn complete() -> Settlement {
    Settlement::Complete(answer(b"done"))
}

/// So many random interleavings, and as many that change threads seldom, at the worst places.
fn explore(scene: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(scene.clone(), 1_000);
    shuttle::check_pct(scene, 1_000, 3);
}

#[test]
fn of_three_that_come_at_once_exactly_one_executes() {
    explore(|| {
        let scene = Scene::new(terms());
        let threads: Vec<_> = (1..=3)
            .map(|n| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || scene.execute(n, complete()))
            })
            .collect();
        let ran: Vec<bool> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        assert_eq!(ran.iter().filter(|ran| **ran).count(), 1);
        assert_eq!(scene.executions.load(Ordering::SeqCst), 1);
        assert!(matches!(scene.look(), Some(Found::Complete(_))));
    });
}

#[test]
fn between_claim_and_answer_nobody_ever_finds_nothing() {
    explore(|| {
        let scene = Scene::new(terms());
        let Begin::Claimed(claim) = scene.begin(1) else {
            panic!("the first")
        };
        let onlooker = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || {
                let mut complete = false;
                for _ in 0..4 {
                    match scene.look() {
                        Some(Found::InFlight { .. }) => {
                            assert!(!complete, "a complete record stays complete");
                        }
                        Some(Found::Complete(_)) => complete = true,
                        other => panic!("found {other:?}"),
                    }
                }
            })
        };
        let rival = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || {
                (2..4).for_each(|n| assert!(matches!(scene.begin(n), Begin::Found(_))));
            })
        };
        assert!(matches!(
            scene.store.settle(claim, complete(), &scene.terms),
            Settled::Kept(_)
        ));
        onlooker.join().expect("no panic");
        rival.join().expect("no panic");
    });
}

#[test]
fn a_released_key_is_executed_again_by_one_at_a_time() {
    explore(|| {
        let scene = Scene::new(terms());
        let threads: Vec<_> = (1..=3)
            .map(|n| {
                let scene = Arc::clone(&scene);
                let settlement = if n == 3 {
                    complete()
                } else {
                    Settlement::Release
                };
                thread::spawn(move || scene.execute(n, settlement))
            })
            .collect();
        let ran: Vec<bool> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        assert!(ran.contains(&true));
        match scene.look() {
            Some(Found::Complete(_)) => assert!(ran[2]),
            None => assert!(!ran[2]),
            other => panic!("found {other:?}"),
        }
    });
}

#[test]
fn of_two_that_take_a_lapsed_claim_one_gets_it_and_its_late_holder_does_not_disturb() {
    explore(|| {
        let scene = Scene::new(Terms {
            unknown: UnknownOutcome::Release,
            ..terms()
        });
        let Begin::Claimed(late) = scene.begin(9) else {
            panic!("the first")
        };
        scene.clock.pass(scene.terms.lease);
        let takers: Vec<_> = (1..=2)
            .map(|n| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || scene.execute(n, complete()))
            })
            .collect();
        let settled = scene.store.settle(late, complete(), &scene.terms);
        let ran: Vec<bool> = takers
            .into_iter()
            .map(|taker| taker.join().expect("no panic"))
            .collect();
        // Either the late holder settled before anybody took its claim, or one of the two did.
        let late_in_time = u32::from(!matches!(settled, Settled::Lost));
        assert_eq!(scene.executions.load(Ordering::SeqCst) + late_in_time, 1);
        assert_eq!(
            ran.iter().filter(|ran| **ran).count(),
            usize::from(late_in_time == 0)
        );
        assert!(matches!(scene.look(), Some(Found::Complete(_))));
    });
}

#[test]
fn an_expired_answer_is_executed_again_once() {
    explore(|| {
        let scene = Scene::new(terms());
        assert!(scene.execute(9, complete()));
        scene.clock.pass(scene.terms.retention);
        let threads: Vec<_> = (1..=2)
            .map(|n| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || scene.execute(n, complete()))
            })
            .collect();
        let ran: Vec<bool> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        assert_eq!(ran.iter().filter(|ran| **ran).count(), 1);
        assert!(matches!(scene.look(), Some(Found::Complete(_))));
        assert_eq!(scene.store.levels().records, 1);
    });
}

#[test]
fn answers_that_come_at_once_leave_the_store_within_its_bounds() {
    explore(|| {
        let scene = Scene::within(Some(2), terms());
        let threads: Vec<_> = (1..=3)
            .map(|n| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || {
                    for record in [n, n + 10] {
                        let Begin::Claimed(claim) = scene.begin_on(record, record) else {
                            panic!("nobody else asks for {record}")
                        };
                        let settled = scene.store.settle(claim, complete(), &scene.terms);
                        assert!(matches!(settled, Settled::Kept(_)));
                        // Each of the two others may have one more, claimed or being settled.
                        let records = scene.store.levels().records;
                        assert!(records <= 2 + 2, "{records} records");
                        // Used again, or evicted by now.
                        let _ = scene.look_at(record);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let levels = scene.store.levels();
        assert_eq!((levels.records, levels.claims), (2, 0));
        assert_eq!(scene.store.evictions(Eviction::Size), 4);
        // Whoever comes last has its place, and the one before is not pushed out for it.
        let left: Vec<u64> = [1, 2, 3, 11, 12, 13]
            .into_iter()
            .filter(|record| scene.look_at(*record).is_some())
            .collect();
        assert_eq!(left.len(), 2);
        let Begin::Claimed(claim) = scene.begin_on(20, 20) else {
            panic!("it is new")
        };
        let _ = scene.store.settle(claim, complete(), &scene.terms);
        assert!(scene.look_at(20).is_some() && scene.look_at(left[1]).is_some());
        assert!(
            scene.look_at(left[0]).is_none(),
            "it was used before the other"
        );
    });
}

#[test]
fn while_a_marker_is_put_over_an_expired_answer_nobody_executes() {
    explore(|| {
        let scene = Scene::new(Terms {
            after_expiry: AfterExpiry::RefuseFor(Duration::from_secs(10)),
            ..terms()
        });
        assert!(scene.execute(1, complete()));
        scene.clock.pass(Duration::from_hours(24));
        let threads: Vec<_> = (2..=4)
            .map(|n| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || {
                    if n == 4 {
                        scene.store.sweep();
                    }
                    assert!(matches!(scene.look(), Some(Found::Expired)));
                    assert!(matches!(scene.begin(n), Begin::Found(Found::Expired)));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let levels = scene.store.levels();
        assert_eq!((levels.records, levels.bytes), (1, 400));
    });
}
