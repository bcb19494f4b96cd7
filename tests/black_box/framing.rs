//! What a client sends is judged before anything believes it: each way to be malformed has its answer, its connection ends, and the
//! upstream gets not a byte of it.

use crate::common::{
    Client, Gate, PATIENCE, Proxy, Request, Step, Upstream, eventually, executed, key, problem,
    reply,
};

/// What follows on the same connection, and must never be read as a request.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Lines of a POST's head that has one Host, and what stands behind them.
#[rustfmt::skip]
const HEADS: &[(&str, &str)] = &[
    ("length, then coding", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("coding, then length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    ("two equal lengths", "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    ("two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    ("a list of lengths", "Content-Length: 5, 5\r\n\r\nhello"),
    ("a signed length", "Content-Length: +5\r\n\r\nhello"),
    ("a hexadecimal length", "Content-Length: 0x5\r\n\r\nhello"),
    ("a length of 2^64", "Content-Length: 18446744073709551616\r\n\r\nhello"),
    ("an unknown coding", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("a coding before chunked", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("a coding behind chunked", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("chunked on two lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunked twice on a line", "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("a vertical tab before chunked", "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("a space before the colon", "Content-Length : 5\r\n\r\nhello"),
    ("a folded line", "X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n"),
    ("a bare CR", "X-A: b\rX-B: c\r\nContent-Length: 0\r\n\r\n"),
    ("a bare LF", "X-A: b\nX-B: c\r\nContent-Length: 0\r\n\r\n"),
    ("a bare LF at the end", "Content-Length: 0\r\n\n"),
    ("a NUL", "X-A: b\0c\r\nContent-Length: 0\r\n\r\n"),
    ("a DEL", "X-A: b\x7fc\r\nContent-Length: 0\r\n\r\n"),
    ("a second Host", "Host: a\r\nContent-Length: 0\r\n\r\n"),
    ("an empty name", ": b\r\nContent-Length: 0\r\n\r\n"),
    ("no name", "X-A\r\nContent-Length: 0\r\n\r\n"),
];

/// Whole heads.
#[rustfmt::skip]
const WHOLE: &[(&str, &str)] = &[
    ("no Host", "POST /orders HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
    ("a coding in HTTP/1.0", "POST /orders HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("bare LF everywhere", "POST /orders HTTP/1.1\nHost: a\nContent-Length: 0\n\n"),
    ("HTTP/1.2", "GET /free HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("HTTP/2.0", "GET /free HTTP/2.0\r\nHost: a\r\n\r\n"),
    ("HTTP/0.9", "GET /free\r\n\r\n"),
    ("two spaces", "GET  /free HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a byte beyond ASCII in the target", "GET /fr\u{e9}e HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a target without a slash", "GET free HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two empty lines", "\r\n\r\nGET /free HTTP/1.1\r\nHost: a\r\n\r\n"),
];

/// Bodies behind a chunked head.
#[rustfmt::skip]
const CHUNKS: &[(&str, &str)] = &[
    ("an extension with LF", "5;a=\nb\r\nhello\r\n0\r\n\r\n"),
    ("lines that end with LF", "5\nhello\n0\n\n"),
    ("a prefixed size", "0x5\r\nhello\r\n0\r\n\r\n"),
    ("a signed size", "+5\r\nhello\r\n0\r\n\r\n"),
    ("a size with a space", "5 \r\nhello\r\n0\r\n\r\n"),
    ("an empty size", "\r\nhello\r\n0\r\n\r\n"),
    ("a size of 17 digits", "00000000000000005\r\nhello\r\n0\r\n\r\n"),
    ("data beyond its size", "3\r\nhello\r\n0\r\n\r\n"),
    ("LF behind the last chunk", "0\r\n\nX"),
    ("a trailer with LF", "0\r\nX: 1\nY: 2\r\n\r\n"),
    ("a trailer without a name", "0\r\n: 1\r\n\r\n"),
];

/// The answer to bytes that are malformed: a problem, and the end of the connection.
fn refusal(proxy: &Proxy, what: &str, bytes: &[u8], slug: &str) {
    let mut client = proxy.client();
    let _ = client.try_say(bytes);
    let answer = client
        .try_answer(PATIENCE)
        .unwrap_or_else(|trouble| panic!("{what}: {trouble:?}"));
    assert_eq!(answer.one("Connection"), Some("close"), "{what}: {answer}");
    problem(&answer, slug);
    assert!(client.is_closed(), "{what}: the connection stays open");
}

/// The same, and the upstream sees nothing but the clean request after it.
fn repelled(proxy: &Proxy, upstream: &Upstream, what: &str, bytes: &str, slug: &str) {
    let before = (
        upstream.executions(),
        upstream.partial(),
        upstream.garbled(),
    );
    refusal(proxy, what, format!("{bytes}{SMUGGLED}").as_bytes(), slug);
    let now = (
        upstream.executions(),
        upstream.partial(),
        upstream.garbled(),
    );
    assert_eq!(now, before, "{what}");
    executed(proxy.send(&Request::order(&key())));
    let seen = upstream.seen();
    assert!(seen.iter().all(|seen| seen.target == "/orders"), "{what}");
    assert_eq!(upstream.executions(), before.0 + 1, "{what}");
}

#[test]
fn malformed_heads_are_answered_by_a_problem_and_nothing_passes() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, rest) in HEADS {
        for keyed in ["", "Authorization: a\r\nIdempotency-Key: k\r\n"] {
            let bytes = format!("POST /orders HTTP/1.1\r\nHost: a\r\n{keyed}{rest}");
            repelled(&proxy, &upstream, what, &bytes, "bad-request");
        }
    }
    for (what, bytes) in WHOLE {
        repelled(&proxy, &upstream, what, bytes, "bad-request");
    }
    let refused = HEADS.len() * 2 + WHOLE.len();
    let labels = [("outcome", "bad_request"), ("route", "")];
    proxy.await_metric(
        "idem_proxy_requests_total",
        &labels,
        f64::from(u32::try_from(refused).unwrap_or_default()),
    );
    let lines = || -> Vec<String> {
        let log = proxy.log();
        let lines = log.lines().filter(|line| line.contains("bad_request"));
        lines.map(str::to_owned).collect()
    };
    eventually("every refusal is in the log", || lines().len() == refused);
    for line in lines() {
        assert!(line.contains("\"status\":400"), "{line}");
        assert!(line.contains("\"method\":\"other\""), "{line}");
    }
}

#[test]
fn malformed_chunks_of_a_keyed_request_are_answered_by_a_problem_and_nothing_passes() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, body) in CHUNKS {
        let bytes = format!(
            "POST /orders HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        );
        repelled(&proxy, &upstream, what, &bytes, "bad-request");
    }
}

#[test]
fn malformed_chunks_of_a_stream_break_the_upstreams_copy_off() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, body) in CHUNKS {
        let head = "POST /free HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        refusal(
            &proxy,
            what,
            format!("{head}{body}{SMUGGLED}").as_bytes(),
            "bad-request",
        );
        assert_eq!(
            (upstream.executions(), upstream.garbled()),
            (0, 0),
            "{what}"
        );
    }
}

/// Request smuggling as it is known: one parser sees one request, another two.
#[rustfmt::skip]
const VECTORS: &[(&str, &str)] = &[
    ("CL.TE", "Content-Length: 43\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("TE.CL", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n2c\r\n"),
    ("CL.0", "Content-Length: 0, 38\r\n\r\n"),
    ("0.CL", "Content-Length:\r\n 38\r\n\r\n"),
    ("CL.CL", "Content-Length: 0\r\nContent-Length: 38\r\n\r\n"),
    ("TE.TE, hidden by a space", "Content-Length: 38\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    ("TE.TE, hidden by a tab", "Content-Length: 38\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    ("TE.TE, hidden by a fold", "Content-Length: 38\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("TE.TE, hidden by LF", "Content-Length: 38\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("TE.TE, hidden by CR", "Content-Length: 38\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("TE.TE, hidden by NUL", "Content-Length: 38\r\nTransfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n"),
    ("TE.TE, another coding", "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n"),
    ("TERM.EXT", "Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n2c\r\n0\r\n\r\n"),
    ("EXT.TERM", "Transfer-Encoding: chunked\r\n\r\n2;a\rb\r\nxx\r\n0\r\n\r\n"),
    ("TERM.SPILL", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n2c\r\n0\r\n\r\n"),
    ("ONE.TWO", "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX2c\r\n0\r\n\r\n"),
];

#[test]
fn no_request_is_smuggled() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, rest) in VECTORS {
        for head in [
            "POST /orders HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nIdempotency-Key: k",
            "POST /orders HTTP/1.1\r\nHost: a",
        ] {
            let mut client = proxy.client();
            let _ = client.try_say(format!("{head}\r\n{rest}{SMUGGLED}"));
            let all = client.everything();
            assert!(all.starts_with("HTTP/1.1 400 "), "{what}: {all}");
            assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{what}: {all}");
        }
        executed(proxy.send(&Request::order(&key())));
    }
    assert_eq!(upstream.executions(), VECTORS.len());
    assert_eq!(upstream.garbled(), 0);
    assert!(upstream.seen().iter().all(|seen| seen.target == "/orders"));
}

#[test]
fn heads_are_bounded_to_the_byte() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.max_head_bytes = '20000B'\nserver.max_target_bytes = '1000B'",
    );
    let head = |bytes: usize| {
        let short = Request::get("/free").header("X-Long", "");
        let fill = bytes - short.bytes().len();
        let head = Request::get("/free")
            .header("X-Long", "x".repeat(fill))
            .bytes();
        assert_eq!(head.len(), bytes);
        head
    };
    assert_eq!(proxy.say(head(20_000)).status, 200);
    refusal(&proxy, "a head", &head(20_001), "head-too-large");
    // It is refused before it is whole.
    refusal(&proxy, "no end", &head(40_000)[..20_001], "head-too-large");
    let fields = |count: usize| {
        let more = (1..count).fold(Request::get("/free"), |request, _| request.header("X", "y"));
        more.bytes()
    };
    assert_eq!(proxy.say(fields(100)).status, 200);
    refusal(&proxy, "fields", &fields(101), "head-too-large");
    let target = |bytes: usize| Request::get(&format!("/{}", "t".repeat(bytes - 1))).bytes();
    assert_eq!(proxy.say(target(1000)).status, 200);
    refusal(&proxy, "a target", &target(1001), "target-too-long");
    refusal(
        &proxy,
        "half a target",
        &target(5000)[..1005],
        "target-too-long",
    );
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn a_refusal_reaches_a_client_that_goes_on_sending() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let flood = "x".repeat(8 << 20);
    for _ in 0..10 {
        refusal(
            &proxy,
            "a flood",
            format!("nonsense\r\n\r\n{flood}").as_bytes(),
            "bad-request",
        );
        let large = Request::order(&key()).body(&flood);
        let mut client = proxy.begin(&large);
        problem(&client.answer(), "body-too-large");
        let mut refused = proxy.begin(&Request::new("TRACE", "/free").body(&flood));
        assert_eq!(refused.answer().status, 405);
    }
    assert_eq!(upstream.executions() + upstream.partial(), 0);
}

#[test]
fn pipelined_requests_are_answered_in_order_and_the_refusal_last() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let gate = upstream.hold(reply(201).body("first"));
    upstream.then(reply(201).body("second"));
    upstream.then(reply(200).body("third"));
    let requests = [
        Request::order(&key()).bytes(),
        Request::order(&key()).chunked().bytes(),
        Request::get("/free").bytes(),
        b"GET /free HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_vec(),
        SMUGGLED.as_bytes().to_vec(),
    ];
    let mut client = proxy.client();
    client.say(requests.concat());
    gate.arrived();
    gate.open();
    for body in ["first", "second", "third"] {
        assert_eq!(client.answer().body, body.as_bytes());
    }
    problem(&client.answer(), "bad-request");
    assert!(client.is_closed());
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn the_bytes_of_a_request_may_come_one_by_one() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    let requests = [
        Request::order(&key()).chunked().bytes(),
        b"\r\n".to_vec(),
        Request::order(&key()).bytes(),
    ];
    for byte in requests.concat() {
        client.say([byte]);
    }
    for _ in 0..2 {
        executed(client.answer());
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_refusal_of_head_has_no_body() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    client.say("HEAD /free HTTP/1.1\r\n\r\n");
    let all = client.everything();
    assert!(
        all.starts_with("HTTP/1.1 400 ") && all.ends_with("\r\n\r\n"),
        "{all}"
    );
}

#[test]
fn a_request_for_another_protocol_runs_as_http_and_the_connection_goes_on() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let gate = Gate::new();
    upstream.then(Step::default().behind(&gate));
    let upgrade = |request: Request| {
        request
            .header("Connection", "upgrade")
            .header("Upgrade", "h2c")
            .bytes()
    };
    let mut client = proxy.client();
    client.say(
        [
            upgrade(Request::order(&key())),
            Request::get("/free").bytes(),
        ]
        .concat(),
    );
    gate.arrived();
    gate.open();
    executed(client.answer());
    assert_eq!(client.answer().status, 200);
    client.say(upgrade(Request::get("/free"))).answer();
    client.say("nonsense\r\n\r\n");
    problem(&client.answer(), "bad-request");
    assert!(Client::is_closed(&mut client));
    assert_eq!(upstream.executions(), 3);
}
