//! What a store holds: records, and the names they go by.

pub mod encoding;

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{
    caller::CallerId,
    digest::Frames,
    fingerprint::{Digests, Fingerprint},
    key::Key,
    policy::{AfterExpiry, RouteName},
    time::Timestamp,
    trace::SpanRef,
};
use bytes::{Bytes, BytesMut};

/// The name of a record in every store: SHA-256 over length-framed parts (contract, section 6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId([u8; 32]);

/// What a key is unique within, beside namespace and caller: the `scope` part of a record's id.
#[derive(Clone, Copy, Debug)]
pub enum ScopePart<'a> {
    /// `scope = "operation"`.
    Operation {
        /// The method as it came.
        method: &'a str,
        /// The normalised path.
        path: &'a str,
    },
    /// `scope = "caller"`.
    Caller,
}

impl RecordId {
    /// The version of the parts below; another version never meets this one's ids.
    const FORMAT: &'static [u8] = b"i2";

    /// The id of the record for these parts. Every part is framed by its length, so that none can be
    /// shifted into its neighbour.
    #[must_use]
    pub fn new(namespace: &str, caller: &CallerId, scope: ScopePart<'_>, key: &Key) -> Self {
        let mut parts = Frames::<ROOM>::new(Self::FORMAT);
        parts.frame(namespace.as_bytes());
        parts.frame(caller.as_bytes());
        match scope {
            ScopePart::Operation { method, path } => {
                parts.raw(b"o");
                parts.frame(method.as_bytes());
                parts.frame(path.as_bytes());
            }
            ScopePart::Caller => parts.raw(b"c"),
        }
        parts.frame(key.as_bytes());
        Self(parts.digest())
    }

    /// The id of these 32 bytes, as a store has them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// All 32 bytes, as a store has them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 16 hexadecimal digits: how logs and problems name a record.
    #[must_use]
    pub fn short(&self) -> ShortId {
        // 32 bytes have a first 8.
        ShortId(
            self.0
                .first_chunk()
                .map_or(0, |first| u64::from_be_bytes(*first)),
        )
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.short(), f)
    }
}

/// Ids of longer parts are made with an allocation.
const ROOM: usize = 256;

/// The first 16 hexadecimal digits of a record's id; nothing of the key can be told from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShortId(u64);

impl ShortId {
    /// The 16 digits as they are written, in either case; `None`: they are no 16 hexadecimal digits.
    #[must_use]
    pub fn parse(digits: &str) -> Option<Self> {
        let digits = Some(digits).filter(|digits| digits.len() == 16)?;
        let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(digits, 16).ok().filter(|_| hex)?;
        Some(Self(number))
    }

    /// The first 8 bytes of every id that begins so.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// The digits themselves, lower case, for those who write many of them.
    #[must_use]
    pub fn digits(self) -> [u8; 16] {
        let mut digits = [0; 16];
        let mut rest = self.0;
        for digit in digits.iter_mut().rev() {
            *digit = match u8::try_from(rest & 0xf).unwrap_or_default() {
                value @ 0..=9 => b'0' + value,
                value => b'a' + (value - 10),
            };
            rest >>= 4;
        }
        digits
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The random 128 bits that a claim is held under: who has it may renew and settle, nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClaimToken(u128);

impl ClaimToken {
    /// The token of these random bytes.
    #[must_use]
    pub const fn from_random(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimToken(…)")
    }
}

/// What one record says.
#[derive(Clone, Debug)]
pub struct Record {
    /// What a retry must be equal to.
    pub print: Print,
    /// Where its call stands.
    pub state: State,
    /// When the claim was made.
    pub started_at: Timestamp,
    /// The end of the retention: from this point on the record is expired. A claim has none of its own: it lives by
    /// its lease, and this is the end of the retention counted from its start.
    pub expires_at: Timestamp,
    /// What its key does once it has expired; fixed when the record is written, as the retention is.
    pub after_expiry: AfterExpiry,
    /// The route it came by, for operators.
    pub route: RouteName,
}

/// Where a record's call stands.
#[derive(Clone, Debug)]
pub enum State {
    /// The call runs, for all that is known. From `lease_until` on its outcome is unknown.
    InFlight {
        /// Who holds the claim.
        token: ClaimToken,
        /// Until when, unless it is renewed.
        lease_until: Timestamp,
    },
    /// The upstream may have executed, and nobody can tell.
    Unknown {
        /// Since this point.
        since: Timestamp,
    },
    /// The answer is here and is replayed.
    Complete(StoredAnswer),
    /// It was executed and its answer cannot be replayed.
    Tombstone {
        /// The status that the upstream answered with.
        status: StatusCode,
        /// Why the body is not here.
        why: NotRetained,
    },
    /// The retention has ended, and the key is refused for a while: all that is left is that it was used. Whoever
    /// finds a record expired may write this in its place; nothing is decided differently by it.
    Expired,
}

/// Why a tombstone has no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRetained {
    /// The body is over `max_response_body`.
    TooLarge,
    /// The answer's media type is one of `stream_types`.
    Stream,
    /// A full disk store, or memory store with `on_full = "reject"`, had no room for it.
    NoRoom,
}

impl NotRetained {
    /// How problems, logs and the admin API spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "too-large",
            Self::Stream => "stream",
            Self::NoRoom => "no-room",
        }
    }
}

