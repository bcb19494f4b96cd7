//! Several proxies on one Redis: one execution whichever of them is asked, fencing, and what happens when Redis does not do its part.

use std::{sync::Barrier, thread};

use crate::common::{
    Gate, Proxy, Redis, Request, Step, Upstream, eventually, executed, key, marker, problem,
    replayed, reply, sleep_ms,
};

fn settings(redis: &Redis, more: &str) -> String {
    format!(
        "store.kind = 'redis'\nstore.redis.url = '{}'\nstore.redis.timeout = '1s'\n{more}",
        redis.url()
    )
}

fn pair(upstream: &Upstream, redis: &Redis, more: &str) -> [Proxy; 2] {
    [(); 2].map(|()| Proxy::with(upstream, &settings(redis, more)))
}

#[test]
fn copies_over_two_proxies_are_one_execution_each_time() {
    const KEYS: usize = 5;
    const COPIES: usize = 200;
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxies = pair(&upstream, &redis, "");
    for round in 1..=KEYS {
        let (request, gate, start) = (Request::order(&key()), Gate::new(), Barrier::new(COPIES));
        upstream.then(Step::from(reply(201)).behind(&gate));
        let answers: Vec<_> = thread::scope(|scope| {
            let (request, start, proxies) = (&request, &start, &proxies);
            let ask = |n: usize| {
                scope.spawn(move || {
                    start.wait();
                    proxies[n % 2].send(request)
                })
            };
            let asked: Vec<_> = (0..COPIES).map(ask).collect();
            gate.arrived();
            gate.open();
            asked
                .into_iter()
                .map(|one| one.join().expect("it ends"))
                .collect()
        });
        let first = answers
            .iter()
            .find(|answer| marker(answer) == Some("miss"))
            .expect("one of them was executed");
        for answer in &answers {
            assert_eq!((answer.status, &answer.body), (201, &first.body));
        }
        let misses = answers
            .iter()
            .filter(|answer| marker(answer) == Some("miss"));
        assert_eq!(misses.count(), 1);
        assert_eq!(upstream.executions(), round);
    }
}

#[test]
#[ignore = "a hundred thousand requests"]
fn five_hundred_keys_in_two_hundred_copies_each_are_five_hundred_executions() {
    const KEYS: usize = 500;
    const COPIES: usize = 200;
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxies = pair(&upstream, &redis, "");
    let (keys, start) = ([(); KEYS].map(|()| key()), Barrier::new(COPIES));
    thread::scope(|scope| {
        for n in 0..COPIES {
            let (keys, start, proxy) = (&keys, &start, &proxies[n % 2]);
            scope.spawn(move || {
                let mut client = proxy.client();
                for key in keys {
                    start.wait();
                    let answer = client.ask(&Request::order(key)).answer();
                    assert_eq!(answer.status, 201, "{answer}");
                }
            });
        }
    });
    assert_eq!(upstream.executions(), KEYS);
    let outcomes = |outcome| {
        let one = |proxy: &Proxy| {
            let metrics = proxy.metrics();
            metrics.sum("idem_proxy_requests_total", &[("outcome", outcome)])
        };
        proxies.iter().map(one).sum::<f64>()
    };
    assert!((outcomes("miss") - 500.0).abs() < 0.5);
    assert!((outcomes("joined") + outcomes("hit") - 99_500.0).abs() < 0.5);
}

