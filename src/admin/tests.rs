//! The admin service over a pipe in memory.

use std::future::{pending, ready};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::{
    core::{policy::RouteName, record::ShortId},
    telemetry::metrics::Outcome,
};

fn state() -> Arc<AdminState> {
    let metrics = Metrics::new(&[RouteName::new("orders")]);
    let loaded = crate::config::parse("none", "", []).loaded().unwrap();
    let config = Arc::new(ArcSwap::from_pointee(loaded.config));
    let health = Arc::new(Health::new());
    Arc::new(AdminState::new(
        metrics,
        health,
        Arc::new(Stores::None),
        config,
    ))
}

const LOCAL: Operator = Operator {
    address: None,
    reach: Reach::Local,
};

/// A connection to the service, which has a task of its own.
fn connect(
    state: &Arc<AdminState>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> DuplexStream {
    let (client, server) = duplex(1 << 20);
    spawn(serve(server, Arc::clone(state), LOCAL, shutdown));
    client
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test's peer is no task of the proxy's"
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// Sends these bytes and reads to the end.
async fn exchange(state: &Arc<AdminState>, request: &str) -> String {
    let mut client = connect(state, pending());
    client.write_all(request.as_bytes()).await.unwrap();
    read_all(&mut client).await
}

async fn read_all(client: &mut DuplexStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn ask(state: &Arc<AdminState>, method: &str, path: &str) -> String {
    exchange(
        state,
        &format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
    )
    .await
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn livez_is_200_in_every_state() {
    let state = state();
    for change in [|_: &Health| {}, Health::set_ready, Health::set_draining] {
        change(&state.health);
        let answer = ask(&state, "GET", "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(body(&answer), "ok\n");
    }
}

#[tokio::test]
async fn readyz_follows_the_state() {
    let state = state();
    let starting = ask(&state, "GET", "/readyz").await;
    assert!(starting.starts_with("HTTP/1.1 503 "), "{starting}");
    assert!(body(&starting).contains("\"starting\""), "{starting}");
    state.health.set_ready();
    let ready = ask(&state, "GET", "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    state.health.set_draining();
    let draining = ask(&state, "GET", "/readyz?verbose").await;
    assert!(draining.starts_with("HTTP/1.1 503 "), "{draining}");
    assert!(
        draining.contains("cache-control: no-store\r\n"),
        "{draining}"
    );
    assert!(body(&draining).contains("\"draining\""), "{draining}");
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let state = state();
    state
        .metrics
        .route(Some(0))
        .request(Outcome::Hit, Duration::from_millis(1));
    let answer = ask(&state, "GET", "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(
        body(&answer).contains("idem_proxy_requests_total{route=\"orders\",outcome=\"hit\"} 1\n")
    );
    assert!(body(&answer).contains("idem_proxy_limit_level{limit=\"admin_connections\"} 1\n"));
}

#[tokio::test]
async fn head_has_the_head_alone() {
    let state = state();
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = ask(&state, "HEAD", path).await;
        assert!(answer.contains("content-length: "), "{answer}");
        assert_eq!(body(&answer), "", "{path}");
    }
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let state = state();
    for method in ["POST", "DELETE", "OPTIONS", "get"] {
        let answer = ask(&state, method, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
    }
    for path in [
        "/index.html",
        "/dashboard",
        "/metrics/",
        "/api/v1/nothing",
        "/api/v1/recordsfile",
        "/api/v1/records/0123456789abcdef/else",
        "/api/v1",
        "/api/v12",
        "/api",
        "//livez",
        "/LIVEZ",
    ] {
        let answer = ask(&state, "GET", path).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
        let document: serde_json::Value = serde_json::from_str(body(&answer)).unwrap();
        assert_eq!(document["status"], 404);
    }
}

#[tokio::test]
async fn without_a_store_there_are_no_records() {
    let state = state();
    let id = "0123456789abcdef";
    for (method, path) in [
        ("GET", "/api/v1/records".to_owned()),
        ("GET", format!("/api/v1/records/{id}")),
        ("DELETE", format!("/api/v1/records/{id}")),
    ] {
        let answer = ask(&state, method, &path).await;
        assert!(answer.starts_with("HTTP/1.1 501 "), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_body_is_not_waited_for() {
    let state = state();
    let answer = exchange(
        &state,
        "POST /metrics HTTP/1.1\r\nhost: admin\r\ncontent-length: 1000000\r\n\r\nxyz",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let state = state();
    let answer = exchange(
        &state,
        &format!(
            "GET /livez HTTP/1.1\r\nhost: admin\r\nx: {}\r\n\r\n",
            "x".repeat(64 << 10)
        ),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn two_requests_share_a_connection() {
    let state = state();
    let answer = exchange(
        &state,
        "GET /livez HTTP/1.1\r\nhost: a\r\n\r\nGET /nothing HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("HTTP/1.1 404 "),
        "{answer}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_ends_the_connection() {
    let state = state();
    let mut client = connect(&state, pending());
    client.write_all(b"GET /livez HT").await.unwrap();
    let started = tokio::time::Instant::now();
    assert_eq!(read_all(&mut client).await, "");
    assert!(
        started.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_does_not_stay() {
    let state = state();
    let (mut client, server) = duplex(64);
    let serving = serve(server, Arc::clone(&state), LOCAL, pending());
    let stuck = async {
        // Answers without end fill the pipe.
        while client
            .write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .is_ok()
        {}
    };
    let started = tokio::time::Instant::now();
    tokio::join!(serving, stuck);
    assert!(started.elapsed() <= LIFETIME + LAST_ANSWER + Duration::from_secs(1));
    assert_eq!(state.connections.available_permits(), MAX_CONNECTIONS);
}

#[tokio::test]
async fn shutdown_closes_an_idle_connection() {
    let state = state();
    let mut client = connect(&state, ready(()));
    assert_eq!(read_all(&mut client).await, "");
}

/// As many connections as there are places, each of which has sent these bytes.
async fn crowd(state: &Arc<AdminState>, bytes: &str) -> Vec<DuplexStream> {
    let mut held = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = connect(state, pending());
        client.write_all(bytes.as_bytes()).await.unwrap();
        held.push(client);
    }
    while state.connections.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    held
}

const DRAIN: &str = "POST /api/v1/drain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn connections_over_the_budget_are_closed_and_counted() {
    let state = state();
    let held = crowd(&state, DRAIN).await;
    let started = Instant::now();
    assert_eq!(ask(&state, "GET", "/livez").await, "");
    assert!(started.elapsed() <= WAIT + ASK_EVERY);
    let text = String::from_utf8(state.metrics.render()).unwrap();
    assert!(
        text.contains("idem_proxy_limit_refusals_total{limit=\"admin_connections\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("idem_proxy_limit_level{limit=\"admin_connections\"} 128\n"),
        "{text}"
    );
    drop(held);
    while state.connections.available_permits() < MAX_CONNECTIONS {
        tokio::task::yield_now().await;
    }
    let answer = ask(&state, "GET", "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_asks_nothing_makes_room_for_an_operator() {
    for bytes in [
        "",
        "GET /livez HT",
        "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        let state = state();
        let _held = crowd(&state, bytes).await;
        let started = Instant::now();
        let answer = ask(&state, "GET", "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{bytes:?}: {answer}");
        assert!(
            started.elapsed() <= WAIT,
            "{bytes:?}: {:?}",
            started.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_answered_when_it_ends_however_long_that_takes() {
    let state = state();
    let mut client = connect(&state, pending());
    client.write_all(DRAIN.as_bytes()).await.unwrap();
    state.drains.asked().await;
    tokio::time::sleep(LIFETIME * 3).await;
    state.drains.tell(DrainEnd::Whole);
    let answer = read_all(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(body(&answer), r#"{"status":"drained"}"#);

    state.drains.tell(DrainEnd::Unfinished(Left {
        connections: 3,
        unsaved: vec![ShortId::parse("00000000000000ff").unwrap()],
        ..Left::default()
    }));
    let late = ask(&state, "POST", "/api/v1/drain").await;
    assert!(late.starts_with("HTTP/1.1 503 "), "{late}");
    let document: serde_json::Value = serde_json::from_str(body(&late)).unwrap();
    assert_eq!(document["connections"], 3);
    assert_eq!(document["unsaved"][0], "00000000000000ff");
    assert_eq!(document["tasks"], 0);
}

#[tokio::test]
async fn the_api_is_for_those_who_may_use_it() {
    let state = state();
    let say = async |host: &str, more: &str| {
        let request = format!(
            "GET /api/v1/drain HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n"
        );
        exchange(&state, &request).await
    };
    assert!(say("localhost", "").await.starts_with("HTTP/1.1 405 "));
    assert!(say("localhost", "").await.contains("allow: POST\r\n"));
    assert!(
        say("rebound.example", "")
            .await
            .starts_with("HTTP/1.1 403 ")
    );
    let other = "origin: https://example.org\r\n";
    assert!(say("localhost", other).await.starts_with("HTTP/1.1 403 "));
    let with_body = "POST /api/v1/drain HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let refused = exchange(&state, with_body).await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "s3cret").unwrap();
    state.set_token(Some(Token::read(&path).unwrap()));
    let refused = say("localhost", "").await;
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    assert!(refused.contains("www-authenticate: Bearer realm=\"idem-proxy\"\r\n"));
    let wrong = "authorization: Bearer other\r\n";
    assert!(say("localhost", wrong).await.starts_with("HTTP/1.1 401 "));
    let right = "authorization: Bearer s3cret\r\n";
    assert!(say("any.example", right).await.starts_with("HTTP/1.1 405 "));
}
