//! SHA-256, and the frames that what is hashed stands in: record ids, callers and fingerprints are made of these.
//!
//! A frame is its length and its bytes. A length under 255 is one byte; a longer one is the byte 255 and eight more, big-endian. No frame
//! begins another, so that no part can be shifted into its neighbour.
//!
//! Short input, as nearly all of it is, is put together on the stack and hashed in one go: hashing part by part costs a call and a copy for
//! each of them, and a state that has to be set up and wiped.

use aws_lc_rs::digest;

/// A SHA-256.
pub type Digest = [u8; 32];

/// The SHA-256 of these bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    own(&digest::digest(&digest::SHA256, bytes))
}

/// A SHA-256 is 32 bytes: all of them are there.
fn own(digest: &digest::Digest) -> Digest {
    let mut own = [0; 32];
    for (to, from) in own.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    own
}

/// A SHA-256 of what comes in pieces.
#[derive(Clone)]
pub struct Hasher(digest::Context);

impl Hasher {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }

    /// Takes the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The digest of all pieces.
    #[must_use]
    pub fn finish(self) -> Digest {
        own(&self.0.finish())
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

/// Frames, one behind the other. Up to `ROOM` bytes of them take no memory but its own.
#[derive(Clone)]
pub struct Frames<const ROOM: usize> {
    here: [u8; ROOM],
    used: usize,
    /// All of it, where it is more than there is room for.
    long: Vec<u8>,
}

impl<const ROOM: usize> Frames<ROOM> {
    /// Frames behind what says of what kind, and of what version, they are: no two kinds meet.
    #[must_use]
    pub fn new(kind: &[u8]) -> Self {
        let mut frames = Self {
            here: [0; ROOM],
            used: 0,
            long: Vec::new(),
        };
        frames.raw(kind);
        frames
    }

    /// Appends these bytes as they are. Whoever reads the frames so far has to know how many they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        let end = self.used.saturating_add(bytes.len());
        match self.here.get_mut(self.used..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.used = end;
            }
            _ => self.spill(bytes),
        }
    }

    /// Appends these bytes in lower case.
    pub fn raw_lower(&mut self, bytes: &[u8]) {
        let start = self.as_bytes().len();
        self.raw(bytes);
        let appended = if self.long.is_empty() {
            self.here.get_mut(start..self.used)
        } else {
            self.long.get_mut(start..)
        };
        appended.unwrap_or_default().make_ascii_lowercase();
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.reserve(2 * self.used.saturating_add(bytes.len()));
            let here = self.here.get(..self.used).unwrap_or_default();
            self.long.extend_from_slice(here);
        }
        self.long.extend_from_slice(bytes);
    }

    /// Appends a number, as lengths are written.
    pub fn number(&mut self, number: usize) {
        match u8::try_from(number) {
            Ok(short) if short < LONG => self.raw(&[short]),
            Ok(_) | Err(_) => {
                self.raw(&[LONG]);
                self.raw(&(number as u64).to_be_bytes());
            }
        }
    }

    /// Appends a frame.
    pub fn frame(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.raw(bytes);
    }

    /// All of it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            self.here.get(..self.used).unwrap_or_default()
        } else {
            &self.long
        }
    }

    /// The digest of all of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        sha256(self.as_bytes())
    }

    /// The digest of all of it and of what follows.
    #[must_use]
    pub fn digest_before(&self, rest: &[u8]) -> Digest {
        let first = self.as_bytes();
        let mut whole = [0; SHORT];
        let end = first.len().saturating_add(rest.len());
        if let Some(room) = whole.get_mut(..end)
            && let Some((to_first, to_rest)) = room.split_at_mut_checked(first.len())
        {
            to_first.copy_from_slice(first);
            to_rest.copy_from_slice(rest);
            return sha256(room);
        }
        let mut hasher = Hasher::new();
        hasher.update(first);
        hasher.update(rest);
        hasher.finish()
    }
}

/// The first byte of a length that is not one byte.
const LONG: u8 = u8::MAX;

/// So many bytes are put together before they are hashed.
const SHORT: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn what_is_appended_in_lower_case_leaves_the_rest_alone() {
        let mut here = Frames::<16>::new(b"K");
        let mut long = Frames::<2>::new(b"K");
        here.raw_lower(b"Bearer");
        here.raw(b" A");
        long.raw_lower(b"Bearer");
        long.raw(b" A");
        assert_eq!(here.as_bytes(), b"Kbearer A");
        assert_eq!(long.as_bytes(), b"Kbearer A");
    }

    #[test]
    fn lengths_of_one_byte_end_where_those_of_nine_begin() {
        for (length, head) in [
            (0, vec![0]),
            (254, vec![254]),
            (255, [&[255][..], &255u64.to_be_bytes()].concat()),
            (70_000, [&[255][..], &70_000u64.to_be_bytes()].concat()),
        ] {
            let part = vec![b'x'; length];
            let mut frames = Frames::<64>::new(b"k");
            frames.frame(&part);
            assert_eq!(frames.as_bytes(), [&b"k"[..], &head, &part].concat());
        }
    }

    proptest! {
        #[test]
        fn what_is_hashed_is_what_was_appended_wherever_it_stands(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            rest in proptest::collection::vec(any::<u8>(), 0..1200),
        ) {
            let mut frames = Frames::<64>::new(b"kind");
            let mut roomy = Frames::<512>::new(b"kind");
            let mut expected = b"kind".to_vec();
            for part in &parts {
                frames.frame(part);
                roomy.frame(part);
                expected.push(u8::try_from(part.len()).expect("short"));
                expected.extend(part);
            }
            prop_assert_eq!(frames.as_bytes(), &expected[..]);
            prop_assert_eq!(roomy.as_bytes(), &expected[..]);
            let other: Digest = Sha256::digest(&expected).into();
            prop_assert_eq!(frames.digest(), other);
            expected.extend(&rest);
            let other: Digest = Sha256::digest(&expected).into();
            prop_assert_eq!(frames.digest_before(&rest), other);
            prop_assert_eq!(roomy.digest_before(&rest), other);
        }
    }
}
