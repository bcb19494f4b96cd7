//! One client connection, from its first byte to its last.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header::CONNECTION};
use http_body::{Body, Frame, SizeHint};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    core::{policy::Errors, problem::Problem},
    net::Stream,
    proxy::{AnswerBody, CutOff, Peer, Worker},
    server::{drain::Drain, head_timer::HeadTimer},
};

/// How client connections are served.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// `head_timeout`: a head must be whole so long after the connection was made or its last answer ended.
    pub head_timeout: Duration,
    /// `max_head_bytes`
    pub max_head_bytes: usize,
}

const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// The least that hyper takes for a connection's buffer, in bytes.
const MIN_BUFFER: usize = 8192;

/// Serves the connection until its client or `drain` ends it. An answer that is under way is finished first, and says
/// `Connection: close`. A connection that has become a tunnel goes on as that, and ends with the drain at once.
pub async fn serve(
    stream: Stream,
    worker: Arc<Worker>,
    peer: Peer,
    settings: Settings,
    drain: Drain,
) {
    let peer = Arc::new(peer);
    let requests = Requests::default();
    let counted = requests.clone();
    let (served, asking, ending) = (Arc::clone(&worker), Arc::clone(&peer), drain.clone());
    let service = service_fn(move |request| {
        let (worker, peer) = (Arc::clone(&served), Arc::clone(&asking));
        let running = counted.start();
        let drain = ending.clone();
        async move {
            let mut answer = worker.answer(request, peer).await;
            // Whoever drives the connection may learn of the drain only after this answer is on its way.
            if drain.has_begun() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                answer.headers_mut().insert(CONNECTION, CLOSE);
            }
            Ok::<_, Infallible>(answer.map(|body| Tracked {
                body,
                _running: running,
            }))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(HeadTimer(Arc::clone(&worker.heads)))
            .header_read_timeout(settings.head_timeout)
            .max_header_size(settings.max_head_bytes)
            .max_buf_size(settings.max_head_bytes.max(MIN_BUFFER))
            // Dates are the upstream's; the proxy's own errors have one.
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
    );
    let ended = tokio::select! {
        biased; // the connection first, so that what has come already is read
        ended = connection.as_mut() => ended,
        () = drain.begun() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = requests.none_for(IDLE_AT_DRAIN) => return,
            }
        }
    };
    if let Err(error) = ended {
        // A client that goes away is no event of ours.
        tracing::debug!(%error, "a client connection ended early");
        return;
    }
    if let Some(tunnel) = peer.take_tunnel() {
        tokio::select! {
            biased;
            () = drain.begun() => {}
            () = Box::pin(tunnel.run()) => {}
        }
    }
}

/// How long a connection that has no request may go on when the drain begins: long enough for the tail of its last answer, short
/// enough that one that never says anything, or half a head, holds nothing up.
const IDLE_AT_DRAIN: Duration = Duration::from_secs(1);

/// The requests of one connection that are under way: from their head to the end of their answer.
#[derive(Clone, Debug, Default)]
struct Requests(Arc<AtomicUsize>);

impl Requests {
    fn start(&self) -> Running {
        self.0.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(&self.0))
    }

    /// Completes when there was no request for `pause`.
    async fn none_for(&self, pause: Duration) {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            tokio::time::sleep(pause).await;
            if before == 0 && self.0.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

/// One request that is under way; until it is dropped.
#[derive(Debug)]
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body, with which its request ends.
struct Tracked {
    body: AnswerBody,
    _running: Running,
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Tells a client that there is no room for its connection, and ends it. What the client sends meanwhile is read and dropped for a
/// moment, so that the answer is not lost to a reset.
pub async fn refuse(mut stream: Stream, errors: &Errors) {
    let problem = Problem::Overloaded;
    let (media_type, body) = problem.body(errors, None);
    let link = errors.link.as_ref().and_then(|link| link.to_str().ok());
    let link = link.map_or_else(String::new, |link| format!("Link: {link}\r\n"));
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nRetry-After: {}\r\n{link}Connection: close\r\n\r\n",
        problem.status(errors),
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
