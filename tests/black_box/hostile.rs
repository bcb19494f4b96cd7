//! Attacks have one shape: hostile bytes, a refusal, a clean request that works, and an upstream that saw just that one.

use crate::common::{
    Client, PATIENCE, Proxy, Request, Step, Upstream, eventually, executed, key, reply,
};

/// What follows hostile bytes on the same connection, and must never be read as a request.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Lines of a keyed POST's head, and what stands behind it.
#[rustfmt::skip]
const FRAMING: &[(&str, &str)] = &[
    ("two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    ("a list of lengths", "Content-Length: 5, 5\r\n\r\nhello"),
    ("a signed length", "Content-Length: +5\r\n\r\nhello"),
    ("a hexadecimal length", "Content-Length: 0x5\r\n\r\nhello"),
    ("an empty length", "Content-Length: \r\n\r\nhello"),
    ("a length beyond 64 bits", "Content-Length: 18446744073709551616\r\n\r\nhello"),
    ("an unknown coding", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("another coding", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("chunked twice", "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("chunked on two lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a coding after chunked", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("a coding with a vertical tab", "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("an empty coding", "Transfer-Encoding: \r\nContent-Length: 0\r\n\r\n"),
    ("a folded line", "X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n"),
    ("a folded coding", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("a space before the colon", "Content-Length : 5\r\n\r\nhello"),
    ("a space in a name", "X A: b\r\nContent-Length: 0\r\n\r\n"),
    ("an empty name", ": b\r\nContent-Length: 0\r\n\r\n"),
    ("no colon", "X-A\r\nContent-Length: 0\r\n\r\n"),
    ("a bare CR", "X-A: b\rX-B: c\r\nContent-Length: 0\r\n\r\n"),
    ("a NUL", "X-A: b\0c\r\nContent-Length: 0\r\n\r\n"),
    ("a second Host", "Host: b\r\nContent-Length: 0\r\n\r\n"),
    ("a chunk size that is none", "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"),
    ("a signed chunk size", "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n"),
    ("a prefixed chunk size", "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    ("a chunk longer than its size", "Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n"),
    ("a chunk that ends with LF", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n"),
    ("a chunk size beyond 64 bits", "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"),
];

/// Whole heads.
#[rustfmt::skip]
const HEADS: &[(&str, &str)] = &[
    ("no Host", "POST /orders HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
    ("no version", "GET /free\r\nHost: a\r\n\r\n"),
    ("another version", "GET /free HTTP/3.7\r\nHost: a\r\n\r\n"),
    ("a space in the target", "GET /free /x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a NUL in the target", "GET /fr\0ee HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a line before the request line", "X: y\r\nGET /free HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a header before the first name", "GET /free HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n"),
    ("a bad Host", "GET /free HTTP/1.1\r\nHost: a b\r\n\r\n"),
    ("a Host with a path", "GET /free HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    ("nonsense", "\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n"),
];

/// Sends hostile bytes: they are refused, the connection ends, and the upstream sees only the clean request after it.
fn repelled(proxy: &Proxy, upstream: &Upstream, what: &str, bytes: &str) {
    let before = upstream.executions();
    let mut client = proxy.client();
    let _ = client.try_say(format!("{bytes}{SMUGGLED}"));
    let answer = client
        .try_answer(PATIENCE)
        .unwrap_or_else(|trouble| panic!("{what}: {trouble:?}"));
    assert_eq!(answer.status, 400, "{what}: {answer}");
    assert!(client.is_closed(), "{what}: the connection stays open");
    executed(proxy.send(&Request::order(&key())));
    assert_eq!(
        (upstream.executions(), upstream.garbled()),
        (before + 1, 0),
        "{what}"
    );
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.target != "/smuggled"),
        "{what}"
    );
}

#[test]
fn keyed_requests_with_doubtful_framing_never_reach_the_upstream() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, rest) in FRAMING {
        let name = key();
        let head = format!(
            "POST /orders HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nIdempotency-Key: {name}\r\n"
        );
        repelled(&proxy, &upstream, what, &format!("{head}{rest}"));
        // The refused request claimed nothing.
        executed(proxy.send(&Request::order(&name).caller("Bearer a")));
    }
    assert_eq!(upstream.partial(), 0);
}

#[test]
fn unkeyed_requests_with_doubtful_framing_never_reach_the_upstream_whole() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, rest) in FRAMING {
        // What is wrong with a chunk shows only when the head has gone on: the upstream's copy then breaks off.
        let streamed = what.contains("chunk ") || what.contains("chunk size");
        let bytes = format!("POST /free HTTP/1.1\r\nHost: a\r\n{rest}");
        if streamed {
            let before = upstream.executions();
            let mut client = proxy.client();
            let _ = client.try_say(format!("{bytes}{SMUGGLED}"));
            if let Ok(answer) = client.try_answer(PATIENCE) {
                assert!(answer.status >= 400, "{what}: {answer}");
            }
            assert!(client.is_closed(), "{what}: the connection stays open");
            assert_eq!(upstream.executions(), before, "{what}");
        } else {
            repelled(&proxy, &upstream, what, &bytes);
        }
    }
}

#[test]
fn heads_that_are_no_heads_never_reach_the_upstream() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (what, bytes) in HEADS {
        repelled(&proxy, &upstream, what, bytes);
    }
    assert_eq!(upstream.partial(), 0);
}

#[test]
fn trailers_never_become_headers() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let trailers = "Idempotency-Key: t\r\nContent-Length: 3\r\nAuthorization: Bearer evil\r\nHost: evil\r\nX-Extra: 1\r\n";
    for head in ["POST /free", "POST /orders"] {
        let request = format!(
            "{head} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Extra\r\n\r\n5;a=b\r\nhello\r\n0\r\n{trailers}\r\n"
        );
        assert_eq!(proxy.say(request).status, 201);
        let seen = upstream.last();
        assert_eq!(seen.body, b"hello");
        for name in ["Idempotency-Key", "Content-Length", "Authorization"] {
            assert!(
                seen.all(name).is_empty(),
                "{name} came from a trailer: {seen}"
            );
            assert!(!seen.trailers.has(name), "{name} passed as a trailer");
        }
        assert_eq!(seen.all("Host"), ["a"]);
    }
    let keyed = Request::order(&key())
        .without_body()
        .header("Transfer-Encoding", "chunked")
        .head();
    let bytes = [keyed.as_slice(), b"5\r\nhello\r\n0\r\nX-Extra: 1\r\n\r\n"].concat();
    assert_eq!(executed(proxy.say(bytes)).status, 201);
    assert_eq!(upstream.last().body, b"hello");
}

#[test]
fn hostile_answers_never_reach_the_client_as_two() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil",
    ] {
        let mut client = proxy.client();
        upstream.then(Step::bytes(answer));
        client.ask(&Request::get("/free"));
        let first = client.try_answer(PATIENCE).expect(answer);
        assert!(first.body != b"evil", "{first}");
        if client.try_say(Request::get("/free").bytes()).is_ok()
            && let Ok(second) = client.try_answer(PATIENCE)
        {
            assert!(second.body != b"evil", "{second}");
        }
    }
}

