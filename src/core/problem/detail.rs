//! What a problem tells a human: `detail` of a problem document, the message of the other shapes.

use std::fmt::Write as _;

use super::{Doubt, KeyFault, Problem};
use crate::core::{record::ShortId, transition::HoldLeft};

impl Problem {
    /// The sentence; `record` is what an operator settles where only an operator can.
    pub(super) fn detail(&self, record: Option<ShortId>) -> String {
        #[rustfmt::skip]
        let mut detail: String = match self {
            Self::KeyMissing { carrier: Some(carrier) } => format!("This operation needs an idempotency key. Send one in `{}`, and send the same one with every retry.", carrier.as_str()),
            Self::KeyMissing { carrier: None } => "This operation needs an idempotency key. Send one, and send the same one with every retry.".into(),
            Self::KeyInvalid(refused) => format!("The idempotency key in `{}` {}", refused.carrier.as_str(), refused.fault.rule()),
            Self::CallerMissing => "The request does not say who is calling, and idempotency keys belong to a caller. Nothing was executed.".into(),
            Self::InFlight { .. } => "A request with this key is still running. Send the same request again later to get its answer.".into(),
            Self::OutcomeUnknown { left: HoldLeft::For(_), .. } => "An earlier request with this key may have been executed: its answer never came. The key is held for a while; afterwards the same request runs again.".into(),
            Self::OutcomeUnknown { left: HoldLeft::Forever, .. } => "An earlier request with this key may have been executed: its answer never came. The key is held until its retention ends, however often it is tried. Check the resource; if the write did not take place, send it under a new key.".into(),
            Self::ResponseNotRetained { original_status } => format!("This request was executed and answered with {}, and that answer was too large to keep or a stream. It will not be executed again under this key.", original_status.as_u16()),
            Self::KeyExpired => "This key has expired: what it named is too old to be answered, and is not executed again. Use a new key for a new operation.".into(),
            Self::BodyTooLarge { limit } => format!("The body of a request with an idempotency key may have at most {limit} bytes here. Nothing was executed."),
            Self::KeyReused => "This key was used for a different request. Use a new key for a new operation.".into(),
            Self::NoStore => "This service keeps no idempotency records, so it cannot honour an idempotency key. Nothing was executed.".into(),
            Self::UpstreamUnreachable => "The service behind this proxy could not be reached. Nothing was executed; send the same request again.".into(),
            Self::UpstreamFailed => "The service behind this proxy got the request and gave no usable answer. It may have been executed.".into(),
            Self::UpstreamTimeout => "The service behind this proxy did not answer in time. It may still be working: send the same request again to get its answer.".into(),
            Self::Unprotected(Doubt::Failed) => "The service behind this proxy got the request and gave no usable answer. It may have been executed, and no key protects it: look before you send it again.".into(),
            Self::Unprotected(Doubt::Late) => "The service behind this proxy did not answer in time. It may have been executed, or still be, and no key protects it: look before you send it again.".into(),
            Self::StoreUnavailable => "The store of idempotency records does not answer. Nothing was executed.".into(),
            Self::StoreFull => "The store of idempotency records has no room for another one. Nothing was executed.".into(),
            Self::Overloaded => "Too much is running at the moment. Nothing was executed.".into(),
            Self::BadRequest(what) => (*what).into(),
            Self::MethodNotAllowed => "This proxy does not serve CONNECT and TRACE, and its published policy to GET and HEAD alone.".into(),
            Self::RequestTimeout => "The request did not come in time.".into(),
            Self::TargetTooLong => "The request's target is longer than this proxy takes.".into(),
            Self::HeadTooLarge => "The request's head is larger, or has more fields, than this proxy takes.".into(),
            Self::LoopDetected => "The request came back to the proxy that it was sent through: the upstream leads to the proxy itself.".into(),
            Self::ExpectationFailed => "The only expectation that can be met is 100-continue.".into(),
        };
        if let (Self::OutcomeUnknown { .. }, Some(record)) = (self, record) {
            // Writing to a string does not fail.
            let _ = write!(
                detail,
                " Who operates this service can settle it sooner: `idem-proxy records resolve {record} --outcome release|complete …`."
            );
        }
        detail
    }
}

impl KeyFault {
    /// The rule, as the end of a sentence about the key.
    const fn rule(self) -> &'static str {
        match self {
            Self::Repeated => "stands more than once. Send one key, in one place, on one line.",
            Self::Empty => "is empty.",
            Self::TooLong => "is longer than this operation takes.",
            Self::NotAKey => "must be a quoted string, or visible ASCII without comma and space.",
            Self::NotAString => {
                "must be a structured-field string: in double quotes (RFC 9651, section 3.3.3)."
            }
            Self::NotText => "must be a JSON string.",
            Self::NotEncoded => {
                "is not percent-encoded as it must be: a `%` is followed by two hexadecimal digits."
            }
            Self::Format => "does not have the form that this operation asks for.",
        }
    }
}
