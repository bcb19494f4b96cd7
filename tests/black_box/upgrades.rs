//! Upgrades: the upstream's 101 makes a tunnel, nothing else does, and a tunnel ends as its sides want it or with the drain.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
};

use crate::common::{Client, PATIENCE, Proxy, Request, Upstream, key, problem, unprotected};

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";

/// An origin of bytes, a proxy in front of it, and one that counts beside it.
struct Stage {
    listener: TcpListener,
    proxy: Proxy,
}

/// The origin's end of one connection.
struct Far(TcpStream);

impl Stage {
    fn set() -> Self {
        Self::with("")
    }

    fn with(settings: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let settings = format!("upstream.url = 'http://{address}'\n{settings}");
        let proxy = Proxy::with(&Upstream::start(), &settings);
        Self { listener, proxy }
    }

    fn accept(&self) -> Far {
        let (stream, _) = self.listener.accept().expect("the proxy connects");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket option");
        Far(stream)
    }

    /// A client whose request, with these bytes right behind it, has got a 101 with those right behind that.
    fn tunnel(&self, behind: &str, answered: &str) -> (Client, Far, String) {
        let mut client = self.proxy.client();
        client.say([asking("GET", "/ws").bytes(), behind.into()].concat());
        let mut far = self.accept();
        let head = far.head();
        far.say(format!("{SWITCHED}{answered}"));
        let answer = client.answer();
        assert_eq!(answer.status, 101, "{answer}");
        assert_eq!(answer.one("Upgrade"), Some("websocket"));
        assert_eq!(answer.one("Connection"), Some("upgrade"));
        assert_eq!(answer.one("Sec-WebSocket-Accept"), Some("x"));
        (client, far, head)
    }
}

impl Far {
    /// A request's head, and not a byte more.
    fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend_from_slice(&self.take(1));
        }
        String::from_utf8(head).expect("ASCII")
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("bytes come");
        bytes
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end too.
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }

    fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("bytes go");
    }
}

