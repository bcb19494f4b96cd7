//! `GoCardless`' client for Python, behind the defaults.

use super::{Language::Python, Program};
use crate::common::{Proxy, Reply, Step, Upstream, reply};

const ROUTE: &str = "[[route]]\nname = 'payments'\nmethods = ['POST']\npath = '/payments'";

/// What the API says to a key that it has seen before.
const CONFLICT: &str = r#"{"error":{"type":"invalid_state","code":409,"message":"A resource has already been created with this idempotency key",
    "errors":[{"reason":"idempotent_creation_conflict","message":"Already created","links":{"conflicting_resource_id":"PM1"}}]}}"#;

fn payment(status: u16) -> Reply {
    reply(status).body(r#"{"payments":{"id":"PM1","amount":1200}}"#)
}

fn run(proxy: &Proxy, calls: &[&str]) -> Vec<String> {
    Program::run(Python, "gocardless_calls.py", proxy, calls)
}

#[test]
fn a_payment_whose_answer_is_late_is_made_once() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ROUTE);
    let gate = upstream.hold(payment(201));
    let client = Program::start(Python, "gocardless_calls.py", &proxy, &["-:1200"]);
    gate.arrived();
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    assert_eq!(client.lines(), ["PM1 1200"]);
    assert!(upstream.only().one("Idempotency-Key").is_some());
}

/// The client knows the API's own types of errors and no others: it shows the problem's, and asks no more by itself.
#[test]
fn what_is_refused_is_an_error_and_never_a_second_payment() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ROUTE);
    let error = |slug: &str| {
        format!("GoCardlessProError: Invalid error type \"urn:idem-proxy:problem:{slug}\"")
    };
    upstream.then(payment(201));
    assert_eq!(
        run(&proxy, &["one:1200", "one:900", "one:1200"]),
        ["PM1 1200", &error("key-reused"), "PM1 1200"]
    );
    assert_eq!(upstream.executions(), 1);
    upstream.then(Step::drop());
    assert_eq!(
        run(&proxy, &["two:1200", "two:1200"]),
        [error("upstream-failed"), error("outcome-unknown")]
    );
    assert_eq!(upstream.executions(), 2);
}

/// A conflict that the service itself tells of passes, and the client fetches what the key had made.
#[test]
fn the_services_own_conflict_leads_the_client_to_the_payment() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ROUTE);
    upstream.then(reply(409).body(CONFLICT)).then(payment(200));
    assert_eq!(run(&proxy, &["one:1200"]), ["PM1 1200"]);
    let seen = upstream.seen();
    let asked: Vec<_> = seen
        .iter()
        .map(|seen| (seen.method.as_str(), seen.target.as_str()))
        .collect();
    assert_eq!(asked, [("POST", "/payments"), ("GET", "/payments/PM1")]);
}
