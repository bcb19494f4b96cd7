//! A keyed request, in the order of the contract's section 4: caller, body, fingerprint, record, and then what follows.
//! Where the key stands in the body, the body comes first.

mod elsewhere;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};
use hyper::body::Incoming;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Place, Refusal, Rest, Worker,
    answer::{self, Answer},
    buffered::Buffered,
    execute::{Execution, First},
    read_away, replay_auth,
};
use crate::{
    core::{
        caller::CallerId,
        carrier::{self, Document},
        fingerprint::{self, Fingerprint},
        key::{self, Head, Key},
        policy::{InFlight, KeySource, MismatchInFlight, Policy, Scope},
        problem::Problem,
        record::{RecordId, ScopePart, ShortId},
        time::Timestamp,
        transition::{Ask, Found},
    },
    flight::{Boarding, Flight, Landing, Seat},
    limit::Permit,
    store::{Begin, Bound, StoreError, Stores},
    telemetry::metrics::{Limit, Outcome, RouteMetrics},
    upstream::Received,
};

/// A keyed request: where it came, and what names it there.
pub(super) struct Keyed<'a> {
    pub(super) place: Place<'a>,
    pub(super) name: Name,
}

/// What a keyed request goes by.
pub(super) enum Name {
    /// The key that it carries.
    Key(Key),
    /// `key = "derived"`: its own fingerprint.
    Derived,
}

/// Answers a keyed request whose body is not read yet.
///
/// Dropping the future before the execution has started refuses the request and leaves nothing behind; afterwards it changes
/// nothing.
pub(super) async fn answer(
    worker: &Arc<Worker>,
    keyed: Keyed<'_>,
    request: Request<Incoming>,
) -> Answer {
    let Keyed { place, name } = keyed;
    let policy = &*place.route.policy;
    // From here on the head stands in one place: what follows borrows it, so that it is not moved from future to future.
    let (mut parts, incoming) = request.into_parts();
    let caller = match caller(worker, &place, &parts).await {
        Ok(caller) => caller,
        Err(refusal) => {
            let rest = read_away(Request::from_parts(parts, incoming)).await;
            return worker.refused(policy, &refusal, None).behind(rest);
        }
    };
    // The key stands in the head, or nowhere: of the body nothing is left out.
    let carried = key::carried_by(policy, head(&parts), None);
    let (mut buffered, print) = match read(worker, &place, carried, &parts, incoming).await {
        Ok(read) => read,
        Err(refusal) => {
            let refused = worker.refused(policy, &refusal, None);
            return refused.behind(Rest::Unread);
        }
    };
    let key = match name {
        Name::Key(key) => key,
        Name::Derived => Key::derived(&print.digests()),
    };
    let id = identify(worker, &place, &parts, &caller, &key);
    visit(worker, &place, id, print, &mut parts, &mut buffered).await
}

fn head(parts: &Parts) -> Head<'_> {
    Head {
        headers: &parts.headers,
        query: parts.uri.query(),
    }
}

/// Reads the whole body within its bounds and takes its fingerprint on the way.
async fn read(
    worker: &Worker,
    place: &Place<'_>,
    carried: &[KeySource],
    parts: &Parts,
    incoming: Incoming,
) -> Result<(Buffered, Arc<Fingerprint>), Refusal> {
    let policy = &*place.route.policy;
    let mut print = print(place, carried, parts);
    let incoming = Received::new(incoming, parts.version);
    let read = Buffered::read(worker, policy.max_request_body, incoming, |piece| {
        print.update(piece);
    });
    let buffered = read.await?;
    let print = Arc::new(print.finish(Bytes::clone(&buffered.body)));
    Ok((buffered, print))
}

/// Answers a request whose body had to be read for its key.
///
/// Dropping the future is as for [`answer`].
pub(super) async fn answer_read(
    worker: &Arc<Worker>,
    place: &Place<'_>,
    key: &Key,
    mut parts: Parts,
    mut buffered: Buffered,
    document: &Document,
) -> Answer {
    let policy = &*place.route.policy;
    let caller = match caller(worker, place, &parts).await {
        Ok(caller) => caller,
        Err(refusal) => return worker.refused(policy, &refusal, None),
    };
    let id = identify(worker, place, &parts, &caller, key);
    let carried = key::carried_by(policy, head(&parts), Some(document));
    let print = print(place, carried, &parts);
    match finish(worker, carried, print, document, &mut buffered) {
        Ok(print) => visit(worker, place, id, print, &mut parts, &mut buffered).await,
        Err(refusal) => worker.refused(policy, &refusal, None),
    }
}

