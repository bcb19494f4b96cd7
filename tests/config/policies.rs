//! Policies: dialects, layers and what values become.

use std::time::Duration;

use http::StatusCode;
use idem_proxy::core::policy::{
    AfterExpiry, CallerPart, ErrorShape, InFlight, JsonPointer, KeyFormat, KeyPlace, KeyRule,
    KeySyntax, MissingCaller, Policy, QueryMode, ReplayHeaders, RetentionFrom, Scope,
    UnknownOutcome,
};

use crate::common::{ROUTE, assert_says, load, policy, problems};

fn stores(policy: &Policy, code: u16) -> bool {
    policy
        .store_responses
        .contains(StatusCode::from_u16(code).expect("a status"))
}

#[test]
fn the_nearest_layer_wins() {
    // route's own key, [policy]'s key, the route's dialect or else [policy]'s, default
    let text = format!(
        "[policy]\ndialect = \"stripe-v2\"\nerrors = \"problem\"\nmarker_miss = \"first\"\nwait_timeout = \"3s\"\n{ROUTE}"
    );
    let by_policy = policy(&text);
    assert_eq!(
        by_policy.marker.header.as_ref().expect("a marker"),
        "idempotent-replayed"
    );
    assert_eq!(by_policy.marker.miss.as_ref().expect("a value"), "first");
    assert_eq!(by_policy.terms.retention, Duration::from_hours(30 * 24));
    assert_eq!(by_policy.terms.unknown, UnknownOutcome::Release);
    assert_eq!(by_policy.errors.shape, ErrorShape::Problem);

    let by_route = policy(&format!("{text}dialect = \"ietf\"\nretention = \"2h\"\n"));
    assert_eq!(
        by_route.terms.retention,
        Duration::from_hours(2),
        "the route's own key"
    );
    assert_eq!(
        by_route.key_syntax,
        KeySyntax::Structured,
        "the route's dialect"
    );
    assert_eq!(
        by_route.scope,
        Scope::Operation,
        "the route's dialect counts, not [policy]'s"
    );
    assert_eq!(by_route.terms.unknown, UnknownOutcome::HoldForever);
    assert_eq!(by_route.marker.header, None);
    assert_eq!(
        by_route.marker.miss.as_ref().expect("a value"),
        "first",
        "what is given explicitly wins over every dialect"
    );
    assert_eq!(
        by_route.wait_timeout,
        Duration::from_secs(3),
        "no dialect sets this"
    );
}

#[test]
fn the_ietf_dialect_serves_as_it_is() {
    let ietf = policy(&format!("[policy]\ndialect = \"ietf\"\n{ROUTE}"));
    assert_eq!(
        (ietf.key_syntax, ietf.in_flight),
        (KeySyntax::Structured, InFlight::Conflict)
    );
    for (code, kept) in [
        (200, true),
        (302, true),
        (404, true),
        (500, true),
        (401, false),
        (425, false),
        (429, false),
    ] {
        assert_eq!(stores(&ietf, code), kept, "{code}");
    }
}

#[test]
fn every_dialect_serves_and_says_errors_its_own_way() {
    for (dialect, shape) in [
        ("standard", ErrorShape::Problem),
        ("ietf", ErrorShape::Problem),
        ("iri", ErrorShape::Problem),
        ("single-flight", ErrorShape::Problem),
        ("platform", ErrorShape::Platform),
        ("stripe-v1", ErrorShape::Stripe),
        ("stripe-v2", ErrorShape::Stripe),
        ("aws", ErrorShape::AwsXml),
    ] {
        let text = format!("[policy]\ndialect = \"{dialect}\"\n{ROUTE}");
        assert_eq!(policy(&text).errors.shape, shape, "{dialect}");
    }
}

#[test]
fn the_shape_of_errors_is_chosen_by_its_word() {
    for shape in ErrorShape::ALL {
        let text = format!("[policy]\nerrors = \"{}\"\n{ROUTE}", shape.as_str());
        assert_eq!(policy(&text).errors.shape, shape);
    }
    let said = problems("[policy]\nerrors = \"strip\"\n");
    assert_says(&said, &["policy.errors", "did you mean stripe?"]);
}

#[test]
fn a_carrier_is_called_as_it_is_spelt() {
    let sources = "[policy]\nkey_sources = [\"header:X-Request-Token\"]\n";
    for (settings, spelt) in [
        ("", "Idempotency-Key"),
        (sources, "X-Request-Token"),
        ("[policy]\nkey_sources = [\"query:Token\"]\n", "Token"),
        ("[policy]\nkey_sources = [\"form:a:b\"]\n", "a:b"),
        ("[policy]\nkey_sources = [\"json:/a~1b\"]\n", "/a~1b"),
    ] {
        let carrier = policy(&format!("{settings}{ROUTE}")).key_carrier();
        assert_eq!(carrier.expect("a source").as_str(), spelt);
    }
}

