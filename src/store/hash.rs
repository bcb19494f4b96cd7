//! The hash of record ids.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Hashes record ids. They are SHA-256 already, so a few of their bytes will do; but clients choose what goes into
/// them, so they are folded with a secret of this process: nobody can aim many ids at one place of the table.
#[derive(Clone, Copy, Debug)]
pub struct IdHash {
    secret: u64,
}

impl IdHash {
    /// A hash with a fresh secret.
    #[must_use]
    pub fn new() -> Self {
        Self {
            secret: RandomState::new().hash_one(()),
        }
    }
}

impl Default for IdHash {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.secret)
    }
}

/// The state of one [`IdHash`].
#[derive(Debug)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<8>();
        for word in words.iter().take(2) {
            let mixed = u128::from(self.0 ^ u64::from_le_bytes(*word)) * u128::from(ODD);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "both halves of the product are wanted"
            )]
            let folded = (mixed >> 64) as u64 ^ mixed as u64;
            self.0 = folded;
        }
    }

    /// The length of an id, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// 2^64 divided by the golden ratio, odd.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{fixtures::id, record::RecordId};

    #[test]
    fn ids_that_clients_choose_spread_and_no_two_processes_spread_them_alike() {
        let (one, other) = (IdHash::new(), IdHash::new());
        let spread = |hash: &IdHash| {
            let mut shards = [0u32; 64];
            for n in 0..6_400 {
                // The first and the last bytes are equal in all of them.
                let mut bytes = [7; 32];
                bytes[8..16].copy_from_slice(&u64::to_le_bytes(n));
                shards[usize::try_from(hash.hash_one(RecordId::from_bytes(bytes)) >> 40)
                    .expect("fits")
                    % 64] += 1;
            }
            shards
        };
        let shards = spread(&one);
        assert!(shards.iter().all(|n| (30..300).contains(n)), "{shards:?}");
        assert_ne!(one.hash_one(id(1)), other.hash_one(id(1)));
        assert_eq!(one.hash_one(id(1)), one.hash_one(id(1)));
        assert_ne!(one.hash_one(id(1)), one.hash_one(id(2)));
    }
}
