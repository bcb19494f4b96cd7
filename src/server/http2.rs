//! A client connection that speaks HTTP/2 (RFC 9113).
//!
//! A connection holds at most [`CONNECTION_WINDOW`] of bodies that the proxy has not taken yet, and for each of its [`MAX_STREAMS`]
//! requests what a connection of HTTP/1.1 holds of its answer. It ends
//! - when no request was under way for `keepalive_timeout`, and at a drain: after GOAWAY, and what runs is finished first;
//! - when an introduction, a head or a frame that was begun is not whole within `head_timeout`;
//! - when an answer is not read for `write_timeout`;
//! - when the client sends too much of what costs it nothing (`frames`).

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::{Request, Response, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    connection::{IDLE_AT_DRAIN, Settings},
    drain::Begun,
    frames::{Frames, Watched},
    guard::Times,
    turns::{Paced, Turns},
};
use crate::{
    core::{frames::Excess, framing::MAX_FIELDS, http2 as head, problem::Problem},
    proxy::{AnswerBody, Peer, Worker},
    telemetry::metrics::Flood,
    timers::{Timer, Timers},
};

/// So many requests of one connection may run at a time.
const MAX_STREAMS: u32 = 100;

/// What a client may send of one body before the proxy has taken it, in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all bodies of one connection.
const CONNECTION_WINDOW: u32 = 256 * 1024;

/// So much of an answer may wait for its client, beside the piece that is being sent, in bytes.
const SEND_BUFFER: usize = 64 * 1024;

/// So many requests may be reset before they were looked at (CVE-2023-44487); one more ends the connection.
const MAX_UNSEEN_RESETS: usize = 20;

/// So often the client may make the proxy reset a request by breaking the protocol (CVE-2025-8671), or by opening one too many; once
/// more ends the connection.
const MAX_FORCED_RESETS: usize = 256;

/// Serves the connection until its client or `drain` ends it, or its time is over. Answers that are under way are finished first.
pub(super) async fn serve<S>(
    stream: S,
    worker: Arc<ArcSwap<Worker>>,
    peer: Arc<Peer>,
    settings: Settings,
    mut drain: Begun,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let now = worker.load_full();
    let frames = Frames::new(settings.limits.head_bytes);
    let turns = Turns::new();
    let mut end = End {
        frames: frames.clone(),
        turns: turns.clone(),
        settings,
        timers: Arc::clone(&now.times),
        timer: None,
        unsent_since: None,
        leaving_since: None,
    };
    let stream = Watched::new(stream, frames.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (worker, peer) = (worker.load_full(), Arc::clone(&peer));
        let (turn, frames) = (turns.begin(), frames.clone());
        async move {
            let answer = answer(worker, request, peer).await;
            Ok::<_, Infallible>(answer.map(|body| Paced::new(body, turn, frames)))
        }
    });
    let max_head = u32::try_from(settings.limits.head_bytes).unwrap_or(u32::MAX);
    let mut connection = pin!(
        // No timer: pings and automatic windows are off, and times are kept by `End`.
        http2::Builder::new(now.executions.clone())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(max_head)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_pending_accept_reset_streams(MAX_UNSEEN_RESETS)
            .max_local_error_reset_streams(MAX_FORCED_RESETS)
            // Dates are the upstream's; the proxy's own errors have one.
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = loop {
        let leaves = tokio::select! {
            biased;
            ended = connection.as_mut() => break ended,
            () = &mut drain, if end.leaving_since.is_none() => true,
            why = &mut end => match why {
                Why::Idle => true,
                Why::Gone => return,
                Why::Late | Why::Unread => {
                    tracing::debug!(reason = why.as_str(), "a client connection was given up");
                    return;
                }
            },
        };
        if leaves {
            connection.as_mut().graceful_shutdown();
            end.leave();
        }
    };
    let excess = end.frames.on(|state| state.excess);
    if let Some(flood) = flood(excess, ended.as_ref().err()) {
        now.proxy.metrics.flood(flood);
        let reason = flood.as_str();
        tracing::debug!(reason, "a client connection that flooded was ended");
    } else if let Err(error) = ended {
        // A client that goes away is no event of ours.
        tracing::debug!(%error, "a client connection ended early");
    }
}

/// Answers one request, as HTTP/2 has it. Cookies that came on several lines count as one field.
async fn answer(
    worker: Arc<Worker>,
    request: Request<Incoming>,
    peer: Arc<Peer>,
) -> Response<AnswerBody> {
    let request = as_one_of_ours(request);
    without_connection(if request.headers().len() > MAX_FIELDS {
        worker.refuse(Problem::HeadTooLarge)
    } else {
        worker.answer(request, peer).await
    })
}

