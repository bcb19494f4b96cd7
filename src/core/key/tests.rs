use std::sync::Arc;

use http::HeaderValue;
use proptest::prelude::*;
use regex::Regex;

use super::*;
use crate::core::policy as p;

/// The defaults of the contract, section 3, as far as keys are concerned.
fn policy() -> Policy {
    use std::time::Duration;
    Policy {
        key: KeyRule::Optional,
        key_sources: vec![header("idempotency-key")],
        key_syntax: KeySyntax::Either,
        key_format: KeyFormat::Any,
        key_max_length: 255,
        empty_key: EmptyKey::Reject,
        key_required_if: vec![],
        identity: p::Identity {
            from: vec![],
            missing: p::MissingCaller::Reject,
            jwt: None,
        },
        scope: p::Scope::Operation,
        fingerprint: Arc::new(p::FingerprintRule {
            method: true,
            path: true,
            query: p::QueryMode::Exact,
            headers: vec![],
            body: p::BodyMode::Auto,
            ignore: vec![],
            only: vec![],
        }),
        in_flight: p::InFlight::Wait,
        wait_timeout: Duration::from_secs(30),
        max_waiters: 1000,
        mismatch_in_flight: p::MismatchInFlight::Mismatch,
        store_responses: p::StatusSet::EMPTY,
        unknown_responses: p::StatusSet::EMPTY,
        terms: p::Terms {
            retention: Duration::from_secs(1),
            retention_from: p::RetentionFrom::Completion,
            after_expiry: p::AfterExpiry::Execute,
            lease: Duration::from_secs(1),
            unknown: p::UnknownOutcome::HoldForever,
        },
        retry_after: Duration::from_secs(2),
        replay_headers: p::ReplayHeaders::EndToEnd,
        marker: p::Marker {
            header: None,
            miss: None,
            hit: None,
        },
        expiry_header: None,
        max_request_body: 1 << 20,
        max_response_body: 1 << 20,
        stream_types: vec![],
        on_store_failure: p::OnStoreFailure::Reject,
        replay_auth: None,
        errors: p::Errors {
            shape: p::ErrorShape::Problem,
            type_base: String::new(),
            link: None,
        },
    }
}

/// Looks for a key in these headers; the head alone, and the head with a body that holds none, say the same.
fn find(policy: &Policy, headers: &HeaderMap) -> Result<KeyFound, KeyRefused> {
    let query = None;
    let head = Head { headers, query };
    let body = Document::new(BodyKind::Opaque, Bytes::new());
    let found = super::find(policy, head, &body);
    let in_head = find_in_head(policy, head, BodyKind::Opaque);
    assert_eq!(in_head, found.clone().map(Sought::Found));
    found
}

fn header(name: &'static str) -> p::KeySource {
    p::KeySource {
        place: KeyPlace::Header(HeaderName::from_static(name)),
        carrier: p::Carrier::new(name),
    }
}

fn refused(fault: KeyFault, carrier: &str) -> KeyRefused {
    let carrier = p::Carrier::new(carrier);
    KeyRefused { fault, carrier }
}

fn lines(lines: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(
            *name,
            HeaderValue::from_bytes(value).expect("a header value"),
        );
    }
    map
}

fn one(value: &[u8]) -> HeaderMap {
    lines(&[("idempotency-key", value)])
}

fn key(content: &[u8]) -> KeyFound {
    KeyFound::Key(Key(Bytes::copy_from_slice(content)))
}

fn with(change: impl FnOnce(&mut Policy)) -> Policy {
    let mut changed = policy();
    change(&mut changed);
    changed
}

