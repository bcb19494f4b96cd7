//! One key, one execution: copies at once and in turn, joiners, and clients that go away.

use crate::common::{
    Client, Gate, Proxy, Request, Step, Upstream, executed, key, marker, problem, replayed, reply,
    retry_after, sleep_ms,
};

pub(crate) const CONFLICT: &str = "policy.in_flight = 'conflict'";

/// Sends `request` and waits until the upstream holds it at a gate.
pub(crate) fn leader(proxy: &Proxy, upstream: &Upstream, request: &Request) -> (Client, Gate) {
    let gate = upstream.hold(Step::default());
    let client = proxy.begin(request);
    gate.arrived();
    (client, gate)
}

/// Sends a copy that is to join, and waits until `waiting` do.
pub(crate) fn joiner(proxy: &Proxy, request: &Request, waiting: f64) -> Client {
    let client = proxy.begin(request);
    proxy.await_metric("idem_proxy_waiters", &[], waiting);
    client
}

#[test]
fn a_write_runs_once_and_its_retries_are_replayed() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    assert_eq!((first.status, first.execution()), (201, 1));
    for _ in 0..10 {
        replayed(&proxy.send(&request), &first);
    }
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn the_same_request_under_other_keys_runs_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for execution in 1..=5 {
        assert_eq!(
            executed(proxy.send(&Request::order(&key()))).execution(),
            execution
        );
    }
}

#[test]
fn a_hundred_copies_at_once_are_one_execution() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut clients: Vec<_> = (0..100).map(|_| proxy.begin(&request)).collect();
    gate.arrived();
    proxy.await_metric("idem_proxy_waiters", &[], 99.0);
    gate.open();
    let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
    let misses = answers
        .iter()
        .filter(|answer| marker(answer) == Some("miss"))
        .count();
    let hits = answers
        .iter()
        .filter(|answer| marker(answer) == Some("hit"))
        .count();
    assert_eq!((misses, hits), (1, 99));
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 201 && answer.body == answers[0].body)
    );
    assert_eq!((upstream.executions(), upstream.connections()), (1, 1));
    proxy.await_metric("idem_proxy_waiters", &[], 0.0);
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
}

#[test]
fn copies_that_race_without_any_order_are_one_execution_each_time() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for round in 1..=40 {
        let request = Request::order(&key());
        let mut clients: Vec<_> = (0..8).map(|_| proxy.client()).collect();
        for client in &mut clients {
            client.ask(&request);
        }
        let answers: Vec<_> = clients.iter_mut().map(Client::answer).collect();
        assert!(
            answers.iter().all(|answer| answer.body == answers[0].body),
            "{answers:?}"
        );
        assert_eq!(
            answers
                .iter()
                .filter(|answer| marker(answer) == Some("miss"))
                .count(),
            1
        );
        assert_eq!(upstream.executions(), round);
    }
}

#[test]
fn different_keys_run_side_by_side() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let gate = Gate::new();
    upstream.always(Step::default().behind(&gate));
    let mut clients: Vec<_> = (0..20)
        .map(|_| proxy.begin(&Request::order(&key())))
        .collect();
    gate.arrivals(20);
    gate.open();
    for client in &mut clients {
        executed(client.answer());
    }
}

#[test]
fn with_conflict_a_copy_is_told_to_come_back() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.in_flight = 'conflict'\npolicy.retry_after = '3s'",
    );
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let busy = proxy.send(&request);
    let document = problem(&busy, "in-flight");
    assert_eq!(retry_after(&busy), 3);
    let record = document["record"]
        .as_str()
        .expect("the problem names its record");
    assert!(
        record.len() == 16
            && record
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
        "{record}"
    );
    gate.open();
    let first = executed(first.answer());
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn another_request_under_a_running_key_is_refused_at_once() {
    let upstream = Upstream::start();
    for (settings, slug) in [
        ("", "key-reused"),
        (CONFLICT, "key-reused"),
        ("policy.mismatch_in_flight = 'conflict'", "in-flight"),
    ] {
        let proxy = Proxy::with(&upstream, settings);
        let request = Request::order(&key());
        let (mut first, gate) = leader(&proxy, &upstream, &request);
        problem(&proxy.send(&request.clone().body("{}")), slug);
        gate.open();
        executed(first.answer());
    }
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn a_joiner_that_has_waited_long_enough_gets_a_conflict_and_never_runs() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.wait_timeout = '300ms'");
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let mut second = proxy.begin(&request);
    let late = second.answer();
    problem(&late, "in-flight");
    assert!(retry_after(&late) >= 1);
    gate.open();
    executed(first.answer());
    assert_eq!(upstream.executions(), 1);
}

