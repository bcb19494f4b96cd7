//! Stripe's own clients, for Python and for Node, behind the dialects that are named for it.

use super::{
    Language::{self, Node, Python},
    Program,
};
use crate::common::{Proxy, Step, Upstream, eventually, reply};

/// What Stripe answers to a failure of its own.
const FAILURE: &str = r#"{"error":{"type":"api_error","code":"broken","message":"It broke."}}"#;

fn charge(number: u32) -> Step {
    let body = format!(r#"{{"id":"ch_{number}","object":"charge","amount":1200}}"#);
    reply(200).body(body).into()
}

fn destination(number: u32) -> Step {
    let body = format!(r#"{{"id":"ed_{number}","object":"v2.core.event_destination"}}"#);
    reply(200).body(body).into()
}

fn failure() -> Step {
    reply(500).body(FAILURE).into()
}

/// A proxy before Stripe: charges are made at /v1, event destinations at /v2.
fn proxy(upstream: &Upstream, dialect: &str) -> Proxy {
    let settings = format!(
        "[[route]]\nname = 'stripe'\nmethods = ['POST']\npath = '/{{*rest}}'\nkey = 'required'\ndialect = '{dialect}'"
    );
    Proxy::with(upstream, &settings)
}

fn start(client: Language, proxy: &Proxy, version: &str, calls: &[&str]) -> Program {
    let script = match client {
        Python => "stripe_calls.py",
        Node => "stripe_calls.mjs",
    };
    Program::start(client, script, proxy, &[&[version], calls].concat())
}

/// What the client says to these calls; its errors go by the same names in both languages.
fn said(client: Language, proxy: &Proxy, version: &str, calls: &[&str]) -> Vec<String> {
    let lines = start(client, proxy, version, calls).lines();
    let common = |line: String| line.trim_start_matches("Stripe").to_owned();
    lines.into_iter().map(common).collect()
}

fn outcomes(proxy: &Proxy, outcome: &str) -> f64 {
    let labels = [("route", "stripe"), ("outcome", outcome)];
    proxy.metrics().sum("idem_proxy_requests_total", &labels)
}

/// The client gives up, asks again with the key it made up itself, is told that the key is in use, asks again.
#[track_caller]
fn a_late_answer(client: Language, dialect: &str, version: &str, made: Step, wanted: &str) {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream, dialect);
    let gate = upstream.hold(made);
    let program = start(client, &proxy, version, &["-:1200"]);
    gate.arrived();
    eventually("the client asks again", || {
        outcomes(&proxy, "conflict") > 0.0
    });
    gate.open();
    assert_eq!(program.lines(), [format!("{wanted} again")]);
    let seen = upstream.only();
    assert!(
        seen.one("Idempotency-Key").is_some_and(|k| !k.is_empty()),
        "{seen}"
    );
}

/// One key for two bodies is the client's own error, and harms the first one's answer in no way.
#[track_caller]
fn a_key_for_two_bodies(client: Language, dialect: &str, version: &str, made: Step, wanted: &str) {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream, dialect);
    upstream.then(made);
    let calls = ["one:1200", "one:900", "one:1200"];
    assert_eq!(
        said(client, &proxy, version, &calls),
        [
            format!("{wanted} new"),
            "IdempotencyError 400 key_reused new".to_owned(),
            format!("{wanted} again"),
        ]
    );
    assert_eq!(upstream.executions(), 1);
}

/// Version 1 of Stripe's API keeps a failure: whatever the client tries, it is told the same.
#[track_caller]
fn a_failure_that_is_kept(client: Language) {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream, "stripe-v1");
    // The client is told not to try by itself, as Stripe does, so that each call is one try.
    upstream.then(
        reply(500)
            .body(FAILURE)
            .header("Stripe-Should-Retry", "false"),
    );
    let calls = ["one:1200", "one:1200", "two:1200"];
    upstream.then(charge(2));
    assert_eq!(
        said(client, &proxy, "v1", &calls),
        [
            "APIError 500 broken new",
            "APIError 500 broken again",
            "charge ch_2 new"
        ]
    );
    assert_eq!(upstream.executions(), 2);
}

/// Version 2 finishes failed work on a retry: the client's own, here, and its success is what is kept.
#[track_caller]
fn a_failure_that_is_retried(client: Language, version: &str, made: Step, wanted: &str) {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream, "stripe-v2");
    upstream.then(failure()).then(made);
    assert_eq!(
        said(client, &proxy, version, &["one:1200", "one:1200"]),
        [format!("{wanted} new"), format!("{wanted} again")]
    );
    assert_eq!(upstream.executions(), 2);
}

const CHARGE: &str = "charge ch_1";
const DESTINATION: &str = "v2.core.event_destination ed_1";

#[test]
fn python_makes_one_charge_when_the_answer_is_late() {
    a_late_answer(Python, "stripe-v1", "v1", charge(1), CHARGE);
}

#[test]
fn node_makes_one_charge_when_the_answer_is_late() {
    a_late_answer(Node, "stripe-v1", "v1", charge(1), CHARGE);
}

#[test]
fn python_knows_a_reused_key() {
    a_key_for_two_bodies(Python, "stripe-v1", "v1", charge(1), CHARGE);
    a_key_for_two_bodies(Python, "stripe-v2", "v2", destination(1), DESTINATION);
}

#[test]
fn node_knows_a_reused_key() {
    a_key_for_two_bodies(Node, "stripe-v1", "v1", charge(1), CHARGE);
    a_key_for_two_bodies(Node, "stripe-v2", "v2", destination(1), DESTINATION);
}

#[test]
fn python_is_told_of_a_failure_again() {
    a_failure_that_is_kept(Python);
}

#[test]
fn node_is_told_of_a_failure_again() {
    a_failure_that_is_kept(Node);
}

#[test]
fn python_finishes_failed_work_by_itself() {
    a_failure_that_is_retried(Python, "v1", charge(1), CHARGE);
    a_failure_that_is_retried(Python, "v2", destination(1), DESTINATION);
}

#[test]
fn node_finishes_failed_work_by_itself() {
    a_failure_that_is_retried(Node, "v1", charge(1), CHARGE);
    a_failure_that_is_retried(Node, "v2", destination(1), DESTINATION);
}

#[test]
fn python_makes_one_destination_when_the_answer_is_late() {
    a_late_answer(Python, "stripe-v2", "v2", destination(1), DESTINATION);
}

#[test]
fn node_makes_one_destination_when_the_answer_is_late() {
    a_late_answer(Node, "stripe-v2", "v2", destination(1), DESTINATION);
}
