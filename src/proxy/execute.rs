//! Executions: the one call to the upstream, as a task of the proxy's own.
//!
//! The task holds the claim. It calls the upstream once, settles the record, and publishes the answer to the first client and to
//! those who joined. No client's connection is part of it. Dropping its future (the runtime goes away) drops the claim: the
//! outcome is unknown once the lease has run out.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, header::TRAILER, request, response};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    Worker,
    answer::{expires, mark},
    body::{AnswerBody, Pieces},
    forward::{outgoing_head, passed_head},
    keyed::{Keyed, Start},
};
use crate::{
    config::Route,
    core::{
        fingerprint::Fingerprint,
        headers::{is_bodyless, kept_for_replay},
        outcome::{Failure, Verdict, judge},
        policy::{Policy, ReplayHeaders, Terms},
        problem::Problem,
        record::{NotRetained, RecordId, State, StoredAnswer},
        transition::Settlement,
    },
    flight::{Landing, Seat},
    limit::Permit,
    store::{Claim, Held, Settled, Unsettled},
    tasks::caught,
    telemetry::metrics::{Outcome, RouteMetrics, SettledAs, StatusClass},
    upstream::{OutgoingBody, Pool, SendFailure, UpstreamBody},
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
    room: Permit,
    _permit: Permit,
}

/// What came of the call.
enum Called {
    /// An answer within `max_response_body`.
    Whole(response::Parts, Bytes, Verdict),
    /// An answer that is not kept: what was read of it, and the rest.
    Live(
        response::Parts,
        Vec<Bytes>,
        UpstreamBody,
        Verdict,
        NotRetained,
    ),
    /// No usable answer.
    Failed(Failure),
}

impl Execution {
    #[expect(
        clippy::too_many_arguments,
        reason = "an execution is where everything comes together"
    )]
    pub(super) fn new(
        worker: &Arc<Worker>,
        keyed: &Keyed<'_>,
        id: RecordId,
        pool: Pool,
        start: Start,
        first: oneshot::Sender<First>,
        mut parts: request::Parts,
        body: Bytes,
        fingerprint: Arc<Fingerprint>,
        room: Permit,
    ) -> Self {
        outgoing_head(&mut parts, worker, keyed.peer, pool.upstream());
        // The body goes out whole, and without the trailers that it may have come with.
        parts.headers.remove(TRAILER);
        Self {
            worker: Arc::clone(worker),
            route: keyed.route.clone(),
            index: keyed.index,
            id,
            pool,
            claim: start.claim,
            seat: start.seat,
            first,
            request: Request::from_parts(parts, OutgoingBody::whole(body)),
            fingerprint,
            room,
            _permit: start.permit,
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
            mut room,
            _permit,
        } = self;
        let policy = &*route.policy;
        let metrics = worker.proxy.metrics.route(Some(index));
        let _running = metrics.in_flight();
        let started = Instant::now();
        let method = request.method().clone();

        // Boxed, it is not moved into each of the futures around it.
        let call = Box::pin(call(
            &pool,
            request,
            policy,
            metrics,
            &fingerprint,
            &worker,
            &mut room,
        ));
        let deadline = started + pool.upstream().capture_timeout;
        let in_time = caught(pool.capture_timers().within(deadline, call));
        let called = match renewed(&worker, &claim, policy, metrics, in_time).await {
            Some(Some(called)) => called,
            Some(None) => Called::Failed(Failure::TimedOut),
            None => Called::Failed(Failure::MaybeSent), // a panic: nobody can tell how far it came
        };

        let late = started.elapsed() >= pool.upstream().response_timeout;
        let finish = Finish {
            worker: &worker,
            route: &route,
            metrics,
            id,
            late,
            first,
            seat,
        };
        match called {
            Called::Failed(failure) => finish.failed(claim, failure).await,
            Called::Whole(parts, body, verdict) => {
                finish.whole(claim, &method, parts, body, verdict).await;
            }
            Called::Live(parts, read, rest, verdict, why) => {
                finish.live(claim, parts, read, rest, verdict, why).await;
            }
        }
    }
}

