//! What goes over an HTTP/2 connection, frame by frame, as far as a server's protection needs it (RFC 9113, section 10.5).
//!
//! Only the nine bytes of each frame's header are looked at. From them follows which requests are under way, whether a head has been
//! begun and not ended, and how much of what costs the sender nothing has been spent: frames that a well-behaved client sends now
//! and then come out of an allowance, which time and real progress fill again.

use std::time::Duration;

/// What a client says before its first frame (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame's header (RFC 9113, section 4.1).
const HEADER_LENGTH: usize = 9;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Headers,
    Reset,
    Settings,
    GoAway,
    Continuation,
    /// PRIORITY, PING, `WINDOW_UPDATE`, `PUSH_PROMISE`, and types that nobody knows.
    Other,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    length: usize,
    kind: Kind,
    flags: u8,
    stream: u32,
}

impl Frame {
    fn read(header: [u8; HEADER_LENGTH]) -> Self {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = header;
        Self {
            length: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind: match kind {
                0 => Kind::Data,
                1 => Kind::Headers,
                3 => Kind::Reset,
                4 => Kind::Settings,
                7 => Kind::GoAway,
                9 => Kind::Continuation,
                _ => Kind::Other,
            },
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & (u32::MAX >> 1),
        }
    }

    fn ends_stream(&self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers) && self.flags & END_STREAM != 0
    }
}

/// What one read or write shows of the frames in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// A frame begins: its header is here.
    Begun(Frame),
    /// That frame is whole.
    Whole(Frame),
}

/// Finds the frames in the bytes of one direction.
#[derive(Debug, Default)]
struct Scanner {
    /// Bytes before the first frame.
    preface: usize,
    header: [u8; HEADER_LENGTH],
    have: usize,
    /// The frame whose payload is on its way, and how many bytes of it are missing.
    payload: Option<(Frame, usize)>,
}

impl Scanner {
    /// Looks at more bytes; `see` is told in their order.
    fn feed<E>(
        &mut self,
        mut bytes: &[u8],
        mut see: impl FnMut(Seen) -> Result<(), E>,
    ) -> Result<(), E> {
        let skipped = self.preface.min(bytes.len());
        self.preface -= skipped;
        bytes = bytes.get(skipped..).unwrap_or_default();
        while !bytes.is_empty() {
            let (frame, left) = match self.payload {
                Some(going) => going,
                None => match self.head(&mut bytes) {
                    None => return Ok(()),
                    Some(frame) => {
                        see(Seen::Begun(frame))?;
                        (frame, frame.length)
                    }
                },
            };
            let here = left.min(bytes.len());
            bytes = bytes.get(here..).unwrap_or_default();
            if here == left {
                self.payload = None;
                see(Seen::Whole(frame))?;
            } else {
                self.payload = Some((frame, left - here));
            }
        }
        Ok(())
    }

    /// The header of the next frame, once it is whole.
    fn head(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        while self.have < HEADER_LENGTH {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            if let Some(place) = self.header.get_mut(self.have) {
                *place = *first;
            }
            self.have += 1;
        }
        self.have = 0;
        Some(Frame::read(self.header))
    }

    /// Whether neither a frame nor its header is on its way.
    fn is_between(&self) -> bool {
        self.preface == 0 && self.have == 0 && self.payload.is_none()
    }

    /// Whether what is on its way is a part of a body.
    fn is_in_data(&self) -> bool {
        self.payload
            .is_some_and(|(frame, _)| frame.kind == Kind::Data)
    }
}

/// What may be spent at once, and comes back with time and progress.
#[derive(Debug)]
struct Allowance {
    left: u32,
    most: u32,
    /// How long it takes for one to come back.
    each: Duration,
    /// Up to when time has been counted.
    counted: Duration,
}

impl Allowance {
    fn new(most: u32, each: Duration) -> Self {
        Self {
            left: most,
            most,
            each,
            counted: Duration::ZERO,
        }
    }

    fn earn(&mut self, units: u32) {
        self.left = self.left.saturating_add(units).min(self.most);
    }

