//! Passing through: both directions stream, and nothing is kept.

use std::{mem, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode, Version,
    header::{HOST, TE},
    request,
    uri::{PathAndQuery, Uri},
};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{Peer, Worker, answer::Answer, body::AnswerBody, upgrade};
use crate::{
    config::{self, HostHeader},
    core::{
        forwarding, headers,
        policy::Errors,
        present::{Kind, Present},
        problem::{Doubt, Problem},
        trace::Trace,
        upgrade::Protocols,
    },
    telemetry::metrics::{Outcome, StatusClass},
    upstream::{
        Call, MaybeSent, OutgoingBody, Pool, Received, SendFailure, Upload, UploadStage,
        UpstreamBody,
    },
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
    /// The trace that it belongs to.
    pub(super) trace: Trace,
    /// What its head has.
    pub(super) present: Present,
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
    if through.present.has(Kind::HopByHop)
        && let Some(protocols) = Protocols::asked(request.version(), request.headers())
    {
        // Rare and large; boxed, it costs the others nothing.
        return Box::pin(upgrade::forward(worker, through, request, &protocols, peer)).await;
    }
    let passing = match Passing::new(worker, through) {
        Ok(passing) => passing,
        Err(answer) => return *answer,
    };
    let sent = Instant::now();
    let (request, upload) = outgoing(&passing, request, peer, sent);
    let call = passing.pool.send_at(request, sent);
    pass(passing, call, upload, sent).await
}

/// The same for a request whose body was read already. It asks for no other protocol: what had to be read for its key is HTTP.
pub(super) async fn forward_whole(
    worker: &Worker,
    through: Through<'_>,
    request: Request<Bytes>,
    peer: &Peer,
) -> Answer {
    let passing = match Passing::new(worker, through) {
        Ok(passing) => passing,
        Err(answer) => return *answer,
    };
    let (mut parts, body) = request.into_parts();
    passing.head(&mut parts, peer);
    let sent = Instant::now();
    let request = Request::from_parts(parts, OutgoingBody::whole(body));
    let call = passing.pool.send(request);
    pass(passing, call, None, sent).await
}

/// Waits for the answer to a call that began at `sent`.
async fn pass(
    passing: Passing<'_>,
    mut call: Call,
    upload: Option<Arc<Upload>>,
    sent: Instant,
) -> Answer {
    let pool = passing.pool;
    let call = Pin::new(&mut call);
    let body_timeout = passing.worker.proxy.body_timeout;
    let answered = head_in_time(pool, call, upload.as_deref(), body_timeout, sent).await;
    match answered.map(|sent| sent.and_then(not_switched)) {
        Ok(Ok(response)) => passing.passed(response, sent),
        Ok(Err(failure)) => passing.failed(&failure, upload.map(|upload| upload.stage()), sent),
        Err(TimedOut) => passing.timed_out(sent),
    }
}

/// A request on its way through, and what becomes of its answer.
pub(super) struct Passing<'a> {
    worker: &'a Worker,
    through: Through<'a>,
    pub(super) pool: &'a Pool,
}

impl<'a> Passing<'a> {
    /// On its way to the upstream that it is for.
    pub(super) fn new(worker: &'a Worker, through: Through<'a>) -> Result<Self, Box<Answer>> {
        let Some(pool) = worker.pools.get(through.upstream) else {
            // Checked when it was configured.
            let refusal = (Problem::UpstreamUnreachable, Outcome::UpstreamFailure);
            return Err(Box::new(worker.error(through.errors, &refusal, None)));
        };
        Ok(Self {
            worker,
            through,
            pool,
        })
    }

    fn head(&self, parts: &mut request::Parts, peer: &Peer) {
        let trace = &self.through.trace;
        let present = self.through.present;
        forwarded(
            parts,
            self.worker,
            peer,
            (trace, present),
            self.pool.upstream(),
        );
    }

    /// Counts the call, which began at `sent`.
    fn count(&self, status: Option<StatusCode>, sent: Instant) -> Duration {
        let took = sent.elapsed();
        let metrics = self.worker.proxy.metrics.route(self.through.route);
        metrics.upstream(StatusClass::from(status), took);
        took
    }

    /// The upstream's answer as it goes out.
    pub(super) fn answered(&self, response: Response<AnswerBody>, sent: Instant) -> Answer {
        let took = self.count(Some(response.status()), sent);
        let mut answer = Answer::new(response, self.through.outcome);
        answer.upstream = Some(took);
        answer
    }

    /// The upstream's answer as it came.
    pub(super) fn passed(&self, response: Response<UpstreamBody>, sent: Instant) -> Answer {
        self.answered(passed(response), sent)
    }

    /// There is no answer; `stage` says how far the request's own body came.
    pub(super) fn failed(
        &self,
        failure: &SendFailure,
        stage: Option<UploadStage>,
        sent: Instant,
    ) -> Answer {
        self.count(None, sent);
        let upstream = &self.pool.upstream().name;
        tracing::debug!(upstream, %failure, "an unkeyed call failed");
        let refusal = match (failure, stage) {
            (_, Some(UploadStage::Stalled)) => (Problem::RequestTimeout, Outcome::BadRequest),
            (_, Some(UploadStage::Broken)) => (
                Problem::BadRequest("The request's body is broken."),
                Outcome::BadRequest,
            ),
            (SendFailure::NotSent(_), _) => {
                (Problem::UpstreamUnreachable, Outcome::UpstreamFailure)
            }
            (SendFailure::MaybeSent(_), _) => (
                Problem::Unprotected(Doubt::Failed),
                Outcome::UpstreamFailure,
            ),
        };
        self.worker.error(self.through.errors, &refusal, None)
    }

