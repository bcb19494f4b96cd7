//! Trace context (W3C Trace Context, levels 1 and 2): a trace that comes in goes on byte for byte, where none comes one is started.
//!
//! Where the proxy records no span of its own, the parent that the upstream sees is the client's; where it does ([`Trace::write_from`]), the
//! span of the call is. A `traceparent` that is not valid is no trace: a new one is started in its place, and a `tracestate` without its
//! parent goes. `baggage` is not ours to read.

use std::num::NonZeroU64;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::present::{Kind, Present};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The trace that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    id: TraceId,
    origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It came with the request.
    Received(Parent),
    /// It begins here, with this parent.
    Started([u8; 16]),
}

/// The span that a request came from, as digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    id: [u8; 16],
    flags: [u8; 2],
}

impl Parent {
    /// The flags that are defined: sampled, and that the trace's id is random (level 2, section 3.2.2.5).
    fn flags(self) -> u8 {
        let [_, low] = self.flags;
        u8::try_from(value_of(low)).unwrap_or(0) & 3
    }
}

/// Whether whoever began a trace records it: what its `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// It is recorded.
    Yes,
    /// It is not.
    No,
    /// It begins here: nobody has said so yet.
    Open,
}

/// The id of a span: 8 bytes, not all of them zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(NonZeroU64);

impl SpanId {
    /// The id that this random number makes.
    #[must_use]
    pub const fn from_random(number: u64) -> Self {
        match NonZeroU64::new(number) {
            Some(number) => Self(number),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// Its bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

/// A span, as others name it: by its trace's id and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRef {
    /// The trace.
    pub trace: [u8; 16],
    /// The span in it.
    pub span: SpanId,
}

impl SpanRef {
    /// Both ids, one behind the other: how records keep it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let (trace, span) = bytes.split_at_mut(16);
        trace.copy_from_slice(&self.trace);
        span.copy_from_slice(&self.span.to_bytes());
        bytes
    }

    /// What [`Self::to_bytes`] wrote; `None`: one of the ids is zero.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 24]) -> Option<Self> {
        let (trace, span) = bytes.split_first_chunk::<16>()?;
        let span = NonZeroU64::new(u64::from_be_bytes(span.try_into().ok()?))?;
        (*trace != [0; 16]).then_some(Self {
            trace: *trace,
            span: SpanId(span),
        })
    }
}

/// A trace's id: 32 hexadecimal digits in lower case, not all of them zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceId([u8; 32]);

impl TraceId {
    /// The digits.
    #[must_use]
    pub const fn digits(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 16 bytes that they stand for.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (half, digits) in bytes.chunks_exact_mut(8).zip(self.0.chunks_exact(16)) {
            half.copy_from_slice(&number(digits).to_be_bytes());
        }
        bytes
    }
}

impl Trace {
    /// The same as [`Trace::of`] for a head that has this `present`.
    #[must_use]
    pub fn in_head(
        headers: &HeaderMap,
        present: Present,
        random: impl FnOnce() -> [u64; 3],
    ) -> Self {
        if present.has(Kind::Trace) {
            Self::of(headers, random)
        } else {
            Self::start(random())
        }
    }

    /// The trace that `headers` name, or else a new one of three random numbers: the two halves of its id, and its parent.
    #[must_use]
    pub fn of(headers: &HeaderMap, random: impl FnOnce() -> [u64; 3]) -> Self {
        match received(headers) {
            Some((id, parent)) => Self {
                id,
                origin: Origin::Received(parent),
            },
            None => Self::start(random()),
        }
    }

