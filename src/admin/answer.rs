//! What operators are answered with: JSON, and problem documents where something is wrong.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;

use super::admission::Turned;

pub(super) type Answer = Response<Full<Bytes>>;

pub(super) fn turned_away(turned: Turned) -> Answer {
    let mut refused = explained(turned.status(), turned.detail());
    if let Some((name, challenge)) = turned.challenge() {
        refused.headers_mut().insert(name, challenge);
    }
    refused
}

pub(super) fn method_not_allowed(allowed: &'static str) -> Answer {
    let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED);
    let allowed = HeaderValue::from_static(allowed);
    refused.headers_mut().insert(header::ALLOW, allowed);
    refused
}

pub(super) fn not_found() -> Answer {
    problem(StatusCode::NOT_FOUND)
}

/// An error without a type of its own (RFC 9457, section 4.2.1).
pub(super) fn problem(status: StatusCode) -> Answer {
    let title = status.canonical_reason().unwrap_or_default();
    let document =
        serde_json::json!({"type": "about:blank", "title": title, "status": status.as_u16()});
    plain(status, "application/problem+json", document.to_string())
}

/// The same with a sentence of its own.
pub(super) fn explained(status: StatusCode, detail: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or_default();
    let document = serde_json::json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
    });
    plain(status, "application/problem+json", document.to_string())
}

/// 200 with this document.
pub(super) fn json(document: &serde_json::Value) -> Answer {
    plain(StatusCode::OK, "application/json", document.to_string())
}

pub(super) fn plain(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
