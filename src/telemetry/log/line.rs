//! How lines are spelt: times, numbers, strings. Everything is appended to a buffer that is used again.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, SystemTime},
};

use crate::core::time::Timestamp;

/// A buffer that has grown over this is given back.
const KEPT_CAPACITY: usize = 16 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends this thread's buffer, empty.
pub(in crate::telemetry) fn with_buffer(use_it: impl FnOnce(&mut Vec<u8>)) {
    // It is lent already where a value logs while it is being logged, and gone where its thread ends.
    let mut buffer = BUFFER
        .try_with(|buffer| {
            buffer
                .try_borrow_mut()
                .map(|mut buffer| std::mem::take(&mut *buffer))
        })
        .ok()
        .and_then(Result::ok)
        .unwrap_or_default();
    buffer.clear();
    use_it(&mut buffer);
    if buffer.capacity() <= KEPT_CAPACITY {
        let _ = BUFFER.try_with(|own| own.try_borrow_mut().map(|mut own| *own = buffer));
    }
}

/// The time that lines carry.
#[expect(
    clippy::disallowed_methods,
    reason = "a line's time decides nothing, and is the wall's even where a test sets the store's clock"
)]
pub(in crate::telemetry) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A time up to its seconds: `2026-11-30T18:57:33.`
type Second = [u8; 20];

thread_local! {
    /// The second that this thread spelt last; it does not spell it anew for every line.
    static LAST_SECOND: Cell<(u64, Second)> = const { Cell::new((u64::MAX, [0; 20])) };
}

/// `2026-11-30T18:57:33.123Z` (RFC 3339, section 5.6).
pub(in crate::telemetry) fn push_time(line: &mut Vec<u8>, at: Timestamp) {
    let (second, ms) = (at.as_millis() / 1_000, at.as_millis() % 1_000);
    match LAST_SECOND.try_with(Cell::get) {
        Ok((last, spelt)) if last == second => line.extend_from_slice(&spelt),
        _ => {
            let start = line.len();
            push_second(line, second);
            if let Some(Ok(spelt)) = line.get(start..).map(Second::try_from) {
                // It is gone where the thread ends.
                let _ = LAST_SECOND.try_with(|last| last.set((second, spelt)));
            }
        }
    }
    push_padded(line, ms, 3);
    line.push(b'Z');
}

/// A point in time as RFC 3339 (section 5.6) spells it, in UTC, with milliseconds; its years have four digits, and later ones are spelt
/// as the end of 9999.
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    const LAST_MS: u64 = 253_402_300_799_999;
    let mut text = Vec::with_capacity(24);
    push_time(
        &mut text,
        Timestamp::from_millis(at.as_millis().min(LAST_MS)),
    );
    // Digits and punctuation are UTF-8.
    String::from_utf8(text).unwrap_or_default()
}

fn push_second(line: &mut Vec<u8>, second: u64) {
    let (days, second_of_day) = (second / 86_400, second % 86_400);
    let (year, month, day) = civil(days);
    push_padded(line, year, 4);
    line.push(b'-');
    push_padded(line, month, 2);
    line.push(b'-');
    push_padded(line, day, 2);
    line.push(b'T');
    push_padded(line, second_of_day / 3_600, 2);
    line.push(b':');
    push_padded(line, second_of_day / 60 % 60, 2);
    line.push(b':');
    push_padded(line, second_of_day % 60, 2);
    line.push(b'.');
}

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01. Years begin in March here, so that
/// the leap day is their last; 400 of them have 146 097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 153 days in five.
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (
        cycle * 400 + year + u64::from(month <= 2),
        month,
        day_of_month,
    )
}

/// In decimal, with zeros in front up to this width.
pub(in crate::telemetry) fn push_padded(line: &mut Vec<u8>, mut value: u64, width: usize) {
    let mut digits = [b'0'; 20]; // no number has more
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
        used += 1;
        if value == 0 {
            break;
        }
    }
    let start = digits.len().saturating_sub(used.max(width));
    line.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Milliseconds with three decimals: `12.345`.
pub(in crate::telemetry) fn push_ms(line: &mut Vec<u8>, span: Duration) {
    let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    push_padded(line, us / 1_000, 1);
    line.push(b'.');
    push_padded(line, us % 1_000, 3);
}

/// A JSON string, quotes included (RFC 8259, section 7). Beyond what JSON asks for, DEL, the C1 controls and the two
/// Unicode line ends are escaped, for terminals and for readers that split lines at them.
pub(in crate::telemetry) fn push_json(line: &mut Vec<u8>, text: &str) {
    line.push(b'"');
    for (escaped, plain) in pieces(text) {
        line.extend_from_slice(plain.as_bytes());
        match escaped {
            None => {}
            Some('"') => line.extend_from_slice(b"\\\""),
            Some('\\') => line.extend_from_slice(b"\\\\"),
            Some('\n') => line.extend_from_slice(b"\\n"),
            Some('\r') => line.extend_from_slice(b"\\r"),
            Some('\t') => line.extend_from_slice(b"\\t"),
            Some(other) => {
                line.extend_from_slice(b"\\u");
                for shift in [12, 8, 4, 0] {
                    let digit =
                        char::from_digit(u32::from(other) >> shift & 0xf, 16).unwrap_or('0');
                    line.extend(u8::try_from(digit));
                }
            }
        }
    }
    line.push(b'"');
}

