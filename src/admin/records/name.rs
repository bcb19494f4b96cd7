//! How a path names a record: by its id, or by how that begins.

use std::fmt::Write as _;

use crate::core::record::{RecordId, ShortId};

/// The first 16 hexadecimal digits of an id, or more of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Lower case, 16 to 64.
    digits: String,
    short: ShortId,
}

const DIGITS: &str =
    "A record is named by its id, 64 hexadecimal digits, or by at least the first 16 of them.";

impl Name {
    /// The digits, in either case.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let hex = text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let first = text.get(..16).and_then(ShortId::parse);
        match first {
            Some(short) if hex && text.len() <= 64 => Ok(Self {
                digits: text.to_ascii_lowercase(),
                short,
            }),
            _ => Err(DIGITS),
        }
    }

    /// The first 16.
    pub(super) const fn short(&self) -> ShortId {
        self.short
    }

    /// The whole id, where all digits are there.
    pub(super) fn full(&self) -> Option<RecordId> {
        id_of(&self.digits)
    }

    /// Whether the id begins so.
    pub(super) fn fits(&self, id: &RecordId) -> bool {
        digits_of(id).starts_with(&self.digits)
    }
}

/// All 64 digits.
pub(super) fn digits_of(id: &RecordId) -> String {
    let mut digits = String::with_capacity(64);
    for byte in id.as_bytes() {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The id of 64 digits.
pub(super) fn id_of(digits: &str) -> Option<RecordId> {
    let mut bytes = [0; 32];
    let pairs = digits.as_bytes().as_chunks::<2>();
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs.0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(RecordId::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_digits_or_more_name_a_record() {
        let id = RecordId::from_bytes([0xab; 32]);
        let digits = "ab".repeat(32);
        assert_eq!(digits_of(&id), digits);
        assert_eq!(id_of(&digits), Some(id));
        for length in [16, 17, 40, 63, 64] {
            let name = Name::parse(&digits[..length].to_uppercase()).unwrap();
            assert!(name.fits(&id), "{length}");
            assert_eq!(name.short(), id.short());
            assert_eq!(name.full(), (length == 64).then_some(id));
        }
        let other = Name::parse(&format!("{}0", &digits[..16])).unwrap();
        assert!(!other.fits(&id));
        let more = format!("{digits}0");
        let sign = format!("+{}", &digits[..16]);
        for wrong in [
            "",
            &digits[..15],
            &more,
            &sign,
            "0123456789abcdeg",
            "0123456789abcde%20",
            "ä123456789abcdef",
        ] {
            assert!(Name::parse(wrong).is_err(), "{wrong}");
        }
    }
}
