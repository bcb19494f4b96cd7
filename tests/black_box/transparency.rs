//! Being invisible: requests and answers without a key are the same through the proxy as without it, but for the fields that a proxy adds.

use std::collections::BTreeMap;

use crate::common::{Client, Framing, Proxy, Reply, Request, Upstream, reply};

/// What a proxy adds to a request.
const ADDED: [&str; 5] = [
    "traceparent",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

type Lines = BTreeMap<String, Vec<String>>;

/// The lines of each field, in their order.
fn lines(head: &crate::common::Head, but: &[&str]) -> Lines {
    let mut lines = Lines::new();
    for name in head.fields.names() {
        if !but.contains(&name.as_str()) {
            let values = head.fields.all(&name).into_iter().map(str::to_owned);
            lines.insert(name.clone(), values.collect());
        }
    }
    lines
}

/// What one exchange looked like at both ends.
#[derive(Debug, PartialEq)]
struct Exchange {
    start: String,
    asked: Lines,
    asked_body: Vec<u8>,
    status: String,
    answered: Lines,
    answered_body: Vec<u8>,
    trailers: Vec<String>,
    framing: Framing,
}

fn exchange(client: &mut Client, upstream: &Upstream, request: &Request) -> Exchange {
    let answer = client.ask(request).answer();
    let seen = upstream.last();
    Exchange {
        start: seen.head.start.clone(),
        asked: lines(&seen.head, &ADDED),
        asked_body: seen.body,
        // The reason phrase is of no meaning (RFC 9112, section 4) and is not kept.
        status: answer
            .head
            .start
            .split(' ')
            .nth(1)
            .unwrap_or_default()
            .to_owned(),
        // Where there is no body there is nothing to be framed: the field is of one hop.
        answered: lines(&answer.head, &["transfer-encoding"]),
        answered_body: answer.body,
        trailers: answer.trailers.names(),
        framing: answer.framing,
    }
}

fn requests() -> Vec<Request> {
    let mut requests = Vec::new();
    for target in [
        "/free",
        "/",
        "/free?",
        "/free?a=1&a=2&&b=&c",
        "//free//x/",
        "/free/%2e%2E/./../x",
        "/%7e~%2f%00%ff",
        "/a;b=c,d@e:f!$&'()*+",
        "/free?x=/?%3f%3F",
        "/orders",
        "/orders/7?q=%20+",
    ] {
        requests.push(Request::get(target));
        requests.push(Request::new("HEAD", target));
        requests.push(Request::new("POST", target).body("hello"));
        requests.push(Request::new("PUT", target).body("hello").chunked());
        requests.push(Request::new("GET", target).body("hello").chunked());
        requests.push(Request::new("HEAD", target).body("hello").chunked());
        requests.push(Request::new("DELETE", target));
        requests.push(Request::new("OPTIONS", target));
        requests.push(Request::new("PROPFIND", target).body(""));
    }
    requests.push(Request::new("OPTIONS", "*"));
    let every: Vec<u8> = (0x21..=0xff).filter(|byte| *byte != 0x7f).collect();
    requests.push(Request::get("/free").header("X-Bytes", &every));
    requests.push(
        Request::get("/free")
            .header("Cookie", "a=1")
            .header("Cookie", "b=\"2\"; c"),
    );
    requests.push(
        Request::get("/free")
            .header("X-Empty", "")
            .header("X-Empty", "")
            .header("Accept", ""),
    );
    requests.push(
        Request::get("/free")
            .header("X-Line", "3")
            .header("Accept", "b")
            .header("x-line", "1")
            .header("X-LINE", "2, 2")
            .header("Accept", "a;q=0.1"),
    );
    requests.push(
        Request::get("/free")
            .header("Range", "bytes=0-0, 5-")
            .header("If-None-Match", "W/\"x\", *"),
    );
    requests.push(
        Request::get("/free")
            .header("User-Agent", "")
            .header("Accept-Encoding", "br;q=1.0, *;q=0"),
    );
    requests.push(
        Request::new("POST", "/free")
            .header("Content-Encoding", "gzip")
            .body([0x1f, 0x8b, 0, 255]),
    );
    requests.push(
        Request::get("/free")
            .without("Host")
            .header("Host", "[::1]:8080"),
    );
    requests.push(Request::get("/free").without("Host").header("Host", ""));
    requests
}

#[test]
fn every_request_reaches_the_upstream_as_it_was_sent() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.always(reply(200).bare().body("{}"));
    for request in requests() {
        let mut direct = Client::connect(upstream.address());
        let expected = exchange(&mut direct, &upstream, &request);
        let through = exchange(&mut proxy.client(), &upstream, &request);
        assert_eq!(
            through,
            expected,
            "{}",
            String::from_utf8_lossy(&request.head())
        );
    }
}