/// A record's fingerprint: with the request at hand while the call runs, its digests alone afterwards.
#[derive(Clone, Debug)]
pub enum Print {
    /// Of a call that runs here: the canonical digest is computed when first asked for.
    Live(Arc<Fingerprint>),
    /// Of a settled record, or one from elsewhere.
    Settled(Digests),
}

impl Print {
    /// Whether `request` is the one that this print was taken of. Byte-equal requests cost one comparison;
    /// only where the exact digests differ are the canonical ones computed.
    #[must_use]
    pub fn is_of(&self, request: &Fingerprint) -> bool {
        match self {
            Self::Live(own) => own.same_as(request),
            Self::Settled(digests) => request.matches(digests),
        }
    }

    /// How many bytes of a request would have to be read for [`Self::digests`].
    #[must_use]
    pub fn unread(&self) -> usize {
        match self {
            Self::Live(own) => own.unread(),
            Self::Settled(_) => 0,
        }
    }

    /// The digests alone, so that the request can be let go.
    #[must_use]
    pub fn digests(&self) -> Digests {
        match self {
            Self::Live(own) => own.digests(),
            Self::Settled(digests) => *digests,
        }
    }
}

/// An answer as it is replayed: status, kept headers in order, raw body, and trailers if there were any. Cheap to clone: head and body are
/// shared.
#[derive(Clone)]
pub struct StoredAnswer {
    status: StatusCode,
    /// So many of the lines are trailers, the last ones. In a field of their own they would make every record larger.
    trailers: u32,
    lines: Arc<[(HeaderName, HeaderValue)]>,
    body: Bytes,
    /// The span of the execution that brought it, where that was traced: what replays link to.
    execution: Option<Arc<SpanRef>>,
}

impl StoredAnswer {
    /// What an entry costs a store beside its header lines and body: record, digests, place in the index and in the
    /// order of uses. Measured with the store's memory bench.
    pub const OVERHEAD: usize = 400;

    /// What a header line costs beside name and value.
    pub const HEADER_OVERHEAD: usize = size_of::<(HeaderName, HeaderValue)>();

    /// What the span of its execution costs, where that was traced: both ids, and two counters of who shares them.
    const EXECUTION: usize = size_of::<SpanRef>() + 16;

    /// Takes an answer over for keeping. All values and the body are copied out of the buffers that they
    /// arrived in, into one, so that a small answer does not pin a large read buffer.
    #[must_use]
    pub fn capture(status: StatusCode, kept: &HeaderMap, body: &[u8]) -> Self {
        let (lines, body) = copied(kept, |_| true, body);
        Self {
            status,
            trailers: 0,
            lines,
            body,
            execution: None,
        }
    }

