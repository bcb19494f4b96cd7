//! Where two promises meet: answers that are neither kept nor whole, protocols that nobody asked for, upstreams that do not read, and
//! spellings of paths and names that would lead round the proxy.

use std::time::{Duration, Instant};

use crate::common::{
    PATIENCE, Proxy, Request, Step, Upstream, eventually, executed, key, problem, replayed, reply,
    unprotected,
};

#[test]
fn an_answer_that_is_not_stored_and_breaks_off_is_unknown_whatever_its_size() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '1KiB'");
    for (number, (size, cut)) in [(3000, 2900), (3000, 500), (900, 500)]
        .into_iter()
        .enumerate()
    {
        let request = Request::order(&key());
        upstream.then(reply(500).body("x".repeat(size)).cut_after(cut));
        let mut client = proxy.begin(&request);
        let _ = client.try_answer(PATIENCE);
        eventually("the outcome is unknown", || {
            let again = proxy.send(&request);
            again.status == 409 && again.json()["code"] == "IDEMPOTENCY_OUTCOME_UNKNOWN"
        });
        assert_eq!(
            upstream.executions(),
            number + 1,
            "{size} bytes, cut after {cut}"
        );
    }
}

#[test]
fn a_large_answer_that_is_not_stored_comes_whole_and_releases_the_key_at_its_end() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '1KiB'");
    let request = Request::order(&key());
    let body = "x".repeat(300_000);
    upstream.then(reply(500).body(&body));
    let first = proxy.send(&request);
    assert_eq!((first.status, first.body == body.as_bytes()), (500, true));
    // Its end has reached the client before the record is settled.
    eventually("the key is released", || {
        proxy
            .metrics()
            .sum("idem_proxy_records_settled_total", &[("as", "released")])
            > 0.5
    });
    executed(proxy.send(&request));
}

#[test]
fn a_client_that_leaves_a_large_answer_behind_changes_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '1KiB'");
    let request = Request::order(&key());
    upstream.then(reply(500).body("x".repeat(8_000_000)));
    let mut client = proxy.begin(&request);
    client.head(PATIENCE).expect("the head");
    client.reset();
    proxy.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "released")],
        1.0,
    );
    executed(proxy.send(&request));
}

#[test]
fn an_upstream_that_switches_protocols_unasked_has_failed() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(Step::bytes(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    ));
    problem(&proxy.send(&request), "upstream-failed");
    problem(&proxy.send(&request), "outcome-unknown");
    upstream.then(Step::bytes("HTTP/1.1 101 X\r\n\r\n"));
    assert_eq!(proxy.send(&Request::get("/free")).status, 502);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_head_whose_body_fails_with_it_still_reaches_its_client() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '1KiB'");
    let bad_chunk = "Transfer-Encoding: chunked\r\n\r\n";
    for (what, body) in [
        (format!("{bad_chunk}zz\r\n"), ""),
        (format!("{bad_chunk}3\r\nabc\r\nzz\r\n"), "abc"),
        ("Content-Length: 9\r\n\r\n".to_owned(), ""),
        ("Content-Length: 9\r\n\r\nabc".to_owned(), "abc"),
    ] {
        let bytes = format!("HTTP/1.1 203 Told\r\n{what}");
        // Both come in one piece or in two, as the sockets have it.
        for _ in 0..5 {
            upstream.then(Step::bytes(&bytes));
            let said = proxy.begin(&Request::get("/free")).everything();
            assert!(said.starts_with("HTTP/1.1 203 "), "{what}: {said}");
            assert!(said.contains(body), "{what}: {said}");
            assert!(!said.ends_with("0\r\n\r\n"), "it looks whole: {said}");
        }
        // A keyed answer that broke off is none.
        let request = Request::order(&key());
        upstream.then(Step::bytes(&bytes));
        problem(&proxy.send(&request), "upstream-failed");
        problem(&proxy.send(&request), "outcome-unknown");
    }
    // One that is too large to be kept was executed, whatever its body.
    let request = Request::order(&key());
    upstream.then(Step::bytes(
        "HTTP/1.1 201 Told\r\nContent-Length: 9999\r\n\r\nabc",
    ));
    let said = proxy.begin(&request).everything();
    assert!(said.starts_with("HTTP/1.1 201 ") && said.ends_with("abc"));
    problem(&proxy.send(&request), "response-not-retained");
}

