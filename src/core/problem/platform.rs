//! `errors = "platform"`: `{"code", "message", "retryable"}`, and `field` where a key's carrier is at fault.
//!
//! What the client is to do is in `retryable` alone, so all that holds a key or refuses it is one `CONFLICT`. What is not
//! about keys has the code of the facts.

use http::StatusCode;

use super::{Problem, json::Object};
use crate::core::{policy::Carrier, record::ShortId};

struct Said<'a> {
    status: StatusCode,
    code: &'static str,
    retryable: bool,
    field: Option<&'a Carrier>,
}

fn said(problem: &Problem) -> Said<'_> {
    let facts = problem.facts();
    let own = Said {
        status: facts.status,
        code: facts.code,
        retryable: facts.retryable,
        field: None,
    };
    let conflict = |retryable| Said {
        status: StatusCode::CONFLICT,
        code: "CONFLICT",
        retryable,
        field: None,
    };
    match problem {
        Problem::KeyMissing { carrier } => Said {
            field: carrier.as_ref(),
            ..own
        },
        Problem::KeyInvalid(refused) => Said {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            code: "VALIDATION_FAILED",
            field: Some(&refused.carrier),
            ..own
        },
        // Also under a hold without an end: what ends it is an operator or the retention, not the client.
        Problem::InFlight { .. } | Problem::OutcomeUnknown { .. } => conflict(true),
        Problem::KeyReused | Problem::ResponseNotRetained { .. } | Problem::KeyExpired => {
            conflict(false)
        }
        Problem::StoreUnavailable => Said {
            code: "UNAVAILABLE",
            ..own
        },
        Problem::CallerMissing
        | Problem::BodyTooLarge { .. }
        | Problem::NoStore
        | Problem::UpstreamUnreachable
        | Problem::UpstreamFailed
        | Problem::UpstreamTimeout
        | Problem::Unprotected(_)
        | Problem::StoreFull
        | Problem::Overloaded
        | Problem::BadRequest(_)
        | Problem::MethodNotAllowed
        | Problem::RequestTimeout
        | Problem::TargetTooLong
        | Problem::HeadTooLarge
        | Problem::LoopDetected
        | Problem::ExpectationFailed => own,
    }
}

pub(super) fn status(problem: &Problem) -> StatusCode {
    said(problem).status
}

pub(super) fn body(problem: &Problem, record: Option<ShortId>) -> String {
    let said = said(problem);
    Object::new()
        .with("code", said.code)
        .with("message", problem.detail(record))
        .with("retryable", said.retryable)
        .with_some("field", said.field.map(Carrier::as_str))
        .text()
}
