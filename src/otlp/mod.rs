//! Exports traces by OTLP: takes spans from their queue, in batches, to one collector.
//!
//! One task does it, beside everything that serves. While the collector is dead, slow or does not want them, spans are held in the queue, and
//! dropped and counted once that is full: no request ever waits for a collector. A batch is tried [`TRIES`] times with growing pauses, and
//! then dropped. At the end what is queued is sent as far as that can be done in [`LAST_WORDS`].

mod collector;
mod encode;

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use tokio::{
    sync::mpsc::Receiver,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    collector::{Collector, Untaken},
    encode::Anchor,
};
use crate::{
    config::{Otlp, Route},
    store::clock::since_epoch,
    tasks::Tasks,
    telemetry::{
        metrics::{Metrics, SpanEnd},
        spans::{Span, Spans},
    },
};

/// The most spans that are sent at once; a message of them stays far below the 4 MiB that collectors take.
const BATCH: usize = 1024;

/// How long spans are gathered for one message.
const GATHER: Duration = Duration::from_secs(1);

/// How long a try may take, from the collector's name to its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a batch is sent before it is given up.
pub const TRIES: u32 = 5;

/// The pause before the second try; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// No pause is longer, whatever the collector says.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long the end of the process waits for spans.
pub const LAST_WORDS: Duration = Duration::from_secs(3);

/// The task that exports.
#[derive(Debug)]
pub struct Exporter {
    ending: CancellationToken,
    ended: JoinHandle<()>,
}

/// Starts exporting what the returned [`Spans`] take.
///
/// # Errors
/// The system gives no random bytes, or no roots where the collector is to be called over TLS.
pub fn start(
    otlp: &Otlp,
    routes: &[Route],
    metrics: &Metrics,
    tasks: &Tasks,
) -> anyhow::Result<(Spans, Exporter)> {
    let mut instance = [0; 16];
    getrandom::fill(&mut instance).context("the system gives no random bytes")?;
    let collector = Collector::new(otlp, tasks.clone()).context("no TLS to the collector")?;
    let (spans, queue) = Spans::new(otlp.sample_ratio, metrics, routes);
    let ending = CancellationToken::new();
    let export = Export {
        queue,
        collector,
        endpoint: otlp.authority.to_string(),
        instance: format!("{:032x}", u128::from_be_bytes(instance)),
        metrics: metrics.clone(),
        ending: ending.clone(),
        terms: Terms::Good,
    };
    let ended = tasks.detach(export.run());
    Ok((spans, Exporter { ending, ended }))
}

impl Exporter {
    /// Sends what is queued and ends, after [`LAST_WORDS`] at the latest.
    pub async fn finish(self) {
        self.ending.cancel();
        if timeout(LAST_WORDS, self.ended).await.is_err() {
            tracing::warn!("the collector did not take the last spans in time; they are lost");
        }
    }
}

struct Export {
    queue: Receiver<Span>,
    collector: Collector,
    /// The collector, for logs.
    endpoint: String,
    instance: String,
    metrics: Metrics,
    ending: CancellationToken,
    terms: Terms,
}

/// How we stand with the collector: what is logged when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Terms {
    Good,
    Bad,
}

impl Export {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        while !self.ending.is_cancelled() {
            tokio::select! {
                biased;
                () = self.ending.cancelled() => break,
                count = self.queue.recv_many(&mut batch, BATCH) => if count == 0 {
                    break; // nobody records any more
                }
            }
            if batch.len() < BATCH {
                tokio::select! {
                    biased;
                    () = self.ending.cancelled() => {}
                    () = sleep(GATHER) => {}
                }
            }
            self.fill(&mut batch);
            self.deliver(&mut batch).await;
        }
        self.fill(&mut batch);
        while !batch.is_empty() {
            self.deliver(&mut batch).await;
            self.fill(&mut batch);
        }
    }

    /// Takes what is there, and waits for nothing.
    fn fill(&mut self, batch: &mut Vec<Span>) {
        while batch.len() < BATCH
            && let Ok(span) = self.queue.try_recv()
        {
            batch.push(span);
        }
    }

    /// Sends a batch, or gives it up; either way it is empty then.
    async fn deliver(&mut self, batch: &mut Vec<Span>) {
        let anchor = Anchor {
            instant: Instant::now(),
            wall: since_epoch(),
        };
        let message = Bytes::from(encode::request(&self.instance, batch, anchor));
        let count = batch.len() as u64;
        batch.clear();
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=TRIES {
            let tried = timeout(PATIENCE, self.collector.deliver(&message)).await;
            let untaken = match tried.unwrap_or(Err(Untaken::TooLate)) {
                Ok(rejected) => return self.taken(count, rejected),
                Err(untaken) => untaken,
            };
            self.failing(&untaken);
            let wanted = match untaken {
                Untaken::Refused(_) => return self.metrics.spans(SpanEnd::Refused, count),
                Untaken::NotNow { pause, .. } => pause.unwrap_or_default(),
                Untaken::Unreachable(_) | Untaken::Broken(_) | Untaken::TooLate => Duration::ZERO,
            };
            if attempt == TRIES || self.ending.is_cancelled() {
                break;
            }
            tokio::select! {
                biased;
                // One more try, the last.
                () = self.ending.cancelled() => {}
                () = sleep(pause.max(wanted).min(LONGEST_PAUSE)) => {}
            }
            pause *= 2;
        }
        self.metrics.spans(SpanEnd::Undelivered, count);
    }

    fn taken(&mut self, count: u64, rejected: u64) {
        let rejected = rejected.min(count);
        self.metrics.spans(SpanEnd::Exported, count - rejected);
        self.metrics.spans(SpanEnd::Refused, rejected);
        if self.terms == Terms::Bad {
            self.terms = Terms::Good;
            tracing::info!(collector = self.endpoint, "the collector takes spans again");
        }
    }

    fn failing(&mut self, why: &Untaken) {
        if self.terms == Terms::Good {
            self.terms = Terms::Bad;
            tracing::warn!(
                collector = self.endpoint,
                error = %why,
                "spans could not be exported; what does not fit into the queue meanwhile is dropped"
            );
        }
    }
}
