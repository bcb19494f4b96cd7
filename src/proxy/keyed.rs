//! A keyed request, in the order of the contract's section 4: caller, body, fingerprint, record, and then what follows.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    Peer, Worker,
    answer::{self, Answer},
    body::Pieces,
    execute::{Execution, First},
    read_away, replay_auth,
};
use crate::{
    config::Route,
    core::{
        fingerprint::{self, Fingerprint},
        key::Key,
        policy::{InFlight, MismatchInFlight, Policy, Scope},
        problem::Problem,
        record::{RecordId, ScopePart, ShortId},
        time::Timestamp,
        transition::{Ask, Found},
    },
    flight::{Boarding, Flight, Landing, Seat},
    limit::Permit,
    store::{Begin, StoreError, Stores},
    telemetry::metrics::{Limit, Outcome, RouteMetrics},
    upstream::{Incomplete, Pause, next_piece},
};

/// What is known of a keyed request once its head was read.
pub(super) struct Keyed<'a> {
    pub(super) index: usize,
    pub(super) route: &'a Route,
    pub(super) key: Key,
    /// Normalised.
    pub(super) path: &'a str,
    pub(super) peer: &'a Peer,
}

/// A body that was read whole, and the room that it takes.
struct Buffered {
    body: Bytes,
    fingerprint: Arc<Fingerprint>,
    room: Permit,
}

/// An error of the proxy's own, and how it is counted.
pub(super) type Refusal = (Problem, Outcome);

/// Answers a keyed request.
///
/// Dropping the future before the execution has started refuses the request and leaves nothing behind; afterwards it changes
/// nothing.
pub(super) async fn answer(
    worker: &Arc<Worker>,
    keyed: Keyed<'_>,
    request: Request<Incoming>,
) -> Answer {
    let (parts, incoming) = request.into_parts();
    let id = match identify(worker, &keyed, &parts).await {
        Ok(id) => id,
        Err(refusal) => {
            read_away(Request::from_parts(parts, incoming)).await;
            return worker.refused(&keyed.route.policy, &refusal, None);
        }
    };
    let buffered = match read_body(worker, &keyed, &parts, incoming).await {
        Ok(buffered) => buffered,
        Err(refusal) => return worker.refused(&keyed.route.policy, &refusal, None),
    };
    let length = buffered.body.len() as u64;
    let visit = Visit {
        worker,
        keyed: &keyed,
        id,
        fingerprint: Arc::clone(&buffered.fingerprint),
    };
    let mut answer = visit.answer(parts, buffered).await;
    answer.request_bytes = Some(length);
    answer
}

/// The name of the record, if the caller may have one.
async fn identify(worker: &Worker, keyed: &Keyed<'_>, parts: &Parts) -> Result<RecordId, Refusal> {
    let proxy = &worker.proxy;
    let policy = &keyed.route.policy;
    let caller = proxy
        .caller(&policy.identity, keyed.peer, &parts.headers)
        .await
        .map_err(|_| (Problem::CallerMissing, Outcome::CallerMissing))?;
    if matches!(proxy.records.store(), Stores::None) {
        return Err((Problem::NoStore, Outcome::NoStore));
    }
    let scope = match policy.scope {
        Scope::Operation => ScopePart::Operation {
            method: parts.method.as_str(),
            path: keyed.path,
        },
        Scope::Caller => ScopePart::Caller,
    };
    Ok(RecordId::new(&proxy.namespace, &caller, scope, &keyed.key))
}

