//! The tables of what is refused, and properties of all that is read.

use proptest::prelude::*;

use super::{
    fault::Fault as F,
    stream::{Limits, Place, Stream, Then},
};

const LIMITS: Limits = Limits {
    head_bytes: 4096,
    target_bytes: 1024,
};

/// All that passes, how many heads are in it, and what is behind it; the bytes come in pieces that end `at` these places.
fn read_in_pieces(bytes: &[u8], ends: &[usize], limits: Limits) -> (usize, u64, Then) {
    let mut stream = Stream::new(limits);
    let (mut passed, mut then) = (0, Then::More);
    for end in ends.iter().copied().chain([bytes.len()]) {
        let read = stream.read(&bytes[passed..end]);
        passed += read.pass;
        then = read.then;
        assert!(passed <= end);
    }
    (passed, stream.heads(), then)
}

fn read(bytes: &[u8]) -> (usize, u64, Then) {
    read_in_pieces(bytes, &[], LIMITS)
}

fn refused(head: &[u8]) -> F {
    match read(head) {
        (0, 0, Then::Refused(fault)) => fault,
        other => panic!("{}: {other:?}", head.escape_ascii()),
    }
}

/// Lines of a head with the usual others, and what is wrong with them.
#[rustfmt::skip]
const FIELDS: &[(&str, F)] = &[
    ("Content-Length: 5\r\nContent-Length: 5", F::LengthTwice),
    ("Content-Length: 5\r\nContent-Length: 6", F::LengthTwice),
    ("Content-Length: 5, 5", F::Length),
    ("Content-Length: 5,5", F::Length),
    ("Content-Length: +5", F::Length),
    ("Content-Length: -5", F::Length),
    ("Content-Length: 0x5", F::Length),
    ("Content-Length: 5 5", F::Length),
    ("Content-Length: 5\u{a0}", F::Length),
    ("Content-Length: ", F::Length),
    ("Content-Length:", F::Length),
    ("Content-Length: 18446744073709551616", F::Length),
    ("Content-Length: 18446744073709551615", F::Length),
    ("Content-Length: 99999999999999999999999999", F::Length),
    ("Content-Length: 5\r\nTransfer-Encoding: chunked", F::LengthAndCoding),
    ("Transfer-Encoding: chunked\r\nContent-Length: 5", F::LengthAndCoding),
    ("Transfer-Encoding: chunked\r\nContent-Length: 0", F::LengthAndCoding),
    ("Transfer-Encoding: xchunked", F::Coding),
    ("Transfer-Encoding: chunkedx", F::Coding),
    ("Transfer-Encoding: identity", F::Coding),
    ("Transfer-Encoding: gzip, chunked", F::Coding),
    ("Transfer-Encoding: chunked, chunked", F::Coding),
    ("Transfer-Encoding: chunked, identity", F::Coding),
    ("Transfer-Encoding: chunked,", F::Coding),
    ("Transfer-Encoding: \"chunked\"", F::Coding),
    ("Transfer-Encoding: chunked;q=1", F::Coding),
    ("Transfer-Encoding: ", F::Coding),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", F::Coding),
    ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", F::Coding),
    ("Transfer-Encoding: \x0bchunked", F::Control),
    ("Transfer-Encoding:\r\n chunked", F::Coding),
    ("Transfer-Encoding : chunked", F::SpaceInName),
    ("Content-Length : 5", F::SpaceInName),
    ("Content-Length\t: 5", F::SpaceInName),
    ("X-A: b\r\n c", F::Folded),
    ("X-A: b\r\n\tc", F::Folded),
    ("X-A: b\r\n ", F::Folded),
    ("X A: b", F::SpaceInName),
    (": b", F::Name),
    ("X-A", F::Name),
    ("X-A(: b", F::Name),
    ("X\u{e9}: b", F::Name),
    ("X-A: b\nX-B: c", F::BareLf),
    ("X-A: b\n", F::BareLf),
    ("X-A: b\rX-B: c", F::BareCr),
    ("X-A: b\r", F::BareCr),
    ("X-A: b\0c", F::Control),
    ("X\0A: b", F::Control),
    ("X-A: b\x7fc", F::Control),
    ("X-A: b\x1bc", F::Control),
    ("Host: b", F::Host),
    ("Host: a", F::Host),
    ("hOST: ", F::Host),
];