/// Cuts text after each run of plain characters: the run, and the character behind it that is escaped.
fn pieces(text: &str) -> impl Iterator<Item = (Option<char>, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((at, found)) = rest.char_indices().find(|(_, c)| is_escaped(*c)) else {
            return Some((None, std::mem::take(&mut rest)));
        };
        let (plain, tail) = rest.split_at(at);
        rest = tail.get(found.len_utf8()..).unwrap_or_default();
        Some((Some(found), plain))
    })
}

/// All of them are in the basic plane, so that one `\u` does.
fn is_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '"' | '\\' | '\u{2028}' | '\u{2029}')
}

/// A value in a line of text: as it is where that is one plain word, as a JSON string otherwise.
pub(in crate::telemetry) fn push_word(line: &mut Vec<u8>, text: &str) {
    let plain = |c: char| !is_escaped(c) && !c.is_whitespace() && c != '=';
    if !text.is_empty() && text.chars().all(plain) {
        line.extend_from_slice(text.as_bytes());
    } else {
        push_json(line, text);
    }
}

/// Text without quotes, its control characters escaped: the message of a line of text.
pub(in crate::telemetry) fn push_message(line: &mut Vec<u8>, text: &str) {
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default().map(|c| c as u8)); // an escape is ASCII
        } else {
            line.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut line = Vec::new();
        push(&mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn times_are_rfc_3339() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (1_796_065_053_120, "2026-11-30T18:57:33.120Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(
                spelt(|line| push_time(line, Timestamp::from_millis(ms))),
                expected
            );
        }
    }

    #[test]
    fn times_agree_with_http_dates_on_every_day() {
        for day in (0..80_000).step_by(7) {
            let at = Timestamp::from_millis(day * 86_400_000);
            let date = httpdate::fmt_http_date(at.to_system_time());
            let own = spelt(|line| push_time(line, at));
            assert_eq!(
                (&date[5..7], &date[12..16]),
                (&own[8..10], &own[0..4]),
                "{date} {own}"
            );
        }
    }

    #[test]
    fn numbers_and_spans() {
        assert_eq!(spelt(|line| push_padded(line, 0, 1)), "0");
        assert_eq!(spelt(|line| push_padded(line, 7, 3)), "007");
        assert_eq!(
            spelt(|line| push_padded(line, u64::MAX, 1)),
            u64::MAX.to_string()
        );
        assert_eq!(
            spelt(|line| push_ms(line, Duration::from_nanos(1_999))),
            "0.001"
        );
        assert_eq!(
            spelt(|line| push_ms(line, Duration::from_micros(12_345))),
            "12.345"
        );
        assert_eq!(
            spelt(|line| push_ms(line, Duration::from_mins(1))),
            "60000.000"
        );
    }

    #[test]
    fn strings_keep_to_their_line() {
        assert_eq!(spelt(|line| push_json(line, "plain é")), "\"plain é\"");
        assert_eq!(
            spelt(|line| push_json(line, "a\"b\\c\n\r\t\0\u{1b}\u{7f}\u{85}\u{2028}")),
            r#""a\"b\\c\n\r\t\u0000\u001b\u007f\u0085\u2028""#
        );
        assert_eq!(spelt(|line| push_word(line, "submit-job")), "submit-job");
        assert_eq!(spelt(|line| push_word(line, "")), r#""""#);
        assert_eq!(spelt(|line| push_word(line, "a b")), r#""a b""#);
        assert_eq!(spelt(|line| push_word(line, "a=b")), r#""a=b""#);
        assert_eq!(
            spelt(|line| push_message(line, "one \"é\"\ntwo\u{1b}[31m")),
            r#"one "é"\ntwo\u{1b}[31m"#
        );
    }

    proptest::proptest! {
        #[test]
        fn any_string_is_read_back_by_json(text in "\\PC*|(.|\\n|\u{1b}|\u{85}|\"|\\\\){0,40}") {
            let json = spelt(|line| push_json(line, &text));
            proptest::prop_assert!(!json.chars().any(char::is_control));
            proptest::prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }

    #[test]
    fn a_buffer_can_be_asked_for_while_it_is_lent() {
        with_buffer(|outer| {
            outer.extend_from_slice(b"outer");
            with_buffer(|inner| {
                assert!(inner.is_empty());
                inner.extend_from_slice(b"inner");
            });
            assert_eq!(outer, b"outer");
        });
        with_buffer(|buffer| assert!(buffer.is_empty()));
    }
}