#[test]
fn keys_may_stand_in_four_kinds_of_places() {
    let sources = |settings: &str| {
        let places = policy(&format!("[policy]\n{settings}\n{ROUTE}")).key_sources;
        places
            .into_iter()
            .map(|source| source.place)
            .collect::<Vec<_>>()
    };
    let pointer = |text| KeyPlace::Json(JsonPointer::parse(text).expect("a pointer"));
    let listed = "key_sources = [\"header:X-K\", \"query:a b\", \"json:/m/k\", \"form:k\"]";
    let header = KeyPlace::Header("x-k".parse().expect("a name"));
    assert_eq!(
        sources(listed),
        [
            header,
            KeyPlace::Query("a b".into()),
            pointer("/m/k"),
            KeyPlace::Form("k".into())
        ]
    );
    let [form, query] = [KeyPlace::Form, KeyPlace::Query].map(|place| place("ClientToken".into()));
    assert_eq!(
        sources("dialect = \"aws\""),
        [
            form,
            query,
            pointer("/clientToken"),
            pointer("/ClientToken")
        ]
    );
}

#[test]
fn what_carries_a_key_is_no_part_of_the_fingerprint() {
    let listed = "fingerprint = { headers = [\"X-K\", \"X-A\"] }\n";
    let rule = |sources: &str| {
        policy(&format!("[policy]\n{listed}{sources}{ROUTE}"))
            .fingerprint
            .headers
            .clone()
    };
    assert_eq!(rule(""), ["x-k", "x-a"]);
    assert_eq!(
        rule("key_sources = [\"query:x\", \"header:x-k\"]\n"),
        ["x-a"]
    );
}

#[test]
fn a_derived_key_needs_a_caller() {
    let derived = policy(&format!("[policy]\nkey = \"derived\"\n{ROUTE}"));
    assert_eq!(derived.key, KeyRule::Derived);
    let anonymous = "identity = { missing = \"anonymous\" }\n";
    let said = problems(&format!("{ROUTE}key = \"derived\"\n{anonymous}"));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_says(
        &said,
        &["proxy.toml:6: ", "route[orders].key", "identity.missing"],
    );
    let everywhere = "[identity]\nmissing = \"anonymous\"\n[policy]\nkey = \"derived\"\n";
    let said = problems(&format!("{everywhere}{ROUTE}"));
    assert_eq!(said.lines().count(), 1, "said once: {said}");
    assert_says(&said, &["proxy.toml:4: ", "policy.key"]);
}

#[test]
fn a_platform_fingerprint_leaves_the_query_and_headers_out() {
    let text = format!(
        "[policy]\ndialect = \"platform\"\n[policy.fingerprint]\nheaders = [\"x-a\"]\n\
         ignore = [\"/at\"]\n{ROUTE}"
    );
    let platform = policy(&text);
    assert_eq!(platform.fingerprint.query, QueryMode::Off);
    assert_eq!(platform.fingerprint.headers, ["x-a"]);
    assert_eq!(platform.fingerprint.ignore.len(), 1);
    assert_eq!(platform.terms.retention_from, RetentionFrom::Start);
    assert_eq!(platform.replay_headers, ReplayHeaders::None);
    let own = policy(&format!(
        "{text}dialect = \"ietf\"\nfingerprint = {{ body = \"raw\" }}\n"
    ));
    assert_eq!(
        own.fingerprint.query,
        QueryMode::Exact,
        "the route's dialect"
    );
    assert_eq!(own.fingerprint.headers, ["x-a"], "given explicitly");
    assert_eq!(own.fingerprint.ignore.len(), 1, "no dialect sets this");
}

#[test]
fn a_route_overrides_identity_and_fingerprint_key_by_key() {
    let text = format!(
        "[identity]\nfrom = [\"peer-ip\"]\nmissing = \"anonymous\"\n{ROUTE}[route.identity]\nfrom = [\"header:X-Caller\", \"cookie:s\"]\n\
         [route.fingerprint]\nquery = \"sorted\"\n"
    );
    let own = policy(&text);
    let parts = [
        CallerPart::Header("x-caller".parse().expect("a name")),
        CallerPart::Cookie("s".into()),
    ];
    assert_eq!(own.identity.from, parts);
    assert_eq!(own.identity.missing, MissingCaller::Anonymous);
    assert_eq!(own.fingerprint.query, QueryMode::Sorted);
    assert!(own.fingerprint.path);
}