#[test]
fn what_fields_may_not_be() {
    for (lines, fault) in FIELDS {
        for (before, after) in [("", ""), ("X-Before: 1\r\n", ""), ("", "\r\nX-After: 1")] {
            // What breaks a line off is told by what stands there, not by what follows.
            let head =
                format!("POST /a HTTP/1.1\r\nHost: a\r\n{before}{lines}{after}\r\n\r\n0\r\n\r\n");
            assert_eq!(refused(head.as_bytes()), *fault, "{head:?}");
        }
    }
}

/// Whole heads.
#[rustfmt::skip]
const HEADS: &[(&str, F)] = &[
    ("GET / HTTP/1.1\r\n\r\n", F::Host),
    ("GET / HTTP/1.1\r\nX: y\r\n\r\n", F::Host),
    ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", F::Host),
    ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", F::CodingInOld),
    ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", F::Version),
    ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", F::Version),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", F::Target),
    ("GET / HTTP/3.7\r\nHost: a\r\n\r\n", F::Version),
    ("GET / http/1.1\r\nHost: a\r\n\r\n", F::Version),
    ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", F::Version),
    ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", F::RequestLine),
    ("GET / \r\nHost: a\r\n\r\n", F::Version),
    ("GET /\r\nHost: a\r\n\r\n", F::RequestLine),
    ("GET\r\nHost: a\r\n\r\n", F::RequestLine),
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", F::RequestLine),
    ("GET /a /b HTTP/1.1\r\nHost: a\r\n\r\n", F::RequestLine),
    (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", F::Method),
    ("GE(T / HTTP/1.1\r\nHost: a\r\n\r\n", F::Method),
    ("G\u{c9}T / HTTP/1.1\r\nHost: a\r\n\r\n", F::Method),
    ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", F::Method),
    ("GET /\t HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", F::TargetNotAscii),
    ("GET /a<b HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("GET http:// HTTP/1.1\r\nHost: a\r\n\r\n", F::Target),
    ("X: y\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", F::Method),
    ("GET / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n", F::Folded),
    ("GET / HTTP/1.1\nHost: a\n\n", F::BareLf),
    ("GET / HTTP/1.1\r\nHost: a\n\n", F::BareLf),
    ("GET / HTTP/1.1\r\nHost: a\r\n\n", F::BareLf),
    ("GET / HTTP/1.1\r\rHost: a\r\n\r\n", F::BareCr),
    ("GET / HTTP/1.1\r\nHost: a\r\n\rX", F::BareCr),
    ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", F::Control),
    ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", F::BareLf),
    ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", F::RequestLine),
    ("\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n", F::Control),
];

#[test]
fn what_heads_may_not_be() {
    for (head, fault) in HEADS {
        assert_eq!(refused(head.as_bytes()), *fault, "{head:?}");
    }
}

#[test]
fn what_heads_may_be() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a?b=c&d#e HTTP/1.1\r\nhOsT:  a\t \r\nX:\r\nY: b\t c\r\n\r\n",
        "GET //a/../%2e/?? HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a.example:80/b?c HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        "g!t / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent_Length: x\r\nX-Transfer-Encoding: y\r\n\r\n",
    ] {
        assert_eq!(
            read(head.as_bytes()),
            (head.len(), 1, Then::More),
            "{head:?}"
        );
    }
    let raw = b"GET / HTTP/1.1\r\nHost: a\r\nX: \x80\xff\r\n\r\n";
    assert_eq!(read(raw), (raw.len(), 1, Then::More));
}

