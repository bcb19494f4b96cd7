//! Callers by token: who a key belongs to is what a verified token says, and nobody else's word counts.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{
    Gate, Proxy, Request, Step, Upstream, eventually, executed, key, problem, replayed, reply,
    signer::{Signer, b64, hmac_token, jwks},
    sleep_ms,
};

/// Seconds since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "tokens are dated by the wall clock"
)]
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

/// Claims of a subject, and whatever else is given.
fn claims(sub: &str, more: &Value) -> Value {
    let mut all =
        json!({"sub": sub, "exp": now() + 600, "iss": "https://id.test", "aud": "orders"});
    for (name, value) in more.as_object().into_iter().flatten() {
        all[name] = value.clone();
    }
    all
}

fn bearer(signer: &Signer, claims: &Value) -> String {
    format!("Bearer {}", signer.token(claims))
}

/// A file of keys that lives as long as the value.
struct KeyFile {
    _folder: TempDir,
    path: PathBuf,
}

impl KeyFile {
    fn of(signers: &[&Signer]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("jwks.json");
        let file = Self {
            _folder: folder,
            path,
        };
        file.put(&jwks(signers));
        file
    }

    /// Replaces the file as a deployment does: another one is moved over it.
    fn put(&self, text: &str) {
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, text).expect("the folder takes a file");
        fs::rename(&fresh, &self.path).expect("the folder takes a file");
    }

    /// The settings for `from`, with issuer and audience.
    fn settings(&self, from: &str) -> String {
        format!(
            "identity.from = {from}\nidentity.jwt.jwks_file = '{}'\n\
             identity.jwt.issuer = 'https://id.test'\nidentity.jwt.audience = 'orders'\n",
            self.path.display()
        )
    }
}

#[test]
fn refreshed_tokens_are_one_caller_and_other_subjects_others() {
    let (upstream, signer) = (Upstream::start(), Signer::rsa("k1"));
    let file = KeyFile::of(&[&signer]);
    let proxy = Proxy::with(&upstream, &file.settings("['jwt:sub']"));
    let request = Request::order(&key());
    let by = |claims: &Value| request.clone().caller(&bearer(&signer, claims));
    let first = executed(proxy.send(&by(&claims("ann", &json!({})))));
    for refreshed in [
        json!({"jti": "another", "exp": now() + 1200}),
        json!({"aud": ["users", "orders"], "nbf": now()}),
        json!({"exp": now() - 10}), // within the leeway
    ] {
        replayed(&proxy.send(&by(&claims("ann", &refreshed))), &first);
    }
    let lower = bearer(&signer, &claims("ann", &json!({}))).replace("Bearer ", "bEARER   ");
    replayed(&proxy.send(&request.clone().caller(&lower)), &first);
    executed(proxy.send(&by(&claims("bob", &json!({})))));
    executed(proxy.send(&by(&claims("", &json!({"sub": 7})))));
    executed(proxy.send(&by(&claims("7", &json!({})))));
    assert_eq!(upstream.executions(), 4);
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.one("Authorization").is_some()),
        "the upstream gets the token as it came"
    );
}

