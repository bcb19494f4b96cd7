//! JSON numbers by their exact decimal value, on digit strings: no number is ever expanded, whatever its exponent.

/// A JSON number (RFC 8259, section 6), as the digits that it is written with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number<'a> {
    sign: Sign,
    integer: &'a [u8],
    fraction: &'a [u8],
    exponent_sign: Sign,
    exponent: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Plus,
    Minus,
}

impl<'a> Number<'a> {
    /// Reads the number that `text` starts with, and what stands behind it.
    pub(super) fn read(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (sign, rest) = match text.strip_prefix(b"-") {
            Some(rest) => (Sign::Minus, rest),
            None => (Sign::Plus, text),
        };
        let (integer, mut rest) = digits(rest)?;
        if integer.len() > 1 && integer.first() == Some(&b'0') {
            return None;
        }
        let mut number = Self {
            sign,
            integer,
            fraction: &[],
            exponent_sign: Sign::Plus,
            exponent: &[],
        };
        if let Some(after) = rest.strip_prefix(b".") {
            (number.fraction, rest) = digits(after)?;
        }
        if let [b'e' | b'E', after @ ..] = rest {
            let (sign, after) = match after {
                [b'-', after @ ..] => (Sign::Minus, after),
                [b'+', after @ ..] => (Sign::Plus, after),
                _ => (Sign::Plus, after),
            };
            number.exponent_sign = sign;
            (number.exponent, rest) = digits(after)?;
        }
        Some((number, rest))
    }

    /// Writes the number as its sign, its significant digits and the power of ten of the last one. Equal numbers are
    /// written equally and others differently; zero has no sign and no exponent.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let fraction = trim_end(self.fraction);
        let integer = trim_start(self.integer);
        let kept = if fraction.is_empty() {
            trim_end(integer)
        } else {
            integer
        };
        let leading = if kept.is_empty() {
            trim_start(fraction)
        } else {
            fraction
        };
        if kept.is_empty() && leading.is_empty() {
            out.push(b'0');
            return;
        }
        if self.sign == Sign::Minus {
            out.push(b'-');
        }
        out.extend_from_slice(kept);
        out.extend_from_slice(leading);
        // How far the last digit that was written stands from the units: lengths, so they fit.
        let shift = (integer.len() - kept.len()) as i128 - fraction.len() as i128;
        self.write_exponent(shift, out);
    }

    /// Writes the exponent moved by `shift`; nothing if that is zero.
    fn write_exponent(&self, shift: i128, out: &mut Vec<u8>) {
        let digits = trim_start(self.exponent);
        let shift = match self.exponent_sign {
            Sign::Plus => shift,
            Sign::Minus => -shift,
        };
        // The last LOW digits are added to as a number; a carry goes into the others as a string.
        let Some((high, low)) = digits.split_at_checked(digits.len().saturating_sub(LOW)) else {
            return;
        };
        let low = low
            .iter()
            .fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0'));
        let sum = low + shift; // under 10^30 and 2^64: far from the end of 128 bits
        let high = match sum {
            ..0 if !high.is_empty() => previous(high),
            LOW_END.. if !high.is_empty() => next(high),
            _ => high.to_vec(),
        };
        if high.is_empty() && !digits.is_empty() && digits.len() > LOW {
            // The borrow took the last of the high digits: what is left is a plain number.
            return write_power(self.exponent_sign, (sum + LOW_END).unsigned_abs(), out);
        }
        if high.is_empty() {
            let sign = match (self.exponent_sign, sum < 0) {
                (Sign::Plus, false) | (Sign::Minus, true) => Sign::Plus,
                (Sign::Plus, true) | (Sign::Minus, false) => Sign::Minus,
            };
            return write_power(sign, sum.unsigned_abs(), out);
        }
        out.push(b'e');
        if self.exponent_sign == Sign::Minus {
            out.push(b'-');
        }
        out.extend_from_slice(&high);
        write_decimal(sum.rem_euclid(LOW_END).unsigned_abs(), LOW, out);
    }
}

/// So many digits of an exponent are computed with as a number.
const LOW: usize = 30;
const LOW_END: i128 = 10i128.pow(30);

fn write_power(sign: Sign, power: u128, out: &mut Vec<u8>) {
    if power == 0 {
        return;
    }
    out.push(b'e');
    if sign == Sign::Minus {
        out.push(b'-');
    }
    write_decimal(power, 1, out);
}

/// Writes `value` with at least `width` digits.
pub(super) fn write_decimal(value: u128, width: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let mut rest = value;
    while rest > 0 || out.len() - start < width {
        // Division of 128 bits is slow, and almost no number needs it.
        let digit = if let Ok(small) = u64::try_from(rest) {
            rest = u128::from(small / 10);
            (small % 10) as u8 // a digit
        } else {
            let digit = (rest % 10) as u8; // a digit
            rest /= 10;
            digit
        };
        out.push(b'0' + digit);
    }
    if let Some(written) = out.get_mut(start..) {
        written.reverse();
    }
}

/// The digits that `text` starts with, at least one, and what stands behind them.
fn digits(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at_checked(end)
        .filter(|(digits, _)| !digits.is_empty())
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    digits.get(zeros..).unwrap_or_default()
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let zeros = digits
        .iter()
        .rev()
        .take_while(|digit| **digit == b'0')
        .count();
    digits.get(..digits.len() - zeros).unwrap_or_default()
}

