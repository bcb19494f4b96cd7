//! Executions: the one call to the upstream, as a task of the proxy's own.
//!
//! The task holds the claim. It calls the upstream once, settles the record, and publishes the answer to the first client and to
//! those who joined. No client's connection is part of it. Dropping its future (the runtime goes away) drops the claim: the
//! outcome is unknown once the lease has run out.

use std::{mem, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header::TRAILER, request, response};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Place, Worker,
    body::AnswerBody,
    buffered::{Buffered, Pieces},
    finish::{Finish, Live, Whole},
    forward::{not_switched, outgoing_head, passed_head, take_request},
    keyed::Start,
    settle::Settling,
    traced::{CallSpan, Traced},
};
use crate::{
    config::Route,
    core::{
        fingerprint::Fingerprint,
        outcome::{Failure, Verdict, judge, judge_end},
        policy::Policy,
        problem::Problem,
        record::{NotRetained, RecordId, ShortId},
        trailers::{self, Taken},
    },
    flight::Seat,
    limit::Permit,
    store::{Claim, Held},
    tasks::caught,
    telemetry::{
        metrics::{Outcome, RouteMetrics, StatusClass},
        spans::CallEnd,
    },
    upstream::{Broken, Leave, Moment, OutgoingBody, Pool, SendFailure, UpstreamBody},
};

/// What the first client is told.
#[derive(Debug)]
pub(super) enum First {
    /// An answer, whole or live, marked as it is to be.
    Answer {
        /// Ready to be sent.
        response: Box<Response<AnswerBody>>,
        /// How it is counted.
        outcome: Outcome,
    },
    /// There is none.
    Failed(Problem),
}

/// One execution, ready to run.
pub(super) struct Execution {
    worker: Arc<Worker>,
    route: Route,
    index: usize,
    id: RecordId,
    pool: Pool,
    claim: Claim,
    seat: Seat,
    first: oneshot::Sender<First>,
    request: Request<OutgoingBody>,
    fingerprint: Arc<Fingerprint>,
    /// Whether the first client takes trailers.
    taken: Taken,
    /// The request's span and the call's, where it is traced.
    traced: Option<(Traced, CallSpan)>,
    room: Permit,
    leave: Leave,
    permit: Permit,
}

/// What came of the call.
enum Called {
    /// An answer within `max_response_body`.
    Whole(Whole),
    /// An answer that is not kept.
    Live(Live),
    /// No usable answer.
    Failed(Failure),
}

impl Called {
    /// As its span says it.
    fn end(&self) -> CallEnd {
        match self {
            Self::Whole(whole) => CallEnd::Answered(whole.parts.status),
            Self::Live(live) => CallEnd::Answered(live.parts.status),
            Self::Failed(Failure::NotSent) => CallEnd::Failed(Problem::UpstreamUnreachable.slug()),
            Self::Failed(Failure::WithoutLeave) => {
                CallEnd::Failed(Problem::StoreUnavailable.slug())
            }
            Self::Failed(Failure::MaybeSent) => CallEnd::Failed(Problem::UpstreamFailed.slug()),
            Self::Failed(Failure::TimedOut) => CallEnd::Failed(Problem::UpstreamTimeout.slug()),
        }
    }
}

