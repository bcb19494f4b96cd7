//! Records as bytes, for stores that keep them outside this process.
//!
//! A record has two parts: its head says everything but the answer, and its answer, which only complete records have.
//! Each is a frame:
//!
//! | bytes | what |
//! |---|---|
//! | 0–1 | `id` |
//! | 2 | the part: `h` or `a` |
//! | 3 | the version, 1 |
//! | 4–7 | how many bytes follow the header, big-endian |
//! | 8–11 | CRC-32 of bytes 0–7 and of all that follows, big-endian |
//! | 12– | fields: a number, a length (LEB128), the value |
//!
//! A field of an unknown number is skipped, so that a later version can say more; what an older one must not overlook
//! gets a new version. A frame of another version, or one that is damaged, is an error and never "nothing there".
//!
//! The format is our own, for it is thirteen fields: schema compilers would be more code than it is, and raw bodies stay
//! one slice of the frame that they came in.

mod frame;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use self::frame::{Frame, content, fields};
use super::{ClaimToken, NotRetained, Print, Record, State, StoredAnswer};
use crate::core::{
    fingerprint::{Digest, Digests},
    policy::{AfterExpiry, RouteName},
    time::Timestamp,
    trace::SpanRef,
};

/// Which part of a record a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the answer.
    Head,
    /// The answer of a complete record.
    Answer,
}

impl Part {
    /// The byte that stands for it.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::Head => b'h',
            Self::Answer => b'a',
        }
    }
}

/// Why bytes are no record that this version can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// They do not start as a frame of this part does.
    #[error("it is no such frame")]
    NoFrame,
    /// They were written by another version.
    #[error("it has format version {0}, which this version does not know")]
    Version(u8),
    /// They are not as they were written.
    #[error("its length or checksum is wrong")]
    Checksum,
    /// They are as they were written, and make no sense.
    #[error("its {0} makes no sense")]
    Field(&'static str),
}

/// The version that is written, and the only one that is read.
pub const VERSION: u8 = 1;

/// The fields of a head.
mod head {
    pub(super) const STATE: u8 = 1;
    pub(super) const STARTED_AT: u8 = 2;
    pub(super) const EXPIRES_AT: u8 = 3;
    /// How long the key is refused after that, in milliseconds; absent: it executes as new.
    pub(super) const REFUSED_FOR: u8 = 4;
    pub(super) const ROUTE: u8 = 5;
    pub(super) const EXACT: u8 = 6;
    /// Absent: it is the exact digest.
    pub(super) const CANONICAL: u8 = 7;
    /// The claim's, while it is in flight.
    pub(super) const TOKEN: u8 = 8;
    pub(super) const LEASE_UNTIL: u8 = 9;
    /// Since when the outcome is unknown.
    pub(super) const SINCE: u8 = 10;
    /// What the upstream answered with: of complete records and tombstones.
    pub(super) const STATUS: u8 = 11;
    /// Why a tombstone has no answer.
    pub(super) const WHY: u8 = 12;
}

/// The fields of an answer.
mod answer {
    pub(super) const STATUS: u8 = 1;
    /// One line: flags, the length of the name (16 bits), name, value.
    pub(super) const HEADER: u8 = 2;
    pub(super) const BODY: u8 = 3;
    /// One line behind the body, written as a header's.
    pub(super) const TRAILER: u8 = 4;
    /// The span of the execution: the trace's 16 bytes and the span's 8; absent: it was not traced.
    pub(super) const EXECUTION: u8 = 5;
}

/// Flag of a header line: its value is not to be logged.
const SENSITIVE: u8 = 1;

impl State {
    /// The number that stands for the state in frames and tables.
    #[must_use]
    pub const fn number(&self) -> u8 {
        match self {
            Self::InFlight { .. } => 0,
            Self::Unknown { .. } => 1,
            Self::Complete(_) => 2,
            Self::Tombstone { .. } => 3,
            Self::Expired => 4,
        }
    }
}

