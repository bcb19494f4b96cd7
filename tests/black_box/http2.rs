//! HTTP/2 from clients, in cleartext with prior knowledge: the same requests, the same answers.

use std::process::Command;

use bytes::Bytes;
use http::{HeaderMap, Method};

use self::{
    raw::{DATA, END_HEADERS, HEADERS, PING, RST_STREAM, Raw, block, frame, pseudo},
    speaker::{Speaker, Then, order, request, with},
};
use crate::common::{Gate, Proxy, Request, Step, Upstream, events, key, reply};

mod floods;
mod protocol;
mod raw;
mod speaker;
mod times;

#[test]
fn a_request_that_is_given_up_in_the_middle_is_never_executed_whatever_it_is_given_up_with() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (code, pieces) in [(0, 1), (0, 0), (1, 1), (8, 1)] {
        let key = key();
        let mut fields = pseudo("POST", "/orders");
        fields.extend([
            ("authorization", "Bearer alice"),
            ("content-type", "application/json"),
            ("idempotency-key", &key),
        ]);
        let mut raw = Raw::connect(proxy.address());
        raw.say(frame(HEADERS, END_HEADERS, 1, block(&fields)));
        raw.say(frame(DATA, 0, 1, "{\"item\":").repeat(pieces));
        // By the answer to the PING it has been read.
        raw.say(frame(PING, 0, 0, [0; 8]));
        assert!(raw.until(|frame| frame.kind == PING).is_some());
        raw.say(frame(RST_STREAM, 0, 1, u32::to_be_bytes(code)));
        assert!(raw.is_served(3), "the connection goes on");
        let answer = Speaker::connect(proxy.address()).send(order(&key), "{}");
        assert_eq!(
            (answer.status, answer.marker()),
            (201, Some("miss")),
            "{answer:?}"
        );
    }
    let orders = upstream
        .seen()
        .into_iter()
        .filter(|seen| seen.target == "/orders");
    let bodies: Vec<_> = orders.map(|seen| seen.body).collect();
    assert_eq!(bodies, vec![b"{}".to_vec(); 4]);
}