/// Reads the whole body within its bounds and takes its fingerprint on the way.
async fn read_body(
    worker: &Worker,
    keyed: &Keyed<'_>,
    parts: &Parts,
    mut incoming: Incoming,
) -> Result<Buffered, Refusal> {
    let proxy = &worker.proxy;
    let limit = keyed.route.policy.max_request_body;
    let too_large = || (Problem::BodyTooLarge { limit }, Outcome::TooLarge);
    let overloaded = || {
        proxy.metrics.limit_refused(Limit::MaxBufferedBytes);
        (Problem::Overloaded, Outcome::Overloaded)
    };

    let announced = incoming
        .size_hint()
        .exact()
        .map_or(Ok(0), usize::try_from)
        .unwrap_or(usize::MAX);
    if announced > limit {
        return Err(too_large());
    }
    // What is announced has to fit now, but only what comes is counted: heads without bodies take nobody's room.
    let mut room = proxy.buffered.take(announced).ok_or_else(overloaded)?;
    room.shrink_to(0);
    let mut print = fingerprint::Builder::new(
        &keyed.route.policy.fingerprint,
        &parts.method,
        keyed.path,
        parts.uri.query(),
        &parts.headers,
    );
    let mut pieces = Pieces::default();
    let mut pause = Pause::new(proxy.body_timeout);
    while let Some(piece) = next_piece(&mut incoming, &mut pause).await {
        let frame = piece.map_err(|why| match why {
            Incomplete::Stalled => (Problem::RequestTimeout, Outcome::BadRequest),
            Incomplete::Broken(_) => (
                Problem::BadRequest("The request's body is broken."),
                Outcome::BadRequest,
            ),
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if pieces.len() + data.len() > limit {
            return Err(too_large());
        }
        if !room.grow_to(pieces.len() + data.len()) {
            return Err(overloaded());
        }
        print.update(&data);
        pieces.push(data, announced);
    }
    let body = pieces.whole();
    let fingerprint = Arc::new(print.finish(Bytes::clone(&body)));
    Ok(Buffered {
        body,
        fingerprint,
        room,
    })
}

/// A keyed request at its record.
struct Visit<'a> {
    worker: &'a Arc<Worker>,
    keyed: &'a Keyed<'a>,
    id: RecordId,
    fingerprint: Arc<Fingerprint>,
}

impl Visit<'_> {
    fn policy(&self) -> &Policy {
        &self.keyed.route.policy
    }

    fn metrics(&self) -> &RouteMetrics {
        self.worker.proxy.metrics.route(Some(self.keyed.index))
    }

    fn ask(&self) -> Ask<'_> {
        Ask {
            fingerprint: &self.fingerprint,
            terms: &self.policy().terms,
            route: &self.keyed.route.name,
        }
    }

    fn record(&self) -> ShortId {
        self.id.short()
    }

    /// Looks at the record; where nothing is settled there, boards the flight, and leads it or joins it. A flight that came to
    /// nothing sends everybody back to the record; each round somebody gets an answer, so that the rounds end.
    async fn answer(&self, parts: Parts, buffered: Buffered) -> Answer {
        let proxy = &self.worker.proxy;
        loop {
            match proxy.records.look(&self.id, &self.ask()).await {
                Err(error) => return self.store_failure(error),
                Ok(Some(Found::InFlight { .. }) | None) => {}
                Ok(Some(found)) => return self.found(&found, &parts).await,
            }
            match proxy.flights.board(self.id, &self.fingerprint) {
                Boarding::Lead(seat) => match self.lead(seat, &parts).await {
                    // Boxed, what an execution and a wait need costs a replay nothing.
                    Led::Claimed(start) => {
                        return Box::pin(self.execute(*start, parts, buffered)).await;
                    }
                    Led::Answered(answer) => return *answer,
                },
                Boarding::Join(flight) => {
                    if let Some(answer) = Box::pin(self.join(&flight, &parts)).await {
                        return answer;
                    }
                }
            }
        }
    }

    /// What a settled record, or one that runs elsewhere, says to this request.
    ///
    /// Dropping the future changes nothing: where it waits, it waits for `replay_auth`.
    async fn found(&self, found: &Found, parts: &Parts) -> Answer {
        let policy = self.policy();
        match found {
            Found::Complete(record) => match answer::stored(record) {
                Some(stored) => match self.permitted(parts).await {
                    Ok(()) => Answer::new(answer::replay(record, stored, policy), Outcome::Hit)
                        .of(self.record()),
                    Err(denied) => *denied,
                },
                None => self.problem(&Problem::StoreUnavailable, Outcome::StoreFailure), // not what the store promises
            },
            Found::InFlight { .. } => self.in_flight(),
            Found::Tombstone {
                status, expires_at, ..
            } => self.not_retained(*status, *expires_at),
            Found::Expired => self.problem(&Problem::KeyExpired, Outcome::Expired),
            Found::Unknown { left } => {
                let problem = Problem::OutcomeUnknown {
                    left: *left,
                    retry_after: policy.retry_after,
                };
                self.problem(&problem, Outcome::Unknown)
            }
            Found::Mismatch { in_flight } => self.mismatch(*in_flight),
        }
    }

    async fn permitted(&self, parts: &Parts) -> Result<(), Box<Answer>> {
        replay_auth::permitted(self.worker, self.keyed, parts, self.record()).await
    }

    fn not_retained(&self, original_status: StatusCode, expires_at: Timestamp) -> Answer {
        let problem = Problem::ResponseNotRetained { original_status };
        let mut answer = self.problem(&problem, Outcome::NotRetained);
        answer::expires(answer.response.headers_mut(), self.policy(), expires_at);
        answer
    }

    fn in_flight(&self) -> Answer {
        let problem = Problem::InFlight {
            retry_after: self.policy().retry_after,
        };
        self.problem(&problem, Outcome::Conflict)
    }

    fn mismatch(&self, in_flight: bool) -> Answer {
        if in_flight && self.policy().mismatch_in_flight == MismatchInFlight::Conflict {
            return self.in_flight();
        }
        self.problem(&Problem::KeyReused, Outcome::Mismatch)
    }

    /// Asks for the claim. Until the flight runs or lands, whoever boards it waits.
    ///
    /// Dropping the future while the store is asked drops the seat: those who joined look again.
    async fn lead(&self, seat: Seat, parts: &Parts) -> Led {
        let proxy = &self.worker.proxy;
        let Some(permit) = proxy.executions.take(1) else {
            proxy.metrics.limit_refused(Limit::MaxExecutions);
            seat.land(Landing::Failed(Problem::Overloaded));
            return Led::answered(self.problem(&Problem::Overloaded, Outcome::Overloaded));
        };
        match proxy.records.begin(&self.id, &self.ask()).await {
            Ok(Begin::Claimed(claim)) => {
                seat.running();
                Led::Claimed(Box::new(Start {
                    claim,
                    seat,
                    permit,
                }))
            }
            Ok(Begin::Found(found)) => {
                seat.land(Landing::NotStarted);
                Led::answered(self.found(&found, parts).await)
            }
            Err(error) => {
                seat.land(Landing::NotStarted);
                Led::answered(self.store_failure(error))
            }
        }
    }

    /// Starts the execution and waits for it like everybody else, but only for `response_timeout`.
    async fn execute(&self, start: Start, parts: Parts, buffered: Buffered) -> Answer {
        let (first, landing) = oneshot::channel();
        let Some(pool) = self.worker.pools.get(self.keyed.route.upstream).cloned() else {
            return self.problem(&Problem::UpstreamUnreachable, Outcome::UpstreamFailure); // checked when it was configured
        };
        let timers = Arc::clone(pool.response_timers());
        let deadline = Instant::now() + pool.upstream().response_timeout;
        let execution = Execution::new(
            self.worker,
            self.keyed,
            self.id,
            pool,
            start,
            first,
            parts,
            buffered.body,
            buffered.fingerprint,
            buffered.room,
        );
        // Boxed, it is moved once and not at each step of the spawning.
        self.worker.executions.spawn(Box::pin(execution.run()));
        match timers.within(deadline, landing).await {
            Some(Ok(First::Answer { response, outcome })) => {
                Answer::new(*response, outcome).of(self.record())
            }
            Some(Ok(First::Failed(problem))) => self.problem(&problem, Outcome::UpstreamFailure),
            // The task is gone without a word; its claim is left to its lease.
            Some(Err(_)) => self.problem(&Problem::UpstreamFailed, Outcome::UpstreamFailure),
            None => self.problem(&Problem::UpstreamTimeout, Outcome::UpstreamFailure),
        }
    }

    /// Joins a flight; `None`: it came to nothing, and the record is to be looked at again.
    ///
    /// Dropping the future gives the place up and changes nothing else.
    async fn join(&self, flight: &Arc<Flight>, parts: &Parts) -> Option<Answer> {
        let policy = self.policy();
        let waiting = timeout(policy.wait_timeout, async {
            // While the leader asks the store nobody knows whose key it is; that takes no longer than the store does.
            match flight.executes(&self.fingerprint).await {
                Some(false) => return Some(self.mismatch(true)),
                Some(true) if policy.in_flight == InFlight::Conflict => {
                    return Some(self.in_flight());
                }
                Some(true) | None => {}
            }
            let Some(waiter) = flight.wait(policy.max_waiters) else {
                self.worker.proxy.metrics.limit_refused(Limit::MaxWaiters);
                return Some(self.in_flight());
            };
            let _counted = self.metrics().waiter();
            self.landed(waiter.landing().await, flight)
        });
        // A wait that is over is a conflict, never a call of its own.
        let answer = waiting.await.unwrap_or_else(|_| Some(self.in_flight()))?;
        // Whatever the upstream said to another request is asked about before this one has it, stored or not.
        if answer.outcome == Outcome::Joined
            && let Err(denied) = self.permitted(parts).await
        {
            return Some(*denied);
        }
        Some(answer)
    }

    fn landed(&self, landing: Landing, flight: &Flight) -> Option<Answer> {
        if !matches!(landing, Landing::NotStarted) && !flight.is_of(&self.fingerprint) {
            return None; // it landed before its request could be compared: the record says what is what
        }
        let policy = self.policy();
        match landing {
            Landing::NotStarted => None,
            Landing::Complete(record) => {
                let stored = answer::stored(&record)?;
                let response = answer::replay(&record, stored, policy);
                Some(Answer::new(response, Outcome::Joined).of(self.record()))
            }
            Landing::Shared(stored) => {
                let mut response = answer::from_stored(&stored);
                answer::mark(response.headers_mut(), policy, None);
                Some(Answer::new(response, Outcome::Joined).of(self.record()))
            }
            Landing::TooLarge => Some(self.in_flight()),
            Landing::Tombstone { status, expires_at } => {
                Some(self.not_retained(status, expires_at))
            }
            Landing::Failed(problem) => {
                let outcome = match problem {
                    Problem::Overloaded => Outcome::Overloaded,
                    _ => Outcome::UpstreamFailure,
                };
                Some(self.problem(&problem, outcome))
            }
        }
    }

    fn store_failure(&self, error: StoreError) -> Answer {
        match error {
            StoreError::Full => {
                self.worker.proxy.metrics.limit_refused(Limit::MaxClaims);
                self.problem(&Problem::StoreFull, Outcome::StoreFailure)
            }
            StoreError::Unavailable => {
                self.problem(&Problem::StoreUnavailable, Outcome::StoreFailure)
            }
            StoreError::None => self.problem(&Problem::NoStore, Outcome::NoStore),
        }
    }

    fn problem(&self, problem: &Problem, outcome: Outcome) -> Answer {
        self.worker.refused(
            self.policy(),
            &(problem.clone(), outcome),
            Some(self.record()),
        )
    }
}

/// What leading a flight came to.
enum Led {
    Claimed(Box<Start>),
    Answered(Box<Answer>),
}

impl Led {
    fn answered(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}

/// All that an execution needs to be allowed.
pub(super) struct Start {
    pub(super) claim: crate::store::Claim,
    pub(super) seat: Seat,
    pub(super) permit: Permit,
}

impl Worker {
    /// One of the proxy's own errors, as the route says it.
    pub(super) fn refused(
        &self,
        policy: &Policy,
        (problem, outcome): &Refusal,
        record: Option<ShortId>,
    ) -> Answer {
        use crate::store::clock::Clock as _;
        Answer::problem(
            problem,
            *outcome,
            &policy.errors,
            record,
            self.proxy.clock.now(),
        )
    }
}
