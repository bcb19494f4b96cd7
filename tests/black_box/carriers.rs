//! Keys in queries, forms and JSON, and keys that are the request itself.

use crate::common::{
    Answer, Proxy, Request, Step, Upstream, eventually, executed, key, marker, problem, replayed,
};

const FORM: &str = "application/x-www-form-urlencoded";

/// A proxy whose keys stand in these places, in this order.
fn keyed_by(upstream: &Upstream, sources: &str, more: &str) -> Proxy {
    Proxy::with(
        upstream,
        &format!("policy.key_sources = [{sources}]\n{more}"),
    )
}

fn json(body: &str) -> Request {
    Request::write("POST", "/orders").body(body)
}

fn form(body: &str) -> Request {
    json(body).media_type(FORM)
}

fn asked(query: &str) -> Request {
    Request::write("POST", &format!("/orders?{query}"))
}

/// The upstream ran for this request, and nothing was kept.
#[track_caller]
fn passed(answer: &Answer) {
    assert_eq!(answer.status, 201, "{answer}");
    assert_eq!(marker(answer), None, "{answer}");
}

#[test]
fn a_key_may_stand_in_the_query() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'query:token'", "");
    let first = executed(proxy.send(&asked("token=a-1&x=1")));
    for spelt in ["x=1&token=a-1", "x=1&%74oken=a%2D1", "token=%22a-1%22&x=1"] {
        replayed(&proxy.send(&asked(spelt)), &first);
    }
    problem(&proxy.send(&asked("token=a-1&x=2")), "key-reused");
    for bad in [
        "token=",
        "token",
        "token=a+1",
        "token=a&token=a",
        "token=%4",
        "token=%ff",
    ] {
        problem(&proxy.send(&asked(bad)), "key-invalid");
    }
    passed(&proxy.send(&asked("TOKEN=a&tokens=b")));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].target, "/orders?token=a-1&x=1", "as it came");
}

#[test]
fn a_key_may_stand_in_a_form() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'form:token'", "");
    let first = executed(proxy.send(&form("a=1&token=k-1&b=2")));
    replayed(&proxy.send(&form("token=k%2D1&a=1&b=2")), &first);
    replayed(&proxy.send(&form("a=1&b=2&token=k-1").chunked()), &first);
    problem(&proxy.send(&form("a=2&token=k-1&b=2")), "key-reused");
    for bad in [
        "token=",
        "a&token",
        "token=a&token=a",
        "token=a+b",
        "token=%zz",
    ] {
        problem(&proxy.send(&form(bad)), "key-invalid");
    }
    passed(&proxy.send(&form("a=1&b=2")));
    passed(&proxy.send(&json("token=k-1")));
    passed(&proxy.send(&form("token=k-1").media_type("text/plain")));
    assert_eq!(upstream.executions(), 4);
    assert_eq!(upstream.seen()[0].body, b"a=1&token=k-1&b=2", "as it came");
}

