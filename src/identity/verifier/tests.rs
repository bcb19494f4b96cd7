use std::path::PathBuf;

use serde_json::{Value, json};

use self::signer::{Signer, b64, hmac_token, jwks};
use super::*;
use crate::{core::claims::Expected, identity::Unusable};

#[path = "../../../tests/black_box/common/signer.rs"]
mod signer;

/// Noon of a day in 2026, in seconds.
const NOON: u64 = 1_796_040_000;

fn noon() -> Timestamp {
    Timestamp::from_millis(NOON * 1000)
}

fn claims(sub: &str) -> Value {
    json!({"sub": sub, "exp": NOON + 600})
}

fn settings(set: &str) -> Settings {
    Settings {
        source: Source::File {
            path: PathBuf::from("/none"),
            keys: Arc::new(KeySet::parse(set.as_bytes()).expect("keys")),
        },
        expected: Expected::default(),
    }
}

fn verifier(signers: &[&Signer]) -> Verifier {
    made(settings(&jwks(signers)))
}

fn made(settings: Settings) -> Verifier {
    Verifier::new(settings, &tls::Client::default()).expect("a file needs no TLS")
}

/// Why a token is refused; `None`: it is believed. Twice, so that a remembered verdict is the same.
async fn fault(verifier: &Verifier, token: &str) -> Option<TokenFault> {
    let first = verifier.verify(token.as_bytes(), noon).await.err();
    let second = verifier.verify(token.as_bytes(), noon).await.err();
    assert_eq!(first, second, "{token}");
    first
}

#[tokio::test]
async fn each_kind_of_key_verifies_its_algorithms_and_no_others() {
    let signers = [
        (
            Signer::rsa("r"),
            &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"][..],
        ),
        (Signer::ec("a", "P-256"), &["ES256"]),
        (Signer::ec("b", "P-384"), &["ES384"]),
        (Signer::ec("c", "P-521"), &["ES512"]),
        (Signer::ed25519("e"), &["EdDSA", "Ed25519"]),
    ];
    let all: Vec<&Signer> = signers.iter().map(|(signer, _)| signer).collect();
    let verifier = verifier(&all);
    let payload = claims("ann").to_string();
    for (signer, own) in &signers {
        let kid = &signer.jwk()["kid"];
        for (_, algorithms) in &signers {
            for algorithm in *algorithms {
                let header = json!({"alg": algorithm, "kid": kid}).to_string();
                let wanted = (!own.contains(algorithm)).then_some(TokenFault::UnknownKey);
                let token = signer.signed(&header, &payload);
                assert_eq!(fault(&verifier, &token).await, wanted, "{header}");
                let nameless = signer.signed(&json!({"alg": algorithm}).to_string(), &payload);
                assert_eq!(fault(&verifier, &nameless).await, wanted, "{algorithm}");
            }
        }
    }
}

#[tokio::test]
async fn a_key_with_an_algorithm_of_its_own_verifies_that_alone() {
    let signer = Signer::rsa("k");
    let mut jwk = signer.jwk();
    jwk["alg"] = "RS256".into();
    let verifier = made(settings(&json!({"keys": [jwk]}).to_string()));
    let payload = claims("ann").to_string();
    let token = |alg: &str| signer.signed(&json!({"alg": alg, "kid": "k"}).to_string(), &payload);
    assert_eq!(fault(&verifier, &token("RS256")).await, None);
    for other in ["RS512", "PS256"] {
        assert_eq!(
            fault(&verifier, &token(other)).await,
            Some(TokenFault::UnknownKey)
        );
    }
}

#[tokio::test]
async fn what_was_not_signed_by_a_key_is_refused() {
    let (own, other) = (Signer::ed25519("k"), Signer::ed25519("k"));
    let verifier = verifier(&[&own]);
    let good = own.token(&claims("ann"));
    assert_eq!(fault(&verifier, &good).await, None);
    assert_eq!(
        fault(&verifier, &other.token(&claims("ann"))).await,
        Some(TokenFault::Signature)
    );
    let foreign = Signer::ed25519("other").token(&claims("ann"));
    assert_eq!(
        fault(&verifier, &foreign).await,
        Some(TokenFault::UnknownKey)
    );

    let parts: Vec<&str> = good.split('.').collect();
    let bob = b64(claims("bob").to_string().as_bytes());
    let swapped = format!("{}.{bob}.{}", parts[0], parts[2]);
    assert_eq!(
        fault(&verifier, &swapped).await,
        Some(TokenFault::Signature)
    );

    // `none`, and HMAC with what everybody knows.
    for none in ["none", "None", "NONE", "nOnE", "HS256", "HS512", "RSA", ""] {
        let header = b64(json!({"alg": none, "kid": "k"}).to_string().as_bytes());
        for signature in ["", parts[2]] {
            let token = format!("{header}.{}.{signature}", parts[1]);
            assert_eq!(
                fault(&verifier, &token).await,
                Some(TokenFault::Algorithm),
                "{none}"
            );
        }
    }
    let public = own.jwk();
    let x = public["x"].as_str().expect("a key");
    for secret in [x.as_bytes(), jwks(&[&own]).as_bytes(), b""] {
        let token = hmac_token("k", secret, &claims("ann"));
        assert_eq!(fault(&verifier, &token).await, Some(TokenFault::Algorithm));
    }
}

