//! Requests that are still going out when the heads of their answers come.
//!
//! This is rare, and here alone a task stands behind a connection: whoever reads the answer may read it slowly, or not before the request is
//! out, and the upstream may answer slowly to what it has not read. So each direction moves by itself. The task is tracked: a drain waits
//! for it.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{Instant, timeout_at},
};

use super::{Connection, Remainder, Unfinished};
use crate::upstream::Pool;

/// A connection that is written to by a task and read by whoever has this. Dropped, it is closed.
#[derive(Debug)]
pub(super) struct Early {
    both: Arc<Both>,
    /// `None`: it ends by itself.
    task: Option<AbortHandle>,
}

#[derive(Debug)]
struct Both {
    state: Mutex<State>,
    /// The answer has come whole.
    answered: Notify,
}

#[derive(Debug)]
struct State {
    connection: Box<Connection>,
    /// Why the request did not go out, until the reader is told.
    failed: Option<Unfinished>,
    reader: Option<Waker>,
}

impl Early {
    /// Goes on with the request that this connection has begun.
    pub(super) fn new(connection: Box<Connection>, pool: &Pool) -> Self {
        let patience = connection.patience;
        let patience = patience.unwrap_or_else(|| pool.upstream().response_timeout);
        let both = Arc::new(Both {
            state: Mutex::new(State {
                connection,
                failed: None,
                reader: None,
            }),
            answered: Notify::new(),
        });
        let task = pool.tasks().spawn(Arc::clone(&both).send(patience));
        Self {
            both,
            task: Some(task.abort_handle()),
        }
    }

    /// Reads on, unless the request has failed.
    pub(super) fn poll_read<T>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Connection, &mut Context<'_>) -> Poll<Result<T, Unfinished>>,
    ) -> Poll<Result<T, Unfinished>> {
        let mut state = self.both.state.lock();
        if let Some(why) = state.failed.take() {
            return Poll::Ready(Err(why));
        }
        let polled = read(&mut state.connection, cx);
        if polled.is_pending() {
            match &mut state.reader {
                Some(reader) => reader.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        polled
    }

    /// The answer has come whole. What is left of the request goes out within bounds, and the connection is closed.
    pub(super) fn answered(mut self) {
        self.task = None;
        self.both.answered.notify_one();
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Both {
    async fn send(self: Arc<Self>, patience: Duration) {
        let sent = poll_fn(|cx| self.state.lock().connection.poll_send(cx));
        tokio::select! {
            biased;
            sent = sent => {
                if let Err(why) = sent {
                    self.fails(why);
                }
            }
            () = self.answered.notified() => self.send_rest(patience).await,
        }
    }

    fn fails(&self, why: Unfinished) {
        let mut state = self.state.lock();
        state.failed = Some(why);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Sends what is left behind the answer's end. Who wanted the answer has it, so that nobody is told of what fails here.
    async fn send_rest(&self, patience: Duration) {
        let (left, most) = match self.state.lock().connection.remainder() {
            Remainder::Wanted => (u64::MAX, patience.saturating_mul(PIECES)),
            Remainder::Unwanted => (SHORT_BODY, SHORT_WAIT),
        };
        let end = Instant::now() + most;
        let begun = self.state.lock().connection.written;
        let mut before = begun;
        while before - begun <= left {
            let step = poll_fn(|cx| {
                let connection = &mut self.state.lock().connection;
                match connection.poll_send(cx) {
                    Poll::Ready(_) => Poll::Ready(None),
                    Poll::Pending if connection.written > before => {
                        Poll::Ready(Some(connection.written))
                    }
                    Poll::Pending => Poll::Pending,
                }
            });
            match timeout_at(end.min(Instant::now() + patience), step).await {
                Ok(Some(now)) => before = now,
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// What is left of a request has so many times the time of one piece.
const PIECES: u32 = 10;
/// So much is read away of the body of a request whose upstream wants no more of it, and in this time; as of one that is refused.
const SHORT_BODY: u64 = 64 * 1024;
const SHORT_WAIT: Duration = Duration::from_secs(1);
