//! One client connection, from its first byte to its last.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    core::{policy::Errors, problem::Problem},
    net::Stream,
    proxy::{Peer, Worker},
    server::drain::Drain,
    timers::{Timer, Timers},
};

/// How client connections are served.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `head_timeout`: a head must be whole so long after the connection was made or its last answer ended.
    pub head_timeout: Duration,
    /// `max_head_bytes`
    pub max_head_bytes: usize,
}

/// More header lines than that are 431, whatever their size.
const MAX_HEADERS: usize = 200;

/// The least that hyper takes for a connection's buffer, in bytes.
const MIN_BUFFER: usize = 8192;

/// Serves the connection until its client or `drain` ends it. An answer that is under way is finished first, and says
/// `Connection: close`.
pub async fn serve(
    stream: Stream,
    worker: Arc<Worker>,
    peer: Peer,
    settings: Settings,
    drain: Drain,
) {
    let peer = Arc::new(peer);
    let served = Arc::clone(&worker);
    let service = service_fn(move |request| {
        let answer = Arc::clone(&served).answer(request, Arc::clone(&peer));
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(HeadTimer(Arc::clone(&worker.heads)))
            .header_read_timeout(settings.head_timeout)
            .max_headers(MAX_HEADERS)
            .max_header_size(settings.max_head_bytes)
            .max_buf_size(settings.max_head_bytes.max(MIN_BUFFER))
            // Dates are the upstream's; the proxy's own errors have one.
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        biased; // no order is better, and choosing one costs something
        ended = connection.as_mut() => ended,
        () = drain.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // A client that goes away is no event of ours.
        tracing::debug!(%error, "a client connection ended early");
    }
}

/// hyper's timer for `head_timeout`, out of the worker's: hyper makes one for every head.
struct HeadTimer(Arc<Timers>);

struct HeadSleep(Timer);

impl hyper::rt::Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(HeadSleep(self.0.at(deadline.into())))
    }
}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl hyper::rt::Sleep for HeadSleep {}

/// Tells a client that there is no room for its connection, and ends it. What the client sends meanwhile is read and dropped for a
/// moment, so that the answer is not lost to a reset.
pub async fn refuse(mut stream: Stream, errors: &Errors) {
    let problem = Problem::Overloaded;
    let (media_type, body) = problem.body(errors, None);
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nRetry-After: {}\r\nConnection: close\r\n\r\n",
        body.len(),
        problem.retry_after().unwrap_or(1),
    );
    let told = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.shutdown().await?;
        let mut dropped = [0; 4096];
        while stream.read(&mut dropped).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Whether it was read is the client's affair.
    let _ = tokio::time::timeout(LAST_WORDS, told).await;
}

/// How long a refused connection may take to go.
const LAST_WORDS: Duration = Duration::from_secs(1);
