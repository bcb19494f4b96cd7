//! The operators' side: an HTTP/1 service of its own, on listeners of its own (contract, section 10).
//!
//! | path | answer |
//! |---|---|
//! | `/livez` | 200 while the process serves |
//! | `/readyz` | 200, or 503 with reasons; beside that how the upstreams look |
//! | `/metrics` | the Prometheus text |
//! | `/api/v1/drain` | POST: drains, and answers when that is done |
//! | `/`, `/dashboard/…` | the dashboard's own files: `dashboard` |
//! | `/api/v1/status`, `/api/v1/policy` | what this process is, and what it promises: `status` |
//! | `/api/v1/history` | what it did in the last quarter of an hour: `history` |
//! | `/api/v1/records` | what operators see and settle: `records` |
//!
//! Elsewhere GET and HEAD alone; 405 otherwise, 404 for any other path. Who may use `/api/v1` is `admission`'s to say, before anything
//! else is said there. Everything is bounded: [`MAX_CONNECTIONS`], the time and size of a head, the life of a connection; the one request
//! body that is read is that of a resolution. Where all places are taken, idle connections make room for new ones.

mod admission;
mod answer;
mod dashboard;
pub mod drain;
pub mod health;
mod history;
mod records;
mod status;

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use http::{Method, Request, StatusCode};
use http_body::Body as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

pub use self::admission::Reach;
pub use self::history::SAMPLE_EVERY;
use self::{
    admission::Admitted,
    answer::{Answer, explained, method_not_allowed, not_found, plain, problem, turned_away},
    drain::{DrainEnd, Drains, Left},
    health::{Health, Readiness},
    history::History,
};
use crate::{
    config::{Config, Token},
    core::record::ShortId,
    store::Stores,
    telemetry::metrics::{Limit, Metrics},
};

/// Connections to all admin listeners at a time. One more waits for a moment, while idle ones are asked to go; then it is closed
/// unanswered, and counted.
pub const MAX_CONNECTIONS: usize = 128;

/// So many may wait for a place at a time.
const MAX_WAITING: usize = 64;

/// And so long.
const WAIT: Duration = Duration::from_secs(2);

/// So often meanwhile are idle connections asked to go.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// A connection that has asked for nothing yet counts as idle after so long.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// How long a connection that was asked to go may take.
const LAST_WORD: Duration = Duration::from_millis(500);

/// How long a request's head may take, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head, in bytes; hyper answers 431 to more.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// After so long a connection takes no further request: who reads nothing does not stay for ever.
const LIFETIME: Duration = Duration::from_mins(2);

/// And so long the last answer may take then; one that waits for a drain takes what that takes.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// What the admin listeners serve.
#[derive(Debug)]
pub struct AdminState {
    metrics: Metrics,
    health: Arc<Health>,
    store: Arc<Stores>,
    started: Instant,
    /// What is in force.
    config: Arc<ArcSwap<Config>>,
    /// Samples of what was counted.
    history: Mutex<History>,
    /// The bound on client connections that is in force, which the limit of open files may have lowered.
    connections_in_force: OnceLock<ReadMax>,
    /// `admin.token_file`
    token: Mutex<Option<Token>>,
    /// Lists are made one after the other.
    listing: Semaphore,
    /// So many resolutions may be read at a time.
    resolving: Semaphore,
    drains: Drains,
    connections: Arc<Semaphore>,
    waiting: Semaphore,
    /// Idle connections are to make room.
    crowded: Notify,
}

impl AdminState {
    /// For these metrics, this health and this store, under the configuration in force; one for all admin listeners of a process.
    #[must_use]
    pub fn new(
        metrics: Metrics,
        health: Arc<Health>,
        store: Arc<Stores>,
        config: Arc<ArcSwap<Config>>,
    ) -> Self {
        let token = config.load().admin.token.clone();
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let own = Arc::clone(&connections);
        let open = move || (MAX_CONNECTIONS - own.available_permits().min(MAX_CONNECTIONS)) as u64;
        metrics.watch_limit(Limit::AdminConnections, Arc::new(open));
        Self {
            history: Mutex::new(History::of(&metrics.totals(), Instant::now())),
            connections_in_force: OnceLock::new(),
            metrics,
            health,
            store,
            started: Instant::now(),
            config,
            token: Mutex::new(token),
            listing: Semaphore::new(1),
            resolving: Semaphore::new(records::RESOLVING),
            drains: Drains::default(),
            connections,
            waiting: Semaphore::new(MAX_WAITING),
            crowded: Notify::new(),
        }
    }