/// What stands in a chunked body from its first wrong byte on, and what is wrong with it.
#[rustfmt::skip]
const CHUNKS: &[(&str, &str, F)] = &[
    ("", "zz\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("", "+5\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("", "-5\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("", " 5\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("0", "x5\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("5", " \r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("", "\r\nhello", F::ChunkSize),
    ("", ";a=b\r\nhello", F::ChunkSize),
    ("0000000000000000", "5\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("1000000000000000", "5\r\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("5", "\nhello\r\n0\r\n\r\n", F::ChunkSize),
    ("5\r", "hello\r\n0\r\n\r\n", F::ChunkEnd),
    ("5;a=b", "\nhello\r\n0\r\n\r\n", F::ChunkExtension),
    ("5;a", "\0\r\nhello\r\n0\r\n\r\n", F::ChunkExtension),
    ("5\r\nhello", "\n0\r\n\r\n", F::ChunkEnd),
    ("5\r\nhello\r", "0\r\n\r\n", F::ChunkEnd),
    ("3\r\nhel", "lo\r\n0\r\n\r\n", F::ChunkEnd),
    ("7\r\nhello\r\n", "0\r\n\r\n", F::ChunkEnd),
    ("0\r\n", "\n", F::Trailers),
    ("0\r\n\r", "X", F::ChunkEnd),
    ("0\r\n", " X: 1\r\n\r\n", F::Trailers),
    ("0\r\nX", " : 1\r\n\r\n", F::Trailers),
    ("0\r\nX", "\r\n\r\n", F::Trailers),
    ("0\r\n", ": 1\r\n\r\n", F::Trailers),
    ("0\r\nX: 1", "\n\r\n", F::Trailers),
    ("0\r\nX: 1", "\0\r\n\r\n", F::Trailers),
    ("0\r\nX: 1\r\n", " folded\r\n\r\n", F::Trailers),
];

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn what_chunks_may_not_be() {
    for (good, bad, fault) in CHUNKS {
        let bytes = format!("{CHUNKED}{good}{bad}");
        let wanted = (CHUNKED.len() + good.len(), 1, Then::Broken(*fault));
        assert_eq!(read(bytes.as_bytes()), wanted, "{bytes:?}");
    }
}

#[test]
fn what_chunks_may_be() {
    for body in [
        "0\r\n\r\n",
        "000\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "000000000000000B;e=\"\u{e9}\t\"\r\nhello\r\n\0yes\r\n0;last\r\n\r\n",
        "1\r\n\n\r\n1\r\n\r\r\n0\r\nX-A: b\tc\r\nY:\r\n\r\n",
    ] {
        let bytes = format!("{CHUNKED}{body}GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(
            read(bytes.as_bytes()),
            (bytes.len(), 2, Then::More),
            "{body:?}"
        );
    }
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let extensions = |bytes: usize| {
        let one = format!("1;{}\r\nx\r\n", "e".repeat(bytes / 2));
        format!("{CHUNKED}{one}{one}0\r\n\r\n")
    };
    let trailers = |bytes: usize| format!("{CHUNKED}0\r\nX:{}\r\n\r\n", "v".repeat(bytes - 6));
    let fields = |count: usize| format!("{CHUNKED}0\r\n{}\r\n", "X: 1\r\n".repeat(count));
    let good = |bytes: String| read(bytes.as_bytes()) == (bytes.len(), 1, Then::More);
    let bad = |bytes: String, fault| read(bytes.as_bytes()).2 == Then::Broken(fault);
    assert!(good(extensions(16_382)) && bad(extensions(16_384), F::ChunkExtension));
    assert!(good(trailers(16_383)) && bad(trailers(16_384), F::Trailers));
    assert!(good(fields(100)) && bad(fields(101), F::Trailers));
}

#[test]
fn heads_and_targets_are_bounded_to_the_byte() {
    let head = |bytes: usize| {
        let rest = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".len();
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(bytes - rest)
        )
    };
    assert_eq!(read(head(4096).as_bytes()), (4096, 1, Then::More));
    assert_eq!(refused(head(4097).as_bytes()), F::HeadTooLarge);
    // It need not be whole, nor good, to be too large.
    assert_eq!(read(&head(4097).as_bytes()[..4095]).2, Then::More);
    assert_eq!(refused(&head(5000).as_bytes()[..4096]), F::HeadTooLarge);
    assert_eq!(refused(&[b'x'; 5000]), F::HeadTooLarge);

    let target =
        |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "t".repeat(bytes - 1));
    assert_eq!(read(target(1024).as_bytes()).1, 1);
    assert_eq!(refused(target(1025).as_bytes()), F::TargetTooLong);
    assert_eq!(read(&target(1025).as_bytes()[..4 + 1024]).2, Then::More);
    assert_eq!(
        refused(&target(1025).as_bytes()[..4 + 1025]),
        F::TargetTooLong
    );
    // Of a URI the path and query count.
    let uri = |bytes: usize| {
        format!(
            "GET http://{}/{} HTTP/1.1\r\nHost: a\r\n\r\n",
            "a".repeat(30),
            "t".repeat(bytes - 1)
        )
    };
    assert_eq!(read(uri(1024).as_bytes()).1, 1);
    assert_eq!(refused(uri(1025).as_bytes()), F::TargetTooLong);

    let fields = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "X: y\r\n".repeat(count - 1)
        )
    };
    assert_eq!(read(fields(100).as_bytes()).1, 1);
    assert_eq!(refused(fields(101).as_bytes()), F::TooManyFields);
}