#[test]
fn a_failure_in_the_middle_of_an_upload_says_that_the_connection_ends() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '10s'");
    upstream.then(Step::reset().early());
    let mut client = proxy.client();
    client.say("POST /free HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 99\r\n\r\nhello");
    let failed = client.answer();
    assert_eq!(failed.status, 502, "{failed}");
    assert_eq!(failed.one("Connection"), Some("close"));
    assert!(client.is_closed());
    // Behind a whole request it goes on.
    upstream.then(Step::reset());
    let failed = client_of(&proxy, &Request::write("POST", "/free"));
    assert_eq!(failed, (502, 201));
}

/// What a request and another one behind it are answered with on one connection.
fn client_of(proxy: &Proxy, request: &Request) -> (u16, u16) {
    let mut client = proxy.client();
    let first = client.ask(request).answer();
    assert_eq!(first.one("Connection"), None, "{first}");
    (first.status, client.ask(request).answer().status)
}

#[test]
fn an_upstream_that_does_not_read_an_upload_is_given_up() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '1s'");
    upstream.then(Step::hang().early());
    let started = Instant::now();
    let upload = Request::write("POST", "/free").body("x".repeat(16_000_000));
    let mut client = proxy.client();
    let _ = client.try_say(upload.bytes());
    if let Ok(answer) = client.try_answer(PATIENCE) {
        assert_eq!(answer.status, 504, "{answer}");
    }
    assert!(
        started.elapsed() < Duration::from_secs(15),
        "it took {:?}",
        started.elapsed()
    );
}

#[test]
fn an_upload_does_not_double_the_time_that_an_answer_may_take() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "upstream.response_timeout = '2s'");
    upstream.then(Step::hang());
    let started = Instant::now();
    unprotected(
        &proxy.send(&Request::write("POST", "/free").body("x")),
        "upstream-timeout",
    );
    assert!(
        started.elapsed() < Duration::from_millis(3500),
        "it took {:?}",
        started.elapsed()
    );
}

#[test]
fn a_broken_upload_is_a_bad_request() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let answer = proxy.say(
        "POST /free HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n",
    );
    assert_eq!(answer.status, 400, "{answer}");
    assert_eq!(upstream.executions(), 0);
}

const ROUTES: &str = "
policy.key = 'required'
[[route]]
name = 'cafe'
methods = ['POST']
path = '/café'
[[route]]
name = 'batch'
methods = ['POST']
path = '/v1/orders:batch'
[[route]]
name = 'below'
methods = ['POST']
path = '/r/{*rest}'
";

#[test]
fn no_spelling_of_a_path_leads_round_its_route() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ROUTES);
    for target in [
        "/caf%C3%A9",
        "/caf%c3%a9/",
        "/v1/orders:batch",
        "/v1/orders%3Abatch",
        "/v1/orders%3abatch",
        "/r",
        "/r/",
        "//r/.",
        "/r/a/b",
    ] {
        problem(&proxy.send(&Request::write("POST", target)), "key-missing");
    }
    let raw = proxy.say("POST /caf\u{e9} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(raw.status, 400, "{raw}");
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn connection_cannot_take_away_what_the_proxy_goes_by() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "identity.from = ['header:X-Caller']\npolicy.fingerprint.headers = ['x-tenant']",
    );
    for named in ["X-Caller", "x-tenant", "Idempotency-Key"] {
        let request = Request::order(&key())
            .header("X-Caller", "alice")
            .header("X-Tenant", "t1")
            .header("Connection", format!("close, {named}"));
        assert_eq!(proxy.send(&request).status, 400, "{named}");
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn a_strangers_forwarding_claims_are_dropped_all_of_them() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let claims = Request::get("/free")
        .header("X-Forwarded-Port", "1")
        .header("X-Forwarded-Prefix", "/evil")
        .header("X-Forwarded-For", "203.0.113.9");
    assert_eq!(proxy.send(&claims).status, 200);
    let seen = upstream.last();
    assert!(seen.all("X-Forwarded-Port").is_empty() && seen.all("X-Forwarded-Prefix").is_empty());
    assert_eq!(seen.all("X-Forwarded-For"), ["127.0.0.1"]);
}

