//! Encryption at rest: AES-256-GCM-SIV (RFC 8452) around the parts of a record that a store keeps outside this process.
//!
//! | bytes | what |
//! |---|---|
//! | 0–1 | `is` |
//! | 2 | the version, 1 |
//! | 3–10 | which key: the first 8 bytes of SHA-256 over `idem-proxy key` and the key |
//! | 11–22 | the nonce, random |
//! | 23– | the sealed part, and a tag of 16 bytes |
//!
//! What the part belongs to is bound to it ([`Place`]): a part that was moved to another record, to another state, or to
//! another claim's answer, does not open. The newest key seals, every key of the file opens. What was written before there
//! was a key stays readable; so encryption hides what is kept, and does not prove that nobody else wrote it.
//!
//! A nonce that repeats by chance would tell that two parts are equal, and nothing else: that is what the SIV is for.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest as _, Sha256};

use crate::{
    config::SealKeys,
    core::record::{ClaimToken, RecordId, encoding::Part},
};

/// Seals and opens what a store keeps.
#[derive(Debug, Default)]
pub struct Seal {
    /// Newest first; empty: nothing is sealed, and nothing that is can be opened.
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: [u8; 8],
    key: LessSafeKey,
}

/// What a sealed part belongs to.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A part of a record.
    Record {
        /// Which record.
        id: &'a RecordId,
        /// Which part.
        part: Part,
        /// [`crate::core::record::State::number`]
        state: u8,
        /// Whose claim made it so.
        token: ClaimToken,
    },
    /// The name of a route.
    Route {
        /// The number that records call it by.
        number: i64,
    },
}

/// Why something cannot be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The key that sealed it is not in `encryption_key_file`, or there is no such file.
    #[error("it is sealed with a key that is not in encryption_key_file")]
    UnknownKey,
    /// It was sealed in a way that this version does not know.
    #[error("it is sealed by version {0}, which this version does not know")]
    Version(u8),
    /// It is not as it was sealed, or belongs elsewhere.
    #[error("its seal is broken")]
    Broken,
    /// The system gives no random bytes, or it is too large.
    #[error("it cannot be sealed")]
    Failed,
}

const MARK: [u8; 2] = *b"is";
const VERSION: u8 = 1;
const HEADER: usize = 23;

impl Seal {
    /// With these keys; without any, parts stay as they are.
    #[must_use]
    pub fn new(keys: Option<&SealKeys>) -> Self {
        let keys = keys.into_iter().flat_map(SealKeys::iter).filter_map(|key| {
            let mut hash = Sha256::new();
            hash.update(b"idem-proxy key");
            hash.update(key);
            let id = hash.finalize().first_chunk().copied()?;
            // 32 bytes are a key, so that none is left out.
            let key = UnboundKey::new(&AES_256_GCM_SIV, key).ok()?;
            Some(Key {
                id,
                key: LessSafeKey::new(key),
            })
        });
        Self {
            keys: keys.collect(),
        }
    }

    /// The part as it is kept.
    ///
    /// # Errors
    /// [`SealError::Failed`]
    pub fn seal(&self, place: Place<'_>, part: Vec<u8>) -> Result<Vec<u8>, SealError> {
        let Some(key) = self.keys.first() else {
            return Ok(part);
        };
        let mut nonce = [0; 12];
        getrandom::fill(&mut nonce).map_err(|_| SealError::Failed)?;
        let mut sealed = Vec::with_capacity(HEADER + part.len() + AES_256_GCM_SIV.tag_len());
        sealed.extend_from_slice(&MARK);
        sealed.push(VERSION);
        sealed.extend_from_slice(&key.id);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&part);
        let inner = sealed.get_mut(HEADER..).ok_or(SealError::Failed)?;
        let tag = key
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(place.bytes()),
                inner,
            )
            .map_err(|_| SealError::Failed)?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// The part as it was before it was sealed; one that never was, as it is.
    ///
    /// # Errors
    /// Every kind but [`SealError::Failed`].
    pub fn open(&self, place: Place<'_>, mut kept: Vec<u8>) -> Result<Vec<u8>, SealError> {
        if kept.get(..2) != Some(&MARK) {
            return Ok(kept);
        }
        let (header, sealed) = kept
            .split_first_chunk_mut::<HEADER>()
            .ok_or(SealError::Broken)?;
        let [_, _, version, rest @ ..] = header;
        if *version != VERSION {
            return Err(SealError::Version(*version));
        }
        let (id, nonce) = rest.split_first_chunk::<8>().ok_or(SealError::Broken)?;
        let key = self.keys.iter().find(|key| key.id == *id);
        let key = key.ok_or(SealError::UnknownKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Broken)?;
        let opened = key
            .key
            .open_in_place(nonce, Aad::from(place.bytes()), sealed)
            .map_err(|_| SealError::Broken)?
            .len();
        kept.drain(..HEADER);
        kept.truncate(opened);
        Ok(kept)
    }

    /// Whether what is kept was sealed with the key that seals now, or need not be sealed.
    #[must_use]
    pub fn is_current(&self, kept: &[u8]) -> bool {
        let newest = self.keys.first().map(|key| key.id.as_slice());
        let own = (kept.get(..2) == Some(&MARK))
            .then(|| kept.get(3..11))
            .flatten();
        newest == own
    }
}

