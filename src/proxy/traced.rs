//! Requests that are traced: which spans they have, and when these begin and end.
//!
//! A keyed request has one span, from its head until its answer can start, also where its client goes away before. Its children are what it
//! asks of the store (`begin`, `settle`) and its call to the upstream, whose own spans hang under that. An execution's children belong to the
//! request that began it, and may end after it. Whoever gets another request's answer links to that request's span.

use std::sync::Arc;

use http::{HeaderMap, Method};
use tokio::time::Instant;

use super::{Course, Worker, answer::Answer};
use crate::{
    core::trace::{SpanId, SpanRef, Trace},
    store::StoreError,
    telemetry::{
        metrics::{StoreOp, StoreResult},
        spans::{Answered, CallEnd, Span, SpanRoute, Work, span_method},
    },
};

/// A request that is traced, as its children see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traced(SpanRef);

/// The span of a request that runs. It ends when it is dropped: with the answer, if
/// [`RequestSpan::answered`] named one, or else because its client went away.
#[derive(Debug)]
pub(super) struct RequestSpan {
    worker: Arc<Worker>,
    at: SpanRef,
    parent: Option<SpanId>,
    begun: Instant,
    method: &'static str,
    route: Arc<SpanRoute>,
    end: End,
}

/// How a request ends, as far as that is known.
#[derive(Debug)]
enum End {
    /// Unless an answer comes: its client goes away.
    ClientGone,
    /// The same; whether there is a key, its body says.
    MaybeUnkeyed,
    /// There was no key.
    Unkeyed,
    /// There is an answer.
    Answered(Answered),
}

/// The span of a call to the upstream, which begins when it is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSpan {
    at: SpanRef,
    parent: SpanId,
    method: &'static str,
}

impl Traced {
    /// A span for a request of this trace, if it is one to be recorded.
    pub(super) fn begin(worker: &Worker, trace: &Trace) -> Option<Self> {
        worker.proxy.spans.record(trace).then(|| {
            Self(SpanRef {
                trace: trace.id().to_bytes(),
                span: worker.span_id(),
            })
        })
    }

    /// The span itself, for those who link to it.
    pub(super) const fn span(self) -> SpanRef {
        self.0
    }

    /// A call to the upstream with this head, which says so.
    pub(super) fn call(
        self,
        worker: &Worker,
        trace: &Trace,
        method: &Method,
        headers: &mut HeaderMap,
    ) -> CallSpan {
        let span = worker.span_id();
        trace.write_from(span, headers);
        CallSpan {
            at: SpanRef { span, ..self.0 },
            parent: self.0.span,
            method: span_method(method),
        }
    }

    /// What the store was asked at `begun` and has answered now.
    pub(super) fn store(
        self,
        worker: &Worker,
        operation: StoreOp,
        result: StoreResult,
        begun: Instant,
    ) {
        let span = worker.span_id();
        worker.proxy.spans.push(Span {
            at: SpanRef { span, ..self.0 },
            parent: Some(self.0.span),
            begun,
            ended: Instant::now(),
            work: Work::Store {
                store: worker.proxy.records.store().as_str(),
                operation,
                result,
            },
        });
    }
}

impl CallSpan {
    /// The call was made at `begun` and is over now.
    pub(super) fn end(self, worker: &Worker, end: CallEnd, begun: Instant) {
        worker.proxy.spans.push(Span {
            at: self.at,
            parent: Some(self.parent),
            begun,
            ended: Instant::now(),
            work: Work::Call {
                method: self.method,
                end,
            },
        });
    }
}

impl RequestSpan {
    /// The span of a request that goes this way, which began at `begun`; `None`: it is not keyed, or not traced.
    pub(super) fn of(
        worker: &Arc<Worker>,
        course: &Course<'_>,
        trace: &Trace,
        route: Option<usize>,
        method: &Method,
        begun: Instant,
    ) -> Option<Box<Self>> {
        let (traced, end) = match course {
            Course::Answered(_) | Course::Through(_) => return None,
            Course::Keyed(keyed) => (keyed.place.traced?, End::ClientGone),
            Course::Unread(unread) => (unread.place.traced?, End::MaybeUnkeyed),
        };
        Some(Box::new(Self {
            worker: Arc::clone(worker),
            at: traced.0,
            parent: trace.parent(),
            begun,
            method: span_method(method),
            route: worker.proxy.spans.route(route?)?,
            end,
        }))
    }

    /// The request has its answer. If it turned out to have no key, it has no span.
    pub(super) fn answered(&mut self, answer: &Answer) {
        self.end = match (&self.end, answer.record) {
            (End::MaybeUnkeyed, None) => End::Unkeyed,
            (_, record) => End::Answered(Answered {
                outcome: answer.outcome,
                status: answer.response.status(),
                record,
                link: answer.execution.clone(),
            }),
        };
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let answered = match std::mem::replace(&mut self.end, End::Unkeyed) {
            End::Unkeyed => return,
            End::ClientGone | End::MaybeUnkeyed => None,
            End::Answered(answered) => Some(answered),
        };
        self.worker.proxy.spans.push(Span {
            at: self.at,
            parent: self.parent,
            begun: self.begun,
            ended: Instant::now(),
            work: Work::Request {
                method: self.method,
                route: Arc::clone(&self.route),
                answered,
            },
        });
    }
}

impl Worker {
    fn span_id(&self) -> SpanId {
        let [number, ..] = self.traces.next();
        SpanId::from_random(number)
    }
}

/// How a store's failure is counted.
pub(super) const fn failed(why: StoreError) -> StoreResult {
    match why {
        StoreError::Full => StoreResult::Full,
        StoreError::Unavailable | StoreError::None => StoreResult::Unavailable,
    }
}
