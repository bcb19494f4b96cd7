//! Redis servers that change places, and slots that move, under load: every key is executed once, and its answer is found again.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Answer, Cluster, Proxy, Request, Upstream, Watched, eventually, executed, key, marker, problem,
    replayed, sleep_ms,
};

/// Sends new keys through two proxies until it is told to stop; each is asked for again until it has its answer.
struct Load<'a> {
    proxies: &'a [Proxy; 2],
    stop: AtomicBool,
    answered: Mutex<BTreeMap<String, Answer>>,
}

impl<'a> Load<'a> {
    const CLIENTS: usize = 4;

    fn new(proxies: &'a [Proxy; 2]) -> Self {
        Self {
            proxies,
            stop: AtomicBool::new(false),
            answered: Mutex::default(),
        }
    }

    /// While `work` is done; then a little longer, until all proxies are ready.
    fn during(&self, work: impl FnOnce()) {
        thread::scope(|scope| {
            for client in 0..Self::CLIENTS {
                scope.spawn(move || {
                    while !self.stop.load(Relaxed) {
                        self.one(client);
                    }
                });
            }
            // Also when something is not as it should be.
            let _stop = Stop(&self.stop);
            self.more();
            work();
            for proxy in self.proxies {
                eventually("it is ready", || proxy.ready() == Some(200));
            }
            self.more();
        });
    }

    /// Waits until more keys have been answered.
    fn more(&self) {
        let before = self.answered.lock().expect("no panic").len();
        eventually("keys are answered", || {
            self.answered.lock().expect("no panic").len() >= before + 20
        });
    }

    fn one(&self, client: usize) {
        let key = key();
        let request = Request::order(&key);
        for tries in 0.. {
            let answer = self.proxies[(client + tries) % 2].send(&request);
            match answer.status {
                201 => {
                    self.answered.lock().expect("no panic").insert(key, answer);
                    return;
                }
                409 | 503 => sleep_ms(20),
                _ => panic!("{answer}"),
            }
            assert!(tries < 1500, "{answer}");
        }
    }

    /// Every key's first answer is told again, by either proxy.
    fn told_again(&self) {
        for (key, first) in &*self.answered.lock().expect("no panic") {
            for proxy in self.proxies {
                let answer = proxy.send(&Request::order(key));
                assert_eq!(marker(&answer), Some("hit"), "{key}: {answer}");
                assert_eq!(answer.body, first.body, "{key}");
            }
        }
    }

    fn keys(&self) -> usize {
        self.answered.lock().expect("no panic").len()
    }
}

/// Ends the load.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn pair(upstream: &Upstream, settings: &str) -> [Proxy; 2] {
    [(); 2].map(|()| Proxy::with(upstream, settings))
}

#[test]
fn a_failover_of_a_master_that_is_well_runs_nothing_twice() {
    let (upstream, watched) = (Upstream::start(), Watched::start(""));
    let proxies = pair(&upstream, &watched.settings(""));
    let load = Load::new(&proxies);
    load.during(|| {
        watched.fail_over();
        eventually("the replica is the master", || {
            watched.servers[1].info("role") == "master"
        });
        for proxy in &proxies {
            eventually("it has changed over", || {
                proxy.log().matches("Redis is connected").count() > 1
            });
        }
    });
    load.told_again();
    assert_eq!(upstream.executions(), load.keys());
}

