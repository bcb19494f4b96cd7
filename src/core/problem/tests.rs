use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::core::record::RecordId;

/// A status, a code, and what else the shape says.
type Platform = (u16, &'static str, bool);
type Stripe = (u16, &'static str, &'static str);
type Aws = (u16, &'static str);

const INVALID: &str = "invalid_request_error";
const IDEMPOTENCY: &str = "idempotency_error";
const API: &str = "api_error";
const IN_USE: &str = "idempotency_key_in_use";

/// Every problem, and how each shape but the first says it.
#[rustfmt::skip]
fn table() -> Vec<(Problem, &'static str, Platform, Stripe, Aws)> {
    use Problem as P;
    let second = Duration::from_secs(1);
    let carrier = Carrier::new("X-Key");
    let refused = KeyRefused { fault: KeyFault::Empty, carrier: carrier.clone() };
    let unknown = |left| P::OutcomeUnknown { left, retry_after: second };
    let created = StatusCode::CREATED;
    vec![
        (P::KeyMissing { carrier: Some(carrier) }, "key-missing", (400, "IDEMPOTENCY_KEY_REQUIRED", false), (400, INVALID, "key_missing"), (400, "MissingParameter")),
        (P::KeyInvalid(refused), "key-invalid", (422, "VALIDATION_FAILED", false), (400, INVALID, "key_invalid"), (400, "InvalidParameterValue")),
        (P::CallerMissing, "caller-missing", (401, "CALLER_REQUIRED", false), (401, INVALID, "caller_missing"), (401, "AuthFailure")),
        (P::InFlight { retry_after: second }, "in-flight", (409, "CONFLICT", true), (409, IDEMPOTENCY, IN_USE), (503, "Unavailable")),
        (unknown(HoldLeft::For(second)), "outcome-unknown", (409, "CONFLICT", true), (409, IDEMPOTENCY, IN_USE), (503, "Unavailable")),
        (unknown(HoldLeft::Forever), "outcome-unknown", (409, "CONFLICT", true), (409, IDEMPOTENCY, IN_USE), (503, "Unavailable")),
        (P::ResponseNotRetained { original_status: created }, "response-not-retained", (409, "CONFLICT", false), (409, INVALID, "response_not_retained"), (409, "IncorrectState")),
        (P::KeyExpired, "key-expired", (409, "CONFLICT", false), (400, IDEMPOTENCY, "key_expired"), (400, "InvalidParameterValue")),
        (P::BodyTooLarge { limit: 1 }, "body-too-large", (413, "REQUEST_TOO_LARGE", false), (413, INVALID, "body_too_large"), (413, "RequestEntityTooLarge")),
        (P::KeyReused, "key-reused", (409, "CONFLICT", false), (400, IDEMPOTENCY, "key_reused"), (400, "IdempotentParameterMismatch")),
        (P::NoStore, "no-store", (501, "IDEMPOTENCY_NOT_SUPPORTED", false), (501, API, "no_store"), (501, "UnsupportedOperation")),
        (P::UpstreamUnreachable, "upstream-unreachable", (502, "UPSTREAM_UNREACHABLE", true), (502, API, "upstream_unreachable"), (502, "InternalError")),
        (P::UpstreamFailed, "upstream-failed", (502, "UPSTREAM_FAILED", true), (502, API, "upstream_failed"), (502, "InternalError")),
        (P::UpstreamTimeout, "upstream-timeout", (504, "UPSTREAM_TIMEOUT", true), (504, API, "upstream_timeout"), (504, "InternalError")),
        (P::StoreUnavailable, "store-unavailable", (503, "UNAVAILABLE", true), (503, API, "store_unavailable"), (503, "Unavailable")),
        (P::StoreFull, "store-full", (503, "IDEMPOTENCY_STORE_FULL", true), (503, API, "store_full"), (503, "Unavailable")),
        (P::Overloaded, "overloaded", (503, "OVERLOADED", true), (503, API, "overloaded"), (503, "RequestLimitExceeded")),
        (P::BadRequest("This \"is\" <wrong> & odd."), "bad-request", (400, "BAD_REQUEST", false), (400, INVALID, "bad_request"), (400, "InvalidRequest")),
        (P::MethodNotAllowed, "method-not-allowed", (405, "METHOD_NOT_ALLOWED", false), (405, INVALID, "method_not_allowed"), (405, "UnsupportedOperation")),
        (P::RequestTimeout, "request-timeout", (408, "REQUEST_TIMEOUT", true), (408, INVALID, "request_timeout"), (408, "RequestTimeout")),
        (P::HeadTooLarge, "head-too-large", (431, "HEAD_TOO_LARGE", false), (431, INVALID, "head_too_large"), (431, "InvalidRequest")),
        (P::TargetTooLong, "target-too-long", (414, "TARGET_TOO_LONG", false), (414, INVALID, "target_too_long"), (414, "InvalidRequest")),
        (P::LoopDetected, "loop-detected", (508, "LOOP_DETECTED", false), (508, API, "loop_detected"), (508, "InternalError")),
        (P::ExpectationFailed, "expectation-failed", (417, "EXPECTATION_FAILED", false), (417, INVALID, "expectation_failed"), (417, "InvalidRequest")),
    ]
}

/// Of a problem document: status, code, `retryable`, `reuse_key`.
#[rustfmt::skip]
const DOCUMENTS: &[(&str, u16, &str, bool, Option<bool>)] = &[
    ("key-missing", 400, "IDEMPOTENCY_KEY_REQUIRED", false, None),
    ("key-invalid", 400, "IDEMPOTENCY_KEY_INVALID", false, None),
    ("caller-missing", 401, "CALLER_REQUIRED", false, Some(true)),
    ("in-flight", 409, "IDEMPOTENCY_IN_FLIGHT", true, Some(true)),
    ("outcome-unknown", 409, "IDEMPOTENCY_OUTCOME_UNKNOWN", true, Some(true)), // false where the hold has no end
    ("response-not-retained", 409, "IDEMPOTENCY_RESPONSE_NOT_RETAINED", false, Some(false)),
    ("key-expired", 409, "IDEMPOTENCY_KEY_EXPIRED", false, Some(false)),
    ("body-too-large", 413, "REQUEST_TOO_LARGE", false, Some(true)),
    ("key-reused", 422, "IDEMPOTENCY_KEY_REUSED", false, Some(false)),
    ("no-store", 501, "IDEMPOTENCY_NOT_SUPPORTED", false, Some(true)),
    ("upstream-unreachable", 502, "UPSTREAM_UNREACHABLE", true, Some(true)),
    ("upstream-failed", 502, "UPSTREAM_FAILED", true, Some(true)),
    ("upstream-timeout", 504, "UPSTREAM_TIMEOUT", true, Some(true)),
    ("store-unavailable", 503, "IDEMPOTENCY_STORE_UNAVAILABLE", true, Some(true)),
    ("store-full", 503, "IDEMPOTENCY_STORE_FULL", true, Some(true)),
    ("overloaded", 503, "OVERLOADED", true, Some(true)),
    ("bad-request", 400, "BAD_REQUEST", false, None),
    ("method-not-allowed", 405, "METHOD_NOT_ALLOWED", false, None),
    ("request-timeout", 408, "REQUEST_TIMEOUT", true, Some(true)),
    ("target-too-long", 414, "TARGET_TOO_LONG", false, None),
    ("head-too-large", 431, "HEAD_TOO_LARGE", false, None),
    ("loop-detected", 508, "LOOP_DETECTED", false, None),
    ("expectation-failed", 417, "EXPECTATION_FAILED", false, None),
];

fn errors(shape: ErrorShape) -> Errors {
    Errors {
        shape,
        type_base: "urn:idem-proxy:problem:".into(),
        link: None,
    }
}

fn record() -> ShortId {
    RecordId::from_bytes([0xa5; 32]).short()
}

/// The body as text, once its media type is the one that is wanted.
fn text(problem: &Problem, shape: ErrorShape, record: Option<ShortId>, wanted: &str) -> String {
    let (media_type, body) = problem.body(&errors(shape), record);
    assert_eq!(media_type, wanted, "{problem:?}");
    String::from_utf8(body.to_vec()).expect("UTF-8")
}

fn json(problem: &Problem, shape: ErrorShape, wanted: &str) -> Value {
    let text = text(problem, shape, Some(record()), wanted);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn members(value: &Value) -> BTreeSet<&str> {
    let object = value.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

/// One element of strict XML, without attributes: its name and what is in it.
#[derive(Debug, PartialEq)]
enum Xml {
    Element(String, Vec<Xml>),
    Text(String),
}

impl Xml {
    fn document(text: &str) -> Self {
        let rest = text
            .strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")
            .expect("a declaration");
        let (root, rest) = Self::element(rest);
        assert_eq!(rest, "", "nothing is behind the root");
        root
    }

    fn element(text: &str) -> (Self, &str) {
        let (name, mut rest) = text
            .strip_prefix('<')
            .and_then(|tag| tag.split_once('>'))
            .expect("a tag");
        assert!(name.chars().all(|c| c.is_ascii_alphabetic()), "{name}");
        let end = format!("</{name}>");
        let mut inside = Vec::new();
        loop {
            if let Some(behind) = rest.strip_prefix(&end) {
                return (Self::Element(name.to_owned(), inside), behind);
            }
            if rest.starts_with('<') {
                let (child, behind) = Self::element(rest);
                inside.push(child);
                rest = behind;
            } else {
                let (data, _) = rest.split_once('<').expect("character data ends");
                inside.push(Self::Text(Self::data(data)));
                rest = &rest[data.len()..];
            }
        }
    }

    fn data(raw: &str) -> String {
        let mut out = String::new();
        let mut rest = raw;
        while let Some((before, reference)) = rest.split_once('&') {
            let (name, behind) = reference.split_once(';').expect("a reference ends");
            out.push_str(before);
            out.push(match name {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                other => panic!("&{other};"),
            });
            rest = behind;
        }
        out.push_str(rest);
        let odd =
            |c: char| (c < ' ' && !"\t\n".contains(c)) || ('\u{fffe}'..='\u{ffff}').contains(&c);
        assert!(!out.contains(odd) && !raw.contains('>'), "{raw:?}");
        out
    }
}

#[test]
fn the_table_has_every_problem() {
    let slugs: BTreeSet<&str> = table().iter().map(|row| row.1).collect();
    assert_eq!(slugs, DOCUMENTS.iter().map(|row| row.0).collect());
    assert_eq!(slugs.len(), 23);
    for (problem, slug, ..) in table() {
        assert_eq!(problem.slug(), slug);
    }
}

#[test]
fn nobody_is_told_to_send_again_what_no_key_protects() {
    for (doubt, keyed) in [
        (Doubt::Failed, Problem::UpstreamFailed),
        (Doubt::Late, Problem::UpstreamTimeout),
    ] {
        let shape = ErrorShape::Problem;
        let told = json(
            &Problem::Unprotected(doubt),
            shape,
            "application/problem+json",
        );
        let as_keyed = json(&keyed, shape, "application/problem+json");
        for same in ["type", "title", "status", "code"] {
            assert_eq!(told[same], as_keyed[same]);
        }
        assert_eq!(told["retryable"], false);
        assert_eq!(told.get("reuse_key"), None);
        let detail = told["detail"].as_str().expect("a sentence");
        assert!(detail.contains("no key protects it"), "{detail}");
    }
}

#[test]
fn a_problem_document_says_all_of_the_facts() {
    let shape = ErrorShape::Problem;
    for (problem, slug, ..) in table() {
        let row = DOCUMENTS.iter().find(|row| row.0 == slug);
        let (_, status, code, retryable, reuse) = *row.expect("a row");
        let forever = matches!(
            problem,
            Problem::OutcomeUnknown {
                left: HoldLeft::Forever,
                ..
            }
        );
        let told = json(&problem, shape, "application/problem+json");
        assert_eq!(problem.status(&errors(shape)), status, "{slug}");
        assert_eq!(told["type"], format!("urn:idem-proxy:problem:{slug}"));
        assert_eq!(told["status"], status, "{slug}");
        assert_eq!(told["code"], code, "{slug}");
        assert_eq!(told["retryable"], retryable && !forever, "{slug}");
        assert_eq!(told.get("reuse_key").and_then(Value::as_bool), reuse);
        assert_eq!(told["record"], "a5a5a5a5a5a5a5a5", "{slug}");
        for sentence in ["title", "detail"] {
            assert!(told[sentence].as_str().is_some_and(|text| !text.is_empty()));
        }
        let original = matches!(problem, Problem::ResponseNotRetained { .. }).then_some(201);
        assert_eq!(
            told.get("original_status").and_then(Value::as_u64),
            original
        );
    }
}

#[test]
fn a_problem_document_reads_from_the_general_to_the_particular() {
    let problem = Problem::ResponseNotRetained {
        original_status: StatusCode::CREATED,
    };
    assert_eq!(
        text(
            &problem,
            ErrorShape::Problem,
            Some(record()),
            "application/problem+json"
        ),
        "{\"type\":\"urn:idem-proxy:problem:response-not-retained\",\"title\":\"Response not retained\",\"status\":409,\
         \"detail\":\"This request was executed and answered with 201, and that answer was too large to keep or a stream. \
         It will not be executed again under this key.\",\"code\":\"IDEMPOTENCY_RESPONSE_NOT_RETAINED\",\
         \"retryable\":false,\"reuse_key\":false,\"record\":\"a5a5a5a5a5a5a5a5\",\"original_status\":201}"
    );
    let bare = text(
        &Problem::KeyMissing { carrier: None },
        ErrorShape::Problem,
        None,
        "application/problem+json",
    );
    assert!(bare.ends_with("\"retryable\":false}"), "{bare}");
}

#[test]
fn platform_says_each() {
    let shape = ErrorShape::Platform;
    for (problem, slug, (status, code, retryable), ..) in table() {
        let told = json(&problem, shape, "application/json");
        assert_eq!(problem.status(&errors(shape)), status, "{slug}");
        assert_eq!(told["code"], code, "{slug}");
        assert_eq!(told["retryable"], retryable, "{slug}");
        assert_eq!(told["message"], problem.detail(Some(record())), "{slug}");
        let mut wanted: BTreeSet<&str> = ["code", "message", "retryable"].into();
        if matches!(slug, "key-missing" | "key-invalid") {
            assert_eq!(told["field"], "X-Key", "{slug}");
            wanted.insert("field");
        }
        assert_eq!(members(&told), wanted, "{slug}");
    }
}

#[test]
fn stripe_says_each() {
    let shape = ErrorShape::Stripe;
    for (problem, slug, _, (status, kind, code), _) in table() {
        let told = json(&problem, shape, "application/json");
        assert_eq!(problem.status(&errors(shape)), status, "{slug}");
        assert_eq!(members(&told), ["error"].into(), "{slug}");
        let error = &told["error"];
        assert_eq!(members(error), ["code", "message", "type"].into(), "{slug}");
        assert_eq!(error["type"], kind, "{slug}");
        assert_eq!(error["code"], code, "{slug}");
        assert_eq!(error["message"], problem.detail(Some(record())), "{slug}");
    }
}

#[test]
fn aws_says_each() {
    let element = |name: &str, inside| Xml::Element(name.to_owned(), inside);
    let leaf = |name: &str, text: &str| element(name, vec![Xml::Text(text.to_owned())]);
    let shape = ErrorShape::AwsXml;
    for (problem, slug, _, _, (status, code)) in table() {
        assert_eq!(problem.status(&errors(shape)), status, "{slug}");
        for (record, request) in [
            (Some(record()), "a5a5a5a5a5a5a5a5"),
            (None, "0000000000000000"),
        ] {
            let told = Xml::document(&text(&problem, shape, record, "text/xml"));
            let error = vec![leaf("Code", code), leaf("Message", &problem.detail(record))];
            let inside = vec![
                element("Errors", vec![element("Error", error)]),
                leaf("RequestID", request),
            ];
            assert_eq!(told, element("Response", inside), "{slug}");
        }
    }
}

#[test]
fn every_503_and_504_says_when_to_come_back() {
    for (problem, slug, ..) in table() {
        for shape in ErrorShape::ALL {
            let status = problem.status(&errors(shape)).as_u16();
            let held = matches!(slug, "in-flight" | "outcome-unknown");
            assert_eq!(
                problem.retry_after().is_some(),
                held || matches!(status, 503 | 504),
                "{slug} {shape:?}"
            );
        }
    }
}

#[test]
fn a_carrier_of_any_name_is_told_unharmed() {
    let odd = "a<b>&\"c\" \u{e9}\\ \u{1} \u{ffff}";
    let refused = |fault| {
        Problem::KeyInvalid(KeyRefused {
            fault,
            carrier: Carrier::new(odd),
        })
    };
    for problem in [
        Problem::KeyMissing {
            carrier: Some(Carrier::new(odd)),
        },
        refused(KeyFault::Repeated),
        refused(KeyFault::Format),
    ] {
        let told = json(&problem, ErrorShape::Platform, "application/json");
        assert_eq!(told["field"], odd);
        let xml = text(&problem, ErrorShape::AwsXml, None, "text/xml");
        let shown = odd.replace(['\u{1}', '\u{ffff}'], "\u{fffd}");
        let message = problem.detail(None).replace(odd, &shown);
        let Xml::Element(_, inside) = Xml::document(&xml) else {
            panic!("{xml}")
        };
        assert!(
            format!("{inside:?}").contains(&format!("{message:?}")),
            "{xml}"
        );
    }
}

#[test]
fn an_unknown_outcome_names_the_command_that_settles_it_in_every_shape() {
    let second = Duration::from_secs(1);
    for left in [HoldLeft::Forever, HoldLeft::For(second)] {
        let unknown = Problem::OutcomeUnknown {
            left,
            retry_after: second,
        };
        for (shape, media_type) in [
            (ErrorShape::Problem, "application/problem+json"),
            (ErrorShape::Platform, "application/json"),
            (ErrorShape::Stripe, "application/json"),
            (ErrorShape::AwsXml, "text/xml"),
        ] {
            let command =
                "`idem-proxy records resolve a5a5a5a5a5a5a5a5 --outcome release|complete …`";
            let told = text(&unknown, shape, Some(record()), media_type);
            assert!(told.contains(command), "{told}");
            let told = text(&unknown, shape, None, media_type);
            assert!(!told.contains("records resolve"), "{told}");
        }
    }
    let other = text(
        &Problem::KeyReused,
        ErrorShape::Problem,
        Some(record()),
        "application/problem+json",
    );
    assert!(!other.contains("records resolve"), "{other}");
}

#[test]
fn an_expired_key_is_called_that_in_every_shape() {
    for shape in ErrorShape::ALL {
        let (_, body) = Problem::KeyExpired.body(&errors(shape), None);
        let said = String::from_utf8(body.to_vec()).expect("UTF-8");
        assert!(said.contains("expired"), "{said}");
    }
}
