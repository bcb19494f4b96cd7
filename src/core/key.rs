//! Idempotency keys: where they stand, how they are written, what is refused (contract, section 5).

use std::fmt;

use bytes::Bytes;

/// A valid idempotency key: its content, unquoted. It is never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Bytes);

impl Key {
    /// The content, for hashing.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}
