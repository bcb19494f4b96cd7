//! Who callers are: tokens and their keys, and callers without proof.

use std::{fs, path::PathBuf};

use idem_proxy::{
    core::policy::CallerPart,
    identity::{Scheme, Settings, Source},
};
use tempfile::TempDir;

use crate::common::{ROUTE, assert_says, load, load_with, problems};

const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jwks.json");
    fs::write(&path, text).expect("written");
    (folder, path)
}

#[test]
fn a_claim_has_keys_an_issuer_and_an_audience() {
    let (_folder, path) = file(KEYS);
    let text = format!(
        "[identity]\nfrom = [\"jwt:sub\", \"peer-ip\"]\n[identity.jwt]\njwks_file = {path:?}\nissuer = \"i\"\naudience = \"a\"\n{ROUTE}"
    );
    let config = load(&text);
    let identity = &config.routes[0].policy.identity;
    assert!(matches!(
        &identity.from[..],
        [CallerPart::Jwt(_), CallerPart::PeerIp]
    ));
    let [Settings { source, expected }] = &config.verifiers[..] else {
        panic!("{:?}", config.verifiers)
    };
    assert_eq!(identity.jwt, Some(0));
    assert!(matches!(source, Source::File { keys, .. } if keys.len() == 1));
    assert_eq!(
        (expected.issuer.as_deref(), expected.audience.as_deref()),
        (Some("i"), Some("a"))
    );

    let plain = load(&text.replace("\"jwt:sub\", ", ""));
    assert_eq!(plain.routes[0].policy.identity.jwt, None);
    assert!(plain.verifiers.is_empty(), "nobody reads tokens");
}

#[test]
fn a_claim_without_keys_is_refused() {
    for text in [
        "[identity]\nfrom = [\"jwt:sub\"]\n".to_owned(),
        format!(
            "[identity]\nfrom = [\"jwt:sub\"]\n{ROUTE}{}",
            ROUTE.replace("orders", "others")
        ),
        format!("[identity]\nfrom = [\"jwt:sub\"]\n[identity.jwt]\nissuer = \"i\"\n{ROUTE}"),
    ] {
        let said = problems(&text);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_says(
            &said,
            &["proxy.toml:2: identity.from", "jwks_file or jwks_url"],
        );
    }
    let own = format!("{ROUTE}identity.from = [\"jwt:sub\"]\n");
    assert_says(
        &problems(&own),
        &["route[orders].identity.from", "jwks_file or jwks_url"],
    );
    // A route without keys asks nobody who they are.
    load(&format!(
        "[identity]\nfrom = [\"jwt:sub\"]\n{ROUTE}key = \"off\"\n"
    ));
}

#[test]
fn a_file_of_keys_is_read_when_it_is_checked_whoever_needs_it() {
    for (text, why) in [
        ("", "no JSON"),
        ("{}", "keys"),
        (
            "{\"keys\":[{\"kty\":\"oct\",\"k\":\"aHVzaA\"}]}",
            "no key that verifies",
        ),
    ] {
        let (_folder, path) = file(text);
        let said = problems(&format!("[identity.jwt]\njwks_file = {path:?}\n{ROUTE}"));
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_says(
            &said,
            &[
                "proxy.toml:2: identity.jwt.jwks_file",
                "jwks.json",
                why,
                "RFC 7517",
            ],
        );
        assert!(!said.contains("aHVzaA"), "{said}");
    }
    for (path, why) in [
        ("/no/such/file", "cannot be read"),
        ("/", "no regular file"),
        ("", "empty"),
    ] {
        let said = problems(&format!("[identity.jwt]\njwks_file = \"{path}\"\n"));
        assert_says(&said, &["identity.jwt.jwks_file", why]);
    }
}

#[test]
fn keys_come_from_one_place_and_the_nearer_one_counts() {
    let (_folder, path) = file(KEYS);
    let both =
        format!("[identity.jwt]\njwks_file = {path:?}\njwks_url = \"http://id.test/keys\"\n");
    assert_says(
        &problems(&both),
        &["proxy.toml:3: identity.jwt.jwks_url", "one of them"],
    );

    let text = format!(
        "[identity]\nfrom = [\"jwt:sub\"]\n[identity.jwt]\njwks_file = {path:?}\nissuer = \"i\"\n{ROUTE}\
         identity.jwt.jwks_url = \"http://id.test/keys?a=b\"\n{}{}identity.jwt.issuer = \"i\"\n{}identity.from = []\n",
        ROUTE.replace("orders", "others"),
        ROUTE.replace("orders", "thirds"),
        ROUTE.replace("orders", "fourths"),
    );
    let loaded = load_with(&text, &[]).expect("valid");
    let by = |at: usize| loaded.config.routes[at].policy.identity.jwt;
    assert_eq!(
        [by(0), by(1), by(2), by(3)],
        [Some(0), Some(1), Some(1), None]
    );
    assert!(
        matches!(&loaded.config.verifiers[0].source, Source::Url(url) if url.target == "/keys?a=b")
    );
    assert_eq!(
        loaded.config.verifiers[0].expected.issuer.as_deref(),
        Some("i")
    );
    // Printed and read again it is the same, but for the query, which may hold a secret.
    let printed = loaded.printed.to_string();
    assert!(!printed.contains("a=b"), "{printed}");
    let again = load_with(&printed, &[]).expect("valid");
    assert_eq!(again.printed.to_string(), printed);
    let indices = again
        .config
        .routes
        .iter()
        .map(|route| route.policy.identity.jwt);
    assert_eq!(indices.collect::<Vec<_>>(), [by(0), by(1), by(2), by(3)]);
}

