//! HTTP/1.x on one connection.
//!
//! A connection speaks, with a parser and buffers, until it has been without a request for a while; then it rests: nothing of that is left but
//! its stream, which is waited on. Its next byte makes it speak again.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::{ext::ReasonPhrase, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::Instant,
};

use super::{
    connection::{IDLE_AT_DRAIN, Settings},
    conversation::{ConnectionState, Requests, Running},
    drain::Begun,
    guard::Guard,
    sniff::Prefixed,
};
use crate::{
    bell::Bell,
    proxy::{AnswerBody, CutOff, Peer, Worker},
};

/// The least that hyper takes for a connection's buffer, in bytes.
const MIN_BUFFER: usize = 8192;

/// Serves the connection until its client or `drain` ends it. An answer that is under way is finished first, and says
/// `Connection: close`. A connection that has become a tunnel goes on as that, and ends with the drain at once.
///
/// Dropping the future closes the connection.
pub(super) async fn serve_http1<S>(
    mut stream: Prefixed<S>,
    worker: Arc<ArcSwap<Worker>>,
    peer: Arc<Peer>,
    settings: Settings,
    mut drain: Begun,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let requests = Requests::new();
    loop {
        // Boxed, so that nothing of it is left while the connection rests.
        let spoken = Box::pin(speak(
            stream, &worker, &peer, settings, &requests, &mut drain,
        ));
        let Some(rested) = spoken.await else {
            return;
        };
        stream = rested;
        let timers = Arc::clone(&worker.load().times);
        let since = requests.idle_since().unwrap_or_else(Instant::now);
        let due = since + settings.times.keepalive;
        let woken = tokio::select! {
            biased;
            () = &mut drain => false,
            woken = timers.within(due, stream.wait()) => matches!(woken, Some(Ok(true))),
        };
        if !woken {
            // How the end is taken is the client's affair.
            let until = Instant::now() + settings.times.write;
            let _ = timers.within(until, stream.shutdown()).await;
            return;
        }
    }
}

/// Answers requests until the connection ends, or until it may rest: then its stream is given back, of which nothing more was read.
async fn speak<S>(
    stream: Prefixed<S>,
    worker: &Arc<ArcSwap<Worker>>,
    peer: &Arc<Peer>,
    settings: Settings,
    requests: &Requests,
    drain: &mut Begun,
) -> Option<Prefixed<S>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let state = Arc::new(ConnectionState::new(requests.clone()));
    let guard = Guard::new(
        stream,
        settings.limits,
        settings.times,
        Arc::clone(&state),
        &worker.load().times,
    );
    let (worker, client, counted) = (Arc::clone(worker), Arc::clone(peer), requests.clone());
    let service = service_fn(move |request| {
        let (worker, peer) = (worker.load_full(), Arc::clone(&client));
        let running = counted.start();
        let number = state.next();
        let refusal = state.refusal_for(number);
        let undecided = state.asks_upgrade(number).then(|| Arc::clone(&state));
        async move {
            let mut answer = match refusal {
                Some(problem) => worker.refuse(problem),
                None => worker.answer(request, peer).await,
            };
            leave_unnamed(&mut answer);
            if let Some(state) = undecided {
                decide(&state, answer.status());
            }
            Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, running)))
        }
    });
    let mut connection = http1::Builder::new()
        // The guard has times and limits of its own; no head comes to the parser but whole.
        .header_read_timeout(None)
        .max_buf_size(settings.limits.head_bytes.max(MIN_BUFFER) + 1)
        // Dates are the upstream's; the proxy's own errors have one.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(guard), service)
        .with_upgrades();
    let bell = Bell::new();
    let ended = tokio::select! {
        biased; // an answer that starts after the drain has begun says that it is the last one
        () = &mut *drain => {
            Pin::new(&mut connection).graceful_shutdown();
            tokio::select! {
                _ = bell.wakes(Pin::new(&mut connection)) => {}
                () = requests.none_for(IDLE_AT_DRAIN) => {}
            }
            return None;
        }
        ended = bell.wakes(Pin::new(&mut connection)) => ended,
    };
    if let Err(error) = ended {
        // A client that goes away is no event of ours.
        tracing::debug!(%error, "a client connection ended early");
        return None;
    }
    if let Some(tunnel) = peer.take_tunnel() {
        tokio::select! {
            biased;
            () = drain => {}
            () = Box::pin(tunnel.run()) => {}
        }
        return None;
    }
    let guard = connection.into_parts()?.io.into_inner();
    guard.rested()
}

/// Keeps the server from making up a reason phrase for a status that has no usual one (RFC 9112, section 4: it may be empty).
fn leave_unnamed(answer: &mut Response<AnswerBody>) {
    if answer.status().canonical_reason().is_none() {
        let extensions = answer.extensions_mut();
        extensions.get_or_insert_with(|| ReasonPhrase::from_static(b""));
    }
}

/// Says what a connection speaks behind the answer to a request for another protocol.
fn decide(state: &ConnectionState, status: StatusCode) {
    match status {
        StatusCode::SWITCHING_PROTOCOLS => state.tunnel(),
        _ => state.no_tunnel(),
    }
}

/// An answer's body, with which its request ends.
struct Tracked {
    body: AnswerBody,
    _running: Running,
}

impl Tracked {
    /// The request is under way until this body is dropped.
    const fn new(body: AnswerBody, running: Running) -> Self {
        Self {
            body,
            _running: running,
        }
    }
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
