//! Traces that are exported: a span for each keyed request, its children, its link to the execution whose answer it got; and collectors that
//! are dead, slow or none, which no request notices.

mod collector;

use std::sync::Arc;

use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use rustls::pki_types::PrivateKeyDer;
use socket2::{Domain, Socket, Type};
use tokio_rustls::TlsAcceptor;

use self::collector::{By, Collector, attribute, babbling, hex, one, silent};
use crate::{
    common::{
        Gate, Proxy, Request, Step, Upstream, authority::Authority, eventually, executed, key,
        replayed, reply,
    },
    executions::{joiner, leader},
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// What an execution leaves: the request, what it asked of the store, its call.
const EXECUTION: usize = 4;

fn server(spans: &[Span]) -> &Span {
    one(spans, SpanKind::Server, "POST /orders")
}

/// The requests with this outcome.
fn with_outcome<'a>(spans: &'a [Span], outcome: &str) -> Vec<&'a Span> {
    let is_it = |span: &&Span| attribute(span, "idem.outcome") == outcome;
    spans.iter().filter(is_it).collect()
}

fn linked(span: &Span, to: &Span) {
    let links: Vec<_> = span
        .links
        .iter()
        .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
        .collect();
    assert_eq!(links, [(hex(&to.trace_id), hex(&to.span_id))], "{span:#?}");
}

#[test]
fn an_execution_has_spans_under_the_clients_and_the_upstreams_hang_under_the_call() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let proxy = Proxy::with(&upstream, &collector.settings(""));
    let request = Request::order(&key()).header("traceparent", parent("01"));
    let answer = executed(proxy.send(&request.header("tracestate", "vendor=1")));
    let spans = collector.spans(EXECUTION);
    let request = server(&spans);
    assert_eq!(request.name, "POST /orders");
    assert_eq!(hex(&request.parent_span_id), PARENT);
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/orders"),
        ("http.response.status_code", &*answer.status.to_string()),
        ("idem.route", "orders"),
        ("idem.outcome", "miss"),
    ] {
        assert_eq!(attribute(request, name), value, "{request:#?}");
    }
    assert_eq!(attribute(request, "idem.record").len(), 16);
    assert!(request.links.is_empty());
    let call = one(&spans, SpanKind::Client, "POST");
    for child in [
        call,
        one(&spans, SpanKind::Internal, "store begin"),
        one(&spans, SpanKind::Internal, "store settle"),
    ] {
        assert_eq!(child.parent_span_id, request.span_id, "{child:#?}");
        assert!(child.start_time_unix_nano >= request.start_time_unix_nano);
        assert!(child.start_time_unix_nano <= child.end_time_unix_nano);
        if child.kind() == SpanKind::Internal {
            assert_eq!(attribute(child, "idem.store"), "memory");
        }
    }
    for span in &spans {
        assert_eq!(hex(&span.trace_id), TRACE);
    }
    let seen = upstream.only();
    let sent = format!("00-{TRACE}-{}-01", hex(&call.span_id));
    assert_eq!(seen.one("traceparent"), Some(&*sent), "{seen}");
    assert_eq!(seen.all("tracestate"), ["vendor=1"]);
    proxy.await_metric(
        "idem_proxy_trace_spans_total",
        &[("result", "exported")],
        4.0,
    );
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    for transport in collector.transports() {
        assert_eq!(transport, format!("POST {path} application/grpc"));
    }
}

#[test]
fn a_replay_links_to_the_execution_and_so_does_who_joined_it() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Http));
    let proxy = Proxy::with(&upstream, &collector.settings("/v1/traces"));
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let mut second = joiner(&proxy, &request, 1.0);
    gate.open();
    let first = executed(first.answer());
    replayed(&second.answer(), &first);
    replayed(&proxy.send(&request), &first);
    let spans = collector.spans(EXECUTION + 2);
    let [miss, hit, joined] =
        ["miss", "hit", "joined"].map(|outcome| with_outcome(&spans, outcome)[0]);
    assert!(miss.links.is_empty() && miss.parent_span_id.is_empty());
    for span in [hit, joined] {
        linked(span, miss);
        assert_ne!(span.trace_id, miss.trace_id, "a trace of its own");
        assert_eq!(
            attribute(span, "idem.record"),
            attribute(miss, "idem.record")
        );
    }
    let expected = "POST /v1/traces application/x-protobuf";
    assert!(
        collector
            .transports()
            .iter()
            .all(|transport| transport == expected)
    );
}

#[test]
fn a_replay_links_to_an_execution_before_the_restart() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = format!(
        "store.kind = 'disk'\nstore.disk.path = '{}'\n{}",
        folder.path().join("store").display(),
        collector.settings("")
    );
    let request = Request::order(&key());
    let mut proxy = Proxy::with(&upstream, &settings);
    let first = executed(proxy.send(&request));
    // What is queued is sent before the process ends.
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    assert_eq!(collector.count(), EXECUTION);
    let proxy = Proxy::with(&upstream, &settings);
    replayed(&proxy.send(&request), &first);
    // The disk is read where the claim is asked for.
    let spans = collector.spans(EXECUTION + 2);
    linked(
        with_outcome(&spans, "hit")[0],
        with_outcome(&spans, "miss")[0],
    );
    for span in &spans {
        if span.kind() == SpanKind::Internal {
            assert_eq!(attribute(span, "idem.store"), "disk");
        }
    }
}