    fn start([high, low, parent]: [u64; 3]) -> Self {
        // An id of zeros is none (section 3.2.2.3); of random numbers that is one in 2^64 at the most.
        let low = if high == 0 { low.max(1) } else { low };
        let mut id = [0; 32];
        let (first, second) = id.split_at_mut(16);
        first.copy_from_slice(&digits(high));
        second.copy_from_slice(&digits(low));
        Self {
            id: TraceId(id),
            origin: Origin::Started(digits(parent.max(1))),
        }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> TraceId {
        self.id
    }

    /// Whether it is recorded, as far as that is said.
    #[must_use]
    pub fn sampled(&self) -> Sampled {
        match self.origin {
            Origin::Started(_) => Sampled::Open,
            Origin::Received(parent) if parent.flags() & 1 == 1 => Sampled::Yes,
            Origin::Received(_) => Sampled::No,
        }
    }

    /// The client's span; `None`: the trace begins here.
    #[must_use]
    pub fn parent(&self) -> Option<SpanId> {
        match self.origin {
            Origin::Started(_) => None,
            Origin::Received(parent) => NonZeroU64::new(number(&parent.id)).map(SpanId),
        }
    }

    /// Says it in a request of the proxy's own as well, that `asking` is the reason of.
    pub fn copy(&self, asking: &HeaderMap, headers: &mut HeaderMap) {
        if matches!(self.origin, Origin::Received(_)) {
            for name in [TRACEPARENT, TRACESTATE] {
                for line in asking.get_all(&name) {
                    headers.append(name.clone(), line.clone());
                }
            }
        }
    }

    /// What a request's head is to say of it, which has this `present`; `None`: what came in, which stays as it is. What is no trace goes.
    #[must_use]
    pub fn begun(&self, headers: &mut HeaderMap, present: Present) -> Option<Traceparent> {
        let Origin::Started(parent) = &self.origin else {
            return None;
        };
        if present.has(Kind::Trace) {
            headers.remove(TRACEPARENT);
            headers.remove(TRACESTATE);
        }
        // No flag: nobody has recorded anything yet (section 3.2.2.5).
        Some(Traceparent::new(&self.id, parent, b'0'))
    }

    /// Makes the head of a request say that it comes from `span`, a recorded one of this trace. The `tracestate` stays what it is: the proxy
    /// has no entry there (section 3.3).
    pub fn write_from(&self, span: SpanId, headers: &mut HeaderMap) {
        let flags = match self.origin {
            Origin::Received(parent) => parent.flags(),
            Origin::Started(_) => 0,
        };
        let parent = digits(span.0.get());
        Traceparent::new(&self.id, &parent, b'0' + (flags | 1)).insert_into(headers);
    }
}

/// A `traceparent` of version 00 (section 3.2.2.1).
#[derive(Clone, Copy, Debug)]
pub struct Traceparent([u8; VERSION_00]);

impl Traceparent {
    /// Its name.
    pub(super) const NAME: HeaderName = TRACEPARENT;

    fn new(id: &TraceId, parent: &[u8; 16], flags: u8) -> Self {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        if let Some(last) = value.last_mut() {
            *last = flags;
        }
        let parts = value.split_at_mut(ID_ENDS);
        for (place, digits) in [
            (parts.0.get_mut(ID_BEGINS..), id.0.as_slice()),
            (parts.1.get_mut(1..=16), parent.as_slice()),
        ] {
            if let Some(place) = place {
                place.copy_from_slice(digits);
            }
        }
        Self(value)
    }

    #[cfg(test)]
    pub(super) fn sample() -> Self {
        let trace = Trace::start([10, 11, 12]);
        let headers = &mut HeaderMap::new();
        let begun = trace.begun(headers, Present::of(headers));
        begun.expect("nothing came in")
    }

