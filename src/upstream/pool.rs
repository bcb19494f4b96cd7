//! Connections to one upstream, kept on the worker that made them.
//!
//! HTTP/1 connections serve one request at a time: the last in is the first out, so that few stay warm and the rest grow old and go.
//! HTTP/2 connections serve many; which of the two an upstream speaks over TLS is learned from each connection that is made.
//! A connection to a name ends after about five minutes, so that a name which leads elsewhere is followed.

mod call;
mod streams;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, request};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

pub use self::call::Call;
pub(crate) use self::call::take_request;
use self::{
    call::{Exchange, Way},
    streams::{Kept, Room, answered_on},
};
use super::{
    NotSent, OutgoingBody, SendFailure, UpstreamBody,
    addresses::lifetime,
    connect::{Connected, Speaks, Unreached, Want, connect},
    heads::{MAX_HEAD_BYTES, Turn, Watching},
    http1::Connection,
    leave::Leave,
    multiplexed::{MAX_CONNECTIONS, Multiplexed, Stream, to_http1, to_http2},
    origin::Origin,
    sent::Used,
};
use crate::{config, core::added::Added, tasks::Tasks, timers::Timers};

/// The connections of one worker to one upstream.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    origin: Arc<Origin>,
    /// HTTP/1 connections without a request. Oldest first.
    idle: Mutex<Vec<Idle>>,
    /// HTTP/2 connections that take requests.
    multiplexed: Mutex<Vec<Kept>>,
    /// Tells those who wait for a place on one of them that there may be one.
    room: Arc<Notify>,
    /// Held while an HTTP/2 connection is made: whoever wants one too waits for it instead of making another.
    opening: tokio::sync::Mutex<()>,
    /// Whether HTTP/2 may be spoken: it is configured, or was chosen last, or nobody has asked yet.
    may_speak_http2: AtomicBool,
    tasks: Tasks,
    response_timers: Arc<Timers>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    since: Instant,
    /// When it is too old, or has been idle for longer than the upstream said that it would wait; `None`: never.
    ends: Option<Instant>,
}

/// What a request can be sent on.
#[derive(Debug)]
enum Line {
    Http1(Box<Connection>),
    Http2(Stream, Used),
}

fn is_over(ends: Option<Instant>, now: Instant) -> bool {
    ends.is_some_and(|ends| ends <= now)
}

impl Pool {
    /// An empty pool for this upstream. Of `tasks` are those that drive HTTP/2 connections, and those that send what is left of a request
    /// whose answer came early.
    #[must_use]
    pub fn new(origin: Arc<Origin>, tasks: Tasks) -> Self {
        let may_speak_http2 = match (origin.upstream.protocol, &origin.upstream.tls) {
            (config::Protocol::Http2, _) | (config::Protocol::Auto, Some(_)) => true,
            (config::Protocol::Http1, _) | (config::Protocol::Auto, None) => false,
        };
        Self(Arc::new(Inner {
            origin,
            idle: Mutex::default(),
            multiplexed: Mutex::default(),
            room: Arc::default(),
            opening: tokio::sync::Mutex::default(),
            may_speak_http2: AtomicBool::new(may_speak_http2),
            tasks,
            response_timers: Arc::default(),
        }))
    }

    /// The configuration of the upstream behind it.
    #[must_use]
    pub fn upstream(&self) -> &config::Upstream {
        &self.0.origin.upstream
    }

    /// Timers for `response_timeout`.
    #[must_use]
    pub fn response_timers(&self) -> &Arc<Timers> {
        &self.0.response_timers
    }

    /// Where what is left of a request runs.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// Sends one request and gives its answer's head; the body follows. The request is taken at once, and goes out while the call is polled.
    ///
    /// The request is sent once. It is tried on another connection only when the one that was chosen gave it back
    /// untouched; and on a fresh connection that happens once.
    ///
    /// Dropping the call closes the HTTP/1 connection, or resets the HTTP/2 stream, that it uses, with the request sent in part or
    /// whole.
    ///
    /// # Errors
    /// What is known of the request when no answer came.
    pub fn send(&self, request: Request<OutgoingBody>) -> Call {
        let (mut head, body) = request.into_parts();
        self.send_with(&mut head, body, None, Instant::now(), None)
    }

    /// The same for a request of whose `head` nothing is left, and which has something `added` to that on its way; and for those who know what
    /// time it is.
    pub fn send_at(
        &self,
        head: &mut request::Parts,
        body: OutgoingBody,
        added: Added<'_>,
        now: Instant,
    ) -> Call {
        self.send_with(head, body, Some(added), now, None)
    }

    /// The same for a request that is not begun once the `leave` to do so is over.
    pub fn send_within(&self, request: Request<OutgoingBody>, now: Instant, leave: Leave) -> Call {
        let (mut head, body) = request.into_parts();
        self.send_with(&mut head, body, None, now, Some(leave))
    }