#[test]
fn an_execution_goes_on_in_its_trace_when_its_client_is_gone() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let proxy = Proxy::with(&upstream, &collector.settings(""));
    let request = Request::order(&key()).header("traceparent", parent("01"));
    let (client, gate) = leader(&proxy, &upstream, &request);
    client.reset();
    let gone = collector.spans(2);
    assert_eq!(attribute(server(&gone), "error.type"), "client_gone");
    gate.open();
    let spans = collector.spans(EXECUTION);
    let call = one(&spans, SpanKind::Client, "POST");
    assert_eq!(call.parent_span_id, server(&spans).span_id);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
}

#[test]
fn the_client_decides_what_is_recorded_and_else_the_ratio_does() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let settings = collector.settings("") + "telemetry.otlp_sample_ratio = 0.0";
    let mut proxy = Proxy::with(&upstream, &settings);
    executed(proxy.send(&Request::order(&key())));
    let sent = upstream.last();
    assert!(
        sent.one("traceparent")
            .is_some_and(|sent| sent.ends_with("-00")),
        "{sent}"
    );
    let unsampled = parent("00");
    executed(proxy.send(&Request::order(&key()).header("traceparent", &unsampled)));
    assert_eq!(upstream.last().one("traceparent"), Some(&*unsampled));
    executed(proxy.send(&Request::order(&key()).header("traceparent", parent("01"))));
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    let spans = collector.spans(EXECUTION);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
}

#[test]
fn what_has_no_key_has_no_span_and_its_trace_passes_byte_for_byte() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let settings = collector.settings("")
        + "policy.key_sources = ['header:Idempotency-Key', 'json:/id']\n\
           [[route]]\nname = 'orders'\nmethods = ['POST']\npath = '/orders'\n";
    let mut proxy = Proxy::with(&upstream, &settings);
    let json = Request::write("POST", "/orders").media_type("application/json");
    for request in [
        Request::get("/free"),
        Request::write("POST", "/elsewhere"),
        json.body("{}"),
    ] {
        proxy.send(&request.header("traceparent", parent("01")));
        let seen = upstream.last();
        assert_eq!(seen.one("traceparent"), Some(&*parent("01")), "{seen}");
    }
    let json = Request::write("POST", "/orders").media_type("application/json");
    executed(proxy.send(&json.body(format!("{{\"id\": \"{}\"}}", key()))));
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    assert_eq!(
        attribute(server(&collector.spans(EXECUTION)), "idem.outcome"),
        "miss"
    );
}

#[test]
fn nothing_that_a_client_sent_is_exported() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let mut proxy = Proxy::with(&upstream, &collector.settings(""));
    upstream.then(
        reply(201)
            .body("ANSWER-BODY")
            .header("X-Answer", "ANSWER-HEADER"),
    );
    let request = Request::write("POST", "/orders/PATH-SEGMENT?q=QUERY-VALUE")
        .key("KEY-VALUE")
        .caller("Bearer CREDENTIAL-VALUE")
        .header("Cookie", "s=COOKIE-VALUE")
        .header("tracestate", "vendor=STATE-VALUE")
        .header("baggage", "a=BAGGAGE-VALUE")
        .header("traceparent", parent("01"))
        .body("BODY-VALUE");
    for _ in 0..2 {
        proxy.send(&request);
    }
    let odd = Request::write("METHOD-VALUE", "/orders/1").key("KEY-VALUE-2");
    proxy.send(&odd);
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    let spans = collector.spans(EXECUTION + 1);
    assert_eq!(with_outcome(&spans, "hit").len(), 1);
    assert_eq!(
        attribute(with_outcome(&spans, "hit")[0], "http.route"),
        "/orders/{id}"
    );
    let text = collector.text();
    for secret in [
        "VALUE",
        "SEGMENT",
        "ANSWER",
        "Bearer",
        "127.0.0.1",
        "localhost",
    ] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[test]
fn no_request_notices_a_collector_that_is_dead_slow_or_none() {
    let dead = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    dead.bind(
        &"127.0.0.1:0"
            .parse::<std::net::SocketAddr>()
            .expect("an address")
            .into(),
    )
    .expect("a free port");
    let dead_address = dead.local_addr().expect("an address").as_socket();
    let (_held, silent) = silent();
    for address in [
        dead_address.expect("an address").to_string(),
        silent.to_string(),
        babbling(b"nonsense, and more of it\r\n\r\n").to_string(),
        "localhost.invalid:4317".to_owned(),
    ] {
        for path in ["", "/v1/traces"] {
            let upstream = Upstream::start();
            let settings = format!("telemetry.otlp_endpoint = 'http://{address}{path}'");
            let mut proxy = Proxy::with(&upstream, &settings);
            let requests: Vec<_> = (0..25).map(|_| Request::order(&key())).collect();
            for request in &requests {
                let first = executed(proxy.send(request));
                replayed(&proxy.send(request), &first);
            }
            assert_eq!(upstream.executions(), requests.len(), "{address}{path}");
            proxy.signal("TERM");
            assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
        }
    }
}