#[test]
fn a_body_of_a_known_length_passes_unread() {
    let mut stream = Stream::new(LIMITS);
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551613\r\n\r\n";
    assert_eq!(stream.read(head).pass, head.len());
    assert_eq!(stream.place(), Place::Body);
    for _ in 0..3 {
        assert_eq!(stream.read(b"\0\r\n\r\nGET").pass, 8);
    }
}

const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Upgrade\r\nUpgrade: websocket\r\n";

#[test]
fn behind_an_upgrade_nothing_is_looked_at_until_it_is_decided() {
    for body in [
        "\r\n",
        "Content-Length: 2\r\n\r\nhi",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ] {
        let request = format!("{UPGRADE}{body}");
        let bytes = format!("{request}\0\nnext");
        let mut stream = Stream::new(LIMITS);
        let read = stream.read(bytes.as_bytes());
        assert_eq!((read.pass, read.then), (request.len(), Then::Undecided));
        assert_eq!(stream.read(b"\0\nnext").pass, 0);
        let mut switched = stream.clone();
        switched.tunnel();
        assert_eq!((switched.read(b"\0\nnext").pass, switched.heads()), (6, 1));
        stream.no_tunnel();
        assert_eq!(stream.read(b"\0\nnext").then, Then::Refused(F::Control));
    }
    // It can be decided before the body has come.
    let mut stream = Stream::new(LIMITS);
    stream.read(format!("{UPGRADE}Content-Length: 2\r\n\r\nh").as_bytes());
    assert!(stream.asks_upgrade());
    stream.no_tunnel();
    assert!(!stream.asks_upgrade());
    assert_eq!(
        stream.read(b"iGET / HTTP/1.1\r\nHost: a\r\n\r\n").then,
        Then::More
    );
    assert_eq!(stream.heads(), 2);
}

#[test]
fn only_an_upgrade_that_connection_names_is_one() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ] {
        assert_eq!(
            read(head.as_bytes()),
            (head.len(), 1, Then::More),
            "{head:?}"
        );
    }
    let lines = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: close\r\nConnection: UPGRADE\r\n\r\n";
    assert_eq!(read(lines.as_bytes()).2, Then::Undecided);
}

#[test]
fn what_was_refused_stays_refused() {
    let mut stream = Stream::new(LIMITS);
    let refused = Then::Refused(F::RequestLine);
    assert_eq!(stream.read(b"nonsense\r\n\r\n").then, refused);
    assert_eq!(
        stream.read(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").then,
        refused
    );
    assert_eq!(stream.heads(), 0);
}

/// Requests that are good, and something to put in.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![
        Just("GET /b?c HTTP/1.1\r\nHost: a\r\nX-Long: abcdefghijklmnop\r\n\r\n"),
        Just("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
        Just(
            "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n"
        ),
        Just("\r\nGET http://a/b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        Just(
            "POST /u HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nhi"
        ),
    ];
    prop::collection::vec(one, 1..4).prop_map(|all| all.concat().into_bytes())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let mutation = prop_oneof![
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| (at, vec![byte], 1)),
        (any::<prop::sample::Index>(), 1..4_usize).prop_map(|(at, count)| (at, vec![], count)),
        (
            any::<prop::sample::Index>(),
            prop::sample::select(vec![
                "\r",
                "\n",
                "\r\n",
                ":",
                " ",
                "\t",
                "\0",
                "0",
                "5",
                ";",
                ",",
                "\r\n\r\n",
                "\r\nContent-Length: 5",
                "\r\nTransfer-Encoding: chunked",
                "\r\nHost: b",
                "\r\nConnection: close",
                "\r\nTransfer-Encoding: gzip",
                "\r\nUpgrade: y",
                "GET /x HTTP/1.1\r\n",
                "\x7f",
                "\u{e9}",
                "#",
                "<",
            ])
        )
            .prop_map(|(at, text)| (at, text.as_bytes().to_vec(), 0)),
    ];
    (requests(), prop::collection::vec(mutation, 0..4)).prop_map(|(mut bytes, mutations)| {
        for (at, new, count) in mutations {
            let at = at.index(bytes.len() + 1);
            let end = (at + count).min(bytes.len());
            bytes.splice(at..end, new);
        }
        bytes
    })
}