    /// Takes one; whether there was one.
    fn spend(&mut self, now: Duration) -> bool {
        if self.left == 0 {
            let passed = now.saturating_sub(self.counted).as_nanos() / self.each.as_nanos().max(1);
            self.earn(u32::try_from(passed).unwrap_or(u32::MAX));
            self.counted = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// What a client has sent too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// CONTINUATION frames in one head.
    Continuation,
    /// Frames that carry nothing of a request: SETTINGS, PING, PRIORITY, `WINDOW_UPDATE`, empty DATA, unknown ones.
    Control,
    /// Requests that were reset before they were answered.
    Reset,
    /// Anything at all before its introduction (RFC 9113, section 3.4).
    Unintroduced,
}

impl Excess {
    /// The error code that the client is told (RFC 9113, section 7).
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Unintroduced => 0x1,                               // PROTOCOL_ERROR
            Self::Continuation | Self::Control | Self::Reset => 0xb, // ENHANCE_YOUR_CALM
        }
    }
}

/// So many frames that carry nothing may come at once.
const CONTROL_BURST: u32 = 2_000;

/// And 200 a second, always.
const CONTROL_EACH: Duration = Duration::from_millis(5);

/// A piece of an answer earns so many: a window update for the stream, one for the connection, and a PING that measures.
const CONTROL_A_PIECE: u32 = 4;

/// So many requests may be given up at once.
const RESET_BURST: u32 = 500;

/// And 50 a second, always; each answer that came whole earns one more.
const RESET_EACH: Duration = Duration::from_millis(20);

/// Streams that are kept count of; the protocol's own limit is well below.
const MAX_OPEN: usize = 1_024;

/// Watches one connection. Times are counted from its beginning.
#[derive(Debug)]
pub struct Watch {
    incoming: Scanner,
    outgoing: Scanner,
    /// Requests that have begun and whose answers have not ended.
    open: Vec<u32>,
    /// The last request's stream.
    highest: u32,
    /// Whether the client's first SETTINGS are here.
    introduced: bool,
    /// Whether a head has been begun and its `END_HEADERS` not seen.
    in_head: bool,
    /// The request whose head is not whole.
    beginning: Option<u32>,
    continuations: usize,
    max_continuations: usize,
    control: Allowance,
    resets: Allowance,
    waits_since: Option<Duration>,
    idle_since: Duration,
    sent_at: Duration,
    /// Whether this side has said GOAWAY.
    leaving: bool,
}

impl Watch {
    /// A connection whose heads are at most so many bytes long.
    #[must_use]
    pub fn new(max_head_bytes: usize) -> Self {
        let fitting = (max_head_bytes / FRAME_LENGTH).max(1);
        Self {
            incoming: Scanner {
                preface: PREFACE.len(),
                ..Scanner::default()
            },
            outgoing: Scanner::default(),
            open: Vec::new(),
            highest: 0,
            introduced: false,
            in_head: false,
            beginning: None,
            continuations: 0,
            max_continuations: (fitting + fitting / 4).max(LEAST_CONTINUATIONS),
            control: Allowance::new(CONTROL_BURST, CONTROL_EACH),
            resets: Allowance::new(RESET_BURST, RESET_EACH),
            waits_since: Some(Duration::ZERO),
            idle_since: Duration::ZERO,
            sent_at: Duration::ZERO,
            leaving: false,
        }
    }

    /// Looks at bytes that the client has sent.
    ///
    /// # Errors
    /// What there was too much of: the connection is to end.
    pub fn received(&mut self, bytes: &[u8], now: Duration) -> Result<(), Excess> {
        // The scanner is taken out for as long as it tells this watch what it sees.
        let mut scanner = std::mem::take(&mut self.incoming);
        let fed = scanner.feed(bytes, |seen| match seen {
            Seen::Begun(frame) => self.frame_received(frame, now),
            Seen::Whole(frame) => {
                self.introduced |= frame.kind == Kind::Settings;
                self.in_head = match frame.kind {
                    Kind::Headers | Kind::Continuation => frame.flags & END_HEADERS == 0,
                    _ => self.in_head,
                };
                if !self.in_head && matches!(frame.kind, Kind::Headers | Kind::Continuation) {
                    self.beginning = None;
                }
                if self.introduced && !self.in_head {
                    self.waits_since = None;
                }
                Ok(())
            }
        });
        self.incoming = scanner;
        let begun = !self.incoming.is_between() && !self.incoming.is_in_data();
        if begun || self.in_head || !self.introduced {
            self.waits_since.get_or_insert(now);
        }
        fed
    }

