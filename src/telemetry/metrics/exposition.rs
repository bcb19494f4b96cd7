//! The numbers as Prometheus text: names, helps and labels stand here, each once.

use prometheus::{
    Encoder, TextEncoder,
    core::Collector,
    proto::{self, LabelPair, Metric, MetricFamily, MetricType},
};

use super::{
    EvictionCause, House, Limit, Outcome,
    series::{Counter, Snapshot, Table},
};

/// Everything, by name.
pub(super) fn render(house: &House) -> Vec<u8> {
    let mut families = Vec::new();
    build_info(&mut families);
    requests(house, &mut families);
    routes(house, &mut families);
    stores(house, &mut families);
    networks(house, &mut families);
    upstreams(house, &mut families);
    tls(house, &mut families);
    whole(house, &mut families);
    families.extend(house.process.collect());
    // A family without a sample is an error to the encoder.
    families.retain(|family| !family.get_metric().is_empty());
    families.sort_by(|a, b| a.name().cmp(b.name()));

    let mut text = Vec::with_capacity(16 << 10);
    // Memory takes every write, and each family has a name and a sample.
    if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
        tracing::error!(%error, "metrics could not be rendered");
    }
    text
}

fn build_info(families: &mut Vec<MetricFamily>) {
    families.push(family(
        "idem_proxy_build_info",
        "The version that runs; always 1.",
        MetricType::GAUGE,
        vec![gauge(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)],
    ));
}

/// What is timed for a route. Only what has happened is shown, and the outcomes that alerts watch: the first increase of a series
/// that was not there before is none to `increase()`.
fn requests(house: &House, families: &mut Vec<MetricFamily>) {
    let (mut totals, mut durations, mut upstream) = (Vec::new(), Vec::new(), Vec::new());
    for route in &house.distinct.lock().clone() {
        let name = route.name().as_str();
        for (outcome, series) in route.0.requests.iter() {
            if let Some(snapshot) = series.read() {
                let labels = [("route", name), ("outcome", outcome)];
                totals.push(counter(&labels, snapshot.count));
                durations.push(histogram(&labels, &snapshot));
            } else if Outcome::watched(name)
                .iter()
                .any(|watched| watched.as_str() == outcome)
            {
                totals.push(counter(&[("route", name), ("outcome", outcome)], 0));
            }
        }
        for (class, series) in route.0.upstream.iter() {
            if let Some(snapshot) = series.read() {
                upstream.push(histogram(
                    &[("route", name), ("status_class", class)],
                    &snapshot,
                ));
            }
        }
    }
    families.push(family(
        "idem_proxy_requests_total",
        "Requests, by how they ended.",
        MetricType::COUNTER,
        totals,
    ));
    families.push(family(
        "idem_proxy_request_duration_seconds",
        "How long requests took, by how they ended.",
        MetricType::HISTOGRAM,
        durations,
    ));
    families.push(family(
        "idem_proxy_upstream_duration_seconds",
        "How long upstream calls took, by what they were answered with.",
        MetricType::HISTOGRAM,
        upstream,
    ));
}

/// What is counted for a route beside its requests.
fn routes(house: &House, families: &mut Vec<MetricFamily>) {
    let (mut in_flight, mut waiters) = (Vec::new(), Vec::new());
    let (mut settled, mut claims_lost) = (Vec::new(), Vec::new());
    for route in &house.distinct.lock().clone() {
        let name = route.name().as_str();
        in_flight.push(gauge(&[("route", name)], signed(route.0.in_flight.value())));
        waiters.push(gauge(&[("route", name)], signed(route.0.waiters.value())));
        claims_lost.push(counter(&[("route", name)], route.0.claims_lost.value()));
        for (how, series) in route.0.settled.iter() {
            settled.push(counter(&[("route", name), ("as", how)], series.value()));
        }
    }
    families.push(family(
        "idem_proxy_in_flight",
        "Upstream calls of keyed requests that run now.",
        MetricType::GAUGE,
        in_flight,
    ));
    families.push(family(
        "idem_proxy_waiters",
        "Requests that wait now for a running call of the same key.",
        MetricType::GAUGE,
        waiters,
    ));
    families.push(family(
        "idem_proxy_records_settled_total",
        "Claims that ended, by what became of their records.",
        MetricType::COUNTER,
        settled,
    ));
    families.push(family(
        "idem_proxy_claims_lost_total",
        "Claims that were no longer their holders' when these came to renew or settle them.",
        MetricType::COUNTER,
        claims_lost,
    ));
}

