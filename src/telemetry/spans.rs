//! Spans: what is recorded of a request that is traced, and the bounded queue to whoever exports it.
//!
//! Recording never waits: a span that finds the queue full is dropped and counted. Where nothing is exported there is no queue, and asking
//! whether a request is traced is one branch.
//!
//! A span has no field for a key, a credential, a body, a query or a path: the route's template stands for the path, the first digits of the
//! record's id for the key.

use std::sync::Arc;

use http::{Method, StatusCode};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::Instant,
};

use super::{
    access::method_name,
    metrics::{Metrics, Outcome, SpanEnd, StoreOp, StoreResult},
};
use crate::{
    config::Route,
    core::{
        policy::RouteName,
        record::ShortId,
        trace::{Sampled, SpanId, SpanRef, Trace},
    },
};

/// How many spans wait for the collector at most; about 1.5 MiB.
pub const QUEUE: usize = 8192;

/// Takes spans, or does nothing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spans(Option<Arc<Target>>);

#[derive(Debug)]
struct Target {
    queue: mpsc::Sender<Span>,
    metrics: Metrics,
    /// Of the traces that begin here those are recorded whose number is below this one.
    threshold: u64,
    /// By the index that a route has in the configuration.
    routes: Vec<Arc<SpanRoute>>,
}

/// A route as spans name it.
#[derive(Debug)]
pub struct SpanRoute {
    /// Its name.
    pub name: RouteName,
    /// The template of its path.
    pub template: String,
}

/// Something that took time in a request that is traced.
#[derive(Debug)]
pub struct Span {
    /// Its trace, and itself.
    pub at: SpanRef,
    /// The span that it is part of.
    pub parent: Option<SpanId>,
    /// When it began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What it was.
    pub work: Work,
}

/// What a span is of.
#[derive(Debug)]
pub enum Work {
    /// A request, from its head until its answer can start.
    Request {
        /// Its method; `_OTHER` where HTTP does not name it.
        method: &'static str,
        /// Its route.
        route: Arc<SpanRoute>,
        /// How it ended; `None`: its client went away before.
        answered: Option<Answered>,
    },
    /// A question to the store.
    Store {
        /// The kind of store.
        store: &'static str,
        /// What was asked.
        operation: StoreOp,
        /// What it answered.
        result: StoreResult,
    },
    /// A call to the upstream, until its answer was read as far as it may be kept.
    Call {
        /// Its method, as above.
        method: &'static str,
        /// What came of it.
        end: CallEnd,
    },
}

/// How a request ended.
#[derive(Debug)]
pub struct Answered {
    /// How it is counted.
    pub outcome: Outcome,
    /// What it was answered with.
    pub status: StatusCode,
    /// The record that it met.
    pub record: Option<ShortId>,
    /// The execution whose answer it got, where that was another request's.
    pub link: Option<Arc<SpanRef>>,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// An answer.
    Answered(StatusCode),
    /// None, for a reason that is spelt as the slug of its problem.
    Failed(&'static str),
}

impl Spans {
    /// Records `ratio` (0 to 1) of the traces that begin here, and all that are recorded by whoever began them, on these routes. The spans
    /// come out at the other end.
    #[must_use]
    pub fn new(ratio: f64, metrics: &Metrics, routes: &[Route]) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUE);
        let target = Target {
            queue,
            metrics: metrics.clone(),
            threshold: threshold(ratio),
            routes: span_routes(routes),
        };
        (Self(Some(Arc::new(target))), spans)
    }

    /// No spans: nothing is exported.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// The same for the routes of another configuration.
    #[must_use]
    pub fn for_routes(&self, routes: &[Route]) -> Self {
        let anew = |target: &Arc<Target>| {
            Arc::new(Target {
                queue: target.queue.clone(),
                metrics: target.metrics.clone(),
                threshold: target.threshold,
                routes: span_routes(routes),
            })
        };
        Self(self.0.as_ref().map(anew))
    }

    /// Whether spans of this trace are recorded: its beginner's word counts; where it begins here, the ratio does, by the trace's id, so that
    /// it does not matter who asks.
    #[must_use]
    pub fn record(&self, trace: &Trace) -> bool {
        let Some(target) = &self.0 else {
            return false;
        };
        match trace.sampled() {
            Sampled::Yes => true,
            Sampled::No => false,
            Sampled::Open => {
                let [_, _, _, _, _, _, _, _, low @ ..] = trace.id().to_bytes();
                u64::from_be_bytes(low) >> 1 < target.threshold
            }
        }
    }

    /// The route with this index, as spans name it.
    #[must_use]
    pub fn route(&self, index: usize) -> Option<Arc<SpanRoute>> {
        self.0.as_ref()?.routes.get(index).map(Arc::clone)
    }

    /// Hands a span over. Never waits; a span for which there is no room is counted as dropped.
    pub fn push(&self, span: Span) {
        let Some(target) = &self.0 else {
            return;
        };
        match target.queue.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => target.metrics.spans(SpanEnd::QueueFull, 1),
            // Whoever exports has ended before what runs here did.
            Err(TrySendError::Closed(_)) => target.metrics.spans(SpanEnd::Undelivered, 1),
        }
    }
}

