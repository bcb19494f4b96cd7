//! Passing through: both directions stream, and nothing is kept.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
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
    upstream::{MaybeSent, OutgoingBody, Pool, SendFailure, Upload, UploadStage, UpstreamBody},
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
    let (parts, incoming) = request.into_parts();
    let (body, upload) = if incoming.is_end_stream() {
        (OutgoingBody::Whole(None), None)
    } else {
        let (body, upload) = OutgoingBody::streamed(incoming, worker.proxy.body_timeout);
        (body, Some(upload))
    };
    pass(
        worker,
        through,
        Request::from_parts(parts, body),
        upload,
        peer,
    )
    .await
}

/// The same for a request whose body was read already.
pub(super) async fn forward_whole(
    worker: &Worker,
    through: Through<'_>,
    request: Request<Bytes>,
    peer: &Peer,
) -> Answer {
    pass(
        worker,
        through,
        request.map(OutgoingBody::whole),
        None,
        peer,
    )
    .await
}

async fn pass(
    worker: &Worker,
    through: Through<'_>,
    request: Request<OutgoingBody>,
    upload: Option<Arc<Upload>>,
    peer: &Peer,
) -> Answer {
    let Through {
        upstream,
        route,
        errors,
        outcome,
    } = through;
    let problem = |problem: &Problem, outcome| {
        use crate::store::clock::Clock as _;
        Answer::problem(problem, outcome, errors, None, worker.proxy.clock.now())
    };
    let failed = |why: &Problem| problem(why, Outcome::UpstreamFailure);
    let refused = |why: &Problem| problem(why, Outcome::BadRequest);
    let Some(pool) = worker.pools.get(upstream) else {
        return failed(&Problem::UpstreamUnreachable); // checked when it was configured
    };
    let (mut parts, body) = request.into_parts();
    let trailers = headers::takes_trailers(&parts.headers);
    outgoing_head(&mut parts, worker, peer, pool.upstream());
    if trailers {
        parts
            .headers
            .insert(TE, HeaderValue::from_static("trailers"));
    }
    let sent = Instant::now();
    let call = std::pin::pin!(pool.send(Request::from_parts(parts, body)));
    let body_timeout = worker.proxy.body_timeout;
    let answered = head_in_time(pool, call, upload.as_deref(), body_timeout, sent).await;
    let answered = answered.map(|sent| sent.and_then(not_switched));
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
            match (failure, upload.map(|upload| upload.stage())) {
                (_, Some(UploadStage::Stalled)) => refused(&Problem::RequestTimeout),
                (_, Some(UploadStage::Broken)) => {
                    refused(&Problem::BadRequest("The request's body is broken."))
                }
                (SendFailure::NotSent(_), _) => failed(&Problem::UpstreamUnreachable),
                (SendFailure::MaybeSent(_), _) => failed(&Problem::UpstreamFailed),
            }
        }
        Err(TimedOut) => failed(&Problem::UpstreamTimeout),
    }
}

/// Refuses an answer that would switch protocols: nobody has asked for that, for `Upgrade` ends at this hop.
pub(super) fn not_switched(
    answer: Response<UpstreamBody>,
) -> Result<Response<UpstreamBody>, SendFailure> {
    if answer.status().is_informational() {
        return Err(SendFailure::MaybeSent(MaybeSent::switched_protocols()));
    }
    Ok(answer)
}

/// What [`Pool::send`] comes to.
type Sent = Result<Response<UpstreamBody>, SendFailure>;

struct TimedOut;

/// The answer's head, if it comes in time: within `response_timeout` of the end of the upload that began at `sent`. While the upload goes
/// on, each piece of it has `body_timeout` to be taken, so that an upstream which does not read is given up too.
async fn head_in_time(
    pool: &Pool,
    mut call: Pin<&mut impl Future<Output = Sent>>,
    upload: Option<&Upload>,
    body_timeout: Duration,
    sent: Instant,
) -> Result<Sent, TimedOut> {
    let limit = pool.upstream().response_timeout;
    let due = || match upload.map(Upload::stage) {
        None | Some(UploadStage::NotBegun) => sent + limit,
        Some(UploadStage::Going(last)) => last + body_timeout + GRACE,
        Some(UploadStage::Ended(at)) => at + limit,
        // The call ends by itself: its body has failed.
        Some(UploadStage::Stalled | UploadStage::Broken) => Instant::now() + GRACE,
    };
    loop {
        // While it is uploaded it may become due earlier than it looks now, so that it is looked at again.
        let deadline = match upload {
            None => due(),
            Some(_) => due().min(Instant::now() + body_timeout),
        };
        match pool.response_timers().within(deadline, call.as_mut()).await {
            Some(answered) => return Ok(answered),
            None if due() > Instant::now() => {}
            None => return Err(TimedOut),
        }
    }
}

/// By so much a client that stalls is told first, where it and the upstream have the same time.
const GRACE: Duration = Duration::from_millis(500);

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
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    headers::forward_request(&mut parts.headers, &peer.arrival);
    headers::add_hop(&mut parts.headers, &worker.proxy.hop);
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
