//! The keys of encryption at rest, from their file.

use std::{fmt, path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use zeroize::{Zeroize as _, Zeroizing};

use super::problem::Refusal;

/// The keys of `encryption_key_file`, newest first; never empty. Never shown, and overwritten when the last copy is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKeys(Arc<[Zeroizing<[u8; 32]>]>);

impl SealKeys {
    /// These keys, newest first; `None`: there is none.
    #[must_use]
    pub fn new(keys: Vec<Zeroizing<[u8; 32]>>) -> Option<Self> {
        (!keys.is_empty()).then(|| Self(keys.into()))
    }

    /// Each key, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.0.iter().map(|key| &**key)
    }
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealKeys").field(&self.0.len()).finish()
    }
}

const ALLOWED: &str = "a file with one key a line, newest first, each 32 random bytes in base64";

/// Reads `encryption_key_file`. White space around a key and empty lines do not count.
pub(super) fn read(path: &str) -> Result<SealKeys, Refusal> {
    let refuse = |why: String| Refusal::wrong(why).allowed(ALLOWED);
    let mut text = std::fs::read(Path::new(path))
        .map_err(|error| refuse(format!("the file cannot be read: {error}")))?;
    let keys = parse(&text);
    text.zeroize();
    let keys = keys.map_err(|why| refuse(why.to_string()))?;
    SealKeys::new(keys).ok_or_else(|| refuse("the file is empty".into()))
}

fn parse(text: &[u8]) -> Result<Vec<Zeroizing<[u8; 32]>>, Wrong> {
    let lines = (1..).zip(text.split(|byte| *byte == b'\n'));
    let mut keys: Vec<Zeroizing<[u8; 32]>> = Vec::new();
    for (number, line) in lines {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        // A line that is too long by far is not decoded into a buffer that grows and leaves copies behind.
        let mut decoded = Zeroizing::new([0; 48]);
        let length = STANDARD
            .decode_slice(line, decoded.as_mut_slice())
            .map_err(|_| Wrong::NoKey(number))?;
        let key = decoded.get(..length).and_then(|key| key.try_into().ok());
        let key = Zeroizing::new(key.ok_or(Wrong::NoKey(number))?);
        if keys.contains(&key) {
            return Err(Wrong::Twice(number));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// What is wrong with the file. The line itself is not shown: it may be most of a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Wrong {
    #[error("line {0} is not 32 bytes in base64")]
    NoKey(usize),
    #[error("line {0} has a key that stands before it already")]
    Twice(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(byte: u8) -> String {
        STANDARD.encode([byte; 32])
    }

    #[test]
    fn keys_are_read_line_by_line() {
        let text = format!("{}\r\n\n  {}  ", line(1), line(2));
        let keys = parse(text.as_bytes()).expect("keys");
        let bytes: Vec<[u8; 32]> = keys.iter().map(|key| **key).collect();
        assert_eq!(bytes, [[1; 32], [2; 32]]);
        assert!(SealKeys::new(Vec::new()).is_none());
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_shown() {
        let short = STANDARD.encode([1; 31]);
        let long = STANDARD.encode([1; 33]);
        let endless = STANDARD.encode([1; 4096]);
        for wrong in [&*short, &long, &endless, "no base64!", "AAAA"] {
            let text = format!("{}\n{wrong}\n", line(1));
            assert_eq!(parse(text.as_bytes()).err(), Some(Wrong::NoKey(2)));
        }
        let text = format!("{}\n{}", line(1), line(1));
        assert_eq!(parse(text.as_bytes()).err(), Some(Wrong::Twice(2)));
        let keys = SealKeys::new(parse(line(7).as_bytes()).expect("a key")).expect("one");
        assert_eq!(format!("{keys:?}"), "SealKeys(1)");
    }
}
