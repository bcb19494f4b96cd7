//! Ids of traces that begin here. They have to differ, not to be secret: one counter and three random numbers make them, with no call to the
//! system and no lock on the way of a request.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;

/// Where one worker's ids come from.
#[derive(Debug)]
pub struct TraceIds {
    next: AtomicU64,
    seeds: [u64; 3],
}

impl TraceIds {
    /// A sequence that no other worker or process has.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new() -> anyhow::Result<Self> {
        let mut seeds = [0; 3];
        for seed in &mut seeds {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).context("the system gives no random bytes")?;
            *seed = u64::from_ne_bytes(bytes);
        }
        Ok(Self {
            next: AtomicU64::new(0),
            seeds,
        })
    }

    /// Three numbers that look random, and that no call before gave.
    pub(super) fn next(&self) -> [u64; 3] {
        let step = self
            .next
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(GOLDEN);
        self.seeds.map(|seed| mixed(seed.wrapping_add(step)))
    }
}

/// 2^64 divided by the golden ratio, made odd: its multiples meet every number once.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Turns numbers that are far from random into numbers that look so, one to one: the finalizer of `SplitMix64` (Steele, Lea, Flood 2014).
const fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_equal_and_their_bits_are_spread() {
        let ids = TraceIds::new().expect("random bytes");
        let all: Vec<u64> = (0..10_000).flat_map(|_| ids.next()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        for bit in 0..64 {
            let ones = all.iter().filter(|number| *number >> bit & 1 == 1).count();
            assert!(
                (14_000..16_000).contains(&ones),
                "bit {bit}: {ones} of 30000"
            );
        }
    }
}
