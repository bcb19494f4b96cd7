//! Each part of a connection has its time, and what is over it ends.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::common::{
    Client, PATIENCE, Proxy, Request, Step, Trouble, Upstream, executed, key, problem, replayed,
    reply, sleep_ms,
};

fn clients(proxy: &Proxy, wanted: f64) {
    proxy.await_metric("idem_proxy_connections", &[("side", "client")], wanted);
}

#[test]
fn half_a_head_is_answered_by_408_when_its_time_is_over() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.head_timeout = '500ms'");
    for before in ["", "GET /free HTTP/1.1\r\nHost: a\r\n\r\n"] {
        for part in [
            "\r\n",
            "G",
            "GET /free HTTP/1.1\r\nHost: a\r\nX: y",
            "HTTP/1.1\r\n",
        ] {
            let mut client = proxy.client();
            client.say(before);
            if !before.is_empty() {
                assert_eq!(client.answer().status, 200);
            }
            client.say(part);
            let answer = client.answer();
            if part == "HTTP/1.1\r\n" {
                problem(&answer, "bad-request");
            } else {
                problem(&answer, "request-timeout");
            }
            assert!(client.is_closed(), "{part:?}");
        }
    }
    clients(&proxy, 0.0);
    proxy.await_metric(
        "idem_proxy_requests_total",
        &[("outcome", "bad_request")],
        8.0,
    );
}

#[test]
fn a_connection_that_says_nothing_is_closed_without_a_word() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.head_timeout = '500ms'");
    let mut client = proxy.client();
    assert_eq!(client.everything(), "");
    clients(&proxy, 0.0);
}

#[test]
fn an_idle_connection_has_its_own_time() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.head_timeout = '200ms'\nserver.keepalive_timeout = '60s'",
    );
    let mut client = proxy.client();
    for _ in 0..3 {
        client.ask(&Request::get("/free"));
        assert_eq!(client.answer().status, 200);
        sleep_ms(700);
    }
    executed(client.ask(&Request::order(&key())).answer());
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn an_idle_connection_is_closed_when_its_time_is_over() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.keepalive_timeout = '500ms'");
    let mut client = proxy.client();
    client.ask(&Request::get("/free"));
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.everything(), "");
    clients(&proxy, 0.0);
}

#[test]
fn a_connection_that_has_rested_goes_on_where_it_was() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.keepalive_timeout = '60s'");
    let mut client = proxy.client();
    let mut drained = proxy.client();
    assert_eq!(drained.ask(&Request::get("/free")).answer().status, 200);
    let order = Request::order(&key());
    let first = executed(client.ask(&order).answer());
    sleep_ms(RESTED_MS);
    replayed(&client.ask(&order).answer(), &first);
    sleep_ms(RESTED_MS);
    // Its next heads come in pieces and together.
    client.say("GET /free HTTP/1.1\r\nHo");
    sleep_ms(200);
    client.say("st: a\r\n\r\nGET /free HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.answer().status, 200);
    clients(&proxy, 2.0);
    // One that rests has nothing that a drain would wait for.
    proxy.signal("TERM");
    assert_eq!(drained.everything(), "");
    assert_eq!(proxy.exit_code(), Some(0));
}

/// So long after its last request a connection rests, and some more.
const RESTED_MS: u64 = 6_500;

#[test]
fn a_connection_that_rests_is_closed_when_its_time_is_over() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.keepalive_timeout = '6s'");
    let mut client = proxy.client();
    client.ask(&Request::get("/free"));
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.everything(), "");
    clients(&proxy, 0.0);
    let mut leaves = proxy.client();
    leaves.ask(&Request::get("/free"));
    assert_eq!(leaves.answer().status, 200);
    sleep_ms(5_500);
    drop(leaves);
    clients(&proxy, 0.0);
}

#[test]
fn a_connection_is_not_idle_while_its_answer_is_made_or_read() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.keepalive_timeout = '300ms'\nserver.head_timeout = '300ms'",
    );
    upstream.then(Step::default().after(Duration::from_millis(1500)));
    let drip = reply(200).dripping(Duration::from_millis(400), &["a", "b", "c", "d"]);
    upstream.then(drip);
    let mut client = proxy.client();
    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    assert_eq!(client.ask(&Request::get("/free")).answer().body, b"abcd");
    assert_eq!(client.everything(), "");
}

/// A connection that reads next to nothing ahead, and has sent a request.
fn small_reader(proxy: &Proxy, request: &Request) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("an option");
    socket
        .connect(&proxy.address().into())
        .expect("the proxy takes connections");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    stream.write_all(&request.bytes()).expect("the proxy reads");
    stream
}

/// Reads to the end; how much that was.
fn drain(mut stream: TcpStream) -> usize {
    let mut space = vec![0; 64 << 10];
    let mut all = 0;
    while let Ok(count @ 1..) = stream.read(&mut space) {
        all += count;
    }
    all
}

#[test]
fn a_client_that_does_not_read_its_answer_is_given_up() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.write_timeout = '500ms'\npolicy.max_response_body = '32MiB'",
    );
    let size = 24 << 20;
    // A stream, as it comes.
    upstream.then(reply(200).endless(size as u64));
    let stream = small_reader(&proxy, &Request::get("/free"));
    upstream.await_executions(1);
    clients(&proxy, 0.0);
    assert!(drain(stream) < size, "it was cut off");

    // A replay, from memory.
    let order = Request::order(&key());
    upstream.then(reply(201).body("x".repeat(size)));
    let first = executed(proxy.send(&order));
    let replay = small_reader(&proxy, &order);
    proxy.await_metric("idem_proxy_requests_total", &[("outcome", "hit")], 1.0);
    clients(&proxy, 0.0);
    assert!(drain(replay) < size, "it was cut off");
    replayed(&proxy.send(&order), &first);
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_its_answer() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.write_timeout = '1s'");
    let size = 6 << 20;
    upstream.then(reply(200).endless(size as u64));
    let mut stream = small_reader(&proxy, &Request::get("/free"));
    let (mut all, start) = (0, Instant::now());
    let mut space = vec![0; 16 << 10];
    // About 1 MiB a second: longer in all than a write may wait.
    while let Ok(count @ 1..) = stream.read(&mut space) {
        all += count;
        sleep_ms(if all < 4 << 20 { 15 } else { 0 });
        if all >= size && start.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    assert!(all >= size, "{all} bytes came");
}

#[test]
fn what_comes_behind_the_end_is_thrown_away_for_a_moment_only() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    client.say("nonsense\r\n\r\n");
    problem(&client.answer(), "bad-request");
    // The client neither closes nor stops; its connection ends all the same.
    let until = Instant::now() + PATIENCE;
    while client.try_say("x").is_ok() {
        assert!(Instant::now() < until, "it is read for ever");
        sleep_ms(10);
    }
    clients(&proxy, 0.0);
}

#[test]
fn a_body_in_time_behind_a_late_head_is_nobodys() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.head_timeout = '300ms'");
    let request = Request::order(&key());
    let bytes = request.bytes();
    let mut client: Client = proxy.client();
    client.say(&bytes[..20]);
    problem(&client.answer(), "request-timeout");
    let _ = client.try_say(&bytes[20..]);
    assert!(matches!(
        client.try_answer(PATIENCE),
        Err(Trouble::Closed | Trouble::Reset)
    ));
    executed(proxy.send(&request));
    assert_eq!(upstream.executions(), 1);
}