    /// The same with those header fields alone that `keeps` says, and with a body that may have a buffer of its own already.
    #[must_use]
    pub fn capture_some(
        status: StatusCode,
        headers: &HeaderMap,
        keeps: impl Fn(&HeaderName) -> bool,
        body: Gathered,
    ) -> Self {
        let (lines, body) = match body {
            Gathered::Shared(body) => copied(headers, keeps, &body),
            Gathered::Own(body) => (copied(headers, keeps, &[]).0, body),
        };
        Self {
            status,
            trailers: 0,
            lines,
            body,
            execution: None,
        }
    }

    /// The same with a body that has a buffer of its own already.
    #[must_use]
    pub fn with_body(status: StatusCode, kept: &HeaderMap, body: Bytes) -> Self {
        let (lines, _) = copied(kept, |_| true, &[]);
        Self {
            status,
            trailers: 0,
            lines,
            body,
            execution: None,
        }
    }

    /// The same with these fields behind its body, copied as the rest was. Those it had before go.
    #[must_use]
    pub fn with_trailers(self, trailers: &HeaderMap) -> Self {
        if trailers.is_empty() {
            return self;
        }
        let (copied, _) = copied(trailers, |_| true, &[]);
        // There are no more lines than a message has bytes.
        let count = u32::try_from(copied.len()).unwrap_or(u32::MAX);
        Self {
            trailers: count,
            lines: self
                .headers()
                .iter()
                .chain(copied.iter())
                .cloned()
                .collect(),
            status: self.status,
            body: self.body,
            execution: self.execution,
        }
    }

    /// The same, brought by the execution with this span.
    #[must_use]
    pub fn executed_in(self, span: SpanRef) -> Self {
        Self {
            execution: Some(Arc::new(span)),
            ..self
        }
    }

    /// The span of the execution that brought it, if it was traced.
    #[must_use]
    pub const fn execution(&self) -> Option<&Arc<SpanRef>> {
        self.execution.as_ref()
    }

    /// The status that the upstream answered with.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The kept headers, line by line in the order they came.
    #[must_use]
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        self.split().0
    }

    /// The fields behind the body, line by line in the order they came; mostly none.
    #[must_use]
    pub fn trailers(&self) -> &[(HeaderName, HeaderValue)] {
        self.split().1
    }

    fn split(&self) -> Lines<'_> {
        let trailers = usize::try_from(self.trailers).unwrap_or(usize::MAX);
        let headers = self.lines.len().saturating_sub(trailers);
        self.lines
            .split_at_checked(headers)
            .unwrap_or((&self.lines, &[]))
    }

    /// The raw body, shared and never copied.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// What it weighs in a store, in bytes: body, names and values of headers and trailers, [`Self::HEADER_OVERHEAD`] for each line,
    /// and [`Self::OVERHEAD`].
    #[must_use]
    pub fn weight(&self) -> usize {
        let head: usize = self
            .lines
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + Self::HEADER_OVERHEAD)
            .sum();
        let execution = self.execution.as_ref().map_or(0, |_| Self::EXECUTION);
        Self::OVERHEAD + head + self.body.len() + execution
    }
}

/// A whole body, and whose its buffer is.
#[derive(Debug)]
pub enum Gathered {
    /// It is a part of a buffer that holds other things too, or has room for much more.
    Shared(Bytes),
    /// It has a buffer of its own, of about its size.
    Own(Bytes),
}

/// Header lines, then trailer lines.
type Lines<'a> = (
    &'a [(HeaderName, HeaderValue)],
    &'a [(HeaderName, HeaderValue)],
);

