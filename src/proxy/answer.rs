//! Answers: how a record, a landing or a problem becomes a response.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response,
    header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, DATE, LINK, RETRY_AFTER},
};

use super::{
    Rest,
    body::{AnswerBody, Resumed},
};
use crate::{
    core::{
        policy::{Errors, Policy},
        problem::Problem,
        record::{Record, ShortId, State, StoredAnswer},
        time::Timestamp,
        trace::SpanRef,
        trailers::{self, Taken},
    },
    limit::Permit,
    telemetry::metrics::Outcome,
};

/// An answer, and what is counted and logged of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response<AnswerBody>,
    pub(super) outcome: Outcome,
    pub(super) record: Option<ShortId>,
    /// How long the upstream took, where this answer waited for it.
    pub(super) upstream: Option<Duration>,
    /// Bytes of the request's body, where they were counted.
    pub(super) request_bytes: Option<u64>,
    /// The span of the execution that it is the answer of, where another request began that, and it was traced.
    pub(super) execution: Option<Arc<SpanRef>>,
}

impl Answer {
    pub(super) fn new(response: Response<AnswerBody>, outcome: Outcome) -> Self {
        Self {
            response,
            outcome,
            record: None,
            upstream: None,
            request_bytes: None,
            execution: None,
        }
    }

    pub(super) fn brought_by(mut self, execution: Option<Arc<SpanRef>>) -> Self {
        self.execution = execution;
        self
    }

    /// The same, counted as an execution until its body has ended where that is still to come.
    pub(super) fn under(mut self, room: Permit) -> Self {
        self.response = self.response.map(|body| match body {
            AnswerBody::Streamed(rest) => AnswerBody::Resumed(Box::new(Resumed {
                read: Vec::new(),
                rest,
                _room: room,
            })),
            whole => whole,
        });
        self
    }

    pub(super) fn of(mut self, record: ShortId) -> Self {
        self.record = Some(record);
        self
    }

    /// The same behind a request of which this is left. Where it is something, an HTTP/1.x client is told that the connection ends.
    pub(super) fn behind(mut self, rest: Rest) -> Self {
        if rest == Rest::Unread {
            let headers = self.response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self
    }

    /// One of the proxy's own errors.
    pub(super) fn problem(
        problem: &Problem,
        outcome: Outcome,
        errors: &Errors,
        record: Option<ShortId>,
        now: Timestamp,
    ) -> Self {
        let (media_type, body) = problem.body(errors, record);
        let mut response = Response::new(AnswerBody::whole(body));
        *response.status_mut() = problem.status(errors);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = problem.retry_after() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if problem.ends_connection() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(link) = &errors.link {
            headers.insert(LINK, link.clone());
        }
        if let Some(date) = http_date(now) {
            headers.insert(DATE, date);
        }
        Self {
            record,
            ..Self::new(response, outcome)
        }
    }
}

/// The answer to an OPTIONS request whose `Max-Forwards` ends here (RFC 9110, section 7.6.2): what is forwarded at all.
pub(super) fn options() -> Answer {
    let mut response = Response::new(AnswerBody::Whole(None));
    let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    response.headers_mut().insert(ALLOW, allowed);
    Answer::new(response, Outcome::Passthrough)
}

/// The replay of a complete record, marked as a hit, for a client that takes trailers or not.
pub(super) fn replay(
    record: &Record,
    answer: &StoredAnswer,
    policy: &Policy,
    client: impl Into<Taken>,
) -> Response<AnswerBody> {
    let mut response = from_stored(answer, client);
    let headers = response.headers_mut();
    mark(headers, policy, policy.marker.hit.as_ref());
    expires(headers, policy, record.expires_at);
    response
}

/// The answer that a record's state holds, if it holds one.
pub(super) fn stored(record: &Record) -> Option<&StoredAnswer> {
    match &record.state {
        State::Complete(answer) => Some(answer),
        State::InFlight { .. }
        | State::Unknown { .. }
        | State::Tombstone { .. }
        | State::Expired => None,
    }
}

/// A stored or shared answer as it is, without a marker.
pub(super) fn from_stored(answer: &StoredAnswer, client: impl Into<Taken>) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::whole(Bytes::clone(answer.body())));
    *response.status_mut() = answer.status();
    let headers = response.headers_mut();
    headers.reserve((answer.headers().len() + ADDED).max(ROOM));
    for (name, value) in answer.headers() {
        headers.append(name.clone(), value.clone());
    }
    trail(&mut response, answer, client);
    response
}

/// Puts an answer's trailers behind its body, if there are any and the client takes them (RFC 9110, section 6.5). Whether it does is found
/// out only then.
pub(super) fn trail(
    response: &mut Response<AnswerBody>,
    answer: &StoredAnswer,
    client: impl Into<Taken>,
) {
    let trailers = answer.trailers();
    if trailers.is_empty() || client.into() == Taken::No {
        return;
    }
    let mut fields = HeaderMap::with_capacity(trailers.len());
    for (name, value) in trailers {
        fields.append(name.clone(), value.clone());
    }
    trailers::announce(response.headers_mut(), fields.keys());
    *response.body_mut() = AnswerBody::with_trailers(Bytes::clone(answer.body()), fields);
}

/// So many headers are added to a stored answer: the marker, and the end of its record.
const ADDED: usize = 2;

/// The connection's next request is read into the same map, which then need not grow: most have no more fields.
const ROOM: usize = 12;

/// Puts the marker in the place of whatever the upstream sent under its name. No value: no header at all.
pub(super) fn mark(headers: &mut HeaderMap, policy: &Policy, value: Option<&HeaderValue>) {
    if let Some(name) = &policy.marker.header {
        set(headers, name, value.cloned());
    }
}

/// Says when the record ends, where the policy wants it said.
pub(super) fn expires(headers: &mut HeaderMap, policy: &Policy, at: Timestamp) {
    if let Some(name) = &policy.expiry_header {
        set(headers, name, http_date(at));
    }
}

fn set(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>) {
    match value {
        Some(value) => drop(headers.insert(name.clone(), value)),
        None => drop(headers.remove(name)),
    }
}

/// A point in time as headers say it.
pub(super) fn http_date(at: Timestamp) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(httpdate::fmt_http_date(at.to_system_time()))).ok()
}
