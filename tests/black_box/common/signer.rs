//! Keys that are made as tests run, and tokens that are signed with them.

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
        ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
        RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// A key with a name.
pub(crate) struct Signer {
    kid: String,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(&'static str, EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    pub(crate) fn rsa(kid: &str) -> Self {
        Self::of(
            kid,
            Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("a key")),
        )
    }

    pub(crate) fn ed25519(kid: &str) -> Self {
        Self::of(kid, Pair::Ed(Ed25519KeyPair::generate().expect("a key")))
    }

    /// A key on the curve of this name.
    pub(crate) fn ec(kid: &str, curve: &'static str) -> Self {
        let algorithm = match curve {
            "P-256" => &ECDSA_P256_SHA256_FIXED_SIGNING,
            "P-384" => &ECDSA_P384_SHA384_FIXED_SIGNING,
            "P-521" => &ECDSA_P521_SHA512_FIXED_SIGNING,
            other => panic!("{other}"),
        };
        Self::of(
            kid,
            Pair::Ec(curve, EcdsaKeyPair::generate(algorithm).expect("a key")),
        )
    }

    fn of(kid: &str, pair: Pair) -> Self {
        let kid = kid.to_owned();
        Self { kid, pair }
    }

    /// The public key.
    pub(crate) fn jwk(&self) -> Value {
        match &self.pair {
            Pair::Rsa(pair) => {
                // SEQUENCE, INTEGER with a zero byte before the 256 of the modulus, INTEGER 65537 (RFC 8017, A.1.1).
                let der = pair.public_key().as_ref();
                json!({"kty": "RSA", "kid": self.kid, "use": "sig", "n": b64(&der[9..265]), "e": "AQAB"})
            }
            Pair::Ec(curve, pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "kid": self.kid, "crv": curve, "x": b64(x), "y": b64(y)})
            }
            Pair::Ed(pair) => {
                let x = b64(pair.public_key().as_ref());
                json!({"kty": "OKP", "kid": self.kid, "crv": "Ed25519", "x": x})
            }
        }
    }

    /// The algorithm that its tokens have if nothing is said.
    fn algorithm(&self) -> &'static str {
        match &self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::Ec("P-256", _) => "ES256",
            Pair::Ec("P-384", _) => "ES384",
            Pair::Ec(..) => "ES512",
            Pair::Ed(_) => "EdDSA",
        }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let header = json!({"alg": self.algorithm(), "typ": "JWT", "kid": self.kid});
        self.signed(&header.to_string(), &claims.to_string())
    }

    /// The same with a header and a payload as they are given. What the header says of the algorithm is done where the key can
    /// do it; otherwise the key's own.
    pub(crate) fn signed(&self, header: &str, payload: &str) -> String {
        let message = format!("{}.{}", b64(header.as_bytes()), b64(payload.as_bytes()));
        let named: Value = serde_json::from_str(header).unwrap_or_default();
        let signature = self.sign(
            named["alg"].as_str().unwrap_or_default(),
            message.as_bytes(),
        );
        format!("{message}.{}", b64(&signature))
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let encoding: &'static dyn RsaEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed = pair.sign(encoding, &random, message, &mut signature);
                signed.expect("a signature");
                signature
            }
            Pair::Ec(_, pair) => pair
                .sign(&random, message)
                .expect("a signature")
                .as_ref()
                .to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

/// The key set of these keys.
pub(crate) fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}

/// A token of HMAC with `secret`, as of somebody who takes a public key for one.
pub(crate) fn hmac_token(kid: &str, secret: &[u8], claims: &Value) -> String {
    let header = json!({"alg": "HS256", "typ": "JWT", "kid": kid}).to_string();
    let message = format!(
        "{}.{}",
        b64(header.as_bytes()),
        b64(claims.to_string().as_bytes())
    );
    let tag = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, secret),
        message.as_bytes(),
    );
    format!("{message}.{}", b64(tag.as_ref()))
}

/// Base64url without padding.
pub(crate) fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
