//! What a connection's two ends know of each other: the guard, which reads what the client sends, and the service, which answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::core::problem::Problem;

/// The state that one connection's guard and its service share. Requests are numbered from 1, in the order of their heads.
#[derive(Debug)]
pub struct ConnectionState {
    requests: Requests,
    /// How many requests the service got.
    served: AtomicU64,
    /// The request that stands for one that was refused; 0: none.
    refused: AtomicU64,
    /// Why it was.
    why: Mutex<Option<Problem>>,
    /// The request that asks for another protocol and is not decided; 0: none.
    undecided: AtomicU64,
    decision: Mutex<Decision>,
}

/// What became of a request for another protocol.
#[derive(Debug, Default)]
enum Decision {
    /// Nothing yet; this is to be woken.
    #[default]
    Open,
    Awaited(Waker),
    Taken(Protocol),
}

/// What a connection speaks from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.x: another request may follow.
    Http,
    /// Something else: every byte passes as it is.
    Tunnel,
}

impl ConnectionState {
    /// The state of a connection whose requests are counted by `requests`.
    #[must_use]
    pub fn new(requests: Requests) -> Self {
        Self {
            requests,
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            why: Mutex::new(None),
            undecided: AtomicU64::new(0),
            decision: Mutex::default(),
        }
    }

    // --- the service's side ---

    /// The number of the next request; to be called once for each, in their order.
    pub fn next(&self) -> u64 {
        self.served.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Why this request is refused: it stands for one that could not be read.
    #[must_use]
    pub fn refusal_for(&self, number: u64) -> Option<Problem> {
        if self.refused.load(Ordering::Acquire) != number {
            return None;
        }
        self.why.lock().clone()
    }

    /// Whether this request asks for another protocol, so that what follows it waits for [`ConnectionState::tunnel`] or
    /// [`ConnectionState::no_tunnel`].
    #[must_use]
    pub fn asks_upgrade(&self, number: u64) -> bool {
        self.undecided.load(Ordering::Acquire) == number
    }

    /// The request was answered by 101: from its end on every byte passes, both ways, without limits of time.
    pub fn tunnel(&self) {
        self.decide(Protocol::Tunnel);
    }

    /// The request was answered by anything else: the connection goes on as HTTP.
    pub fn no_tunnel(&self) {
        self.decide(Protocol::Http);
    }

    fn decide(&self, protocol: Protocol) {
        if self.undecided.swap(0, Ordering::AcqRel) == 0 {
            return; // nobody has asked
        }
        let before = std::mem::replace(&mut *self.decision.lock(), Decision::Taken(protocol));
        if let Decision::Awaited(waker) = before {
            waker.wake();
        }
    }

    // --- the guard's side ---

    /// Request `number` stands for one that could not be read.
    pub(super) fn refuse(&self, number: u64, why: Problem) {
        *self.why.lock() = Some(why);
        self.refused.store(number, Ordering::Release);
    }

    /// Request `number` asks for another protocol.
    pub(super) fn ask(&self, number: u64) {
        *self.decision.lock() = Decision::Open;
        self.undecided.store(number, Ordering::Release);
    }

    /// What became of it.
    pub(super) fn poll_decision(&self, cx: &mut Context<'_>) -> Poll<Protocol> {
        let mut decision = self.decision.lock();
        match &*decision {
            Decision::Taken(protocol) => Poll::Ready(*protocol),
            Decision::Open | Decision::Awaited(_) => {
                *decision = Decision::Awaited(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Since when no request is under way; `None`: one is. Before the first one: since the connection began.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.requests.idle_since()
    }
}

/// The requests of one connection that are under way: from their head to the end of their answer.
#[derive(Clone, Debug)]
pub struct Requests(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    running: AtomicUsize,
    began: Instant,
    /// When the last one ended, in microseconds since the beginning.
    ended_us: AtomicU64,
}

impl Requests {
    /// None yet, on a connection that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Counted {
            running: AtomicUsize::new(0),
            began: Instant::now(),
            ended_us: AtomicU64::new(0),
        }))
    }

    /// One more, until the value is dropped.
    #[must_use]
    pub fn start(&self) -> Running {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(&self.0))
    }

    /// Since when there has been none; `None`: there is one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        if self.0.running.load(Ordering::Acquire) > 0 {
            return None;
        }
        let after = Duration::from_micros(self.0.ended_us.load(Ordering::Relaxed));
        Some(self.0.began + after)
    }

    /// Completes when there was no request for `pause`.
    pub async fn none_for(&self, pause: Duration) {
        loop {
            let before = self.0.running.load(Ordering::Relaxed);
            tokio::time::sleep(pause).await;
            if before == 0 && self.0.running.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

/// One request that is under way; until it is dropped.
#[derive(Debug)]
pub struct Running(Arc<Counted>);

impl Drop for Running {
    fn drop(&mut self) {
        let after = self.0.began.elapsed().as_micros();
        let after = u64::try_from(after).unwrap_or(u64::MAX);
        self.0.ended_us.store(after, Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}
