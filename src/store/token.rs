//! Where the tokens of claims come from.

use std::cell::RefCell;

use super::StoreError;
use crate::core::record::ClaimToken;

/// A token of 128 random bits that nobody else has.
///
/// The system is asked for many at once, for asking it costs more than all else of a claim. Each thread has its own block and gives each part of
/// it out once; what was given out is wiped, so that what stands in memory tells no token that is held. The process never forks, which would
/// give a child the same ones.
///
/// # Errors
/// [`StoreError::Unavailable`]: the system gives no random bytes.
pub(super) fn draw_token() -> Result<ClaimToken, StoreError> {
    BLOCK.with_borrow_mut(Block::next)
}

thread_local! {
    static BLOCK: RefCell<Block> = const { RefCell::new(Block::USED_UP) };
}

/// Random bytes for some tokens.
struct Block {
    bytes: [[u8; 16]; TOKENS],
    /// So many of them were not given out: the first ones.
    left: usize,
}

/// How many tokens are drawn at once.
const TOKENS: usize = 64;

impl Block {
    const USED_UP: Self = Self {
        bytes: [[0; 16]; TOKENS],
        left: 0,
    };

    fn next(&mut self) -> Result<ClaimToken, StoreError> {
        if self.left == 0 {
            let all = self.bytes.as_flattened_mut();
            getrandom::fill(all).map_err(|_| StoreError::Unavailable)?;
            self.left = TOKENS;
        }
        self.left -= 1;
        let token = self.bytes.get_mut(self.left).map(std::mem::take);
        token
            .map(ClaimToken::from_random)
            .ok_or(StoreError::Unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_comes_twice_from_any_thread() {
        let many = || {
            let draws = (0..3 * TOKENS).map(|_| draw_token().expect("the system has random bytes"));
            draws.collect::<Vec<_>>()
        };
        let mut all = many();
        let others = std::thread::spawn(many);
        all.extend(others.join().expect("it draws"));
        all.push(ClaimToken::from_random([0; 16]));
        for (place, token) in all.iter().enumerate() {
            assert!(!all[..place].contains(token), "{place}");
        }
    }

    #[test]
    fn what_was_given_out_is_wiped() {
        let mut block = Block::USED_UP;
        for _ in 0..TOKENS {
            let _ = block.next();
        }
        assert_eq!(block.bytes, [[0; 16]; TOKENS]);
    }
}
