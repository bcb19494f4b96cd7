//! Executions: the one call to the upstream, as work of the proxy's own.
//!
//! An execution holds the claim. It calls the upstream once, settles the record, and publishes the answer to the first client and to
//! those who joined. No client's connection is part of it: it is polled by the one that waits for it, and becomes a task when that goes
//! away. Dropping its own future (the runtime goes away) drops the claim: the outcome is unknown once the lease has run out.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header::TRAILER, request, response};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::Instant,
};

use super::{
    Place, Worker,
    body::AnswerBody,
    buffered::{Buffered, Pieces},
    finish::{Finish, Live, Whole},
    forward::{forwarded, not_switched, passed_head, take_request},
    keyed::Start,
    lease::Lease,
    settle::Settling,
    traced::{CallSpan, Traced},
};
use crate::{
    core::{
        fingerprint::Fingerprint,
        outcome::{Failure, Verdict, judge, judge_end},
        policy::Policy,
        problem::Problem,
        record::{NotRetained, ShortId},
        trailers::{self, Taken},
    },
    flight::Seat,
    limit::Permit,
    store::Claim,
    tasks::{Tasks, caught},
    telemetry::{
        metrics::{Outcome, RouteMetrics, StatusClass},
        spans::CallEnd,
    },
    upstream::{Broken, Leave, OutgoingBody, Pool, SendFailure, UpstreamBody},
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
    policy: Arc<Policy>,
    index: usize,
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
    started: Instant,
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
        pool: Pool,
        start: Start,
        first: oneshot::Sender<First>,
        parts: &mut request::Parts,
        buffered: &mut Buffered,
        fingerprint: Arc<Fingerprint>,
        now: Instant,
    ) -> Self {
        let taken = Taken::from(&*parts);
        // Nothing was added to the head since it was looked at.
        let arrived = (&place.trace, place.present);
        let added = forwarded(parts, worker, place.peer, arrived, pool.upstream());
        added.insert_into(&mut parts.headers);
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
            policy: Arc::clone(&place.route.policy),
            index: place.index,
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
            started: now,
            permit: start.permit,
        }
    }

    /// Runs it with whoever polls this, until there is word for the first client; `None`: it ended without one.
    ///
    /// What is left of it then, and all of it where the future is dropped, goes on as a task.
    pub(super) fn attended(
        self,
        tasks: &Tasks,
        mut word: oneshot::Receiver<First>,
    ) -> impl Future<Output = Option<First>> {
        let mut running = tasks.attend(self.run());
        poll_fn(move |cx| {
            let ended = Pin::new(&mut running).poll(cx).is_ready();
            // Only the execution itself sends it, so that nobody has to be woken for it.
            match word.try_recv() {
                Ok(first) => Poll::Ready(Some(first)),
                Err(TryRecvError::Empty) if !ended => Poll::Pending,
                Err(_) => Poll::Ready(None),
            }
        })
    }

    /// Calls, settles, publishes.
    ///
    /// What it consists of is used where it stands: taken apart, it would stand in the future twice.
    async fn run(mut self) {
        let (worker, policy) = (&self.worker, &*self.policy);
        let metrics = worker.proxy.metrics.route(Some(self.index));
        let _running = metrics.in_flight();
        let started = self.started;
        let method = self.request.method().clone();

        let call = Call {
            worker,
            pool: &self.pool,
            policy,
            metrics,
            fingerprint: &self.fingerprint,
            record: self.claim.id().short(),
            leave: &self.leave,
            started,
        };
        let lease = Lease {
            worker,
            claim: &self.claim,
            policy,
            leave: Some(&self.leave),
        };
        let upstream = self.pool.upstream();
        let deadline = started + upstream.capture_timeout;
        let called = {
            // Pinned here, it is not moved into each of the futures around it; it is gone before anything is settled.
            let call = pin!(call.make(self.request, &mut self.room));
            match lease.renewed(deadline, caught(call)).await {
                Some(Some(called)) => called,
                Some(None) => Called::Failed(Failure::MaybeSent), // a panic: nobody can tell how far it came
                None => Called::Failed(Failure::TimedOut),
            }
        };

        if let Some((_, call)) = self.traced {
            call.end(worker, called.end(), started);
        }
        let finish = Finish {
            settling: Settling {
                worker,
                policy,
                metrics,
                id: *self.claim.id(),
                fingerprint: &self.fingerprint,
                late: started.elapsed() >= upstream.response_timeout,
                traced: self.traced.map(|(request, _)| request),
            },
            deadline,
            first: self.first,
            taken: self.taken,
            seat: self.seat,
            permit: self.permit,
            room: self.room,
        };
        match called {
            Called::Whole(whole) => finish.whole(self.claim, &method, whole).await,
            // Boxed, what is rare makes no execution larger.
            Called::Live(live) => Box::pin(finish.live(self.claim, live)).await,
            Called::Failed(failure) => Box::pin(finish.failed(self.claim, failure)).await,
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
    started: Instant,
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
            started,
        } = self;
        let counted = Counted::from(metrics, started);
        let (answered, ()) = tokio::join!(
            biased;
            async {
                let call = pool.send_within(request, started, leave.clone());
                call.await.and_then(not_switched)
            },
            canonicalise(fingerprint, worker, room.units())
        );
        counted.ends(answered.as_ref().ok().map(Response::status));
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

/// Counts a call, once: as one with this answer, or as one without where it is given up before.
struct Counted<'a> {
    metrics: &'a RouteMetrics,
    began: Instant,
    class: StatusClass,
}

impl<'a> Counted<'a> {
    fn from(metrics: &'a RouteMetrics, began: Instant) -> Self {
        Self {
            metrics,
            began,
            class: StatusClass::None,
        }
    }

    fn ends(mut self, status: Option<StatusCode>) {
        self.class = StatusClass::from(status);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.upstream(self.class, self.began.elapsed());
    }
}

/// Computes the canonical digest behind the upstream's back, while it works: the call is polled before this, and nearly always sends its request
/// in its second turn. What takes longer lets others go first.
async fn canonicalise(fingerprint: &Arc<Fingerprint>, worker: &Worker, size: usize) {
    next_turn().await;
    if size > AT_ONCE {
        tokio::task::yield_now().await;
    }
    if size <= HERE {
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

/// Waits for the task's next turn. Beside something that asks for one too, this costs nothing.
async fn next_turn() {
    let mut asked = false;
    poll_fn(|cx| {
        if mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A body of so many bytes is canonicalised in a few microseconds.
const AT_ONCE: usize = 4 * 1024;

/// A body of so many bytes is canonicalised without making others wait noticeably.
const HERE: usize = 64 * 1024;

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
