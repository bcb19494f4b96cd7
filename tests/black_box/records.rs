//! How long a record speaks: expiry, what a key does afterwards, and who may have what it says.

use crate::common::{
    PATIENCE, Proxy, Request, Step, Upstream, events, eventually, executed, key, marker, problem,
    replayed, reply, sleep_ms,
};

#[test]
fn an_expired_key_is_refused_for_its_time_and_then_runs_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.retention = '1s'\npolicy.after_expiry = 'refuse'\npolicy.refuse_for = '4s'",
    );
    let request = Request::order(&key());
    executed(proxy.send(&request));
    sleep_ms(1100);
    for _ in 0..2 {
        let refused = problem(&proxy.send(&request), "key-expired");
        assert_eq!(refused["record"].as_str().map(str::len), Some(16));
        problem(&proxy.send(&request.clone().body("{}")), "key-expired");
    }
    assert_eq!(executed(proxy.send(&Request::order(&key()))).execution(), 2);
    proxy.await_metric("idem_proxy_requests_total", &[("outcome", "expired")], 4.0);
    // Both records have markers by now, and weigh as little as answers can.
    eventually("the answers are freed", || {
        proxy.metrics().sum("idem_proxy_store_bytes", &[]) <= 800.0
    });
    sleep_ms(4000);
    assert_eq!(executed(proxy.send(&request)).execution(), 3);
}

#[test]
fn a_key_that_is_not_refused_runs_again_at_once() {
    let upstream = Upstream::start();
    let settings = "policy.retention = '1s'\npolicy.refuse_for = '1h'";
    let proxy = Proxy::with(&upstream, settings);
    let request = Request::order(&key());
    executed(proxy.send(&request));
    sleep_ms(1100);
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
fn a_route_has_an_expiry_of_its_own() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.retention = '1s'
         [[route]]
         name = 'long'
         methods = ['POST']
         path = '/orders'
         retention = '1h'
         [[route]]
         name = 'refused'
         methods = ['POST']
         path = '/refused'
         after_expiry = 'refuse'",
    );
    let long = Request::order(&key());
    let refused = Request::write("POST", "/refused").key(&key());
    let first = executed(proxy.send(&long));
    executed(proxy.send(&refused));
    sleep_ms(1100);
    replayed(&proxy.send(&long), &first);
    problem(&proxy.send(&refused), "key-expired");
}

#[test]
fn what_says_that_the_answer_is_not_kept_says_until_when() {
    let upstream = Upstream::start();
    let settings = "policy.expiry_header = 'X-Until'";
    let proxy = Proxy::with(&upstream, settings);
    let request = Request::order(&key());
    let (head, end) = (crate::common::Gate::new(), crate::common::Gate::new());
    upstream.then(Step::from(events(&[(&end, "1")])).behind(&head));
    let mut first = proxy.begin(&request);
    head.arrived();
    let mut joined = proxy.begin(&request);
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    head.open();
    let (_, first) = first.head(PATIENCE).expect("the stream begins");
    let until = first.fields.one("X-Until").expect("it says until when");
    let joined = joined.answer();
    problem(&joined, "response-not-retained");
    assert_eq!(joined.one("X-Until"), Some(until));
    let again = proxy.send(&request);
    problem(&again, "response-not-retained");
    assert_eq!(again.one("X-Until"), Some(until));
    end.open();
}

#[test]
fn every_error_links_to_the_documentation() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.docs_url = 'https://docs.test/keys'\nserver.max_connections = 8\nserver.max_target_bytes = '100B'
         policy.max_request_body = '100B'\npolicy.unknown_outcome = 'hold'",
    );
    let linked = |answer: &crate::common::Answer, slug: &str| {
        let link = answer.one("Link");
        assert_eq!(
            link,
            Some("<https://docs.test/keys>; rel=\"describedby\""),
            "{answer}"
        );
        let kind = format!("https://docs.test/keys#{slug}");
        assert_eq!(answer.json()["type"], kind, "{answer}");
    };
    let request = Request::order(&key());
    upstream.then(Step::drop());
    linked(&proxy.send(&request), "upstream-failed");
    linked(&proxy.send(&request), "outcome-unknown");
    linked(&proxy.send(&request.clone().body("{}")), "key-reused");
    linked(&proxy.send(&Request::order("")), "key-invalid");
    let large = Request::order(&key()).body("x".repeat(101));
    linked(&proxy.send(&large), "body-too-large");
    let nobody = request.without("Authorization");
    linked(&proxy.send(&nobody), "caller-missing");
    linked(
        &proxy.send(&Request::new("TRACE", "/")),
        "method-not-allowed",
    );
    let long = format!("/{}", "x".repeat(101));
    linked(&proxy.send(&Request::get(&long)), "target-too-long");
    upstream.then(Step::drop());
    linked(&proxy.send(&Request::get("/free")), "upstream-failed");
    // Connections that ended a moment ago may still be counted.
    proxy.await_metric("idem_proxy_connections", &[("side", "client")], 0.0);
    let crowd: Vec<_> = (0..8).map(|_| proxy.client()).collect();
    proxy.await_metric("idem_proxy_connections", &[("side", "client")], 8.0);
    let mut one_more = proxy.client();
    linked(&one_more.answer(), "overloaded");
    drop(crowd);
}

// --- replay_auth ---

const ASKING: &str = "policy.replay_auth = '/me?why=replay'";

