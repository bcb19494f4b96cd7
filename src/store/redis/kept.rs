//! Records as hashes: written, and read back as what the core knows.

use std::time::Duration;

use ::redis::Value;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::{
    core::{
        fingerprint::Digests,
        policy::{AfterExpiry, RouteName},
        record::{
            ClaimToken, NotRetained, Print, Record, RecordId, State, StoredAnswer,
            encoding::{self, Damage, Part},
        },
        time::Timestamp,
    },
    store::seal::{Place, Seal, SealError},
};

/// Why a hash is not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error("its field {0} is damaged")]
    Field(&'static str),
}

/// The fields in the order in which scripts tell them.
pub(super) const FIELDS: [&str; 11] = ["v", "s", "t", "a", "e", "l", "r", "c", "w", "h", "b"];

/// A hash as it was told.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) state: u8,
    pub(super) token: ClaimToken,
    started_at: Timestamp,
    expires_at: Timestamp,
    /// The end of the lease, or since when the outcome is unknown.
    pub(super) since: Option<Timestamp>,
    refused: Option<Duration>,
    status: Option<StatusCode>,
    why: Option<NotRetained>,
    head: Vec<u8>,
    answer: Option<Vec<u8>>,
}

impl Kept {
    /// Reads a list of [`FIELDS`]; the answer may be left out.
    pub(super) fn read(told: Value) -> Result<Self, Unreadable> {
        let Value::Array(told) = told else {
            return Err(Unreadable::Field("list"));
        };
        let mut fields = told.into_iter().map(|value| match value {
            Value::BulkString(bytes) => Some(bytes),
            Value::SimpleString(text) => Some(text.into_bytes()),
            _ => None,
        });
        let mut next = || fields.next().flatten();
        let version = next();
        let (state, token) = (next(), next());
        let (started_at, expires_at, since, refused) = (next(), next(), next(), next());
        let (status, why, head, answer) = (next(), next(), next(), next());
        if version.as_deref() != Some(b"1") {
            return Err(Unreadable::Field("v"));
        }
        let number = |bytes: &Option<Vec<u8>>, name| match bytes {
            Some(bytes) => millis(bytes).map(Some).ok_or(Unreadable::Field(name)),
            None => Ok(None),
        };
        let needed = |number: Option<u64>, name| number.ok_or(Unreadable::Field(name));
        let token: [u8; 16] = token
            .and_then(|token| token.try_into().ok())
            .ok_or(Unreadable::Field("t"))?;
        let status = number(&status, "c")?;
        Ok(Self {
            state: match state.as_deref() {
                Some([digit @ b'0'..=b'3']) => digit - b'0',
                _ => return Err(Unreadable::Field("s")),
            },
            token: ClaimToken::from_random(token),
            started_at: Timestamp::from_millis(needed(number(&started_at, "a")?, "a")?),
            expires_at: Timestamp::from_millis(needed(number(&expires_at, "e")?, "e")?),
            since: number(&since, "l")?.map(Timestamp::from_millis),
            refused: number(&refused, "r")?.map(Duration::from_millis),
            status: status
                .map(|status| {
                    let status = u16::try_from(status).ok();
                    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
                    status.ok_or(Unreadable::Field("c"))
                })
                .transpose()?,
            why: match why.as_deref() {
                None => None,
                Some(b"too-large") => Some(NotRetained::TooLarge),
                Some(b"stream") => Some(NotRetained::Stream),
                Some(b"no-room") => Some(NotRetained::NoRoom),
                Some(_) => return Err(Unreadable::Field("w")),
            },
            head: head.ok_or(Unreadable::Field("h"))?,
            answer,
        })
    }

