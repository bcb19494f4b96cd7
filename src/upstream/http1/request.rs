//! Requests on their way out: the head as bytes, and how the body is framed.

use std::io::Write as _;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName,
    header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING},
    request,
};
use http_body::Body;

use crate::core::added::{Added, write_field};

/// How a request's body is framed.
#[derive(Debug, Default)]
pub(super) enum Encoding {
    /// There is none.
    #[default]
    Nothing,
    /// By its length, of which so much is to come.
    Length(u64),
    /// In chunks; of the trailers those go that the head announces.
    Chunked(Vec<HeaderName>),
}

/// Writes the `head` of a request with what is `added` to it, and says how its body follows.
///
/// A length that the head names is kept, for it was checked; but where there is no body, it is 0. A body without one goes in chunks,
/// whatever the method.
pub(super) fn write_head<B: Body>(
    head: &request::Parts,
    body: &B,
    added: Option<&Added<'_>>,
    out: &mut Vec<u8>,
) -> Encoding {
    let target = head.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    for part in [head.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let mut named = None;
    let mut announces = false;
    for (name, value) in &head.headers {
        if name == TRANSFER_ENCODING {
            continue;
        }
        if name == CONTENT_LENGTH {
            named = value.to_str().ok().and_then(|digits| digits.parse().ok());
            continue;
        }
        announces |= name == TRAILER;
        write_field(out, name, value.as_bytes());
    }
    if let Some(added) = added {
        added.write(out);
    }
    let encoding = if body.is_end_stream() {
        // The upstream would wait for what never comes.
        named = named.map(|_| 0);
        Encoding::Nothing
    } else if let Some(length) = named.or_else(|| body.size_hint().exact()) {
        named = Some(length);
        Encoding::Length(length)
    } else if announces {
        Encoding::Chunked(announced(&head.headers))
    } else {
        Encoding::Chunked(Vec::new())
    };
    match (&encoding, named) {
        (Encoding::Chunked(_), _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        (_, Some(length)) => {
            out.extend_from_slice(b"content-length: ");
            write_number(out, length);
            out.extend_from_slice(b"\r\n");
        }
        (_, None) => {}
    }
    out.extend_from_slice(b"\r\n");
    encoding
}

/// In decimal; without what formatting costs, which each request would pay.
fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; 20]; // no number has more
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    let start = digits.len().saturating_sub(used);
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(TRAILER).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// Begins a chunk of this many bytes.
pub(super) fn write_chunk_size(out: &mut Vec<u8>, length: usize) {
    // Into memory nothing fails.
    let _ = write!(out, "{length:X}\r\n");
}

/// Ends a chunked body: these fields stand behind it, where they were `announced`.
pub(super) fn write_end(out: &mut Vec<u8>, trailers: Option<&HeaderMap>, announced: &[HeaderName]) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if announced.contains(name) {
            write_field(out, name, value.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Behind the data of a chunk, and behind that of the last one.
pub(super) const CHUNK_END: &[u8] = b"\r\n";
pub(super) const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";

/// What waits to be written: a head or the beginning of a chunk, data, and what ends it.
#[derive(Debug, Default)]
pub(super) struct Out {
    pub(super) front: Vec<u8>,
    /// So much of `front` is written.
    pub(super) written: usize,
    pub(super) data: Bytes,
    pub(super) behind: &'static [u8],
}

impl Out {
    /// Whether everything was written.
    pub(super) fn is_empty(&self) -> bool {
        self.front.is_empty() && self.data.is_empty() && self.behind.is_empty()
    }

    /// The parts that are left, in their order; some may be empty.
    pub(super) fn parts(&self) -> [&[u8]; 3] {
        let front = self.front.get(self.written..).unwrap_or_default();
        [front, &self.data, self.behind]
    }

    /// So many bytes were written.
    pub(super) fn advance(&mut self, mut count: usize) {
        let front = (self.front.len() - self.written).min(count);
        self.written += front;
        count -= front;
        if self.written == self.front.len() {
            self.front.clear();
            self.written = 0;
        }
        let data = self.data.len().min(count);
        if data == self.data.len() {
            self.data = Bytes::new();
        } else {
            bytes::Buf::advance(&mut self.data, data);
        }
        count -= data;
        self.behind = self.behind.get(count..).unwrap_or_default();
    }

    /// Forgets what is left.
    pub(super) fn clear(&mut self) {
        self.front.clear();
        self.written = 0;
        self.data = Bytes::new();
        self.behind = b"";
    }
}

#[cfg(test)]
mod tests {
    use http_body::{Frame, SizeHint};

    use super::*;

    struct Unsized;

    impl Body for Unsized {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Ready(None)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::default()
        }
    }

    fn written<B: Body>(method: &str, fields: &[(&str, &str)], body: B) -> (String, Encoding) {
        let mut request = http::Request::builder().method(method).uri("/a//%2e?b");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut out = Vec::new();
        let (head, body) = request.body(body).unwrap().into_parts();
        let encoding = write_head(&head, &body, None, &mut out);
        (String::from_utf8(out).unwrap(), encoding)
    }

    fn whole(text: &'static str) -> crate::upstream::OutgoingBody {
        crate::upstream::OutgoingBody::whole(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_head_names_the_one_framing_that_its_body_has() {
        let (head, encoding) = written(
            "POST",
            &[("host", "a"), ("x", "1"), ("x", "2")],
            whole("abc"),
        );
        assert_eq!(
            head,
            "POST /a//%2e?b HTTP/1.1\r\nhost: a\r\nx: 1\r\nx: 2\r\ncontent-length: 3\r\n\r\n"
        );
        assert!(matches!(encoding, Encoding::Length(3)));
        let (head, encoding) = written("POST", &[("transfer-encoding", "chunked")], Unsized);
        assert!(
            head.ends_with("HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"),
            "{head}"
        );
        assert!(matches!(encoding, Encoding::Chunked(_)));
        let (head, encoding) = written("POST", &[("content-length", "7")], Unsized);
        assert!(
            head.ends_with("HTTP/1.1\r\ncontent-length: 7\r\n\r\n"),
            "{head}"
        );
        assert!(matches!(encoding, Encoding::Length(7)));
        for (method, fields, expected) in [
            ("GET", &[][..], "HTTP/1.1\r\n\r\n"),
            (
                "POST",
                &[("content-length", "0")],
                "HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            ),
            (
                "POST",
                &[("content-length", "7")],
                "HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            ),
        ] {
            let (head, encoding) = written(method, fields, whole(""));
            assert!(head.ends_with(expected), "{head}");
            assert!(matches!(encoding, Encoding::Nothing));
        }
        let (head, encoding) = written("GET", &[], Unsized);
        assert!(
            head.ends_with("HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"),
            "{head}"
        );
        assert!(matches!(encoding, Encoding::Chunked(_)));
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 7, 10, 1_024, u64::MAX] {
            let mut out = Vec::new();
            write_number(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn only_announced_trailers_go() {
        let (_, encoding) = written("POST", &[("trailer", "A, x-b"), ("trailer", "c")], Unsized);
        let Encoding::Chunked(announced) = encoding else {
            panic!("{encoding:?}")
        };
        let mut trailers = HeaderMap::new();
        for name in ["a", "d", "c"] {
            trailers.insert(name, http::HeaderValue::from_static("1"));
        }
        let mut out = Vec::new();
        write_end(&mut out, Some(&trailers), &announced);
        assert_eq!(out, b"0\r\na: 1\r\nc: 1\r\n\r\n");
    }

    #[test]
    fn what_is_left_to_write_shrinks_by_any_steps() {
        for step in 1..=9 {
            let mut out = Out {
                front: b"abc".to_vec(),
                data: Bytes::from_static(b"defg"),
                behind: b"hi",
                ..Out::default()
            };
            let mut seen = Vec::new();
            while !out.is_empty() {
                let left = out.parts().concat();
                let count = step.min(left.len());
                seen.extend_from_slice(&left[..count]);
                out.advance(count);
            }
            assert_eq!(seen, b"abcdefghi", "{step}");
        }
    }
}
