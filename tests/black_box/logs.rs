//! What is written down: one line a request that helps, and never a key, a credential or a body.

use serde_json::Value;

use crate::common::{
    Proxy, Request, Step, Upstream, eventually, executed, problem, reply, sleep_ms,
};

/// Marks everything that must not show anywhere.
const SECRET: &str = "hush4711";

/// Sends secrets in every place a client or an upstream can put one, through every kind of outcome.
fn whisper(proxy: &Proxy, upstream: &Upstream) {
    let secret = |what: &str| format!("{SECRET}-{what}");
    let request = |number: u32| {
        Request::new("POST", &format!("/orders?token={}", secret("query")))
            .caller(&format!("Bearer {}", secret("credential")))
            .header("Cookie", format!("session={}", secret("cookie")))
            .header("X-Api-Key", secret("header"))
            .key(&secret(&format!("key{number}")))
            .media_type("application/json")
            .body(format!("{{\"card\":\"{}\"}}", secret("body")))
    };
    upstream.always(
        reply(201)
            .body(secret("answer"))
            .header("X-Answer", secret("answer-header")),
    );
    executed(proxy.send(&request(1)));
    proxy.send(&request(1));
    problem(
        &proxy.send(&request(1).body(secret("other-body"))),
        "key-reused",
    );
    proxy.send(&request(2).without("Idempotency-Key"));
    proxy.send(&request(2).key(&secret("second line")));
    proxy.send(&request(3).without("Authorization"));
    proxy.send(&request(4).body(secret("large").repeat(200_000)));
    proxy.send(&Request::new("POST", &format!("/{}", secret("path"))).key(&secret("key5")));
    for (number, step) in (6..).zip([
        Step::drop(),
        Step::reset(),
        Step::bytes(secret("not http")),
        Step::bytes(format!(
            "HTTP/1.1 200 {}\r\nX: {SECRET}\0\r\n\r\n",
            secret("reason")
        )),
        reply(500).body(secret("error")).into(),
        reply(201).body(secret("cut")).cut_after(9).into(),
    ]) {
        upstream.then(step);
        proxy.send(&request(number));
        proxy.send(&request(number));
    }
    for raw in [
        format!("POST /orders HTTP/1.1\r\nHost: a\r\n{SECRET} : x\r\n\r\n"),
        format!("POST /{SECRET} HTTP/1.1\r\nHost: a\r\nHost: {SECRET}\r\n\r\n"),
        format!("{SECRET}\r\n\r\n"),
    ] {
        assert_eq!(proxy.say(raw).status, 400);
    }
    upstream.refuse();
    problem(&proxy.send(&request(20)), "upstream-unreachable");
}

#[test]
fn no_key_no_credential_and_no_body_is_ever_written_down() {
    for (format, level) in [("json", "info"), ("text", "debug"), ("json", "trace")] {
        let upstream = Upstream::start();
        let settings =
            format!("telemetry.log_format = '{format}'\ntelemetry.log_level = '{level}'");
        let proxy = Proxy::with(&upstream, &settings);
        whisper(&proxy, &upstream);
        proxy.await_metric(
            "idem_proxy_requests_total",
            &[("outcome", "upstream_failure")],
            6.0,
        );
        sleep_ms(500);
        let (log, metrics) = (proxy.log(), proxy.metrics().0);
        let told = |path: &str| {
            let answer = proxy.admin(
                &Request::get(path)
                    .without("Host")
                    .header("Host", "localhost"),
            );
            assert_eq!(answer.status, 200, "{path}");
            String::from_utf8(answer.body).expect("text")
        };
        let records = told("/api/v1/records?limit=1000");
        assert!(records.contains("\"orders\""), "no record: {records}");
        let status = told("/api/v1/status") + &told("/api/v1/policy");
        for (what, text) in [
            ("log", &log),
            ("metrics", &metrics),
            ("records", &records),
            ("status", &status),
        ] {
            let at = text.to_ascii_lowercase().find(SECRET);
            let around = at.map(|at| {
                text[at.saturating_sub(200)..]
                    .chars()
                    .take(500)
                    .collect::<String>()
            });
            assert_eq!(around, None, "a secret is in the {what} at {level}");
        }
        assert!(log.lines().count() > 20, "nothing was logged at all: {log}");
    }
}

/// The access lines, once there are `count`.
fn lines(proxy: &Proxy, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually(&format!("{count} access lines"), || {
        let log = proxy.log();
        let parsed = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = parsed
            .filter(|line| line.to_string().contains("\"outcome\""))
            .collect();
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// A member of a line, wherever the format puts it.
fn member<'a>(line: &'a Value, name: &str) -> &'a Value {
    match line.get(name) {
        Some(value) => value,
        None => &line["fields"][name],
    }
}

#[test]
fn each_request_has_one_line_that_names_its_route_outcome_and_record() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order("a-key");
    proxy.send(&request);
    proxy.send(&request);
    let reused = problem(&proxy.send(&request.clone().body("{}")), "key-reused");
    proxy.send(&Request::get("/free"));
    let lines = lines(&proxy, 4);
    let outcomes: Vec<_> = lines
        .iter()
        .map(|line| member(line, "outcome").as_str().unwrap_or_default())
        .collect();
    assert_eq!(outcomes, ["miss", "hit", "mismatch", "passthrough"]);
    let statuses: Vec<_> = lines
        .iter()
        .map(|line| member(line, "status").as_u64())
        .collect();
    assert_eq!(statuses, [Some(201), Some(201), Some(422), Some(200)]);
    for line in &lines[..3] {
        assert_eq!(member(line, "route"), "orders");
        assert_eq!(member(line, "record"), &reused["record"], "{line}");
    }
}

#[test]
fn the_access_log_can_be_turned_off() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "telemetry.access_log = false");
    proxy.send(&Request::order("a-key"));
    sleep_ms(500);
    assert!(!proxy.log().contains("\"outcome\""), "{}", proxy.log());
}

#[test]
fn every_line_of_the_json_format_is_json() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.then(Step::drop());
    proxy.send(&Request::order("a-key"));
    lines(&proxy, 1);
    for line in proxy.log().lines() {
        assert!(
            serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()),
            "{line}"
        );
    }
}