/// What the connection was ended for, if it was for a flood: one that was seen here, or one that `h2` bounds itself.
fn flood(excess: Option<Excess>, error: Option<&hyper::Error>) -> Option<Flood> {
    match excess {
        Some(Excess::Continuation) => return Some(Flood::Continuation),
        Some(Excess::Control) => return Some(Flood::Control),
        Some(Excess::Reset) => return Some(Flood::Reset),
        Some(Excess::Unintroduced) | None => {}
    }
    let cause = std::error::Error::source(error?)?.downcast_ref::<h2::Error>()?;
    let calmed = cause.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
    (calmed && !cause.is_remote()).then_some(Flood::Stream)
}

/// The request as the rest of the house knows requests.
fn as_one_of_ours(request: Request<Incoming>) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    head::to_http1(&mut parts);
    Request::from_parts(parts, body)
}

/// The answer without what HTTP/2 has no place for (RFC 9113, section 8.2.2); an answer that ends an HTTP/1.1 connection ends nothing
/// here.
fn without_connection<B>(mut answer: Response<B>) -> Response<B> {
    answer.headers_mut().remove(CONNECTION);
    answer
}

/// Completes when the connection's time is over. It has one timer, which is hardly ever moved: a connection that is used and
/// one that idles wake it some times a minute.
struct End {
    frames: Frames,
    turns: Turns,
    settings: Settings,
    timers: Arc<Timers>,
    /// And when it fires.
    timer: Option<(Duration, Timer)>,
    /// Since when whole answers have waited for their client.
    unsent_since: Option<Duration>,
    /// Since when the client has been told to go.
    leaving_since: Option<Duration>,
}

/// Why a connection's time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// There was no request for `keepalive_timeout`.
    Idle,
    /// It was told to go, and nothing is left to be done.
    Gone,
    /// What the client had begun was not whole within `head_timeout`.
    Late,
    /// The client did not read within `write_timeout`.
    Unread,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Gone => "gone",
            Self::Late => "late",
            Self::Unread => "unread",
        }
    }
}

impl Future for End {
    type Output = Why;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Why> {
        let this = &mut *self;
        if let Some(since) = this.frames.on(|state| state.watch.waits_since()) {
            let late_at = since + this.settings.times.head;
            if this.timer.as_ref().is_some_and(|(at, _)| *at > late_at) {
                this.timer = None;
            }
        }
        loop {
            if let Some((_, timer)) = &mut this.timer {
                ready!(Pin::new(timer).poll(cx));
            }
            let now = this.frames.now();
            match this.due(now) {
                Ok(why) => return Poll::Ready(why),
                Err(at) => {
                    let timer = this.timers.at(this.frames.instant(at));
                    this.timer = Some((at, timer));
                }
            }
        }
    }
}

impl End {
    /// From now on the connection is one that ends.
    fn leave(&mut self) {
        self.leaving_since = Some(self.frames.now());
        self.timer = None;
    }

    /// Whether the time is over, or when to look again.
    fn due(&mut self, now: Duration) -> Result<Why, Duration> {
        let Times {
            head,
            keepalive,
            write,
        } = self.settings.times;
        let mut next = now + write.min(keepalive) / LOOKS + SLACK;
        let mut over = |since: Duration, limit: Duration| {
            let at = since.saturating_add(limit);
            if at > now {
                next = next.min(at);
            }
            at <= now
        };
        let (requests, waits_for_client) = self.turns.look();
        let (waits, blocked, idle, open, sent_at) = self.frames.on(|state| {
            let watch = &state.watch;
            (
                watch.waits_since(),
                state.blocked_since,
                watch.idle_since(),
                watch.open(),
                watch.sent_at(),
            )
        });
        if waits.is_some_and(|since| over(since, head)) {
            return Ok(Why::Late);
        }
        // Answers that the proxy is done with and that have not gone out.
        self.unsent_since = (open > requests).then(|| self.unsent_since.unwrap_or(now));
        let unsent = self.unsent_since.map(|since| since.max(sent_at));
        let unread = [waits_for_client, blocked, unsent];
        if unread.into_iter().flatten().any(|since| over(since, write)) {
            return Ok(Why::Unread);
        }
        if let Some(since) = idle.filter(|_| requests == 0) {
            match self.leaving_since {
                Some(leaving) if over(since.max(leaving), IDLE_AT_DRAIN) => return Ok(Why::Gone),
                None if over(since, keepalive) => return Ok(Why::Idle),
                Some(_) | None => {}
            }
        } else if self.leaving_since.is_some() {
            next = next.min(now + IDLE_AT_DRAIN);
        }
        Err(next)
    }
}

/// So often in the shorter of its two times a connection is looked at.
const LOOKS: u32 = 4;

/// And never in a circle, however short they are.
const SLACK: Duration = Duration::from_millis(5);