fn asking(method: &str, target: &str) -> Request {
    Request::new(method, target)
        .header("Connection", "Upgrade, HTTP2-Settings")
        .header("Upgrade", "websocket")
        .header("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

fn lines<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let named = |line: &&str| {
        line.split_once(':')
            .is_some_and(|(own, _)| own.eq_ignore_ascii_case(name))
    };
    let value = |line: &'a str| line.split_once(':').map_or("", |(_, value)| value.trim());
    head.lines().filter(named).map(value).collect()
}

#[test]
fn the_upstreams_101_makes_a_tunnel_and_no_early_byte_is_lost() {
    let stage = Stage::set();
    let (mut client, mut far, head) = stage.tunnel("early ping", "early pong");
    assert_eq!(lines(&head, "upgrade"), ["websocket"], "{head}");
    assert_eq!(lines(&head, "connection"), ["upgrade"], "{head}");
    assert_eq!(
        lines(&head, "sec-websocket-key"),
        ["dGhlIHNhbXBsZSBub25jZQ=="]
    );
    assert_eq!(lines(&head, "x-forwarded-for"), ["127.0.0.1"]);
    assert!(lines(&head, "http2-settings").is_empty(), "{head}");
    assert_eq!(client.take(10), b"early pong");
    assert_eq!(far.take(10), b"early ping");
    let all: Vec<u8> = (0..=255).collect();
    client.say(&all);
    assert_eq!(far.take(256), all);
    far.say(&all);
    assert_eq!(client.take(256), all);
}

#[test]
fn each_side_may_end_its_own_direction_first() {
    let stage = Stage::set();
    let (mut client, mut far, _) = stage.tunnel("", "");
    client.say("last").finish_writing();
    assert_eq!(far.rest(), b"last");
    far.say("and still heard");
    assert_eq!(client.take(15), b"and still heard");
    drop(far);
    assert_eq!(client.everything(), "");

    let (mut client, mut far, _) = stage.tunnel("", "");
    far.say("last");
    far.0.shutdown(Shutdown::Write).expect("an open socket");
    assert_eq!(client.everything(), "last");
    client.say("and still heard").finish_writing();
    assert_eq!(far.rest(), b"and still heard");
}

#[test]
fn megabytes_pass_both_ways_at_once() {
    let stage = Stage::set();
    let (mut client, far, _) = stage.tunnel("", "");
    let size = 8 << 20;
    let data: Vec<u8> = (0..=250).cycle().take(size).collect();
    let echo = std::thread::spawn(move || {
        let (mut from, mut to) = (&far.0, &far.0);
        std::io::copy(&mut from, &mut to).expect("an echo")
    });
    let mut heard = Vec::new();
    for piece in data.chunks(64 * 1024) {
        client.say(piece);
        heard.extend(client.take(piece.len()));
    }
    client.finish_writing();
    assert_eq!(echo.join().expect("no panic"), size as u64);
    assert!(heard == data, "bytes changed on their way");
}

#[test]
fn any_other_answer_is_an_answer_and_nothing_behind_the_head_was_passed_on() {
    let stage = Stage::set();
    for status in [
        "200 OK",
        "400 Bad Request",
        "426 Upgrade Required",
        "503 No",
    ] {
        let mut client = stage.proxy.client();
        client.say([asking("GET", "/ws").bytes(), b"EARLY BYTES".into()].concat());
        let mut far = stage.accept();
        far.head();
        far.say(format!(
            "HTTP/1.1 {status}\r\nUpgrade: websocket\r\nContent-Length: 4\r\n\r\nbody"
        ));
        let answer = client.answer();
        assert!(status.starts_with(&answer.status.to_string()), "{answer}");
        assert_eq!(
            (answer.body.as_slice(), answer.one("Upgrade")),
            (&b"body"[..], None)
        );
        assert_eq!(far.rest(), b"", "{status}");
    }
}

#[test]
fn a_connection_whose_upgrade_is_declined_goes_on_as_http() {
    let stage = Stage::set();
    let mut client = stage.proxy.client();
    client.ask(&asking("GET", "/ws"));
    let mut far = stage.accept();
    far.head();
    far.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n");
    assert_eq!(client.answer().body, b"one");
    // The connection of an upgrade is never used again.
    assert_eq!(far.rest(), b"");
    client.ask(&Request::get("/plain"));
    let mut far = stage.accept();
    assert!(lines(&far.head(), "upgrade").is_empty());
    far.say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo");
    assert_eq!(client.answer().body, b"two");
}

#[test]
fn only_what_was_asked_for_may_be_switched_to() {
    let stage = Stage::set();
    for answer in [
        "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket, other\r\n\r\n",
        "HTTP/1.1 101 X\r\n\r\n",
    ] {
        let mut client = stage.proxy.client();
        client.ask(&asking("GET", "/ws"));
        let mut far = stage.accept();
        far.head();
        far.say(answer);
        unprotected(&client.answer(), "upstream-failed");
        assert_eq!(far.rest(), b"");
    }
}

#[test]
fn http_2_in_cleartext_is_not_asked_for_and_what_is_asked_wrongly_is_plain_http() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let plain = Request::get("/free");
    for request in [
        plain
            .clone()
            .header("Connection", "Upgrade, HTTP2-Settings")
            .header("Upgrade", "h2c")
            .header("HTTP2-Settings", "AAMAAABk"),
        plain
            .clone()
            .header("Connection", "close")
            .header("Upgrade", "websocket"),
        plain.clone().header("Upgrade", "websocket"),
        plain.clone().header("Connection", "Upgrade"),
    ] {
        assert_eq!(proxy.send(&request).status, 200);
        let seen = upstream.last();
        for gone in ["Upgrade", "HTTP2-Settings", "Connection"] {
            assert!(seen.all(gone).is_empty(), "{gone}: {seen}");
        }
    }
    let answer = proxy.send(
        &plain
            .header("Connection", "Upgrade")
            .header("Upgrade", "h2c, websocket"),
    );
    assert_eq!(answer.status, 200);
    assert_eq!(upstream.last().one("Upgrade"), Some("websocket"));
}

