//! The rendered text against the contract's table.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Name, type, labels: contract, section 11, then what the module's doc adds.
const TABLE: &[(&str, &str, &str)] = &[
    ("idem_proxy_build_info", "gauge", "version"),
    ("idem_proxy_certificate_expiry_seconds", "gauge", "which"),
    ("idem_proxy_certificate_reloads_total", "counter", "result"),
    ("idem_proxy_claims_lost_total", "counter", "route"),
    ("idem_proxy_config_reloads_total", "counter", "result"),
    ("idem_proxy_connections", "gauge", "side"),
    ("idem_proxy_connections_total", "counter", "side"),
    ("idem_proxy_http2_floods_total", "counter", "reason"),
    ("idem_proxy_in_flight", "gauge", "route"),
    ("idem_proxy_limit_level", "gauge", "limit"),
    ("idem_proxy_limit_refusals_total", "counter", "limit"),
    ("idem_proxy_log_lines_dropped_total", "counter", ""),
    ("idem_proxy_records_settled_total", "counter", "as route"),
    (
        "idem_proxy_request_duration_seconds",
        "histogram",
        "outcome route",
    ),
    ("idem_proxy_requests_total", "counter", "outcome route"),
    ("idem_proxy_store_bytes", "gauge", "store"),
    (
        "idem_proxy_store_commit_duration_seconds",
        "histogram",
        "store",
    ),
    (
        "idem_proxy_store_committed_operations_total",
        "counter",
        "store",
    ),
    ("idem_proxy_store_evictions_total", "counter", "cause store"),
    (
        "idem_proxy_store_operation_duration_seconds",
        "histogram",
        "operation store",
    ),
    (
        "idem_proxy_store_operations_total",
        "counter",
        "operation result store",
    ),
    ("idem_proxy_store_reconnects_total", "counter", "store"),
    ("idem_proxy_store_records", "gauge", "store"),
    ("idem_proxy_store_round_trips_total", "counter", "store"),
    ("idem_proxy_store_script_misses_total", "counter", "store"),
    ("idem_proxy_store_up", "gauge", "store"),
    (
        "idem_proxy_tls_handshake_failures_total",
        "counter",
        "reason",
    ),
    ("idem_proxy_trace_spans_total", "counter", "result"),
    (
        "idem_proxy_upstream_connect_failures_total",
        "counter",
        "reason upstream",
    ),
    (
        "idem_proxy_upstream_duration_seconds",
        "histogram",
        "route status_class",
    ),
    ("idem_proxy_waiters", "gauge", "route"),
];

fn three_routes() -> Metrics {
    Metrics::new(&["orders", "jobs", "files"].map(RouteName::new))
}

fn text(metrics: &Metrics) -> String {
    String::from_utf8(metrics.render()).unwrap()
}

/// Every sample's value by its name and labels, all as written. No sample may stand twice.
fn samples(metrics: &Metrics) -> BTreeMap<String, String> {
    let text = text(metrics);
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let before = samples.insert(series.to_owned(), value.to_owned());
        assert_eq!(before, None, "{series} stands twice");
    }
    samples
}

fn sample(metrics: &Metrics, series: &str) -> String {
    let samples = samples(metrics);
    samples
        .get(series)
        .cloned()
        .unwrap_or_else(|| panic!("no {series} in {samples:#?}"))
}

/// Moves everything that there is.
fn touch(metrics: &Metrics) {
    let took = Duration::from_millis(3);
    let route = metrics.route(Some(1));
    route.request(Outcome::Miss, took);
    route.upstream(StatusClass::Success, took);
    metrics
        .store("memory")
        .operation(StoreOp::Begin, StoreResult::Ok, took);
    metrics.store("disk").committed(1, took);
    let redis = metrics.store("redis");
    redis.round_trip();
    redis.reconnected();
    redis.script_missed();
    metrics.watch_store("memory", Arc::new(StoreLevels::default));
    let _ = metrics
        .upstream("billing")
        .connect_failed(ConnectFailure::Dns);
    metrics.watch_limit(Limit::MaxExecutions, Arc::new(|| 7));
    metrics.watch_certificates(Arc::new(|| vec![("server".to_owned(), 7)]));
}

