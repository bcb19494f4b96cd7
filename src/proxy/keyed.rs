//! A keyed request, in the order of the contract's section 4: caller, body, fingerprint, record, and then what follows.
//! Where the key stands in the body, the body comes first.

mod elsewhere;
mod join;
mod lead;
mod unprotected;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};
use hyper::body::Incoming;
use tokio::{sync::oneshot, time::Instant};

use self::lead::Led;
pub(super) use self::lead::Start;
use super::{
    Place, Refusal, Rest, Worker,
    answer::{self, Answer},
    buffered::Buffered,
    departure::LeftAs,
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
    flight::Boarding,
    store::{Runs, Stores},
    telemetry::metrics::{Outcome, RouteMetrics},
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
    left_as: &LeftAs,
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
    let visit = Visit {
        worker,
        place: &place,
        id,
        fingerprint: print,
        left_as,
    };
    visit.begin(&mut parts, &mut buffered).await
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
    left_as: &LeftAs,
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
        Ok(fingerprint) => {
            let visit = Visit {
                worker,
                place,
                id,
                fingerprint,
                left_as,
            };
            visit.begin(&mut parts, &mut buffered).await
        }
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
        place.present,
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

/// A keyed request at its record.
struct Visit<'a> {
    worker: &'a Arc<Worker>,
    place: &'a Place<'a>,
    id: RecordId,
    fingerprint: Arc<Fingerprint>,
    left_as: &'a LeftAs,
}

impl Visit<'_> {
    async fn begin(&self, parts: &mut Parts, buffered: &mut Buffered) -> Answer {
        let length = buffered.body.len() as u64;
        let mut answer = self.answer(parts, buffered).await;
        answer.request_bytes = Some(length);
        answer
    }

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
        let mut may_wait = self.policy().in_flight == InFlight::Wait;
        let mut known = self.known();
        let mut failed = None;
        loop {
            if let Some(error) = failed.take()
                && let Some(answer) = self.failed(error, &mut known, parts, buffered).await
            {
                return answer;
            }
            match proxy.records.look(&self.id, &self.ask()).await {
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
                Ok(Some(Found::InFlight { .. }) | None) => {}
                Ok(Some(found)) => return self.found(&found, parts).await,
            }
            // Where others here wait for a call elsewhere, the store is not asked for each of them. Once: then it has the word.
            if may_wait && proxy.records.awaited(&self.id) {
                may_wait = false;
                if let Some(answer) = Box::pin(self.join_elsewhere(parts, Runs::Perhaps)).await {
                    return answer;
                }
            }
            let boarding = proxy.flights.board(self.id, &self.fingerprint);
            // A store that was away may give a claim whose call has ended here, before that could be saved, or goes on here.
            if matches!(boarding, Boarding::Lead(_))
                && let Some(found) = self.unsaved()
            {
                drop(boarding);
                return self.found(&found, parts).await;
            }
            match boarding {
                Boarding::Lead(seat) => match self.lead(seat, parts).await {
                    Led::Claimed(start) => return self.execute(start, parts, buffered).await,
                    Led::Answered(answer) => return *answer,
                    Led::Failed(error) => failed = Some(error),
                    Led::Elsewhere => {
                        // Boxed, what a wait needs costs a replay nothing.
                        let answer = Box::pin(self.join_elsewhere(parts, Runs::Surely)).await;
                        // It ran when the store was asked: whoever has joined it never executes.
                        return answer.unwrap_or_else(|| self.in_flight());
                    }
                },
                Boarding::Join(flight) => match Box::pin(self.join(&flight, parts)).await {
                    Ok(Some(answer)) => return answer,
                    Ok(None) => {}
                    Err(error) => failed = Some(error),
                },
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
                Some(stored) => {
                    self.left_as.becomes(Outcome::Hit);
                    match self.permitted(parts).await {
                        Ok(()) => {
                            let response = answer::replay(record, stored, policy, parts);
                            let answer = Answer::new(response, Outcome::Hit).of(self.record());
                            answer.brought_by(stored.execution().map(Arc::clone))
                        }
                        Err(denied) => *denied,
                    }
                }
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

    /// Starts the execution, which takes over the request, and runs it until it has a word for this client, but only for `response_timeout`.
    ///
    /// Dropping the future changes nothing: the execution goes on without it.
    async fn execute(&self, start: Start, parts: &mut Parts, buffered: &mut Buffered) -> Answer {
        let (first, word) = oneshot::channel();
        let Some(pool) = self.worker.pools.get(self.place.route.upstream).cloned() else {
            return self.problem(&Problem::UpstreamUnreachable, Outcome::UpstreamFailure); // checked when it was configured
        };
        let timers = Arc::clone(pool.response_timers());
        let now = Instant::now();
        let deadline = now + pool.upstream().response_timeout;
        let execution = Execution::new(
            self.worker,
            self.place,
            pool,
            start,
            first,
            parts,
            buffered,
            Arc::clone(&self.fingerprint),
            now,
        );
        self.left_as.becomes(Outcome::Miss);
        let attended = execution.attended(&self.worker.executions, word);
        match timers.within(deadline, attended).await {
            Some(Some(First::Answer { response, outcome })) => {
                Answer::new(*response, outcome).of(self.record())
            }
            Some(Some(First::Failed(problem))) => {
                let outcome = match problem {
                    Problem::StoreUnavailable => Outcome::StoreFailure,
                    _ => Outcome::UpstreamFailure,
                };
                self.problem(&problem, outcome)
            }
            // It ended without a word; its claim is left to its lease.
            Some(None) => self.problem(&Problem::UpstreamFailed, Outcome::UpstreamFailure),
            None => self.problem(&Problem::UpstreamTimeout, Outcome::UpstreamFailure),
        }
    }

    fn problem(&self, problem: &Problem, outcome: Outcome) -> Answer {
        let refusal = (problem.clone(), outcome);
        self.worker
            .refused(self.policy(), &refusal, Some(self.record()))
    }
}