/// Those header lines that `keeps` says, and the body, in one buffer of their own.
fn copied(
    headers: &HeaderMap,
    keeps: impl Fn(&HeaderName) -> bool,
    body: &[u8],
) -> (Arc<[(HeaderName, HeaderValue)]>, Bytes) {
    let kept = || headers.iter().filter(|(name, _)| keeps(name));
    let (count, size) = kept().fold((0, body.len()), |(count, size), (_, value)| {
        (count + 1, size + value.len())
    });
    let mut all = BytesMut::with_capacity(size);
    kept().for_each(|(_, value)| all.extend_from_slice(value.as_bytes()));
    all.extend_from_slice(body);
    let mut all = all.freeze();
    let mut lines = Vec::with_capacity(count);
    lines.extend(kept().filter_map(|(name, value)| {
        let bytes = all.split_to(value.len());
        // The bytes were a header value a moment ago; if they were not, the header is left out.
        let mut copied = HeaderValue::from_maybe_shared(bytes).ok()?;
        copied.set_sensitive(value.is_sensitive());
        Some((name.clone(), copied))
    }));
    (lines.into(), all)
}

impl fmt::Debug for StoredAnswer {
    /// Status and sizes alone: an answer's content is not for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredAnswer")
            .field("status", &self.status.as_u16())
            .field("lines", &self.lines.len())
            .field("trailers", &self.trailers)
            .field("body", &self.body.len())
            .field("traced", &self.execution.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn trailers_stand_behind_the_head_and_weigh_as_it_does() {
        let head = lines(&[("a", "1"), ("b", "2")]);
        let plain = StoredAnswer::capture(StatusCode::OK, &head, b"body");
        assert_eq!((plain.headers().len(), plain.trailers().len()), (2, 0));
        let none = plain.clone().with_trailers(&HeaderMap::new());
        assert_eq!(none.weight(), plain.weight());
        let trailers = lines(&[("c", "3"), ("c", "4")]);
        let answer = plain.clone().with_trailers(&trailers);
        let twice = answer.clone().with_trailers(&trailers);
        for answer in [&answer, &twice] {
            assert_eq!(answer.headers(), plain.headers());
            let c = HeaderName::from_static("c");
            let expected = ["3", "4"].map(|v| (c.clone(), HeaderValue::from_static(v)));
            assert_eq!(answer.trailers(), expected);
            assert_eq!(&answer.body()[..], b"body");
            let added = 2 * (2 + StoredAnswer::HEADER_OVERHEAD);
            assert_eq!(answer.weight(), plain.weight() + added);
        }
    }

    #[test]
    fn a_body_is_copied_out_of_a_shared_buffer_and_not_out_of_its_own() {
        let head = lines(&[("a", "1"), ("b", "2")]);
        let capture = |body| {
            StoredAnswer::capture_some(StatusCode::OK, &head, |name| name.as_str() == "b", body)
        };
        let body = Bytes::from(b"body".to_vec());
        let own = capture(Gathered::Own(body.clone()));
        let copied = capture(Gathered::Shared(body.clone()));
        for answer in [&own, &copied] {
            let b = HeaderName::from_static("b");
            assert_eq!(answer.headers(), [(b, HeaderValue::from_static("2"))]);
            assert_eq!(answer.body(), &body);
        }
        assert_eq!(own.body().as_ptr(), body.as_ptr());
        assert_ne!(copied.body().as_ptr(), body.as_ptr());
        assert_eq!(own.weight(), copied.weight());
    }

    #[test]
    fn trailers_make_no_record_larger_that_has_none() {
        type Parts = (
            StatusCode,
            Arc<[(HeaderName, HeaderValue)]>,
            Bytes,
            Option<Arc<SpanRef>>,
        );
        let without = size_of::<Parts>();
        assert_eq!(size_of::<StoredAnswer>(), without);
    }

    #[test]
    fn a_short_id_is_read_as_it_is_written() {
        let id = ShortId(0x0123_4567_89ab_cdef);
        assert_eq!(ShortId::parse("0123456789ABcdef"), Some(id));
        assert_eq!(id.to_bytes()[..2], [1, 0x23]);
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789abcdef0",
            "+123456789abcdef",
            "g123456789abcdef",
        ] {
            assert_eq!(ShortId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_digits_of_an_id_are_those_that_are_displayed() {
        for id in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let id = ShortId(id);
            assert_eq!(id.to_string().as_bytes(), id.digits());
        }
    }
}
