//! The operators' side: an HTTP/1 service of its own, on listeners of its own (contract, section 10).
//!
//! | path | answer |
//! |---|---|
//! | `/livez` | 200 while the process serves |
//! | `/readyz` | 200, or 503 with reasons; beside that how the upstreams look |
//! | `/metrics` | the Prometheus text |
//!
//! GET and HEAD alone; 405 otherwise, 404 for any other path. Everything is bounded: [`MAX_CONNECTIONS`], the time
//! and size of a head, the life of a connection; request bodies are not read.

pub mod health;

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};

use self::health::{Health, Readiness};
use crate::telemetry::metrics::{Limit, Metrics};

/// Connections to all admin listeners at a time; more are closed unanswered, and counted.
pub const MAX_CONNECTIONS: usize = 128;

/// How long a request's head may take, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head, in bytes; hyper answers 431 to more.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// After so long a connection takes no further request: who reads nothing does not stay for ever.
const LIFETIME: Duration = Duration::from_mins(2);

/// And so long the last answer may take then.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// What the admin listeners serve.
#[derive(Debug)]
pub struct AdminState {
    metrics: Metrics,
    health: Arc<Health>,
    connections: Arc<Semaphore>,
}

impl AdminState {
    /// For these metrics and this health; one for all admin listeners of a process.
    #[must_use]
    pub fn new(metrics: Metrics, health: Arc<Health>) -> Self {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let own = Arc::clone(&connections);
        let open = move || (MAX_CONNECTIONS - own.available_permits().min(MAX_CONNECTIONS)) as u64;
        metrics.watch_limit(Limit::AdminConnections, Arc::new(open));
        Self {
            metrics,
            health,
            connections,
        }
    }
}

/// Serves one connection until it ends, or until the answer that is under way when `shutdown` completes.
///
/// Dropping the future closes the connection.
pub async fn serve<S>(stream: S, state: Arc<AdminState>, shutdown: impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(_place) = state.connections.try_acquire() else {
        state.metrics.limit_refused(Limit::AdminConnections);
        return;
    };
    let service = service_fn(|request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(answer(&state, request.method(), request.uri().path()).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { tokio::select! { () = shutdown => {}, () = tokio::time::sleep(LIFETIME) => {} } } => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection failed");
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(state: &AdminState, method: &Method, path: &str) -> Answer {
    let endpoint = match path {
        "/livez" => Endpoint::Livez,
        "/readyz" => Endpoint::Readyz,
        "/metrics" => Endpoint::Metrics,
        _ => return problem(StatusCode::NOT_FOUND, "Not Found"),
    };
    // hyper leaves out the body that answers a HEAD.
    if method != Method::GET && method != Method::HEAD {
        let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        let allowed = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(header::ALLOW, allowed);
        return refused;
    }
    match endpoint {
        Endpoint::Livez => plain(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
        Endpoint::Readyz => readiness(&state.health.readiness(), &state.metrics),
        Endpoint::Metrics => metrics(state.metrics.clone()).await,
    }
}

/// What there is.
enum Endpoint {
    Livez,
    Readyz,
    Metrics,
}

fn readiness(readiness: &Readiness, metrics: &Metrics) -> Answer {
    let status = match readiness {
        Readiness::Ready => StatusCode::OK,
        Readiness::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    plain(
        status,
        "application/json",
        readiness.to_json(&metrics.upstream_states()),
    )
}

/// Rendering reads `/proc`, so it is done where it keeps no connection waiting.
async fn metrics(metrics: Metrics) -> Answer {
    match tokio::task::spawn_blocking(move || metrics.render()).await {
        Ok(text) => plain(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            text,
        ),
        // The runtime is being shut down.
        Err(_) => problem(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable"),
    }
}

/// An error without a type of its own (RFC 9457, section 4.2.1).
fn problem(status: StatusCode, title: &str) -> Answer {
    let document =
        serde_json::json!({"type": "about:blank", "title": title, "status": status.as_u16()});
    plain(status, "application/problem+json", document.to_string())
}

fn plain(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests;
