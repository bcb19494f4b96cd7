//! `errors = "aws-xml"`: `<Response><Errors><Error>`, as clients of EC2's API read it, with EC2's own error codes.
//!
//! Its clients retry by status and code, so what holds a key is a 503 `Unavailable`.

use http::StatusCode;

use super::Problem;
use crate::core::record::ShortId;

pub(super) const MEDIA_TYPE: &str = "text/xml";

/// `RequestID` where no record is named: the form of the others, and nobody's.
const NO_RECORD: &str = "0000000000000000";

fn said(problem: &Problem) -> (StatusCode, &'static str) {
    use StatusCode as S;
    let status = problem.facts().status;
    match problem {
        Problem::KeyMissing { .. } => (S::BAD_REQUEST, "MissingParameter"),
        Problem::KeyInvalid(_) | Problem::KeyExpired => (S::BAD_REQUEST, "InvalidParameterValue"),
        Problem::KeyReused => (S::BAD_REQUEST, "IdempotentParameterMismatch"),
        Problem::InFlight { .. } | Problem::OutcomeUnknown { .. } => {
            (S::SERVICE_UNAVAILABLE, "Unavailable")
        }
        Problem::CallerMissing => (status, "AuthFailure"),
        Problem::ResponseNotRetained { .. } => (status, "IncorrectState"),
        Problem::BodyTooLarge { .. } => (status, "RequestEntityTooLarge"),
        Problem::NoStore | Problem::MethodNotAllowed => (status, "UnsupportedOperation"),
        Problem::UpstreamUnreachable
        | Problem::UpstreamFailed
        | Problem::UpstreamTimeout
        | Problem::Unprotected(_)
        | Problem::LoopDetected => (status, "InternalError"),
        Problem::StoreUnavailable | Problem::StoreFull => (status, "Unavailable"),
        Problem::Overloaded => (status, "RequestLimitExceeded"),
        Problem::RequestTimeout => (status, "RequestTimeout"),
        Problem::BadRequest(_)
        | Problem::TargetTooLong
        | Problem::HeadTooLarge
        | Problem::ExpectationFailed => (status, "InvalidRequest"),
    }
}

pub(super) fn status(problem: &Problem) -> StatusCode {
    said(problem).0
}

pub(super) fn body(problem: &Problem, record: Option<ShortId>) -> String {
    let (_, code) = said(problem);
    let message = escaped(&problem.detail(record));
    let request = record.map_or_else(|| NO_RECORD.to_owned(), |record| record.to_string());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code>\
         <Message>{message}</Message></Error></Errors><RequestID>{request}</RequestID></Response>"
    )
}

/// Character data (XML 1.0, section 2.4). A character that XML cannot have (section 2.2) becomes U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => out.push(c),
            _ => out.push('\u{fffd}'),
        }
    }
    out
}