#[test]
fn names_types_and_labels_are_the_contracts() {
    let metrics = three_routes();
    touch(&metrics);
    let text = text(&metrics);
    let types: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let series = samples(&metrics);
    for series in series.keys() {
        let (name, inside) = series.split_once('{').unwrap_or((series, ""));
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .find(|family| types.get(family) == Some(&"histogram"))
            .unwrap_or(name);
        let found = labels.entry(family).or_default();
        let pairs = inside
            .trim_end_matches('}')
            .split(',')
            .filter(|pair| !pair.is_empty());
        found.extend(
            pairs
                .map(|pair| pair.split_once('=').unwrap().0)
                .filter(|name| *name != "le"),
        );
    }
    let found: Vec<_> = labels
        .iter()
        .filter(|(name, _)| name.starts_with("idem_proxy_"))
        .map(|(name, labels)| {
            (
                *name,
                types[name],
                labels.iter().copied().collect::<Vec<_>>().join(" "),
            )
        })
        .collect();
    let expected: Vec<_> = TABLE
        .iter()
        .map(|(name, kind, labels)| (*name, *kind, (*labels).to_owned()))
        .collect();
    assert_eq!(found, expected);
    let others: Vec<_> = labels
        .keys()
        .filter(|name| !name.starts_with("idem_proxy_"))
        .collect();
    assert!(
        others.contains(&&"process_resident_memory_bytes"),
        "{others:?}"
    );
    assert!(
        others.iter().all(|name| name.starts_with("process_")),
        "{others:?}"
    );
}

#[test]
fn each_family_stands_once_with_a_help() {
    let metrics = three_routes();
    touch(&metrics);
    let text = text(&metrics);
    let of = |what: &str| {
        let names: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix(what)?.split_once(' '))
            .map(|(name, _)| name.to_owned())
            .collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        names
    };
    assert_eq!(of("# HELP "), of("# TYPE "));
}

#[test]
fn a_request_is_counted_and_timed_once() {
    let metrics = three_routes();
    let orders = metrics.route(Some(0));
    orders.request(Outcome::Hit, Duration::from_micros(100));
    orders.request(Outcome::Hit, Duration::from_millis(20));
    metrics
        .route(None)
        .request(Outcome::Passthrough, Duration::ZERO);
    let samples = samples(&metrics);
    let hit = "route=\"orders\",outcome=\"hit\"";
    assert_eq!(samples[&format!("idem_proxy_requests_total{{{hit}}}")], "2");
    assert_eq!(
        samples["idem_proxy_requests_total{route=\"\",outcome=\"passthrough\"}"],
        "1"
    );
    let bucket = |le: &str| {
        samples[&format!("idem_proxy_request_duration_seconds_bucket{{{hit},le=\"{le}\"}}")].clone()
    };
    assert_eq!(
        ["0.0001", "0.00025", "0.01", "0.025", "60", "+Inf"].map(bucket),
        ["1", "1", "1", "2", "2", "2"]
    );
    assert_eq!(
        samples[&format!("idem_proxy_request_duration_seconds_count{{{hit}}}")],
        "2"
    );
    assert_eq!(
        samples[&format!("idem_proxy_request_duration_seconds_sum{{{hit}}}")],
        "0.0201"
    );
    let totals = samples
        .iter()
        .filter(|(series, count)| series.starts_with("idem_proxy_requests_total") && *count != "0");
    assert_eq!(totals.count(), 2, "nothing else has happened");
}

