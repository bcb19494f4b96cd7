//! What must be the same in a retry: meaning for JSON, bytes for everything else, and nothing that is only framing.

use crate::common::{Proxy, Request, Upstream, executed, key, problem, replayed};

/// The second request is a retry of the first.
#[track_caller]
fn same(proxy: &Proxy, first: &Request, second: &Request) {
    let name = key();
    let answer = executed(proxy.send(&first.clone().key(&name)));
    let again = proxy.send(&second.clone().key(&name));
    assert_ne!(
        again.status, 422,
        "taken for another request: {second:?} after {first:?}"
    );
    replayed(&again, &answer);
}

/// The second request is another one than the first.
#[track_caller]
fn other(proxy: &Proxy, first: &Request, second: &Request) {
    let name = key();
    executed(proxy.send(&first.clone().key(&name)));
    let again = proxy.send(&second.clone().key(&name));
    assert_eq!(
        again.status, 422,
        "taken for the same request: {second:?} after {first:?}"
    );
    problem(&again, "key-reused");
}

fn json(body: &str) -> Request {
    Request::write("POST", "/orders").body(body)
}

fn typed(media_type: &str, body: impl AsRef<[u8]>) -> Request {
    Request::write("POST", "/orders")
        .media_type(media_type)
        .body(body)
}