    fn send_with(
        &self,
        head: &mut request::Parts,
        body: OutgoingBody,
        added: Option<Added<'_>>,
        now: Instant,
        leave: Option<Leave>,
    ) -> Call {
        if !self.may_speak_http2()
            && let Some(connection) = self.take_idle(now)
        {
            let request = (head, body);
            let exchange = self.exchange(connection, request, added.as_ref(), Used::Before, leave);
            return Call(Way::Standing(exchange));
        }
        if let Some(added) = added {
            added.insert_into(&mut head.headers);
        }
        let request = take_request(head, body);
        let pool = self.clone();
        Call(Way::Any(Box::pin(async move {
            pool.send_on_any(request, leave).await
        })))
    }

    async fn send_on_any(
        &self,
        mut request: Request<OutgoingBody>,
        leave: Option<Leave>,
    ) -> Result<Response<UpstreamBody>, SendFailure> {
        let mut tries = 0;
        loop {
            let (stream, used) = match self.line().await.map_err(SendFailure::NotSent)? {
                Line::Http1(connection) => {
                    to_http1(&mut request);
                    return self
                        .exchange_on_a_fresh_one(connection, request, leave)
                        .await;
                }
                Line::Http2(stream, used) => (stream, used),
            };
            still(leave.as_ref())?;
            to_http2(&mut request, self.upstream());
            let mut failed = match stream.send(request).await {
                Ok(response) => return answered_on(stream, response),
                Err(failed) => failed,
            };
            let Some(untouched) = failed.take_message() else {
                return Err(SendFailure::unanswered(failed.into_error(), used));
            };
            self.forget(stream.connection());
            tries += 1;
            // One that stood may have been closed meanwhile, and so may every other one; a fresh one has had its chance.
            if used == Used::Never || tries > MAX_CONNECTIONS {
                let proof = NotSent::given_back(&untouched, failed.into_error());
                return Err(SendFailure::NotSent(proof));
            }
            request = untouched;
        }
    }

    async fn exchange_on_a_fresh_one(
        &self,
        mut connection: Box<Connection>,
        request: Request<OutgoingBody>,
        leave: Option<Leave>,
    ) -> Result<Response<UpstreamBody>, SendFailure> {
        if let Some(unasked) = connection.unasked() {
            return Err(SendFailure::NotSent(NotSent::unused(unasked)));
        }
        let (mut head, body) = request.into_parts();
        self.exchange(connection, (&mut head, body), None, Used::Never, leave)
            .await
    }

    /// Sends a request whose connection took nothing of it, on a fresh one.
    async fn exchange_again(
        &self,
        untouched: Box<Connection>,
        why: NotSent,
        leave: Option<Leave>,
    ) -> Result<Response<UpstreamBody>, SendFailure> {
        let mut fresh = match self.line().await.map_err(SendFailure::NotSent)? {
            Line::Http1(fresh) => fresh,
            // Its head is written for HTTP/1.
            Line::Http2(..) => return Err(SendFailure::NotSent(why)),
        };
        if let Some(unasked) = fresh.unasked() {
            return Err(SendFailure::NotSent(NotSent::unused(unasked)));
        }
        fresh.takes_over(*untouched);
        let on = Some((fresh, self.clone()));
        Exchange {
            on,
            used: Used::Never,
            leave,
        }
        .await
    }

    fn exchange(
        &self,
        mut connection: Box<Connection>,
        (head, body): (&mut request::Parts, OutgoingBody),
        added: Option<&Added<'_>>,
        used: Used,
        leave: Option<Leave>,
    ) -> Exchange {
        connection.begin(head, body, added);
        Exchange {
            on: Some((connection, self.clone())),
            used,
            leave,
        }
    }

    // --- HTTP/1 ---

    /// The connection that was used last and is ready for a request now.
    fn take_idle(&self, now: Instant) -> Option<Box<Connection>> {
        let inner = &self.0;
        let oldest = now.checked_sub(self.upstream().idle_timeout);
        let mut idle = inner.idle.lock();
        while let Some(Idle {
            mut connection,
            since,
            ends,
        }) = idle.pop()
        {
            inner.origin.idle_total.fetch_sub(1, Ordering::Relaxed);
            let fresh = oldest.is_none_or(|oldest| since > oldest) && !is_over(ends, now);
            if fresh && connection.unasked().is_none() {
                return Some(connection);
            }
            // Closed, or too old.
        }
        None
    }

    /// Keeps a connection for the next request, if there is room and it is good for one.
    pub(super) fn keep(&self, mut connection: Box<Connection>) {
        let inner = &self.0;
        let max = self.upstream().max_idle_connections;
        let room = |total: usize| (total < max).then_some(total + 1);
        let now = Instant::now();
        let ends = connection.ends(now);
        if connection.may_follow()
            && !is_over(ends, now)
            && inner
                .origin
                .idle_total
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_ok()
        {
            connection.rests();
            inner.idle.lock().push(Idle {
                connection,
                since: now,
                ends,
            });
        }
    }

