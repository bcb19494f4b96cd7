//! Properties of all that is read.

use proptest::prelude::*;

use super::{
    stream::Limits,
    tests::{LIMITS, read, read_in_pieces},
};

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
            assert!(coding.eq_ignore_ascii_case(b"chunked") && size.is_none());
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
        let (passed, heads, _) = read(&bytes);
        parser_agrees(&bytes[..passed], heads);
    }

    #[test]
    fn no_bytes_at_all_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (passed, _, _) = read(&bytes);
        prop_assert!(passed <= bytes.len());
    }
}
