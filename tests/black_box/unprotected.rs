//! `on_store_failure = "bypass"`: while the store does not answer, keyed requests are forwarded without its protection, and say so.

use crate::common::{
    Gate, Proxy, Redis, Request, Step, Upstream, eventually, executed, key, marker, problem,
    replayed, reply, unprotected,
};

fn settings(redis: &Redis, more: &str) -> String {
    format!(
        "store.kind = 'redis'\nstore.redis.url = '{}'\nstore.redis.timeout = '1s'\n\
         policy.on_store_failure = 'bypass'\n{more}",
        redis.url()
    )
}

#[test]
fn without_a_store_each_copy_is_forwarded_marked_counted_and_not_kept() {
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    let request = Request::order(&key()).body("{\"n\": 1.0}").chunked();
    redis.kill();
    for n in 1..=3 {
        let answer = proxy.send(&request);
        assert_eq!((answer.status, marker(&answer)), (201, Some("bypass")));
        assert_eq!(answer.execution(), n);
        assert_eq!(upstream.last().body, b"{\"n\": 1.0}");
    }
    proxy.await_metric("idem_proxy_requests_total", &[("outcome", "bypass")], 3.0);
    assert_eq!(proxy.ready(), Some(200), "nobody needs the store");
    proxy.await_metric("idem_proxy_store_up", &[], 0.0);
    // One line a second at most says so.
    let warned = "keyed requests are forwarded unprotected";
    assert!(proxy.log().contains(warned));
    // A failure of the upstream is what it is for an unkeyed request, and has no marker.
    upstream.then(Step::drop());
    let failed = proxy.send(&request);
    unprotected(&failed, "upstream-failed");
    assert_eq!(marker(&failed), None);
    redis.restart();
    proxy.await_metric("idem_proxy_store_up", &[], 1.0);
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 5);
}

#[test]
fn a_store_that_hangs_costs_its_timeout_and_its_claim_blocks_nobody() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    let request = Request::order(&key());
    redis.freeze();
    let answer = proxy.send(&request);
    assert_eq!((answer.status, marker(&answer)), (201, Some("bypass")));
    redis.thaw();
    proxy.await_metric("idem_proxy_store_up", &[], 1.0);
    // The claim that may have been made meanwhile is let go: a retry waits for that at most, and then runs.
    eventually("a retry executes", || {
        marker(&proxy.send(&request)) == Some("miss")
    });
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_full_store_has_answered_and_is_not_bypassed() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    assert_eq!(redis.ask(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    problem(&proxy.send(&Request::order(&key())), "store-full");
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn a_record_that_cannot_be_read_is_a_failure_of_the_store() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let bypassing = Proxy::with(&upstream, &settings(&redis, ""));
    let refusing = Proxy::with(
        &upstream,
        &settings(&redis, "policy.on_store_failure = 'reject'").replacen(
            "policy.on_store_failure = 'bypass'\n",
            "",
            1,
        ),
    );
    let request = Request::order(&key());
    // A record of a later version, by its name alone.
    executed(refusing.send(&request));
    let name = redis.ask(&["KEYS", "idem:*"]);
    assert_eq!(redis.ask(&["HSET", &name, "v", "9"]), "0");
    let other = Proxy::with(&upstream, &settings(&redis, ""));
    assert_eq!(marker(&other.send(&request)), Some("bypass"));
    assert_eq!(marker(&bypassing.send(&request)), Some("bypass"));
    assert_eq!(upstream.executions(), 3);
    assert_eq!(redis.ask(&["HGET", &name, "v"]), "9", "it is left alone");
}

#[test]
fn who_joined_a_call_elsewhere_never_runs_when_the_store_fails_meanwhile() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let more = "policy.wait_timeout = '3s'";
    let [one, other] = [(); 2].map(|()| Proxy::with(&upstream, &settings(&redis, more)));
    let (request, gate) = (Request::order(&key()), Gate::new());
    upstream.then(Step::from(reply(201)).behind(&gate));
    let mut leader = one.begin(&request);
    gate.arrived();
    let mut joiner = other.begin(&request);
    other.await_metric("idem_proxy_waiters", &[], 1.0);
    redis.freeze();
    problem(&joiner.answer(), "in-flight");
    gate.open();
    assert_eq!(leader.answer().status, 201);
    assert_eq!(upstream.executions(), 1);
    redis.thaw();
}

