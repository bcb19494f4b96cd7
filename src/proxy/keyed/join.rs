//! A request whose copy runs here.

use std::sync::Arc;

use http::request::Parts;
use tokio::time::Instant;

use super::Visit;
use crate::{
    core::{policy::InFlight, problem::Problem},
    flight::{Flight, Landing},
    proxy::answer::{self, Answer},
    store::{Runs, StoreError},
    telemetry::metrics::{Limit, Outcome},
};

/// What a joined flight came to.
enum Joined {
    Answer(Box<Answer>),
    /// Nothing: the record is to be looked at again.
    Nothing,
    /// The call runs on another proxy.
    Elsewhere,
    /// The store gave its leader no claim.
    StoreFailed(StoreError),
}

impl Joined {
    fn answer(answer: Answer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

impl Visit<'_> {
    /// Joins a flight; `None`: it came to nothing, and the record is to be looked at again.
    ///
    /// # Errors
    /// What the store said to its leader.
    ///
    /// Dropping the future gives the place up and changes nothing else.
    pub(super) async fn join(
        &self,
        flight: &Arc<Flight>,
        parts: &Parts,
    ) -> Result<Option<Answer>, StoreError> {
        let policy = self.policy();
        self.left_as.becomes(Outcome::Joined);
        let patience = Instant::now() + policy.wait_timeout;
        let waiting = self.worker.joins.within(patience, async {
            // While the leader asks the store nobody knows whose key it is; that takes no longer than the store does.
            match flight.executes(&self.fingerprint).await {
                Some(false) => return Joined::answer(self.mismatch(true)),
                Some(true) if policy.in_flight == InFlight::Conflict => {
                    return Joined::answer(self.in_flight());
                }
                Some(true) | None => {}
            }
            let Some(waiter) = flight.wait(policy.max_waiters) else {
                self.worker.proxy.metrics.limit_refused(Limit::MaxWaiters);
                return Joined::answer(self.in_flight());
            };
            let _counted = self.metrics().waiter();
            match self.landed(waiter.landing().await, flight, parts) {
                Joined::Answer(answer) => Joined::answer(answer.brought_by(flight.execution())),
                other => other,
            }
        });
        let answer = match waiting.await {
            Some(Joined::Answer(answer)) => *answer,
            Some(Joined::Nothing) => return Ok(None),
            Some(Joined::StoreFailed(error)) => return Err(error),
            // Its leader has seen it run: nobody who has joined it executes, however soon it ended.
            Some(Joined::Elsewhere) => {
                let answer = Box::pin(self.join_elsewhere(parts, Runs::Surely)).await;
                return Ok(Some(answer.unwrap_or_else(|| self.in_flight())));
            }
            // A wait that is over is a conflict, never a call of its own.
            None => self.in_flight(),
        };
        // Whatever the upstream said to another request is asked about before this one has it, stored or not.
        if answer.outcome == Outcome::Joined
            && let Err(denied) = self.permitted(parts).await
        {
            return Ok(Some(*denied));
        }
        Ok(Some(answer))
    }

    fn landed(&self, landing: Landing, flight: &Flight, parts: &Parts) -> Joined {
        let unsaid = matches!(
            landing,
            Landing::NotStarted | Landing::Elsewhere | Landing::StoreFailed(_)
        );
        if !unsaid && !flight.is_of(&self.fingerprint) {
            // It landed before its request could be compared. What it leaves is another request's record, or its key is free.
            return match landing {
                Landing::Complete(_) | Landing::Tombstone { .. } => {
                    Joined::answer(self.mismatch(false))
                }
                _ => Joined::Nothing,
            };
        }
        let policy = self.policy();
        match landing {
            Landing::Elsewhere if policy.in_flight == InFlight::Wait => Joined::Elsewhere,
            Landing::StoreFailed(error) => Joined::StoreFailed(error),
            Landing::NotStarted | Landing::Elsewhere => Joined::Nothing,
            Landing::Complete(record) => match answer::stored(&record) {
                Some(stored) => {
                    let response = answer::replay(&record, stored, policy, parts);
                    Joined::answer(Answer::new(response, Outcome::Joined).of(self.record()))
                }
                None => Joined::Nothing,
            },
            Landing::Shared(stored) => {
                let mut response = answer::from_stored(&stored, parts);
                answer::mark(response.headers_mut(), policy, None);
                Joined::answer(Answer::new(response, Outcome::Joined).of(self.record()))
            }
            Landing::TooLarge => Joined::answer(self.in_flight()),
            Landing::Tombstone { status, expires_at } => {
                Joined::answer(self.not_retained(status, expires_at))
            }
            Landing::Failed(problem) => {
                let outcome = match problem {
                    Problem::Overloaded => Outcome::Overloaded,
                    Problem::StoreUnavailable => Outcome::StoreFailure,
                    _ => Outcome::UpstreamFailure,
                };
                Joined::answer(self.problem(&problem, outcome))
            }
        }
    }
}
