//! One client connection, from its first byte to its last: which protocol it speaks, and the refusal where there is no room.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::Instant,
};

use super::{
    drain::{Begun, Drain},
    guard::Times,
    http1, http2,
    sniff::{Prefixed, Spoken},
};
use crate::{
    core::{framing::Limits, policy::Errors, problem::Problem},
    proxy::{Peer, Worker},
};

/// How client connections are served.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// What a head may have.
    pub limits: Limits,
    /// The times of a connection.
    pub times: Times,
}

/// What was agreed on before the first byte of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiated {
    /// HTTP/2, by ALPN `h2`.
    Http2,
    /// HTTP/1.1, by ALPN `http/1.1`.
    Http1,
    /// Nothing: in cleartext, or without ALPN. The first bytes tell (RFC 9113, section 3.3).
    Unsaid,
}

/// Serves the connection until its client or `drain` ends it. Each request is the affair of the `worker` that is in force when its head
/// has come.
pub async fn serve<S>(
    stream: S,
    negotiated: Negotiated,
    worker: Arc<ArcSwap<Worker>>,
    peer: Peer,
    settings: Settings,
    drain: Drain,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = Prefixed::new(stream);
    let mut drain = drain.begun();
    let spoken = match negotiated {
        Negotiated::Http2 => Spoken::Http2,
        Negotiated::Http1 => Spoken::Http1,
        Negotiated::Unsaid => {
            let deadline = Instant::now() + settings.times.head;
            let timers = Arc::clone(&worker.load().times);
            let told = timers.within(deadline, stream.sniff());
            let told = tokio::select! {
                biased;
                told = told => told,
                () = drained(&mut drain) => return,
            };
            match told {
                Some(Ok(Some(spoken))) => spoken,
                Some(Ok(None) | Err(_)) | None => return, // nothing was said, or not in time
            }
        }
    };
    let peer = Arc::new(peer);
    match spoken {
        Spoken::Http1 => http1::serve_http1(stream, worker, peer, settings, drain).await,
        Spoken::Http2 => http2::serve(stream, worker, peer, settings, drain).await,
    }
}

/// Completes when a connection that has said nothing yet is waited for no longer.
async fn drained(drain: &mut Begun) {
    drain.await;
    tokio::time::sleep(IDLE_AT_DRAIN).await;
}

/// How long a connection that has no request may go on when the drain begins: long enough for the tail of its last answer, short
/// enough that one that never says anything, or half a head, holds nothing up.
pub(super) const IDLE_AT_DRAIN: Duration = Duration::from_secs(1);

/// Tells a client that there is no room for its connection, and ends it. What the client sends meanwhile is read and dropped for a
/// moment, so that the answer is not lost to a reset.
pub async fn refuse<S>(mut stream: S, errors: &Errors)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
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
