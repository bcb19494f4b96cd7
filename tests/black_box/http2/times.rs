//! Time: what a client may owe, how long it may idle, how long it may leave an answer unread; and the drain.

use super::{
    raw::{
        DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, Raw, SETTINGS, block, frame, get,
        pseudo,
    },
    speaker::{Speaker, Then, order, request},
};
use crate::common::{Gate, Proxy, Step, Upstream, eventually, key, reply, sleep_ms};

#[test]
fn what_a_client_begins_and_does_not_finish_is_given_up() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.head_timeout = '300ms'");
    let head = block(&pseudo("GET", "/hostile"));
    let introduced = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, [])].concat();
    let after = |bytes: &[u8]| [introduced.clone(), bytes.to_vec()].concat();
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("a part of the preface", b"PRI * HT".to_vec()),
        ("the preface alone", PREFACE.to_vec()),
        (
            "a part of the SETTINGS",
            introduced[..PREFACE.len() + 5].to_vec(),
        ),
        (
            "a part of a frame's header",
            after(&get(1, "/hostile")[..4]),
        ),
        ("a part of a head", after(&get(1, "/hostile")[..20])),
        (
            "a head without its end",
            after(&frame(HEADERS, END_STREAM, 1, &head)),
        ),
    ] {
        let mut raw = Raw::silent(proxy.address());
        raw.say(&bytes);
        assert_eq!(raw.end(), None, "{what}");
    }
    // A head that comes byte by byte is no better, and a body that does is.
    let mut raw = Raw::silent(proxy.address());
    raw.say(&introduced);
    let slow = get(1, "/hostile");
    let gave_up = slow.iter().cycle().take(2_000).any(|byte| {
        sleep_ms(20);
        raw.try_say([*byte]).is_err()
    });
    assert!(gave_up, "a head may take for ever");
    let mut raw = Raw::silent(proxy.address());
    raw.say(&introduced);
    raw.say(frame(
        HEADERS,
        END_HEADERS,
        1,
        block(&pseudo("POST", "/slow")),
    ));
    let body = frame(DATA, END_STREAM, 1, "a body byte by byte");
    let (header, payload) = body.split_at(9);
    raw.say(header);
    for byte in payload {
        raw.say([*byte]);
        sleep_ms(25);
    }
    assert!(raw.until(|frame| frame.kind == HEADERS).is_some());
    assert_eq!(upstream.only().target, "/slow");
}

#[test]
fn a_connection_without_requests_ends_after_its_time_and_one_with_a_request_does_not() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.keepalive_timeout = '400ms'");
    let mut idle = Speaker::connect(proxy.address());
    let mut busy = Speaker::connect(proxy.address());
    let gate = upstream.hold(Step::default());
    let asked = busy.ask(request("GET", "/slow"), "");
    gate.arrived();
    assert_eq!(idle.send(request("GET", "/quick"), "").status, 200);
    assert_eq!(idle.ended(), Ok(()));
    let mut silent = Raw::connect(proxy.address());
    let said = silent
        .until(|frame| frame.kind == GOAWAY)
        .expect("a GOAWAY");
    assert_eq!(said.code(), 0);
    assert_eq!(silent.end(), None, "one that does not answer is closed");
    assert!(busy.goes_on());
    gate.open();
    assert_eq!(busy.answer(asked).status, 200);
    assert_eq!(busy.ended(), Ok(()));
}

#[test]
fn an_answer_that_is_not_read_ends_its_connection() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.write_timeout = '400ms'");
    // A window that is used up and not opened again: for an answer that streams, and for the rest of one that is whole.
    for (target, body) in [("/stream", 1 << 20), ("/orders", 300 << 10)] {
        upstream.then(reply(200).body(vec![b'x'; body]));
        let mut raw = Raw::connect(proxy.address());
        let mut fields = pseudo("POST", target);
        fields.extend([("idempotency-key", "k"), ("authorization", "a")]);
        raw.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(&fields)));
        assert!(raw.until(|frame| frame.kind == DATA).is_some());
        raw.end();
    }
    // One that is slow on the other side is waited for.
    let gate = Gate::new();
    upstream.then(reply(200).halted("first", &gate, "second"));
    let mut speaker = Speaker::connect(proxy.address());
    let asked = speaker.ask(request("GET", "/events"), "");
    gate.arrived();
    sleep_ms(1_500);
    gate.open();
    assert_eq!(speaker.answer(asked).body, b"firstsecond");
    // And a client that reads at last has it all, and its connection.
    upstream.then(reply(200).body(vec![b'x'; 1 << 20]));
    let mut slow = Speaker::with_window(proxy.address(), 16 << 10);
    let asked = slow.ask(request("GET", "/slow"), "");
    assert_eq!(slow.answer(asked).body.len(), 1 << 20);
    assert_eq!(slow.send(request("GET", "/again"), "").status, 200);
}

#[test]
fn a_body_that_stalls_is_told_so() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '300ms'");
    let mut speaker = Speaker::connect(proxy.address());
    for request in [order(&key()), request("POST", "/free")] {
        let mut asked = speaker.begin(request, Then::Body);
        let piece = bytes::Bytes::from_static(b"{");
        asked.body.send_data(piece, false).expect("an open stream");
        assert_eq!(speaker.answer(asked).status, 408);
    }
    assert_eq!(speaker.send(order(&key()), "{}").status, 201);
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn half_a_head_holds_no_drain() {
    let upstream = Upstream::start();
    let introduced = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, [])].concat();
    let head = block(&pseudo("GET", "/free"));
    for begun in [
        get(1, "/free")[..20].to_vec(),
        frame(HEADERS, END_STREAM, 1, &head),
    ] {
        let mut proxy = Proxy::start(&upstream);
        let mut raw = Raw::silent(proxy.address());
        raw.say([introduced.clone(), begun].concat());
        proxy.await_metric("idem_proxy_connections", &[("side", "client")], 1.0);
        proxy.signal("TERM");
        assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn a_drain_says_goaway_and_lets_what_runs_finish() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let mut idle = Speaker::connect(proxy.address());
    let mut silent = Raw::connect(proxy.address());
    let mut busy = Speaker::connect(proxy.address());
    let gate = upstream.hold(Step::default());
    let asked = busy.ask(order(&key()), "{}");
    gate.arrived();
    proxy.signal("TERM");
    assert_eq!(idle.ended(), Ok(()), "an idle one ends");
    assert!(silent.until(|frame| frame.kind == GOAWAY).is_some());
    silent.end();
    eventually("new connections are refused", || {
        std::net::TcpStream::connect(proxy.address()).is_err()
    });
    assert!(busy.goes_on() && proxy.runs());
    gate.open();
    let answer = busy.answer(asked);
    assert_eq!((answer.status, answer.marker()), (201, Some("miss")));
    assert_eq!(busy.ended(), Ok(()));
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
}