#[test]
fn a_url_of_keys_may_be_https() {
    let text = "[identity]\nfrom = [\"jwt:sub\"]\n[identity.jwt]\njwks_url = ";
    let of = |url: &str| load(&format!("{text}{url:?}\n{ROUTE}")).verifiers;
    for (url, host, port) in [
        ("https://id.test/keys", "id.test", 443),
        ("https://[::1]:8443/keys", "::1", 8443),
    ] {
        let verifiers = of(url);
        let [
            Settings {
                source: Source::Url(url),
                ..
            },
        ] = &verifiers[..]
        else {
            panic!("{verifiers:?}")
        };
        assert_eq!((url.host.as_str(), url.port), (host, port));
        assert!(matches!(&url.scheme, Scheme::Https(name) if name.to_str() == host));
    }
    let plain = of("http://id.test/keys");
    assert!(matches!(&plain[0].source, Source::Url(url) if url.scheme == Scheme::Http));
}

#[test]
fn the_environment_names_keys_too() {
    let (_folder, path) = file(KEYS);
    let variables = [
        ("IDEM_PROXY_IDENTITY__FROM", "[\"jwt:sub\"]"),
        (
            "IDEM_PROXY_IDENTITY__JWT__JWKS_FILE",
            path.to_str().expect("UTF-8"),
        ),
        ("IDEM_PROXY_IDENTITY__JWT__ISSUER", "7"),
    ];
    let loaded = load_with(ROUTE, &variables).expect("valid");
    assert_eq!(
        loaded.config.verifiers[0].expected.issuer.as_deref(),
        Some("7")
    );
}

#[test]
fn wrong_values_are_named() {
    for (text, words) in [
        ("from = [\"jwt:\"]", ["identity.from[0]", "path to a claim"]),
        (
            "from = [\"jwt:a..b\"]",
            ["identity.from[0]", "path to a claim"],
        ),
        ("from = [\"jwt:/a~\"]", ["identity.from[0]", "JSON pointer"]),
        ("from = [\"jwt\"]", ["identity.from[0]", "jwt:CLAIM"]),
        (
            "jwt.jwks_url = \"id.test\"",
            ["identity.jwt.jwks_url", "https://host:port/path"],
        ),
        (
            "jwt.jwks_url = \"ftp://id.test\"",
            ["identity.jwt.jwks_url", "http://host:port/path"],
        ),
        (
            "jwt.jwks_url = \"https://id..test/keys\"",
            ["identity.jwt.jwks_url", "certificate"],
        ),
        (
            "jwt.jwks_url = \"http://u:hunter2@id.test\"",
            ["identity.jwt.jwks_url", "credentials"],
        ),
        ("jwt.issuer = \"\"", ["identity.jwt.issuer", "empty"]),
        (
            "jwt.audience = [\"a\"]",
            ["identity.jwt.audience", "not a string"],
        ),
        (
            "jwt.jwks = \"a\"",
            ["identity.jwt.jwks", "did you mean jwks_"],
        ),
        ("jwt = 7", ["identity.jwt", "not a table"]),
        (
            "trust_unverified = \"perhaps\"",
            ["identity.trust_unverified", "true or false"],
        ),
    ] {
        let said = problems(&format!("[identity]\n{text}\n"));
        assert_says(&said, &words);
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn callers_without_proof_need_somebody_who_trusts_them() {
    let sigv4 = "[identity]\nfrom = [\"sigv4\"]\n";
    for text in [
        sigv4.to_owned(),
        format!("{sigv4}{ROUTE}{}", ROUTE.replace("orders", "others")),
    ] {
        let said = problems(&text);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_says(&said, &["identity.from", "trust_unverified", "replay_auth"]);
    }
    let trusted = format!("{sigv4}trust_unverified = true\n{ROUTE}");
    let loaded = load_with(&trusted, &[]).expect("valid");
    assert_eq!(
        loaded.config.routes[0].policy.identity.from,
        [CallerPart::SigV4]
    );
    assert_says(&loaded.advice.join("\n"), &["orders", "without proof"]);
    load(&format!("{sigv4}{ROUTE}identity.trust_unverified = true\n"));
    load(&format!("{sigv4}{ROUTE}key = \"off\"\n"));
    // Whoever asks the upstream before a replay needs no trust: what is left to object to is not this.
    for asked in [
        format!("{sigv4}{ROUTE}replay_auth = \"/me\"\n"),
        format!("{sigv4}[policy]\nreplay_auth = \"/me\"\n{ROUTE}"),
        format!("{sigv4}[policy]\nreplay_auth = \"/me\"\n"),
    ] {
        if let Err(said) = load_with(&asked, &[]) {
            assert!(!said.to_string().contains("identity"), "{said}");
        }
    }
    let unasked = format!("{sigv4}{ROUTE}replay_auth = \"\"\n");
    assert_says(&problems(&unasked), &["trust_unverified"]);
}

#[test]
fn what_tokens_leave_open_is_advice() {
    let mixed = KEYS.replace("[{", "[{\"kty\":\"oct\"},{");
    let (_folder, path) = file(&mixed);
    let text = format!("[identity]\nfrom = [\"jwt:sub\"]\n[identity.jwt]\njwks_file = {path:?}\n");
    let advice = |text: &str| load_with(text, &[]).expect("valid").advice;
    let open = advice(&format!("{text}{ROUTE}"));
    assert_eq!(open.len(), 3, "{open:?}");
    assert_says(
        &open.join("\n"),
        &["jwks.json", "issuer", "audience", "left out"],
    );
    fs::write(&path, KEYS).expect("written");
    let closed = advice(&format!("{text}issuer = \"i\"\naudience = \"a\"\n{ROUTE}"));
    assert_eq!(closed, [""; 0]);
}
