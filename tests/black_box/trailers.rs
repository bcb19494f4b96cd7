//! Trailers: they pass where both sides take them, and a stored answer keeps its own.

use crate::common::{
    Answer, Framing, Proxy, Reply, Request, Upstream, chunk, executed, key, marker, problem,
    replayed, reply,
};

/// An answer in the manner of gRPC: how it went is said behind the body.
fn trailed() -> Reply {
    reply(200)
        .body("hello")
        .trailer("grpc-status", "0")
        .trailer("grpc-message", "na%C3%AFve")
        .trailer("x-sum", "9")
}

fn takes(request: Request) -> Request {
    request.header("Connection", "TE").header("TE", "trailers")
}

fn has_trailers(answer: &Answer) {
    assert_eq!(answer.body, b"hello", "{answer}");
    assert_eq!(answer.framing, Framing::Chunked, "{answer}");
    assert_eq!(answer.trailers.one("grpc-status"), Some("0"), "{answer}");
    assert_eq!(answer.trailers.one("grpc-message"), Some("na%C3%AFve"));
    assert_eq!(answer.trailers.one("x-sum"), Some("9"));
    let announced = answer.all("Trailer").join(",").to_ascii_lowercase();
    for name in ["grpc-status", "grpc-message", "x-sum"] {
        assert!(announced.contains(name), "{answer}");
        assert!(answer.all(name).is_empty(), "{answer}");
    }
}

fn has_none(answer: &Answer) {
    assert_eq!(answer.body, b"hello", "{answer}");
    assert_eq!(answer.framing, Framing::Length(5), "{answer}");
    for name in ["grpc-status", "x-sum", "Trailer"] {
        assert!(answer.all(name).is_empty() && answer.trailers.all(name).is_empty());
    }
}

