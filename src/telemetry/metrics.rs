//! Metrics: what is counted, and the Prometheus text it is told in (contract, section 11).
//!
//! A room asks once for its part ([`Metrics::route`], [`Metrics::store`]) and keeps it; after that a count is an
//! atomic addition. Levels that a room keeps anyway are read from it when somebody asks for the text
//! ([`Metrics::watch_store`], [`Metrics::watch_limit`], [`Metrics::watch_log`]). There is no global registry: two
//! values of [`Metrics`] share nothing.
//!
//! Beyond the contract's table there are:
//!
//! | name | type | labels |
//! |---|---|---|
//! | `idem_proxy_limit_level` | gauge | limit: how much of a bound is taken, where its owner says |
//! | `idem_proxy_limit_refusals_total` | counter | limit: what was refused over a bound |
//! | `idem_proxy_upstream_connect_failures_total` | counter | upstream, reason |
//! | `idem_proxy_tls_handshake_failures_total` | counter | reason: clients' handshakes that failed |
//! | `idem_proxy_certificate_reloads_total` | counter | result: changed certificates that are in use now, or were refused |
//! | `idem_proxy_certificate_expiry_seconds` | gauge | which: when a certificate in use expires, as a unix time |
//! | `idem_proxy_http2_floods_total` | counter | reason: HTTP/2 connections that were ended for what they sent too much of |
//! | `idem_proxy_store_up` | gauge | store: 1 while it takes claims, 0 while it does not |
//! | `idem_proxy_store_commit_duration_seconds` | histogram | store: how long a commit took that made operations durable |
//! | `idem_proxy_store_committed_operations_total` | counter | store: operations that were made durable so |
//! | `idem_proxy_trace_spans_total` | counter | result: spans that were recorded, by what became of them |
//! | `idem_proxy_log_lines_dropped_total` | counter | log lines that found the queue full or could not be written |
//!
//! A pair of route and outcome (or status class) shows up once it has happened, but for the outcomes that alerts watch; levels show
//! up once they are watched; everything else is there from the start, at 0.

mod exposition;
mod labels;
mod series;
mod store;
#[cfg(test)]
mod tests;
mod totals;
mod upstream;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;

pub use self::labels::{
    ConnectFailure, EvictionCause, Flood, Handshake, Limit, Outcome, Reload, SettledAs, Side,
    SpanEnd, StatusClass, StoreOp, StoreResult,
};
use self::series::{Counter, Gauge, Histogram, REQUEST_BOUNDS, Table};
pub use self::store::{ReadStoreLevels, StoreLevels, StoreMetrics};
pub use self::totals::{Buckets, Totals};
pub use self::upstream::{Reached, UpstreamMetrics, UpstreamState};
use super::log::LineWriter;
use crate::core::policy::RouteName;

/// All that one proxy counts, and which of it belongs to the routes of one configuration. Cheap to clone; clones count into the same
/// numbers.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    /// By the index that a route has in the configuration.
    routes: Vec<RouteMetrics>,
    /// `route=""`
    unrouted: RouteMetrics,
    house: Arc<House>,
}

/// What is counted whatever the configuration.
struct House {
    /// One each route name that there ever was, that of no route first: what is rendered.
    distinct: Mutex<Vec<RouteMetrics>>,
    connections: Table<Side, Connections>,
    reloads: Table<Reload, Counter>,
    refusals: Table<Limit, Counter>,
    handshakes: Table<Handshake, Counter>,
    certificate_reloads: Table<Reload, Counter>,
    floods: Table<Flood, Counter>,
    spans: Table<SpanEnd, Counter>,
    // The locks are taken at start, at a reload and when the text is asked for, never by a request.
    stores: Mutex<Vec<StoreMetrics>>,
    upstreams: Mutex<Vec<UpstreamMetrics>>,
    levels: Mutex<Vec<(Limit, ReadLevel)>>,
    certificates: Mutex<Option<ReadExpiries>>,
    log: Mutex<Option<LineWriter>>,
    process: ProcessCollector,
}

/// Reads a bound's level when the text is asked for.
pub type ReadLevel = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Reads when each certificate in use expires, in seconds since the epoch, by the section of the configuration that names it, when the
/// text is asked for.
pub type ReadExpiries = Arc<dyn Fn() -> Vec<(String, i64)> + Send + Sync>;