impl ClaimToken {
    /// Its 16 bytes, as a store has them.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// The frame of a record's head. May compute the canonical digest of a request that is at hand.
#[must_use]
pub fn head(record: &Record) -> Vec<u8> {
    let mut frame = Frame::new(Part::Head, 192);
    let millis = |at: Timestamp| at.as_millis().to_be_bytes();
    frame.field(head::STATE, &[record.state.number()]);
    frame.field(head::STARTED_AT, &millis(record.started_at));
    frame.field(head::EXPIRES_AT, &millis(record.expires_at));
    if let AfterExpiry::RefuseFor(refused) = record.after_expiry {
        let refused = u64::try_from(refused.as_millis()).unwrap_or(u64::MAX);
        frame.field(head::REFUSED_FOR, &refused.to_be_bytes());
    }
    frame.field(head::ROUTE, record.route.as_str().as_bytes());
    let digests = record.print.digests();
    frame.field(head::EXACT, &digests.exact);
    if digests.canonical != digests.exact {
        frame.field(head::CANONICAL, &digests.canonical);
    }
    match &record.state {
        State::InFlight { token, lease_until } => {
            frame.field(head::TOKEN, &token.to_bytes());
            frame.field(head::LEASE_UNTIL, &millis(*lease_until));
        }
        State::Unknown { since } => frame.field(head::SINCE, &millis(*since)),
        State::Complete(answer) => {
            frame.field(head::STATUS, &answer.status.as_u16().to_be_bytes());
        }
        State::Tombstone { status, why } => {
            frame.field(head::STATUS, &status.as_u16().to_be_bytes());
            frame.field(head::WHY, &[number_of(*why)]);
        }
        State::Expired => {}
    }
    frame.finish()
}

/// The frame of an answer. The body is copied once.
#[must_use]
pub fn answer(answer: &StoredAnswer) -> Vec<u8> {
    let mut frame = Frame::new(Part::Answer, answer.weight());
    frame.field(answer::STATUS, &answer.status.as_u16().to_be_bytes());
    let headers = answer.headers().iter().map(|line| (answer::HEADER, line));
    let trailers = answer.trailers().iter().map(|line| (answer::TRAILER, line));
    for (number, (name, value)) in headers.chain(trailers) {
        let name = name.as_str().as_bytes();
        let flags = if value.is_sensitive() { SENSITIVE } else { 0 };
        // No header name is longer: `http` bounds it.
        let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
        let [high, low] = length.to_be_bytes();
        frame.line(number, &[&[flags, high, low], name, value.as_bytes()]);
    }
    if let Some(execution) = &answer.execution {
        frame.field(answer::EXECUTION, &execution.to_bytes());
    }
    frame.field(answer::BODY, &answer.body);
    frame.finish()
}

/// Reads a head. The answer of a complete record is empty but for its status: enough to decide what a request finds, and
/// not to answer it.
///
/// # Errors
/// [`Damage`]
pub fn read_head(frame: &[u8]) -> Result<Record, Damage> {
    let mut said = Head::default();
    for field in fields(content(Part::Head, frame)?) {
        let (number, value) = field?;
        said.take(number, value)?;
    }
    said.record()
}

/// Reads an answer; header values and body are slices of `frame`.
///
/// # Errors
/// [`Damage`]
pub fn read_answer(frame: &Bytes) -> Result<StoredAnswer, Damage> {
    let (mut status, mut lines, mut trailers, mut body) = (None, Vec::new(), Vec::new(), None);
    let mut execution = None;
    for field in fields(content(Part::Answer, frame)?) {
        match field? {
            (answer::STATUS, value) => status = Some(read_status(value)?),
            (answer::HEADER, value) => lines.push(read_line(frame, value)?),
            (answer::TRAILER, value) => trailers.push(read_line(frame, value)?),
            (answer::BODY, value) => body = Some(frame.slice_ref(value)),
            (answer::EXECUTION, value) => {
                // What tells of a trace, and is none, costs nobody an answer.
                let span = value.first_chunk().and_then(SpanRef::from_bytes);
                execution = span.map(Arc::new);
            }
            _ => {}
        }
    }
    let count = u32::try_from(trailers.len()).map_err(|_| Damage::Field("trailers"))?;
    lines.append(&mut trailers);
    Ok(StoredAnswer {
        status: status.ok_or(Damage::Field("status"))?,
        trailers: count,
        lines: lines.into(),
        body: body.ok_or(Damage::Field("body"))?,
        execution,
    })
}

/// Puts head and answer together.
///
/// # Errors
/// [`Damage`]; also if a complete record has no answer.
pub fn whole(record: Record, answer: Option<StoredAnswer>) -> Result<Record, Damage> {
    match (&record.state, answer) {
        (State::Complete(head), Some(answer)) if head.status == answer.status => {
            let state = State::Complete(answer);
            Ok(Record { state, ..record })
        }
        (State::Complete(_), _) => Err(Damage::Field("answer")),
        _ => Ok(record),
    }
}

/// The fields of a head as far as they were read.
#[derive(Default)]
struct Head {
    state: Option<u8>,
    started_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    refused_for: Option<Duration>,
    route: Option<RouteName>,
    exact: Option<Digest>,
    canonical: Option<Digest>,
    token: Option<ClaimToken>,
    lease_until: Option<Timestamp>,
    since: Option<Timestamp>,
    status: Option<StatusCode>,
    why: Option<NotRetained>,
}

impl Head {
    fn take(&mut self, number: u8, value: &[u8]) -> Result<(), Damage> {
        match number {
            head::STATE => self.state = Some(one_byte(value, "state")?),
            head::STARTED_AT => self.started_at = Some(read_time(value, "start")?),
            head::EXPIRES_AT => self.expires_at = Some(read_time(value, "expiry")?),
            head::REFUSED_FOR => {
                let refused = u64::from_be_bytes(exactly(value, "refusal")?);
                self.refused_for = Some(Duration::from_millis(refused));
            }
            head::ROUTE => {
                let name = std::str::from_utf8(value).map_err(|_| Damage::Field("route"))?;
                self.route = Some(RouteName::new(name));
            }
            head::EXACT => self.exact = Some(exactly(value, "fingerprint")?),
            head::CANONICAL => self.canonical = Some(exactly(value, "fingerprint")?),
            head::TOKEN => self.token = Some(ClaimToken::from_random(exactly(value, "token")?)),
            head::LEASE_UNTIL => self.lease_until = Some(read_time(value, "lease")?),
            head::SINCE => self.since = Some(read_time(value, "since")?),
            head::STATUS => self.status = Some(read_status(value)?),
            head::WHY => self.why = Some(read_why(value)?),
            _ => {}
        }
        Ok(())
    }

