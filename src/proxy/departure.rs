//! Each request is counted and logged once: by its answer, or, where its client goes away before there is one, without.
//!
//! hyper drops a request whose client is gone. It is then counted as what it was by that time: one that passes as what it would have been, a
//! keyed one as `bad_request` until it is here whole and has met its record, as `miss` once its call has begun, and as `joined` while it
//! waits for the call of another. Its access line has no status.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use http::Method;
use http_body::Body as _;
use tokio::time::Instant;

use super::{Course, Worker, answer::Answer};
use crate::{
    core::trace::TraceId,
    telemetry::{access::Line, metrics::Outcome},
};

/// A request that is not answered yet; dropped so, its client has gone away.
pub(super) struct Open<'a> {
    pub(super) worker: &'a Worker,
    pub(super) method: &'a Method,
    pub(super) route: Option<usize>,
    pub(super) trace: TraceId,
    pub(super) started: Instant,
    pub(super) left_as: LeftAs,
}

/// What a request counts as if its client goes away now.
pub(super) struct LeftAs(AtomicUsize);

impl LeftAs {
    /// That of a request that goes this way.
    pub(super) fn of(course: &Course<'_>) -> Self {
        let outcome = match course {
            Course::Answered(answer) => answer.outcome,
            Course::Through(through) => through.outcome,
            Course::Keyed(_) | Course::Unread(_) => Outcome::BadRequest,
        };
        Self(AtomicUsize::new(outcome as usize))
    }

    /// From now on it is this.
    pub(super) fn becomes(&self, outcome: Outcome) {
        self.0.store(outcome as usize, Ordering::Relaxed);
    }

    /// `None`: it has been answered.
    fn now(&self) -> Option<Outcome> {
        let place = self.0.load(Ordering::Relaxed);
        Outcome::ALL.get(place).copied()
    }
}

impl Open<'_> {
    /// There is an answer.
    pub(super) fn answered(self, answer: &Answer, took: Duration) {
        self.left_as.0.store(ANSWERED, Ordering::Relaxed);
        self.count(answer.outcome, took, Some(answer));
    }

    fn count(&self, outcome: Outcome, took: Duration, answer: Option<&Answer>) {
        let proxy = &self.worker.proxy;
        proxy.metrics.route(self.route).request(outcome, took);
        let response = answer.map(|answer| &answer.response);
        proxy.access.line(&Line {
            method: self.method,
            route: self.route,
            outcome,
            status: response.map(http::Response::status),
            record: answer.and_then(|answer| answer.record),
            trace: Some(self.trace),
            took,
            upstream: answer.and_then(|answer| answer.upstream),
            request_bytes: answer.and_then(|answer| answer.request_bytes),
            response_bytes: response.and_then(|response| response.body().size_hint().exact()),
        });
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(outcome) = self.left_as.now() {
            self.count(outcome, self.started.elapsed(), None);
        }
    }
}

/// In the place of an outcome: there is nothing more to count.
const ANSWERED: usize = usize::MAX;
