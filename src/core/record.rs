//! What a store holds: records, and the names they go by.

mod answer;
pub mod encoding;

use std::{fmt, sync::Arc};

use http::StatusCode;

pub use self::answer::{Gathered, StoredAnswer};
use super::{
    caller::CallerId,
    digest::Frames,
    fingerprint::{Digests, Fingerprint},
    key::Key,
    policy::{AfterExpiry, RouteName},
    time::Timestamp,
};

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

#[cfg(test)]
mod tests {
    use super::*;

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