#[test]
fn a_pattern_matches_the_whole_key() {
    for (pattern, yes, no) in [
        ("a|b", "b", "ab"),
        ("[0-9]{3}", "123", "1234"),
        ("(?i)abc", "ABC", "ABCD"),
        ("(?m)a", "a", "a\nb"),
    ] {
        let policy = policy(&format!("[policy]\nkey_format = '{pattern}'\n{ROUTE}"));
        let KeyFormat::Pattern(regex) = policy.key_format else {
            panic!("{pattern} is no pattern");
        };
        assert!(regex.is_match(yes), "{pattern} {yes}");
        assert!(!regex.is_match(no), "{pattern} {no}");
    }
    assert!(matches!(
        policy(&format!("[policy]\nkey_format = \"uuid\"\n{ROUTE}")).key_format,
        KeyFormat::Uuid
    ));
}

#[test]
fn docs_become_types_and_links() {
    let errors = policy(&format!(
        "[policy]\ndocs_url = \"https://d.example/i?x=1\"\n{ROUTE}"
    ))
    .errors;
    assert_eq!(errors.type_base, "https://d.example/i?x=1#");
    assert_eq!(
        errors.link.expect("a link"),
        "<https://d.example/i?x=1>; rel=\"describedby\""
    );
}

#[test]
fn an_empty_marker_is_none() {
    let none = policy(&format!(
        "[policy]\nmarker_header = \"\"\nmarker_miss = \"\"\n{ROUTE}"
    ))
    .marker;
    assert_eq!((none.header, none.miss), (None, None));
    assert!(none.hit.is_some());
}

#[test]
fn a_key_is_refused_after_its_time_only_where_that_is_asked_for() {
    let after = |text: &str| {
        policy(&format!("[policy]\n{text}{ROUTE}"))
            .terms
            .after_expiry
    };
    assert_eq!(after(""), AfterExpiry::Execute);
    assert_eq!(after("refuse_for = \"1h\""), AfterExpiry::Execute);
    let days = |days: u64| AfterExpiry::RefuseFor(Duration::from_hours(24 * days));
    assert_eq!(after("after_expiry = \"refuse\""), days(30));
    assert_eq!(
        after("after_expiry = \"refuse\"\nrefuse_for = \"7d\""),
        days(7)
    );
    let said = problems("[policy]\nafter_expiry = \"refused\"\nrefuse_for = \"0s\"");
    assert_says(
        &said,
        &["did you mean refuse?", "policy.refuse_for = \"0s\""],
    );
}

#[test]
fn paths_of_the_proxys_own_are_paths() {
    let config = load("[server]\npolicy_path = \"/a//b/../%7Ec/\"");
    assert_eq!(config.server.policy_path.as_deref(), Some("/a/~c"));
    assert_eq!(load("").server.policy_path, None);
    let asked = policy(&format!("[policy]\nreplay_auth = \"/me?a=b\"{ROUTE}")).replay_auth;
    assert_eq!(asked.expect("a path"), "/me?a=b");
    for (text, path) in [
        ("[server]\npolicy_path = \"policy\"", "server.policy_path"),
        ("[server]\npolicy_path = \"/p?a\"", "server.policy_path"),
        ("[server]\npolicy_path = \"/p#a\"", "server.policy_path"),
        (
            "[policy]\nreplay_auth = \"http://x/me\"",
            "policy.replay_auth",
        ),
        ("[policy]\nreplay_auth = \"/m e\"", "policy.replay_auth"),
        (
            "[policy]\nreplay_auth = \"/m\\u00e9\"",
            "policy.replay_auth",
        ),
        ("[policy]\nreplay_auth = \"*\"", "policy.replay_auth"),
    ] {
        assert_says(&problems(text), &[path, "allowed: a path"]);
    }
}

#[test]
fn the_published_policy_has_every_policy_key_and_nothing_else() {
    let text = format!(
        "[upstreams.billing]\nurl = \"http://billing.internal\"\n{ROUTE}upstream = \"billing\"\n"
    );
    let document: serde_json::Value =
        serde_json::from_slice(load(&text).published.json()).expect("JSON");
    let route = document["routes"][0].as_object().expect("an object");
    let example: toml::Table = include_str!("../../config.example.toml")
        .parse()
        .expect("TOML");
    let mut wanted: Vec<&str> = example["policy"]
        .as_table()
        .expect("a table")
        .keys()
        .map(String::as_str)
        .chain(["name", "methods", "path", "identity"])
        .collect();
    wanted.sort_unstable();
    let mut there: Vec<&str> = route.keys().map(String::as_str).collect();
    there.sort_unstable();
    assert_eq!(there, wanted);
    for table in ["identity", "fingerprint"] {
        assert!(route[table].is_object(), "{table}");
    }
    assert!(!document.to_string().contains("billing"), "{document}");
}

#[test]
fn an_unproved_caller_is_taken_where_the_upstream_is_asked() {
    let text = format!("[identity]\nfrom = [\"sigv4\"]\n[policy]\nreplay_auth = \"/me\"{ROUTE}");
    assert_eq!(policy(&text).identity.from, [CallerPart::SigV4]);
    let said = problems(&text.replace("/me", ""));
    assert_says(&said, &["identity.from", "trust_unverified"]);
}