/// What stores on a network cost.
fn networks(house: &House, families: &mut Vec<MetricFamily>) {
    let (mut trips, mut reconnects, mut misses) = (Vec::new(), Vec::new(), Vec::new());
    for store in house.stores.lock().iter() {
        let (kind, network) = (("store", store.0.kind), &store.0.network);
        if network.round_trips.value() > 0 {
            trips.push(counter(&[kind], network.round_trips.value()));
            reconnects.push(counter(&[kind], network.reconnects.value()));
            misses.push(counter(&[kind], network.script_misses.value()));
        }
    }
    families.push(family(
        "idem_proxy_store_round_trips_total",
        "Commands that were sent to the store's server.",
        MetricType::COUNTER,
        trips,
    ));
    families.push(family(
        "idem_proxy_store_reconnects_total",
        "Connections to the store's server that were made again.",
        MetricType::COUNTER,
        reconnects,
    ));
    families.push(family(
        "idem_proxy_store_script_misses_total",
        "Scripts that the store's server had forgotten and was told again.",
        MetricType::COUNTER,
        misses,
    ));
}

fn stores(house: &House, families: &mut Vec<MetricFamily>) {
    let (mut operations, mut durations) = (Vec::new(), Vec::new());
    let (mut records, mut bytes, mut evictions) = (Vec::new(), Vec::new(), Vec::new());
    let (mut commits, mut committed, mut up) = (Vec::new(), Vec::new(), Vec::new());
    // The guard is not held while rooms are asked for their levels: they may count meanwhile.
    let all = house.stores.lock().clone();
    for store in all {
        let kind = ("store", store.0.kind);
        for (operation, series) in store.0.operations.iter() {
            if let Some(snapshot) = series.took.read() {
                durations.push(histogram(&[kind, ("operation", operation)], &snapshot));
            }
            for (result, series) in series.results.iter() {
                operations.push(counter(
                    &[kind, ("operation", operation), ("result", result)],
                    series.value(),
                ));
            }
        }
        if let Some(snapshot) = store.0.commits.read() {
            commits.push(histogram(&[kind], &snapshot));
            committed.push(counter(&[kind], store.0.committed.value()));
        }
        let Some(levels) = store.levels() else {
            continue;
        };
        up.push(gauge(&[kind], if levels.up { 1.0 } else { 0.0 }));
        records.push(gauge(&[kind], unsigned(levels.records)));
        bytes.push(gauge(&[kind], unsigned(levels.bytes)));
        for cause in EvictionCause::ALL {
            let count = match cause {
                EvictionCause::Size => levels.evicted_size,
                EvictionCause::Expired => levels.evicted_expired,
                EvictionCause::Purged => levels.evicted_purged,
            };
            evictions.push(counter(&[kind, ("cause", cause.as_str())], count));
        }
    }
    families.push(family(
        "idem_proxy_store_operations_total",
        "Store operations, by how they ended.",
        MetricType::COUNTER,
        operations,
    ));
    families.push(family(
        "idem_proxy_store_operation_duration_seconds",
        "How long store operations took.",
        MetricType::HISTOGRAM,
        durations,
    ));
    families.push(family(
        "idem_proxy_store_commit_duration_seconds",
        "How long it took to make what waited durable, at once.",
        MetricType::HISTOGRAM,
        commits,
    ));
    families.push(family(
        "idem_proxy_store_committed_operations_total",
        "Store operations that were made durable.",
        MetricType::COUNTER,
        committed,
    ));
    families.push(family(
        "idem_proxy_store_up",
        "Whether the store takes claims.",
        MetricType::GAUGE,
        up,
    ));
    families.push(family(
        "idem_proxy_store_records",
        "Records that the store holds, claims among them; with Redis all keys of the server's database.",
        MetricType::GAUGE,
        records,
    ));
    families.push(family(
        "idem_proxy_store_bytes",
        "Bytes that the store's records take; with the disk store its database, with Redis all memory of the server.",
        MetricType::GAUGE,
        bytes,
    ));
    families.push(family(
        "idem_proxy_store_evictions_total",
        "Records that left the store: for want of room (protection was lost), expired, or purged.",
        MetricType::COUNTER,
        evictions,
    ));
}

/// What is counted for each upstream.
fn upstreams(house: &House, families: &mut Vec<MetricFamily>) {
    let mut failures = Vec::new();
    for upstream in house.upstreams.lock().iter() {
        for (reason, series) in upstream.failures().iter() {
            let labels = [("upstream", upstream.name()), ("reason", reason)];
            failures.push(counter(&labels, series.value()));
        }
    }
    families.push(family(
        "idem_proxy_upstream_connect_failures_total",
        "Connections to an upstream that could not be made.",
        MetricType::COUNTER,
        failures,
    ));
}