    /// From now on this token is needed.
    pub fn set_token(&self, token: Option<Token>) {
        *self.token.lock() = token;
    }

    /// Takes a sample of what was counted; to be called every [`SAMPLE_EVERY`].
    pub fn sample(&self) {
        let totals = self.metrics.totals();
        self.history.lock().take(&totals, Instant::now());
    }

    /// From now on `read` tells how many client connections may be open. Only the first one told counts.
    pub fn watch_max_connections(&self, read: impl Fn() -> usize + Send + Sync + 'static) {
        let _ = self.connections_in_force.set(ReadMax(Box::new(read)));
    }

    /// Where drains are asked for.
    #[must_use]
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// A place for one more connection, once there is one.
    async fn place(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(place) = self.connections.try_acquire() {
            return Some(place);
        }
        let _waiting = self.waiting.try_acquire().ok()?;
        let asking = async {
            loop {
                self.crowded.notify_waiters();
                sleep(ASK_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            place = timeout(WAIT, self.connections.acquire()) => place.ok()?.ok(),
            () = asking => None,
        }
    }
}

/// Reads a bound that is in force.
struct ReadMax(Box<dyn Fn() -> usize + Send + Sync>);

impl fmt::Debug for ReadMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadMax(…)")
    }
}

/// Who is at the other end of an operator's connection.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// The peer's address; `None` on a unix socket.
    pub address: Option<IpAddr>,
    /// How far the listener reaches.
    pub reach: Reach,
}

/// What goes on on one connection.
#[derive(Debug, Default)]
struct Activity {
    /// Requests that wait for their answer.
    running: AtomicUsize,
    /// Those of them that wait for the end of a drain.
    draining: AtomicUsize,
    answered: AtomicUsize,
}

impl Activity {
    /// Whether nothing is asked, on a connection that is so old.
    fn is_idle(&self, age: Duration) -> bool {
        self.running.load(Ordering::Relaxed) == 0
            && (self.answered.load(Ordering::Relaxed) > 0 || age >= FIRST_WORD)
    }
}

