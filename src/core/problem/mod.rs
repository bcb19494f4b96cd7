//! The proxy's own errors, and how each shape says them (contract, sections 7 and 8).
//!
//! Here stands what is true of a problem in every shape: its facts, when to come back, whether the connection ends. `detail`
//! has the sentence for a human. Each shape has a file of its own, which says where it departs from the facts; none of
//! these matches has a catch-all arm, so that a new problem or shape is decided everywhere before it compiles.

mod aws_xml;
mod detail;
mod json;
mod platform;
mod problem_json;
mod stripe;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::{
    policy::{Carrier, ErrorShape, Errors},
    record::ShortId,
    transition::HoldLeft,
};

/// Why nobody can tell whether a request was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The upstream got it and gave no usable answer.
    Failed,
    /// The upstream did not answer in time; it may yet.
    Late,
}

/// Everything that the proxy itself answers with instead of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No key where one is required.
    KeyMissing {
        /// Where it was to stand.
        carrier: Option<Carrier>,
    },
    /// A key that breaks the rules.
    KeyInvalid(KeyRefused),
    /// The caller cannot be told.
    CallerMissing,
    /// A copy runs, and is not or no longer waited for.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The upstream may have executed.
    OutcomeUnknown {
        /// What is left of the hold.
        left: HoldLeft,
        /// When to ask again where the hold has no end.
        retry_after: Duration,
    },
    /// It was executed, and its answer is not kept.
    ResponseNotRetained {
        /// What the upstream answered with.
        original_status: StatusCode,
    },
    /// The key's record is past its retention, and the key is not to be used again.
    KeyExpired,
    /// The body of a keyed request is over its limit.
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The key was used for another request.
    KeyReused,
    /// There is no store.
    NoStore,
    /// The upstream could not be reached; it got nothing.
    UpstreamUnreachable,
    /// The upstream got the request and gave no usable answer.
    UpstreamFailed,
    /// The upstream did not answer in time; it may yet.
    UpstreamTimeout,
    /// The same of a request that no key protects: whoever sends it again may have it executed again.
    Unprotected(Doubt),
    /// The store does not answer.
    StoreUnavailable,
    /// The store has no room.
    StoreFull,
    /// A bound of the proxy's own is reached.
    Overloaded,
    /// The request is not valid HTTP, or asks for what a proxy must not do; what exactly.
    BadRequest(&'static str),
    /// CONNECT or TRACE; or neither GET nor HEAD, of the published policy.
    MethodNotAllowed,
    /// The body did not come in time.
    RequestTimeout,
    /// The target is over its limit.
    TargetTooLong,
    /// The head is over a limit: its bytes or its fields.
    HeadTooLarge,
    /// The request has been here before.
    LoopDetected,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
}

/// A key that breaks the rules: which one, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRefused {
    /// The rule that it breaks.
    pub fault: KeyFault,
    /// What carries it.
    pub carrier: Carrier,
}

/// The rule that a key breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// It stands on more than one line, or more than once in a query or form.
    Repeated,
    /// It is empty.
    Empty,
    /// It is longer than `key_max_length`.
    TooLong,
    /// It is neither a structured-field string nor bare visible ASCII without comma and space.
    NotAKey,
    /// It is no structured-field string.
    NotAString,
    /// It is a JSON value other than a string.
    NotText,
    /// Its percent-encoding is broken (RFC 3986, section 2.1).
    NotEncoded,
    /// It does not fit `key_format`.
    Format,
}

/// When an overload or an outage of the store is worth another try.
const RETRY_AFTER_OUTAGE: Duration = Duration::from_secs(1);

/// What section 7 of the contract says of a problem.
struct Facts {
    slug: &'static str,
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    retryable: bool,
    /// `None`: the client has no key, or none that could be used.
    reuse_key: Option<bool>,
}