#[test]
fn a_stored_answer_keeps_its_trailers_and_gives_them_to_those_that_take_them() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for first_takes in [true, false] {
        upstream.then(trailed());
        let plain = Request::order(&key());
        let taking = takes(plain.clone());
        let first = proxy.send(if first_takes { &taking } else { &plain });
        assert_eq!((first.status, marker(&first)), (200, Some("miss")));
        let upstreams = upstream.last();
        let expected = first_takes.then_some("trailers");
        assert_eq!(upstreams.one("TE"), expected, "{upstreams}");
        if first_takes {
            has_trailers(&first);
        } else {
            has_none(&first);
        }
        let mut client = proxy.client();
        for _ in 0..2 {
            let again = client.ask(&taking).answer();
            assert_eq!(marker(&again), Some("hit"), "{again}");
            has_trailers(&again);
            let again = client.ask(&plain).answer();
            assert_eq!(marker(&again), Some("hit"), "{again}");
            has_none(&again);
        }
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn joiners_get_trailers_whether_or_not_the_answer_is_stored() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for status in [200, 500] {
        let mut answer = trailed();
        if status == 500 {
            answer = reply(500)
                .body("hello")
                .trailer("grpc-status", "0")
                .trailer("grpc-message", "na%C3%AFve")
                .trailer("x-sum", "9");
        }
        let gate = upstream.hold(answer);
        let plain = Request::order(&key());
        let mut first = proxy.begin(&plain);
        gate.arrived();
        let mut joiners = [proxy.begin(&takes(plain.clone())), proxy.begin(&plain)];
        proxy.await_metric("idem_proxy_waiters", &[], 2.0);
        gate.open();
        has_none(&first.answer());
        has_trailers(&joiners[0].answer());
        has_none(&joiners[1].answer());
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn what_may_not_stand_in_trailers_neither_passes_nor_is_kept() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let names = [
        "Content-Length",
        "Content-Type",
        "Transfer-Encoding",
        "Host",
        "Set-Cookie",
        "Authorization",
        "Cache-Control",
        "Location",
        "Idempotency-Key",
        "X-Forwarded-For",
        "Connection",
        "Trailer",
    ];
    let mut answer = trailed();
    for name in names {
        answer = answer.trailer(name, "1");
    }
    upstream.always(answer);
    let keyed = takes(Request::order(&key()));
    for request in [&takes(Request::get("/free")), &keyed, &keyed] {
        let answer = proxy.send(request);
        has_trailers_among(&answer);
        for name in names {
            assert!(answer.trailers.all(name).is_empty(), "{name}: {answer}");
        }
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn what_the_proxy_says_of_an_answer_is_not_said_otherwise_behind_it() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.expiry_header = 'X-Expires'");
    let lies = trailed()
        .trailer("Idempotency-Key-Reply", "hit")
        .trailer("X-Expires", "never");
    upstream.always(lies);
    let request = takes(Request::order(&key()));
    for said in ["miss", "hit"] {
        let answer = proxy.send(&request);
        assert_eq!(answer.one("Idempotency-Key-Reply"), Some(said), "{answer}");
        has_trailers_among(&answer);
        for name in ["Idempotency-Key-Reply", "X-Expires"] {
            assert!(answer.trailers.all(name).is_empty(), "{name}: {answer}");
        }
    }
}

fn has_trailers_among(answer: &Answer) {
    assert_eq!(answer.body, b"hello", "{answer}");
    assert_eq!(answer.trailers.one("grpc-status"), Some("0"), "{answer}");
}

#[test]
fn trailers_count_as_a_part_of_the_body_that_is_kept() {
    let upstream = Upstream::start();
    // "x-sum: 9" and its line's end are ten bytes.
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '15B'");
    upstream.then(reply(200).body("hello").trailer("x-sum", "9"));
    let request = takes(Request::order(&key()));
    executed(proxy.send(&request));
    assert_eq!(proxy.send(&request).trailers.one("x-sum"), Some("9"));
    upstream.then(reply(200).body("hello").trailer("x-sum", "10"));
    let request = takes(Request::order(&key()));
    let answer = proxy.send(&request);
    assert_eq!((answer.status, marker(&answer)), (200, Some("miss")));
    assert_eq!(answer.body, b"hello");
    assert_eq!(answer.trailers.one("x-sum"), Some("10"), "{answer}");
    problem(&proxy.send(&request), "response-not-retained");
}

#[test]
fn answers_that_pass_as_they_come_pass_with_their_trailers() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '3B'");
    for answer in [
        trailed(),
        trailed().header("Content-Type", "text/event-stream"),
        reply(500)
            .body("hello")
            .trailer("grpc-status", "0")
            .trailer("grpc-message", "na%C3%AFve")
            .trailer("x-sum", "9"),
    ] {
        upstream.then(answer);
        has_trailers(&proxy.send(&takes(Request::order(&key()))));
    }
}

#[test]
fn a_keyed_requests_own_trailers_end_here_and_do_not_count() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let head = request
        .clone()
        .without_body()
        .header("Transfer-Encoding", "chunked")
        .header("Trailer", "X-Sum")
        .head();
    let body = request.framed_body();
    let with = |trailer: &str| {
        [
            head.as_slice(),
            &chunk(&body),
            b"0\r\n",
            trailer.as_bytes(),
            b"\r\n",
        ]
        .concat()
    };
    let first = executed(proxy.say(with("X-Sum: 1\r\n")));
    replayed(&proxy.say(with("X-Sum: 2\r\n")), &first);
    let seen = upstream.only();
    assert!(
        !seen.trailers.has("X-Sum") && seen.all("Trailer").is_empty(),
        "{seen}"
    );
    assert_eq!(seen.body, body);
}

#[test]
fn an_unkeyed_requests_trailers_pass_but_for_what_may_not_stand_there() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let head = "POST /free HTTP/1.1\r\nHost: a\r\nConnection: x-mine\r\nTransfer-Encoding: chunked\r\n\
                Trailer: X-Sum, X-Mine, Cookie, Range\r\n\r\n";
    let bytes = format!(
        "{head}5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Mine: 1\r\nCookie: a=1\r\nRange: x\r\n\r\n"
    );
    assert_eq!(proxy.say(bytes).status, 201);
    let seen = upstream.only();
    assert_eq!(seen.trailers.one("X-Sum"), Some("1"), "{seen}");
    for gone in ["X-Mine", "Cookie", "Range"] {
        assert!(!seen.trailers.has(gone), "{gone}: {seen}");
    }
}