fn answers() -> Vec<Reply> {
    let mut answers = Vec::new();
    for status in [
        200, 201, 202, 203, 206, 207, 226, 299, 300, 301, 303, 307, 400, 401, 404, 410, 418, 422,
        429, 451, 500, 503, 599, 999,
    ] {
        answers.push(reply(status).body("some body"));
        answers.push(reply(status).body(""));
    }
    answers.push(reply(204));
    answers.push(reply(304));
    answers.push(
        reply(304)
            .header("ETag", "\"x\"")
            .header("Vary", "a")
            .header("Vary", "b"),
    );
    answers.push(reply(200).body("hello").chunked());
    answers.push(reply(200).body("").chunked());
    let every: Vec<u8> = (0x21..=0xff).filter(|byte| *byte != 0x7f).collect();
    answers.push(
        reply(200)
            .body("x")
            .header("X-Bytes", &every)
            .header("X-Empty", ""),
    );
    answers.push(
        reply(200)
            .body("x")
            .header("Set-Cookie", "b=2; Expires=Wed, 09 Jun 2027 10:18:14 GMT")
            .header("Set-Cookie", "a=1, c")
            .header("Set-Cookie", ""),
    );
    answers.push(
        reply(200)
            .body("x")
            .header("Date", "not a date")
            .header("Server", "x/1")
            .header("Server", "y"),
    );
    answers.push(
        reply(200)
            .body("x")
            .header("Via", "1.1 cache")
            .header("Warning", "199 - \"x\"")
            .header("Strict-Transport-Security", "max-age=1")
            .header("WWW-Authenticate", "Basic")
            .header("WWW-Authenticate", "Digest realm=\"a, b\""),
    );
    answers.push(
        reply(200)
            .header("Content-Encoding", "gzip")
            .body([0x1f, 0x8b, 0, 255]),
    );
    answers
}

#[test]
fn every_answer_reaches_the_client_as_it_was_sent() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut through = proxy.client();
    for answer in answers() {
        for request in [
            Request::get("/free"),
            Request::new("HEAD", "/free"),
            Request::new("POST", "/orders").body("x"),
        ] {
            // The upstream's own fields and body have a number that changes.
            upstream.always(answer.clone().bare());
            let mut direct = Client::connect(upstream.address());
            let expected = exchange(&mut direct, &upstream, &request);
            let proxied = exchange(&mut through, &upstream, &request);
            assert_eq!(proxied, expected, "{answer:?}");
        }
    }
}

#[test]
fn an_answer_without_a_length_comes_whole_and_the_connection_goes_on() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    for size in [0, 5, 300_000] {
        upstream.then(reply(200).body("z".repeat(size)).until_close());
        let answer = client.ask(&Request::get("/free")).answer();
        assert_eq!(
            (answer.body.len(), answer.framing),
            (size, Framing::Chunked)
        );
        assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    }
}

#[test]
fn an_absolute_target_names_the_host_and_becomes_a_path() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (target, host, path) in [
        ("http://shop.test/free?x=1", "shop.test", "/free?x=1"),
        ("http://shop.test:81", "shop.test:81", "/"),
        ("http://SHOP.test/?", "SHOP.test", "/?"),
        ("https://shop.test//a/%2e", "shop.test", "//a/%2e"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: other.test\r\n\r\n");
        assert_eq!(proxy.say(request).status, 200, "{target}");
        let seen = upstream.last();
        assert_eq!((seen.target.as_str(), seen.one("Host")), (path, Some(host)));
    }
}

#[test]
fn a_fragment_never_reaches_the_upstream() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (target, path) in [
        ("/free#part", "/free"),
        ("/free?a=1#?b=2", "/free?a=1"),
        ("/#", "/"),
    ] {
        proxy.say(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(upstream.last().target, path, "{target}");
    }
}

#[test]
fn an_older_client_never_gets_chunks_whatever_the_upstream_sends() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for answer in [
        reply(200).body("hello").chunked(),
        reply(200).body("hello"),
        reply(200).body("hello").until_close(),
        reply(200).body("hello").trailer("X-Sum", "1"),
    ] {
        upstream.then(answer);
        let raw = proxy
            .client()
            .say("GET /free HTTP/1.0\r\nHost: a\r\nTE: trailers\r\n\r\n")
            .everything();
        let head = raw.to_ascii_lowercase();
        assert!(
            head.starts_with("http/1.") && head.contains(" 200 "),
            "{raw}"
        );
        assert!(
            !head.contains("transfer-encoding") && raw.ends_with("\r\n\r\nhello"),
            "{raw}"
        );
    }
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.head.start.ends_with(" HTTP/1.1"))
    );
}
