//! Heads of answers: where they end, and what they say.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING},
};
use hyper::ext::ReasonPhrase;

use crate::upstream::{
    framing::{After, Said},
    heads::{BadHead, MAX_HEAD_BYTES},
};

/// So many fields may stand in a head, or in trailers.
const MAX_FIELDS: usize = 100;

/// Looks for the end of a head as its bytes come. Line ends are CRLF alone.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Up to where the bytes were looked at.
    seen: usize,
    /// Where each line ends so far: where its CR stands.
    ends: Vec<usize>,
}

impl Lines {
    /// Forgets what was found: another head begins.
    pub(super) fn reset(&mut self) {
        self.seen = 0;
        self.ends.clear();
    }

    /// The length of the head that `bytes` begin with, its empty line included; `None`: it is not whole yet.
    ///
    /// # Errors
    /// It cannot be believed.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadHead> {
        loop {
            let rest = bytes.get(self.seen..).unwrap_or_default();
            let Some(found) = memchr::memchr(b'\n', rest) else {
                self.seen = bytes.len();
                return self.fits(None);
            };
            let line = self.ends.last().map_or(0, |end| end + 2);
            let at = self.seen + found;
            let end = at.checked_sub(1).filter(|end| *end >= line);
            let end = end.filter(|end| bytes.get(*end) == Some(&b'\r'));
            let end = end.ok_or(BadHead::BareLineFeed)?;
            self.seen = at + 1;
            if end > line && self.ends.len() > MAX_FIELDS {
                return Err(BadHead::TooManyFields);
            } else if end > line {
                self.ends.push(end);
            } else if self.ends.is_empty() {
                return Err(BadHead::NoStatusLine);
            } else {
                return self.fits(Some(at + 1));
            }
        }
    }

    fn fits(&self, end: Option<usize>) -> Result<Option<usize>, BadHead> {
        if self.seen > MAX_HEAD_BYTES {
            return Err(BadHead::TooLarge);
        }
        Ok(end)
    }
}

/// An answer's head, and what follows from it.
#[derive(Debug)]
pub(in crate::upstream) struct Head {
    pub(in crate::upstream) version: Version,
    pub(in crate::upstream) status: StatusCode,
    /// Where it is another than the status's own.
    pub(in crate::upstream) reason: Option<ReasonPhrase>,
    pub(in crate::upstream) fields: HeaderMap,
    pub(in crate::upstream) body: Framing,
    pub(super) after: After,
    /// How long the connection may be idle, where the upstream says when it closes it; with a second to spare for the way.
    pub(super) rests_for: Option<Duration>,
}

/// How an answer's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Framing {
    /// There is none.
    Nothing,
    /// After so many bytes.
    Length(u64),
    /// By its own framing.
    Chunked,
    /// With its connection.
    UntilClose,
}

impl Head {
    /// 1xx, but 101: that one is final (RFC 9110, section 15.2).
    pub(super) fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }

    /// Reads the head that these lines make, into an empty map; `method` is the request's.
    ///
    /// # Errors
    /// What is wrong with it: it is not to be believed.
    pub(super) fn read(
        bytes: &Bytes,
        lines: &Lines,
        method: &Method,
        mut fields: HeaderMap,
    ) -> Result<Self, &'static str> {
        let Some((first, ends)) = lines.ends.split_first() else {
            return Err("it has no status line");
        };
        let (version, status, reason) = status_line(bytes.get(..*first).unwrap_or_default())?;
        fields.reserve(ends.len().max(ROOM));
        let mut said = Said::default();
        let mut asks = Asks::Nothing;
        let mut rests_for = None;
        let mut line = first + 2;
        for end in ends {
            let (name, value) = field(bytes, line, *end)?;
            line = end + 2;
            if name == CONTENT_LENGTH {
                said.length(&value)?;
            } else if name == TRANSFER_ENCODING {
                said.coding(&value)?;
            } else if name == CONNECTION {
                asks = asks.and(&value);
            } else if name == KEEP_ALIVE {
                rests_for = idle_seconds(&value).or(rests_for);
            }
            fields.append(name, value);
        }
        let mut after = said.after(status);
        let stays = match asks {
            Asks::Nothing => version == Version::HTTP_11,
            Asks::Close => false,
            Asks::KeepAlive => true,
        };
        let rests_for = rests_for.map(|seconds| Duration::from_secs(seconds.saturating_sub(1)));
        if !stays || rests_for == Some(Duration::ZERO) {
            after = After::Close;
        }
        let body = if *method == Method::HEAD || has_no_body(status) {
            Framing::Nothing
        } else if said.is_chunked() {
            if version == Version::HTTP_10 {
                return Err("HTTP/1.0 knows no transfer codings");
            }
            Framing::Chunked
        } else if let Some(length) = said.number() {
            Framing::Length(length)
        } else {
            after = After::Close;
            Framing::UntilClose
        };
        if status == StatusCode::SWITCHING_PROTOCOLS {
            after = After::Close;
        }
        Ok(Self {
            version,
            status,
            reason,
            fields,
            body,
            after,
            rests_for,
        })
    }
}

