use std::sync::Arc;

use http::{HeaderValue, Method, header};
use proptest::prelude::*;

use super::*;
use crate::core::{
    fingerprint::Fingerprint,
    fixtures,
    key::{self, Head, Key, KeyFound, Sought},
    policy::{BodyMode, Carrier, EmptyKey, FingerprintRule, KeySyntax, Policy, QueryMode},
    problem::KeyRefused,
};

/// A source as it is written in a configuration.
fn source(text: &str) -> KeySource {
    let (kind, name) = text.split_once(':').expect("a kind");
    let place = match kind {
        "header" => KeyPlace::Header(name.parse().expect("a header name")),
        "query" => KeyPlace::Query(name.into()),
        "form" => KeyPlace::Form(name.into()),
        _ => KeyPlace::Json(JsonPointer::parse(name).expect("a pointer")),
    };
    let carrier = Carrier::new(name);
    KeySource { place, carrier }
}

fn policy(sources: &[&str]) -> Policy {
    let key_sources = sources.iter().map(|text| source(text)).collect();
    Policy {
        key_sources,
        ..fixtures::policy()
    }
}

const EVERYWHERE: [&str; 4] = ["header:k", "query:k", "form:k", "json:/k"];
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// A request as these tests vary it; an empty `content_type` is none.
#[derive(Clone, Debug, Default)]
struct Request {
    header: Option<&'static str>,
    query: Option<String>,
    content_type: &'static str,
    body: Vec<u8>,
}

fn query(text: &str) -> Request {
    Request {
        query: Some(text.into()),
        ..Request::default()
    }
}

fn typed(content_type: &'static str, body: &str) -> Request {
    Request {
        content_type,
        body: body.into(),
        ..Request::default()
    }
}

impl Request {
    fn with_header(mut self, value: &'static str) -> Self {
        self.header = Some(value);
        self
    }

    fn with_query(mut self, text: &str) -> Self {
        self.query = Some(text.into());
        self
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(value) = self.header {
            headers.insert("k", HeaderValue::from_static(value));
        }
        if !self.content_type.is_empty() {
            let value = HeaderValue::from_static(self.content_type);
            headers.insert(header::CONTENT_TYPE, value);
        }
        headers
    }

    fn document(&self, policy: &Policy) -> Document {
        let kind = BodyKind::of(&policy.key_sources, &self.headers());
        Document::new(kind, self.body.clone().into())
    }

    /// What the whole request says; what the head says alone is never another key.
    fn key(&self, policy: &Policy) -> Result<KeyFound, KeyRefused> {
        let headers = self.headers();
        let head = Head {
            headers: &headers,
            query: self.query.as_deref(),
        };
        let found = key::find(policy, head, &self.document(policy));
        let kind = BodyKind::of(&policy.key_sources, &headers);
        match key::find_in_head(policy, head, kind) {
            Ok(Sought::InBody) => assert_ne!(kind, BodyKind::Opaque),
            Ok(Sought::Found(early)) => assert_eq!(Ok(early), found),
            Err(early) => assert_eq!(Err(early), found),
        }
        found
    }

    fn text(&self, policy: &Policy) -> Option<String> {
        match self.key(policy) {
            Ok(KeyFound::Key(key)) => Some(String::from_utf8_lossy(key.as_bytes()).into()),
            _ => None,
        }
    }

    fn print(&self, policy: &Policy) -> Fingerprint {
        let document = self.document(policy);
        let whole = || Bytes::from(self.body.clone());
        Fingerprint::new(
            &policy.fingerprint,
            &Method::POST,
            "/orders",
            query_without(&policy.key_sources, self.query.as_deref()).as_deref(),
            &self.headers(),
            document.without(&policy.key_sources).unwrap_or_else(whole),
        )
    }
}

fn fault(fault: KeyFault, carrier: &str) -> Result<KeyFound, KeyRefused> {
    let carrier = Carrier::new(carrier);
    Err(KeyRefused { fault, carrier })
}

fn same(policy: &Policy, first: &Request, second: &Request) -> bool {
    first.print(policy).same_as(&second.print(policy))
}