#[test]
fn a_write_runs_once_and_its_retries_are_replayed_whatever_they_come_over() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let key = key();
    let first = speaker.send(order(&key), r#"{"item":"lamp"}"#);
    assert_eq!((first.status, first.marker()), (201, Some("miss")));
    let again = speaker.send(order(&key), r#"{ "item": "lamp" }"#);
    assert_eq!((again.status, again.marker()), (201, Some("hit")));
    assert_eq!(again.body, first.body);
    let over_http1 = Request::order(&key).body(r#"{"item":"lamp"}"#);
    let over_http1 = proxy.send(&over_http1);
    assert_eq!(over_http1.one("Idempotency-Key-Reply"), Some("hit"));
    assert_eq!(over_http1.body, first.body);
    let other = speaker.send(order(&key), "{}");
    assert_eq!((other.status, other.slug().as_str()), (422, "key-reused"));
    let twice = with(order(&key), "idempotency-key", "another");
    let twice = speaker.send(twice, "{}");
    assert_eq!((twice.status, twice.slug().as_str()), (400, "key-invalid"));
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn copies_on_one_connection_share_one_execution() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let (key, gate) = (key(), upstream.hold(Step::default()));
    let first = speaker.ask(order(&key), "{}");
    gate.arrived();
    let copies: Vec<_> = (0..20).map(|_| speaker.ask(order(&key), "{}")).collect();
    proxy.await_metric("idem_proxy_waiters", &[], 20.0);
    gate.open();
    let first = speaker.answer(first);
    assert_eq!(first.marker(), Some("miss"));
    for copy in copies {
        let copy = speaker.answer(copy);
        assert_eq!((copy.marker(), &copy.body), (Some("hit"), &first.body));
    }
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn conflicts_unknown_outcomes_and_streams_are_told_as_ever() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.in_flight = 'conflict'");
    let mut speaker = Speaker::connect(proxy.address());
    let (running, gate) = (key(), upstream.hold(Step::default()));
    let first = speaker.ask(order(&running), "{}");
    gate.arrived();
    let copy = speaker.send(order(&running), "{}");
    assert_eq!((copy.status, copy.slug().as_str()), (409, "in-flight"));
    assert!(copy.one("retry-after").is_some());
    gate.open();
    assert_eq!(speaker.answer(first).marker(), Some("miss"));

    let lost = key();
    upstream.then(Step::drop());
    let first = speaker.send(order(&lost), "{}");
    assert_eq!(
        (first.status, first.slug().as_str()),
        (502, "upstream-failed")
    );
    let again = speaker.send(order(&lost), "{}");
    assert_eq!(
        (again.status, again.slug().as_str()),
        (409, "outcome-unknown")
    );

    let (streamed, gate) = (key(), Gate::new());
    upstream.then(events(&[(&gate, "one"), (&gate, "two")]));
    gate.open();
    let first = speaker.send(order(&streamed), "{}");
    assert_eq!((first.status, first.marker()), (200, Some("miss")));
    assert_eq!(first.body, b"data: one\n\ndata: two\n\n");
    let again = speaker.send(order(&streamed), "{}");
    assert_eq!(
        (again.status, again.slug().as_str()),
        (409, "response-not-retained")
    );
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn a_stream_that_is_reset_or_a_connection_that_is_gone_ends_no_execution() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let mut another = Speaker::connect(proxy.address());
    let (key, gate) = (key(), upstream.hold(Step::default()));
    let leader = speaker.ask(order(&key), "{}");
    gate.arrived();
    let gives_up = speaker.ask(order(&key), "{}");
    let stays = another.ask(order(&key), "{}");
    proxy.await_metric("idem_proxy_waiters", &[], 2.0);
    gives_up.reset();
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    leader.reset();
    // Its connection serves on: the reset has been seen.
    assert_eq!(speaker.send(request("GET", "/free"), "").status, 200);
    drop(speaker);
    proxy.await_metric("idem_proxy_connections", &[("side", "client")], 1.0);
    gate.open();
    let joined = another.answer(stays);
    assert_eq!((joined.status, joined.marker()), (201, Some("hit")));
    let retry = another.send(order(&key), "{}");
    assert_eq!((retry.marker(), &retry.body), (Some("hit"), &joined.body));
    assert_eq!((upstream.executions(), upstream.lost()), (2, 0));
}

#[test]
fn an_unkeyed_call_ends_with_its_stream() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let gate = upstream.hold(reply(200).body(vec![b'x'; 8 << 20]));
    let asked = speaker.ask(request("GET", "/free"), "");
    gate.arrived();
    asked.reset();
    assert_eq!(speaker.send(request("GET", "/other"), "").status, 200);
    gate.open();
    crate::common::eventually("the call is cut", || upstream.lost() == 1);
}

#[test]
fn a_head_reaches_the_upstream_as_one_of_http1() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let mut asked = request("GET", "/a//b%2e?c=d&&e");
    for (name, value) in [
        ("cookie", "a=b"),
        ("cookie", "c=d"),
        ("x-two", "1"),
        ("x-two", "2"),
        ("te", "trailers"),
        ("x-forwarded-for", "203.0.113.9"),
        ("idempotency_key", "twin"),
    ] {
        asked = with(asked, name, value);
    }
    let answer = speaker.send(asked, "");
    assert_eq!(answer.status, 200);
    let seen = upstream.only();
    assert_eq!(seen.target, "/a//b%2e?c=d&&e");
    assert_eq!(seen.head.start, "GET /a//b%2e?c=d&&e HTTP/1.1");
    assert_eq!(seen.one("Host"), Some("shop.test"));
    assert_eq!(seen.one("Cookie"), Some("a=b; c=d"));
    assert_eq!(seen.all("X-Two"), ["1", "2"]);
    assert_eq!(seen.one("TE"), Some("trailers"));
    assert_eq!(seen.one("X-Forwarded-For"), Some("127.0.0.1"));
    assert_eq!(seen.one("X-Forwarded-Proto"), Some("http"));
    assert_eq!(seen.one("Idempotency_Key"), None);
    let same = with(request("GET", "/same"), "host", "SHOP.test");
    assert_eq!(speaker.send(same, "").status, 200);
    let other = with(request("GET", "/other"), "host", "evil.test");
    assert_eq!(speaker.send(other, "").status, 400);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn callers_are_told_apart_by_cookies_however_they_come() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "identity.from = ['cookie:sid']");
    let mut speaker = Speaker::connect(proxy.address());
    let key = key();
    let mut from = |cookies: &[&str]| {
        let mut asked = order(&key);
        for cookie in cookies {
            asked = with(asked, "cookie", cookie);
        }
        speaker.send(asked, "{}").marker().map(str::to_owned)
    };
    assert_eq!(from(&["a=1", "sid=alice"]).as_deref(), Some("miss"));
    assert_eq!(from(&["a=1; sid=alice"]).as_deref(), Some("hit"));
    assert_eq!(from(&["sid=alice", "b=2"]).as_deref(), Some("hit"));
    assert_eq!(from(&["a=1", "sid=bob"]).as_deref(), Some("miss"));
}

