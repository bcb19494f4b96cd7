//! The AWS client for Python against EC2: the key is a field of the form, and every try has a signature of its own.

use super::{Language::Python, Program};
use crate::common::{Proxy, Reply, Step, Upstream, reply};

const SETTINGS: &str = "identity.from = ['sigv4']\nidentity.trust_unverified = true\n\
    [[route]]\nname = 'ec2'\nmethods = ['POST']\npath = '/'\ndialect = 'aws'";

/// A reservation of one instance, as far as the client looks.
fn reservation() -> Reply {
    reply(200)
        .bare()
        .header("Content-Type", "text/xml;charset=UTF-8")
        .body(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<RunInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
  <requestId>59dbff89-35bd-4eac-99ed-be587EXAMPLE</requestId>
  <reservationId>r-1</reservationId>
  <ownerId>123456789012</ownerId>
  <instancesSet><item><instanceId>i-1</instanceId><imageId>ami-1</imageId></item></instancesSet>
</RunInstancesResponse>"#,
        )
}

fn run(proxy: &Proxy, calls: &[&str]) -> Vec<String> {
    Program::run(Python, "ec2_calls.py", proxy, calls)
}

#[test]
fn an_instance_whose_answer_is_late_is_started_once() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, SETTINGS);
    let gate = upstream.hold(reservation());
    let client = Program::start(Python, "ec2_calls.py", &proxy, &["-:ami-1"]);
    gate.arrived();
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    assert_eq!(client.lines(), ["r-1 i-1 2"], "two tries, signed apart");
    let body = String::from_utf8(upstream.only().body).expect("a form is text");
    assert!(body.contains("&ClientToken="), "{body}");
}

#[test]
fn one_token_for_two_images_is_the_clients_own_error() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, SETTINGS);
    upstream.then(reservation());
    assert_eq!(
        run(&proxy, &["one:ami-1", "one:ami-2", "one:ami-1"]),
        [
            "r-1 i-1 1",
            "ClientError 400 IdempotentParameterMismatch 1",
            "r-1 i-1 1"
        ]
    );
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn an_instance_that_may_have_been_started_is_not_started_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, SETTINGS);
    upstream.then(Step::drop());
    let said = run(&proxy, &["-:ami-1"]);
    assert!(
        said[0].starts_with("ClientError 503 Unavailable "),
        "{said:?}"
    );
    assert_eq!(upstream.executions(), 1);
}