#[tokio::test]
async fn no_character_of_a_token_can_be_another() {
    for signer in [Signer::ed25519("k"), Signer::ec("k", "P-256")] {
        let verifier = verifier(&[&signer]);
        let good = signer.token(&claims("ann"));
        for at in 0..good.len() {
            for other in ["A", "B", "_", ".", "=", "\0", "\u{e9}"] {
                let mut bad = good.clone();
                bad.replace_range(at..=at, other);
                if bad != good {
                    assert!(
                        verifier.verify(bad.as_bytes(), noon).await.is_err(),
                        "{bad}"
                    );
                }
            }
        }
        assert_eq!(fault(&verifier, &good).await, None);
    }
}

#[tokio::test]
async fn what_is_no_compact_token_is_malformed() {
    let signer = Signer::ed25519("k");
    let verifier = verifier(&[&signer]);
    let good = signer.token(&claims("ann"));
    let with = |header: &str| signer.signed(header, &claims("ann").to_string());
    for bad in [
        String::new(),
        ".".into(),
        "..".into(),
        "a.b".into(),
        "\u{e9}.a.b".into(),
        good.replacen('.', "", 1),
        format!("{good}."),
        format!("{good}.a.b"),
        format!("{good}="),
        format!(" {good}"),
        format!("{good}, {good}"),
        with("{}"),
        with("[]"),
        with("no JSON"),
        with(r#"{"alg":7}"#),
        with(r#"{"alg":"EdDSA","kid":7}"#),
        with(r#"{"alg":"EdDSA","kid":null}"#),
        with(r#"{"alg":"EdDSA","kid":"k","crit":["exp"]}"#),
        with(r#"{"alg":"EdDSA","kid":"k","crit":["b64"],"b64":false}"#),
        with(r#"{"alg":"none","alg":"EdDSA","kid":"k"}"#),
        signer.token(&json!({"sub": "a".repeat(16 << 10), "exp": NOON + 600})),
    ] {
        assert_eq!(
            fault(&verifier, &bad).await,
            Some(TokenFault::Malformed),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn keys_that_a_token_brings_along_are_not_looked_at() {
    let (own, other) = (Signer::ed25519("k"), Signer::ed25519("evil"));
    let verifier = verifier(&[&own]);
    let header = json!({"alg": "EdDSA", "jwk": other.jwk(), "jku": "http://evil.test/jwks", "x5c": ["AAAA"]});
    let token = other.signed(&header.to_string(), &claims("ann").to_string());
    assert_eq!(fault(&verifier, &token).await, Some(TokenFault::UnknownKey));
}

#[tokio::test]
async fn times_are_judged_at_each_request() {
    let signer = Signer::ed25519("k");
    let verifier = verifier(&[&signer]);
    let token = signer.token(&json!({"sub": "a", "exp": NOON + 600, "nbf": NOON}));
    let at = async |seconds: u64| {
        let now = move || Timestamp::from_millis(seconds * 1000);
        verifier.verify(token.as_bytes(), now).await.err()
    };
    assert_eq!(at(NOON - 31).await, Some(TokenFault::NotYetValid));
    assert_eq!(at(NOON).await, None);
    assert_eq!(at(NOON + 629).await, None);
    assert_eq!(
        at(NOON + 630).await,
        Some(TokenFault::Expired),
        "although it is remembered"
    );
    assert_eq!(at(NOON - 31).await, Some(TokenFault::NotYetValid));
}

#[tokio::test]
async fn what_the_claims_must_say_is_checked() {
    let signer = Signer::ed25519("k");
    let mut settings = settings(&jwks(&[&signer]));
    settings.expected.issuer = Some("me".into());
    let verifier = made(settings);
    let wrong = signer.token(&claims("ann"));
    assert_eq!(fault(&verifier, &wrong).await, Some(TokenFault::Issuer));
    let right = signer.token(&json!({"exp": NOON + 1, "iss": "me"}));
    assert_eq!(fault(&verifier, &right).await, None);
    let timeless = signer.token(&json!({"iss": "me"}));
    assert_eq!(fault(&verifier, &timeless).await, Some(TokenFault::Claims));
}

#[tokio::test]
async fn a_key_that_is_gone_verifies_nothing_any_more() {
    let (old, new) = (Signer::ed25519("k"), Signer::ed25519("k"));
    let verifier = verifier(&[&old]);
    let (by_old, by_new) = (old.token(&claims("ann")), new.token(&claims("ann")));
    assert_eq!(fault(&verifier, &by_old).await, None);
    let set = KeySet::parse(jwks(&[&new]).as_bytes()).expect("keys");
    verifier.take(Ok(set));
    assert_eq!(fault(&verifier, &by_old).await, Some(TokenFault::Signature));
    assert_eq!(fault(&verifier, &by_new).await, None);
    verifier.take(Err(Unreadable::TooLate));
    assert_eq!(
        fault(&verifier, &by_new).await,
        None,
        "keys stay while none can be read"
    );
}

#[tokio::test]
async fn without_keys_every_token_is_refused() {
    let mut none = settings(&jwks(&[&Signer::ed25519("k")]));
    if let Source::File { keys, .. } = &mut none.source {
        *keys = Arc::default();
    }
    let token = Signer::ed25519("k").token(&claims("ann"));
    assert_eq!(
        fault(&made(none), &token).await,
        Some(TokenFault::UnknownKey)
    );
}

#[test]
fn keys_that_verify_no_tokens_are_left_out() {
    let good = Signer::ed25519("k").jwk();
    let rsa = Signer::rsa("k").jwk();
    let with = |mut jwk: Value, name: &str, value: Value| {
        jwk[name] = value;
        jwk
    };
    for bad in [
        json!(null),
        json!({}),
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        json!({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}),
        json!({"kty": "EC", "crv": "P-256", "x": b64(&[1; 32]), "y": b64(&[1; 32])}),
        json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}),
        json!({"kty": "OKP", "crv": "X25519", "x": good["x"]}),
        json!({"kty": "RSA", "n": b64(&[0xff; 128]), "e": "AQAB"}),
        with(good.clone(), "use", json!("enc")),
        with(good.clone(), "use", json!(null)),
        with(good.clone(), "key_ops", json!(["sign"])),
        with(good.clone(), "alg", json!("RS256")),
        with(good.clone(), "alg", json!("HS256")),
        with(good.clone(), "x", json!("AA")),
        with(good.clone(), "kid", json!(7)),
        with(rsa.clone(), "n", json!("")),
        with(rsa, "e", json!("AA")),
    ] {
        let alone = KeySet::parse(json!({"keys": [bad]}).to_string().as_bytes());
        assert_eq!(alone.err(), Some(Unusable::NoKey), "{bad}");
        let set = KeySet::parse(json!({"keys": [bad, good]}).to_string().as_bytes());
        let set = set.expect("keys");
        assert_eq!((set.len(), set.skipped()), (1, 1), "{bad}");
    }
    for (text, fault) in [
        ("", Unusable::NoJson),
        ("{\"keys\":[]", Unusable::NoJson),
        ("[]", Unusable::NoSet),
        ("{\"keys\":{}}", Unusable::NoSet),
        ("{\"keys\":[]}", Unusable::NoKey),
    ] {
        assert_eq!(KeySet::parse(text.as_bytes()).err(), Some(fault), "{text}");
    }
    let many = json!({"keys": vec![good; 101]}).to_string();
    assert_eq!(
        KeySet::parse(many.as_bytes()).err(),
        Some(Unusable::TooMany)
    );
}

#[tokio::test]
async fn a_verifier_is_kept_where_place_and_demands_are_the_same_and_takes_the_keys_over() {
    let [old, new] = ["a", "b"].map(Signer::ed25519);
    let verifier = verifier(&[&old]);
    let other_keys = settings(&jwks(&[&new]));
    assert!(verifier.is_for(&other_keys), "keys are no demand");
    let mut other_demand = other_keys.clone();
    other_demand.expected.issuer = Some("https://id.test".into());
    assert!(!verifier.is_for(&other_demand));
    let elsewhere = Settings {
        source: Source::File {
            path: PathBuf::from("/elsewhere"),
            keys: Arc::default(),
        },
        ..other_keys.clone()
    };
    assert!(!verifier.is_for(&elsewhere));
    let [by_old, by_new] = [&old, &new].map(|signer| signer.token(&claims("ann")));
    assert_eq!(fault(&verifier, &by_old).await, None);
    assert_eq!(
        fault(&verifier, &by_new).await,
        Some(TokenFault::UnknownKey)
    );
    verifier.renew(&other_keys);
    assert_eq!(
        fault(&verifier, &by_old).await,
        Some(TokenFault::UnknownKey)
    );
    assert_eq!(fault(&verifier, &by_new).await, None);
}

#[tokio::test]
async fn keys_are_kept_fresh_until_nobody_uses_them() {
    let runtime = tokio::runtime::Handle::current();
    let tasks = Tasks::new(runtime, tokio_util::task::TaskTracker::new());
    let stopped = CancellationToken::new();
    let first = Kept::new(verifier(&[]), &tasks, &stopped);
    let weak = Arc::downgrade(&first.verifier);
    let second = first.clone();
    drop(first);
    tokio::task::yield_now().await;
    assert!(weak.upgrade().is_some());
    drop(second);
    while weak.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(!stopped.is_cancelled());
}
