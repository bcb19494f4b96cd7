//! What is counted: every request once, under labels that no client can make up.

use crate::common::{Proxy, Request, Step, Upstream, executed, key, problem, reply, sleep_ms};

const REQUESTS: &str = "idem_proxy_requests_total";
const SETTLED: &str = "idem_proxy_records_settled_total";

#[test]
fn every_kind_of_request_is_counted_as_what_it_was() {
    let upstream = Upstream::start();
    let settings = "policy.max_request_body = '1KiB'\npolicy.empty_key = 'bypass'\n\
        [[route]]\nname = 'orders'\nmethods = ['POST']\npath = '/orders'\n\
        [[route]]\nname = 'strict'\nmethods = ['POST']\npath = '/strict'\nkey = 'required'";
    let proxy = Proxy::with(&upstream, settings);
    let request = Request::order(&key());
    let post = Request::write("POST", "/orders");
    proxy.send(&request);
    proxy.send(&request);
    problem(&proxy.send(&request.clone().body("{}")), "key-reused");
    proxy.send(&post);
    problem(
        &proxy.send(&Request::write("POST", "/strict")),
        "key-missing",
    );
    problem(&proxy.send(&post.clone().key("a b")), "key-invalid");
    problem(
        &proxy.send(&Request::order(&key()).without("Authorization")),
        "caller-missing",
    );
    problem(
        &proxy.send(&Request::order(&key()).body("x".repeat(2000))),
        "body-too-large",
    );
    proxy.send(&post.key(""));
    proxy.send(&Request::get("/free"));
    proxy.send(&Request::write("POST", "/free").key(&key()));
    let lost = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&lost), "upstream-failed");
    problem(&proxy.send(&lost), "outcome-unknown");
    upstream.then(reply(500));
    proxy.send(&Request::order(&key()));
    let counts = [
        ("orders", "miss"),
        ("orders", "hit"),
        ("orders", "mismatch"),
        ("orders", "unkeyed"),
        ("strict", "key_missing"),
        ("orders", "key_invalid"),
        ("orders", "caller_missing"),
        ("orders", "too_large"),
        ("orders", "bypass"),
        ("", "passthrough"),
        ("", "passthrough_keyed"),
        ("orders", "upstream_failure"),
        ("orders", "unknown"),
        ("orders", "released"),
    ];
    for (route, outcome) in counts {
        proxy.await_metric(REQUESTS, &[("route", route), ("outcome", outcome)], 1.0);
    }
    proxy.await_metric(REQUESTS, &[], 14.0);
    proxy.await_metric("idem_proxy_request_duration_seconds_count", &[], 14.0);
    for settled in ["complete", "unknown", "released"] {
        proxy.await_metric(SETTLED, &[("as", settled)], 1.0);
    }
    proxy.await_metric(
        "idem_proxy_upstream_duration_seconds_count",
        &[("status_class", "none")],
        1.0,
    );
    proxy.await_metric(
        "idem_proxy_upstream_duration_seconds_count",
        &[("status_class", "5xx")],
        1.0,
    );
    proxy.await_metric(
        "idem_proxy_upstream_duration_seconds_count",
        &[("status_class", "2xx")],
        5.0,
    );
}

#[test]
fn a_call_that_is_given_up_is_a_call() {
    let upstream = Upstream::start();
    let settings = "upstream.response_timeout = '200ms'\nupstream.capture_timeout = '400ms'";
    let proxy = Proxy::with(&upstream, settings);
    let gate = upstream.hold(Step::default());
    problem(&proxy.send(&Request::order(&key())), "upstream-timeout");
    proxy.await_metric(SETTLED, &[("as", "unknown")], 1.0);
    let calls = "idem_proxy_upstream_duration_seconds_count";
    proxy.await_metric(calls, &[("status_class", "none")], 1.0);
    proxy.await_metric(calls, &[], 1.0);
    gate.open();
}

