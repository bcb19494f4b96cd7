//! All that was counted, summed over the routes: what the admin side takes a sample of now and then.

use super::{
    Metrics, Outcome, RouteMetrics, SettledAs, StoreMetrics, StoreResult,
    series::{Counter, REQUEST_BOUNDS},
};

/// How many outcomes there are.
const OUTCOMES: usize = Outcome::ALL.len();

/// How many buckets a histogram of requests has, the infinite one included.
const BUCKETS: usize = REQUEST_BOUNDS.len() + 1;

/// What was counted since the process started, at one moment. It only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Requests, by the place of their outcome in [`Outcome::ALL`].
    pub requests: [u64; OUTCOMES],
    /// How long requests took that were answered from a record.
    pub hit: Buckets,
    /// How long those took that were executed and recorded.
    pub miss: Buckets,
    /// How long those took that passed through without protection.
    pub passed: Buckets,
    /// Records whose outcome became unknown.
    pub unknown: u64,
    /// Claims that were found lost.
    pub claims_lost: u64,
    /// Complete records that went for want of room.
    pub evicted: u64,
    /// Operations that a store did not answer, or not usably.
    pub store_failures: u64,
    /// Operations that a store had no room for.
    pub store_full: u64,
}

/// A histogram of requests: each bucket counts its own observations alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets([u64; BUCKETS]);

impl Default for Totals {
    fn default() -> Self {
        Self {
            requests: [0; OUTCOMES],
            hit: Buckets::default(),
            miss: Buckets::default(),
            passed: Buckets::default(),
            unknown: 0,
            claims_lost: 0,
            evicted: 0,
            store_failures: 0,
            store_full: 0,
        }
    }
}

impl Totals {
    /// What came on top of `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut requests = self.requests;
        for (own, before) in requests.iter_mut().zip(&earlier.requests) {
            *own = own.saturating_sub(*before);
        }
        Self {
            requests,
            hit: self.hit.since(&earlier.hit),
            miss: self.miss.since(&earlier.miss),
            passed: self.passed.since(&earlier.passed),
            unknown: self.unknown.saturating_sub(earlier.unknown),
            claims_lost: self.claims_lost.saturating_sub(earlier.claims_lost),
            evicted: self.evicted.saturating_sub(earlier.evicted),
            store_failures: self.store_failures.saturating_sub(earlier.store_failures),
            store_full: self.store_full.saturating_sub(earlier.store_full),
        }
    }

    /// Each outcome and how many requests had it.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.iter().copied().zip(self.requests)
    }

    fn add_route(&mut self, route: &RouteMetrics) {
        let series = &route.0;
        for (outcome, own) in Outcome::ALL.iter().zip(&mut self.requests) {
            let into = match outcome {
                Outcome::Hit => Some(&mut self.hit),
                Outcome::Miss => Some(&mut self.miss),
                Outcome::Unkeyed
                | Outcome::Bypass
                | Outcome::Passthrough
                | Outcome::PassthroughKeyed => Some(&mut self.passed),
                _ => None,
            };
            series.requests.on(*outcome, |histogram| {
                let mut aside = Buckets::default();
                let into = into.unwrap_or(&mut aside);
                *own += histogram.add_to(&mut into.0);
            });
        }
        series
            .settled
            .on(SettledAs::Unknown, |count| self.unknown += count.value());
        self.claims_lost += series.claims_lost.value();
    }

    fn add_store(&mut self, store: &StoreMetrics) {
        let mut add = |result, into: fn(&mut Self) -> &mut u64| {
            for (_, operation) in store.0.operations.iter() {
                let results = &operation.results;
                results.on(result, |count: &Counter| *into(self) += count.value());
            }
        };
        add(StoreResult::Unavailable, |totals| {
            &mut totals.store_failures
        });
        add(StoreResult::Full, |totals| &mut totals.store_full);
        self.evicted += store.levels().map_or(0, |levels| levels.evicted_size);
    }
}