    /// Its value.
    pub(super) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Makes it the one of this head.
    pub(super) fn insert_into(&self, headers: &mut HeaderMap) {
        // Digits and dashes are a value.
        if let Ok(value) = HeaderValue::from_bytes(&self.0) {
            headers.insert(TRACEPARENT, value);
        }
    }
}

const ID_BEGINS: usize = 3;
const ID_ENDS: usize = ID_BEGINS + 32;

/// The ids and flags of the one valid `traceparent` (section 3.2); several lines are none.
fn received(headers: &HeaderMap) -> Option<(TraceId, Parent)> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let value = lines.next()?.as_bytes();
    if lines.next().is_some() {
        return None;
    }
    let (head, rest) = value.split_at_checked(VERSION_00)?;
    let (&[v0, v1, b'-'], head) = head.split_first_chunk::<3>()? else {
        return None;
    };
    let (id, head) = head.split_first_chunk::<32>()?;
    let (&[b'-'], head) = head.split_first_chunk::<1>()? else {
        return None;
    };
    let (parent, head) = head.split_first_chunk::<16>()?;
    let &[b'-', f0, f1] = head else {
        return None;
    };
    // A later version may go on after another dash; version ff is forbidden.
    let ends = match [v0, v1] {
        [b'0', b'0'] => rest.is_empty(),
        [b'f', b'f'] => false,
        _ => matches!(rest.first(), None | Some(b'-')),
    };
    let hexadecimal = is_hex(id) && is_hex(parent) && is_hex(&[v0, v1, f0, f1]);
    let parent_is = Parent {
        id: *parent,
        flags: [f0, f1],
    };
    (ends && hexadecimal && !is_zero(id) && !is_zero(parent)).then_some((TraceId(*id), parent_is))
}

/// The length of a `traceparent` of version 00.
const VERSION_00: usize = 55;

/// Lower case alone (section 3.2.2). Without a branch, these are a few instructions for all digits at once.
fn is_hex<const N: usize>(digits: &[u8; N]) -> bool {
    let is_digit = |byte: u8| byte.wrapping_sub(b'0') < 10 || byte.wrapping_sub(b'a') < 6;
    digits.iter().fold(true, |all, byte| all & is_digit(*byte))
}

fn is_zero<const N: usize>(digits: &[u8; N]) -> bool {
    *digits == [b'0'; N]
}

/// The number that up to 16 digits in lower case stand for.
fn number(digits: &[u8]) -> u64 {
    let next = |number: u64, digit: &u8| number << 4 | value_of(*digit);
    digits.iter().fold(0, next)
}

fn value_of(digit: u8) -> u64 {
    u64::from(if digit < b'a' {
        digit.wrapping_sub(b'0')
    } else {
        digit.wrapping_sub(b'a' - 10)
    })
}

fn digits(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    let halves = [number >> 32, number & 0xffff_ffff];
    for (place, half) in digits.chunks_exact_mut(8).zip(halves) {
        place.copy_from_slice(&eight_digits(half));
    }
    digits
}