#[test]
fn joins_conflicts_tombstones_and_late_answers_are_told_apart() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.max_response_body = '1KiB'\npolicy.max_waiters = 1\nupstream.response_timeout = '2s'",
    );
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut first = proxy.begin(&request);
    gate.arrived();
    proxy.await_metric("idem_proxy_in_flight", &[("route", "orders")], 1.0);
    let mut second = proxy.begin(&request);
    proxy.await_metric("idem_proxy_waiters", &[("route", "orders")], 1.0);
    problem(&proxy.send(&request), "in-flight");
    gate.open();
    executed(first.answer());
    assert_eq!(second.answer().status, 201);
    let request = Request::order(&key());
    upstream.then(reply(201).body("x".repeat(5000)));
    executed(proxy.send(&request));
    problem(&proxy.send(&request), "response-not-retained");
    let gate = upstream.hold(Step::default());
    problem(&proxy.send(&Request::order(&key())), "upstream-timeout");
    gate.open();
    for outcome in ["joined", "conflict", "not_retained", "upstream_failure"] {
        proxy.await_metric(REQUESTS, &[("outcome", outcome)], 1.0);
    }
    for settled in ["complete", "tombstone", "late"] {
        proxy.await_metric(SETTLED, &[("as", settled)], 1.0);
    }
    proxy.await_metric(SETTLED, &[], 3.0);
    for level in ["idem_proxy_waiters", "idem_proxy_in_flight"] {
        proxy.await_metric(level, &[], 0.0);
    }
}

#[test]
fn overload_and_a_missing_store_are_counted() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_executions = 1");
    let gate = upstream.hold(Step::default());
    let mut first = proxy.begin(&Request::order(&key()));
    gate.arrived();
    problem(&proxy.send(&Request::order(&key())), "overloaded");
    gate.open();
    executed(first.answer());
    proxy.await_metric(REQUESTS, &[("outcome", "overloaded")], 1.0);
    let none = Proxy::with(&upstream, "store.kind = 'none'");
    problem(&none.send(&Request::order(&key())), "no-store");
    none.await_metric(REQUESTS, &[("outcome", "no_store")], 1.0);
}

#[test]
fn the_metrics_have_their_published_names() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    proxy.send(&request);
    proxy.send(&request);
    let metrics = proxy.metrics();
    for name in [
        "requests_total",
        "request_duration_seconds_bucket",
        "upstream_duration_seconds_count",
        "in_flight",
        "waiters",
        "records_settled_total",
        "store_operations_total",
        "store_operation_duration_seconds_count",
        "store_records",
        "store_bytes",
        "connections",
        "connections_total",
        "build_info",
    ] {
        assert!(
            metrics.has(&format!("idem_proxy_{name}")),
            "no {name}:\n{}",
            metrics.0
        );
    }
    assert!(
        metrics
            .series()
            .any(|(name, _, _)| name.starts_with("process_"))
    );
    proxy.await_metric("idem_proxy_store_records", &[("store", "memory")], 1.0);
    assert!(
        proxy
            .metrics()
            .sum("idem_proxy_store_bytes", &[("store", "memory")])
            > 10.0
    );
}

/// Sends so many requests, each with a key and a path of its own, and tells how many series there are before and after.
fn series_of(requests: u32) {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "telemetry.access_log = false");
    let mut client = proxy.client();
    let mut send = |from: u32, to: u32| {
        for number in from..to {
            let caller = format!("Bearer {}", number % 7);
            let path = format!("/orders/{number}");
            let keyed = Request::write("POST", &path).key(&key()).caller(&caller);
            assert!(client.ask(&keyed).answer().status < 300);
            let free = Request::get(&format!("/free/{number}"));
            assert!(client.ask(&free).answer().status < 300);
        }
    };
    send(0, 1);
    proxy.await_metric(REQUESTS, &[], 2.0);
    let before = proxy.metrics().series().count();
    send(1, requests);
    proxy.await_metric(REQUESTS, &[], f64::from(requests) * 2.0);
    let after = proxy.metrics();
    assert_eq!(after.series().count(), before, "{}", after.0);
}

#[test]
fn keys_and_paths_add_no_series() {
    series_of(500);
}

#[test]
#[ignore = "it takes minutes"]
fn a_hundred_thousand_keys_and_paths_add_no_series() {
    series_of(100_000);
}

#[test]
fn nothing_a_client_sends_becomes_a_label() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let strange = |number: u32| {
        let name = format!("strange-{number}");
        for request in [
            Request::new("GET", &format!("/{name}?{name}")),
            Request::write(&format!("STRANGE{number}"), "/orders"),
            Request::write("POST", &format!("/orders/{name}")).key(&format!("{name}-{}", key())),
            Request::order("strange key")
                .header(&name, &name)
                .caller(&name),
        ] {
            proxy.send(
                &request
                    .header("Host", "")
                    .without("Host")
                    .header("Host", format!("{name}.test")),
            );
        }
    };
    strange(0);
    sleep_ms(300);
    let before = proxy.metrics().series().count();
    (1..20).for_each(strange);
    sleep_ms(300);
    let metrics = proxy.metrics();
    assert_eq!(metrics.series().count(), before, "{}", metrics.0);
    assert!(
        !metrics.0.to_ascii_lowercase().contains("strange"),
        "{}",
        metrics.0
    );
}