impl Default for Buckets {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Buckets {
    /// All observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time, in seconds, that `share` (0 to 1) of the observations did not take longer than; within a bucket they count as spread
    /// evenly. `None` where there are none. What took longer than the last bound counts as that bound.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * real(count);
        let (mut below, mut lower) = (0.0, 0.0);
        for (own, bound_ns) in self.0.iter().zip(REQUEST_BOUNDS) {
            let (own, upper) = (real(*own), real(*bound_ns) / 1e9);
            if own > 0.0 && below + own >= wanted {
                return Some(lower + (upper - lower) * ((wanted - below) / own).clamp(0.0, 1.0));
            }
            below += own;
            lower = upper;
        }
        Some(lower)
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut buckets = self.0;
        for (own, before) in buckets.iter_mut().zip(&earlier.0) {
            *own = own.saturating_sub(*before);
        }
        Self(buckets)
    }
}

impl Metrics {
    /// Everything so far, summed over the routes. It takes the locks that a reload takes: not for the way of a request.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for route in self.0.house.distinct.lock().iter() {
            totals.add_route(route);
        }
        // A store is asked for its levels without the lock: it may count meanwhile.
        let stores = self.0.house.stores.lock().clone();
        for store in &stores {
            totals.add_store(store);
        }
        totals
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share of so many observations needs no more than 52 bits"
)]
fn real(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{core::policy::RouteName, telemetry::metrics::StoreOp};

    #[test]
    fn routes_and_stores_are_summed_and_differences_taken() {
        let metrics = Metrics::new(&[RouteName::new("a"), RouteName::new("b")]);
        let ms = Duration::from_millis;
        metrics.route(Some(0)).request(Outcome::Hit, ms(1));
        metrics.route(Some(1)).request(Outcome::Hit, ms(1));
        metrics.route(None).request(Outcome::Passthrough, ms(1));
        metrics.route(Some(0)).settled(SettledAs::Unknown);
        let first = metrics.totals();
        metrics.route(Some(1)).request(Outcome::Miss, ms(1));
        metrics.route(Some(1)).request(Outcome::Conflict, ms(1));
        metrics.route(Some(1)).claim_lost();
        let store = metrics.store("memory");
        store.operation(StoreOp::Begin, StoreResult::Unavailable, ms(1));
        store.operation(StoreOp::Renew, StoreResult::Unavailable, ms(1));
        store.operation(StoreOp::Settle, StoreResult::Full, ms(1));
        let later = metrics.totals().since(&first);
        let happened = |totals: &Totals| {
            let some = totals.outcomes().filter(|(_, count)| *count > 0);
            some.collect::<Vec<_>>()
        };
        assert_eq!(
            happened(&first),
            [(Outcome::Hit, 2), (Outcome::Passthrough, 1)]
        );
        assert_eq!((first.unknown, first.claims_lost), (1, 0));
        assert_eq!((first.hit.count(), first.passed.count()), (2, 1));
        assert_eq!(
            happened(&later),
            [(Outcome::Miss, 1), (Outcome::Conflict, 1)]
        );
        assert_eq!((later.unknown, later.claims_lost), (0, 1));
        assert_eq!((later.store_failures, later.store_full), (2, 1));
        assert_eq!((later.miss.count(), later.hit.count()), (1, 0));
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let metrics = Metrics::new(&[]);
        let took = |ms| {
            let route = metrics.route(None);
            route.request(Outcome::Passthrough, Duration::from_millis(ms));
        };
        let quantile = |share| metrics.totals().passed.quantile(share);
        assert_eq!(quantile(0.5), None);
        for _ in 0..98 {
            took(4);
        }
        took(40);
        took(400_000);
        let half = quantile(0.5).unwrap();
        assert!((0.0025..=0.005).contains(&half), "{half}");
        let most = quantile(0.99).unwrap();
        assert!((0.025..=0.05).contains(&most), "{most}");
        assert_eq!(quantile(1.0), Some(60.0), "the last bound");
    }
}