#[test]
fn another_body_is_refused_and_the_stored_answer_stays() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let name = key();
    let first = executed(proxy.send(&json(r#"{"a":1}"#).key(&name)));
    for _ in 0..3 {
        problem(&proxy.send(&json(r#"{"a":2}"#).key(&name)), "key-reused");
    }
    replayed(&proxy.send(&json(r#"{"a":1}"#).key(&name)), &first);
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn json_that_means_the_same_is_the_same_request() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let one = r#"{"a":1,"b":{"c":"é","d":[{"x":1,"y":2}]}}"#;
    for again in [
        r#"{"b":{"d":[{"y":2,"x":1}],"c":"é"},"a":1}"#,
        "{ \"a\" : 1,\r\n\t\"b\": {\"c\": \"é\", \"d\": [ {\"x\":1, \"y\":2} ] } }\n",
        r#"{"a":1,"b":{"c":"\u00e9","d":[{"x":1,"y":2}]}}"#,
        r#"{"a":1.0,"b":{"c":"é","d":[{"x":10e-1,"y":0.2E1}]}}"#,
    ] {
        same(&proxy, &json(one), &json(again));
    }
    same(
        &proxy,
        &typed("application/vnd.api+json", r#"{"a":1,"b":2}"#),
        &typed("application/vnd.api+json", r#"{"b":2,"a":1}"#),
    );
    same(&proxy, &json("-0"), &json("0"));
    same(&proxy, &json(r#"{"\u0061":1}"#), &json(r#"{"a":1}"#));
}

#[test]
fn json_that_differs_is_another_request() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (one, two) in [
        ("[1,2]", "[2,1]"),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":null}"#, "{}"),
        (r#"{"a":true}"#, r#"{"a":"true"}"#),
        (r#"{"id":9007199254740993}"#, r#"{"id":9007199254740992}"#),
        (
            r#"{"id":12345678901234567890123}"#,
            r#"{"id":12345678901234567890124}"#,
        ),
        (r#"{"a":0.1}"#, r#"{"a":0.10000000000000000001}"#),
        (r#"{"a":1e400}"#, r#"{"a":1e401}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
        (r#"{"a":1,"\u0061":2}"#, r#"{"a":2}"#),
        (r#"{"a":""}"#, r#"{"a":[]}"#),
        (r#"{"a":"x","b":"y"}"#, r#"{"a":"y","b":"x"}"#),
        ("{\"a\":1}", "\u{feff}{\"a\":1}"),
        ("{\"a\":1}", "{\"a\":1}x"),
    ] {
        other(&proxy, &json(one), &json(two));
    }
}

#[test]
fn what_is_no_json_counts_byte_for_byte_and_harms_nobody() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let deep = "[".repeat(100_000);
    let closed = format!("{deep}{}", "]".repeat(100_000));
    for body in [
        "{\"a\":",
        "{'a':1}",
        "\u{feff}{}",
        &deep,
        &closed,
        "1e99999999999999999999",
        "\"\\ud800\"",
    ] {
        same(&proxy, &json(body), &json(body));
    }
    let broken: &[u8] = b"{\"a\":\"\xff\xfe\"}";
    let typed_json = typed("application/json", broken);
    same(&proxy, &typed_json, &typed_json);
    other(&proxy, &json("{'a':1}"), &json("{'a': 1}"));
    let nested = |depth: usize, space: &str| {
        json(&format!(
            "{}{space}{}",
            "[".repeat(depth),
            "]".repeat(depth)
        ))
    };
    same(&proxy, &nested(100, ""), &nested(100, " "));
    other(&proxy, &nested(200, ""), &nested(200, " "));
}

#[test]
fn no_body_and_an_empty_body_are_the_same() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    same(&proxy, &json("").without_body(), &json(""));
    same(&proxy, &json(""), &json("").chunked());
    other(&proxy, &json(""), &json("{}"));
}

#[test]
fn framing_does_not_count_and_every_byte_does() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let large = "x".repeat(700 << 10);
    let mut changed = large.clone();
    changed.replace_range(changed.len() - 1.., "y");
    let octets = |body: &str| typed("application/octet-stream", body);
    same(&proxy, &octets(&large), &octets(&large).chunked());
    other(&proxy, &octets(&large), &octets(&changed));
    other(
        &proxy,
        &octets(&large).chunked(),
        &octets(&changed).chunked(),
    );
    assert_eq!(upstream.last().body_size, 700 << 10);
}

#[test]
fn a_form_and_other_types_count_byte_for_byte() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let form = |body: &str| typed("application/x-www-form-urlencoded", body);
    same(&proxy, &form("a=1&b=2"), &form("a=1&b=2"));
    other(&proxy, &form("a=1&b=2"), &form("b=2&a=1"));
    other(
        &proxy,
        &typed("text/plain", r#"{"a":1}"#),
        &typed("text/plain", r#"{ "a":1}"#),
    );
    let sorted = Proxy::with(&upstream, "policy.fingerprint.body = 'form'");
    same(&sorted, &form("a=1&b=2&a=3"), &form("b=2&a=1&a=3"));
    other(&sorted, &form("a=1&b=2&a=3"), &form("a=3&b=2&a=1"));
}

#[test]
fn the_boundary_of_a_multipart_body_does_not_count() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let form = |boundary: &str, data: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\n{data}\r\n--{boundary}--\r\n"
        );
        typed(&format!("multipart/form-data; boundary={boundary}"), body)
    };
    same(&proxy, &form("aaa111", "hello"), &form("bbb22222", "hello"));
    other(&proxy, &form("aaa111", "hello"), &form("bbb22222", "hellp"));
}

#[test]
fn parts_of_a_json_body_can_be_left_out_or_chosen() {
    let upstream = Upstream::start();
    let ignoring = Proxy::with(
        &upstream,
        "policy.fingerprint.ignore = ['/sentAt', '/nothing/here']",
    );
    same(
        &ignoring,
        &json(r#"{"id":1,"sentAt":"x"}"#),
        &json(r#"{"sentAt":"y","id":1}"#),
    );
    other(
        &ignoring,
        &json(r#"{"id":1,"sentAt":"x"}"#),
        &json(r#"{"id":2,"sentAt":"x"}"#),
    );
    let choosing = Proxy::with(&upstream, "policy.fingerprint.only = ['/id']");
    same(
        &choosing,
        &json(r#"{"id":1,"note":"x"}"#),
        &json(r#"{"id":1,"note":"y"}"#),
    );
    other(&choosing, &json(r#"{"id":1}"#), &json(r#"{"id":2}"#));
}

#[test]
fn a_compressed_body_counts_and_passes_as_it_was_sent() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    // Two gzip members of the same text, by their headers' time alone different.
    let packed: &[u8] = &[
        31, 139, 8, 0, 0, 0, 0, 0, 0, 3, 171, 174, 5, 0, 67, 191, 166, 163, 2, 0, 0, 0,
    ];
    let mut later = packed.to_vec();
    later[4] = 1;
    let gzip = |body: &[u8]| typed("application/json", body).header("Content-Encoding", "gzip");
    same(&proxy, &gzip(packed), &gzip(packed));
    assert_eq!(upstream.last().body, packed);
    assert_eq!(upstream.last().one("Content-Encoding"), Some("gzip"));
    other(&proxy, &gzip(packed), &gzip(&later));
}

#[test]
fn of_the_media_type_its_parameters_do_not_count() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let body = r#"{"a":1}"#;
    same(
        &proxy,
        &json(body),
        &typed("Application/JSON ; charset=\"utf-8\"", body),
    );
    other(&proxy, &json(body), &typed("text/plain", body));
    other(&proxy, &json(body), &json(body).without("Content-Type"));
    let free = Proxy::with(
        &upstream,
        "policy.fingerprint = { headers = [], body = 'raw' }",
    );
    same(&free, &json(body), &typed("text/plain", body));
}

#[test]
fn headers_count_only_where_they_are_chosen() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let plain = json("{}");
    let noisy = plain
        .clone()
        .header("User-Agent", "b")
        .header("X-Retry-Count", "1")
        .header("Traceparent", "00-1");
    same(&proxy, &plain, &noisy);
    let choosing = Proxy::with(
        &upstream,
        "policy.fingerprint.headers = ['Api-Version', 'x-b']",
    );
    let with = |a: &str, b: &str| plain.clone().header("API-Version", a).header("X-B", b);
    let swapped = plain.clone().header("x-b", "2").header("api-version", "1");
    same(&choosing, &with("1", "2"), &swapped);
    other(&choosing, &with("1", "2"), &with("2", "2"));
    other(&choosing, &with("1", "2"), &with("12", ""));
    other(&choosing, &with("1", "2"), &plain);
}

#[test]
fn the_query_counts_as_configured() {
    let upstream = Upstream::start();
    let at = |query: &str| Request::write("POST", &format!("/orders{query}"));
    let exact = Proxy::start(&upstream);
    other(&exact, &at("?a=1&b=2"), &at("?b=2&a=1"));
    other(&exact, &at("?a=1"), &at(""));
    let sorted = Proxy::with(&upstream, "policy.fingerprint.query = 'sorted'");
    same(&sorted, &at("?a=1&b=2&a=3"), &at("?b=2&a=1&a=3"));
    other(&sorted, &at("?a=1&a=3"), &at("?a=3&a=1"));
    let off = Proxy::with(&upstream, "policy.fingerprint.query = 'off'");
    same(&off, &at("?a=1"), &at("?z=9"));
}

#[test]
fn the_same_key_on_another_operation_is_another_record() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let name = key();
    for (method, path) in [
        ("POST", "/orders"),
        ("PUT", "/orders"),
        ("PUT", "/orders/1"),
        ("PUT", "/orders/2"),
    ] {
        executed(proxy.send(&Request::write(method, path).key(&name)));
    }
    assert_eq!(upstream.executions(), 4);
}

#[test]
fn with_one_key_a_caller_another_operation_is_a_reuse() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.scope = 'caller'");
    let post = Request::write("POST", "/orders");
    other(&proxy, &post, &Request::write("PATCH", "/orders"));
    other(&proxy, &post, &Request::write("POST", "/orders/1"));
    other(&proxy, &post, &Request::write("POST", "/orders?x"));
    same(&proxy, &post, &post);
    let loose = Proxy::with(
        &upstream,
        "policy.scope = 'caller'\npolicy.fingerprint = { method = false, path = false }",
    );
    same(&loose, &post, &Request::write("PUT", "/orders/1"));
}