impl Place<'_> {
    /// Every place has bytes of its own: kinds differ in the first, and within a kind all lengths are fixed.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Record {
                id,
                part,
                state,
                token,
            } => {
                let head = [b'r', VERSION, part.as_byte(), state];
                [&head[..], id.as_bytes(), &token.to_bytes()].concat()
            }
            Self::Route { number } => [&[b'n', VERSION][..], &number.to_be_bytes()].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::core::fixtures::{id, token};

    fn seal(keys: &[u8]) -> Seal {
        let keys = keys.iter().map(|byte| Zeroizing::new([*byte; 32]));
        Seal::new(SealKeys::new(keys.collect()).as_ref())
    }

    fn place(id: &RecordId) -> Place<'_> {
        Place::Record {
            id,
            part: Part::Answer,
            state: 2,
            token: token(1),
        }
    }

    #[test]
    fn what_is_sealed_is_hidden_and_opens_with_its_key() {
        let (seal, id) = (seal(&[1]), id(1));
        let kept = seal.seal(place(&id), b"a secret".to_vec()).expect("sealed");
        assert!(!kept.windows(6).any(|window| window == b"secret"));
        assert_eq!(
            seal.open(place(&id), kept.clone()),
            Ok(b"a secret".to_vec())
        );
        let again = seal.seal(place(&id), b"a secret".to_vec()).expect("sealed");
        assert_ne!(kept, again, "equal parts look different");
        let empty = seal.seal(place(&id), Vec::new()).expect("sealed");
        assert_eq!(seal.open(place(&id), empty), Ok(Vec::new()));
    }

    #[test]
    fn nothing_opens_in_another_place() {
        let (seal, own, other) = (seal(&[1]), id(1), id(2));
        let kept = seal.seal(place(&own), b"x".to_vec()).expect("sealed");
        let at = |id, part, state, token| Place::Record {
            id,
            part,
            state,
            token,
        };
        for wrong in [
            at(&other, Part::Answer, 2, token(1)),
            at(&own, Part::Head, 2, token(1)),
            at(&own, Part::Answer, 3, token(1)),
            at(&own, Part::Answer, 2, token(2)),
            Place::Route { number: 1 },
        ] {
            assert_eq!(seal.open(wrong, kept.clone()), Err(SealError::Broken));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let (seal, id) = (seal(&[1]), id(1));
        let kept = seal.seal(place(&id), b"abc".to_vec()).expect("sealed");
        // The first two bytes say that it is sealed at all; what then is read as a frame is none.
        for bit in 16..kept.len() * 8 {
            let mut kept = kept.clone();
            kept[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.open(place(&id), kept).is_err(), "bit {bit}");
        }
        for length in 2..kept.len() {
            assert!(
                seal.open(place(&id), kept[..length].to_vec()).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn the_newest_key_seals_and_every_key_opens() {
        let id = id(1);
        let (old, both, new) = (seal(&[1]), seal(&[2, 1]), seal(&[2]));
        let before = old.seal(place(&id), b"x".to_vec()).expect("sealed");
        assert_eq!(both.open(place(&id), before.clone()), Ok(b"x".to_vec()));
        assert_eq!(
            new.open(place(&id), before.clone()),
            Err(SealError::UnknownKey)
        );
        assert!(old.is_current(&before) && !both.is_current(&before));
        let after = both.seal(place(&id), b"x".to_vec()).expect("sealed");
        assert_eq!(new.open(place(&id), after.clone()), Ok(b"x".to_vec()));
        assert_eq!(old.open(place(&id), after), Err(SealError::UnknownKey));
    }

    #[test]
    fn without_keys_parts_stay_as_they_are_and_sealed_ones_stay_closed() {
        let (none, id) = (Seal::default(), id(1));
        assert_eq!(none.seal(place(&id), b"x".to_vec()), Ok(b"x".to_vec()));
        assert!(none.is_current(b"x") && !seal(&[1]).is_current(b"x"));
        assert_eq!(
            seal(&[1]).open(place(&id), b"x".to_vec()),
            Ok(b"x".to_vec())
        );
        let sealed = seal(&[1]).seal(place(&id), b"x".to_vec()).expect("sealed");
        assert_eq!(none.open(place(&id), sealed), Err(SealError::UnknownKey));
        let mut later = seal(&[1]).seal(place(&id), b"x".to_vec()).expect("sealed");
        later[2] = 9;
        assert_eq!(
            seal(&[1]).open(place(&id), later),
            Err(SealError::Version(9))
        );
    }
}