/// Whose key it is, if there is a store to ask for it.
async fn caller(worker: &Worker, place: &Place<'_>, parts: &Parts) -> Result<CallerId, Refusal> {
    let proxy = &worker.proxy;
    let caller = proxy
        .caller(&place.route.policy.identity, place.peer, &parts.headers)
        .await
        .map_err(|_| (Problem::CallerMissing, Outcome::CallerMissing))?;
    if matches!(proxy.records.store(), Stores::None) {
        return Err((Problem::NoStore, Outcome::NoStore));
    }
    Ok(caller)
}

/// The name of the record.
fn identify(
    worker: &Worker,
    place: &Place<'_>,
    parts: &Parts,
    caller: &CallerId,
    key: &Key,
) -> RecordId {
    let scope = match place.route.policy.scope {
        Scope::Operation => ScopePart::Operation {
            method: parts.method.as_str(),
            path: place.path,
        },
        Scope::Caller => ScopePart::Caller,
    };
    RecordId::new(&worker.proxy.namespace, caller, scope, key)
}

/// The fingerprint of the request as far as its head goes.
fn print(place: &Place<'_>, carried: &[KeySource], parts: &Parts) -> fingerprint::Builder {
    let policy = &place.route.policy;
    let query = carrier::query_without(carried, parts.uri.query());
    fingerprint::Builder::new(
        &policy.fingerprint,
        &parts.method,
        place.path,
        query.as_deref(),
        &parts.headers,
    )
}

/// The fingerprint of the whole request, without what carries its key in the body.
fn finish(
    worker: &Worker,
    carried: &[KeySource],
    print: fingerprint::Builder,
    document: &Document,
    buffered: &mut Buffered,
) -> Result<Arc<Fingerprint>, Refusal> {
    let counted = match document.without(carried) {
        Some(rest) => {
            buffered.take_beside(worker, rest.len())?;
            rest
        }
        None => Bytes::clone(&buffered.body),
    };
    Ok(Arc::new(print.finish(counted)))
}

async fn visit(
    worker: &Arc<Worker>,
    place: &Place<'_>,
    id: RecordId,
    fingerprint: Arc<Fingerprint>,
    parts: &mut Parts,
    buffered: &mut Buffered,
) -> Answer {
    let length = buffered.body.len() as u64;
    let visit = Visit {
        worker,
        place,
        id,
        fingerprint,
    };
    let mut answer = visit.answer(parts, buffered).await;
    answer.request_bytes = Some(length);
    answer
}

/// A keyed request at its record.
struct Visit<'a> {
    worker: &'a Arc<Worker>,
    place: &'a Place<'a>,
    id: RecordId,
    fingerprint: Arc<Fingerprint>,
}