#[test]
fn a_key_may_stand_in_json() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/meta/key'", "");
    let text = r#"{ "meta": {"key": "k-1"}, "amount": 5 }"#;
    let first = executed(proxy.send(&json(text)));
    replayed(
        &proxy.send(&json(r#"{"amount":5.0,"meta":{"key":"\u006b-1"}}"#)),
        &first,
    );
    replayed(&proxy.send(&json(text).chunked()), &first);
    problem(
        &proxy.send(&json(r#"{"meta":{"key":"k-1"},"amount":6}"#)),
        "key-reused",
    );
    let typed = json(text).media_type("application/vnd.shop+json; charset=utf-8");
    problem(&proxy.send(&typed), "key-reused");
    for bad in [r#""""#, "7", "true", r#"["a"]"#, "{}", r#""a b""#, r#""é""#] {
        let request = json(&format!(r#"{{"meta":{{"key":{bad}}}}}"#));
        problem(&proxy.send(&request), "key-invalid");
    }
    assert_eq!(upstream.executions(), 1);
    assert_eq!(upstream.seen()[0].body, text.as_bytes(), "as it came");
    executed(proxy.send(&json(r#"{"meta":{"key":"k-2"}}"#).without("Content-Type")));
}

#[test]
fn a_body_that_is_no_json_has_no_key_and_passes_as_it_is() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/key'", "");
    let bodies = [
        "",
        "no json",
        r#"{"key":"a""#,
        r#"{"key":"a"} x"#,
        "\u{feff}{\"key\":\"a\"}",
        r#"{"key":null}"#,
        r#"["key","a"]"#,
    ];
    for body in bodies {
        for request in [json(body), json(body).chunked()] {
            passed(&proxy.send(&request));
            let seen = upstream.seen();
            assert_eq!(seen.last().expect("a request").body, body.as_bytes());
        }
    }
    passed(&proxy.send(&json(r#"{"key":"a"}"#).header("Content-Encoding", "gzip")));
    let strict = keyed_by(&upstream, "'json:/key'", "policy.key = 'required'");
    let before = upstream.executions();
    for body in bodies {
        problem(&strict.send(&json(body)), "key-missing");
    }
    problem(&strict.send(&json("{}").without_body()), "key-missing");
    assert_eq!(upstream.executions(), before);
}

#[test]
fn a_key_is_found_in_any_json_and_refused_where_it_is_there_twice() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/key'", "");
    let (open, close) = ("[".repeat(300), "]".repeat(300));
    for body in [
        format!(r#"{{"key":"deep","x":{open}{close}}}"#),
        r#"{"x":1,"key":"beside","x":2}"#.to_owned(),
    ] {
        let first = executed(proxy.send(&json(&body)));
        replayed(&proxy.send(&json(&body)), &first);
    }
    for body in [
        r#"{"key":"a","key":"a"}"#,
        r#"{"key":"a","x":1,"key":null}"#,
    ] {
        problem(&proxy.send(&json(body)), "key-invalid");
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn without_a_key_every_byte_passes_and_the_connection_goes_on() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/key', 'form:key'", "");
    let bytes: Vec<u8> = (0..300_000_u32)
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
        .collect();
    let mut client = proxy.client();
    for media_type in ["application/json", FORM, "application/octet-stream"] {
        for request in [json("").body(&bytes), json("").body(&bytes).chunked()] {
            let request = request.media_type(media_type);
            passed(&client.ask(&request).answer());
            let seen = upstream.seen();
            assert!(
                seen.last().expect("a request").body == bytes,
                "{media_type}"
            );
        }
    }
    proxy.await_metric("idem_proxy_requests_total", &[("outcome", "unkeyed")], 6.0);
}

#[test]
fn a_body_that_cannot_have_the_key_is_not_waited_for() {
    let upstream = Upstream::start();
    let limit = "policy.max_request_body = '1KiB'";
    let proxy = keyed_by(&upstream, "'json:/key'", limit);
    let large = "x".repeat(5000);
    let image = json(&large).media_type("image/png");
    let mut client = proxy.client();
    client.say(image.head()).say(&image.framed_body()[..100]);
    eventually("the upstream gets what was sent", || {
        upstream.uploading() == 100
    });
    client.say(&image.framed_body()[100..]);
    passed(&client.answer());
    // Where it can, it is read first, and bounded.
    problem(&proxy.send(&json(&large)), "body-too-large");
    problem(&proxy.send(&json(&large).chunked()), "body-too-large");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn the_first_place_that_has_a_key_counts() {
    let upstream = Upstream::start();
    let order = "'header:Idempotency-Key', 'query:key', 'form:key'";
    let proxy = keyed_by(&upstream, order, "");
    let at = |query: &str, body: &str| {
        Request::write("POST", &format!("/orders{query}"))
            .body(body)
            .media_type(FORM)
    };
    let (a, b) = (key(), key());
    let first = executed(proxy.send(&at("", &format!("x=1&key={a}"))));
    replayed(&proxy.send(&at(&format!("?key={a}"), "x=1")), &first);
    replayed(&proxy.send(&at("", "x=1").key(&a)), &first);
    // What stands further back is no key, but a part of the request.
    problem(
        &proxy.send(&at(&format!("?key={b}"), "x=1").key(&a)),
        "key-reused",
    );
    problem(
        &proxy.send(&at(&format!("?key={a}"), &format!("x=1&key={b}"))),
        "key-reused",
    );
    executed(proxy.send(&at("", "x=1").key(&b)));
    problem(
        &proxy.send(&at(&format!("?key={b}"), "x=1").key("")),
        "key-invalid",
    );
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn an_empty_value_is_passed_over_where_it_is_no_key() {
    let upstream = Upstream::start();
    let bypass = "policy.empty_key = 'bypass'";
    let proxy = keyed_by(&upstream, "'form:key', 'query:key', 'json:/key'", bypass);
    for request in [
        form("key="),
        form("a=1&key"),
        asked("key="),
        json(r#"{"key":""}"#),
    ] {
        passed(&proxy.send(&request));
    }
    proxy.await_metric("idem_proxy_requests_total", &[("outcome", "bypass")], 4.0);
    executed(proxy.send(&asked("key=k").body("key=").media_type(FORM)));
}

#[test]
fn the_rules_of_keys_hold_in_every_carrier() {
    let upstream = Upstream::start();
    let rules = "policy.key_max_length = 4\npolicy.key_format = '[a-z]+'";
    let proxy = keyed_by(&upstream, "'query:key', 'form:key', 'json:/key'", rules);
    let everywhere = |value: &str| {
        [
            asked(&format!("key={value}")),
            form(&format!("key={value}")),
            json(&format!(r#"{{"key":"{value}"}}"#)),
        ]
    };
    for value in ["abcde", "ab1", ""] {
        for request in everywhere(value) {
            problem(&proxy.send(&request), "key-invalid");
        }
    }
    for request in everywhere("abcd") {
        let answer = proxy.send(&request);
        assert!(matches!(answer.status, 201 | 422), "{answer}");
    }
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn copies_by_a_key_in_the_body_are_one_execution() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/key'", "");
    let gate = upstream.hold(Step::default());
    let copies = |n: u8| json(&format!(r#"{{"key":"k","n":1}}{}"#, " ".repeat(n.into())));
    let mut clients: Vec<_> = (0..20).map(|n| proxy.begin(&copies(n))).collect();
    gate.arrived();
    gate.open();
    for client in &mut clients {
        assert_eq!(client.answer().execution(), 1);
    }
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_caller_is_needed_once_there_is_a_key() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/key'", "");
    let nobody = |body: &str| json(body).without("Authorization");
    problem(&proxy.send(&nobody(r#"{"key":"a"}"#)), "caller-missing");
    passed(&proxy.send(&nobody("{}")));
    let first = executed(proxy.send(&json(r#"{"key":"a"}"#)));
    let other = json(r#"{"key":"a"}"#).caller("Bearer bob");
    assert_ne!(executed(proxy.send(&other)).execution(), first.execution());
}

#[test]
fn the_proxy_asks_for_a_body_that_may_have_the_key() {
    let upstream = Upstream::start();
    let proxy = keyed_by(&upstream, "'json:/key'", "policy.max_request_body = '1KiB'");
    let request = json(r#"{"key":"a"}"#).header("Expect", "100-continue");
    let mut client = proxy.client();
    client.say(request.head());
    let (status, _) = client
        .head(crate::common::PATIENCE)
        .expect("an interim answer");
    assert_eq!(status, 100);
    executed(client.say(request.framed_body()).answer());
    let large = json(&"x".repeat(2000)).header("Expect", "100-continue");
    let refused = proxy.client().say(large.head()).answer();
    problem(&refused, "body-too-large");
    assert_eq!(
        refused.interim, [0_u16; 0],
        "refused before it is asked for"
    );
}

#[test]
fn a_derived_key_is_the_request_itself() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.key = 'derived'\npolicy.max_request_body = '1KiB'",
    );
    let order = |body: &str| json(body);
    let first = executed(proxy.send(&order(r#"{"a":1,"b":2}"#)));
    replayed(&proxy.send(&order(r#"{"a":1,"b":2}"#).chunked()), &first);
    replayed(&proxy.send(&order(r#"{ "b": 2, "a": 1.0 }"#)), &first);
    // A key that is sent is ignored, a broken one too.
    for sent in ["another", "", "a, b"] {
        replayed(&proxy.send(&order(r#"{"a":1,"b":2}"#).key(sent)), &first);
    }
    let others = [
        order(r#"{"a":1,"b":3}"#),
        order(r#"{"a":1,"b":2}"#).caller("Bearer bob"),
        Request::write("POST", "/orders/7").body(r#"{"a":1,"b":2}"#),
        Request::write("PUT", "/orders").body(r#"{"a":1,"b":2}"#),
        Request::write("POST", "/orders?x=1").body(r#"{"a":1,"b":2}"#),
        order("").without_body(),
    ];
    for request in others {
        let answer = executed(proxy.send(&request));
        replayed(&proxy.send(&request), &answer);
    }
    assert_eq!(upstream.executions(), 7);
    problem(&proxy.send(&order(&"x".repeat(2000))), "body-too-large");
    problem(
        &proxy.send(&order("{}").without("Authorization")),
        "caller-missing",
    );
    assert_eq!(upstream.executions(), 7);
}

#[test]
fn the_aws_dialect_takes_its_token_where_aws_does() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.dialect = 'aws'");
    let runs = |image: &str, token: &str| {
        form(&format!(
            "Action=RunInstances&ImageId={image}&ClientToken={token}"
        ))
    };
    let amz = json(r#"{"clientToken":"t-2"}"#).media_type("application/x-amz-json-1.1");
    let requests = [
        runs("ami-1", "t-1"),
        amz,
        json(r#"{"ClientToken":"t-3"}"#),
        asked("Action=RunInstances&ClientToken=t-4").without_body(),
        runs("ami-1", "a+token%20with,all/sorts"),
    ];
    for (request, number) in requests.iter().zip(1..) {
        assert_eq!(proxy.send(request).execution(), number);
        assert_eq!(proxy.send(request).execution(), number);
    }
    for token in ["", "&x=1"] {
        let (first, again) = (runs("ami-1", token), runs("ami-1", token));
        assert_ne!(
            proxy.send(&first).execution(),
            proxy.send(&again).execution()
        );
    }
    let mismatch = proxy.send(&runs("ami-2", "t-1"));
    assert_eq!(mismatch.status, 400, "{mismatch}");
    let said = String::from_utf8_lossy(&mismatch.body).into_owned();
    assert!(said.contains("IdempotentParameterMismatch"), "{said}");
}