#[test]
fn a_token_that_is_not_to_be_believed_is_refused() {
    let (upstream, signer) = (Upstream::start(), Signer::rsa("k1"));
    let file = KeyFile::of(&[&signer]);
    let strict = Proxy::with(&upstream, &file.settings("['jwt:sub']"));
    let lax = Proxy::with(
        &upstream,
        &format!(
            "{}identity.missing = 'anonymous'",
            file.settings("['jwt:sub']")
        ),
    );
    let good = claims("ann", &json!({}));
    let token = signer.token(&good);
    let parts: Vec<&str> = token.split('.').collect();
    let none = b64(br#"{"alg":"none","kid":"k1"}"#);
    let public = signer.jwk()["n"].as_str().expect("a key").to_owned();
    let by = |more: &Value| signer.token(&claims("ann", more));
    let refused = [
        ("wrong key", Signer::rsa("k1").token(&good)),
        ("unknown key", Signer::rsa("k2").token(&good)),
        ("none", format!("{none}.{}.", parts[1])),
        ("none, signed", format!("{none}.{}.{}", parts[1], parts[2])),
        ("HMAC", hmac_token("k1", public.as_bytes(), &good)),
        (
            "HMAC of the set",
            hmac_token("k1", jwks(&[&signer]).as_bytes(), &good),
        ),
        (
            "another payload",
            format!("{}.{}.{}", parts[0], b64(b"{}"), parts[2]),
        ),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("expired", by(&json!({"exp": now() - 60}))),
        ("without exp", by(&json!({"exp": null}))),
        ("not yet valid", by(&json!({"nbf": now() + 120}))),
        ("wrong issuer", by(&json!({"iss": "https://id.test.evil"}))),
        ("no issuer", by(&json!({"iss": null}))),
        ("wrong audience", by(&json!({"aud": "users"}))),
        ("no audience", by(&json!({"aud": []}))),
        ("a list for a subject", by(&json!({"sub": ["ann"]}))),
        ("garbage", "garbage".into()),
        ("nothing", String::new()),
    ];
    let key = key();
    for (what, token) in &refused {
        let request = Request::order(&key).caller(&format!("Bearer {token}"));
        for proxy in [&strict, &lax] {
            let answer = proxy.send(&request);
            assert_eq!(answer.status, 401, "{what}: {answer}");
            problem(&answer, "caller-missing");
        }
    }
    let request = Request::order(&key);
    let twice = request
        .clone()
        .caller(&format!("Bearer {token}"))
        .header("Authorization", format!("Bearer {token}"));
    for other in [
        twice,
        request.clone().caller("Basic YTpi"),
        request.clone().caller(&token),
    ] {
        problem(&strict.send(&other), "caller-missing");
        problem(&lax.send(&other), "caller-missing");
    }
    assert_eq!(upstream.executions(), 0);

    let nobody = request.without("Authorization");
    problem(&strict.send(&nobody), "caller-missing");
    let first = executed(lax.send(&nobody));
    replayed(&lax.send(&nobody), &first);
}

#[test]
fn no_token_and_no_claim_is_written_down() {
    let (upstream, signer) = (Upstream::start(), Signer::ed25519("hush-kid"));
    let file = KeyFile::of(&[&signer]);
    let settings = format!(
        "{}telemetry.log_level = 'trace'",
        file.settings("['jwt:sub']")
    );
    let proxy = Proxy::with(&upstream, &settings);
    let request = Request::order(&key());
    let good = signer.token(&claims("hush-ann", &json!({})));
    let late = signer.token(&claims("hush-ann", &json!({"exp": now() - 60})));
    executed(proxy.send(&request.clone().caller(&format!("Bearer {good}"))));
    for bad in [late.as_str(), "hush-garbage", "e30.hush.hush"] {
        problem(
            &proxy.send(&request.clone().caller(&format!("Bearer {bad}"))),
            "caller-missing",
        );
    }
    eventually("the reason is logged", || {
        proxy.log().contains("\"expired\"")
    });
    sleep_ms(300);
    let (log, metrics) = (proxy.log(), proxy.metrics().0);
    for secret in [
        "hush",
        &good[..20],
        &good[good.len() - 20..],
        &late[late.len() - 20..],
    ] {
        assert!(!log.contains(secret), "{secret} is in the log");
        assert!(!metrics.contains(secret), "{secret} is in the metrics");
    }
    assert!(
        metrics.contains("outcome=\"caller_missing\"} 3"),
        "{metrics}"
    );
}

#[test]
fn claims_lie_deep_and_are_combined_with_other_parts() {
    let (upstream, signer) = (Upstream::start(), Signer::ec("k1", "P-256"));
    let file = KeyFile::of(&[&signer]);
    let from = "['jwt:realm.tenant', 'jwt:/https:~1~1id.test~1user', 'header:X-Device']";
    let proxy = Proxy::with(&upstream, &file.settings(from));
    let request = Request::order(&key());
    let by = |tenant: &str, user: &str, device: &str| {
        let more = json!({"realm": {"tenant": tenant}, "https://id.test/user": user});
        let token = bearer(&signer, &claims("ann", &more));
        request.clone().caller(&token).header("X-Device", device)
    };
    let first = executed(proxy.send(&by("a", "b", "c")));
    replayed(&proxy.send(&by("a", "b", "c")), &first);
    for other in [by("ab", "", "c"), by("a", "b", "")] {
        problem(&proxy.send(&other), "caller-missing");
    }
    for other in [by("b", "a", "c"), by("a", "bc", "c"), by("a", "b", "bc")] {
        executed(proxy.send(&other));
    }
    assert_eq!(upstream.executions(), 4);
}

#[test]
fn a_route_has_keys_and_callers_of_its_own() {
    let (upstream, all, own) = (
        Upstream::start(),
        Signer::ed25519("k"),
        Signer::ed25519("k"),
    );
    let (file, other) = (KeyFile::of(&[&all]), KeyFile::of(&[&own]));
    let routes = format!(
        "[[route]]\nname = 'a'\nmethods = ['POST']\npath = '/orders'\n\
         [[route]]\nname = 'b'\nmethods = ['POST']\npath = '/own'\nidentity.jwt.jwks_file = '{}'",
        other.path.display()
    );
    let proxy = Proxy::with(
        &upstream,
        &format!("{}{routes}", file.settings("['jwt:sub']")),
    );
    let send = |path: &str, signer: &Signer| {
        let request = Request::write("POST", path).key(&key());
        proxy.send(&request.caller(&bearer(signer, &claims("ann", &json!({})))))
    };
    executed(send("/orders", &all));
    executed(send("/own", &own));
    problem(&send("/orders", &own), "caller-missing");
    problem(&send("/own", &all), "caller-missing");
}

#[test]
fn a_file_of_keys_is_replaced_without_a_restart() {
    let (upstream, old, new) = (Upstream::start(), Signer::rsa("k1"), Signer::ed25519("k2"));
    let file = KeyFile::of(&[&old]);
    let proxy = Proxy::with(&upstream, &file.settings("['jwt:sub']"));
    let request = Request::order(&key());
    let by = |signer: &Signer| {
        request
            .clone()
            .caller(&bearer(signer, &claims("ann", &json!({}))))
    };
    let first = executed(proxy.send(&by(&old)));
    problem(&proxy.send(&by(&new)), "caller-missing");
    file.put(&jwks(&[&new, &old]));
    eventually("the new key is in force", || {
        proxy.send(&by(&new)).status == 201
    });
    replayed(&proxy.send(&by(&new)), &first);
    replayed(&proxy.send(&by(&old)), &first);
    file.put("{\"keys\":[");
    eventually("the fault is logged", || {
        proxy.log().contains("those in force stay in force")
    });
    replayed(&proxy.send(&by(&new)), &first);
    file.put(&jwks(&[&new]));
    eventually("the old key is out of force", || {
        proxy.send(&by(&old)).status == 401
    });
    replayed(&proxy.send(&by(&new)), &first);
    assert_eq!(upstream.executions(), 1);
}

/// The settings for keys that `issuer` serves.
fn from_url(issuer: &Upstream) -> String {
    format!(
        "identity.from = ['jwt:sub']\nidentity.jwt.jwks_url = 'http://{}/keys?v=1'",
        issuer.address()
    )
}

#[test]
fn keys_come_from_a_url_and_a_new_one_is_asked_for() {
    let (upstream, issuer) = (Upstream::start(), Upstream::start());
    let (old, new) = (Signer::ed25519("k1"), Signer::ed25519("k2"));
    let gate = Gate::new();
    issuer.then(Step::from(reply(200).body(jwks(&[&old]))).behind(&gate));
    let proxy = Proxy::with(&upstream, &from_url(&issuer));
    let request = Request::order(&key());
    let by = |signer: &Signer| {
        request
            .clone()
            .caller(&bearer(signer, &claims("ann", &json!({}))))
    };
    // A token that comes before the keys do waits for them.
    gate.arrived();
    let mut early = proxy.begin(&by(&old));
    gate.open();
    let first = executed(early.answer());
    assert_eq!(issuer.seen()[0].target, "/keys?v=1");

    // The issuer rotates; soon after the last fetch nobody asks again, whatever tokens come.
    issuer.always(reply(200).body(jwks(&[&new])));
    for _ in 0..20 {
        problem(&proxy.send(&by(&Signer::ed25519("k3"))), "caller-missing");
    }
    assert_eq!(issuer.executions(), 1);
    eventually("the new key is in force", || {
        proxy.send(&by(&new)).status == 201
    });
    replayed(&proxy.send(&by(&new)), &first);
    problem(&proxy.send(&by(&old)), "caller-missing");
    assert_eq!(issuer.executions(), 2);

    // The issuer is down: what is known stays in force.
    issuer.refuse();
    eventually("the fault is logged", || {
        problem(&proxy.send(&by(&Signer::ed25519("k4"))), "caller-missing");
        proxy.log().contains("those in force stay in force")
    });
    replayed(&proxy.send(&by(&new)), &first);
    assert_eq!(upstream.executions(), 1);
    assert!(!proxy.log().contains("v=1"), "the query may hold a secret");
}

#[test]
fn without_keys_every_token_is_refused() {
    let (upstream, issuer, signer) = (Upstream::start(), Upstream::start(), Signer::ed25519("k"));
    for answer in [
        Step::from(reply(500)),
        Step::from(reply(302).header("Location", "/elsewhere")),
        Step::from(reply(200).body("no keys")),
        Step::from(reply(200).body("{\"keys\":[]}")),
        Step::from(reply(200).endless(3 << 20)),
        Step::from(reply(200).body(jwks(&[&signer])).cut_after(30)),
        Step::drop(),
        Step::bytes("no HTTP\r\n\r\n"),
    ] {
        issuer.always(answer);
        let proxy = Proxy::with(&upstream, &from_url(&issuer));
        let request = Request::order(&key()).caller(&bearer(&signer, &claims("ann", &json!({}))));
        problem(&proxy.send(&request), "caller-missing");
        eventually("the fault is logged", || {
            proxy.log().contains("the keys of tokens could not be read")
        });
    }
    assert_eq!(upstream.executions(), 0);
}