#[test]
fn a_caller_is_asked_about_before_a_replay_and_only_then() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        &format!("{ASKING}\nidentity.from = ['header:X-Tenant', 'authorization']"),
    );
    let request = Request::order(&key())
        .header("X-Tenant", "t-1")
        .header("Cookie", "sid=7")
        .header("X-Forwarded-For", "203.0.113.9");
    let first = executed(proxy.send(&request));
    upstream.then(reply(204));
    replayed(&proxy.send(&request), &first);
    problem(&proxy.send(&request.clone().body("{}")), "key-reused");
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2, "neither before the first nor for a mismatch");
    let asked = upstream.last();
    assert_eq!(
        (asked.method.as_str(), asked.target.as_str()),
        ("GET", "/me?why=replay")
    );
    for (name, value) in [
        ("Authorization", "Bearer alice"),
        ("X-Tenant", "t-1"),
        ("Cookie", "sid=7"),
        ("Host", "shop.test"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Host", "shop.test"),
    ] {
        assert_eq!(asked.one(name), Some(value), "{name}");
    }
    for name in ["Idempotency-Key", "Content-Type", "Content-Length"] {
        assert_eq!(asked.one(name), None, "{name}");
    }
    assert_eq!((asked.body.len(), asked.trailers.names().len()), (0, 0));
    proxy.await_metric(
        "idem_proxy_upstream_duration_seconds_count",
        &[("route", "orders")],
        2.0,
    );
}

#[test]
fn a_refusal_passes_on_as_it_came() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ASKING);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    for (status, body) in [
        (401, "who?".to_owned()),
        (302, String::new()),
        (403, "x".repeat(300_000)),
    ] {
        upstream.then(
            reply(status)
                .body(&body)
                .header("WWW-Authenticate", "Bearer")
                .header("X-Why", "a")
                .header("X-Why", "b")
                .header("Idempotency-Key-Reply", "hit"),
        );
        let refused = proxy.send(&request);
        assert_eq!(refused.status, status, "{refused}");
        assert!(refused.body == body.as_bytes(), "{refused}");
        assert_eq!(refused.one("WWW-Authenticate"), Some("Bearer"));
        assert_eq!(refused.all("X-Why"), ["a", "b"]);
        assert_eq!(marker(&refused), None, "{refused}");
    }
    upstream.then(reply(200));
    replayed(&proxy.send(&request), &first);
    let outcome = [("outcome", "caller_missing")];
    proxy.await_metric("idem_proxy_requests_total", &outcome, 3.0);
}

#[test]
fn on_doubt_nothing_is_replayed() {
    let upstream = Upstream::start();
    let settings = format!("{ASKING}\nupstream.response_timeout = '600ms'");
    let proxy = Proxy::with(&upstream, &settings);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    let doubts: Vec<Step> = vec![
        reply(500).into(),
        reply(503).into(),
        Step::drop(),
        Step::reset(),
        Step::bytes("HTTP/1.1 2"),
        Step::hang(),
    ];
    let count = f64::from(u32::try_from(doubts.len() + 1).expect("few"));
    for step in doubts {
        upstream.then(step);
        problem(&proxy.send(&request), "upstream-failed");
    }
    upstream.refuse();
    problem(&proxy.send(&request), "upstream-failed");
    upstream.recover();
    upstream.then(reply(200));
    replayed(&proxy.send(&request), &first);
    let outcome = [("outcome", "upstream_failure")];
    proxy.await_metric("idem_proxy_requests_total", &outcome, count);
}

#[test]
fn who_joins_is_asked_about_as_well_whether_or_not_the_answer_was_stored() {
    for status in [201, 402] {
        let upstream = Upstream::start();
        let proxy = Proxy::with(&upstream, ASKING);
        let request = Request::order(&key());
        let gate = upstream.hold(reply(status));
        let mut first = proxy.begin(&request);
        gate.arrived();
        let mut refused = proxy.begin(&request);
        proxy.await_metric("idem_proxy_waiters", &[], 1.0);
        upstream.then(reply(403).body("no"));
        gate.open();
        assert_eq!(first.answer().status, status);
        let refused = refused.answer();
        assert_eq!((refused.status, &refused.body[..]), (403, &b"no"[..]));

        let other = Request::order(&key());
        let gate = upstream.hold(reply(status));
        let mut first = proxy.begin(&other);
        gate.arrived();
        let mut joined = proxy.begin(&other);
        proxy.await_metric("idem_proxy_waiters", &[], 1.0);
        upstream.then(reply(200));
        gate.open();
        let (first, joined) = (first.answer(), joined.answer());
        assert_eq!(joined.status, status);
        assert!(joined.body == first.body, "{joined}");
        assert_eq!(upstream.executions(), 4);
    }
}

#[test]
fn a_client_that_leaves_during_the_question_changes_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ASKING);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    let gate = upstream.hold(reply(200));
    let client = proxy.begin(&request);
    gate.arrived();
    client.reset();
    sleep_ms(200);
    gate.open();
    upstream.then(reply(200));
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn questions_use_a_connection_again_and_count_as_calls() {
    let upstream = Upstream::start();
    let settings = format!("{ASKING}\nserver.workers = 1\nserver.max_executions = 1");
    let proxy = Proxy::with(&upstream, &settings);
    let request = Request::order(&key());
    let mut client = proxy.client();
    let first = executed(client.ask(&request).answer());
    for _ in 0..5 {
        upstream.then(reply(200).chunked().body("welcome"));
        replayed(&client.ask(&request).answer(), &first);
        // What is left of the permission is read behind the answer.
        sleep_ms(50);
    }
    assert!(upstream.connections() <= 2, "{}", upstream.connections());
    let gate = upstream.hold(reply(200));
    let mut asking = proxy.begin(&request);
    gate.arrived();
    problem(&proxy.send(&request), "overloaded");
    gate.open();
    replayed(&asking.answer(), &first);
}