/// The least room of a map. The server reads the client's next head into the map of the last answer, and the proxy adds some fields to that:
/// with less it would grow for each request.
const ROOM: usize = 24;

fn has_no_body(status: StatusCode) -> bool {
    status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
}

/// What `Connection` says of the connection.
#[derive(Clone, Copy)]
enum Asks {
    Nothing,
    KeepAlive,
    /// On any line, whatever else stands there.
    Close,
}

impl Asks {
    fn and(self, line: &HeaderValue) -> Self {
        let names = |option: &[u8]| {
            let mut words = line.as_bytes().split(|byte| *byte == b',');
            words.any(|word| word.trim_ascii().eq_ignore_ascii_case(option))
        };
        match self {
            Self::Close => Self::Close,
            _ if names(b"close") => Self::Close,
            _ if names(b"keep-alive") => Self::KeepAlive,
            said => said,
        }
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// The number of `timeout` in a `Keep-Alive` (RFC 2068, section 19.7.1.1).
fn idle_seconds(line: &HeaderValue) -> Option<u64> {
    let mut parameters = line.to_str().ok()?.split(',');
    parameters.find_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        let named = name.trim().eq_ignore_ascii_case("timeout");
        named.then(|| seconds.trim().parse().ok())?
    })
}

fn status_line(line: &[u8]) -> Result<(Version, StatusCode, Option<ReasonPhrase>), &'static str> {
    let (version, rest) = match line.split_first_chunk::<9>() {
        Some((b"HTTP/1.1 ", rest)) => (Version::HTTP_11, rest),
        Some((b"HTTP/1.0 ", rest)) => (Version::HTTP_10, rest),
        _ => return Err("it does not begin with HTTP/1.1"),
    };
    let (digits, reason) = match rest.split_first_chunk::<3>() {
        Some((digits, [])) => (digits, &b""[..]),
        Some((digits, [b' ', reason @ ..])) => (digits, reason),
        _ => return Err("its status is not three digits"),
    };
    let status = StatusCode::from_bytes(digits).map_err(|_| "its status is not three digits")?;
    let usual = status.canonical_reason().unwrap_or_default();
    let reason = (reason != usual.as_bytes()).then(|| ReasonPhrase::try_from(reason));
    let reason = reason.transpose();
    let reason = reason.map_err(|_| "a control character stands in its reason phrase")?;
    Ok((version, status, reason))
}

/// The field whose line begins and ends there.
fn field(
    bytes: &Bytes,
    from: usize,
    end: usize,
) -> Result<(HeaderName, HeaderValue), &'static str> {
    let line = bytes.get(from..end).unwrap_or_default();
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, [_, value @ ..]) = line.split_at(colon.unwrap_or(line.len())) else {
        return Err("a line of its head has no colon");
    };
    let name = HeaderName::from_bytes(name).map_err(|_| "the name of a field is none")?;
    let value = trimmed(value);
    let value = HeaderValue::from_maybe_shared(bytes.slice_ref(value));
    let value = value.map_err(|_| "a control character stands in a field")?;
    Ok((name, value))
}