#[test]
fn who_comes_while_others_wait_for_a_call_elsewhere_never_runs_either() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let [one, other] = [(); 2].map(|()| Proxy::with(&upstream, &settings(&redis, "")));
    let (request, gate) = (Request::order(&key()), Gate::new());
    upstream.then(Step::from(reply(201)).behind(&gate));
    let mut leader = one.begin(&request);
    gate.arrived();
    let mut joiner = other.begin(&request);
    other.await_metric("idem_proxy_waiters", &[], 1.0);
    redis.freeze();
    eventually("nothing that the store has said is believed", || {
        other.log().contains("Redis cannot be used")
    });
    let mut late = other.begin(&request);
    other.await_metric("idem_proxy_waiters", &[], 2.0);
    gate.open();
    assert_eq!(leader.answer().status, 201);
    redis.thaw();
    for joined in [&mut joiner, &mut late] {
        let answer = joined.answer();
        assert_eq!((answer.status, answer.execution()), (201, 1), "{answer}");
    }
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_store_that_some_route_needs_makes_the_proxy_not_ready_and_bypasses_on_the_other() {
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let route = |name: &str, path: &str, more: &str| {
        format!("[[route]]\nname = '{name}'\nmethods = ['POST']\npath = '{path}'\n{more}\n")
    };
    let routes = route("orders", "/orders", "")
        + &route("order", "/orders/{id}", "on_store_failure = 'reject'");
    let proxy = Proxy::with(&upstream, &settings(&redis, &routes));
    redis.kill();
    let needing = Request::write("POST", "/orders/1").key(&key());
    problem(&proxy.send(&needing), "store-unavailable");
    let bypassed = proxy.send(&Request::order(&key()));
    assert_eq!(marker(&bypassed), Some("bypass"));
    eventually("it is not ready", || proxy.ready() == Some(503));
    assert_eq!(upstream.executions(), 1);
}

/// A running call of this request whose answer comes when the gate opens, and until then a store that has given the claim.
fn running(
    upstream: &Upstream,
    proxy: &Proxy,
    request: &Request,
    step: Step,
) -> (crate::common::Client, Gate) {
    let gate = Gate::new();
    upstream.then(step.behind(&gate));
    let client = proxy.begin(request);
    gate.arrived();
    (client, gate)
}

#[test]
fn a_retry_is_answered_by_what_this_proxy_could_not_save_yet() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    let request = Request::order(&key());
    let (mut leader, gate) = running(&upstream, &proxy, &request, reply(201).into());
    redis.freeze();
    gate.open();
    let first = leader.answer();
    assert_eq!((first.status, marker(&first)), (201, None), "{first}");
    for _ in 0..3 {
        replayed(&proxy.send(&request), &first);
    }
    let other = request.clone().body("{\"n\": 2}");
    problem(&proxy.send(&other), "key-reused");
    // What is still to be saved is held, and counts.
    let limited = |name, level| {
        proxy.await_metric("idem_proxy_limit_level", &[("limit", name)], level);
    };
    limited("max_executions", 1.0);
    // Of another key nothing is known here.
    let unknown = proxy.send(&Request::order(&key()));
    assert_eq!(marker(&unknown), Some("bypass"));
    assert_eq!(upstream.executions(), 2);
    redis.thaw();
    let settled = "idem_proxy_records_settled_total";
    proxy.await_metric(settled, &[("as", "complete")], 1.0);
    limited("max_executions", 0.0);
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn an_outcome_that_this_proxy_knows_to_be_unknown_is_not_run_again() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Proxy::with(&upstream, &settings(&redis, ""));
    let request = Request::order(&key());
    let (mut leader, gate) = running(&upstream, &proxy, &request, Step::drop());
    redis.freeze();
    gate.open();
    problem(&leader.answer(), "upstream-failed");
    problem(&proxy.send(&request), "outcome-unknown");
    assert_eq!(upstream.executions(), 1);
    redis.thaw();
    let settled = "idem_proxy_records_settled_total";
    proxy.await_metric(settled, &[("as", "unknown")], 1.0);
}

#[test]
fn what_is_released_or_was_too_large_to_keep_is_known_too() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let more = "policy.max_response_body = '1KiB'";
    let proxy = Proxy::with(&upstream, &settings(&redis, more));
    let large = "x".repeat(2000);
    // A released answer may be asked for again: nothing of it is kept.
    let released = Request::order(&key());
    let (mut leader, gate) = running(&upstream, &proxy, &released, reply(500).body("no").into());
    let kept = Request::order(&key());
    let (mut second, also) = running(&upstream, &proxy, &kept, reply(201).body(&large).into());
    // The end of this one releases its key, and is still to come.
    let (rest, streamed) = (Gate::new(), Request::order(&key()));
    upstream.then(reply(500).halted(&large, &rest, "end"));
    let mut third = proxy.begin(&streamed);
    rest.arrived();
    redis.freeze();
    gate.open();
    also.open();
    assert_eq!(leader.answer().status, 500);
    assert_eq!(second.answer().status, 201);
    problem(&proxy.send(&kept), "response-not-retained");
    problem(&proxy.send(&streamed), "in-flight");
    assert_eq!(upstream.executions(), 3);
    assert_eq!(marker(&proxy.send(&released)), Some("bypass"));
    rest.open();
    assert_eq!(third.answer().status, 500);
    eventually("it is free", || {
        marker(&proxy.send(&streamed)) == Some("bypass")
    });
    redis.thaw();
}
