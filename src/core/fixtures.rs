//! What unit tests of the core and of the stores start from: one policy with the defaults of the contract, and
//! requests, answers and points in time in one word each.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::{
    fingerprint::Fingerprint,
    policy::{
        AfterExpiry, BodyMode, CallerPart, Carrier, EmptyKey, ErrorShape, Errors, FingerprintRule,
        Identity, InFlight, KeyFormat, KeyPlace, KeyRule, KeySource, KeySyntax, Marker,
        MismatchInFlight, MissingCaller, OnStoreFailure, Policy, QueryMode, ReplayHeaders,
        RetentionFrom, RouteName, Scope, StatusSet, Terms, UnknownOutcome,
    },
    record::{ClaimToken, RecordId, StoredAnswer},
};

/// The default terms: 24 h from completion, a lease of 60 s, unknown outcomes held for good.
pub(crate) fn terms() -> Terms {
    Terms {
        retention: Duration::from_hours(24),
        retention_from: RetentionFrom::Completion,
        after_expiry: AfterExpiry::Execute,
        lease: Duration::from_mins(1),
        unknown: UnknownOutcome::HoldForever,
    }
}

/// The route that all fixtures came by.
pub(crate) fn route() -> RouteName {
    RouteName::new("orders")
}

/// The fingerprint of `POST /orders` with this body.
pub(crate) fn request(body: &str) -> Arc<Fingerprint> {
    let rule = Arc::new(fingerprint_rule());
    let body = Bytes::copy_from_slice(body.as_bytes());
    Arc::new(Fingerprint::new(
        &rule,
        &Method::POST,
        "/orders",
        None,
        &HeaderMap::new(),
        body,
    ))
}

/// A 201 with one header and this body.
pub(crate) fn answer(body: &[u8]) -> StoredAnswer {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    StoredAnswer::capture(StatusCode::CREATED, &headers, body)
}

/// The `n`th record id.
pub(crate) fn id(n: u64) -> RecordId {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    RecordId::from_bytes(bytes)
}

/// The `n`th token.
pub(crate) fn token(n: u64) -> ClaimToken {
    ClaimToken::from_random(u128::from(n).to_be_bytes())
}

fn fingerprint_rule() -> FingerprintRule {
    FingerprintRule {
        method: true,
        path: true,
        query: QueryMode::Exact,
        headers: vec![HeaderName::from_static("content-type")],
        body: BodyMode::Auto,
        ignore: Vec::new(),
        only: Vec::new(),
    }
}

/// The `standard` dialect (contract, section 3).
pub(crate) fn policy() -> Policy {
    Policy {
        key: KeyRule::Optional,
        key_sources: vec![KeySource {
            place: KeyPlace::Header(HeaderName::from_static("idempotency-key")),
            carrier: Carrier::new("Idempotency-Key"),
        }],
        key_syntax: KeySyntax::Either,
        key_format: KeyFormat::Any,
        key_max_length: 255,
        empty_key: EmptyKey::Reject,
        key_required_if: Vec::new(),
        identity: Identity {
            from: vec![CallerPart::Authorization],
            missing: MissingCaller::Reject,
            jwt: None,
        },
        scope: Scope::Operation,
        fingerprint: Arc::new(fingerprint_rule()),
        in_flight: InFlight::Wait,
        wait_timeout: Duration::from_secs(30),
        max_waiters: 1000,
        mismatch_in_flight: MismatchInFlight::Mismatch,
        store_responses: StatusSet::parse(&["2xx"]).expect("statuses"),
        unknown_responses: StatusSet::EMPTY,
        terms: terms(),
        retry_after: Duration::from_secs(2),
        replay_headers: ReplayHeaders::EndToEnd,
        marker: Marker {
            header: Some(HeaderName::from_static("idempotency-key-reply")),
            miss: Some(HeaderValue::from_static("miss")),
            hit: Some(HeaderValue::from_static("hit")),
        },
        expiry_header: None,
        max_request_body: 1 << 20,
        max_response_body: 1 << 20,
        stream_types: vec!["text/event-stream".into()],
        on_store_failure: OnStoreFailure::Reject,
        replay_auth: None,
        errors: Errors {
            shape: ErrorShape::Problem,
            type_base: "urn:idem-proxy:problem:".into(),
            link: None,
        },
    }
}