impl Visit<'_> {
    fn policy(&self) -> &Policy {
        &self.place.route.policy
    }

    fn metrics(&self) -> &RouteMetrics {
        self.worker.proxy.metrics.route(Some(self.place.index))
    }

    fn ask(&self) -> Ask<'_> {
        Ask {
            fingerprint: &self.fingerprint,
            terms: &self.policy().terms,
            route: &self.place.route.name,
        }
    }

    fn record(&self) -> ShortId {
        self.id.short()
    }

    /// Looks at the record; where nothing is settled there, boards the flight, and leads it or joins it. A flight that came to
    /// nothing sends everybody back to the record; each round somebody gets an answer, so that the rounds end.
    async fn answer(&self, parts: &mut Parts, buffered: &mut Buffered) -> Answer {
        let proxy = &self.worker.proxy;
        loop {
            match proxy.records.look(&self.id, &self.ask()).await {
                Err(error) => return self.store_failure(error),
                Ok(Some(Found::InFlight { .. }) | None) => {}
                Ok(Some(found)) => return self.found(&found, parts).await,
            }
            match proxy.flights.board(self.id, &self.fingerprint) {
                Boarding::Lead(seat) => match self.lead(seat, parts).await {
                    // Boxed, what an execution and a wait need costs a replay nothing.
                    Led::Claimed(start) => {
                        return Box::pin(self.execute(*start, parts, buffered)).await;
                    }
                    Led::Answered(answer) => return *answer,
                    Led::Elsewhere => return Box::pin(self.join_elsewhere(parts)).await,
                },
                Boarding::Join(flight) => {
                    if let Some(answer) = Box::pin(self.join(&flight, parts)).await {
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
                    Ok(()) => {
                        let response = answer::replay(record, stored, policy, parts.into());
                        Answer::new(response, Outcome::Hit).of(self.record())
                    }
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
        replay_auth::permitted(self.worker, self.place, parts, self.record()).await
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
                // Who joined looks too, and waits for itself: with its own patience, and for its own request.
                seat.land(Landing::NotStarted);
                if matches!(found, Found::InFlight { .. })
                    && self.policy().in_flight == InFlight::Wait
                {
                    return Led::Elsewhere;
                }
                Led::answered(self.found(&found, parts).await)
            }
            Err(error) => {
                seat.land(Landing::NotStarted);
                Led::answered(self.store_failure(error))
            }
        }
    }

    /// Starts the execution, which takes over the request, and waits for it like everybody else, but only for `response_timeout`.
    async fn execute(&self, start: Start, parts: &mut Parts, buffered: &mut Buffered) -> Answer {
        let (first, landing) = oneshot::channel();
        let Some(pool) = self.worker.pools.get(self.place.route.upstream).cloned() else {
            return self.problem(&Problem::UpstreamUnreachable, Outcome::UpstreamFailure); // checked when it was configured
        };
        let timers = Arc::clone(pool.response_timers());
        let deadline = Instant::now() + pool.upstream().response_timeout;
        let execution = Execution::new(
            self.worker,
            self.place,
            self.id,
            pool,
            start,
            first,
            parts,
            buffered,
            Arc::clone(&self.fingerprint),
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
        let patience = Instant::now() + policy.wait_timeout;
        let waiting = self.worker.joins.within(patience, async {
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
            self.landed(waiter.landing().await, flight, parts)
        });
        // A wait that is over is a conflict, never a call of its own.
        let answer = waiting.await.unwrap_or_else(|| Some(self.in_flight()))?;
        // Whatever the upstream said to another request is asked about before this one has it, stored or not.
        if answer.outcome == Outcome::Joined
            && let Err(denied) = self.permitted(parts).await
        {
            return Some(*denied);
        }
        Some(answer)
    }

    fn landed(&self, landing: Landing, flight: &Flight, parts: &Parts) -> Option<Answer> {
        if !matches!(landing, Landing::NotStarted) && !flight.is_of(&self.fingerprint) {
            return None; // it landed before its request could be compared: the record says what is what
        }
        let policy = self.policy();
        match landing {
            Landing::NotStarted => None,
            Landing::Complete(record) => {
                let stored = answer::stored(&record)?;
                let response = answer::replay(&record, stored, policy, parts.into());
                Some(Answer::new(response, Outcome::Joined).of(self.record()))
            }
            Landing::Shared(stored) => {
                let mut response = answer::from_stored(&stored, parts.into());
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
                let limit = match self.worker.proxy.records.store().bound() {
                    Bound::Claims => Limit::MaxClaims,
                    Bound::Bytes => Limit::MaxBytes,
                };
                self.worker.proxy.metrics.limit_refused(limit);
                self.problem(&Problem::StoreFull, Outcome::StoreFailure)
            }
            StoreError::Unavailable => {
                self.problem(&Problem::StoreUnavailable, Outcome::StoreFailure)
            }
            StoreError::None => self.problem(&Problem::NoStore, Outcome::NoStore),
        }
    }

    fn problem(&self, problem: &Problem, outcome: Outcome) -> Answer {
        let refusal = (problem.clone(), outcome);
        self.worker
            .refused(self.policy(), &refusal, Some(self.record()))
    }
}

/// What leading a flight came to.
enum Led {
    Claimed(Box<Start>),
    Answered(Box<Answer>),
    /// The same request runs on another proxy, and is waited for.
    Elsewhere,
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
