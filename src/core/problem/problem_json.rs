//! `errors = "problem"`: problem documents (RFC 9457, section 3), which say all of the facts.

use super::{Problem, json::Object};
use crate::core::{policy::Errors, record::ShortId};

pub(super) const MEDIA_TYPE: &str = "application/problem+json";

pub(super) fn body(problem: &Problem, errors: &Errors, record: Option<ShortId>) -> String {
    let facts = problem.facts();
    let original = match problem {
        Problem::ResponseNotRetained { original_status } => Some(original_status.as_u16()),
        Problem::KeyMissing { .. }
        | Problem::KeyInvalid(_)
        | Problem::CallerMissing
        | Problem::InFlight { .. }
        | Problem::OutcomeUnknown { .. }
        | Problem::KeyExpired
        | Problem::BodyTooLarge { .. }
        | Problem::KeyReused
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
        | Problem::ExpectationFailed => None,
    };
    Object::new()
        .with("type", format!("{}{}", errors.type_base, facts.slug))
        .with("title", facts.title)
        .with("status", facts.status.as_u16())
        .with("detail", problem.detail(record))
        .with("code", facts.code)
        .with("retryable", facts.retryable)
        .with_some("reuse_key", facts.reuse_key)
        .with_some("record", record.map(|record| record.to_string()))
        .with_some("original_status", original)
        .text()
}