    /// The whole record.
    pub(super) fn whole(mut self, seal: &Seal, id: &RecordId) -> Result<Record, Unreadable> {
        let answer = self.answer.take();
        let record = self.head(seal, id)?;
        // What has expired has no answer any more, and needs none.
        let Some(answer) = answer else {
            return Ok(record);
        };
        let State::Complete(head) = &record.state else {
            return Ok(record);
        };
        let place = place(id, Part::Answer, self.token);
        let answer = encoding::read_answer(&Bytes::from(seal.open(place, answer)?))?;
        if answer.status() != head.status() {
            return Err(Unreadable::Field("c"));
        }
        let state = State::Complete(answer);
        Ok(Record { state, ..record })
    }

    /// The record without its answer.
    pub(super) fn head(&self, seal: &Seal, id: &RecordId) -> Result<Record, Unreadable> {
        let (print, route) = read_head(seal, id, self.token, self.head.clone())?;
        let since = self.since.filter(|since| *since >= self.started_at);
        let since = || since.ok_or(Unreadable::Field("l"));
        let status = || self.status.ok_or(Unreadable::Field("c"));
        let state = match self.state {
            0 => State::InFlight {
                token: self.token,
                lease_until: since()?,
            },
            1 => State::Unknown { since: since()? },
            2 => {
                let none = HeaderMap::new();
                State::Complete(StoredAnswer::with_body(status()?, &none, Bytes::new()))
            }
            _ => State::Tombstone {
                status: status()?,
                why: self.why.ok_or(Unreadable::Field("w"))?,
            },
        };
        if self.expires_at < self.started_at {
            return Err(Unreadable::Field("e"));
        }
        Ok(Record {
            print,
            state,
            started_at: self.started_at,
            expires_at: self.expires_at,
            after_expiry: self
                .refused
                .map_or(AfterExpiry::Execute, AfterExpiry::RefuseFor),
            route,
        })
    }

    /// How long the answer is as it is kept, in bytes.
    pub(super) fn answer_bytes(&self) -> u64 {
        let length = self.answer.as_ref().map_or(0, Vec::len);
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    /// Whether a complete record has its answer.
    pub(super) const fn has_answer(&self) -> bool {
        self.answer.is_some()
    }
}

/// Route and digests as they are kept. Times and state stand beside them, where scripts can see them.
pub(super) fn write_head(
    seal: &Seal,
    id: &RecordId,
    token: ClaimToken,
    digests: Digests,
    route: &RouteName,
) -> Result<Vec<u8>, SealError> {
    let none = Timestamp::from_millis(0);
    let frame = encoding::head(&Record {
        print: Print::Settled(digests),
        state: State::InFlight {
            token,
            lease_until: none,
        },
        started_at: none,
        expires_at: none,
        after_expiry: AfterExpiry::Execute,
        route: route.clone(),
    });
    seal.seal(place(id, Part::Head, token), frame)
}

/// What [`write_head`] wrote.
pub(super) fn read_head(
    seal: &Seal,
    id: &RecordId,
    token: ClaimToken,
    head: Vec<u8>,
) -> Result<(Print, RouteName), Unreadable> {
    let head = encoding::read_head(&seal.open(place(id, Part::Head, token), head)?)?;
    Ok((head.print, head.route))
}

/// An answer as it is kept.
pub(super) fn write_answer(
    seal: &Seal,
    id: &RecordId,
    token: ClaimToken,
    answer: &StoredAnswer,
) -> Result<Vec<u8>, SealError> {
    seal.seal(place(id, Part::Answer, token), encoding::answer(answer))
}

/// A head is bound to the claim that it was written for, an answer to the record's being complete.
fn place(id: &RecordId, part: Part, token: ClaimToken) -> Place<'_> {
    let state = match part {
        Part::Head => 0,
        Part::Answer => 2,
    };
    Place::Record {
        id,
        part,
        state,
        token,
    }
}

/// A whole number as scripts tell it.
pub(super) fn millis(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Bytes as lower-case digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)])
        .collect()
}

/// The 32 bytes of so many digits.
pub(super) fn unhex(digits: &[u8]) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = digits.try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
