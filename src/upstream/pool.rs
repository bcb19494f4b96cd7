//! Connections to one upstream, kept on the worker that made them. Last in, first out, so that few stay warm and the
//! rest grow old and go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{MaybeSent, NotSent, OutgoingBody, SendFailure, UpstreamBody, connect::connect};
use crate::{
    config,
    tasks::Tasks,
    telemetry::metrics::{Metrics, Side},
    timers::Timers,
};

/// The connections of one worker to one upstream.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    upstream: config::Upstream,
    /// Oldest first.
    idle: Mutex<Vec<Idle>>,
    /// Idle connections of this upstream on all workers.
    idle_total: Arc<AtomicUsize>,
    tasks: Tasks,
    metrics: Metrics,
    response_timers: Arc<Timers>,
    capture_timers: Arc<Timers>,
}

type Sender = SendRequest<OutgoingBody>;

#[derive(Debug)]
struct Idle {
    sender: Sender,
    since: Instant,
}

/// A connection that is in use; it goes back to its pool by [`Lease::give_back`], and is closed on drop.
#[derive(Debug)]
pub(super) struct Lease {
    sender: Sender,
    pool: Pool,
}

impl Lease {
    /// The answer has come whole: the connection may serve another request.
    pub(super) fn give_back(self) {
        let inner = &self.pool.0;
        let max = inner.upstream.max_idle_connections;
        let room = |total: usize| (total < max).then_some(total + 1);
        if !self.sender.is_closed()
            && inner
                .idle_total
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_ok()
        {
            inner.idle.lock().push(Idle {
                sender: self.sender,
                since: Instant::now(),
            });
        }
    }
}

impl Pool {
    /// An empty pool. `idle_total` is shared by the pools of all workers to the same upstream; connections are driven by
    /// tasks of `tasks`.
    #[must_use]
    pub fn new(
        upstream: config::Upstream,
        idle_total: Arc<AtomicUsize>,
        tasks: Tasks,
        metrics: Metrics,
    ) -> Self {
        Self(Arc::new(Inner {
            upstream,
            idle: Mutex::new(Vec::new()),
            idle_total,
            tasks,
            metrics,
            response_timers: Arc::default(),
            capture_timers: Arc::default(),
        }))
    }

    /// The configuration of the upstream behind it.
    #[must_use]
    pub fn upstream(&self) -> &config::Upstream {
        &self.0.upstream
    }

    /// Timers for `response_timeout`.
    #[must_use]
    pub fn response_timers(&self) -> &Arc<Timers> {
        &self.0.response_timers
    }

    /// Timers for `capture_timeout`.
    #[must_use]
    pub fn capture_timers(&self) -> &Arc<Timers> {
        &self.0.capture_timers
    }

    /// Where what lives as long as a connection runs.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// What is counted.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Sends one request and gives its answer's head; the body follows.
    ///
    /// The request is sent once. It is tried on another connection only when the one that was chosen gave it back
    /// untouched; and on a fresh connection that happens once.
    ///
    /// Dropping the future closes the connection that it uses, with the request sent in part or whole.
    ///
    /// # Errors
    /// What is known of the request when no answer came.
    pub async fn send(
        &self,
        mut request: Request<OutgoingBody>,
    ) -> Result<Response<UpstreamBody>, SendFailure> {
        while let Some(mut sender) = self.take_idle() {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answered(sender, response)),
                Err(mut failed) => match failed.take_message() {
                    Some(untouched) => request = untouched,
                    None => {
                        return Err(SendFailure::MaybeSent(MaybeSent::new(failed.into_error())));
                    }
                },
            }
        }
        // Making a connection is rare and its future large; boxed, it costs the others nothing.
        Box::pin(self.send_on_a_fresh_one(request)).await
    }

    async fn send_on_a_fresh_one(
        &self,
        request: Request<OutgoingBody>,
    ) -> Result<Response<UpstreamBody>, SendFailure> {
        let mut sender = self.open().await.map_err(SendFailure::NotSent)?;
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.answered(sender, response)),
            Err(mut failed) => Err(match failed.take_message() {
                Some(untouched) => {
                    SendFailure::NotSent(NotSent::given_back(&untouched, failed.into_error()))
                }
                None => SendFailure::MaybeSent(MaybeSent::new(failed.into_error())),
            }),
        }
    }

    fn answered(&self, sender: Sender, response: Response<Incoming>) -> Response<UpstreamBody> {
        let lease = Lease {
            sender,
            pool: self.clone(),
        };
        response.map(|incoming| UpstreamBody::new(incoming, lease))
    }

    /// The connection that was used last and is ready for a request now.
    fn take_idle(&self) -> Option<Sender> {
        let inner = &self.0;
        let oldest = Instant::now().checked_sub(inner.upstream.idle_timeout);
        let mut idle = inner.idle.lock();
        while let Some(candidate) = idle.pop() {
            inner.idle_total.fetch_sub(1, Ordering::Relaxed);
            let fresh = oldest.is_none_or(|oldest| candidate.since > oldest);
            if fresh && candidate.sender.is_ready() {
                return Some(candidate.sender);
            }
            // Closed, too old, or still busy with the end of its last exchange: not worth waiting for.
        }
        None
    }

    /// Drops what has been idle for `idle_timeout`. Called now and then; a request never meets such a connection anyway.
    pub fn drop_old(&self) {
        let inner = &self.0;
        let now = Instant::now();
        let mut idle = inner.idle.lock();
        let before = idle.len();
        idle.retain(|one| {
            !one.sender.is_closed() && now.duration_since(one.since) < inner.upstream.idle_timeout
        });
        inner
            .idle_total
            .fetch_sub(before - idle.len(), Ordering::Relaxed);
    }

    async fn open(&self) -> Result<Sender, NotSent> {
        let inner = &self.0;
        let connecting = timeout(
            inner.upstream.connect_timeout,
            connect(&inner.upstream.target),
        );
        let stream = match connecting.await {
            Ok(stream) => stream.map_err(NotSent::connect)?,
            Err(_) => return Err(NotSent::connect_timeout()),
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| NotSent::connect(std::io::Error::other(error)))?;
        let open = inner.metrics.connection(Side::Upstream);
        inner.tasks.detach(async move {
            // What went wrong on it is told to the request that met it.
            let _ = connection.await;
            drop(open);
        });
        Ok(sender)
    }
}

/// The most that is read ahead of one upstream connection, and the largest answer head, in bytes.
pub(super) const READ_BUFFER: usize = 256 * 1024;

impl Drop for Inner {
    fn drop(&mut self) {
        let left = self.idle.get_mut().len();
        self.idle_total.fetch_sub(left, Ordering::Relaxed);
    }
}

/// How often [`Pool::drop_old`] is worth calling.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(1);