impl Execution {
    #[expect(
        clippy::too_many_arguments,
        reason = "an execution is where everything comes together"
    )]
    pub(super) fn new(
        worker: &Arc<Worker>,
        place: &Place<'_>,
        id: RecordId,
        pool: Pool,
        start: Start,
        first: oneshot::Sender<First>,
        parts: &mut request::Parts,
        buffered: &mut Buffered,
        fingerprint: Arc<Fingerprint>,
    ) -> Self {
        let taken = Taken::from(&*parts);
        outgoing_head(parts, worker, place.peer, &place.trace, pool.upstream());
        // The body goes out whole, and without the trailers that it may have come with.
        parts.headers.remove(TRAILER);
        let traced = place.traced.map(|traced| {
            let call = traced.call(worker, &place.trace, &parts.method, &mut parts.headers);
            (traced, call)
        });
        let body = OutgoingBody::whole(mem::take(&mut buffered.body));
        let request = take_request(parts, body);
        Self {
            worker: Arc::clone(worker),
            route: place.route.clone(),
            index: place.index,
            id,
            pool,
            claim: start.claim,
            seat: start.seat,
            first,
            request,
            fingerprint,
            taken,
            traced,
            room: buffered.room.hand_over(),
            leave: start.leave,
            permit: start.permit,
        }
    }

    /// Calls, settles, publishes.
    pub(super) async fn run(self) {
        let Self {
            worker,
            route,
            index,
            id,
            pool,
            claim,
            seat,
            first,
            request,
            fingerprint,
            taken,
            traced,
            mut room,
            leave,
            permit,
        } = self;
        let policy = &*route.policy;
        let metrics = worker.proxy.metrics.route(Some(index));
        let _running = metrics.in_flight();
        let started = Instant::now();
        let method = request.method().clone();

        // Boxed, it is not moved into each of the futures around it.
        let call = Call {
            worker: &worker,
            pool: &pool,
            policy,
            metrics,
            fingerprint: &fingerprint,
            record: id.short(),
            leave: &leave,
        };
        let call = Box::pin(call.make(request, &mut room));
        let deadline = started + pool.upstream().capture_timeout;
        let in_time = caught(pool.capture_timers().within(deadline, call));
        let called = match renewed(&worker, &claim, policy, Some(&leave), in_time).await {
            Some(Some(called)) => called,
            Some(None) => Called::Failed(Failure::TimedOut),
            None => Called::Failed(Failure::MaybeSent), // a panic: nobody can tell how far it came
        };

        if let Some((_, call)) = traced {
            call.end(&worker, called.end(), started);
        }
        let late = started.elapsed() >= pool.upstream().response_timeout;
        let finish = Finish {
            settling: Settling {
                worker: &worker,
                route: &route,
                metrics,
                id,
                fingerprint: &fingerprint,
                late,
                traced: traced.map(|(request, _)| request),
            },
            deadline,
            first,
            taken,
            seat,
            permit,
        };
        match called {
            Called::Whole(whole) => finish.whole(claim, &method, whole).await,
            // Boxed, what is rare makes no execution larger.
            Called::Live(live) => Box::pin(finish.live(claim, live)).await,
            Called::Failed(failure) => Box::pin(finish.failed(claim, failure)).await,
        }
    }
}

/// One call: what it goes by.
struct Call<'a> {
    worker: &'a Worker,
    pool: &'a Pool,
    policy: &'a Policy,
    metrics: &'a RouteMetrics,
    fingerprint: &'a Arc<Fingerprint>,
    record: ShortId,
    leave: &'a Leave,
}

impl Call<'_> {
    /// Calls the upstream once, and reads its answer as far as it may be kept.
    async fn make(self, request: Request<OutgoingBody>, room: &mut Permit) -> Called {
        let Self {
            worker,
            pool,
            policy,
            metrics,
            fingerprint,
            record,
            leave,
        } = self;
        let sent = Instant::now();
        let (answered, ()) = tokio::join!(
            async {
                let call = pool.send_within(request, leave.clone());
                call.await.and_then(not_switched)
            },
            canonicalise(fingerprint, worker, room.units())
        );
        let class = StatusClass::from(answered.as_ref().ok().map(Response::status));
        metrics.upstream(class, sent.elapsed());
        let (mut parts, body) = match answered {
            Ok(response) => response.into_parts(),
            Err(failure) => {
                let (route, upstream) = (metrics.name().as_str(), &pool.upstream().name);
                tracing::warn!(%record, route, upstream, %failure, "a keyed call failed");
                return Called::Failed(match failure {
                    SendFailure::NotSent(why) if why.is_without_leave() => Failure::WithoutLeave,
                    SendFailure::NotSent(_) => Failure::NotSent,
                    SendFailure::MaybeSent(_) => Failure::MaybeSent,
                });
            }
        };
        passed_head(&mut parts);
        let verdict = judge(policy, parts.status, &parts.headers);
        if let Verdict::Stream(why) = verdict {
            let read = Vec::new();
            return Called::Live(Live {
                parts,
                read,
                rest: body,
                verdict,
                why,
            });
        }
        read_answer(parts, body, verdict, policy, room, record).await
    }
}