#[test]
fn every_carrier_carries_the_same_key() {
    let policy = policy(&EVERYWHERE);
    for request in [
        Request::default().with_header("a-1"),
        Request::default().with_header("\"a-1\""),
        query("x=1&k=a-1"),
        query("%6b=%61-1"),
        query("k=%22a-1%22"),
        typed(FORM, "x=1&k=a-1&y"),
        typed(
            "Application/X-WWW-Form-Urlencoded; charset=utf-8",
            "k=a%2D1",
        ),
        typed(JSON, r#"{"x":1,"k":"a-1"}"#),
        typed("application/vnd.api+json", r#"{"k":"\u0061-1"}"#),
        typed("application/x-amz-json-1.1", r#"{"k":"\"a-1\""}"#),
        typed("", r#" {"\u006b" : "a-1"} "#),
    ] {
        assert_eq!(request.text(&policy).as_deref(), Some("a-1"), "{request:?}");
    }
}

#[test]
fn what_is_no_carrier_carries_nothing() {
    let policy = policy(&EVERYWHERE);
    for request in [
        Request::default(),
        query(""),
        query("K=a&kk=a&=k"),
        typed("text/plain", "k=a"),
        typed("text/plain", r#"{"k":"a"}"#),
        typed(JSON, "k=a"),
        typed(FORM, r#"{"k":"a"}"#),
        typed("", "k=a"),
        typed(JSON, ""),
        typed(JSON, r#"{"k":null}"#),
        typed(JSON, r#"{"x":{"k":"a"}}"#),
        typed(JSON, r#"["k","a"]"#),
        typed(JSON, r#""k""#),
        typed(JSON, r#"{"k":"a"}}"#),
        typed(JSON, "\u{feff}{\"k\":\"a\"}"),
    ] {
        assert_eq!(request.key(&policy), Ok(KeyFound::Absent), "{request:?}");
    }
    let mut deep = typed(JSON, r#"{"k":"a","x":"#);
    deep.body.extend_from_slice("[".repeat(200).as_bytes());
    deep.body.extend_from_slice("]".repeat(200).as_bytes());
    deep.body.push(b'}');
    assert_eq!(deep.text(&policy).as_deref(), Some("a"));
    deep.body.push(b'}');
    assert_eq!(deep.key(&policy), Ok(KeyFound::Absent));
}

#[test]
fn bodies_that_are_compressed_or_typed_twice_are_not_read() {
    let sources = policy(&EVERYWHERE).key_sources;
    let mut headers = typed(JSON, "").headers();
    assert_eq!(BodyKind::of(&sources, &headers), BodyKind::Json);
    headers.insert("content-encoding", HeaderValue::from_static("gzip"));
    assert_eq!(BodyKind::of(&sources, &headers), BodyKind::Opaque);
    headers.insert("content-encoding", HeaderValue::from_static("identity"));
    assert_eq!(BodyKind::of(&sources, &headers), BodyKind::Json);
    headers.append("content-type", HeaderValue::from_static(FORM));
    assert_eq!(BodyKind::of(&sources, &headers), BodyKind::Opaque);
}

#[test]
fn bodies_are_read_only_for_what_may_stand_in_them() {
    let kind = |sources: &[&str], content_type| {
        BodyKind::of(
            &policy(sources).key_sources,
            &typed(content_type, "").headers(),
        )
    };
    assert_eq!(kind(&["header:k", "query:k"], JSON), BodyKind::Opaque);
    assert_eq!(kind(&["form:k"], JSON), BodyKind::Opaque);
    assert_eq!(kind(&["form:k"], ""), BodyKind::Opaque);
    assert_eq!(kind(&["form:k"], FORM), BodyKind::Form);
    assert_eq!(kind(&["json:/k"], FORM), BodyKind::Opaque);
    assert_eq!(kind(&["json:/k"], ""), BodyKind::Json);
    assert_eq!(kind(&["json:/k"], "multipart/form-data"), BodyKind::Opaque);
}

#[test]
fn twice_is_refused_whether_equal_or_not() {
    let policy = policy(&EVERYWHERE);
    for request in [
        query("k=a&k=b"),
        query("k=a&%6b=a"),
        query("k&k=a"),
        typed(FORM, "k=a&x&k=a"),
    ] {
        let wanted = fault(KeyFault::Repeated, "k");
        assert_eq!(request.key(&policy), wanted, "{request:?}");
    }
    for body in [
        r#"{"k":"a","k":"a"}"#,
        r#"{"k":"a", "x":{"k":1} , "\u006b":null}"#,
    ] {
        let wanted = fault(KeyFault::Repeated, "/k");
        assert_eq!(typed(JSON, body).key(&policy), wanted, "{body}");
    }
    // What else stands twice is no matter of the key's.
    let body = r#"{"x":1,"k":"a","x":{"k":1,"k":2}}"#;
    assert_eq!(typed(JSON, body).text(&policy).as_deref(), Some("a"));
}

#[test]
fn the_rules_of_keys_hold_in_every_carrier() {
    let mut policy = policy(&EVERYWHERE);
    policy.key_max_length = 3;
    for (value, wanted) in [
        ("a b", KeyFault::NotAKey),
        ("abcd", KeyFault::TooLong),
        ("\u{e9}", KeyFault::NotAKey),
        ("", KeyFault::Empty),
    ] {
        let plus = value.replace(' ', "+");
        for (request, carrier) in [
            (query(&format!("k={plus}")), "k"),
            (typed(FORM, &format!("k={plus}")), "k"),
            (typed(JSON, &format!(r#"{{"k":"{value}"}}"#)), "/k"),
        ] {
            assert_eq!(request.key(&policy), fault(wanted, carrier), "{request:?}");
        }
    }
    for other in ["1", "true", "{}", "[\"a\"]"] {
        let request = typed(JSON, &format!(r#"{{"k":{other}}}"#));
        assert_eq!(request.key(&policy), fault(KeyFault::NotText, "/k"));
    }
    assert_eq!(query("k=%4").key(&policy), fault(KeyFault::NotEncoded, "k"));
    policy.key_syntax = KeySyntax::Raw;
    assert_eq!(query("k=a+b").text(&policy).as_deref(), Some("a b"));
    assert_eq!(
        typed(JSON, r#"{"k":" \n"}"#).text(&policy).as_deref(),
        Some(" \n")
    );
    policy.key_syntax = KeySyntax::Structured;
    assert_eq!(query("k=a").key(&policy), fault(KeyFault::NotAString, "k"));
    assert_eq!(query("k=\"a\"").text(&policy).as_deref(), Some("a"));
}

#[test]
fn the_first_source_that_has_a_key_counts() {
    let everywhere = policy(&EVERYWHERE);
    let body = typed(FORM, "k=in-form");
    let both = body.clone().with_query("k=in-query");
    let all = both.clone().with_header("in-header");
    for (request, wanted) in [(&all, "in-header"), (&both, "in-query"), (&body, "in-form")] {
        assert_eq!(request.text(&everywhere).as_deref(), Some(wanted));
    }
    let turned = policy(&["json:/k", "form:k", "query:k", "header:k"]);
    for request in [&all, &both, &body] {
        assert_eq!(request.text(&turned).as_deref(), Some("in-form"));
    }
    let json = typed(JSON, r#"{"k":"in-json"}"#).with_query("k=in-query");
    assert_eq!(json.text(&turned).as_deref(), Some("in-json"));
    assert_eq!(json.text(&everywhere).as_deref(), Some("in-query"));
    assert_eq!(query("k=q").text(&turned).as_deref(), Some("q"));
}

#[test]
fn an_empty_value_is_passed_over_or_refused() {
    let mut policy = policy(&["form:k", "query:k"]);
    let request = typed(FORM, "k=").with_query("k=a");
    assert_eq!(request.key(&policy), fault(KeyFault::Empty, "k"));
    policy.empty_key = EmptyKey::Bypass;
    assert_eq!(request.text(&policy).as_deref(), Some("a"));
    for request in [typed(FORM, "k"), query("k"), query("k=")] {
        assert_eq!(request.key(&policy), Ok(KeyFound::Bypassed));
    }
}

#[test]
fn the_head_alone_is_enough_where_it_comes_first() {
    let (early, late) = (policy(&EVERYWHERE), policy(&["json:/k", "header:k"]));
    let request = typed(JSON, "{}").with_header("a");
    let headers = request.headers();
    let head = Head {
        headers: &headers,
        query: None,
    };
    let seek = |policy, kind| key::find_in_head(policy, head, kind);
    assert!(matches!(
        seek(&early, BodyKind::Json),
        Ok(Sought::Found(KeyFound::Key(_)))
    ));
    assert_eq!(seek(&late, BodyKind::Json), Ok(Sought::InBody));
    assert!(matches!(
        seek(&late, BodyKind::Opaque),
        Ok(Sought::Found(KeyFound::Key(_)))
    ));
}

#[test]
fn what_carries_the_key_is_left_out_of_the_fingerprint() {
    let policy = policy(&["header:k", "query:k", "form:k", "json:/k", "json:/meta/k"]);
    let json = |body: &str| typed(JSON, body);
    for (first, second) in [
        (json(r#"{"a":1}"#), json(r#"{"k":"x","a":1}"#)),
        (
            json(r#"{"a":1}"#),
            json(r#"{"a":1, "k":null}"#).with_header("x"),
        ),
        (
            json(r#"{"a":1,"meta":{}}"#),
            json(r#"{"meta":{"k":5},"k":"x","a":1.0}"#),
        ),
        (json(r#"{"a":1}"#), json(r#"{"a":1}"#).with_query("k=x")),
        (
            json(r#"{"a":1}"#).with_query("b=2"),
            json(r#"{"a":1}"#).with_query("k=x&b=2"),
        ),
        (typed(FORM, "a=1&b=2"), typed(FORM, "a=1&k=x&b=2")),
        (typed(FORM, ""), typed(FORM, "k=x&k=y")),
        (typed("", r#"{"a":1}"#), typed("", r#"{"a":1, "k":"x"}"#)),
        (
            typed("application/x-amz-json-1.0", r#"{"a":1}"#),
            typed("application/x-amz-json-1.0", r#"{"k":"x", "a":1}"#),
        ),
    ] {
        assert!(same(&policy, &first, &second), "{first:?} {second:?}");
    }
    for (first, second) in [
        (json(r#"{"a":1}"#), json(r#"{"a":2,"k":"x"}"#)),
        (json(r#"{"a":{"k":"x"}}"#), json(r#"{"a":{"k":"y"}}"#)),
        (json("{}"), json("").with_header("x")),
        (typed(FORM, "a=1"), typed(FORM, "b=1&k=x")),
        (typed(FORM, "a=1"), typed(JSON, r#"{"k":"x"}"#)),
        (query("b=1"), query("b=2&k=x")),
        (query("k=x&b=1"), query("K=x&b=1")),
        // What is not read for keys counts whole.
        (typed("text/plain", "k=a"), typed("text/plain", "k=b")),
        (json(r#"{"k":"a","k":"b"}"#), json(r#"{"k":"a","k":"c"}"#)),
    ] {
        assert!(!same(&policy, &first, &second), "{first:?} {second:?}");
    }
}

fn rules() -> impl Strategy<Value = FingerprintRule> {
    let bodies = prop_oneof![
        Just(BodyMode::Auto),
        Just(BodyMode::Json),
        Just(BodyMode::Form),
        Just(BodyMode::Raw),
        Just(BodyMode::Off)
    ];
    let queries = prop_oneof![
        Just(QueryMode::Exact),
        Just(QueryMode::Sorted),
        Just(QueryMode::Off)
    ];
    (bodies, queries).prop_map(|(body, query)| FingerprintRule {
        query,
        body,
        ..(*fixtures::policy().fingerprint).clone()
    })
}

proptest! {
    /// The same request with its key in every place, in turn and together.
    #[test]
    fn where_a_key_stands_never_changes_the_fingerprint(
        rule in rules(),
        pairs in proptest::collection::vec("[a-j]=[a-z%+]{0,3}", 1..4),
        at in 0_usize..4,
        is_form in any::<bool>(),
        places in 0_u8..8,
    ) {
        let mut policy = policy(&EVERYWHERE);
        policy.fingerprint = Arc::new(rule);
        let at = at.min(pairs.len());
        let with = |pair: &str, joint: &str, list: &[String]| {
            let mut list = list.to_vec();
            list.insert(at, pair.into());
            list.join(joint)
        };
        let members: Vec<String> = (0..).zip(&pairs).map(|(n, pair): (u8, _)| format!(r#""m{n}":"{pair}""#)).collect();
        let plain = if is_form {
            typed(FORM, &pairs.join("&"))
        } else {
            typed(JSON, &format!("{{{}}}", members.join(",")))
        };
        let plain = plain.with_query(&pairs.join("&"));
        let mut keyed = plain.clone();
        if places & 1 != 0 {
            keyed.header = Some("a");
        }
        if places & 2 != 0 {
            keyed.query = Some(with("k=a", "&", &pairs));
        }
        if places & 4 != 0 {
            keyed.body = if is_form {
                with("k=a", "&", &pairs).into()
            } else {
                format!("{{{}}}", with(r#""k":"a""#, ",", &members)).into()
            };
        }
        prop_assert!(same(&policy, &plain, &keyed), "{:?}", keyed);
        let found = keyed.text(&policy);
        prop_assert_eq!(found.as_deref(), (places != 0).then_some("a"));
        let derived = |request: &Request| Key::derived(&request.print(&policy).digests());
        prop_assert!(derived(&plain) == derived(&keyed));
    }

    #[test]
    fn no_request_is_a_surprise(
        body in proptest::collection::vec(any::<u8>(), 0..60),
        near in "[k\"{}:,a\\[\\]&=%+n0 \\\\]{0,24}",
        query in "[k=&%+a]{0,12}",
        kind in 0_usize..4,
    ) {
        let policy = policy(&["query:k", "json:/k", "json:/k/0/k", "form:k", "header:k"]);
        for body in [body, near.into_bytes()] {
            let request = Request {
                header: None,
                query: Some(query.clone()),
                content_type: [JSON, FORM, "", "text/plain"][kind],
                body,
            };
            let found = request.key(&policy);
            if let Ok(KeyFound::Key(key)) = &found {
                prop_assert!((1..=policy.key_max_length).contains(&key.as_bytes().len()));
            }
            // Once taken out, nothing is left to be found.
            let document = request.document(&policy);
            if let Some(rest) = document.without(&policy.key_sources) {
                let again = Document::new(document.kind, rest);
                prop_assert_eq!(again.field("k"), Ok(None));
                prop_assert_eq!(again.string(&JsonPointer::parse("/k").expect("a pointer")), Ok(None));
                prop_assert!(again.kind == document.kind, "what is left is still read as it was");
            }
        }
    }
}
