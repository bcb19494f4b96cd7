//! Passing through: both directions stream, and nothing is kept.

use std::pin::Pin;

use http::{
    HeaderValue, Request, Response, Version,
    header::{HOST, TE, TRAILER},
    request,
    uri::{PathAndQuery, Uri},
};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{Peer, Worker, answer::Answer, body::AnswerBody};
use crate::{
    config::{self, HostHeader},
    core::{headers, policy::Errors, problem::Problem},
    telemetry::metrics::{Outcome, StatusClass},
    upstream::{OutgoingBody, Pool, SendFailure, Upload, UpstreamBody},
};
use http_body::Body as _;

/// A request that passes through: where to, and how it is counted and refused.
pub(super) struct Through<'a> {
    /// Which upstream.
    pub(super) upstream: usize,
    /// Which route, for metrics; `None`: none.
    pub(super) route: Option<usize>,
    /// How errors are said.
    pub(super) errors: &'a Errors,
    /// What it counts as if the upstream answers.
    pub(super) outcome: Outcome,
}

/// Sends the request on as it comes and answers as the upstream does.
///
/// Dropping the future closes the upstream's connection in the middle of the call: an unkeyed call is its client's.
pub(super) async fn forward(
    worker: &Worker,
    through: Through<'_>,
    request: Request<Incoming>,
    peer: &Peer,
) -> Answer {
    let Through {
        upstream,
        route,
        errors,
        outcome,
    } = through;
    let failed = |problem: &Problem| {
        use crate::store::clock::Clock as _;
        Answer::problem(
            problem,
            Outcome::UpstreamFailure,
            errors,
            None,
            worker.proxy.clock.now(),
        )
    };
    let Some(pool) = worker.pools.get(upstream) else {
        return failed(&Problem::UpstreamUnreachable); // checked when it was configured
    };
    let (mut parts, incoming) = request.into_parts();
    let trailers = headers::takes_trailers(&parts.headers);
    outgoing_head(&mut parts, worker, peer, pool.upstream());
    if trailers {
        parts
            .headers
            .insert(TE, HeaderValue::from_static("trailers"));
    }
    let (body, upload) = if incoming.is_end_stream() {
        (OutgoingBody::Whole(None), None)
    } else {
        let (body, upload) = OutgoingBody::streamed(incoming, worker.proxy.body_timeout);
        (body, Some(upload))
    };
    let sent = Instant::now();
    let call = std::pin::pin!(pool.send(Request::from_parts(parts, body)));
    let answered = head_in_time(pool, call, upload.as_deref(), sent).await;
    let status = match &answered {
        Ok(Ok(response)) => Some(response.status()),
        Ok(Err(_)) | Err(TimedOut) => None,
    };
    let took = sent.elapsed();
    worker
        .proxy
        .metrics
        .route(route)
        .upstream(StatusClass::from(status), took);
    match answered {
        Ok(Ok(response)) => {
            let mut answer = Answer::new(passed(response), outcome);
            answer.upstream = Some(took);
            answer
        }
        Ok(Err(failure)) => {
            tracing::debug!(upstream = pool.upstream().name, %failure, "an unkeyed call failed");
            match failure {
                SendFailure::NotSent(_) => failed(&Problem::UpstreamUnreachable),
                SendFailure::MaybeSent(_) if upload.is_some_and(|upload| upload.is_broken()) => {
                    failed(&Problem::RequestTimeout)
                }
                SendFailure::MaybeSent(_) => failed(&Problem::UpstreamFailed),
            }
        }
        Err(TimedOut) => failed(&Problem::UpstreamTimeout),
    }
}

/// What [`Pool::send`] comes to.
type Sent = Result<Response<UpstreamBody>, SendFailure>;

struct TimedOut;

/// The answer's head, if it comes within `response_timeout` of the end of the upload, which began at `sent`.
async fn head_in_time(
    pool: &Pool,
    mut call: Pin<&mut impl Future<Output = Sent>>,
    upload: Option<&Upload>,
    sent: Instant,
) -> Result<Sent, TimedOut> {
    let limit = pool.upstream().response_timeout;
    let mut deadline = sent + limit;
    loop {
        let uploading = upload.is_some_and(|upload| !upload.has_ended());
        match pool.response_timers().within(deadline, call.as_mut()).await {
            Some(answered) => return Ok(answered),
            // A long upload is not a slow answer; one that stalls is cut by `body_timeout`.
            None if uploading => deadline = Instant::now() + limit,
            None => return Err(TimedOut),
        }
    }
}

/// Makes a client's head the one that the upstream gets: one hop further, HTTP/1.1, origin-form, its path and query untouched.
pub(super) fn outgoing_head(
    parts: &mut request::Parts,
    worker: &Worker,
    peer: &Peer,
    upstream: &config::Upstream,
) {
    // The target's own authority wins over Host (RFC 9112, section 3.2.2).
    let host = match upstream.host {
        HostHeader::Upstream => Some(upstream.authority.as_str()),
        HostHeader::Preserve => parts.uri.authority().map(http::uri::Authority::as_str),
    };
    let host = host.and_then(|host| HeaderValue::from_str(host).ok());
    headers::forward_request(&mut parts.headers, &peer.arrival);
    headers::add_hop(&mut parts.headers, &worker.proxy.hop);
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    if parts.uri.authority().is_some() {
        let target = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    parts.version = Version::HTTP_11;
}

/// An upstream's answer as its client gets it.
pub(super) fn passed(response: Response<UpstreamBody>) -> Response<AnswerBody> {
    let mut response = response.map(AnswerBody::Streamed);
    headers::strip_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response
}

/// The same for an execution, whose answers have no trailers.
pub(super) fn passed_head(parts: &mut http::response::Parts) {
    headers::strip_hop_by_hop(&mut parts.headers);
    parts.headers.remove(TRAILER);
    parts.version = Version::HTTP_11;
}
