//! One client connection, from its first byte to its last.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{conversation::Running, drain::Drain, guard::Times, http1::serve_http1};
use crate::{
    core::{framing::Limits, policy::Errors, problem::Problem},
    net::Stream,
    proxy::{AnswerBody, CutOff, Peer, Worker},
};

/// How client connections are served.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// What a head may have, over HTTP/1.x.
    pub limits: Limits,
    /// The times of a connection.
    pub times: Times,
}

/// Serves the connection until its client or `drain` ends it. An answer that is under way is finished first, and says
/// `Connection: close`.
pub async fn serve(
    stream: Stream,
    worker: Arc<Worker>,
    peer: Peer,
    settings: Settings,
    drain: Drain,
) {
    serve_http1(stream, worker, Arc::new(peer), settings, drain).await;
}

/// How long a connection that has no request may go on when the drain begins: long enough for the tail of its last answer, short
/// enough that one that never says anything, or half a head, holds nothing up.
pub(super) const IDLE_AT_DRAIN: Duration = Duration::from_secs(1);

/// An answer's body, with which its request ends.
pub(super) struct Tracked {
    body: AnswerBody,
    _running: Running,
}

impl Tracked {
    /// The request is under way until this body is dropped.
    pub(super) const fn new(body: AnswerBody, running: Running) -> Self {
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
