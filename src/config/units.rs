//! Durations and sizes as the configuration spells them: a whole number and a unit.

use std::time::Duration;

/// Ten years: what is longer is a slip.
pub(super) const LONGEST: Duration = Duration::from_hours(3650 * 24);

/// Units of time, each in milliseconds.
const TIME: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Units of size, each in bytes.
const SIZE: [(&str, u64); 5] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads `"250ms"`, `"30s"`, `"2m"`, `"24h"`, `"7d"`. The error is what is wrong.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    measure(text, &TIME).map(Duration::from_millis)
}

/// Reads `"512B"`, `"64KiB"`, `"1MiB"`, `"4GiB"`, `"1TiB"`: bytes. The error is what is wrong.
pub(super) fn size(text: &str) -> Result<u64, &'static str> {
    measure(text, &SIZE)
}

/// A bound as a message spells it, in the largest unit that fits.
pub(super) fn spelled(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let fits = |(_, unit): &&(&str, u64)| ms >= *unit && ms % unit == 0;
    match TIME.iter().rev().find(fits) {
        Some((name, unit)) => format!("{}{name}", ms / unit),
        None => "0s".into(),
    }
}

fn measure(text: &str, units: &[(&str, u64)]) -> Result<u64, &'static str> {
    if text.starts_with('-') {
        return Err("it is negative");
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() {
        return Err("it does not start with a whole number");
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(if unit.is_empty() {
            "it has no unit"
        } else {
            "it has no known unit"
        });
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(*factor))
        .ok_or("it is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, ms) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("2m", 120_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "",
            "s",
            "30",
            "-5s",
            "1.5s",
            "1h30m",
            "30 s",
            "30S",
            "soon",
            "99999999999999999999s",
            "18446744073709551615d",
            "٣s",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_bytes() {
        for (text, bytes) in [
            ("512B", 512),
            ("64KiB", 65_536),
            ("1MiB", 1 << 20),
            ("4GiB", 4 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["64", "64kb", "64KB", "many", "-1B", "99999999TiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bounds_are_spelled_in_the_largest_unit() {
        for (ms, text) in [(1, "1ms"), (1_500, "1500ms"), (60_000, "1m"), (0, "0s")] {
            assert_eq!(spelled(Duration::from_millis(ms)), text);
        }
        assert_eq!(spelled(LONGEST), "3650d");
    }
}