#[test]
fn either_takes_a_quoted_string_and_a_bare_value_for_one_key() {
    let policy = policy();
    for (value, content) in [
        (&b"order-42"[..], &b"order-42"[..]),
        (b"\"order-42\"", b"order-42"),
        (b"7", b"7"),
        (b" a\t", b"a"),
        (b"\"a b,c\"", b"a b,c"),
        (br#""a\"b\\c""#, br#"a"b\c"#),
        (b"\"a\";v=1;w", b"a"),
        (b"a;v=1", b"a;v=1"),
        (br#"a"b"#, br#"a"b"#),
        (b":YWJj:", b":YWJj:"),
        (b"!~", b"!~"),
    ] {
        assert_eq!(
            find(&policy, &one(value)),
            Ok(key(content)),
            "{}",
            value.escape_ascii()
        );
    }
}

#[test]
fn either_refuses_lists_white_space_and_anything_but_visible_ascii() {
    let policy = policy();
    for value in [
        &b"a, b"[..],
        b"a,b",
        b"a b",
        b"a\tb",
        b",",
        b"caf\xc3\xa9",
        b"\xff",
        b"\"abc",
        b"\"",
        b"\"a\"b",
        b"\"a\" b",
        b"\"a\", \"b\"",
        b"\"a\\x\"",
        b"\"caf\xc3\xa9\"",
        b"\"a\";",
        b"\"a\";V=1",
        b"\"a\"\t;v",
    ] {
        assert_eq!(
            find(&policy, &one(value)),
            Err(refused(KeyFault::NotAKey, "idempotency-key")),
            "{}",
            value.escape_ascii()
        );
    }
}

#[test]
fn structured_takes_strings_alone() {
    let policy = with(|p| p.key_syntax = KeySyntax::Structured);
    assert_eq!(find(&policy, &one(b"\"a\"")), Ok(key(b"a")));
    assert_eq!(find(&policy, &one(b"\"a\";q=?0")), Ok(key(b"a")));
    for value in [
        &b"8e03978e-40d5-43e8-bc93-6894a57f9324"[..],
        b"fd4cc3df-4de3-9064-ff21-72ae5b8e7a4a",
        b"123",
        b"1.5",
        b"?1",
        b":YWJj:",
        b"@1659578233",
        b"(\"a\")",
        b"%\"a\"",
        b"\"a\", \"b\"",
        b"\"a",
    ] {
        assert_eq!(
            find(&policy, &one(value)),
            Err(refused(KeyFault::NotAString, "idempotency-key")),
            "{}",
            value.escape_ascii()
        );
    }
}

#[test]
fn raw_takes_the_bytes_as_they_came() {
    let policy = with(|p| p.key_syntax = KeySyntax::Raw);
    for value in [&b"\"a\""[..], b"a", b"a, b", b"\"abc", b"\xff\xfe", b"a\tb"] {
        assert_eq!(
            find(&policy, &one(value)),
            Ok(key(value)),
            "{}",
            value.escape_ascii()
        );
    }
    assert_ne!(find(&policy, &one(b"\"a\"")), find(&policy, &one(b"a")));
}

#[test]
fn a_second_line_is_refused_in_every_syntax_equal_or_not() {
    for syntax in [KeySyntax::Either, KeySyntax::Structured, KeySyntax::Raw] {
        for empty_key in [EmptyKey::Reject, EmptyKey::Bypass] {
            let policy = with(|p| (p.key_syntax, p.empty_key) = (syntax, empty_key));
            for pair in [
                [&b"\"a\""[..], b"\"b\""],
                [b"\"a\"", b"\"a\""],
                [b"\"a\"", b""],
                [b"", b""],
            ] {
                let two = lines(&[("idempotency-key", pair[0]), ("idempotency-key", pair[1])]);
                assert_eq!(
                    find(&policy, &two),
                    Err(refused(KeyFault::Repeated, "idempotency-key"))
                );
            }
        }
    }
}

#[test]
fn an_empty_value_is_refused_or_no_key() {
    for syntax in [KeySyntax::Either, KeySyntax::Structured, KeySyntax::Raw] {
        let reject = with(|p| p.key_syntax = syntax);
        let bypass = with(|p| (p.key_syntax, p.empty_key) = (syntax, EmptyKey::Bypass));
        for value in [&b""[..], b"  \t"] {
            assert_eq!(
                find(&reject, &one(value)),
                Err(refused(KeyFault::Empty, "idempotency-key"))
            );
            assert_eq!(find(&bypass, &one(value)), Ok(KeyFound::Bypassed));
        }
        if syntax != KeySyntax::Raw {
            assert_eq!(
                find(&reject, &one(b"\"\"")),
                Err(refused(KeyFault::Empty, "idempotency-key"))
            );
            assert_eq!(find(&bypass, &one(b"\"\";a")), Ok(KeyFound::Bypassed));
        }
    }
    assert_eq!(find(&policy(), &HeaderMap::new()), Ok(KeyFound::Absent));
    let off = with(|p| p.key = KeyRule::Off);
    assert_eq!(find(&off, &one(b"a, b")), Ok(KeyFound::Absent));
}

#[test]
fn the_limit_counts_bytes_of_content() {
    let policy = with(|p| p.key_max_length = 4);
    assert_eq!(find(&policy, &one(b"abcd")), Ok(key(b"abcd")));
    assert_eq!(find(&policy, &one(b"\"abcd\";x")), Ok(key(b"abcd")));
    assert_eq!(find(&policy, &one(br#""a\\\"d""#)), Ok(key(br#"a\"d"#)));
    assert_eq!(
        find(&policy, &one(b"abcde")),
        Err(refused(KeyFault::TooLong, "idempotency-key"))
    );
    assert_eq!(
        find(&policy, &one(b"\"abcde\"")),
        Err(refused(KeyFault::TooLong, "idempotency-key"))
    );
}

#[test]
fn a_format_looks_at_the_whole_content() {
    let uuid = with(|p| p.key_format = KeyFormat::Uuid);
    let id = b"8e03978e-40d5-43e8-bc93-6894a57f9324";
    assert_eq!(find(&uuid, &one(id)), Ok(key(id)));
    assert_eq!(
        find(&uuid, &one(&id.to_ascii_uppercase())),
        Ok(key(id)),
        "letter case does not count"
    );
    assert_eq!(
        find(&uuid, &one(format!("\"{}\"", id.escape_ascii()).as_bytes())),
        Ok(key(id))
    );
    for bad in [
        "8e03978e-40d5-43e8-bc93-6894a57f9324x",
        "8e03978e-40d5-43e8-bc93-6894a57f932",
        "{8e03978e-40d5-43e8-bc93-6894a57f9324}",
        "urn:uuid:8e03978e-40d5-43e8-bc93-6894a57f9324",
        "8e03978e40d543e8bc936894a57f9324",
        "8e03978g-40d5-43e8-bc93-6894a57f9324",
        "8e03978e-40d543e8--bc93-6894a57f9324",
    ] {
        assert_eq!(
            find(&uuid, &one(bad.as_bytes())),
            Err(refused(KeyFault::Format, "idempotency-key")),
            "{bad}"
        );
    }
    let pattern = Regex::new("^(?:a|bc)$").expect("a pattern");
    let shaped =
        with(|p| (p.key_format, p.key_syntax) = (KeyFormat::Pattern(pattern), KeySyntax::Raw));
    assert_eq!(find(&shaped, &one(b"bc")), Ok(key(b"bc")));
    for bad in [&b"ac"[..], b"abc", b"a\xff"] {
        assert_eq!(
            find(&shaped, &one(bad)),
            Err(refused(KeyFault::Format, "idempotency-key"))
        );
    }
}

#[test]
fn sources_are_tried_in_order_and_the_first_that_has_a_key_counts() {
    let sources = vec![header("x-first"), header("x-second")];
    let policy = with(|p| (p.key_sources, p.empty_key) = (sources, EmptyKey::Bypass));
    let two = |first: &[u8], second: &[u8]| {
        find(&policy, &lines(&[("x-first", first), ("x-second", second)]))
    };
    assert_eq!(find(&policy, &lines(&[("x-second", b"b")])), Ok(key(b"b")));
    assert_eq!(two(b"a", b"\"a\""), Ok(key(b"a")));
    assert_eq!(two(b"a", b"b"), Ok(key(b"a")));
    assert_eq!(two(b"a", b"no key"), Ok(key(b"a")));
    assert_eq!(two(b"", b"b"), Ok(key(b"b")));
    assert_eq!(two(b"a", b""), Ok(key(b"a")));
    assert_eq!(two(b"", b""), Ok(KeyFound::Bypassed));
    assert_eq!(
        two(b"", b"no key"),
        Err(refused(KeyFault::NotAKey, "x-second"))
    );
    assert_eq!(
        two(b"no key", b"b"),
        Err(refused(KeyFault::NotAKey, "x-first"))
    );
    assert_eq!(find(&policy, &one(b"a")), Ok(KeyFound::Absent));
}

#[test]
fn a_derived_key_is_as_the_canonical_digest() {
    let digests = |exact, canonical| Digests {
        exact: [exact; 32],
        canonical: [canonical; 32],
    };
    let derived = Key::derived(&digests(1, 2));
    assert_eq!(derived, Key::derived(&digests(3, 2)));
    assert_ne!(derived, Key::derived(&digests(1, 3)));
    let policy = with(|p| p.key = KeyRule::Derived);
    assert_eq!(find(&policy, &one(b"a, b")), Ok(KeyFound::Absent));
    assert!(required(&policy, &HeaderMap::new()));
}

#[test]
fn a_key_may_be_needed_by_some_requests_only() {
    let entry = |header: &'static str, pattern: &str| RequiredIf {
        header: HeaderName::from_static(header),
        matches: Regex::new(pattern).expect("a pattern"),
    };
    let entries = vec![
        entry("authorization", "^Bearer sk_"),
        entry("x-tier", "gold"),
    ];
    let policy = with(|p| p.key_required_if = entries);
    for (headers, wanted) in [
        (lines(&[("authorization", b"Bearer sk_1")]), true),
        (lines(&[("authorization", b"Bearer sk_\xff")]), true),
        (lines(&[("authorization", b"Bearer user_1")]), false),
        (
            lines(&[
                ("authorization", b"Bearer user_1"),
                ("authorization", b"Bearer sk_1"),
            ]),
            true,
        ),
        (lines(&[("x-tier", b"all gold here")]), true),
        (HeaderMap::new(), false),
    ] {
        assert_eq!(required(&policy, &headers), wanted, "{headers:?}");
        let mut other = policy.clone();
        other.key = KeyRule::Required;
        assert!(required(&other, &headers));
        other.key = KeyRule::Off;
        assert!(!required(&other, &headers));
    }
}

#[test]
fn a_key_is_never_shown() {
    assert_eq!(format!("{:?}", key(b"secret")), "Key(Key(…))");
}

proptest! {
    #[test]
    fn no_value_is_a_surprise(value in proptest::collection::vec(any::<u8>(), 0..40), quoted in any::<bool>()) {
        let text = if quoted { [b"\"", &value[..], b"\""].concat() } else { value };
        let Ok(value) = HeaderValue::from_bytes(&text) else { return Ok(()) };
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", value);
        for syntax in [KeySyntax::Either, KeySyntax::Structured, KeySyntax::Raw] {
            let policy = with(|p| (p.key_syntax, p.key_max_length) = (syntax, 20));
            if let Ok(KeyFound::Key(key)) = find(&policy, &headers) {
                prop_assert!((1..=20).contains(&key.as_bytes().len()));
                if syntax != KeySyntax::Raw {
                    prop_assert!(key.as_bytes().iter().all(|b| b.is_ascii_graphic() || *b == b' '));
                }
            }
        }
    }
}
