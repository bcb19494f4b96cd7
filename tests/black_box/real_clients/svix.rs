//! Svix's client for Python, behind the defaults: it keys every POST by itself and retries at once.

use super::{Language::Python, Program};
use crate::common::{Proxy, Reply, Step, Upstream, reply};

const ROUTE: &str = "[[route]]\nname = 'svix'\nmethods = ['POST']\npath = '/api/v1/{*rest}'";

fn application() -> Reply {
    let time = "2026-01-01T00:00:00Z";
    reply(201).body(format!(
        r#"{{"id":"app_1","name":"shop","createdAt":"{time}","updatedAt":"{time}","metadata":{{}}}}"#
    ))
}

#[test]
fn an_application_whose_answer_is_late_is_made_once() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ROUTE);
    let gate = upstream.hold(application());
    let client = Program::start(Python, "svix_calls.py", &proxy, &["-:shop"]);
    gate.arrived();
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    assert_eq!(client.lines(), ["app_1 shop"]);
    let seen = upstream.only();
    assert!(
        seen.one("Idempotency-Key")
            .is_some_and(|key| key.starts_with("auto_")),
        "{seen}"
    );
}

#[test]
fn an_application_that_may_have_been_made_is_not_made_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, ROUTE);
    upstream.then(Step::drop());
    // The client itself retries the 502, and takes the 409 for an answer.
    assert_eq!(
        Program::run(Python, "svix_calls.py", &proxy, &["-:shop"]),
        ["HttpError 409 IDEMPOTENCY_OUTCOME_UNKNOWN"]
    );
    assert_eq!(upstream.executions(), 1);
}

/// To this client a 422 is a list of wrong fields and nothing else: over the defaults' problem document it stumbles,
/// and a service that is made for it says a reused key with a 409.
#[test]
fn one_key_for_two_applications_makes_one() {
    for (errors, wanted) in [
        ("problem", "AttributeError"),
        ("platform", "HttpError 409 CONFLICT"),
    ] {
        let upstream = Upstream::start();
        let proxy = Proxy::with(&upstream, &format!("policy.errors = '{errors}'\n{ROUTE}"));
        upstream.then(application());
        let calls = ["one:shop", "one:bank", "one:shop"];
        assert_eq!(
            Program::run(Python, "svix_calls.py", &proxy, &calls),
            ["app_1 shop", wanted, "app_1 shop"]
        );
        assert_eq!(upstream.executions(), 1);
    }
}