    /// There is none in time.
    pub(super) fn timed_out(&self, sent: Instant) -> Answer {
        self.count(None, sent);
        let refusal = (Problem::Unprotected(Doubt::Late), Outcome::UpstreamFailure);
        self.worker.error(self.through.errors, &refusal, None)
    }
}

/// A client's request as the upstream gets it, its body as it comes.
pub(super) fn outgoing(
    passing: &Passing<'_>,
    request: Request<Incoming>,
    peer: &Peer,
    now: Instant,
) -> (Request<OutgoingBody>, Option<Arc<Upload>>) {
    let (mut parts, incoming) = request.into_parts();
    let incoming = Received::new(incoming, parts.version);
    passing.head(&mut parts, peer);
    let (body, upload) = if incoming.is_end_stream() {
        (OutgoingBody::Whole(None), None)
    } else {
        let body_timeout = passing.worker.proxy.body_timeout;
        let (body, upload) = OutgoingBody::streamed(incoming, body_timeout, now);
        (body, Some(upload))
    };
    (Request::from_parts(parts, body), upload)
}

/// Refuses an answer that switches protocols to a request that was sent on without an `Upgrade` (RFC 9110, section 7.8).
pub(super) fn not_switched(
    answer: Response<UpstreamBody>,
) -> Result<Response<UpstreamBody>, SendFailure> {
    if answer.status().is_informational() {
        return Err(SendFailure::MaybeSent(MaybeSent::switched_protocols()));
    }
    Ok(answer)
}

/// `response_timeout` has passed.
pub(super) struct TimedOut;

/// The answer's head, if it comes in time: within `response_timeout` of the end of the upload that began at `sent`. While the upload goes
/// on, each piece of it has `body_timeout` to be taken, so that an upstream which does not read is given up too.
pub(super) async fn head_in_time<T>(
    pool: &Pool,
    mut call: Pin<&mut impl Future<Output = T>>,
    upload: Option<&Upload>,
    body_timeout: Duration,
    sent: Instant,
) -> Result<T, TimedOut> {
    let limit = pool.upstream().response_timeout;
    let due = || match upload.map(Upload::stage) {
        None | Some(UploadStage::NotBegun) => sent + limit,
        Some(UploadStage::Going(last)) => last + body_timeout + GRACE,
        Some(UploadStage::Ended(at)) => at + limit,
        // The call ends by itself: its body has failed.
        Some(UploadStage::Stalled | UploadStage::Broken) => Instant::now() + GRACE,
    };
    let mut looked = sent;
    loop {
        // While it is uploaded it may become due earlier than it looks now, so that it is looked at again.
        let deadline = match upload {
            None => due(),
            Some(_) => due().min(looked + body_timeout),
        };
        let timers = pool.response_timers();
        if let Some(answered) = timers.within(deadline, call.as_mut()).await {
            return Ok(answered);
        }
        looked = Instant::now();
        if due() <= looked {
            return Err(TimedOut);
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
    trace: &Trace,
    upstream: &config::Upstream,
) {
    let present = Present::of(&parts.headers);
    forwarded(parts, worker, peer, (trace, present), upstream);
}

/// The same for a head that is known to have this present.
pub(super) fn forwarded(
    parts: &mut request::Parts,
    worker: &Worker,
    peer: &Peer,
    (trace, present): (&Trace, Present),
    upstream: &config::Upstream,
) {
    let headers = &mut parts.headers;
    // The target's own authority wins over Host (RFC 9112, section 3.2.2).
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(HOST, host);
    }
    let trailers = present.has(Kind::HopByHop) && headers::takes_trailers(headers);
    headers::forward_request(headers, present, &peer.arrival);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // Who is told of the host that the client named has been told by now. HTTP/1.0 may name none.
    if (upstream.host == HostHeader::Upstream || !headers.contains_key(HOST))
        && let Ok(host) = HeaderValue::from_str(upstream.authority.as_str())
    {
        headers.insert(HOST, host);
    }
    forwarding::count_forward(&parts.method, headers);
    worker.proxy.hop.add_to(headers, parts.version);
    trace.write(headers, present);
    if parts.uri.authority().is_some() {
        let target = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    parts.version = Version::HTTP_11;
}

/// The request that goes out with this head, of which nothing is left.
pub(super) fn take_request<B>(parts: &mut request::Parts, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.method_mut() = mem::take(&mut parts.method);
    *request.uri_mut() = mem::take(&mut parts.uri);
    *request.version_mut() = parts.version;
    *request.headers_mut() = mem::take(&mut parts.headers);
    *request.extensions_mut() = mem::take(&mut parts.extensions);
    request
}

/// An upstream's answer as its client gets it.
pub(super) fn passed(response: Response<UpstreamBody>) -> Response<AnswerBody> {
    let mut response = response.map(AnswerBody::Streamed);
    headers::strip_hop_by_hop(response.headers_mut());
    headers::strip_length(response.status(), response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response
}

/// The same for the head of an execution's answer.
pub(super) fn passed_head(parts: &mut http::response::Parts) {
    headers::strip_hop_by_hop(&mut parts.headers);
    headers::strip_length(parts.status, &mut parts.headers);
    parts.version = Version::HTTP_11;
}