    fn frame_received(&mut self, frame: Frame, now: Duration) -> Result<(), Excess> {
        let within = |allowed: bool, excess| if allowed { Ok(()) } else { Err(excess) };
        if !self.introduced && (frame.kind != Kind::Settings || frame.flags & ACK != 0) {
            return Err(Excess::Unintroduced);
        }
        match frame.kind {
            Kind::Headers => {
                self.continuations = 0;
                if frame.stream > self.highest {
                    self.highest = frame.stream;
                    if !self.leaving && self.open.len() < MAX_OPEN {
                        self.open.push(frame.stream);
                        self.beginning = Some(frame.stream);
                    }
                }
                Ok(())
            }
            Kind::Continuation => {
                self.continuations += 1;
                let allowed = self.continuations <= self.max_continuations;
                within(allowed, Excess::Continuation)
            }
            Kind::Reset if self.open.contains(&frame.stream) => {
                self.ended(frame.stream, now);
                within(self.resets.spend(now), Excess::Reset)
            }
            Kind::Data if frame.length > 0 || frame.ends_stream() => Ok(()),
            Kind::Data | Kind::Reset | Kind::Settings | Kind::GoAway | Kind::Other => {
                within(self.control.spend(now), Excess::Control)
            }
        }
    }

    /// Looks at bytes that this side has sent.
    pub fn sent(&mut self, bytes: &[u8], now: Duration) {
        let mut scanner = std::mem::take(&mut self.outgoing);
        let fed: Result<(), std::convert::Infallible> = scanner.feed(bytes, |seen| {
            match seen {
                Seen::Begun(frame) if frame.kind == Kind::GoAway => self.leaving = true,
                Seen::Begun(_) => {}
                Seen::Whole(frame) => self.frame_sent(frame, now),
            }
            Ok(())
        });
        self.outgoing = scanner;
        let Ok(()) = fed;
    }

    fn frame_sent(&mut self, frame: Frame, now: Duration) {
        if frame.kind == Kind::Data {
            self.sent_at = now;
            self.control.earn(CONTROL_A_PIECE);
        }
        if frame.ends_stream() {
            self.resets.earn(1);
            self.control.earn(CONTROL_A_PIECE);
            self.ended(frame.stream, now);
        } else if frame.kind == Kind::Reset {
            self.ended(frame.stream, now);
        }
    }

    fn ended(&mut self, stream: u32, now: Duration) {
        if let Some(place) = self.open.iter().position(|open| *open == stream) {
            self.open.swap_remove(place);
            self.sent_at = now;
            self.idle_since = now;
        }
    }

    /// Since when the client owes the rest of what it has begun: its introduction, a head, a frame that is no part of a body.
    #[must_use]
    pub fn waits_since(&self) -> Option<Duration> {
        self.waits_since
    }

    /// Since when no request is under way. One whose head is not whole is none yet.
    #[must_use]
    pub fn idle_since(&self) -> Option<Duration> {
        (self.open() == 0).then_some(self.idle_since)
    }

    /// How many requests have begun whose answers have not gone out whole.
    #[must_use]
    pub fn open(&self) -> usize {
        let beginning = self.beginning.is_some_and(|one| self.open.contains(&one));
        self.open.len() - usize::from(beginning)
    }

    /// When a piece of any answer, or the end of one, went out last.
    #[must_use]
    pub fn sent_at(&self) -> Duration {
        self.sent_at
    }

    /// The frame that tells the client why its connection ends, where one can be put: GOAWAY (RFC 9113, section 6.8).
    #[must_use]
    pub fn last_word(&self, why: Excess) -> Option<[u8; HEADER_LENGTH + 8]> {
        if !self.outgoing.is_between() {
            return None;
        }
        let [a, b, c, d] = self.highest.to_be_bytes();
        Some([0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, why.code()])
    }
}

/// The longest frame that this side takes (RFC 9113, section 4.2).
const FRAME_LENGTH: usize = 16 * 1024;

/// So many CONTINUATION frames a head may have, however short it is.
const LEAST_CONTINUATIONS: usize = 5;

#[cfg(test)]
mod tests;