#[test]
fn what_is_refused_over_http1_is_refused_and_the_connection_goes_on() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_target_bytes = '1KiB'");
    let mut speaker = Speaker::connect(proxy.address());
    let long = format!("/{}", "x".repeat(1024));
    for (asked, status) in [
        (request("TRACE", "/free"), 405),
        (with(request("GET", "/free"), "expect", "miracles"), 417),
        (request("GET", &long), 414),
        (request("post", "/orders"), 400),
    ] {
        let what = format!("{asked:?}");
        let answer = speaker.send(asked, "");
        assert_eq!(answer.status, status, "{what}");
        assert!(answer.one("connection").is_none(), "{what}");
        assert_eq!(answer.json()["status"], status, "{what}");
    }
    let mut connect = http::Request::new(());
    *connect.method_mut() = Method::CONNECT;
    *connect.uri_mut() = "shop.test:443".parse().expect("an authority");
    assert_eq!(speaker.send(connect, "").status, 405);
    let large = with(request("GET", "/free"), "x-large", &"x".repeat(70_000));
    assert_eq!(speaker.send(large, "").status, 431);
    let fields = |count: usize| {
        let one = |asked, n| with(asked, "x-field", &format!("{n}"));
        // With the one that `:authority` becomes.
        (1..count).fold(request("POST", "/free"), one)
    };
    assert_eq!(speaker.send(fields(101), "").status, 431);
    assert_eq!(upstream.executions(), 0);
    let crumb = |asked, n| with(asked, "cookie", &format!("c{n}=1"));
    assert_eq!(
        speaker.send((0..200).fold(fields(90), crumb), "").status,
        201
    );
    assert_eq!(speaker.send(request("OPTIONS", "/free"), "").status, 200);
    assert!(speaker.goes_on());
}

#[test]
fn answers_come_without_what_was_their_connections() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let hop = reply(200)
        .header("Connection", "x-private, keep-alive")
        .header("Connection", "x-more")
        .header("X-Private", "1")
        .header("X-More", "1")
        .header("Keep-Alive", "timeout=5")
        .header("Set-Cookie", "a=1")
        .header("Set-Cookie", "b=2")
        .body("body")
        .chunked();
    upstream.then(hop);
    let answer = speaker.send(request("GET", "/free"), "");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"body"[..]));
    for name in [
        "connection",
        "x-private",
        "x-more",
        "keep-alive",
        "transfer-encoding",
    ] {
        assert!(answer.one(name).is_none(), "{name}: {answer:?}");
    }
    let cookies: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
    assert!(cookies.ends_with(&[
        &"a=1".parse::<http::HeaderValue>().expect("one"),
        &"b=2".parse().expect("one")
    ]));
    for status in [204, 304] {
        upstream.then(reply(status).bare());
        let answer = speaker.send(request("GET", "/free"), "");
        assert_eq!((answer.status, answer.body.len()), (status, 0));
    }
    upstream.then(reply(200).bare().header("Content-Length", "7"));
    let head = speaker.send(request("HEAD", "/free"), "");
    assert_eq!((head.status, head.one("content-length")), (200, Some("7")));
    assert!(head.body.is_empty());
}

