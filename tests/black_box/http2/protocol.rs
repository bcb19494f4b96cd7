//! Frames that break the protocol: the stream or the connection ends, as RFC 9113 has it, and nothing reaches the upstream.

use super::raw::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PREFACE,
    PRIORITY, PUSH_PROMISE, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, block, frame, get, pseudo,
};
use crate::common::{Proxy, Upstream, reply};

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;

/// What has to become of it.
#[derive(Debug, Clone, Copy)]
enum Ends {
    /// The connection ends, with this code where one is said.
    Connection(u32),
    /// The stream ends with this code, or its connection does.
    Stream(u32),
    /// The stream is reset, or answered with 400.
    Refused,
    /// Nothing: the request is served.
    Nothing,
}

/// A setting's bytes.
fn setting(name: u16, value: u32) -> Vec<u8> {
    [&name.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// A GET that is not ended.
fn open(stream: u32) -> Vec<u8> {
    let fields = block(&pseudo("POST", "/hostile"));
    frame(HEADERS, END_HEADERS, stream, fields)
}

/// A request of these fields and no others.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields))
}

/// A GET with one more field.
fn and(name: &str, value: &str) -> Vec<u8> {
    let mut all = pseudo("GET", "/hostile");
    all.push((name, value));
    fields(&all)
}

/// A GET without one of its pseudo-headers.
fn without(name: &str) -> Vec<u8> {
    let mut all = pseudo("GET", "/hostile");
    all.retain(|(other, _)| *other != name);
    fields(&all)
}

/// A POST that says how long its body is, and sends this one.
fn sized(length: &str, body: &str) -> Vec<u8> {
    let mut all = pseudo("POST", "/hostile");
    all.push(("content-length", length));
    let head = frame(HEADERS, END_HEADERS, 1, block(&all));
    [head, frame(DATA, END_STREAM, 1, body)].concat()
}

type Case = (&'static str, Vec<u8>, Ends);

/// Frames, settings, windows.
#[rustfmt::skip]
fn frames() -> Vec<Case> {
    use Ends::{Connection, Nothing, Stream};
    let big = frame(DATA, 0, 1, vec![0; 16_385]);
    let max = 0x7fff_ffff_u32.to_be_bytes();
    vec![
        ("SETTINGS on a stream", frame(SETTINGS, 0, 1, []), Connection(PROTOCOL_ERROR)),
        ("an ACK of SETTINGS with a payload", frame(SETTINGS, ACK, 0, [0; 6]), Connection(FRAME_SIZE_ERROR)),
        ("SETTINGS of a length that is none", frame(SETTINGS, 0, 0, [0; 5]), Connection(FRAME_SIZE_ERROR)),
        ("ENABLE_PUSH of 2", frame(SETTINGS, 0, 0, setting(2, 2)), Connection(PROTOCOL_ERROR)),
        ("INITIAL_WINDOW_SIZE over its limit", frame(SETTINGS, 0, 0, setting(4, 1 << 31)), Connection(FLOW_CONTROL_ERROR)),
        ("MAX_FRAME_SIZE below its limit", frame(SETTINGS, 0, 0, setting(5, 16_383)), Connection(PROTOCOL_ERROR)),
        ("MAX_FRAME_SIZE over its limit", frame(SETTINGS, 0, 0, setting(5, 1 << 24)), Connection(PROTOCOL_ERROR)),
        ("an unknown setting", [frame(SETTINGS, 0, 0, setting(0xff, 7)), get(1, "/free")].concat(), Nothing),
        ("PING of 7 bytes", frame(PING, 0, 0, [0; 7]), Connection(FRAME_SIZE_ERROR)),
        ("PING on a stream", frame(PING, 0, 1, [0; 8]), Connection(PROTOCOL_ERROR)),
        ("RST_STREAM of the connection", frame(RST_STREAM, 0, 0, [0; 4]), Connection(PROTOCOL_ERROR)),
        ("RST_STREAM of an idle stream", frame(RST_STREAM, 0, 1, [0; 4]), Connection(PROTOCOL_ERROR)),
        ("RST_STREAM of 3 bytes", [open(1), frame(RST_STREAM, 0, 1, [0; 3])].concat(), Connection(FRAME_SIZE_ERROR)),
        ("GOAWAY on a stream", frame(GOAWAY, 0, 1, [0; 8]), Connection(PROTOCOL_ERROR)),
        ("WINDOW_UPDATE of 0", frame(WINDOW_UPDATE, 0, 0, [0; 4]), Connection(PROTOCOL_ERROR)),
        ("WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, [0; 3]), Connection(FRAME_SIZE_ERROR)),
        ("WINDOW_UPDATE of an idle stream", frame(WINDOW_UPDATE, 0, 1, [0, 0, 0, 1]), Connection(PROTOCOL_ERROR)),
        ("a connection's window over its limit", frame(WINDOW_UPDATE, 0, 0, max), Connection(FLOW_CONTROL_ERROR)),
        ("WINDOW_UPDATE of 0 for a stream", [open(1), frame(WINDOW_UPDATE, 0, 1, [0; 4])].concat(), Stream(PROTOCOL_ERROR)),
        ("a stream's window over its limit", [open(1), frame(WINDOW_UPDATE, 0, 1, max)].concat(), Stream(FLOW_CONTROL_ERROR)),
        ("PRIORITY of 4 bytes", frame(PRIORITY, 0, 1, [0; 4]), Connection(FRAME_SIZE_ERROR)),
        ("a stream that depends on itself", [open(1), frame(PRIORITY, 0, 1, [0, 0, 0, 1, 7])].concat(), Stream(PROTOCOL_ERROR)),
        ("PRIORITY of an idle stream", [frame(PRIORITY, 0, 9, [0, 0, 0, 0, 7]), get(11, "/free")].concat(), Nothing),
        ("a type that nobody knows", [frame(0xbe, 0xff, 0, "?"), get(1, "/free")].concat(), Nothing),
        ("a flag that nobody knows", [frame(PING, 0xfe, 0, [0; 8]), get(1, "/free")].concat(), Nothing),
        ("PUSH_PROMISE from a client", [open(1), frame(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2])].concat(), Connection(PROTOCOL_ERROR)),
        ("DATA of the connection", frame(DATA, 0, 0, "x"), Connection(PROTOCOL_ERROR)),
        ("DATA of an idle stream", frame(DATA, 0, 1, "x"), Connection(PROTOCOL_ERROR)),
        ("a frame over its limit", [open(1), big].concat(), Connection(FRAME_SIZE_ERROR)),
        ("padding longer than its frame", [open(1), frame(DATA, PADDED, 1, [5, 0, 0])].concat(), Connection(PROTOCOL_ERROR)),
        ("more than the stream's window", [open(1), frame(DATA, 0, 1, vec![0; 16_384]).repeat(5)].concat(), Stream(FLOW_CONTROL_ERROR)),
        ("DATA after the end", [get(1, "/free"), frame(DATA, 0, 1, "x")].concat(), Stream(STREAM_CLOSED)),
        ("a stream of the server's", get(2, "/hostile"), Connection(PROTOCOL_ERROR)),
        ("HEADERS of the connection", get(0, "/hostile"), Connection(PROTOCOL_ERROR)),
        ("a stream below the last", [get(5, "/free"), get(3, "/hostile")].concat(), Connection(PROTOCOL_ERROR)),
    ]
}

/// Heads.
#[rustfmt::skip]
fn heads() -> Vec<Case> {
    use Ends::{Connection, Nothing, Refused, Stream};
    let head = block(&pseudo("GET", "/hostile"));
    let begun = frame(HEADERS, END_STREAM, 1, &head);
    let mut late = vec![("x-first", "1")];
    late.extend(pseudo("GET", "/hostile"));
    vec![
        ("CONTINUATION of nothing", frame(CONTINUATION, END_HEADERS, 1, &head), Connection(PROTOCOL_ERROR)),
        ("CONTINUATION after a whole head", [get(1, "/free"), frame(CONTINUATION, END_HEADERS, 1, &head)].concat(), Connection(PROTOCOL_ERROR)),
        ("CONTINUATION of another stream", [begun.clone(), frame(CONTINUATION, END_HEADERS, 3, [])].concat(), Connection(PROTOCOL_ERROR)),
        ("another frame in a head", [begun.clone(), frame(PING, 0, 0, [0; 8])].concat(), Connection(PROTOCOL_ERROR)),
        ("another head in a head", [begun, get(3, "/hostile")].concat(), Connection(PROTOCOL_ERROR)),
        ("a head that is no HPACK", frame(HEADERS, END_HEADERS | END_STREAM, 1, [0xff; 12]), Connection(COMPRESSION_ERROR)),
        ("an index of nothing", frame(HEADERS, END_HEADERS | END_STREAM, 1, [0xfe]), Connection(COMPRESSION_ERROR)),
        ("a name in capitals", and("X-Upper", "1"), Refused),
        ("a name with a space", and("x y", "1"), Refused),
        ("a value with a line end", and("x-a", "b\r\nx-c: d"), Refused),
        ("a value with a NUL", and("x-a", "b\0"), Refused),
        ("connection", and("connection", "close"), Refused),
        ("keep-alive", and("keep-alive", "timeout=5"), Refused),
        ("proxy-connection", and("proxy-connection", "close"), Refused),
        ("transfer-encoding", and("transfer-encoding", "chunked"), Refused),
        ("upgrade", and("upgrade", "websocket"), Refused),
        ("te that is not trailers", and("te", "gzip"), Refused),
        ("no method", without(":method"), Refused),
        ("no scheme", without(":scheme"), Refused),
        ("no path", without(":path"), Refused),
        ("an empty path", fields(&[(":method", "GET"), (":scheme", "http"), (":path", ""), (":authority", "a")]), Refused),
        ("a path that begins with no slash", fields(&pseudo("GET", "hostile")), Refused),
        ("a path with a space", fields(&pseudo("GET", "/hos tile")), Refused),
        ("a path that is not ASCII", fields(&pseudo("GET", "/hostile/\u{e9}")), Refused),
        ("a star for a GET", fields(&pseudo("GET", "*")), Refused),
        ("a star for OPTIONS", fields(&pseudo("OPTIONS", "*")), Nothing),
        ("a method twice", and(":method", "GET"), Refused),
        ("an unknown pseudo-header", and(":hostile", "1"), Refused),
        ("an answer's pseudo-header", and(":status", "200"), Refused),
        ("a pseudo-header after a field", fields(&late), Refused),
        ("trailers that do not end the stream", [open(1), frame(HEADERS, END_HEADERS, 1, block(&[("x", "1")]))].concat(), Stream(PROTOCOL_ERROR)),
        ("extended CONNECT", fields(&[(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/hostile"), (":authority", "a")]), Refused),
        ("neither authority nor Host", without(":authority"), Refused),
        ("a Host that is another", and("host", "evil.test"), Refused),
        ("an authority with a user", fields(&[(":method", "GET"), (":scheme", "http"), (":path", "/hostile"), (":authority", "me@a")]), Refused),
        ("a body longer than it says", sized("1", "longer"), Refused),
        ("a body shorter than it says", sized("7", "short"), Refused),
        ("a length that is no number", sized("x", "x"), Refused),
        ("a signed length", sized("+1", "x"), Refused),
        ("two lengths", [
            frame(HEADERS, END_HEADERS, 1, block(&[pseudo("POST", "/hostile"), vec![("content-length", "1"), ("content-length", "1")]].concat())),
            frame(DATA, END_STREAM, 1, "x"),
        ].concat(), Refused),
        ("a Connection that HTTP/1 would follow", and("proxy-connection", "idempotency-key"), Refused),
    ]
}

fn held(cases: Vec<Case>) {
    let upstream = Upstream::start();
    upstream.always(reply(200).body("fine"));
    let proxy = Proxy::start(&upstream);
    let mut differs = Vec::new();
    for (what, bytes, ends) in cases {
        let mut raw = Raw::connect(proxy.address());
        let _ = raw.try_say(&bytes);
        // Where nothing is said any more, this is what is said.
        let _ = raw.try_say(frame(PING, 0, 0, *b"lastword"));
        let stream_ended = |frame: &super::raw::Frame| {
            frame.stream % 2 == 1 && matches!(frame.kind, RST_STREAM | HEADERS)
        };
        let first = raw.until(|frame| match ends {
            Ends::Connection(_) => frame.kind == GOAWAY,
            Ends::Stream(_) => matches!(frame.kind, GOAWAY | RST_STREAM),
            Ends::Refused | Ends::Nothing => frame.kind == GOAWAY || stream_ended(frame),
        });
        let code = |frame: &super::raw::Frame| match frame.kind {
            HEADERS => None,
            _ => Some(frame.code()),
        };
        // 200 and 400 stand in the static table (RFC 7541, appendix A).
        let held = match (ends, &first) {
            // Where there is a more exact code the library may still say PROTOCOL_ERROR; nobody acts on the difference.
            (Ends::Connection(wanted) | Ends::Stream(wanted), Some(frame)) => {
                [Some(wanted), Some(PROTOCOL_ERROR)].contains(&code(frame))
            }
            (Ends::Refused, Some(frame)) => match code(frame) {
                None => frame.payload.first() == Some(&0x8c),
                code => code == Some(PROTOCOL_ERROR),
            },
            (Ends::Nothing, Some(frame)) => {
                frame.kind == HEADERS && frame.payload.first() == Some(&0x88)
            }
            (_, None) => false,
        };
        if !held {
            differs.push(format!("{what}: {first:?} instead of {ends:?}"));
        }
        if matches!(ends, Ends::Connection(_)) {
            raw.end();
        }
        assert!(Raw::connect(proxy.address()).is_served(1), "after {what}");
    }
    assert!(differs.is_empty(), "{differs:#?}");
    let hostile = |seen: &crate::common::Seen| seen.target.contains("hostile");
    let seen = upstream.seen();
    assert!(!seen.iter().any(hostile), "{seen:?}");
    assert_eq!(upstream.garbled(), 0);
}

#[test]
fn frames_that_break_the_protocol_end_their_stream_or_connection() {
    held(frames());
}

#[test]
fn heads_that_break_the_protocol_are_refused_and_never_passed_on() {
    held(heads());
}

#[test]
fn what_begins_like_the_preface_and_is_none_is_http1_and_refused() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for bytes in [
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        "PRI * HTTP/2.0\r\nHost: a\r\n\r\n",
    ] {
        let mut client = proxy.client();
        client.say(bytes);
        assert!(client.everything().starts_with("HTTP/1.1 400"));
    }
    let mut raw = Raw::silent(proxy.address());
    raw.say(PREFACE);
    raw.say(get(1, "/hostile"));
    assert_eq!(raw.end(), Some(PROTOCOL_ERROR), "no SETTINGS first");
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn what_stands_in_trailers_changes_no_request() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut raw = Raw::connect(proxy.address());
    let mut head = pseudo("POST", "/free");
    head.push(("trailer", "host, x-checksum, idempotency-key"));
    raw.say(frame(HEADERS, END_HEADERS, 1, block(&head)));
    raw.say(frame(DATA, 0, 1, "body"));
    let trailers = [
        (":path", "/hostile"),
        (":method", "DELETE"),
        ("host", "evil.test"),
        ("content-length", "1"),
        ("idempotency-key", "k"),
        ("x-checksum", "7"),
    ];
    raw.say(frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        block(&trailers),
    ));
    raw.until(|frame| matches!(frame.kind, HEADERS | RST_STREAM))
        .expect("an answer or a refusal");
    for seen in upstream.seen() {
        assert_eq!(
            (seen.method.as_str(), seen.target.as_str()),
            ("POST", "/free")
        );
        assert_eq!(
            (seen.one("Host"), seen.body.as_slice()),
            (Some("shop.test"), &b"body"[..])
        );
        assert_eq!(seen.trailers.names(), ["x-checksum"]);
    }
}
