//! Looking for bytes that end or break a line.

/// The place of the first control byte at or after `from`, but for HTAB: CR, LF, NUL, DEL and their like.
pub(super) fn next_control(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    let (words, rest) = bytes.get(from..)?.as_chunks::<WORD>();
    for word in words {
        if has_control_or_tab(word)
            && let Some(found) = first_control(*word)
        {
            return Some(at + found);
        }
        at += WORD;
    }
    // Spaces behind the rest are no control bytes.
    let mut word = [b' '; WORD];
    word.get_mut(..rest.len())?.copy_from_slice(rest);
    first_control(word).map(|found| at + found)
}

/// So many bytes are looked at together.
const WORD: usize = 16;

/// Whether one of the bytes is below SP or is DEL. Without a branch, this is a few instructions for all of them.
fn has_control_or_tab(word: &[u8; WORD]) -> bool {
    let bad = |byte: &u8| *byte < b' ' || *byte == 0x7f;
    word.iter().fold(false, |any, byte| any | bad(byte))
}

/// The place of the first control byte but HTAB: each of the bytes is made its own highest bit, all at once. The sums of their lower seven bits
/// never reach over into the next byte.
fn first_control(word: [u8; WORD]) -> Option<usize> {
    const EACH: u128 = u128::from_le_bytes([1; WORD]);
    const HIGH: u128 = 0x80 * EACH;
    let word = u128::from_le_bytes(word);
    let low = word & !HIGH;
    let below_space = !(low + 0x60 * EACH);
    let no_tab = (low ^ (0x09 * EACH)) + 0x7f * EACH;
    let is_del = low + EACH;
    let found = (below_space & no_tab | is_del) & !word & HIGH;
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// Whether the byte may stand in a token (RFC 9110, section 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    TOKEN.has(byte)
}

/// Whether all bytes may stand in a token, and there is one.
pub(super) fn all_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_token(*byte))
}

static TOKEN: Set = Set::alphanumeric_and(b"!#$%&'*+-.^_`|~");

/// What may stand in a path, as the `http` crate takes it: more than RFC 3986 allows, less than would break a request line.
static PATH: Set = Set::alphanumeric_and(b"!$%&'()*+,-./:;=@[\\]^_|~\"{}");

/// The same for a query.
static QUERY: Set = Set::alphanumeric_and(b"!$%&'()*+,-./:;=?@[\\]^_`{|}~");

/// Some of the ASCII bytes: a table of all bytes, for each byte of a head is looked up in one.
struct Set([bool; 256]);

impl Set {
    const fn alphanumeric_and(others: &[u8]) -> Self {
        let mut set = [false; 256];
        let mut rest: &mut [bool] = &mut set;
        let mut byte = 0_u8;
        while let [is, after @ ..] = rest {
            *is = byte.is_ascii_alphanumeric() || contains(others, byte);
            rest = after;
            byte = byte.wrapping_add(1);
        }
        Self(set)
    }

    /// The table has a place for every byte.
    fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte)).copied().unwrap_or(false)
    }
}

const fn contains(bytes: &[u8], byte: u8) -> bool {
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        if *first == byte {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether this is a path with or without a query and a fragment: origin-form (RFC 9112, section 3.2.1), and what clients put
/// behind it.
pub(super) fn is_path_and_query(target: &[u8]) -> bool {
    let path = |byte: &u8| !PATH.has(*byte);
    let query = |byte: &u8| !QUERY.has(*byte);
    let Some(at) = target.iter().position(path) else {
        return true;
    };
    let (_, rest) = target.split_at(at);
    let rest = match rest.strip_prefix(b"?") {
        None => rest,
        Some(rest) => match rest.iter().position(query) {
            None => return true,
            Some(at) => rest.split_at(at).1,
        },
    };
    rest.strip_prefix(b"#")
        .is_some_and(|fragment| fragment.iter().all(u8::is_ascii_graphic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_byte_is_found_wherever_it_stands() {
        for length in 0..40 {
            let clean: Vec<u8> = (0..length).map(|at| b"a~ \t\x80\xff"[at % 6]).collect();
            assert_eq!(next_control(&clean, 0), None);
            for at in 0..length {
                for control in (0..=0x1f_u8).chain([0x7f]).filter(|c| *c != b'\t') {
                    let mut bytes = clean.clone();
                    bytes[at] = control;
                    for from in 0..=length {
                        let found = (from <= at).then_some(at);
                        assert_eq!(next_control(&bytes, from), found, "{bytes:?} from {from}");
                    }
                }
            }
        }
        assert_eq!(next_control(b"", 1), None);
    }

    #[test]
    fn what_is_a_path_is_one_to_the_parser() {
        for byte in 0..=255_u8 {
            for (before, after) in [("/a", "b"), ("/a?b", "c"), ("/a?b#", "c"), ("/a#", "c")] {
                let target = [before.as_bytes(), &[byte], after.as_bytes()].concat();
                let parsed = http::Uri::try_from(target.as_slice()).is_ok();
                let ours = is_path_and_query(&target);
                assert!(parsed || !ours, "{target:?}");
                let odd = byte.is_ascii_control() || byte == b' ' || !byte.is_ascii();
                assert!(ours == parsed || odd, "{target:?}");
            }
        }
    }
}