/// Calls the upstream once, and reads its answer as far as it may be kept.
async fn call(
    pool: &Pool,
    request: Request<OutgoingBody>,
    policy: &Policy,
    metrics: &RouteMetrics,
    fingerprint: &Arc<Fingerprint>,
    worker: &Worker,
    room: &mut Permit,
) -> Called {
    let sent = Instant::now();
    let (answered, ()) = tokio::join!(
        pool.send(request),
        canonicalise(fingerprint, worker, room.units())
    );
    let class = StatusClass::from(answered.as_ref().ok().map(Response::status));
    metrics.upstream(class, sent.elapsed());
    let (mut parts, body) = match answered {
        Ok(response) => response.into_parts(),
        Err(failure) => {
            tracing::warn!(upstream = pool.upstream().name, %failure, "a keyed call failed");
            return Called::Failed(match failure {
                SendFailure::NotSent(_) => Failure::NotSent,
                SendFailure::MaybeSent(_) => Failure::MaybeSent,
            });
        }
    };
    passed_head(&mut parts);
    let verdict = judge(policy, parts.status, &parts.headers);
    if let Verdict::Stream(why) = verdict {
        return Called::Live(parts, Vec::new(), body, verdict, why);
    }
    read_answer(parts, body, verdict, policy.max_response_body, room).await
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

async fn read_answer(
    parts: response::Parts,
    mut body: UpstreamBody,
    verdict: Verdict,
    limit: usize,
    room: &mut Permit,
) -> Called {
    let announced = body
        .size_hint()
        .exact()
        .map_or(Ok(0), usize::try_from)
        .unwrap_or(usize::MAX);
    if announced > limit {
        return Called::Live(parts, Vec::new(), body, verdict, NotRetained::TooLarge);
    }
    let request_bytes = room.units();
    let mut pieces = Pieces::default();
    while let Some(frame) = body.frame().await {
        let data = match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(_trailers)) => continue,
            Err(error) => {
                tracing::warn!(%error, "an answer broke off");
                return Called::Failed(Failure::MaybeSent);
            }
        };
        if pieces.len() + data.len() > limit {
            return Called::Live(
                parts,
                vec![data, pieces.whole()],
                body,
                verdict,
                NotRetained::TooLarge,
            );
        }
        room.force_to(request_bytes + pieces.len() + data.len());
        pieces.push(data, announced);
    }
    Called::Whole(parts, pieces.whole(), verdict)
}

/// Runs `work` and renews the claim every third of its lease meanwhile. A claim that is lost does not end the work: its client still
/// gets its answer.
async fn renewed<F: Future>(
    worker: &Worker,
    claim: &Claim,
    policy: &Policy,
    metrics: &RouteMetrics,
    work: F,
) -> F::Output {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            output = &mut work => return output,
            () = sleep(policy.terms.lease / 3) => {}
        }
        match worker.proxy.records.renew(claim, &policy.terms).await {
            Ok(Held::Yes) => {}
            Ok(Held::Lost) => {
                metrics.claim_lost();
                tracing::warn!(record = %claim.id().short(), "a claim was lost while its call runs");
                return work.await;
            }
            Err(error) => {
                tracing::warn!(record = %claim.id().short(), %error, "a claim could not be renewed");
            }
        }
    }
}

/// The end of an execution: the record first, then whoever waits.
struct Finish<'a> {
    worker: &'a Arc<Worker>,
    route: &'a Route,
    metrics: &'a RouteMetrics,
    id: RecordId,
    late: bool,
    first: oneshot::Sender<First>,
    seat: Seat,
}