    /// Drops what has been idle for `idle_timeout` or is too old. Called now and then; a request never meets such a connection anyway.
    pub fn drop_old(&self) {
        let inner = &self.0;
        let idle_timeout = self.upstream().idle_timeout;
        let now = Instant::now();
        {
            let mut idle = inner.idle.lock();
            let before = idle.len();
            idle.retain_mut(|one| {
                one.connection.unasked().is_none()
                    && !is_over(one.ends, now)
                    && now.duration_since(one.since) < idle_timeout
            });
            inner
                .origin
                .idle_total
                .fetch_sub(before - idle.len(), Ordering::Relaxed);
        }
        inner.multiplexed.lock().retain_mut(|kept| {
            if kept.connection.active() > 0 {
                kept.used = now;
            }
            kept.is_good(now) && now.duration_since(kept.used) < idle_timeout
        });
    }

    // --- HTTP/2 ---

    fn may_speak_http2(&self) -> bool {
        self.0.may_speak_http2.load(Ordering::Relaxed)
    }

    /// What a request can be sent on: a place on a connection that stands, or a fresh connection, which has its `connect_timeout`. For a
    /// place it is waited as long as the caller wants to wait.
    async fn line(&self) -> Result<Line, NotSent> {
        let deadline = || Instant::now() + self.upstream().connect_timeout;
        if !self.may_speak_http2() {
            return self.open(deadline()).await;
        }
        loop {
            if let Some(stream) = self.place().await {
                return Ok(Line::Http2(stream, Used::Before));
            }
            let deadline = deadline();
            let Ok(opening) = timeout_at(deadline, self.0.opening.lock()).await else {
                // Whoever made it is about to say the same.
                return Err(NotSent::connect(Unreached::Timeout));
            };
            if !self.may_speak_http2() {
                drop(opening);
                return self.open(deadline).await;
            }
            // Somebody else may have made one meanwhile.
            match self.take_stream() {
                Room::Here(stream) => return Ok(Line::Http2(stream, Used::Before)),
                Room::ForAnother => return self.open(deadline).await,
                Room::None => {}
            }
        }
    }

    // --- fresh connections ---

    async fn open(&self, deadline: Instant) -> Result<Line, NotSent> {
        let opened = self.try_open(deadline).await;
        self.0.origin.counted(opened)
    }

    /// A connection of its own for one request over HTTP/1.1, whatever else is spoken.
    pub(super) async fn alone(&self) -> Result<Fresh, NotSent> {
        let origin = &self.0.origin;
        let deadline = Instant::now() + origin.upstream().connect_timeout;
        let opened = async {
            let connected = connect(origin, Want::Http1, &self.0.tasks, deadline).await?;
            Fresh::over(connected.wire).await
        };
        origin.counted(opened.await)
    }

    async fn try_open(&self, deadline: Instant) -> Result<Line, Unreached> {
        let inner = &self.0;
        let Connected { wire, speaks } =
            connect(&inner.origin, Want::Configured, &inner.tasks, deadline).await?;
        let ends = lifetime(&self.upstream().target).map(|span| Instant::now() + span);
        inner
            .may_speak_http2
            .store(speaks == Speaks::Http2, Ordering::Relaxed);
        if speaks == Speaks::Http2 {
            let room = &inner.room;
            let connection = Multiplexed::open(wire, &inner.tasks, deadline, room).await?;
            let stream = connection.take();
            inner.multiplexed.lock().push(Kept {
                connection,
                ends,
                used: Instant::now(),
            });
            room.notify_waiters();
            return Ok(Line::Http2(stream, Used::Never));
        }
        Ok(Line::Http1(Box::new(Connection::new(wire, ends))))
    }
}

/// Whether a request may be begun now.
fn still(leave: Option<&Leave>) -> Result<(), SendFailure> {
    match leave {
        Some(leave) if leave.is_over() => Err(SendFailure::NotSent(NotSent::without_leave())),
        Some(_) | None => Ok(()),
    }
}

/// An HTTP/1 connection of hyper's that nobody drives yet, for what may switch protocols.
pub(super) struct Fresh {
    pub(super) sender: SendRequest<OutgoingBody>,
    pub(super) turn: Turn,
    pub(super) connection: http1::Connection<TokioIo<Watching>, OutgoingBody>,
}

impl Fresh {
    async fn over(wire: super::wire::Wire) -> Result<Self, Unreached> {
        let (wire, turn) = Watching::new(wire);
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .max_header_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| Unreached::Connect(std::io::Error::other(error)))?;
        Ok(Self {
            sender,
            turn,
            connection,
        })
    }
}

/// The most that is read ahead of one HTTP/1 connection, in bytes.
const READ_BUFFER: usize = 256 * 1024;

impl Drop for Inner {
    fn drop(&mut self) {
        let left = self.idle.get_mut().len();
        self.origin.idle_total.fetch_sub(left, Ordering::Relaxed);
    }
}

/// How often [`Pool::drop_old`] is worth calling.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