#[test]
pub(crate) fn joiners_share_an_answer_that_is_not_stored() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let gate = upstream.hold(reply(503).body("busy").header("Retry-After", "9"));
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = joiner(&proxy, &request, 1.0);
    gate.open();
    for answer in [first.answer(), second.answer()] {
        assert_eq!(
            (answer.status, answer.body.as_slice(), marker(&answer)),
            (503, &b"busy"[..], None)
        );
        assert_eq!(answer.one("Retry-After"), Some("9"));
    }
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
pub(crate) fn joiners_of_a_released_answer_that_is_too_large_to_share_get_a_conflict() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '1KiB'");
    let request = Request::order(&key());
    let large = "e".repeat(300_000);
    let gate = upstream.hold(reply(500).body(&large));
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = joiner(&proxy, &request, 1.0);
    gate.open();
    let first = first.answer();
    assert_eq!(
        (first.status, first.body.len(), marker(&first)),
        (500, large.len(), None)
    );
    problem(&second.answer(), "in-flight");
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
pub(crate) fn joiners_of_an_answer_that_is_too_large_to_keep_are_told_so() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '1KiB'");
    let request = Request::order(&key());
    let gate = upstream.hold(reply(201).body("e".repeat(300_000)));
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = joiner(&proxy, &request, 1.0);
    gate.open();
    assert_eq!(executed(first.answer()).body.len(), 300_000);
    assert_eq!(
        problem(&second.answer(), "response-not-retained")["original_status"],
        201
    );
    assert_eq!(upstream.executions(), 1);
}

#[test]
pub(crate) fn joiners_of_a_call_that_fails_get_the_same_failure() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let gate = upstream.hold(Step::drop());
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = joiner(&proxy, &request, 1.0);
    gate.open();
    problem(&first.answer(), "upstream-failed");
    problem(&second.answer(), "upstream-failed");
    problem(&proxy.send(&request), "outcome-unknown");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn more_than_max_waiters_are_refused_at_once_and_the_others_served() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_waiters = 2");
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let mut joined = [joiner(&proxy, &request, 1.0), joiner(&proxy, &request, 2.0)];
    for _ in 0..3 {
        problem(&proxy.send(&request), "in-flight");
    }
    gate.open();
    let first = executed(first.answer());
    for client in &mut joined {
        replayed(&client.answer(), &first);
    }
}

#[test]
fn a_place_among_the_waiters_is_free_again_when_one_gives_up() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.max_waiters = 1\npolicy.wait_timeout = '200ms'",
    );
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    problem(&proxy.send(&request), "in-flight");
    proxy.await_metric("idem_proxy_waiters", &[], 0.0);
    let _second = joiner(&proxy, &request, 1.0);
    gate.open();
    executed(first.answer());
}

#[test]
fn callers_with_the_same_key_never_join_each_other() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let gate = Gate::new();
    upstream.always(Step::default().behind(&gate));
    let mut first = proxy.begin(&request);
    let mut second = proxy.begin(&request.clone().caller("Bearer bob"));
    gate.arrivals(2);
    gate.open();
    let executions = [first.answer(), second.answer()].map(|answer| executed(answer).execution());
    assert!(
        executions == [1, 2] || executions == [2, 1],
        "{executions:?}"
    );
}

#[test]
fn waiters_hold_no_connection_to_the_upstream_and_no_worker() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.workers = 1\nserver.max_executions = 2");
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let mut joined: Vec<_> = (0..50).map(|_| proxy.begin(&request)).collect();
    proxy.await_metric("idem_proxy_waiters", &[], 50.0);
    assert_eq!(upstream.connections(), 1);
    assert_eq!(executed(proxy.send(&Request::order(&key()))).execution(), 2);
    assert_eq!(proxy.send(&Request::get("/free")).status, 200);
    gate.open();
    let first = executed(first.answer());
    for client in &mut joined {
        replayed(&client.answer(), &first);
    }
}

#[test]
fn a_key_in_flight_is_never_pushed_out_of_a_full_store() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.in_flight = 'conflict'\nstore.memory.max_bytes = '128KiB'",
    );
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    upstream.always(reply(201).body("x".repeat(8192)));
    for _ in 0..60 {
        executed(proxy.send(&Request::order(&key())));
    }
    problem(&proxy.send(&request), "in-flight");
    gate.open();
    let first = executed(first.answer());
    replayed(&proxy.send(&request), &first);
}

#[test]
fn a_call_that_outlives_its_lease_is_not_started_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.in_flight = 'conflict'\npolicy.lease = '1s'",
    );
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    for _ in 0..5 {
        sleep_ms(500);
        problem(&proxy.send(&request), "in-flight");
    }
    gate.open();
    let first = executed(first.answer());
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 1);
    assert!(proxy.metrics().sum("idem_proxy_claims_lost_total", &[]) < 0.5);
}
