//! Passing through: both directions stream, and nothing is kept.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode, Version,
    header::{HOST, TE},
    request,
    uri::{PathAndQuery, Uri},
};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{Peer, Refusal, Rest, Worker, answer::Answer, body::AnswerBody, upgrade};
pub(super) use crate::upstream::take_request;
use crate::{
    config::{self, HostHeader},
    core::{
        added::Added,
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
    parts: &mut request::Parts,
    incoming: Incoming,
    peer: &Peer,
) -> Answer {
    if through.present.has(Kind::HopByHop)
        && let Some(protocols) = Protocols::asked(parts.version, &parts.headers)
    {
        let request = take_request(parts, incoming);
        // Rare and large; boxed, it costs the others nothing.
        return Box::pin(upgrade::forward(worker, through, request, &protocols, peer)).await;
    }
    let mut passing = match Passing::new(worker, through) {
        Ok(passing) => passing,
        Err(answer) => return *answer,
    };
    let sent = passing.begins();
    let (body, added, upload) = outgoing(&passing, parts, incoming, peer, sent);
    let call = passing.pool.send_at(parts, body, added, sent);
    pass(passing, call, upload, sent).await
}

/// The same for a request whose body was read already. It asks for no other protocol: what had to be read for its key is HTTP.
pub(super) async fn forward_whole(
    worker: &Worker,
    through: Through<'_>,
    request: Request<Bytes>,
    peer: &Peer,
) -> Answer {
    let mut passing = match Passing::new(worker, through) {
        Ok(passing) => passing,
        Err(answer) => return *answer,
    };
    let (mut parts, body) = request.into_parts();
    let added = passing.head(&mut parts, peer);
    let sent = passing.begins();
    let body = OutgoingBody::whole(body);
    let call = passing.pool.send_at(&mut parts, body, added, sent);
    pass(passing, call, None, sent).await
}

/// Waits for the answer to a call that began at `sent`.
async fn pass(
    mut passing: Passing<'_>,
    mut call: Call,
    upload: Option<Arc<Upload>>,
    sent: Instant,
) -> Answer {
    let pool = passing.pool;
    let call = Pin::new(&mut call);
    let body_timeout = passing.worker.proxy.body_timeout;
    let answered = head_in_time(pool, call, upload.as_deref(), body_timeout, sent).await;
    match answered.map(|sent| sent.and_then(not_switched)) {
        Ok(Ok(response)) => passing.passed(response),
        Ok(Err(failure)) => passing.failed(&failure, stage(upload.as_deref())),
        Err(TimedOut) => passing.timed_out(stage(upload.as_deref())),
    }
}

/// How far a request's own body has come, where it is one.
fn stage(upload: Option<&Upload>) -> Option<UploadStage> {
    upload.map(Upload::stage)
}

/// A request on its way through, and what becomes of its answer. Dropped before there is one, its client has gone away; the call counts.
pub(super) struct Passing<'a> {
    worker: &'a Worker,
    through: Through<'a>,
    pub(super) pool: &'a Pool,
    /// Since when a call runs that has not been counted.
    sent: Option<Instant>,
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
            sent: None,
        })
    }

    fn head<'b>(&self, parts: &mut request::Parts, peer: &'b Peer) -> Added<'b>
    where
        'a: 'b,
    {
        let trace = &self.through.trace;
        let present = self.through.present;
        forwarded(
            parts,
            self.worker,
            peer,
            (trace, present),
            self.pool.upstream(),
        )
    }

    /// Its call begins, now.
    pub(super) fn begins(&mut self) -> Instant {
        *self.sent.insert(Instant::now())
    }

    /// Counts the call, once; how long it took.
    fn count(&mut self, status: Option<StatusCode>) -> Option<Duration> {
        let took = self.sent.take()?.elapsed();
        let metrics = self.worker.proxy.metrics.route(self.through.route);
        metrics.upstream(StatusClass::from(status), took);
        Some(took)
    }

    /// The upstream's answer as it goes out.
    pub(super) fn answered(&mut self, response: Response<AnswerBody>) -> Answer {
        let took = self.count(Some(response.status()));
        let mut answer = Answer::new(response, self.through.outcome);
        answer.upstream = took;
        answer
    }

    /// The upstream's answer as it came.
    pub(super) fn passed(&mut self, response: Response<UpstreamBody>) -> Answer {
        self.answered(passed(response))
    }

    /// There is no answer; `stage` says how far the request's own body came.
    pub(super) fn failed(&mut self, failure: &SendFailure, stage: Option<UploadStage>) -> Answer {
        self.count(None);
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
        self.refused(&refusal, stage)
    }

    /// There is none in time.
    pub(super) fn timed_out(&mut self, stage: Option<UploadStage>) -> Answer {
        self.count(None);
        let refusal = (Problem::Unprotected(Doubt::Late), Outcome::UpstreamFailure);
        self.refused(&refusal, stage)
    }

    /// What is left of the request's body is not read any more: its connection ends.
    fn refused(&self, refusal: &Refusal, stage: Option<UploadStage>) -> Answer {
        let rest = match stage {
            None | Some(UploadStage::Ended(_)) => Rest::Nothing,
            Some(_) => Rest::Unread,
        };
        let answer = self.worker.error(self.through.errors, refusal, None);
        answer.behind(rest)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.count(None);
    }
}

/// Makes a client's head the one that the upstream gets, but for what is added to it; and its body as it comes.
pub(super) fn outgoing<'a>(
    passing: &Passing<'a>,
    parts: &mut request::Parts,
    incoming: Incoming,
    peer: &'a Peer,
    now: Instant,
) -> (OutgoingBody, Added<'a>, Option<Arc<Upload>>) {
    let incoming = Received::new(incoming, parts.version);
    let added = passing.head(parts, peer);
    if incoming.is_end_stream() {
        return (OutgoingBody::Whole(None), added, None);
    }
    let body_timeout = passing.worker.proxy.body_timeout;
    let (body, upload) = OutgoingBody::streamed(incoming, body_timeout, now);
    (body, added, Some(upload))
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
    let added = forwarded(parts, worker, peer, (trace, present), upstream);
    added.insert_into(&mut parts.headers);
}

/// The same for a head that is known to have this present, and but for what is added to it.
pub(super) fn forwarded<'a>(
    parts: &mut request::Parts,
    worker: &'a Worker,
    peer: &'a Peer,
    (trace, present): (&Trace, Present),
    upstream: &config::Upstream,
) -> Added<'a> {
    let headers = &mut parts.headers;
    // The target's own authority wins over Host (RFC 9112, section 3.2.2).
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(HOST, host);
    }
    let trailers = present.has(Kind::HopByHop) && headers::takes_trailers(headers);
    let stranger = headers::forward_request(headers, present, &peer.arrival);
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
    let added = Added {
        stranger,
        via: worker.proxy.hop.via(parts.version),
        traceparent: trace.begun(headers, present),
    };
    if parts.uri.authority().is_some() {
        let target = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    parts.version = Version::HTTP_11;
    added
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
