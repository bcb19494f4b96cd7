//! Floods: a client that sends more of what costs it nothing than any real one is put out; the upstream sees a bounded part of it, and
//! everybody else is served meanwhile.

use super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, Raw,
    SETTINGS, WINDOW_UPDATE, block, frame, get, pseudo,
};
use crate::common::{Gate, Proxy, Request, Step, Upstream, eventually, executed, key, reply};

const CALM: u32 = 0xb;

const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Sends `burst` until the proxy takes no more, at most so often. Others are served all the while.
fn flood(proxy: &Proxy, raw: &mut Raw, most: u32, burst: impl Fn(u32) -> Vec<u8>) {
    let mut other = Raw::connect(proxy.address());
    for round in 0..most {
        if raw.try_say(burst(round)).is_err() {
            break;
        }
        if round % 64 == 0 {
            assert!(other.is_served(round * 2 + 1), "others are not served");
        }
    }
    // GOAWAY says why, unless the reset overtook it: what was on its way to a closed socket resets it.
    let said = raw.end();
    assert!(matches!(said, Some(CALM) | None), "{said:?}");
    executed(proxy.send(&Request::order(&key())));
}

fn counted(proxy: &Proxy, reason: &str, times: f64) {
    proxy.await_metric(
        "idem_proxy_http2_floods_total",
        &[("reason", reason)],
        times,
    );
}

#[test]
fn frames_that_carry_nothing_end_their_connection_in_bounds() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.always(reply(200));
    let kinds: [(&str, Vec<u8>); 6] = [
        ("SETTINGS", frame(SETTINGS, 0, 0, [])),
        ("PING", frame(PING, 0, 0, [0; 8])),
        ("PRIORITY", frame(PRIORITY, 0, 1, [0, 0, 0, 0, 7])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, [0, 0, 0, 1])),
        ("RST_STREAM", frame(RST_STREAM, 0, 1, CANCEL)),
        ("an unknown type", frame(0xbe, 0, 0, [0])),
    ];
    for (times, (what, bytes)) in kinds.into_iter().enumerate() {
        println!("{what}");
        let mut raw = Raw::connect(proxy.address());
        let head = block(&pseudo("POST", "/free"));
        raw.say(frame(HEADERS, END_HEADERS, 1, head));
        let burst = bytes.repeat(100);
        flood(&proxy, &mut raw, 2_000, |_| burst.clone());
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        counted(&proxy, "control", (times + 1) as f64);
    }
}

#[test]
fn a_body_of_empty_pieces_ends_its_connection() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut raw = Raw::connect(proxy.address());
    let head = block(&pseudo("POST", "/hostile"));
    raw.say(frame(HEADERS, END_HEADERS, 1, head));
    let burst = frame(DATA, 0, 1, []).repeat(100);
    flood(&proxy, &mut raw, 2_000, |_| burst.clone());
    proxy.await_metric("idem_proxy_http2_floods_total", &[], 1.0);
    assert!(!upstream.seen().iter().any(|seen| seen.target == "/hostile"));
}

#[test]
fn a_head_of_endless_pieces_ends_its_connection() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for piece in [vec![], vec![b'x'; 16_000]] {
        let mut raw = Raw::connect(proxy.address());
        let head = block(&pseudo("GET", "/hostile"));
        raw.say(frame(HEADERS, END_STREAM, 1, head));
        flood(&proxy, &mut raw, 10_000, |_| {
            frame(CONTINUATION, 0, 1, &piece)
        });
    }
    proxy.await_metric("idem_proxy_connections", &[("side", "client")], 0.0);
    assert!(!upstream.seen().iter().any(|seen| seen.target == "/hostile"));
}