impl Problem {
    fn facts(&self) -> Facts {
        use StatusCode as S;
        let row = |slug, status, code, title, retryable, reuse_key| Facts {
            slug,
            status,
            code,
            title,
            retryable,
            reuse_key,
        };
        #[rustfmt::skip]
        let facts = match self {
            Self::KeyMissing { .. } => row("key-missing", S::BAD_REQUEST, "IDEMPOTENCY_KEY_REQUIRED", "Idempotency key required", false, None),
            Self::KeyInvalid(_) => row("key-invalid", S::BAD_REQUEST, "IDEMPOTENCY_KEY_INVALID", "Idempotency key invalid", false, None),
            Self::CallerMissing => row("caller-missing", S::UNAUTHORIZED, "CALLER_REQUIRED", "Caller required", false, Some(true)),
            Self::InFlight { .. } => row("in-flight", S::CONFLICT, "IDEMPOTENCY_IN_FLIGHT", "Request in flight", true, Some(true)),
            Self::OutcomeUnknown { left, .. } => row("outcome-unknown", S::CONFLICT, "IDEMPOTENCY_OUTCOME_UNKNOWN", "Outcome unknown", matches!(left, HoldLeft::For(_)), Some(true)),
            Self::ResponseNotRetained { .. } => row("response-not-retained", S::CONFLICT, "IDEMPOTENCY_RESPONSE_NOT_RETAINED", "Response not retained", false, Some(false)),
            Self::KeyExpired => row("key-expired", S::CONFLICT, "IDEMPOTENCY_KEY_EXPIRED", "Idempotency key expired", false, Some(false)),
            Self::BodyTooLarge { .. } => row("body-too-large", S::PAYLOAD_TOO_LARGE, "REQUEST_TOO_LARGE", "Request body too large", false, Some(true)),
            Self::KeyReused => row("key-reused", S::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_KEY_REUSED", "Idempotency key reused", false, Some(false)),
            Self::NoStore => row("no-store", S::NOT_IMPLEMENTED, "IDEMPOTENCY_NOT_SUPPORTED", "Idempotency keys are not supported here", false, Some(true)),
            Self::UpstreamUnreachable => row("upstream-unreachable", S::BAD_GATEWAY, "UPSTREAM_UNREACHABLE", "Upstream unreachable", true, Some(true)),
            Self::UpstreamFailed => row("upstream-failed", S::BAD_GATEWAY, "UPSTREAM_FAILED", "Upstream failed", true, Some(true)),
            Self::UpstreamTimeout => row("upstream-timeout", S::GATEWAY_TIMEOUT, "UPSTREAM_TIMEOUT", "Upstream timeout", true, Some(true)),
            Self::Unprotected(Doubt::Failed) => row("upstream-failed", S::BAD_GATEWAY, "UPSTREAM_FAILED", "Upstream failed", false, None),
            Self::Unprotected(Doubt::Late) => row("upstream-timeout", S::GATEWAY_TIMEOUT, "UPSTREAM_TIMEOUT", "Upstream timeout", false, None),
            Self::StoreUnavailable => row("store-unavailable", S::SERVICE_UNAVAILABLE, "IDEMPOTENCY_STORE_UNAVAILABLE", "Idempotency store unavailable", true, Some(true)),
            Self::StoreFull => row("store-full", S::SERVICE_UNAVAILABLE, "IDEMPOTENCY_STORE_FULL", "Idempotency store full", true, Some(true)),
            Self::Overloaded => row("overloaded", S::SERVICE_UNAVAILABLE, "OVERLOADED", "Overloaded", true, Some(true)),
            Self::BadRequest(_) => row("bad-request", S::BAD_REQUEST, "BAD_REQUEST", "Bad request", false, None),
            Self::MethodNotAllowed => row("method-not-allowed", S::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "Method not allowed", false, None),
            Self::RequestTimeout => row("request-timeout", S::REQUEST_TIMEOUT, "REQUEST_TIMEOUT", "Request timeout", true, Some(true)),
            Self::TargetTooLong => row("target-too-long", S::URI_TOO_LONG, "TARGET_TOO_LONG", "Request target too long", false, None),
            Self::HeadTooLarge => row("head-too-large", S::REQUEST_HEADER_FIELDS_TOO_LARGE, "HEAD_TOO_LARGE", "Request head too large", false, None),
            Self::LoopDetected => row("loop-detected", S::LOOP_DETECTED, "LOOP_DETECTED", "Loop detected", false, None),
            Self::ExpectationFailed => row("expectation-failed", S::EXPECTATION_FAILED, "EXPECTATION_FAILED", "Expectation failed", false, None),
        };
        facts
    }

    /// The status it is answered with, as the route says errors.
    #[must_use]
    pub fn status(&self, errors: &Errors) -> StatusCode {
        match errors.shape {
            ErrorShape::Problem => self.facts().status,
            ErrorShape::Stripe => stripe::status(self),
            ErrorShape::Platform => platform::status(self),
            ErrorShape::AwsXml => aws_xml::status(self),
        }
    }

    /// The body and its media type, as the route says errors. `record` names the record where there is one.
    #[must_use]
    pub fn body(&self, errors: &Errors, record: Option<ShortId>) -> (&'static str, Bytes) {
        let (media_type, text) = match errors.shape {
            ErrorShape::Problem => (
                problem_json::MEDIA_TYPE,
                problem_json::body(self, errors, record),
            ),
            ErrorShape::Stripe => (json::MEDIA_TYPE, stripe::body(self, record)),
            ErrorShape::Platform => (json::MEDIA_TYPE, platform::body(self, record)),
            ErrorShape::AwsXml => (aws_xml::MEDIA_TYPE, aws_xml::body(self, record)),
        };
        (media_type, text.into())
    }

    /// Its name in `type`, in logs and in the documents.
    #[must_use]
    pub fn slug(&self) -> &'static str {
        self.facts().slug
    }

    /// The value of `Retry-After`, in whole seconds rounded up, at least 1; `None`: there is no such header.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        let wait = match self {
            Self::InFlight { retry_after }
            | Self::OutcomeUnknown {
                left: HoldLeft::Forever,
                retry_after,
            } => *retry_after,
            Self::OutcomeUnknown {
                left: HoldLeft::For(left),
                ..
            } => *left,
            Self::UpstreamTimeout
            | Self::Unprotected(Doubt::Late)
            | Self::StoreUnavailable
            | Self::StoreFull
            | Self::Overloaded => RETRY_AFTER_OUTAGE,
            Self::KeyMissing { .. }
            | Self::KeyInvalid(_)
            | Self::CallerMissing
            | Self::ResponseNotRetained { .. }
            | Self::KeyExpired
            | Self::BodyTooLarge { .. }
            | Self::KeyReused
            | Self::NoStore
            | Self::UpstreamUnreachable
            | Self::UpstreamFailed
            | Self::Unprotected(Doubt::Failed)
            | Self::BadRequest(_)
            | Self::MethodNotAllowed
            | Self::RequestTimeout
            | Self::TargetTooLong
            | Self::HeadTooLarge
            | Self::LoopDetected
            | Self::ExpectationFailed => return None,
        };
        Some(
            (wait.as_millis().div_ceil(1000).max(1))
                .try_into()
                .unwrap_or(u64::MAX),
        )
    }

    /// Whether the connection ends with it: what comes behind such a request cannot be trusted or is not wanted.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::BadRequest(_)
                | Self::MethodNotAllowed
                | Self::RequestTimeout
                | Self::TargetTooLong
                | Self::HeadTooLarge
                | Self::LoopDetected
                | Self::ExpectationFailed
        )
    }
}
