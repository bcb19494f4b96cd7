//! The published policy: what clients may read of the routes.

use serde_json::json;

use crate::common::{Proxy, Request, Upstream, executed, key};

const PAGE: &str = "/.well-known/idempotency";

const SETTINGS: &str = "
server.policy_path = '/.well-known/idempotency'
policy.retention = '36h'
policy.marker_hit = 'again'
[[route]]
name = 'orders'
methods = ['POST', 'PUT']
path = '/orders/{id}'
key = 'required'
key_required_if = [{ header = 'x-kind', matches = '^service$' }]
refuse_for = '7d'
identity = { from = ['header:X-Tenant'] }
fingerprint = { query = 'sorted', ignore = ['/at'] }
[[route]]
name = 'rotate'
methods = ['POST']
path = '/rotate'
key = 'off'
[[route]]
name = 'everything'
methods = ['GET', 'POST']
path = '/{*rest}'
";

fn proxy(upstream: &Upstream) -> Proxy {
    Proxy::with(upstream, SETTINGS)
}

#[test]
fn it_says_what_is_in_effect_as_it_was_configured() {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream);
    let page = proxy.send(&Request::get(PAGE));
    assert_eq!(page.status, 200, "{page}");
    assert_eq!(page.one("Content-Type"), Some("application/json"));
    assert_eq!(page.one("Cache-Control"), Some("public, max-age=60"));
    let document = page.json();
    let names: Vec<_> = document["routes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|route| route["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["orders", "rotate", "everything"]);
    let orders = &document["routes"][0];
    for (key, value) in [
        ("methods", json!(["POST", "PUT"])),
        ("path", json!("/orders/{id}")),
        ("key", json!("required")),
        ("dialect", json!("standard")),
        (
            "key_required_if",
            json!([{"header": "x-kind", "matches": "^service$"}]),
        ),
        ("retention", json!("36h")),
        ("refuse_for", json!("7d")),
        ("marker_hit", json!("again")),
        ("store_responses", json!(["2xx"])),
        ("key_max_length", json!(255)),
        (
            "identity",
            json!({"from": ["header:X-Tenant"], "missing": "reject", "trust_unverified": false}),
        ),
        (
            "fingerprint",
            json!({"method": true, "path": true, "query": "sorted", "headers": ["content-type"], "body": "auto",
                   "ignore": ["/at"], "only": []}),
        ),
    ] {
        assert_eq!(orders[key], value, "{key}");
    }
    assert_eq!(document["routes"][1]["key"], "off");
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn it_is_the_proxys_own_in_every_spelling_and_wins_over_routes() {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream);
    for spelling in [
        PAGE,
        "//.well-known/idempotency/",
        "/x/../.well-known/./idempotency?a=b",
        "/%2Ewell-known/idempotenc%79",
    ] {
        let page = proxy.send(&Request::get(spelling).key(&key()));
        assert_eq!(page.status, 200, "{spelling}: {page}");
        assert!(page.json()["routes"].is_array());
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let refused = proxy.send(&Request::write(method, PAGE).key(&key()));
        assert_eq!(refused.status, 405, "{method}: {refused}");
        assert_eq!(refused.one("Allow"), Some("GET, HEAD"));
        assert_eq!(refused.one("Connection"), Some("close"));
        assert_eq!(refused.json()["code"], "METHOD_NOT_ALLOWED");
    }
    assert_eq!(upstream.executions(), 0);
    let beside = Request::write("POST", "/.well-known/idempotency/x").key(&key());
    executed(proxy.send(&beside));
    let count = [("route", ""), ("outcome", "passthrough")];
    proxy.await_metric("idem_proxy_requests_total", &count, 4.0);
}

#[test]
fn a_client_that_has_it_is_told_so() {
    let upstream = Upstream::start();
    let proxy = proxy(&upstream);
    let mut client = proxy.client();
    let page = client.ask(&Request::get(PAGE)).answer();
    let tag = page.one("ETag").expect("a tag");
    let head = client.ask(&Request::new("HEAD", PAGE)).answer();
    assert_eq!((head.status, head.one("ETag")), (200, Some(tag)));
    let length = page.body.len().to_string();
    assert_eq!(head.one("Content-Length"), Some(length.as_str()));
    for (known, status) in [
        (tag.to_owned(), 304),
        (format!("\"x\", W/{tag}"), 304),
        ("*".to_owned(), 304),
        ("\"x\"".to_owned(), 200),
    ] {
        let request = Request::get(PAGE).header("If-None-Match", &known);
        let answer = client.ask(&request).answer();
        assert_eq!(answer.status, status, "{known}: {answer}");
        assert_eq!(answer.one("ETag"), Some(tag));
    }
}

#[test]
fn without_a_path_there_is_none() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    assert_eq!(proxy.send(&Request::get(PAGE)).execution(), 1);
}
