//! `errors = "stripe"`: `{"error": {"type", "code", "message"}}`, as clients of Stripe's API read it.
//!
//! `code` is the slug with underscores and `type` follows the status. What Stripe itself says about keys has its words:
//! `idempotency_error`, and `idempotency_key_in_use` while a key is held.

use http::StatusCode;

use super::{Problem, json::Object};
use crate::core::record::ShortId;

struct Said {
    status: StatusCode,
    kind: &'static str,
    code: String,
}

fn said(problem: &Problem) -> Said {
    let facts = problem.facts();
    let own_code = || facts.slug.replace('-', "_");
    match problem {
        Problem::InFlight { .. } | Problem::OutcomeUnknown { .. } => Said {
            status: StatusCode::CONFLICT,
            kind: "idempotency_error",
            code: "idempotency_key_in_use".into(),
        },
        Problem::KeyReused | Problem::KeyExpired => Said {
            status: StatusCode::BAD_REQUEST,
            kind: "idempotency_error",
            code: own_code(),
        },
        Problem::KeyMissing { .. }
        | Problem::KeyInvalid(_)
        | Problem::CallerMissing
        | Problem::ResponseNotRetained { .. }
        | Problem::BodyTooLarge { .. }
        | Problem::NoStore
        | Problem::UpstreamUnreachable
        | Problem::UpstreamFailed
        | Problem::UpstreamTimeout
        | Problem::Unprotected(_)
        | Problem::StoreUnavailable
        | Problem::StoreFull
        | Problem::Overloaded
        | Problem::BadRequest(_)
        | Problem::MethodNotAllowed
        | Problem::RequestTimeout
        | Problem::TargetTooLong
        | Problem::HeadTooLarge
        | Problem::LoopDetected
        | Problem::ExpectationFailed => Said {
            status: facts.status,
            kind: if facts.status.is_server_error() {
                "api_error"
            } else {
                "invalid_request_error"
            },
            code: own_code(),
        },
    }
}

pub(super) fn status(problem: &Problem) -> StatusCode {
    said(problem).status
}

pub(super) fn body(problem: &Problem, record: Option<ShortId>) -> String {
    let said = said(problem);
    let error = Object::new()
        .with("type", said.kind)
        .with("code", said.code)
        .with("message", problem.detail(record))
        .text();
    format!("{{\"error\":{error}}}")
}
