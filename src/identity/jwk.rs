//! Keys: JSON Web Key Sets (RFC 7517), and the signatures that they verify (RFC 7518, section 3; RFC 8037).

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

/// An algorithm that public keys verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

impl Algorithm {
    const OF_RSA: [(Self, &'static RsaParameters); 6] = [
        (Self::Rs256, &RSA_PKCS1_2048_8192_SHA256),
        (Self::Rs384, &RSA_PKCS1_2048_8192_SHA384),
        (Self::Rs512, &RSA_PKCS1_2048_8192_SHA512),
        (Self::Ps256, &RSA_PSS_2048_8192_SHA256),
        (Self::Ps384, &RSA_PSS_2048_8192_SHA384),
        (Self::Ps512, &RSA_PSS_2048_8192_SHA512),
    ];

    /// Reads an `alg`; `None`: it is `none`, an HMAC, or nothing that is known. Letter case counts (RFC 7515, section 4.1.1).
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "ES512" => Self::Es512,
            // The second name is of RFC 9864.
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }
}

/// A public key: its name, and one verifying key for each algorithm that it may be used with.
#[derive(Clone)]
pub(super) struct Key {
    kid: Option<String>,
    algorithms: Vec<(Algorithm, ParsedPublicKey)>,
}

impl Key {
    /// The key as it is used with `algorithm`, if a token that names `kid` can be signed by it.
    pub(super) fn fitting(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Option<&ParsedPublicKey> {
        if kid.is_some() && self.kid.as_deref() != kid {
            return None;
        }
        let found = self.algorithms.iter().find(|(own, _)| *own == algorithm);
        found.map(|(_, key)| key)
    }

    /// Reads one JWK; `None`: it is of another kind, of a size that is not taken, or for another use.
    fn read(jwk: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if jwk.contains_key("use") && text("use") != Some("sig") {
            return None;
        }
        if let Some(operations) = jwk.get("key_ops") {
            let operations = operations.as_array()?;
            if !operations.iter().any(|one| one == "verify") {
                return None;
            }
        }
        let only = match jwk.get("alg") {
            Some(alg) => Some(Algorithm::parse(alg.as_str()?)?),
            None => None,
        };
        let mut algorithms = match (text("kty")?, text("crv")) {
            ("RSA", _) => rsa(&bytes(text("n")?)?, &bytes(text("e")?)?)?,
            ("EC", Some("P-256")) => {
                let key = point(text("x")?, text("y")?, 32, &ECDSA_P256_SHA256_FIXED)?;
                vec![(Algorithm::Es256, key)]
            }
            ("EC", Some("P-384")) => {
                let key = point(text("x")?, text("y")?, 48, &ECDSA_P384_SHA384_FIXED)?;
                vec![(Algorithm::Es384, key)]
            }
            ("EC", Some("P-521")) => {
                let key = point(text("x")?, text("y")?, 66, &ECDSA_P521_SHA512_FIXED)?;
                vec![(Algorithm::Es512, key)]
            }
            ("OKP", Some("Ed25519")) => {
                let x = bytes(text("x")?).filter(|x| x.len() == 32)?;
                vec![(Algorithm::EdDsa, ParsedPublicKey::new(&ED25519, x).ok()?)]
            }
            _ => return None,
        };
        algorithms.retain(|(own, _)| only.is_none_or(|only| only == *own));
        let kid = match jwk.get("kid") {
            Some(kid) => Some(kid.as_str()?.to_owned()),
            None => None,
        };
        (!algorithms.is_empty()).then_some(Self { kid, algorithms })
    }
}

/// Two keys are one if they have the same name, bytes and algorithms.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let all = |key: &Self| {
            let algorithms = key.algorithms.iter();
            algorithms
                .map(|(own, key)| (*own, key.as_ref().to_vec()))
                .collect::<Vec<_>>()
        };
        self.kid == other.kid && all(self) == all(other)
    }
}

impl Eq for Key {}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// An RSA key of 2048 to 8192 bits (RFC 7518, section 3.3, wants 2048 at least).
fn rsa(n: &[u8], e: &[u8]) -> Option<Vec<(Algorithm, ParsedPublicKey)>> {
    // Some write the zero byte of a signed number in front.
    let plain = |number: &[u8]| {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        number.get(zeros..).unwrap_or_default().to_vec()
    };
    let (n, e) = (plain(n), plain(e));
    let top = n.first()?.leading_zeros() as usize;
    if !(2048..=8192).contains(&(n.len() * 8 - top)) {
        return None;
    }
    let components = RsaPublicKeyComponents { n, e };
    let parsed = Algorithm::OF_RSA.map(|(algorithm, parameters)| {
        let key = components.to_parsed_public_key(parameters).ok()?;
        Some((algorithm, key))
    });
    parsed.into_iter().collect()
}

/// A point of a curve whose coordinates have `length` bytes each; one that is not on the curve is none.
fn point(
    x: &str,
    y: &str,
    length: usize,
    curve: &'static dyn VerificationAlgorithm,
) -> Option<ParsedPublicKey> {
    let (x, y) = (bytes(x)?, bytes(y)?);
    if x.len() != length || y.len() != length {
        return None;
    }
    ParsedPublicKey::new(curve, [&[4], x.as_slice(), y.as_slice()].concat()).ok()
}

/// The keys that tokens are verified with.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct KeySet {
    keys: Vec<Key>,
    skipped: usize,
}

/// The most keys of a set; more are refused, so that no token can make the proxy try them all.
const MAX_KEYS: usize = 100;

impl KeySet {
    /// Reads a JSON Web Key Set. Keys that verify no token (symmetric ones, those for encryption, unknown kinds, weak RSA) are
    /// left out (RFC 7517, section 5).
    ///
    /// # Errors
    /// It is no such set, or has no usable key, or over a hundred.
    pub fn parse(text: &[u8]) -> Result<Self, Unusable> {
        let set: Value = serde_json::from_slice(text).map_err(|_| Unusable::NoJson)?;
        let all = set.get("keys").and_then(Value::as_array);
        let all = all.ok_or(Unusable::NoSet)?;
        if all.len() > MAX_KEYS {
            return Err(Unusable::TooMany);
        }
        let read = |jwk: &Value| jwk.as_object().and_then(Key::read);
        let keys: Vec<Key> = all.iter().filter_map(read).collect();
        if keys.is_empty() {
            return Err(Unusable::NoKey);
        }
        let skipped = all.len() - keys.len();
        Ok(Self { keys, skipped })
    }

    /// How many keys verify tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key at all: nothing was read yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many entries were left out.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }
}

/// Public keys are no secret, but many bytes.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({} keys)", self.keys.len())
    }
}

/// Why a text gives no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It cannot be parsed.
    #[error("it is no JSON")]
    NoJson,
    /// It has no array `keys`.
    #[error("it is no JSON Web Key Set: it has no array \"keys\"")]
    NoSet,
    /// Nothing in it verifies tokens.
    #[error(
        "it has no key that verifies tokens: RSA of 2048 bits or more, P-256, P-384, P-521 or Ed25519, public and for signatures"
    )]
    NoKey,
    /// There are over a hundred.
    #[error("it has over 100 keys")]
    TooMany,
}
