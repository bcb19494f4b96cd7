//! The proxy's own errors, and how each shape says them (contract, section 7): one table, no catch-all.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::{policy::Errors, record::ShortId, transition::HoldLeft};

/// Everything that the proxy itself answers with instead of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No key where one is required.
    KeyMissing,
    /// A key that breaks the rules; which one.
    KeyInvalid(KeyFault),
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
    /// The request has been here before.
    LoopDetected,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
}

/// The rule that a key breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// It stands on more than one line.
    Repeated,
    /// It is empty.
    Empty,
    /// It is longer than `key_max_length`.
    TooLong,
    /// It is neither a structured-field string nor bare visible ASCII without comma and space.
    NotAKey,
    /// It is no structured-field string.
    NotAString,
    /// It does not fit `key_format`.
    Format,
}

/// When an overload or an outage of the store is worth another try.
const RETRY_AFTER_OUTAGE: Duration = Duration::from_secs(1);

struct Entry {
    slug: &'static str,
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    retryable: bool,
    reuse_key: Option<bool>,
}

impl Problem {
    fn entry(&self) -> Entry {
        use StatusCode as S;
        let row = |slug, status, code, title, retryable, reuse_key| Entry {
            slug,
            status,
            code,
            title,
            retryable,
            reuse_key,
        };
        #[rustfmt::skip]
        let entry = match self {
            Self::KeyMissing => row("key-missing", S::BAD_REQUEST, "IDEMPOTENCY_KEY_REQUIRED", "Idempotency key required", false, None),
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
            Self::StoreUnavailable => row("store-unavailable", S::SERVICE_UNAVAILABLE, "IDEMPOTENCY_STORE_UNAVAILABLE", "Idempotency store unavailable", true, Some(true)),
            Self::StoreFull => row("store-full", S::SERVICE_UNAVAILABLE, "IDEMPOTENCY_STORE_FULL", "Idempotency store full", true, Some(true)),
            Self::Overloaded => row("overloaded", S::SERVICE_UNAVAILABLE, "OVERLOADED", "Overloaded", true, Some(true)),
            Self::BadRequest(_) => row("bad-request", S::BAD_REQUEST, "BAD_REQUEST", "Bad request", false, None),
            Self::MethodNotAllowed => row("method-not-allowed", S::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "Method not allowed", false, None),
            Self::RequestTimeout => row("request-timeout", S::REQUEST_TIMEOUT, "REQUEST_TIMEOUT", "Request timeout", true, Some(true)),
            Self::TargetTooLong => row("target-too-long", S::URI_TOO_LONG, "TARGET_TOO_LONG", "Request target too long", false, None),
            Self::LoopDetected => row("loop-detected", S::LOOP_DETECTED, "LOOP_DETECTED", "Loop detected", false, None),
            Self::ExpectationFailed => row("expectation-failed", S::EXPECTATION_FAILED, "EXPECTATION_FAILED", "Expectation failed", false, None),
        };
        entry
    }

    /// The status it is answered with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.entry().status
    }

    /// Its name in `type`, in logs and in the documents.
    #[must_use]
    pub fn slug(&self) -> &'static str {
        self.entry().slug
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
            _ if matches!(
                self.status(),
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
            ) =>
            {
                RETRY_AFTER_OUTAGE
            }
            _ => return None,
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
                | Self::LoopDetected
                | Self::ExpectationFailed
        )
    }

    fn detail(&self) -> String {
        match self {
            Self::KeyMissing => "This operation needs an idempotency key. Send one, and send the same one with every retry.".into(),
            Self::KeyInvalid(fault) => fault.detail().into(),
            Self::CallerMissing => "The request does not say who is calling, and idempotency keys belong to a caller. Nothing was executed.".into(),
            Self::InFlight { .. } => "A request with this key is still running. Send the same request again later to get its answer.".into(),
            Self::OutcomeUnknown { left: HoldLeft::For(_), .. } => "An earlier request with this key may have been executed: its answer never came. The key is held for a while; afterwards the same request runs again.".into(),
            Self::OutcomeUnknown { left: HoldLeft::Forever, .. } => "An earlier request with this key may have been executed: its answer never came. The key is held until an operator settles the record or its retention ends. Check the resource before sending the write under a new key.".into(),
            Self::ResponseNotRetained { .. } => "This request was executed, and its answer was too large to keep or a stream. It will not be executed again under this key.".into(),
            Self::KeyExpired => "This key has expired: what it named is too old to be answered, and is not executed again. Use a new key for a new operation.".into(),
            Self::BodyTooLarge { limit } => format!("The body of a request with an idempotency key may have at most {limit} bytes here. Nothing was executed."),
            Self::KeyReused => "This key was used for a different request. Use a new key for a new operation.".into(),
            Self::NoStore => "This service keeps no idempotency records, so it cannot honour an idempotency key. Nothing was executed.".into(),
            Self::UpstreamUnreachable => "The service behind this proxy could not be reached. Nothing was executed; send the same request again.".into(),
            Self::UpstreamFailed => "The service behind this proxy got the request and gave no usable answer. It may have been executed.".into(),
            Self::UpstreamTimeout => "The service behind this proxy did not answer in time. It may still be working: send the same request again to get its answer.".into(),
            Self::StoreUnavailable => "The store of idempotency records does not answer. Nothing was executed.".into(),
            Self::StoreFull => "The store of idempotency records has no room for another one. Nothing was executed.".into(),
            Self::Overloaded => "Too much is running at the moment. Nothing was executed.".into(),
            Self::BadRequest(what) => (*what).into(),
            Self::MethodNotAllowed => "This proxy does not serve CONNECT and TRACE, and its published policy to GET and HEAD alone.".into(),
            Self::RequestTimeout => "The request's body did not come in time.".into(),
            Self::TargetTooLong => "The request's target is longer than this proxy takes.".into(),
            Self::LoopDetected => "The request came back to the proxy that it was sent through: the upstream leads to the proxy itself.".into(),
            Self::ExpectationFailed => "The only expectation that can be met is 100-continue.".into(),
        }
    }

    /// The body and its media type, as the route says errors. `record` names the record where there is one.
    #[must_use]
    pub fn body(&self, errors: &Errors, record: Option<ShortId>) -> (&'static str, Bytes) {
        let entry = self.entry();
        let mut document = serde_json::json!({
            "type": format!("{}{}", errors.type_base, entry.slug),
            "title": entry.title,
            "status": entry.status.as_u16(),
            "detail": self.detail(),
            "code": entry.code,
            "retryable": entry.retryable,
        });
        if let Some(members) = document.as_object_mut() {
            if let Some(reuse) = entry.reuse_key {
                members.insert("reuse_key".into(), reuse.into());
            }
            if let Some(record) = record {
                members.insert("record".into(), record.to_string().into());
            }
            if let Self::ResponseNotRetained { original_status } = self {
                members.insert("original_status".into(), original_status.as_u16().into());
            }
        }
        ("application/problem+json", document.to_string().into())
    }
}

impl KeyFault {
    const fn detail(self) -> &'static str {
        match self {
            Self::Repeated => {
                "The idempotency key stands on more than one line. Send one key, on one line."
            }
            Self::Empty => "The idempotency key is empty.",
            Self::TooLong => "The idempotency key is longer than this operation takes.",
            Self::NotAKey => {
                "The idempotency key must be a quoted string, or visible ASCII without comma and space."
            }
            Self::NotAString => {
                "The idempotency key must be a structured-field string: in double quotes (RFC 9651, section 3.3.3)."
            }
            Self::Format => {
                "The idempotency key does not have the form that this operation asks for."
            }
        }
    }
}