impl Metrics {
    /// Metrics for these routes, in the order of the configuration, and for requests on no route. Two routes of one
    /// name are counted as one.
    #[must_use]
    pub fn new(routes: &[RouteName]) -> Self {
        let house = House {
            distinct: Mutex::default(),
            connections: Table::new(Connections::default),
            reloads: Table::new(Counter::default),
            refusals: Table::new(Counter::default),
            handshakes: Table::new(Counter::default),
            certificate_reloads: Table::new(Counter::default),
            floods: Table::new(Counter::default),
            spans: Table::new(Counter::default),
            stores: Mutex::default(),
            upstreams: Mutex::default(),
            levels: Mutex::default(),
            certificates: Mutex::default(),
            log: Mutex::default(),
            process: ProcessCollector::for_self(),
        };
        Self::of(Arc::new(house), routes)
    }

    /// The same metrics for the routes of another configuration: a name that was there goes on counting, a new one begins at 0, and
    /// one that is no longer there keeps its values.
    #[must_use]
    pub fn for_routes(&self, routes: &[RouteName]) -> Self {
        Self::of(Arc::clone(&self.0.house), routes)
    }

    fn of(house: Arc<House>, routes: &[RouteName]) -> Self {
        let mut distinct = house.distinct.lock();
        let mut by_name: HashMap<_, _> = distinct
            .iter()
            .map(|route| (route.name().clone(), route.clone()))
            .collect();
        let mut series = |name: &RouteName| {
            let known = by_name.entry(name.clone()).or_insert_with(|| {
                let route = RouteMetrics::new(name.clone());
                distinct.push(route.clone());
                route
            });
            known.clone()
        };
        let unrouted = series(&RouteName::new(""));
        let routes = routes.iter().map(&mut series).collect();
        drop(distinct);
        Self(Arc::new(Inner {
            routes,
            unrouted,
            house,
        }))
    }

    /// The part of the route with this index in the list given to [`Metrics::new`]; of no route (`route=""`) for
    /// `None`, and for an index that no route has.
    #[must_use]
    pub fn route(&self, index: Option<usize>) -> &RouteMetrics {
        index
            .and_then(|index| self.0.routes.get(index))
            .unwrap_or(&self.0.unrouted)
    }

    /// The part of a store of this kind, as `store.kind` spells it. To be asked for once.
    #[must_use]
    pub fn store(&self, kind: &'static str) -> StoreMetrics {
        let mut stores = self.0.house.stores.lock();
        if let Some(store) = stores.iter().find(|store| store.0.kind == kind) {
            return store.clone();
        }
        let store = StoreMetrics::new(kind);
        stores.push(store.clone());
        store
    }

    /// The part of the upstream of this name. To be asked for once, and held for as long as the upstream is called.
    #[must_use]
    pub fn upstream(&self, name: &str) -> UpstreamMetrics {
        let mut upstreams = self.0.house.upstreams.lock();
        if let Some(upstream) = upstreams.iter().find(|upstream| upstream.name() == name) {
            return upstream.clone();
        }
        let upstream = UpstreamMetrics::new(name);
        upstreams.push(upstream.clone());
        upstream
    }

    /// How each upstream looks that is called, by its name.
    #[must_use]
    pub fn upstream_states(&self) -> Vec<(String, UpstreamState)> {
        let upstreams = self.0.house.upstreams.lock();
        upstreams
            .iter()
            .filter(|upstream| upstream.is_used())
            .map(|upstream| (upstream.name().to_owned(), upstream.state()))
            .collect()
    }

    /// From now on `read` tells the levels of the store of this kind. It takes the place of one told before.
    pub fn watch_store(&self, kind: &'static str, read: ReadStoreLevels) {
        let store = self.store(kind);
        let mut watched = store.0.watched.lock();
        watched.read = Some(read);
    }

    /// From now on `read` tells how much of this bound is taken. It takes the place of one told before.
    pub fn watch_limit(&self, limit: Limit, read: ReadLevel) {
        let mut levels = self.0.house.levels.lock();
        levels.retain(|(other, _)| *other != limit);
        levels.push((limit, read));
    }

    /// The level of each limit that is watched, now.
    #[must_use]
    pub fn limit_levels(&self) -> Vec<(Limit, u64)> {
        // The guard is not held while rooms are asked for their levels: they may count meanwhile.
        let watched = self.0.house.levels.lock().clone();
        let levels = watched.into_iter();
        levels.map(|(limit, read)| (limit, read())).collect()
    }

    /// From now on `read` tells when certificates expire.
    pub fn watch_certificates(&self, read: ReadExpiries) {
        *self.0.house.certificates.lock() = Some(read);
    }

    /// From now on the lines that this writer dropped are counted.
    pub fn watch_log(&self, writer: LineWriter) {
        *self.0.house.log.lock() = Some(writer);
    }

    /// Counts something that was refused because a bound was reached.
    pub fn limit_refused(&self, limit: Limit) {
        self.0.house.refusals.on(limit, Counter::add_one);
    }