#[test]
fn a_second_signal_ends_the_process_and_says_what_it_cuts_off() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let gate = upstream.hold(reply(201));
    let _client = proxy.begin(&Request::order(&key()));
    gate.arrived();
    proxy.signal("TERM");
    eventually("it drains", || proxy.log().contains("draining"));
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(1));
    let log = proxy.log();
    assert!(
        log.contains("cut off") && log.contains("\"record\":"),
        "{log}"
    );
    gate.open();
}

#[test]
fn heads_without_their_bodies_take_nobodys_room() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_buffered_bytes = '2MiB'");
    let idle: Vec<_> = (0..4)
        .map(|_| {
            let mut client = proxy.client();
            client.say(Request::order(&key()).body("x".repeat(900_000)).head());
            client
        })
        .collect();
    let honest = Request::order(&key()).body("x".repeat(900_000));
    executed(proxy.send(&honest));
    replayed(&proxy.send(&honest), &proxy.send(&honest));
    drop(idle);
}

#[test]
fn a_short_body_behind_a_refusal_leaves_the_connection_usable() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.key = 'required'");
    let mut client = proxy.client();
    for body in ["", "x", &"x".repeat(60_000)] {
        client.ask(&Request::write("POST", "/orders").body(body));
        problem(&client.answer(), "key-missing");
    }
    client.ask(&Request::order(&key()));
    executed(client.answer());
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_client_that_does_not_read_keeps_no_key_from_being_settled() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.max_response_body = '1KiB'\nupstream.response_timeout = '2s'\nupstream.capture_timeout = '8s'",
    );
    let request = Request::order(&key());
    upstream.then(reply(500).body("x".repeat(40_000_000)));
    let mut client = proxy.begin(&request);
    client.head(PATIENCE).expect("the head");
    proxy.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "released")],
        1.0,
    );
    executed(proxy.send(&request));
}

#[test]
fn what_could_carry_a_key_and_does_not_is_a_part_of_the_request() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.key_sources = ['header:Idempotency-Key', 'json:/order_id', 'query:k']",
    );
    let order = |name: &str, body: &str| {
        Request::write("POST", "/orders")
            .key(name)
            .media_type("application/json")
            .body(body)
    };
    let name = key();
    let first = executed(proxy.send(&order(&name, r#"{"order_id":"o-1"}"#)));
    problem(
        &proxy.send(&order(&name, r#"{"order_id":"o-2"}"#)),
        "key-reused",
    );
    problem(&proxy.send(&order(&name, "{}")), "key-reused");
    replayed(&proxy.send(&order(&name, r#"{"order_id":"o-1"}"#)), &first);

    let derived = Proxy::with(
        &upstream,
        "policy.key = 'derived'\npolicy.retention = '10s'\npolicy.key_sources = ['json:/k']",
    );
    let plain = |body: &str| {
        Request::write("POST", "/orders")
            .media_type("application/json")
            .body(body)
    };
    let one = executed(derived.send(&plain(r#"{"k":"1","v":2}"#)));
    let two = executed(derived.send(&plain(r#"{"k":"2","v":2}"#)));
    assert_ne!(one.execution(), two.execution());
}
