//! Trace context (W3C Trace Context, levels 1 and 2): a trace that comes in goes on byte for byte, where none comes one is started.
//!
//! The proxy adds no span of its own: the parent that the upstream sees is the client's. A `traceparent` that is not valid is no trace: a new one
//! is started in its place, and a `tracestate` without its parent goes. `baggage` is not ours to read.

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
    Received,
    /// It begins here, with this parent.
    Started([u8; 16]),
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
            Some(id) => Self {
                id,
                origin: Origin::Received,
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

    /// Says it in a request of the proxy's own as well, that `asking` is the reason of.
    pub fn copy(&self, asking: &HeaderMap, headers: &mut HeaderMap) {
        if self.origin == Origin::Received {
            for name in [TRACEPARENT, TRACESTATE] {
                for line in asking.get_all(&name) {
                    headers.append(name.clone(), line.clone());
                }
            }
        }
    }

    /// Makes a request's head say it, which has this `present`. What came in stays as it is.
    pub fn write(&self, headers: &mut HeaderMap, present: Present) {
        let Origin::Started(parent) = &self.origin else {
            return;
        };
        // version 00, and no flag: nobody has recorded anything yet (section 3.2.2.5).
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let parts = value.split_at_mut(ID_ENDS);
        for (place, digits) in [
            (parts.0.get_mut(ID_BEGINS..), self.id.0.as_slice()),
            (parts.1.get_mut(1..=16), parent.as_slice()),
        ] {
            if let Some(place) = place {
                place.copy_from_slice(digits);
            }
        }
        // Digits and dashes are a value.
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            headers.insert(TRACEPARENT, value);
        }
        if present.has(Kind::Trace) {
            headers.remove(TRACESTATE);
        }
    }
}

const ID_BEGINS: usize = 3;
const ID_ENDS: usize = ID_BEGINS + 32;

/// The id of the one valid `traceparent` (section 3.2); several lines are none.
fn received(headers: &HeaderMap) -> Option<TraceId> {
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
    (ends && hexadecimal && !is_zero(id) && !is_zero(parent)).then_some(TraceId(*id))
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
        trace.write(&mut headers, present);
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
        trace.write(&mut headers, present);
        assert_eq!(received(&headers), Some(trace.id()));
    }
}