/// A method as spans name it.
#[must_use]
pub fn span_method(method: &Method) -> &'static str {
    match method_name(method) {
        "other" => "_OTHER",
        name => name,
    }
}

fn span_routes(routes: &[Route]) -> Vec<Arc<SpanRoute>> {
    let named = |route: &Route| {
        Arc::new(SpanRoute {
            name: route.name.clone(),
            template: route.path.as_str().to_owned(),
        })
    };
    routes.iter().map(named).collect()
}

/// The numbers of 63 bits below which so much of all of them lies.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a cast of a float stays within the bounds of its target, and a ratio is no more exact than it is written"
)]
fn threshold(ratio: f64) -> u64 {
    (ratio.clamp(0.0, 1.0) * ALL as f64) as u64
}

/// More than any number of 63 bits.
const ALL: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn spans(ratio: f64) -> (Spans, mpsc::Receiver<Span>, Metrics) {
        let metrics = Metrics::new(&[]);
        let (spans, queue) = Spans::new(ratio, &metrics, &[]);
        (spans, queue, metrics)
    }

    fn begun(low: u64) -> Trace {
        Trace::of(&HeaderMap::new(), || [1, low, 3])
    }

    fn received(flags: &str) -> Trace {
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", parent.parse().expect("a value"));
        Trace::of(&headers, || [1, 2, 3])
    }

    fn span() -> Span {
        let now = Instant::now();
        Span {
            at: SpanRef::from_bytes(&[1; 24]).expect("ids"),
            parent: None,
            begun: now,
            ended: now,
            work: Work::Store {
                store: "memory",
                operation: StoreOp::Begin,
                result: StoreResult::Ok,
            },
        }
    }

    #[test]
    fn who_began_a_trace_decides_and_else_the_ratio_does() {
        for (ratio, low, recorded) in [
            (1.0, u64::MAX, true),
            (1.0, 1, true),
            (0.0, 1, false),
            (0.5, u64::MAX / 2 - 9, true),
            (0.5, u64::MAX / 2 + 9, false),
        ] {
            let (spans, ..) = spans(ratio);
            assert_eq!(spans.record(&begun(low)), recorded, "{ratio} {low}");
            assert!(spans.record(&received("01")), "{ratio}");
            assert!(!spans.record(&received("00")), "{ratio}");
        }
        assert!(!Spans::off().record(&received("01")));
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_an_ended_one_too() {
        let (spans, mut queue, metrics) = spans(1.0);
        for _ in 0..QUEUE + 3 {
            spans.push(span());
        }
        let told = |result: &str, count: u64| {
            let text = String::from_utf8(metrics.render()).expect("text");
            let line = format!("idem_proxy_trace_spans_total{{result=\"{result}\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        };
        told("queue_full", 3);
        assert!(queue.try_recv().is_ok());
        spans.push(span());
        told("queue_full", 3);
        drop(queue);
        spans.push(span());
        told("undelivered", 1);
        Spans::off().push(span());
        told("undelivered", 1);
    }
}