#[test]
fn a_joiner_elsewhere_gets_the_answer_or_a_conflict_and_never_runs() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let [one, other] = pair(&upstream, &redis, "");
    for (status, stored) in [(201, true), (503, false)] {
        let (request, gate) = (Request::order(&key()), Gate::new());
        upstream.then(Step::from(reply(status)).behind(&gate));
        let mut leader = one.begin(&request);
        gate.arrived();
        let mut joiner = other.begin(&request);
        other.await_metric("idem_proxy_waiters", &[], 1.0);
        let elsewhere = other.send(&request.clone().body("{\"other\":1}"));
        problem(&elsewhere, "key-reused");
        gate.open();
        let (first, shared) = (leader.answer(), joiner.answer());
        assert_eq!(first.status, status);
        if stored {
            replayed(&shared, &first);
        } else {
            problem(&shared, "in-flight");
        }
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_late_holder_writes_nothing_over_what_is_anothers() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let more =
        "policy.lease = '1s'\npolicy.unknown_outcome = 'release'\npolicy.in_flight = 'conflict'";
    let [one, other] = pair(&upstream, &redis, more);
    let (request, gate) = (Request::order(&key()), Gate::new());
    upstream.then(Step::from(reply(201)).behind(&gate));
    let mut late = one.begin(&request);
    gate.arrived();
    one.signal("STOP");
    let mut second = None;
    eventually("the claim lapses", || {
        let answer = other.send(&request);
        let taken = answer.status == 201;
        second = taken.then_some(answer);
        taken
    });
    let second = executed(second.expect("it was taken over"));
    gate.open();
    one.signal("CONT");
    assert_eq!(late.answer().status, 201, "its own client has its answer");
    one.await_metric("idem_proxy_claims_lost_total", &[], 1.0);
    for proxy in [&one, &other] {
        replayed(&proxy.send(&request), &second);
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_call_outlives_a_redis_that_does_not_answer_and_its_answer_is_stored_later() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let [one, other] = pair(&upstream, &redis, "policy.in_flight = 'conflict'");
    let (request, gate) = (Request::order(&key()), Gate::new());
    upstream.then(Step::from(reply(201)).behind(&gate));
    let mut running = one.begin(&request);
    gate.arrived();
    redis.freeze();
    gate.open();
    let first = running.answer();
    assert_eq!(first.status, 201);
    problem(&other.send(&Request::order(&key())), "store-unavailable");
    eventually("it is not ready", || other.ready() == Some(503));
    assert_eq!(
        other.send(&Request::write("POST", "/orders")).status,
        201,
        "no key, no store"
    );
    redis.thaw();
    eventually("it is ready", || other.ready() == Some(200));
    eventually("the answer is stored", || {
        marker(&other.send(&request)) == Some("hit")
    });
    one.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "complete")],
        1.0,
    );
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_claim_that_is_found_lost_when_its_answer_is_saved_again_is_counted_once() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    let (request, gate) = (Request::order(&key()), Gate::new());
    upstream.then(Step::from(reply(201)).behind(&gate));
    let mut running = proxy.begin(&request);
    gate.arrived();
    let name = redis.ask(&["KEYS", "idem:*"]);
    assert_eq!(redis.ask(&["DEL", &name]), "1");
    redis.freeze();
    gate.open();
    assert_eq!(running.answer().status, 201);
    redis.thaw();
    let lost = "idem_proxy_claims_lost_total";
    proxy.await_metric(lost, &[], 1.0);
    // The key is free; the next request is another claim, and its end no other loss.
    executed(proxy.send(&request));
    assert!((proxy.metrics().sum(lost, &[]) - 1.0).abs() < 0.5);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_claim_whose_lease_may_have_ended_begins_nothing() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let patient =
        settings(&redis, "policy.lease = '1s'").replace("timeout = '1s'", "timeout = '20s'");
    let proxy = Proxy::with(&upstream, &patient);
    let request = Request::order(&key());
    redis.freeze();
    let mut claiming = proxy.begin(&request);
    // The server gives the claim when it goes on, and says so at once; for all that the proxy knows it was given a lease ago.
    sleep_ms(1300);
    redis.thaw();
    problem(&claiming.answer(), "store-unavailable");
    assert_eq!(upstream.executions(), 0);
    // The claim was let go: the next request is executed.
    executed(proxy.send(&request));
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn an_answer_that_redis_never_takes_is_executed_once_and_not_replayed() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    // The least that it can be told to take at once, which is as much as an answer may have by default, without its head.
    assert_eq!(
        redis.ask(&["CONFIG", "SET", "proto-max-bulk-len", "1mb"]),
        "OK"
    );
    let request = Request::order(&key());
    upstream.then(reply(201).body("x".repeat(1 << 20)));
    assert_eq!(proxy.send(&request).status, 201);
    proxy.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "tombstone")],
        1.0,
    );
    problem(&proxy.send(&request), "response-not-retained");
    executed(proxy.send(&Request::order(&key())));
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn many_copies_of_a_call_elsewhere_ask_redis_for_all_and_not_each() {
    const COPIES: usize = 100;
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let [one, other] = pair(&upstream, &redis, "");
    let (request, gate) = (Request::order(&key()), Gate::new());
    upstream.then(Step::from(reply(201)).behind(&gate));
    let mut leader = one.begin(&request);
    gate.arrived();
    let trips = || {
        other
            .metrics()
            .sum("idem_proxy_store_round_trips_total", &[])
    };
    let before = trips();
    let mut copies: Vec<_> = (0..COPIES).map(|_| other.begin(&request)).collect();
    other.await_metric("idem_proxy_waiters", &[], 100.0);
    let elsewhere = other.send(&request.clone().body("{\"other\":1}"));
    problem(&elsewhere, "key-reused");
    gate.open();
    let first = leader.answer();
    for copy in &mut copies {
        replayed(&copy.answer(), &first);
    }
    // Each for itself they would ask three times: to claim, to look, and when they are woken. The connection's own beat is one a second.
    let asked = trips() - before;
    assert!(asked < 150.0, "{asked} round trips");
    let begins = other.metrics().sum(
        "idem_proxy_store_operations_total",
        &[("operation", "begin")],
    );
    assert!(begins < 20.0, "{begins} claims were asked for");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_proxy_starts_before_its_redis() {
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let mut proxy = Proxy::with(&upstream, &settings(&redis, ""));
    redis.kill();
    eventually("it is not ready", || proxy.ready() == Some(503));
    problem(&proxy.send(&Request::order(&key())), "store-unavailable");
    assert!(proxy.runs());
    assert_eq!(upstream.executions(), 0);
    redis.restart();
    eventually("it is ready", || proxy.ready() == Some(200));
    executed(proxy.send(&Request::order(&key())));
    let metrics = proxy.metrics();
    assert!(metrics.sum("idem_proxy_store_reconnects_total", &[]) >= 1.0);
    assert!(metrics.sum("idem_proxy_store_round_trips_total", &[]) >= 1.0);
    assert!(metrics.has("idem_proxy_store_script_misses_total"));
}

#[test]
fn the_outcome_of_a_proxy_that_died_is_unknown_on_the_other() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let [mut one, other] = pair(
        &upstream,
        &redis,
        "policy.lease = '1s'\npolicy.in_flight = 'conflict'",
    );
    let request = Request::order(&key());
    upstream.then(Step::hang());
    let _held = one.begin(&request);
    eventually("it runs", || upstream.executions() == 1);
    one.signal("KILL");
    assert_eq!(one.exit_code(), None);
    let mut last = other.send(&request);
    problem(&last, "in-flight");
    while last.json()["code"] == "IDEMPOTENCY_IN_FLIGHT" {
        sleep_ms(50);
        last = other.send(&request);
    }
    problem(&last, "outcome-unknown");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn what_no_replica_has_in_time_is_not_executed() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let replica = redis.replica();
    let proxy = Proxy::with(
        &upstream,
        &settings(&redis, "store.redis.wait_replicas = 1"),
    );
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    let name = redis.ask(&["KEYS", "idem:*"]);
    assert_eq!(replica.ask(&["EXISTS", &name]), "1");
    replica.freeze();
    problem(&proxy.send(&Request::order(&key())), "store-unavailable");
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 1);
    replica.thaw();
    eventually("it executes again", || {
        proxy.send(&Request::order(&key())).status == 201
    });
}
