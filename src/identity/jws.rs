//! Signed tokens in compact form (RFC 7515, section 7.1): three parts, a header that is believed in `alg` and `kid` alone.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

use super::jwk::{Algorithm, KeySet};
use crate::core::{canonical, claims::TokenFault};

/// So many keys are tried for one token: those that `kid` names, or without it those of its algorithm's kind.
const MAX_TRIES: usize = 16;

/// The payload of a token that a key of `set` has signed.
///
/// # Errors
/// [`TokenFault::UnknownKey`] where no key fits, or a token without `kid` was signed by none: other keys may know it.
/// Otherwise what is wrong with it.
pub(super) fn verify(set: &KeySet, token: &[u8]) -> Result<Vec<u8>, TokenFault> {
    let malformed = TokenFault::Malformed;
    let token = std::str::from_utf8(token).map_err(|_| malformed)?;
    let (signed, signature) = token.rsplit_once('.').ok_or(malformed)?;
    let (header, payload) = signed.split_once('.').ok_or(malformed)?;
    let header = Header::read(&decode(header)?)?;
    // A payload with a dot in it, as of the five parts of an encrypted token, is no base64url.
    let (payload, signature) = (decode(payload)?, decode(signature)?);
    let kid = header.kid.as_deref();
    let fitting = || {
        let keys = set.keys().iter();
        keys.filter_map(|key| key.fitting(kid, header.algorithm))
            .take(MAX_TRIES)
    };
    if fitting().any(|key| key.verify_sig(signed.as_bytes(), &signature).is_ok()) {
        return Ok(payload);
    }
    match kid {
        Some(_) if fitting().next().is_some() => Err(TokenFault::Signature),
        _ => Err(TokenFault::UnknownKey),
    }
}

struct Header {
    algorithm: Algorithm,
    kid: Option<String>,
}

impl Header {
    fn read(json: &[u8]) -> Result<Self, TokenFault> {
        // The strict reading: no member twice (RFC 7515, section 4).
        canonical::json(json, &[], &[]).ok_or(TokenFault::Malformed)?;
        let header: Value = serde_json::from_slice(json).map_err(|_| TokenFault::Malformed)?;
        // What must be understood is not (RFC 7515, section 4.1.11).
        if header.get("crit").is_some() {
            return Err(TokenFault::Malformed);
        }
        let name = header.get("alg").and_then(Value::as_str);
        let algorithm = Algorithm::parse(name.ok_or(TokenFault::Malformed)?);
        let kid = match header.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => return Err(TokenFault::Malformed),
        };
        Ok(Self {
            algorithm: algorithm.ok_or(TokenFault::Algorithm)?,
            kid,
        })
    }
}

/// Strict base64url (RFC 7515, section 2): no padding, no stray bits, so that each token has one spelling.
fn decode(part: &str) -> Result<Vec<u8>, TokenFault> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| TokenFault::Malformed)
}