#[test]
fn requests_that_are_reset_as_fast_as_they_come_reach_the_upstream_in_bounds() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let rapid = |round: u32| {
        let stream = round * 2 + 1;
        (get(stream, "/rapid"), frame(RST_STREAM, 0, stream, CANCEL))
    };
    let reached = || {
        let seen = upstream.seen();
        seen.iter().filter(|seen| seen.target == "/rapid").count()
    };
    // In one packet, before they are looked at.
    let mut raw = Raw::connect(proxy.address());
    flood(&proxy, &mut raw, 500, |round| {
        let many = (round * 50..round * 50 + 50).map(rapid);
        many.flat_map(|(head, reset)| [head, reset].concat())
            .collect()
    });
    counted(&proxy, "stream", 1.0);
    assert!(reached() <= 100, "{} reached the upstream", reached());
    // Each when the upstream has it.
    upstream.always(Step::hang());
    let before = upstream.executions();
    let mut raw = Raw::connect(proxy.address());
    let gone = (0..100).any(|round| {
        let many: Vec<_> = (round * 50..round * 50 + 50).map(rapid).collect();
        let (heads, resets): (Vec<_>, Vec<_>) = many.into_iter().unzip();
        if raw.try_say(heads.concat()).is_err() {
            return true;
        }
        let wanted = before + 50 * (round as usize + 1);
        eventually("they are there, or the end is", || {
            upstream.executions() >= wanted
                || proxy.metrics().sum("idem_proxy_http2_floods_total", &[]) > 1.5
        });
        raw.try_say(resets.concat()).is_err()
    });
    assert!(gone, "it may go on for ever");
    counted(&proxy, "reset", 1.0);
    let reached = upstream.executions() - before;
    assert!(reached < 5_000, "{reached} reached the upstream");
    upstream.always(reply(200));
    assert!(Raw::connect(proxy.address()).is_served(1));
}

#[test]
fn requests_that_the_proxy_is_made_to_reset_reach_the_upstream_in_bounds() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut raw = Raw::connect(proxy.address());
    // A window over its limit is an error of the stream, which the server resets (CVE-2025-8671).
    flood(&proxy, &mut raw, 20_000, |round| {
        let stream = round * 2 + 1;
        let head = frame(
            HEADERS,
            END_HEADERS,
            stream,
            block(&pseudo("POST", "/made")),
        );
        let more = frame(WINDOW_UPDATE, 0, stream, 0x7fff_ffff_u32.to_be_bytes());
        [head, more].concat()
    });
    let seen = upstream.seen();
    let reached = seen.iter().filter(|seen| seen.target == "/made").count();
    assert!(reached <= 400, "{reached} reached the upstream");
    counted(&proxy, "stream", 1.0);
}

#[test]
fn what_a_real_client_sends_with_its_answers_is_no_flood() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.always(reply(200).body(vec![b'x'; 1 << 20]));
    let mut raw = Raw::connect(proxy.address());
    for round in 0..24 {
        let stream = round * 2 + 1;
        raw.say(get(stream, "/free"));
        let mut left = 1 << 20;
        while left > 0 {
            let piece = raw.until(|frame| frame.kind == DATA && frame.stream == stream);
            let piece = piece.expect("the answer goes on").payload.len();
            left -= piece;
            // For each piece what gRPC sends: its window, the connection's, and a PING that measures.
            let size = u32::try_from(piece).expect("a frame's size");
            if size > 0 {
                raw.say(frame(WINDOW_UPDATE, 0, stream, size.to_be_bytes()));
                raw.say(frame(WINDOW_UPDATE, 0, 0, size.to_be_bytes()));
            }
            raw.say(frame(PING, 0, 0, [7; 8]));
        }
    }
    assert!(proxy.metrics().sum("idem_proxy_http2_floods_total", &[]) < 0.5);
}

#[test]
fn more_streams_than_are_allowed_are_refused_and_the_rest_is_served() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.always(Step::from(reply(200)).behind(&gate));
    let proxy = Proxy::start(&upstream);
    let mut raw = Raw::connect(proxy.address());
    for n in 0..150 {
        raw.say(get(n * 2 + 1, "/free"));
    }
    gate.arrivals(100);
    let mut refused = 0;
    while refused < 50 {
        let frame = raw
            .until(|frame| frame.kind == RST_STREAM)
            .expect("a refusal");
        assert_eq!(frame.code(), 7, "REFUSED_STREAM");
        refused += 1;
    }
    gate.open();
    let mut served = 0;
    while served < 100 {
        let head = raw.until(|frame| frame.kind == HEADERS);
        assert_eq!(head.expect("an answer").payload[0], 0x88);
        served += 1;
    }
    assert_eq!(upstream.executions(), 100);
    eventually("nothing is left", || {
        proxy.metrics().sum("idem_proxy_in_flight", &[]) < 0.5
    });
}