/// What is counted for the process as a whole.
fn whole(house: &House, families: &mut Vec<MetricFamily>) {
    let (mut open, mut total) = (Vec::new(), Vec::new());
    for (side, series) in house.connections.iter() {
        open.push(gauge(&[("side", side)], signed(series.open.value())));
        total.push(counter(&[("side", side)], series.total.value()));
    }
    families.push(family(
        "idem_proxy_connections",
        "Connections that are open now.",
        MetricType::GAUGE,
        open,
    ));
    families.push(family(
        "idem_proxy_connections_total",
        "Connections that were opened.",
        MetricType::COUNTER,
        total,
    ));
    families.push(family(
        "idem_proxy_config_reloads_total",
        "Configurations that were reloaded, or refused.",
        MetricType::COUNTER,
        counters("result", &house.reloads),
    ));
    families.push(family(
        "idem_proxy_limit_refusals_total",
        "What was refused because a bound was reached.",
        MetricType::COUNTER,
        counters("limit", &house.refusals),
    ));
    families.push(family(
        "idem_proxy_http2_floods_total",
        "HTTP/2 connections that were ended for what they sent too much of.",
        MetricType::COUNTER,
        counters("reason", &house.floods),
    ));
    families.push(family(
        "idem_proxy_trace_spans_total",
        "Spans that were recorded, by what became of them.",
        MetricType::COUNTER,
        counters("result", &house.spans),
    ));
    let watched = house.levels.lock().clone();
    let level = |(limit, read): &(Limit, super::ReadLevel)| {
        gauge(&[("limit", limit.as_str())], unsigned(read()))
    };
    families.push(family(
        "idem_proxy_limit_level",
        "How much of a bound is taken now.",
        MetricType::GAUGE,
        watched.iter().map(level).collect(),
    ));
    let dropped = house
        .log
        .lock()
        .as_ref()
        .map_or(0, super::LineWriter::dropped);
    families.push(family(
        "idem_proxy_log_lines_dropped_total",
        "Log lines that found the queue full or could not be written.",
        MetricType::COUNTER,
        vec![counter(&[], dropped)],
    ));
}

/// Certificates, and handshakes.
fn tls(house: &House, families: &mut Vec<MetricFamily>) {
    families.push(family(
        "idem_proxy_tls_handshake_failures_total",
        "Clients' TLS handshakes that failed, by the reason.",
        MetricType::COUNTER,
        counters("reason", &house.handshakes),
    ));
    families.push(family(
        "idem_proxy_certificate_reloads_total",
        "Changed certificates that are in use now, or were refused.",
        MetricType::COUNTER,
        counters("result", &house.certificate_reloads),
    ));
    let watched = house.certificates.lock().clone();
    let expiries = watched.map(|read| read()).unwrap_or_default();
    let expiry = |(which, at): &(String, i64)| gauge(&[("which", which)], signed(*at));
    families.push(family(
        "idem_proxy_certificate_expiry_seconds",
        "When the certificate in use expires, in seconds since the epoch.",
        MetricType::GAUGE,
        expiries.iter().map(expiry).collect(),
    ));
}

fn counters<L: super::labels::Label>(label: &str, table: &Table<L, Counter>) -> Vec<Metric> {
    let cell =
        |(value, series): (&'static str, &Counter)| counter(&[(label, value)], series.value());
    table.iter().map(cell).collect()
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut number = proto::Counter::default();
    number.set_value(unsigned(value));
    let mut metric = labelled(labels);
    metric.set_counter(number);
    metric
}

fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut number = proto::Gauge::default();
    number.set_value(value);
    let mut metric = labelled(labels);
    metric.set_gauge(number);
    metric
}

fn histogram(labels: &[(&str, &str)], snapshot: &Snapshot) -> Metric {
    let bucket = |(bound_ns, count): &(u64, u64)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(seconds(*bound_ns));
        bucket.set_cumulative_count(*count);
        bucket
    };
    let mut numbers = proto::Histogram::default();
    numbers.set_bucket(snapshot.cumulative.iter().map(bucket).collect());
    numbers.set_sample_count(snapshot.count);
    numbers.set_sample_sum(seconds(snapshot.sum_ns));
    let mut metric = labelled(labels);
    metric.set_histogram(numbers);
    metric
}

/// The quotient is rounded once, so a bound of 100 µs reads `0.0001`.
fn seconds(ns: u64) -> f64 {
    unsigned(ns) / 1e9
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats; over 2^53 they are rounded"
)]
fn unsigned(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats; over 2^53 they are rounded"
)]
fn signed(value: i64) -> f64 {
    value as f64
}
