//! What an answer has to be: executed, replayed, or one of the proxy's own problems, judged whole.

use serde_json::Value;

use super::Answer;

/// The header that tells first answers from replays.
const MARKER: &str = "Idempotency-Key-Reply";

/// Each problem's status, code, and whether the client may retry and keep its key. `None`: depends, or is absent.
type Row = (&'static str, u16, &'static str, Option<bool>, Option<bool>);

#[rustfmt::skip]
const PROBLEMS: &[Row] = &[
    ("bad-request", 400, "BAD_REQUEST", Some(false), None),
    ("request-timeout", 408, "REQUEST_TIMEOUT", Some(true), Some(true)),
    ("target-too-long", 414, "TARGET_TOO_LONG", Some(false), None),
    ("head-too-large", 431, "HEAD_TOO_LARGE", Some(false), None),
    ("key-missing", 400, "IDEMPOTENCY_KEY_REQUIRED", Some(false), None),
    ("key-invalid", 400, "IDEMPOTENCY_KEY_INVALID", Some(false), None),
    ("caller-missing", 401, "CALLER_REQUIRED", Some(false), Some(true)),
    ("in-flight", 409, "IDEMPOTENCY_IN_FLIGHT", Some(true), Some(true)),
    ("outcome-unknown", 409, "IDEMPOTENCY_OUTCOME_UNKNOWN", None, Some(true)),
    ("response-not-retained", 409, "IDEMPOTENCY_RESPONSE_NOT_RETAINED", Some(false), Some(false)),
    ("key-expired", 409, "IDEMPOTENCY_KEY_EXPIRED", Some(false), Some(false)),
    ("body-too-large", 413, "REQUEST_TOO_LARGE", Some(false), Some(true)),
    ("key-reused", 422, "IDEMPOTENCY_KEY_REUSED", Some(false), Some(false)),
    ("no-store", 501, "IDEMPOTENCY_NOT_SUPPORTED", Some(false), Some(true)),
    ("upstream-unreachable", 502, "UPSTREAM_UNREACHABLE", Some(true), Some(true)),
    ("upstream-failed", 502, "UPSTREAM_FAILED", Some(true), Some(true)),
    ("store-unavailable", 503, "IDEMPOTENCY_STORE_UNAVAILABLE", Some(true), Some(true)),
    ("store-full", 503, "IDEMPOTENCY_STORE_FULL", Some(true), Some(true)),
    ("overloaded", 503, "OVERLOADED", Some(true), Some(true)),
    ("upstream-timeout", 504, "UPSTREAM_TIMEOUT", Some(true), Some(true)),
];

/// The marker's value.
pub(crate) fn marker(answer: &Answer) -> Option<&str> {
    answer.one(MARKER)
}

/// The upstream ran for this answer, and the answer was stored. Gives the execution's number where the answer names it.
#[track_caller]
pub(crate) fn executed(answer: Answer) -> Answer {
    assert_eq!(
        marker(&answer),
        Some("miss"),
        "not executed and stored: {answer}"
    );
    answer
}

/// This answer is the stored `first` one: the same status, body and header lines, but for cookies and the marker.
#[track_caller]
pub(crate) fn replayed(answer: &Answer, first: &Answer) {
    assert_eq!(marker(answer), Some("hit"), "not a replay: {answer}");
    assert_eq!(answer.status, first.status, "{answer}");
    assert!(
        answer.body == first.body,
        "another body than the first:\n{answer}\n{first}"
    );
    for name in first.head.fields.names() {
        let framing = [
            "content-length",
            "transfer-encoding",
            "connection",
            "trailer",
        ];
        if name == "set-cookie" {
            assert!(
                !answer.head.fields.has(&name),
                "a replayed cookie: {answer}"
            );
        } else if name != MARKER.to_ascii_lowercase() && !framing.contains(&name.as_str()) {
            assert_eq!(answer.all(&name), first.all(&name), "{name}");
        }
    }
}

/// The whole problem document of `slug`, member by member.
#[track_caller]
pub(crate) fn problem(answer: &Answer, slug: &str) -> Value {
    let row = PROBLEMS.iter().find(|row| row.0 == slug);
    let (_, status, code, retryable, reuse) = row.expect("a known problem");
    assert_eq!(answer.status, *status, "not {slug}: {answer}");
    assert_eq!(
        answer.one("Content-Type"),
        Some("application/problem+json"),
        "{answer}"
    );
    assert_eq!(marker(answer), None, "{answer}");
    let document = answer.json();
    assert_eq!(
        document["type"],
        format!("urn:idem-proxy:problem:{slug}"),
        "{document}"
    );
    assert_eq!(document["status"], *status, "{document}");
    assert_eq!(document["code"], *code, "{document}");
    for text in ["title", "detail"] {
        assert!(
            document[text].as_str().is_some_and(|said| !said.is_empty()),
            "{text}: {document}"
        );
    }
    match retryable {
        Some(retryable) => assert_eq!(document["retryable"], *retryable, "{document}"),
        None => assert!(document["retryable"].is_boolean(), "{document}"),
    }
    match reuse {
        Some(reuse) => assert_eq!(document["reuse_key"], *reuse, "{document}"),
        None => assert!(document.get("reuse_key").is_none(), "{document}"),
    }
    let waits = matches!(slug, "in-flight" | "outcome-unknown") || matches!(status, 503 | 504);
    assert_eq!(
        answer.one("Retry-After").is_some(),
        waits,
        "Retry-After of {slug}: {answer}"
    );
    document
}

/// A 502 or 504 of a request that no key protects: nobody is told to send it again.
#[track_caller]
pub(crate) fn unprotected(answer: &Answer, slug: &str) {
    let document = answer.json();
    assert_eq!(document["type"], format!("urn:idem-proxy:problem:{slug}"));
    assert_eq!(document["status"], answer.status, "{document}");
    assert_eq!(document["retryable"], false, "{document}");
    assert_eq!(document.get("reuse_key"), None, "{document}");
}

/// The seconds that `Retry-After` asks for.
#[track_caller]
pub(crate) fn retry_after(answer: &Answer) -> u64 {
    let value = answer
        .one("Retry-After")
        .and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no Retry-After in seconds: {answer}"))
}