#[test]
fn what_has_reached_the_replica_of_a_master_that_dies_is_kept() {
    let (upstream, mut watched) = (Upstream::start(), Watched::start(""));
    let proxies = pair(&upstream, &watched.settings(""));
    let before: Vec<_> = (0..20)
        .map(|_| {
            let request = Request::order(&key());
            let answer = executed(proxies[0].send(&request));
            (request, answer)
        })
        .collect();
    let offset = watched.servers[0].info("master_repl_offset");
    let offset: u64 = offset.parse().expect("a number");
    eventually("the replica has it", || {
        let has = watched.servers[1].info("slave_repl_offset");
        has.parse::<u64>().is_ok_and(|has| has >= offset)
    });
    let load = Load::new(&proxies);
    load.during(|| {
        watched.servers[0].kill();
        // Nobody is the master for a while, and that is known.
        eventually("it is not ready", || proxies[0].ready() == Some(503));
        problem(
            &proxies[0].send(&Request::order(&key())),
            "store-unavailable",
        );
        eventually("the replica is the master", || {
            watched.servers[1].info("role") == "master"
        });
    });
    for (request, first) in &before {
        for proxy in &proxies {
            replayed(&proxy.send(request), first);
        }
    }
    // What the replica had not been told yet may run again: what was under way, and no more.
    let twice = upstream.executions() - before.len() - load.keys();
    assert!(twice <= Load::CLIENTS, "{twice} ran twice");
    // The old master comes back, and is not believed.
    watched.servers[0].restart();
    for proxy in &proxies {
        replayed(&proxy.send(&before[0].0), &before[0].1);
        executed(proxy.send(&Request::order(&key())));
    }
}

#[test]
fn sentinels_that_want_a_password_get_the_servers_and_one_that_hangs_is_passed_over() {
    let (upstream, watched) = (Upstream::start(), Watched::start("hunter2"));
    watched.freeze_a_sentinel();
    let proxy = Proxy::with(&upstream, &watched.settings("hunter2"));
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    assert!(!proxy.log().contains("hunter2"), "{}", proxy.log());
}

#[test]
fn slots_that_move_under_load_lose_nothing() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let proxies = pair(&upstream, &cluster.settings());
    let load = Load::new(&proxies);
    let masters = cluster.masters();
    load.during(|| {
        cluster.reshard(masters[0], masters[1], 300);
        cluster.agree();
    });
    load.told_again();
    assert_eq!(upstream.executions(), load.keys());
}

#[test]
fn a_replica_that_takes_over_in_order_loses_nothing() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let proxies = pair(&upstream, &cluster.settings());
    let load = Load::new(&proxies);
    let replica = cluster.replica_of(cluster.masters()[0]);
    load.during(|| {
        // Redis gives a try up after 5 s, as on a machine that does too much else.
        let mut asked: Option<Instant> = None;
        eventually("it is a master", || {
            if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
                cluster.nodes[replica].ask(&["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            cluster.nodes[replica].info("role") == "master"
        });
        cluster.agree();
    });
    load.told_again();
    assert_eq!(upstream.executions(), load.keys());
}

#[test]
fn a_shard_that_dies_is_named_and_its_replica_takes_over() {
    let (upstream, mut cluster) = (Upstream::start(), Cluster::start());
    let proxies = pair(&upstream, &cluster.settings());
    let dead = cluster.masters()[0];
    let port = cluster.nodes[dead].port().to_string();
    let before: Vec<_> = (0..30)
        .map(|_| {
            let request = Request::order(&key());
            let answer = executed(proxies[0].send(&request));
            (request, answer)
        })
        .collect();
    let replica = cluster.replica_of(dead);
    let offset = cluster.nodes[dead].info("master_repl_offset");
    let offset: u64 = offset.parse().expect("a number");
    eventually("the replica has it", || {
        let has = cluster.nodes[replica].info("slave_repl_offset");
        has.parse::<u64>().is_ok_and(|has| has >= offset)
    });
    cluster.nodes[dead].kill();
    let shard = format!("shard 127.0.0.1:{port}");
    eventually("it is named", || {
        let answer = proxies[0].admin(&Request::get("/readyz"));
        answer.status == 503
            && answer.json()["store"]
                .as_str()
                .is_some_and(|told| told.contains(&shard))
    });
    // The others work meanwhile.
    let mut answers = before.iter().map(|(request, _)| proxies[1].send(request));
    assert!(answers.any(|answer| answer.status == 201));
    for proxy in &proxies {
        eventually("it is ready", || proxy.ready() == Some(200));
        for (request, first) in &before {
            replayed(&proxy.send(request), first);
        }
    }
    assert_eq!(upstream.executions(), before.len());
}