/// Without the white space around it: SP and HTAB alone (RFC 9110, section 5.6.3).
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The fields of a trailer section, of its lines with their CRLFs.
///
/// # Errors
/// What is wrong with them.
pub(super) fn trailers(section: &Bytes) -> Result<HeaderMap, &'static str> {
    let mut fields = HeaderMap::new();
    let mut from = 0;
    while let Some(found) = memchr::memchr(b'\n', section.get(from..).unwrap_or_default()) {
        let end = (from + found).saturating_sub(1);
        if section.get(end) != Some(&b'\r') || end < from {
            return Err("a line of the trailers ends with a bare LF");
        }
        let (name, value) = field(section, from, end)?;
        if fields.len() == MAX_FIELDS {
            return Err("there are over 100 trailers");
        }
        fields.append(name, value);
        from = end + 2;
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_for(method: &Method, text: &str) -> Result<Head, String> {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let (mut whole, mut slowly) = (Lines::default(), Lines::default());
        let end = whole.end(&bytes);
        let mut seen = (0..=bytes.len()).map(|to| slowly.end(&bytes[..to]));
        let one_by_one = seen.find(|end| *end != Ok(None)).unwrap_or(Ok(None));
        assert_eq!(end, one_by_one, "{text:?}");
        match end {
            Err(why) => Err(why.to_string()),
            Ok(None) => Err("unfinished".to_owned()),
            Ok(Some(end)) => {
                assert_eq!(end, bytes.len(), "{text:?}");
                Head::read(&bytes, &whole, method, HeaderMap::new()).map_err(str::to_owned)
            }
        }
    }

    fn read(text: &str) -> Result<Head, String> {
        read_for(&Method::POST, text)
    }

    #[test]
    fn a_head_says_how_its_body_ends_and_what_follows() {
        for (text, body, after) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                Framing::Length(5),
                After::Reuse,
            ),
            (
                "HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n",
                Framing::Chunked,
                After::Reuse,
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, After::Close),
            (
                "HTTP/1.1 204 No Content\r\n\r\n",
                Framing::Nothing,
                After::Reuse,
            ),
            (
                "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n",
                Framing::Nothing,
                After::Close,
            ),
            (
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                Framing::Nothing,
                After::Reuse,
            ),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
                Framing::Length(5),
                After::Close,
            ),
            (
                "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\n",
                Framing::Length(5),
                After::Reuse,
            ),
            (
                "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
                Framing::Length(0),
                After::Close,
            ),
        ] {
            let head = read(text).unwrap();
            assert_eq!((head.body, head.after), (body, after), "{text:?}");
        }
        let head = read_for(
            &Method::HEAD,
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        )
        .unwrap();
        assert_eq!((head.body, head.after), (Framing::Nothing, After::Reuse));
    }

    #[test]
    fn a_head_says_how_long_its_connection_may_be_idle() {
        for (field, rests_for, after) in [
            ("Keep-Alive: timeout=5, max=9", Some(4), After::Reuse),
            ("Keep-Alive: max=9,Timeout = 2", Some(1), After::Reuse),
            ("Keep-Alive: timeout=1", Some(0), After::Close),
            ("Keep-Alive: timeout=0", Some(0), After::Close),
            ("Keep-Alive: timeout=soon", None, After::Reuse),
            ("Keep-Alive: timeout", None, After::Reuse),
            ("Keep-Alive: 300", None, After::Reuse),
        ] {
            let head = read(&format!(
                "HTTP/1.1 200 OK\r\n{field}\r\nContent-Length: 0\r\n\r\n"
            ));
            let head = head.unwrap();
            let said = head.rests_for.map(|time| time.as_secs());
            assert_eq!((said, head.after), (rests_for, after), "{field}");
        }
    }

    #[test]
    fn fields_come_as_they_were_sent() {
        let head = read("HTTP/1.1 299 Odd one\r\nA:\r\na: \t x y\t \r\nB:z:\r\n\r\n").unwrap();
        assert_eq!(head.status.as_u16(), 299);
        assert_eq!(head.reason.unwrap().as_bytes(), b"Odd one");
        let values: Vec<_> = head.fields.get_all("a").iter().collect();
        assert_eq!(values, ["", "x y"]);
        assert_eq!(head.fields.get("b").unwrap(), "z:");
        assert!(read("HTTP/1.1 200 OK\r\n\r\n").unwrap().reason.is_none());
    }

    #[test]
    fn what_another_could_read_otherwise_is_refused() {
        for text in [
            "HTTP/1.1 200 OK\nA: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\n\r\n",
            "HTTP/1.1 200 OK\r\n\n",
            "\n",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "http/1.1 200 OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 200 O\u{1}K\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA\r\n\r\n",
            "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\n folded: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\u{0}c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            let refused = read(text);
            assert!(refused.is_err_and(|why| why != "unfinished"), "{text:?}");
        }
    }

    #[test]
    fn a_head_is_bounded() {
        let fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert!(read(&fields(MAX_FIELDS)).is_ok());
        assert!(read(&fields(MAX_FIELDS + 1)).is_err_and(|why| why.contains("100 fields")));
        // It is refused as soon as it is known, and no more of it is kept.
        let mut lines = Lines::default();
        let unfinished = format!("HTTP/1.1 200 OK\r\n{}", "A: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(
            lines.end(unfinished.as_bytes()),
            Err(BadHead::TooManyFields)
        );
        assert_eq!(lines.ends.len(), MAX_FIELDS + 1, "the status line too");
        let mut lines = Lines::default();
        let long = "x".repeat(MAX_HEAD_BYTES + 1);
        assert_eq!(lines.end(long.as_bytes()), Err(BadHead::TooLarge));
        lines.reset();
        assert_eq!(lines.end(&long.as_bytes()[1..]), Ok(None));
    }

    #[test]
    fn trailers_are_fields() {
        let read = |text: &str| trailers(&Bytes::copy_from_slice(text.as_bytes()));
        assert!(read("").unwrap().is_empty());
        let fields = read("A: b\r\nGrpc-Status: 0\r\n").unwrap();
        assert_eq!(fields.get("grpc-status").unwrap(), "0");
        for bad in ["A: b\nC: d\r\n", "A\r\n", "A: b\r\n c\r\n", "\n"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        assert!(read(&"A: b\r\n".repeat(MAX_FIELDS + 1)).is_err());
    }
}