#[test]
fn bodies_and_trailers_pass_in_both_directions() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let answer = reply(200)
        .bare()
        .header("Content-Type", "application/grpc")
        .header("Trailer", "grpc-status, set-cookie")
        .body("an answer")
        .trailer("grpc-status", "0")
        .trailer("set-cookie", "a=b");
    upstream.then(answer);
    let mut asked = request("POST", "/shop.Orders/Place");
    for (name, value) in [
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("trailer", "x-checksum, host, idempotency-key"),
    ] {
        asked = with(asked, name, value);
    }
    let mut asked = speaker.begin(asked, Then::Body);
    for piece in ["a ", "request"] {
        let piece = Bytes::from_static(piece.as_bytes());
        asked.body.send_data(piece, false).expect("an open stream");
    }
    let mut trailers = HeaderMap::new();
    for (name, value) in [
        ("x-checksum", "7"),
        ("host", "evil.test"),
        ("idempotency-key", "k"),
    ] {
        trailers.insert(name, value.parse().expect("a value"));
    }
    asked.body.send_trailers(trailers).expect("an open stream");
    let answer = speaker.answer(asked);
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (200, &b"an answer"[..])
    );
    assert_eq!(answer.trailers.len(), 1, "{answer:?}");
    assert_eq!(answer.trailers["grpc-status"], "0");
    let seen = upstream.only();
    assert_eq!(seen.body, b"a request");
    assert_eq!(seen.one("Transfer-Encoding"), Some("chunked"));
    assert_eq!(seen.trailers.names(), ["x-checksum"]);
}

#[test]
fn pieces_pass_as_they_come() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut speaker = Speaker::connect(proxy.address());
    let gate = Gate::new();
    upstream.then(reply(200).halted("first", &gate, "second"));
    let asked = speaker.ask(request("GET", "/events"), "");
    let mut head = speaker.head(asked);
    assert_eq!(head.status(), 200);
    let first = speaker.piece(head.body_mut());
    assert_eq!(first, "first");
    gate.open();
    assert_eq!(speaker.piece(head.body_mut()), "second");
    // And upwards: the upstream has the first piece before the second is sent.
    let mut asked = speaker.begin(request("POST", "/free"), Then::Body);
    let piece = Bytes::from_static(b"first");
    asked.body.send_data(piece, false).expect("an open stream");
    crate::common::eventually("the first piece is there", || upstream.uploading() == 5);
    asked.body.send_data(Bytes::new(), true).expect("open");
    assert_eq!(speaker.answer(asked).status, 201);
}

#[test]
fn a_key_in_a_body_is_found_and_a_large_body_is_refused() {
    let upstream = Upstream::start();
    let settings = "policy.key_sources = ['json:/key']\npolicy.max_request_body = '1KiB'";
    let proxy = Proxy::with(&upstream, settings);
    let mut speaker = Speaker::connect(proxy.address());
    let body = r#"{"key":"k1","item":"lamp"}"#;
    for marker in ["miss", "hit"] {
        let answer = speaker.send(order("unused"), body);
        assert_eq!((answer.status, answer.marker()), (201, Some(marker)));
    }
    let mut asked = speaker.begin(order("unused"), Then::Body);
    let large = Bytes::from(vec![b' '; 4096]);
    asked.body.send_data(large, false).expect("an open stream");
    assert_eq!(speaker.answer(asked).status, 413);
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn curl_speaks_it() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'x'; 3 << 20]).expect("a file");
    let curl = |arguments: &[&str], target: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "30", "--http2-prior-knowledge", "-w"]);
        command
            .arg("\n%{http_version} %{http_code}")
            .args(arguments);
        let done = command
            .arg(format!("http://{}{target}", proxy.address()))
            .output()
            .expect("curl is installed");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{done:?}");
        said
    };
    let key = format!("Idempotency-Key: {}", key());
    let keyed = ["-H", &key, "-H", "Authorization: a", "-d", "item=lamp"];
    let first = curl(&keyed, "/orders");
    assert_eq!(first, "{\"execution\":1}\n2 201");
    assert_eq!(curl(&keyed, "/orders"), first);
    // Over a mebibyte curl waits a second for a 100 that HTTP/2 need not send, and goes on by itself.
    let upload = format!("@{}", large.display());
    assert!(curl(&["--data-binary", &upload], "/free").ends_with("2 201"));
    assert_eq!(upstream.last().body_size, 3 << 20);
    assert_eq!(upstream.executions(), 2);
}