#[test]
fn what_a_collector_refuses_for_now_is_sent_again_and_what_it_refuses_is_counted() {
    for (by, path, later, never) in [(By::Grpc, "", 14, 3), (By::Http, "/v1/traces", 503, 400)] {
        let upstream = Upstream::start();
        let collector = Collector::refusing(by, &[later, never]);
        let proxy = Proxy::with(&upstream, &collector.settings(path));
        executed(proxy.send(&Request::order(&key())));
        proxy.await_metric(NAME, &[("result", "refused")], 4.0);
        assert_eq!((collector.refused(), collector.count()), (2, 0));
        executed(proxy.send(&Request::order(&key())));
        collector.spans(EXECUTION);
        proxy.await_metric(NAME, &[("result", "exported")], 4.0);
        let told = |what: &str| proxy.log().matches(what).count();
        eventually("the news", || told("takes spans again") == 1);
        assert_eq!(told("spans could not be exported"), 1, "{}", proxy.log());
    }
}

const NAME: &str = "idem_proxy_trace_spans_total";

#[test]
fn what_is_no_collector_has_taken_nothing() {
    let upstream = Upstream::start();
    let page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi";
    let address = babbling(page);
    let settings = format!("telemetry.otlp_endpoint = 'http://{address}/v1/traces'");
    let proxy = Proxy::with(&upstream, &settings);
    executed(proxy.send(&Request::order(&key())));
    proxy.await_metric(NAME, &[("result", "refused")], 4.0);
    let exported = proxy.metrics().sum(NAME, &[("result", "exported")]);
    assert!(exported < 1.0, "{exported}");
}

#[test]
fn a_collector_is_reached_over_tls_and_must_prove_who_it_is() {
    let authority = Authority::new("collectors");
    let certified = authority.server();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, authority.pem()).expect("the folder takes a file");
    let believed = [("SSL_CERT_FILE", roots.to_str().expect("UTF-8"))];
    for (by, path, alpn) in [(By::Grpc, "", "h2"), (By::Http, "/v1/traces", "http/1.1")] {
        let key_is: PrivateKeyDer<'static> = certified.secret();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certified.der().clone()], key_is)
            .expect("a certificate and its key");
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let collector = Collector::secured(by, TlsAcceptor::from(Arc::new(config)));
        let port = collector.address().port();
        for (host, taken) in [("localhost", true), ("127.0.0.1", false)] {
            let upstream = Upstream::start();
            let settings = format!("telemetry.otlp_endpoint = 'https://{host}:{port}{path}'");
            let mut proxy = Proxy::launch(&upstream, &settings, &believed);
            executed(proxy.send(&Request::order(&key())));
            proxy.signal("TERM");
            assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
            assert_eq!(collector.count(), EXECUTION, "{host}");
            let failed = proxy.log().contains("spans could not be exported");
            assert_eq!(failed, !taken, "{}", proxy.log());
        }
    }
}

#[test]
fn an_answer_that_is_not_stored_links_too_and_a_failed_call_says_so() {
    let (upstream, collector) = (Upstream::start(), Collector::start(By::Grpc));
    let proxy = Proxy::with(&upstream, &collector.settings(""));
    let gate = Gate::new();
    upstream.then(Step::from(reply(503)).behind(&gate));
    let request = Request::order(&key());
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = joiner(&proxy, &request, 1.0);
    gate.open();
    assert_eq!((first.answer().status, second.answer().status), (503, 503));
    let spans = collector.spans(EXECUTION + 1);
    let released = with_outcome(&spans, "released")[0];
    linked(with_outcome(&spans, "joined")[0], released);
    assert_eq!(released.status.as_ref().map(|status| status.code), Some(2));
    let call = one(&spans, SpanKind::Client, "POST");
    assert_eq!(attribute(call, "error.type"), "503");

    upstream.then(Step::drop());
    assert_eq!(proxy.send(&Request::order(&key())).status, 502);
    let spans = collector.spans(2 * EXECUTION + 1);
    let failed = with_outcome(&spans, "upstream_failure")[0];
    let is_its = |span: &&Span| span.parent_span_id == failed.span_id;
    let children: Vec<_> = spans.iter().filter(is_its).collect();
    assert_eq!(children.len(), EXECUTION - 1);
    let call = children.iter().find(|span| span.kind() == SpanKind::Client);
    assert_eq!(
        attribute(call.expect("a call"), "error.type"),
        "upstream-failed"
    );
}