/// Computes the canonical digest behind the upstream's back, while it works.
async fn canonicalise(fingerprint: &Arc<Fingerprint>, worker: &Worker, size: usize) {
    tokio::task::yield_now().await; // the request goes out first
    if size <= AT_ONCE {
        let _ = fingerprint.digests();
    } else {
        let fingerprint = Arc::clone(fingerprint);
        let elsewhere = worker.executions.block(move || {
            let _ = fingerprint.digests();
        });
        // If that thread failed, whoever needs the digests computes them.
        let _ = elsewhere.await;
    }
}

/// A body of so many bytes is canonicalised without making others wait noticeably.
const AT_ONCE: usize = 64 * 1024;

fn too_large(
    parts: response::Parts,
    read: Vec<Frame<Bytes>>,
    rest: UpstreamBody,
    verdict: Verdict,
) -> Live {
    let why = NotRetained::TooLarge;
    Live {
        parts,
        read,
        rest,
        verdict,
        why,
    }
}

/// An answer of so many bytes or more does not come with its head.
const LARGE: usize = 16 * 1024;

fn broken_off(record: ShortId, error: &Broken) -> Called {
    tracing::warn!(%record, %error, "an answer broke off");
    Called::Failed(Failure::MaybeSent)
}

async fn read_answer(
    parts: response::Parts,
    mut body: UpstreamBody,
    verdict: Verdict,
    policy: &Policy,
    room: &mut Permit,
    record: ShortId,
) -> Called {
    let limit = policy.max_response_body;
    let announced = body
        .size_hint()
        .exact()
        .map_or(Ok(0), usize::try_from)
        .unwrap_or(usize::MAX);
    if announced > limit {
        return Called::Live(too_large(parts, Vec::new(), body, verdict));
    }
    let request_bytes = room.units();
    let mut pieces = Pieces::default();
    if announced >= LARGE && body.has_length() {
        // What is copied together is paid for twice, here by every page of it: it is read into the buffer that it is kept in.
        let mut whole = Vec::with_capacity(announced);
        while body.has_length() {
            if let Err(error) = body.read_into(&mut whole).await {
                return broken_off(record, &error);
            }
            room.force_to(request_bytes + whole.len());
        }
        pieces = whole.into();
    }
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return broken_off(record, &error),
        };
        let length = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => data.len(),
            (None, Some(fields)) => trailers::size(fields),
            (None, None) => 0,
        };
        if pieces.len() + length > limit {
            let read = vec![frame, Frame::data(pieces.whole())];
            return Called::Live(too_large(parts, read, body, verdict));
        }
        room.force_to(request_bytes + pieces.len() + length);
        match frame.into_data() {
            Ok(data) => pieces.push(data, announced),
            // There is one frame of them, the last.
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    // These are the proxy's to say, behind the body too.
    for own in [&policy.marker.header, &policy.expiry_header]
        .into_iter()
        .flatten()
    {
        trailers.remove(own);
    }
    let verdict = judge_end(policy, verdict, &parts.headers, &trailers);
    Called::Whole(Whole {
        parts,
        body: pieces.gathered(),
        trailers,
        verdict,
    })
}

/// Runs `work` and renews the claim every third of its lease meanwhile. A claim that is lost does not end the work: its client still
/// gets its answer; it is counted when it comes to be settled, once.
pub(super) async fn renewed<F: Future>(
    worker: &Worker,
    claim: &Claim,
    policy: &Policy,
    leave: Option<&Leave>,
    work: F,
) -> F::Output {
    let mut work = std::pin::pin!(work);
    loop {
        let due = Instant::now() + policy.terms.lease / 3;
        if let Some(output) = worker.renewals.within(due, work.as_mut()).await {
            return output;
        }
        let asked = Moment::now();
        // A store that is slow to answer does not hold up the work.
        let renewed = tokio::select! {
            biased;
            output = work.as_mut() => return output,
            renewed = worker.proxy.records.renew(claim, &policy.terms) => renewed,
        };
        match renewed {
            Ok(Held::Yes) => {
                if let Some(leave) = leave {
                    leave.extend(asked, policy.terms.lease);
                }
            }
            Ok(Held::Lost) => {
                tracing::warn!(record = %claim.id().short(), "a claim was lost while its call runs");
                return work.await;
            }
            Err(error) => {
                tracing::warn!(record = %claim.id().short(), %error, "a claim could not be renewed");
            }
        }
    }
}