#[test]
fn random_bytes_harm_nobody() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.head_timeout = '2s'\nserver.body_timeout = '2s'",
    );
    upstream.always(reply(200));
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut streams = Vec::new();
    for _ in 0..600 {
        let bytes = dice.stream();
        let mut client = proxy.client();
        if client.try_say(&bytes).is_ok() && dice.below(2) == 0 {
            client.finish_writing();
        }
        streams.push(client);
        if streams.len() == 50 {
            streams.drain(..).for_each(drop::<Client>);
        }
    }
    drop(streams);
    for seen in upstream.seen() {
        let raw = &seen.head.raw;
        let alone = |at: usize| raw[at] == b'\n' && (at == 0 || raw[at - 1] != b'\r');
        assert!(!(0..raw.len()).any(alone) && !raw.contains(&0), "{seen}");
    }
    assert_eq!(upstream.garbled(), 0);
    eventually("everything has come to its end", || {
        let metrics = proxy.metrics();
        let levels = [
            ("idem_proxy_in_flight", vec![]),
            ("idem_proxy_connections", vec![("side", "client")]),
        ];
        levels
            .iter()
            .all(|(name, labels)| metrics.sum(name, labels) < 0.5)
    });
    executed(proxy.send(&Request::order(&key())));
}

/// Numbers that look random and are the same in every run (xorshift).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap_or_default()
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// A stream of requests with a few bytes gone wrong.
    pub(crate) fn stream(&mut self) -> Vec<u8> {
        let keyed = "Authorization: Bearer a\r\nIdempotency-Key: k";
        let whole = [
            format!("POST /orders HTTP/1.1\r\nHost: a\r\n{keyed}\r\nContent-Length: 5\r\n\r\nhello"),
            format!("POST /orders/7 HTTP/1.1\r\nHost: a\r\n{keyed}\r\nTransfer-Encoding: chunked\r\n\r\n5;e=v\r\nhello\r\n0\r\n\r\n"),
            "POST /free HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\nh\r\n0\r\nX: 1\r\n\r\n".to_owned(),
            SMUGGLED.to_owned(),
        ];
        let mut out = whole[self.below(whole.len())].clone().into_bytes();
        out.extend_from_slice(whole[self.below(whole.len())].as_bytes());
        for _ in 0..=self.below(3) {
            let at = self.below(out.len());
            match self.below(4) {
                0 => drop(out.drain(at..out.len().min(at + 4))),
                1 => out[at] = u8::try_from(self.below(256)).unwrap_or_default(),
                2 => {
                    let piece = self.one(&[
                        "\r", "\n", "\r\n", ":", " ", "\t", "\0", "\x0b", "0", "5", ";", ",",
                        "\r\n\r\n",
                    ]);
                    out.splice(at..at, piece.bytes());
                }
                _ => {
                    let line = self.one(&[
                        "Content-Length: 0",
                        "Content-Length: 5",
                        "Content-Length: +5",
                        "Transfer-Encoding: chunked",
                        "Transfer-Encoding: identity",
                        "Connection: close",
                        "Connection: content-length",
                        "Host: b",
                        "Expect: 100-continue",
                        "Upgrade: h2c",
                        "X: a\nTransfer-Encoding: chunked",
                    ]);
                    if let Some(end) = out.windows(2).position(|two| two == b"\r\n") {
                        out.splice(end..end, format!("\r\n{line}").bytes());
                    }
                }
            }
        }
        out
    }
}