/// Counts while it is there.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn one(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves one connection until it ends, or until the answer that is under way when `shutdown` completes.
///
/// Dropping the future closes the connection.
pub async fn serve<S>(
    stream: S,
    state: Arc<AdminState>,
    operator: Operator,
    shutdown: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(_place) = state.place().await else {
        state.metrics.limit_refused(Limit::AdminConnections);
        return;
    };
    let since = Instant::now();
    let activity = Arc::new(Activity::default());
    let service = service_fn(|request: Request<Incoming>| {
        let (state, activity) = (Arc::clone(&state), Arc::clone(&activity));
        async move {
            let _running = Counted::one(&activity.running);
            let answer = answer(&state, operator, request, &activity).await;
            activity.answered.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    let crowded = async {
        loop {
            state.crowded.notified().await;
            if activity.is_idle(since.elapsed()) {
                return;
            }
        }
    };
    let last = tokio::select! {
        ended = connection.as_mut() => return tell(ended),
        () = shutdown => LAST_ANSWER,
        () = sleep(LIFETIME) => LAST_ANSWER,
        () = crowded => LAST_WORD,
    };
    connection.as_mut().graceful_shutdown();
    loop {
        match timeout(last, connection.as_mut()).await {
            Ok(ended) => return tell(ended),
            Err(_) if activity.draining.load(Ordering::Relaxed) > 0 => {}
            Err(_) => return,
        }
    }
}

fn tell(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection failed");
    }
}

async fn answer(
    state: &AdminState,
    operator: Operator,
    request: Request<Incoming>,
    activity: &Activity,
) -> Answer {
    let path = request.uri().path();
    let endpoint = match path {
        "/livez" => Endpoint::Livez,
        "/readyz" => Endpoint::Readyz,
        "/metrics" => Endpoint::Metrics,
        _ => match path.strip_prefix(API) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                let rest = rest.to_owned();
                return api(state, operator, request, &rest, activity).await;
            }
            _ => match dashboard::file(path) {
                Some(file) => Endpoint::File(file),
                None => return not_found(),
            },
        },
    };
    // hyper leaves out the body that answers a HEAD.
    if !is_read(request.method()) {
        return method_not_allowed("GET, HEAD");
    }
    match endpoint {
        Endpoint::Livez => plain(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
        Endpoint::Readyz => readiness(&state.health, &state.metrics),
        Endpoint::Metrics => metrics(state.metrics.clone()).await,
        Endpoint::File(file) => file.answer(request.headers()),
    }
}

/// Where the API begins.
const API: &str = "/api/v1";

/// What there is beside it.
enum Endpoint {
    Livez,
    Readyz,
    Metrics,
    File(&'static dashboard::File),
}

fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Who asks, and why they may; as logs name them.
#[derive(Debug)]
struct By {
    /// The address, or `unix`.
    who: String,
    admitted: Admitted,
}

/// A request for the API; `path` is what follows [`API`].
async fn api(
    state: &AdminState,
    operator: Operator,
    request: Request<Incoming>,
    path: &str,
    activity: &Activity,
) -> Answer {
    let token = state.token.lock().clone();
    let admitted = match admission::admit(token.as_ref(), operator.reach, request.headers()) {
        Ok(admitted) => admitted,
        Err(turned) => return turned_away(turned),
    };
    let who = operator
        .address
        .map_or_else(|| "unix".to_owned(), |address| address.to_string());
    let by = By { who, admitted };
    match path {
        "/drain" => drain(state, &by, &request, activity).await,
        "/status" | "/policy" | "/history" if !is_read(request.method()) => {
            method_not_allowed("GET, HEAD")
        }
        "/status" => status::status(state),
        "/policy" => status::policy(state),
        "/history" => history::answer(state),
        _ => match path.strip_prefix("/records") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                records::answer(state, &by, request, rest).await
            }
            _ => not_found(),
        },
    }
}

async fn drain(
    state: &AdminState,
    by: &By,
    request: &Request<Incoming>,
    activity: &Activity,
) -> Answer {
    if request.method() != Method::POST {
        return method_not_allowed("POST");
    }
    if !request.body().is_end_stream() {
        return explained(
            StatusCode::BAD_REQUEST,
            "A drain is asked for without a body.",
        );
    }
    let admitted = by.admitted.as_str();
    tracing::info!(by = by.who, admitted, "a drain was asked for");
    let _draining = Counted::one(&activity.draining);
    drained(&state.drains.ask().await)
}

fn drained(end: &DrainEnd) -> Answer {
    match end {
        DrainEnd::Whole => plain(
            StatusCode::OK,
            "application/json",
            r#"{"status":"drained"}"#,
        ),
        DrainEnd::Unfinished(Left {
            executions,
            unsaved,
            connections,
            tasks,
        }) => {
            let digits =
                |records: &[ShortId]| records.iter().map(ToString::to_string).collect::<Vec<_>>();
            let document = serde_json::json!({
                "type": "about:blank",
                "title": "Service Unavailable",
                "status": 503,
                "detail": "Not all that runs has finished within server.drain_timeout.",
                "executions": digits(executions),
                "unsaved": digits(unsaved),
                "connections": connections,
                "tasks": tasks,
            });
            plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "application/problem+json",
                document.to_string(),
            )
        }
    }
}

fn readiness(health: &Health, metrics: &Metrics) -> Answer {
    let readiness = health.readiness();
    let (status, store) = match readiness {
        Readiness::Ready => (StatusCode::OK, None),
        Readiness::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, health.store_trouble()),
    };
    plain(
        status,
        "application/json",
        readiness.to_json(&metrics.upstream_states(), store.as_deref()),
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
        Err(_) => problem(StatusCode::SERVICE_UNAVAILABLE),
    }
}

#[cfg(test)]
mod tests;
