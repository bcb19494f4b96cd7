//! Callers: the authenticated party that a key belongs to (contract, section 6).

use std::fmt;

/// A caller, as SHA-256 over its framed parts: no credential is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerId([u8; 32]);

impl CallerId {
    /// The digest, for a record's id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for CallerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerId(…)")
    }
}