    /// Counts an HTTP/2 connection that was ended for what it sent too much of.
    pub fn flood(&self, flood: Flood) {
        self.0.house.floods.on(flood, Counter::add_one);
    }

    /// Counts spans by what became of them.
    pub fn spans(&self, end: SpanEnd, count: u64) {
        self.0.house.spans.on(end, |spans| spans.add(count));
    }

    /// Counts a connection, which is open until the guard is dropped.
    pub fn connection(&self, side: Side) -> ConnectionGuard {
        self.0.house.connections.on(side, |connections| {
            connections.total.add_one();
            connections.open.add_one();
        });
        ConnectionGuard {
            metrics: self.clone(),
            side,
        }
    }

    /// Counts a configuration that was reloaded, or was not.
    pub fn config_reload(&self, result: Reload) {
        self.0.house.reloads.on(result, Counter::add_one);
    }

    /// Counts changed certificates that are in use now, or were refused.
    pub fn certificate_reload(&self, result: Reload) {
        self.0
            .house
            .certificate_reloads
            .on(result, Counter::add_one);
    }

    /// Counts a client's TLS handshake that failed.
    pub fn handshake_failed(&self, why: Handshake) {
        self.0.house.handshakes.on(why, Counter::add_one);
    }

    /// Everything in the Prometheus text format 0.0.4. It reads `/proc`: not for a thread that serves.
    #[must_use]
    pub fn render(&self) -> Vec<u8> {
        exposition::render(&self.0.house)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("routes", &self.0.routes.len())
            .finish_non_exhaustive()
    }
}

/// What is counted for one route. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RouteMetrics(Arc<RouteSeries>);

#[derive(Debug)]
struct RouteSeries {
    name: RouteName,
    /// A request's count is its histogram's.
    requests: Table<Outcome, Histogram>,
    upstream: Table<StatusClass, Histogram>,
    in_flight: Gauge,
    waiters: Gauge,
    settled: Table<SettledAs, Counter>,
    claims_lost: Counter,
}

impl RouteMetrics {
    fn new(name: RouteName) -> Self {
        Self(Arc::new(RouteSeries {
            name,
            requests: Table::new(|| Histogram::new(REQUEST_BOUNDS)),
            upstream: Table::new(|| Histogram::new(REQUEST_BOUNDS)),
            in_flight: Gauge::default(),
            waiters: Gauge::default(),
            settled: Table::new(Counter::default),
            claims_lost: Counter::default(),
        }))
    }

    /// The route's name: its label.
    #[must_use]
    pub fn name(&self) -> &RouteName {
        &self.0.name
    }

    /// Counts a request that ended so, after so long.
    pub fn request(&self, outcome: Outcome, took: Duration) {
        self.0.requests.on(outcome, |series| series.observe(took));
    }

    /// Counts an upstream call that was answered so, or not at all, after so long.
    pub fn upstream(&self, class: StatusClass, took: Duration) {
        self.0.upstream.on(class, |series| series.observe(took));
    }

    /// Counts an upstream call of a keyed request, which runs until the guard is dropped.
    pub fn in_flight(&self) -> InFlightGuard {
        self.0.in_flight.add_one();
        InFlightGuard(self.clone())
    }

    /// Counts a joiner, which waits until the guard is dropped.
    pub fn waiter(&self) -> WaiterGuard {
        self.0.waiters.add_one();
        WaiterGuard(self.clone())
    }

    /// Counts a record that was settled so.
    pub fn settled(&self, settled: SettledAs) {
        self.0.settled.on(settled, Counter::add_one);
    }

    /// Counts a claim that was found lost; once a claim.
    pub fn claim_lost(&self) {
        self.0.claims_lost.add_one();
    }
}

/// An upstream call of a keyed request that runs: `idem_proxy_in_flight`.
#[derive(Debug)]
#[must_use = "a dropped guard counts as ended"]
pub struct InFlightGuard(RouteMetrics);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.0.in_flight.take_one();
    }
}

/// A joiner that waits: `idem_proxy_waiters`.
#[derive(Debug)]
#[must_use = "a dropped guard counts as ended"]
pub struct WaiterGuard(RouteMetrics);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.0.waiters.take_one();
    }
}

#[derive(Debug, Default)]
struct Connections {
    open: Gauge,
    total: Counter,
}

/// An open connection: `idem_proxy_connections`.
#[derive(Debug)]
#[must_use = "a dropped guard counts as closed"]
pub struct ConnectionGuard {
    metrics: Metrics,
    side: Side,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let connections = &self.metrics.0.house.connections;
        connections.on(self.side, |connections| connections.open.take_one());
    }
}