/// The parser behind reads each head of what passes as we do: where it ends, and how its body does.
fn parser_agrees(mut bytes: &[u8], heads: u64) {
    for number in 0..heads {
        let mut fields = [httparse::EMPTY_HEADER; 100];
        let mut request = httparse::Request::new(&mut fields);
        let parsed = request.parse(bytes);
        let length = match parsed {
            Ok(httparse::Status::Complete(length)) => length,
            other => panic!("{other:?} of head {number} in {}", bytes.escape_ascii()),
        };
        let target = request.path.expect("a target");
        assert!(http::Uri::try_from(target).is_ok(), "{target:?}");
        let value = |name: &str| {
            let mut all = request
                .headers
                .iter()
                .filter(|field| field.name.eq_ignore_ascii_case(name));
            let value = all.next().map(|field| field.value);
            assert!(all.next().is_none(), "two {name}");
            value
        };
        let (size, coding) = (value("content-length"), value("transfer-encoding"));
        for field in request.headers.iter() {
            http::HeaderName::from_bytes(field.name.as_bytes()).expect("a name");
            http::HeaderValue::from_bytes(field.value).expect("a value");
        }
        bytes = &bytes[length..];
        if let Some(coding) = coding {
            assert!(coding == b"chunked".as_slice() && size.is_none());
            bytes = behind_chunks(bytes);
        } else if let Some(size) = size {
            let size: usize = std::str::from_utf8(size)
                .expect("digits")
                .parse()
                .expect("a size");
            bytes = &bytes[size.min(bytes.len())..];
        }
    }
    assert!(bytes.is_empty(), "{} is left", bytes.escape_ascii());
}

/// What is behind a chunked body; nothing where it is not whole.
fn behind_chunks(mut bytes: &[u8]) -> &[u8] {
    loop {
        let Ok(httparse::Status::Complete((at, size))) = httparse::parse_chunk_size(bytes) else {
            return &[];
        };
        bytes = &bytes[at..];
        if size == 0 {
            let mut fields = [httparse::EMPTY_HEADER; 100];
            return match httparse::parse_headers(bytes, &mut fields) {
                Ok(httparse::Status::Complete((at, _))) => &bytes[at..],
                _ => &[],
            };
        }
        let Some(rest) = usize::try_from(size)
            .ok()
            .and_then(|size| bytes.get(size + 2..))
        else {
            return &[];
        };
        bytes = rest;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_verdict_is_the_same_however_the_bytes_come(
        bytes in mutated(),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        small in any::<bool>(),
    ) {
        let limits = if small { Limits { head_bytes: 60, target_bytes: 8 } } else { LIMITS };
        let whole = read_in_pieces(&bytes, &[], limits);
        let mut ends: Vec<_> = ends.iter().map(|at| at.index(bytes.len() + 1)).collect();
        ends.sort_unstable();
        prop_assert_eq!(read_in_pieces(&bytes, &ends, limits), whole);
        let each: Vec<_> = (0..bytes.len()).collect();
        prop_assert_eq!(read_in_pieces(&bytes, &each, limits), whole);
    }

    #[test]
    fn what_passes_is_read_the_same_by_the_parser_behind(bytes in mutated()) {
        let (passed, heads, then) = read(&bytes);
        match then {
            // A body that breaks off, or off which there is more to come, is the last thing.
            Then::More | Then::Undecided | Then::Refused(_) | Then::Broken(_) => parser_agrees(&bytes[..passed], heads),
        }
    }

    #[test]
    fn no_bytes_at_all_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (passed, _, _) = read(&bytes);
        prop_assert!(passed <= bytes.len());
    }
}