impl Finish<'_> {
    async fn failed(self, claim: Claim, failure: Failure) {
        let problem = match failure {
            Failure::NotSent => Problem::UpstreamUnreachable,
            Failure::MaybeSent => Problem::UpstreamFailed,
            Failure::TimedOut => Problem::UpstreamTimeout,
        };
        let late = false; // there is no answer that could be
        Self { late, ..self }
            .fail(claim, failure.settlement(), problem)
            .await;
    }

    async fn fail(self, claim: Claim, settlement: Settlement, problem: Problem) {
        self.settle(claim, settlement).await;
        self.seat.land(Landing::Failed(problem.clone()));
        // Whoever is gone needs no answer.
        let _ = self.first.send(First::Failed(problem));
    }

    async fn whole(
        self,
        claim: Claim,
        method: &Method,
        parts: response::Parts,
        body: Bytes,
        verdict: Verdict,
    ) {
        let policy = &*self.route.policy;
        let bodyless = is_bodyless(method, parts.status);
        let rule = match verdict {
            Verdict::Keep | Verdict::Stream(_) => &policy.replay_headers,
            // An answer that is not stored is shared as it is, but for what is the first client's alone.
            Verdict::Release | Verdict::Unknown => &ReplayHeaders::EndToEnd,
        };
        let kept = kept_for_replay(&parts.headers, rule, bodyless);
        let answer = StoredAnswer::capture(parts.status, &kept, &body);
        // From here on there is one copy of the body, in a buffer of its own.
        let body = Bytes::clone(answer.body());
        let mut response = Response::from_parts(parts, AnswerBody::whole(body));
        let settlement = match verdict {
            Verdict::Keep | Verdict::Stream(_) => Settlement::Complete(answer.clone()),
            Verdict::Release => Settlement::Release,
            Verdict::Unknown => Settlement::Unknown,
        };
        let settled = self.settle(claim, settlement).await;
        let (landing, outcome) = match settled {
            Some(Settled::Kept(record))
                if matches!(record.state, State::Complete(_) | State::Tombstone { .. }) =>
            {
                mark(response.headers_mut(), policy, policy.marker.miss.as_ref());
                expires(response.headers_mut(), policy, record.expires_at);
                let landing = match record.state {
                    State::Complete(_) => Landing::Complete(record),
                    _ => Landing::Tombstone {
                        status: response.status(),
                        expires_at: record.expires_at,
                    },
                };
                (landing, Outcome::Miss)
            }
            Some(Settled::Kept(_) | Settled::Released | Settled::Lost) | None => {
                mark(response.headers_mut(), policy, None);
                (Landing::Shared(Arc::new(answer)), Outcome::Released)
            }
        };
        self.seat.land(landing);
        let _ = self.first.send(First::Answer {
            response: Box::new(response),
            outcome,
        });
    }

    async fn live(
        self,
        claim: Claim,
        parts: response::Parts,
        read: Vec<Bytes>,
        rest: UpstreamBody,
        verdict: Verdict,
        why: NotRetained,
    ) {
        let policy = &*self.route.policy;
        let status = parts.status;
        let mut response = Response::from_parts(parts, AnswerBody::Resumed { read, rest });
        let settlement = match verdict {
            Verdict::Keep | Verdict::Stream(_) => Settlement::Tombstone { status, why },
            Verdict::Release => Settlement::Release,
            Verdict::Unknown => Settlement::Unknown,
        };
        let (landing, outcome) = match self.settle(claim, settlement).await {
            Some(Settled::Kept(record)) if matches!(record.state, State::Tombstone { .. }) => {
                mark(response.headers_mut(), policy, policy.marker.miss.as_ref());
                expires(response.headers_mut(), policy, record.expires_at);
                let expires_at = record.expires_at;
                (Landing::Tombstone { status, expires_at }, Outcome::Miss)
            }
            Some(Settled::Kept(_) | Settled::Released | Settled::Lost) | None => {
                mark(response.headers_mut(), policy, None);
                (Landing::TooLarge, Outcome::Released)
            }
        };
        self.seat.land(landing);
        // The rest is the first client's and ends with it: if it is gone, the answer is dropped here and its connection closed.
        let _ = self.first.send(First::Answer {
            response: Box::new(response),
            outcome,
        });
    }

    /// Settles the record; counted by what it became. `None`: the store would not take it now; it is asked again behind the
    /// answer, for as long as the claim holds.
    async fn settle(&self, claim: Claim, settlement: Settlement) -> Option<Settled> {
        let terms = self.route.policy.terms;
        match self
            .worker
            .proxy
            .records
            .settle(claim, settlement, &terms)
            .await
        {
            Ok(settled) => {
                self.count(&settled);
                Some(settled)
            }
            Err(unsettled) => {
                tracing::warn!(record = %self.id.short(), error = %unsettled, "a record could not be settled; trying again");
                let again = settle_again(Arc::clone(self.worker), unsettled, terms);
                self.worker.executions.spawn(again);
                None
            }
        }
    }

    fn count(&self, settled: &Settled) {
        let settled_as = match settled {
            Settled::Lost => {
                self.metrics.claim_lost();
                tracing::warn!(record = %self.id.short(), "a claim was lost before its call ended; nothing was written");
                return;
            }
            _ if self.late => SettledAs::Late,
            Settled::Released => SettledAs::Released,
            Settled::Kept(record) => match record.state {
                State::Complete(_) => SettledAs::Complete,
                State::Tombstone { .. } => SettledAs::Tombstone,
                State::Unknown { .. } | State::InFlight { .. } | State::Expired => {
                    SettledAs::Unknown
                }
            },
        };
        self.metrics.settled(settled_as);
    }
}

/// Settles a claim that the store would not take at first, for as long as the claim can be renewed.
async fn settle_again(worker: Arc<Worker>, mut unsettled: Unsettled, terms: Terms) {
    loop {
        sleep(RETRY_SETTLE).await;
        let Unsettled {
            claim, settlement, ..
        } = unsettled;
        if let Ok(Held::Lost) = worker.proxy.records.renew(&claim, &terms).await {
            return; // somebody else has the key: the lease had run out
        }
        match worker.proxy.records.settle(claim, settlement, &terms).await {
            Ok(_) => return,
            Err(again) => unsettled = again,
        }
    }
}

/// How long after a store refused a settlement it is asked again.
const RETRY_SETTLE: Duration = Duration::from_millis(200);