/// The number after the one that these digits write.
fn next(digits: &[u8]) -> Vec<u8> {
    let mut sum = digits.to_vec();
    for digit in sum.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return sum;
        }
        *digit = b'0';
    }
    sum.insert(0, b'1');
    sum
}

/// The number before the one that these digits write, which is not zero; empty if that is zero.
fn previous(digits: &[u8]) -> Vec<u8> {
    let mut difference = digits.to_vec();
    for digit in difference.iter_mut().rev() {
        if *digit > b'0' {
            *digit -= 1;
            break;
        }
        *digit = b'9';
    }
    trim_start(&difference).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(text: &str) -> String {
        let (number, rest) = Number::read(text.as_bytes()).expect("a number");
        assert_eq!(rest, b"", "{text}");
        let mut out = Vec::new();
        number.write(&mut out);
        String::from_utf8(out).expect("digits")
    }

    #[test]
    fn equal_values_are_written_equally() {
        for (text, wanted) in [
            ("0", "0"),
            ("-0", "0"),
            ("0.000", "0"),
            ("-0e5", "0"),
            ("0e99999999999999999999", "0"),
            ("1", "1"),
            ("1.0", "1"),
            ("1e0", "1"),
            ("10e-1", "1"),
            ("0.1E+1", "1"),
            ("100", "1e2"),
            ("1e2", "1e2"),
            ("0.01e4", "1e2"),
            ("1.50", "15e-1"),
            ("-120.0340", "-120034e-3"),
            ("0.0010", "1e-3"),
            ("1e-000", "1"),
            ("9007199254740993", "9007199254740993"),
            (
                "9007199254740993.000000000000000000001",
                "9007199254740993000000000000000000001e-21",
            ),
        ] {
            assert_eq!(written(text), wanted, "{text}");
        }
    }

    #[test]
    fn exponents_of_any_size_carry_and_borrow() {
        let nines = |n: usize| "9".repeat(n);
        let zeros = |n: usize| "0".repeat(n);
        for n in [1, 18, 19, 20, 29, 30, 31, 37, 38, 39, 60, 61, 100] {
            let (all_nines, power) = (nines(n), format!("1{}", zeros(n)));
            // 10 x 10^(99…9) is 10^(100…0), and back.
            assert_eq!(
                written(&format!("10e{all_nines}")),
                format!("1e{power}"),
                "{n}"
            );
            assert_eq!(
                written(&format!("0.1e{power}")),
                format!("1e{all_nines}"),
                "{n}"
            );
            assert_eq!(
                written(&format!("10e-{power}")),
                format!("1e-{all_nines}"),
                "{n}"
            );
            assert_eq!(
                written(&format!("0.1e-{all_nines}")),
                format!("1e-{power}"),
                "{n}"
            );
            assert_eq!(
                written(&format!("1e{all_nines}")),
                format!("1e{all_nines}"),
                "{n}"
            );
            assert_eq!(
                written(&format!("1e-{power}")),
                format!("1e-{power}"),
                "{n}"
            );
            assert_eq!(
                written(&format!("1e+00{power}")),
                format!("1e{power}"),
                "{n}"
            );
            assert_ne!(
                written(&format!("1e{power}")),
                written(&format!("1e-{power}")),
                "{n}"
            );
        }
        assert_eq!(
            written("1e99999999999999999999"),
            written("0.1e100000000000000000000")
        );
        assert_eq!(written("10e-1"), "1");
        assert_eq!(written(&format!("1{}e-{}", zeros(40), 40)), "1");
        assert_eq!(written(&format!("0.{}1e41", zeros(40))), "1");
    }

    #[test]
    fn only_numbers_are_numbers() {
        for bad in [
            "", "-", "+1", ".5", "5.", "1.e2", "1e", "1e+", "01", "-01", "00", "e1", "Infinity",
            "NaN",
        ] {
            assert!(Number::read(bad.as_bytes()).is_none(), "{bad}");
        }
        let (_, rest) = Number::read(b"1.5e3,").expect("a number");
        assert_eq!(rest, b",");
    }

    proptest! {
        /// Against the integers, at every scale: moving the point and the exponent together changes nothing.
        #[test]
        fn a_number_is_its_value(value in -100_000i64..100_000, other in -100_000i64..100_000, point in 0u8..8, exponent in -9i64..9) {
            let moved = |value: i64| {
                let digits = format!("{:08}", value.unsigned_abs());
                let (integer, fraction) = digits.split_at(digits.len() - usize::from(point));
                let sign = if value < 0 { "-" } else { "" };
                let integer = integer.trim_start_matches('0');
                let integer = if integer.is_empty() { "0" } else { integer };
                let fraction = if point == 0 { String::new() } else { format!(".{fraction}") };
                format!("{sign}{integer}{fraction}e{}", exponent + i64::from(point))
            };
            let plain = |value: i64| written(&format!("{value}e{exponent}"));
            prop_assert_eq!(written(&moved(value)), plain(value));
            prop_assert_eq!(written(&moved(value)) == written(&moved(other)), value == other);
        }
    }
}
