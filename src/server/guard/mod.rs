//! What an HTTP/1.x client sends is judged here, before the parser sees it; and the times of its connection are kept.
//!
//! - Heads reach the parser whole and good; what is left of one waits here. Bodies pass as they come.
//! - A head that is refused is replaced by a request that stands for it: the service answers that one by the refusal, behind
//!   the answers to the requests before it. Nothing behind it is read but to be thrown away.
//! - A body that breaks its framing fails where it does.
//! - A head has `head_timeout` from its first byte on; so has a connection for its first byte. Between requests there is
//!   `keepalive_timeout`, from the end of the last answer on. A write that nobody takes has `write_timeout`.
//! - Without a request for five seconds the connection is to rest: the parser is told that it has ended, while the stream stays open for
//!   [`Guard::rested`].
//! - Behind a request for another protocol nothing is read until the service has said which one it is.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::{sync::Arc, time::Duration};

use self::write::Closing;
use super::{conversation::ConnectionState, wait::Wait};
use crate::{
    core::framing::{Limits, Stream},
    timers::Timers,
};

/// The times of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// `head_timeout`
    pub head: Duration,
    /// `keepalive_timeout`
    pub keepalive: Duration,
    /// `write_timeout`
    pub write: Duration,
}

/// A client's stream, guarded.
#[derive(Debug)]
pub struct Guard<S> {
    stream: S,
    times: Times,
    state: Arc<ConnectionState>,
    requests: Stream,
    phase: Phase,
    held: Held,
    /// Since when there is part of a head.
    head_since: Option<tokio::time::Instant>,
    reading: Wait,
    /// Since when a write is not taken.
    write_since: Option<tokio::time::Instant>,
    writing: Wait,
    closing: Closing,
}

/// What is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Requests.
    Requests,
    /// Nothing, until it is known what the bytes are.
    Undecided,
    /// Bytes of another protocol.
    Tunnel,
    /// Nothing: what came cannot be the body that it should be.
    Broken,
    /// Nothing: a head was refused, and its stand-in is or will be with the parser.
    Refused,
    /// Nothing: the time for another request is over.
    Over,
    /// Nothing here: the connection rests, and its stream is read elsewhere.
    Resting,
}

/// So long after its last request a connection rests. Long beside what it costs to speak again, short beside `keepalive_timeout`.
const REST_AFTER: Duration = Duration::from_secs(5);

/// Bytes that were read and did not pass yet.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    /// So many of them may pass.
    ready: usize,
    /// So many of those have passed.
    given: usize,
}

impl<S> Guard<S> {
    /// Guards `stream` from its first byte on. Its timers are among the worker's `spare` ones.
    pub fn new(
        stream: S,
        limits: Limits,
        times: Times,
        state: Arc<ConnectionState>,
        spare: &Arc<Timers>,
    ) -> Self {
        Self {
            stream,
            times,
            state,
            requests: Stream::new(limits),
            phase: Phase::Requests,
            held: Held::default(),
            head_since: None,
            reading: Wait::new(Arc::clone(spare)),
            write_since: None,
            writing: Wait::new(Arc::clone(spare)),
            closing: Closing::Not,
        }
    }

    /// The stream of a connection that is to rest, of which nothing was read that did not pass; `None`: it is not to.
    pub fn rested(self) -> Option<S> {
        (self.phase == Phase::Resting).then_some(self.stream)
    }
}