#[test]
fn a_request_without_a_key_may_switch_on_a_keyed_route_too_and_with_a_body() {
    let stage = Stage::set();
    let mut client = stage.proxy.client();
    client.ask(&asking("POST", "/orders").body("{}"));
    let mut far = stage.accept();
    far.head();
    assert_eq!(far.take(2), b"{}");
    far.say(SWITCHED);
    assert_eq!(client.answer().status, 101);
    client.say("ping");
    assert_eq!(far.take(4), b"ping");
    // With a key there is nothing but HTTP.
    let mut client = stage.proxy.client();
    client.ask(&asking("POST", "/orders").caller("Bearer a").key(&key()));
    let mut far = stage.accept();
    assert!(lines(&far.head(), "upgrade").is_empty());
    far.say(SWITCHED);
    problem(&client.answer(), "upstream-failed");
}

#[test]
fn a_tunnel_counts_as_a_connection_on_both_sides_until_it_ends() {
    let stage = Stage::with("server.max_connections = 1");
    let (client, mut far, _) = stage.tunnel("", "");
    let counts = |wanted: f64| {
        for side in ["client", "upstream"] {
            stage
                .proxy
                .await_metric("idem_proxy_connections", &[("side", side)], wanted);
        }
    };
    counts(1.0);
    problem(&stage.proxy.client().answer(), "overloaded");
    let switched = [("route", ""), ("status_class", "1xx")];
    let name = "idem_proxy_upstream_duration_seconds_count";
    stage.proxy.await_metric(name, &switched, 1.0);
    drop(client);
    assert_eq!(far.rest(), b"");
    drop(far);
    counts(0.0);
    let (mut client, far, _) = stage.tunnel("", "");
    drop(far);
    assert_eq!(client.everything(), "");
    drop(client);
    counts(0.0);
}

#[test]
fn a_reset_on_one_side_ends_the_other() {
    let stage = Stage::set();
    let (client, mut far, _) = stage.tunnel("", "");
    client.reset();
    assert_eq!(far.rest(), b"");
    let (mut client, far, _) = stage.tunnel("", "");
    let socket = socket2::Socket::from(far.0);
    socket
        .set_linger(Some(std::time::Duration::ZERO))
        .expect("a socket option");
    drop(socket);
    assert_eq!(client.everything(), "");
}

#[test]
fn a_drain_ends_tunnels_and_waits_for_nobody_in_them() {
    let mut stage = Stage::set();
    let (mut client, mut far, _) = stage.tunnel("", "");
    let (mut quiet, mut other, _) = stage.tunnel("", "");
    quiet.finish_writing();
    assert_eq!(other.rest(), b"");
    stage.proxy.signal("TERM");
    assert_eq!(client.everything(), "");
    assert_eq!(quiet.everything(), "");
    assert_eq!(far.rest(), b"");
    assert_eq!(stage.proxy.exit_code(), Some(0));
}

#[test]
fn an_upstream_that_is_not_there_or_does_not_answer_is_told_as_ever() {
    let stage = Stage::with("upstream.response_timeout = '1s'");
    let mut client = stage.proxy.client();
    client.ask(&asking("GET", "/ws"));
    let mut far = stage.accept();
    far.head();
    unprotected(&client.answer(), "upstream-timeout");
    assert_eq!(far.rest(), b"");
    let mut client = stage.proxy.client();
    client.ask(&asking("GET", "/ws"));
    stage.accept().head();
    unprotected(&client.answer(), "upstream-failed");
    let Stage { listener, proxy } = stage;
    drop(listener);
    problem(&proxy.send(&asking("GET", "/ws")), "upstream-unreachable");
}