#[test]
fn what_alerts_watch_is_there_from_the_start() {
    let metrics = three_routes();
    metrics.watch_store("memory", Arc::new(StoreLevels::default));
    let outcome = |route: &str, outcome: Outcome| {
        let outcome = outcome.as_str();
        format!("idem_proxy_requests_total{{route=\"{route}\",outcome=\"{outcome}\"}}")
    };
    let before = samples(&metrics);
    for route in ["orders", ""] {
        for watched in Outcome::watched(route) {
            assert_eq!(
                before[&outcome(route, *watched)],
                "0",
                "{route} {watched:?}"
            );
        }
    }
    assert!(!before.contains_key(&outcome("orders", Outcome::PassthroughKeyed)));
    for result in StoreResult::ALL {
        let result = result.as_str();
        let series = format!(
            "idem_proxy_store_operations_total{{store=\"memory\",operation=\"begin\",result=\"{result}\"}}"
        );
        assert_eq!(before[&series], "0");
    }
    metrics
        .route(Some(0))
        .request(Outcome::Unknown, Duration::ZERO);
    assert_eq!(sample(&metrics, &outcome("orders", Outcome::Unknown)), "1");
    assert_eq!(
        samples(&metrics).len() - before.len(),
        REQUEST_BOUNDS.len() + 3,
        "the count was there: what comes is its histogram"
    );
}

#[test]
fn upstream_calls_are_timed_by_class() {
    let metrics = three_routes();
    metrics
        .route(Some(2))
        .upstream(StatusClass::None, Duration::from_secs(30));
    metrics.route(Some(2)).upstream(
        http::StatusCode::BAD_GATEWAY.into(),
        Duration::from_secs(61),
    );
    let count = |class: &str| {
        let series = format!(
            "idem_proxy_upstream_duration_seconds_count{{route=\"files\",status_class=\"{class}\"}}"
        );
        sample(&metrics, &series)
    };
    assert_eq!([count("none"), count("5xx")], ["1", "1"]);
}

#[test]
fn a_certificate_is_told_while_there_is_one() {
    let metrics = three_routes();
    let expiry = |at: Option<i64>| {
        let read = move || at.map(|at| ("server".to_owned(), at)).into_iter().collect();
        metrics.watch_certificates(Arc::new(read));
        let series = "idem_proxy_certificate_expiry_seconds{which=\"server\"}";
        samples(&metrics).get(series).cloned()
    };
    assert_eq!(expiry(Some(1_893_456_000)).as_deref(), Some("1893456000"));
    assert_eq!(expiry(Some(-1)).as_deref(), Some("-1"), "long ago");
    assert_eq!(expiry(None), None);
}

#[test]
fn guards_count_back_when_they_are_dropped() {
    let metrics = three_routes();
    let route = metrics.route(Some(0)).clone();
    let guards = (route.in_flight(), route.in_flight(), route.waiter());
    let client = metrics.connection(Side::Client);
    let upstream = metrics.connection(Side::Upstream);
    let read = || {
        [
            "idem_proxy_in_flight{route=\"orders\"}",
            "idem_proxy_waiters{route=\"orders\"}",
            "idem_proxy_connections{side=\"client\"}",
            "idem_proxy_connections_total{side=\"client\"}",
            "idem_proxy_connections{side=\"upstream\"}",
        ]
        .map(|series| sample(&metrics, series))
    };
    assert_eq!(read(), ["2", "1", "1", "1", "1"]);
    drop((guards, client));
    assert_eq!(read(), ["0", "0", "0", "1", "1"]);
    drop(upstream);
    assert_eq!(read(), ["0", "0", "0", "1", "0"]);
}

#[test]
fn what_became_of_claims_is_there_from_the_start() {
    let metrics = three_routes();
    let settled = |how: &str| {
        let series = format!("idem_proxy_records_settled_total{{route=\"jobs\",as=\"{how}\"}}");
        sample(&metrics, &series)
    };
    assert!(
        SettledAs::ALL
            .iter()
            .all(|how| settled(how.as_str()) == "0")
    );
    for how in SettledAs::ALL {
        metrics.route(Some(1)).settled(*how);
    }
    assert!(
        SettledAs::ALL
            .iter()
            .all(|how| settled(how.as_str()) == "1")
    );
    metrics.route(Some(1)).claim_lost();
    assert_eq!(
        sample(&metrics, "idem_proxy_claims_lost_total{route=\"jobs\"}"),
        "1"
    );
}