/// The digits of a number of 32 bits, all at once: each of its half bytes is moved to a byte of its own, and made a letter where it is over nine.
const fn eight_digits(number: u64) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let halves = (number & 0xffff_0000) << 16 | number & 0xffff;
    let bytes = (halves & 0x0000_ff00_0000_ff00) << 8 | halves & 0x0000_00ff_0000_00ff;
    let nibbles = (bytes & 0x00f0_00f0_00f0_00f0) << 4 | bytes & 0x000f_000f_000f_000f;
    let letters = (nibbles + 6 * EACH) >> 4 & EACH;
    (nibbles + EACH * (b'0' as u64) + letters * (b'a' - b'9' - 1) as u64).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(lines: &[&str]) -> (Trace, HeaderMap) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(TRACEPARENT, HeaderValue::from_str(line).expect("a value"));
        }
        headers.insert(TRACESTATE, HeaderValue::from_static("a=1"));
        let trace = Trace::of(&headers, || [0x0123, 0xabcd, 7]);
        let present = Present::of(&headers);
        if let Some(begun) = trace.begun(&mut headers, present) {
            begun.insert_into(&mut headers);
        }
        (trace, headers)
    }

    #[test]
    fn a_valid_parent_goes_on_as_it_is() {
        for good in [
            GOOD,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-brings",
        ] {
            let (trace, headers) = of(&[good]);
            assert_eq!(headers.get(TRACEPARENT).unwrap(), good);
            assert!(headers.contains_key(TRACESTATE), "{good}");
            assert_eq!(trace.id().digits(), b"4bf92f3577b34da6a3ce929d0e0e4736");
        }
    }

    #[test]
    fn an_invalid_parent_is_none_and_its_state_goes() {
        let expected = "00-0000000000000123000000000000abcd-0000000000000007-00";
        let bad: [&[&str]; 16] = [
            &[],
            &[GOOD, GOOD],
            &[""],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.x"],
            &["cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.x"],
            &["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
            &["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01"],
            &["00-00000000000000000000000000000000-00f067aa0ba902b7-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"],
            &["00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e47360-0f067aa0ba902b7-01"],
            &["00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01"],
            &["0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        ];
        for lines in bad {
            let (trace, headers) = of(lines);
            let now: Vec<_> = headers.get_all(TRACEPARENT).iter().collect();
            assert_eq!(now, [expected], "{lines:?}");
            assert!(!headers.contains_key(TRACESTATE), "{lines:?}");
            assert_eq!(trace.id().digits(), b"0000000000000123000000000000abcd");
        }
    }

    #[test]
    fn digits_are_hexadecimal() {
        for number in [0, 9, 0x0a0f, 0x0123_4567_89ab_cdef, 0x9f9f_a0a0, u64::MAX] {
            assert_eq!(digits(number), format!("{number:016x}").as_bytes());
        }
    }

    #[test]
    fn what_is_started_is_never_zero() {
        let trace = Trace::start([0, 0, 0]);
        let mut headers = HeaderMap::new();
        let present = Present::of(&headers);
        let begun = trace.begun(&mut headers, present).expect("it begins here");
        begun.insert_into(&mut headers);
        let (id, _) = received(&headers).expect("a trace");
        assert_eq!(id, trace.id());
    }

    #[test]
    fn what_is_recorded_says_so_and_names_its_own_span() {
        let span = SpanId::from_random(0xabc);
        for (came, sampled, sent) in [
            ("-00", Sampled::No, "-0000000000000abc-01"),
            ("-01", Sampled::Yes, "-0000000000000abc-01"),
            ("-02", Sampled::No, "-0000000000000abc-03"),
            ("-ff", Sampled::Yes, "-0000000000000abc-03"),
        ] {
            let came = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7{came}");
            let (trace, mut headers) = of(&[&came]);
            assert_eq!(trace.sampled(), sampled, "{came}");
            let parent = trace.parent().expect("the client's");
            assert_eq!(parent.to_bytes(), 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
            trace.write_from(span, &mut headers);
            let sent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736{sent}");
            assert_eq!(headers.get(TRACEPARENT).unwrap(), sent.as_str());
            assert!(headers.contains_key(TRACESTATE), "it is the client's");
        }
        let (trace, mut headers) = of(&[]);
        assert_eq!((trace.sampled(), trace.parent()), (Sampled::Open, None));
        trace.write_from(span, &mut headers);
        let expected = "00-0000000000000123000000000000abcd-0000000000000abc-01";
        assert_eq!(headers.get(TRACEPARENT).unwrap(), expected);
    }

    #[test]
    fn ids_are_kept_as_they_are() {
        let (trace, _) = of(&[GOOD]);
        let bytes = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
        assert_eq!(trace.id().to_bytes(), bytes);
        let span = SpanRef {
            trace: bytes,
            span: SpanId::from_random(7),
        };
        assert_eq!(SpanRef::from_bytes(&span.to_bytes()), Some(span));
        assert_eq!(SpanRef::from_bytes(&[0; 24]), None);
        let mut nowhere = span.to_bytes();
        nowhere[..16].fill(0);
        assert_eq!(SpanRef::from_bytes(&nowhere), None);
        assert_eq!(SpanId::from_random(0), SpanId::from_random(1));
    }
}
