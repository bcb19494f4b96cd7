//! A request for which the store could not say anything.

use std::{mem, sync::Arc};

use http::{HeaderValue, header::TRAILER, request::Parts};

use super::Visit;
use crate::{
    core::{
        policy::OnStoreFailure,
        problem::Problem,
        record::Record,
        transition::{self, Found},
    },
    flight::Flight,
    proxy::{
        answer::{Answer, mark},
        buffered::Buffered,
        forward::{forward_whole, take_request},
    },
    store::{Bound, Runs, StoreError, clock::Clock as _},
    telemetry::metrics::{Limit, Outcome},
};

/// What the marker says of an answer that nothing protects.
const BYPASS: HeaderValue = HeaderValue::from_static("bypass");

/// What this proxy knows of a record and its store may not.
#[derive(Default)]
pub(super) struct Known {
    /// A settlement that is to be saved, or a call that goes on behind its flight.
    record: Option<Arc<Record>>,
    /// A call that runs, or one that the store may be about to allow.
    flight: Option<Arc<Flight>>,
    /// Whether others here wait for a call on another proxy, which the store has told them of.
    elsewhere: bool,
}

/// What this proxy has to say to a request without the store.
enum Word {
    Answer(Box<Answer>),
    /// A flight came to nothing: the record is to be looked at again.
    Again,
    /// Nothing that stands in its way.
    None,
}

impl Visit<'_> {
    /// What is known of the record at the moment, where it is asked for that.
    pub(super) fn known(&self) -> Known {
        if self.policy().on_store_failure == OnStoreFailure::Reject {
            return Known::default();
        }
        let (flights, records) = (&self.worker.proxy.flights, &self.worker.proxy.records);
        Known {
            elsewhere: records.awaited(&self.id),
            // The flight first: what comes of it is entered before it lands.
            flight: flights.of(&self.id),
            record: flights.unsaved().find(&self.id),
        }
    }

    /// What this proxy alone knows of a call of its own: that it goes on behind its flight, or what it ended in, which the store has not
    /// taken yet.
    pub(super) fn unsaved(&self) -> Option<Found> {
        let record = self.worker.proxy.flights.unsaved().find(&self.id)?;
        let now = self.worker.proxy.clock.now();
        transition::look(Some(&record), &self.ask(), now)
    }

    /// Refuses the request, or forwards it without its key's protection, as `on_store_failure` has it. A store that is full has
    /// answered: that is a refusal under either. What is known here is protection still: `known` is what was when the request came,
    /// for that may have ended or been saved, and is forgotten here, before the store was heard to fail. `None`: a flight that was
    /// waited for came to nothing, and the store is to be asked again.
    ///
    /// Dropping the future of one that is forwarded ends its call, as that of an unkeyed one.
    pub(super) async fn failed(
        &self,
        error: StoreError,
        known: &mut Known,
        parts: &mut Parts,
        buffered: &mut Buffered,
    ) -> Option<Answer> {
        match (error, self.policy().on_store_failure) {
            (StoreError::Unavailable, OnStoreFailure::Bypass) => {
                match Box::pin(self.answer_known(known, parts)).await {
                    Word::Answer(answer) => Some(*answer),
                    Word::Again => None,
                    Word::None => Some(Box::pin(self.forward_unprotected(parts, buffered)).await),
                }
            }
            (
                StoreError::Unavailable | StoreError::Full | StoreError::None,
                OnStoreFailure::Reject | OnStoreFailure::Bypass,
            ) => Some(self.store_failure(error)),
        }
    }

    pub(super) fn store_failure(&self, error: StoreError) -> Answer {
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

    /// What is known without the store.
    async fn answer_known(&self, known: &mut Known, parts: &Parts) -> Word {
        // What was known before is joined once: it has landed then, and has no more to say.
        let before = known.flight.take();
        if let Some(flight) = self.known().flight.or(before) {
            match self.join(&flight, parts).await {
                Ok(Some(answer)) => return Word::Answer(Box::new(answer)),
                Ok(None) => return Word::Again,
                Err(_) => {} // the store failed its leader too
            }
        }
        if self.known().elsewhere || known.elsewhere {
            let answer = self.join_elsewhere(parts, Runs::Surely).await;
            return Word::Answer(Box::new(answer.unwrap_or_else(|| self.in_flight())));
        }
        let Some(record) = self.known().record.or_else(|| known.record.clone()) else {
            return Word::None;
        };
        let now = self.worker.proxy.clock.now();
        match transition::look(Some(&record), &self.ask(), now) {
            Some(found) => Word::Answer(Box::new(self.found(&found, parts).await)),
            None => Word::None,
        }
    }

    /// Nothing is claimed or stored, and nobody can join.
    async fn forward_unprotected(&self, parts: &mut Parts, buffered: &mut Buffered) -> Answer {
        let proxy = &self.worker.proxy;
        let Some(permit) = proxy.executions.take(1) else {
            proxy.metrics.limit_refused(Limit::MaxExecutions);
            return self.problem(&Problem::Overloaded, Outcome::Overloaded);
        };
        if let Some(requests) = proxy.records.unprotected() {
            let (record, route) = (self.record(), self.metrics().name().as_str());
            tracing::warn!(%record, route, requests, "the store takes no claims; keyed requests are forwarded unprotected");
        }
        // The body goes out whole, and without the trailers that it may have come with.
        parts.headers.remove(TRAILER);
        let through = self.place.through(Outcome::Bypass);
        let request = take_request(parts, mem::take(&mut buffered.body));
        self.left_as.becomes(Outcome::Bypass);
        let answer = forward_whole(self.worker, through, request, self.place.peer).await;
        let mut answer = answer.under(permit);
        if answer.outcome == Outcome::Bypass {
            mark(answer.response.headers_mut(), self.policy(), Some(&BYPASS));
        }
        answer.of(self.record())
    }
}

#[cfg(test)]
mod tests;