#[test]
fn an_index_that_no_route_has_counts_as_no_route() {
    let metrics = three_routes();
    assert_eq!(metrics.route(Some(3)).name().as_str(), "");
    assert_eq!(metrics.route(None).name().as_str(), "");
}

#[test]
fn another_configuration_counts_on_under_the_names_that_stay() {
    let [a, b, c] = ["a", "b", "c"].map(RouteName::new);
    let before = Metrics::new(&[a.clone(), b.clone()]);
    let took = Duration::from_millis(1);
    before.route(Some(0)).request(Outcome::Hit, took);
    before.route(Some(1)).request(Outcome::Hit, took);
    before.route(None).request(Outcome::Passthrough, took);
    let after = before.for_routes(&[b, c]);
    after.route(Some(0)).request(Outcome::Hit, took);
    after.route(Some(1)).request(Outcome::Hit, took);
    after.route(None).request(Outcome::Passthrough, took);
    // A request that began under the old one ends under it.
    before.route(Some(0)).request(Outcome::Hit, took);
    for metrics in [before, after] {
        let text = String::from_utf8(metrics.render()).unwrap();
        for (labels, count) in [
            (r#"route="a",outcome="hit""#, 2),
            (r#"route="b",outcome="hit""#, 2),
            (r#"route="c",outcome="hit""#, 1),
            (r#"route="",outcome="passthrough""#, 2),
        ] {
            let line = format!("idem_proxy_requests_total{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}

#[test]
fn routes_of_one_name_share_their_series() {
    let metrics = Metrics::new(&["a", "b", "a", ""].map(RouteName::new));
    for index in [Some(0), Some(2), Some(3), None] {
        metrics
            .route(index)
            .request(Outcome::Unkeyed, Duration::ZERO);
    }
    let count = |route: &str| {
        let series = format!("idem_proxy_requests_total{{route=\"{route}\",outcome=\"unkeyed\"}}");
        sample(&metrics, &series)
    };
    assert_eq!([count("a"), count("")], ["2", "2"]);
}

#[test]
fn a_routes_name_cannot_break_the_text() {
    let metrics = Metrics::new(&[RouteName::new("a\"b\\c\nd")]);
    metrics
        .route(Some(0))
        .request(Outcome::Miss, Duration::ZERO);
    let series = "idem_proxy_requests_total{route=\"a\\\"b\\\\c\\nd\",outcome=\"miss\"}";
    assert_eq!(sample(&metrics, series), "1");
}

#[test]
fn a_stores_levels_are_read_when_asked_for_and_evictions_never_go_back() {
    let metrics = three_routes();
    let levels = Arc::new(Mutex::new(StoreLevels {
        records: 5,
        bytes: 1_000,
        evicted_size: 3,
        evicted_expired: 2,
        evicted_purged: 1,
        up: true,
    }));
    let own = Arc::clone(&levels);
    metrics.watch_store("memory", Arc::new(move || *own.lock()));
    let read = || {
        [
            "idem_proxy_store_records{store=\"memory\"}",
            "idem_proxy_store_bytes{store=\"memory\"}",
            "idem_proxy_store_evictions_total{store=\"memory\",cause=\"size\"}",
            "idem_proxy_store_evictions_total{store=\"memory\",cause=\"expired\"}",
            "idem_proxy_store_evictions_total{store=\"memory\",cause=\"purged\"}",
            "idem_proxy_store_up{store=\"memory\"}",
        ]
        .map(|series| sample(&metrics, series))
    };
    assert_eq!(read(), ["5", "1000", "3", "2", "1", "1"]);
    *levels.lock() = StoreLevels {
        records: 1,
        bytes: 10,
        evicted_size: 0,
        evicted_expired: 4,
        evicted_purged: 0,
        up: false,
    };
    assert_eq!(read(), ["1", "10", "3", "4", "1", "0"]);
}

#[test]
fn commits_are_timed_and_what_they_made_durable_is_counted() {
    let metrics = three_routes();
    let series = "idem_proxy_store_committed_operations_total{store=\"disk\"}";
    let store = metrics.store("disk");
    assert!(!samples(&metrics).contains_key(series));
    store.committed(3, Duration::from_millis(2));
    store.committed(1, Duration::from_millis(2));
    assert_eq!(sample(&metrics, series), "4");
    let count = "idem_proxy_store_commit_duration_seconds_count{store=\"disk\"}";
    assert_eq!(sample(&metrics, count), "2");
}

#[test]
fn store_operations_are_counted_by_result_and_timed() {
    let metrics = three_routes();
    let store = metrics.store("memory");
    store.operation(StoreOp::Settle, StoreResult::Ok, Duration::from_nanos(900));
    store.operation(StoreOp::Settle, StoreResult::Lost, Duration::from_micros(2));
    metrics
        .store("memory")
        .operation(StoreOp::Settle, StoreResult::Lost, Duration::from_secs(2));
    let labels = "store=\"memory\",operation=\"settle\"";
    let read = samples(&metrics);
    let total = |result: &str| {
        read[&format!("idem_proxy_store_operations_total{{{labels},result=\"{result}\"}}")].clone()
    };
    assert_eq!([total("ok"), total("lost")], ["1", "2"]);
    let name = "idem_proxy_store_operation_duration_seconds";
    assert_eq!(
        read[&format!("{name}_bucket{{{labels},le=\"0.000001\"}}")],
        "1"
    );
    assert_eq!(read[&format!("{name}_bucket{{{labels},le=\"1\"}}")], "2");
    assert_eq!(read[&format!("{name}_count{{{labels}}}")], "3");
}

#[test]
fn bounds_tell_their_level_and_refusals() {
    let metrics = three_routes();
    metrics.watch_limit(Limit::MaxConnections, Arc::new(|| 1));
    metrics.watch_limit(Limit::MaxConnections, Arc::new(|| 12));
    metrics.limit_refused(Limit::MaxConnections);
    metrics.config_reload(Reload::Refused);
    let read = samples(&metrics);
    assert_eq!(
        read["idem_proxy_limit_level{limit=\"max_connections\"}"],
        "12"
    );
    assert_eq!(
        read["idem_proxy_limit_refusals_total{limit=\"max_connections\"}"],
        "1"
    );
    assert_eq!(
        read["idem_proxy_limit_refusals_total{limit=\"max_waiters\"}"],
        "0"
    );
    assert_eq!(
        read["idem_proxy_config_reloads_total{result=\"refused\"}"],
        "1"
    );
    assert_eq!(
        read["idem_proxy_config_reloads_total{result=\"applied\"}"],
        "0"
    );
    assert_eq!(
        read[&format!(
            "idem_proxy_build_info{{version=\"{}\"}}",
            env!("CARGO_PKG_VERSION")
        )],
        "1"
    );
}

#[test]
fn two_of_them_share_nothing() {
    let (one, other) = (three_routes(), three_routes());
    one.route(Some(0)).request(Outcome::Miss, Duration::ZERO);
    let _open = one.connection(Side::Client);
    let of_requests = |metrics: &Metrics| text(metrics).contains("outcome=\"miss\"");
    assert!(of_requests(&one) && !of_requests(&other));
    assert_eq!(
        sample(&other, "idem_proxy_connections_total{side=\"client\"}"),
        "0"
    );
}

#[test]
fn a_clone_counts_into_the_same_numbers_from_any_thread() {
    let metrics = three_routes();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let metrics = metrics.clone();
            scope.spawn(move || {
                let route = metrics.route(Some(0));
                for _ in 0..1_000 {
                    route.request(Outcome::Hit, Duration::from_micros(50));
                }
            });
        }
    });
    let series = "idem_proxy_requests_total{route=\"orders\",outcome=\"hit\"}";
    assert_eq!(sample(&metrics, series), "4000");
}