    fn record(self) -> Result<Record, Damage> {
        let exact = self.exact.ok_or(Damage::Field("fingerprint"))?;
        let status = || self.status.ok_or(Damage::Field("status"));
        let state = match self.state {
            Some(0) => State::InFlight {
                token: self.token.ok_or(Damage::Field("token"))?,
                lease_until: self.lease_until.ok_or(Damage::Field("lease"))?,
            },
            Some(1) => State::Unknown {
                since: self.since.ok_or(Damage::Field("since"))?,
            },
            Some(2) => State::Complete(StoredAnswer {
                status: status()?,
                trailers: 0,
                lines: Arc::new([]),
                body: Bytes::new(),
                execution: None,
            }),
            Some(3) => State::Tombstone {
                status: status()?,
                why: self.why.ok_or(Damage::Field("reason"))?,
            },
            Some(4) => State::Expired,
            Some(_) | None => return Err(Damage::Field("state")),
        };
        let started_at = self.started_at.ok_or(Damage::Field("start"))?;
        let holds = match &state {
            State::InFlight { lease_until, .. } => *lease_until >= started_at,
            State::Unknown { since } => *since >= started_at,
            State::Expired => self.refused_for.is_some(),
            State::Complete(_) | State::Tombstone { .. } => true,
        };
        if !holds {
            return Err(Damage::Field("state"));
        }
        Ok(Record {
            print: Print::Settled(Digests {
                exact,
                canonical: self.canonical.unwrap_or(exact),
            }),
            state,
            started_at,
            expires_at: self
                .expires_at
                .filter(|at| *at >= started_at)
                .ok_or(Damage::Field("expiry"))?,
            after_expiry: self
                .refused_for
                .map_or(AfterExpiry::Execute, AfterExpiry::RefuseFor),
            route: self.route.ok_or(Damage::Field("route"))?,
        })
    }
}

const fn number_of(why: NotRetained) -> u8 {
    match why {
        NotRetained::TooLarge => 1,
        NotRetained::Stream => 2,
        NotRetained::NoRoom => 3,
    }
}

fn read_why(value: &[u8]) -> Result<NotRetained, Damage> {
    match one_byte(value, "reason")? {
        1 => Ok(NotRetained::TooLarge),
        2 => Ok(NotRetained::Stream),
        3 => Ok(NotRetained::NoRoom),
        _ => Err(Damage::Field("reason")),
    }
}

fn one_byte(value: &[u8], what: &'static str) -> Result<u8, Damage> {
    let [byte] = exactly(value, what)?;
    Ok(byte)
}

fn read_time(value: &[u8], what: &'static str) -> Result<Timestamp, Damage> {
    exactly(value, what).map(|bytes| Timestamp::from_millis(u64::from_be_bytes(bytes)))
}

fn read_status(value: &[u8]) -> Result<StatusCode, Damage> {
    let number = u16::from_be_bytes(exactly(value, "status")?);
    StatusCode::from_u16(number).map_err(|_| Damage::Field("status"))
}

fn exactly<const N: usize>(value: &[u8], what: &'static str) -> Result<[u8; N], Damage> {
    value.try_into().map_err(|_| Damage::Field(what))
}

fn read_line(frame: &Bytes, line: &[u8]) -> Result<(HeaderName, HeaderValue), Damage> {
    let wrong = Damage::Field("header line");
    let ([flags, high, low], rest) = line.split_first_chunk::<3>().ok_or(wrong)?;
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let (name, value) = rest.split_at_checked(length).ok_or(wrong)?;
    let name = HeaderName::from_bytes(name).map_err(|_| wrong)?;
    let mut value = HeaderValue::from_maybe_shared(frame.slice_ref(value)).map_err(|_| wrong)?;
    value.set_sensitive(flags & SENSITIVE != 0);
    Ok((name, value))
}

#[cfg(test)]
mod tests;
