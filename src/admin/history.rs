//! `/api/v1/history`: what the proxy did in the last quarter of an hour, for those who look only now.
//!
//! The admin side takes a sample every [`SAMPLE_EVERY`] and keeps [`KEPT`] of them, some 120 KB; requests do nothing for it. A sample is
//! what was counted so far, so that one that came late is wrong about nothing.

use std::{collections::VecDeque, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    AdminState,
    answer::{Answer, json as document},
};
use crate::telemetry::metrics::{Buckets, Totals};

/// How often a sample is taken.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// So many intervals between samples are kept: 15 minutes.
const KEPT: usize = 180;

/// Latencies are told of so many of the latest intervals: 5 minutes.
const RECENT: usize = 60;

/// The latest samples, oldest first.
#[derive(Debug)]
pub(super) struct History {
    samples: VecDeque<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    totals: Totals,
}

impl History {
    /// Begins with what was counted by now.
    pub(super) fn of(totals: &Totals, at: Instant) -> Self {
        let mut samples = VecDeque::with_capacity(KEPT + 1);
        samples.push_back(Sample {
            at,
            totals: *totals,
        });
        Self { samples }
    }

    /// Keeps one more; the oldest goes where there are enough.
    pub(super) fn take(&mut self, totals: &Totals, at: Instant) {
        if self.samples.len() > KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at,
            totals: *totals,
        });
    }

    /// The document, at a moment at which so much was counted.
    fn document(&self, totals: &Totals, now: Instant) -> Value {
        let intervals = self.samples.iter().zip(self.samples.iter().skip(1));
        let intervals: Vec<_> = intervals
            .map(|(from, to)| {
                let length = to.at.saturating_duration_since(from.at);
                json!({
                    "ago_s": seconds(now.saturating_duration_since(to.at)),
                    "for_s": seconds(length),
                    "requests": outcomes(&to.totals.since(&from.totals)),
                })
            })
            .collect();
        let back = |intervals| self.samples.iter().rev().nth(intervals);
        let oldest = self.samples.front();
        let recent = back(RECENT).or(oldest);
        let over = |since: Option<&Sample>| {
            since.map_or((*totals, 0.0), |sample| {
                let span = now.saturating_duration_since(sample.at);
                (totals.since(&sample.totals), seconds(span))
            })
        };
        let ((lately, lately_s), (all, all_s)) = (over(recent), over(oldest));
        json!({
            "interval_s": SAMPLE_EVERY.as_secs(),
            "intervals": intervals,
            "totals": { "requests": outcomes(totals), "trouble": trouble(totals) },
            "latency": {
                "over_s": lately_s,
                "hit": latency(&lately.hit),
                "miss": latency(&lately.miss),
                "passthrough": latency(&lately.passed),
            },
            "trouble": { "over_s": all_s, "counts": trouble(&all) },
        })
    }
}

/// Answers a request for the history.
pub(super) fn answer(state: &AdminState) -> Answer {
    let totals = state.metrics.totals();
    let history = state.history.lock();
    document(&history.document(&totals, Instant::now()))
}

/// Those that happened.
fn outcomes(totals: &Totals) -> Map<String, Value> {
    let happened = totals.outcomes().filter(|(_, count)| *count > 0);
    happened
        .map(|(outcome, count)| (outcome.as_str().to_owned(), count.into()))
        .collect()
}

fn trouble(totals: &Totals) -> Value {
    json!({
        "unknown": totals.unknown,
        "claims_lost": totals.claims_lost,
        "evicted": totals.evicted,
        "store_failures": totals.store_failures,
        "store_full": totals.store_full,
    })
}

fn latency(buckets: &Buckets) -> Value {
    json!({
        "count": buckets.count(),
        "p50_s": buckets.quantile(0.5),
        "p90_s": buckets.quantile(0.9),
        "p99_s": buckets.quantile(0.99),
    })
}

/// To the millisecond.
fn seconds(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{Metrics, Outcome};

    #[test]
    fn each_interval_has_what_came_in_it_and_the_oldest_ones_go() {
        let metrics = Metrics::new(&[]);
        let start = Instant::now();
        let mut history = History::of(&metrics.totals(), start);
        let hit = || {
            let route = metrics.route(None);
            route.request(Outcome::Hit, Duration::from_millis(1));
        };
        assert_eq!(
            history.document(&metrics.totals(), start)["intervals"],
            json!([])
        );
        let mut now = start;
        for sample in 0..KEPT + 20 {
            if sample % 2 == 0 {
                hit();
            }
            now += SAMPLE_EVERY;
            history.take(&metrics.totals(), now);
        }
        hit();
        now += Duration::from_millis(1500);
        let told = history.document(&metrics.totals(), now);
        let intervals = told["intervals"].as_array().unwrap();
        assert_eq!(intervals.len(), KEPT);
        let ago = |interval: &Value| interval["ago_s"].as_f64().unwrap();
        assert!(intervals.is_sorted_by(|a, b| ago(a) > ago(b)));
        let last = intervals.last().unwrap();
        assert_eq!(
            last,
            &json!({"ago_s": 1.5, "for_s": 5.0, "requests": {}}),
            "an odd one had none"
        );
        assert_eq!(intervals[KEPT - 2]["requests"], json!({"hit": 1}));
        assert_eq!(told["totals"]["requests"], json!({"hit": 101}));
        // 60 intervals, and what came since.
        assert_eq!(told["latency"]["hit"]["count"], 31);
        assert_eq!(told["latency"]["over_s"], 301.5);
        assert_eq!(told["latency"]["miss"]["p50_s"], Value::Null);
        assert_eq!(history.samples.len(), KEPT + 1);
    }
}
