//! One HTTP/1 connection to an upstream, driven by whoever has a request on it.
//!
//! There is no task behind it, but where an answer comes early: the future that waits for an answer writes the request and reads the head,
//! and whoever reads the body reads the connection. So a call costs no wake-up but those of its socket, and its state stays where the connection is.
//!
//! A request goes out in the turn of its task behind the one that it is begun in. So all that has come to this thread is read before anything is
//! sent: whoever sleeps at the other ends is woken once for much, and waking is dear. And of its body what is about to come goes with its head.
//!
//! - `request` writes heads and frames bodies; `head` and `chunked` read answers, and refuse those that cannot be believed;
//! - `input` reads the connection, into a buffer of its own or into one that is given;
//! - `early` sends what is left of a request whose answer's head has come; an upstream that takes no more of one may have answered all the
//!   same, and is read to its end.
//!
//! States of a connection: idle → the answer's head (from [`Connection::begin`]) → its body → idle again, where
//! [`Connection::may_follow`]. Dropped at any point it closes.

mod answer;
mod chunked;
mod early;
mod head;
mod input;
mod request;
mod unfinished;

use std::{
    future::{Future as _, poll_fn},
    io::{self, IoSlice},
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::BytesMut;
use http::{HeaderMap, Method, request::Parts};
use http_body::Body as _;
use tokio::{io::AsyncWrite as _, task::coop::unconstrained, time::Instant};

pub(super) use self::answer::Answer;
pub use self::unfinished::Unfinished;
use self::{
    head::{Head, Lines},
    input::LEAST_READ,
    request::{CHUNK_END, Encoding, LAST_CHUNK_END, Out, write_chunk_size, write_end, write_head},
};
use super::{
    OutgoingBody,
    framing::After,
    heads::{BadHead, MAX_INTERIM},
    wire::Wire,
};
use crate::core::added::Added;

/// A connection for one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    wire: Wire,
    /// When it is too old for another request; `None`: never.
    ends: Option<Instant>,
    /// How long it may be idle, where the upstream has said so.
    rests_for: Option<Duration>,
    /// What was read and not taken yet.
    input: BytesMut,
    /// So much is read at a time.
    room: usize,
    lines: Lines,
    interim: usize,
    method: Method,
    /// Empty, with the room that the request's fields had: for the answer's.
    spare: HeaderMap,
    after: After,
    order: Order,
    reading: Reading,
    out: Out,
    body: Option<OutgoingBody>,
    encoding: Encoding,
    sending: Sending,
    /// So many bytes of it were taken by the socket, or went nowhere. Inside TLS one at least as soon as it was tried: a write that fails there may have
    /// gone out in part.
    written: u64,
    /// How long a piece of the body may take, where the body says so.
    patience: Option<Duration>,
}

/// How far a request has gone out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// It waits for its task's next turn.
    Begun,
    /// It has waited: it goes now, with what there is of its body.
    Due,
    /// It goes on.
    Going,
    /// The same, but the upstream takes no more: what it has said is still to be read, so that a write that fails is no end. What is
    /// written from here on goes nowhere.
    Deaf,
    /// It has gone out whole.
    Whole,
    /// The same, into a connection that took no more.
    Lost,
}

/// What of an answer is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Nothing: the last one has come whole.
    Idle,
    Head,
    Body,
}

/// When the head of the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The request had gone out whole.
    Behind,
    /// Something of it was still to go. An upstream that does not read it all may take what is left for the next request.
    Early,
}

/// What is left of a request behind its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remainder {
    /// The answer may rely on it.
    Wanted,
    /// The upstream has said that it ends the connection, or has ended it.
    Unwanted,
}

impl Connection {
    /// A connection that nothing was written to.
    pub(super) fn new(wire: Wire, ends: Option<Instant>) -> Self {
        Self {
            wire,
            ends,
            rests_for: None,
            input: BytesMut::new(),
            room: LEAST_READ,
            lines: Lines::default(),
            interim: 0,
            method: Method::GET,
            spare: HeaderMap::new(),
            after: After::Reuse,
            order: Order::Behind,
            reading: Reading::Idle,
            out: Out::default(),
            body: None,
            encoding: Encoding::Nothing,
            sending: Sending::Whole,
            written: 0,
            patience: None,
        }
    }

    /// What the upstream has done to it unasked, as far as the event loop knows: closed it (0), said something (so many bytes), or broken
    /// it. `None`, the only good sign: nothing.
    ///
    /// A task that has spent its turn's budget is told of every socket that it is not ready. Here that would pass for a good sign, so it is
    /// asked outside the budget.
    pub(super) fn unasked(&mut self) -> Option<io::Result<usize>> {
        if !self.input.is_empty() {
            return Some(Ok(self.input.len()));
        }
        let mut cx = Context::from_waker(Waker::noop());
        let filled = unconstrained(poll_fn(|cx| self.poll_fill(cx)));
        match pin!(filled).poll(&mut cx) {
            Poll::Pending => None,
            Poll::Ready(said) => Some(said),
        }
    }

    /// Takes a request, of whose `head` nothing is left, and what is `added` to that; nothing of it is written yet. The connection has to be
    /// idle.
    pub(super) fn begin(
        &mut self,
        head: &mut Parts,
        mut body: OutgoingBody,
        added: Option<&Added<'_>>,
    ) {
        debug_assert_eq!(self.reading, Reading::Idle, "an answer is under way");
        self.reading = Reading::Head;
        self.lines.reset();
        self.interim = 0;
        self.written = 0;
        self.out.clear();
        if matches!(head.method, Method::GET | Method::HEAD) {
            // One without a body should not look as if it had one.
            body.look_ahead();
        }
        self.encoding = write_head(head, &body, added, &mut self.out.front);
        self.method = mem::take(&mut head.method);
        self.spare = mem::take(&mut head.headers);
        self.spare.clear();
        self.body = match &self.encoding {
            Encoding::Nothing => None,
            Encoding::Length(_) | Encoding::Chunked(_) => Some(body),
        };
        self.sending = Sending::Begun;
        self.patience = match &self.body {
            Some(OutgoingBody::Streamed(body)) => Some(body.patience()),
            Some(OutgoingBody::Whole(_)) | None => None,
        };
    }

    /// Takes over the request of a connection that nothing of it was written to. This one has to be idle.
    pub(super) fn takes_over(&mut self, from: Self) {
        debug_assert_eq!(self.reading, Reading::Idle, "an answer is under way");
        self.reading = Reading::Head;
        self.lines.reset();
        self.interim = 0;
        self.written = 0;
        self.method = from.method;
        self.out = from.out;
        self.body = from.body;
        self.encoding = from.encoding;
        self.patience = from.patience;
        self.sending = Sending::Going;
    }

    /// Sends the request that was begun and reads the head of its answer, which is not 1xx but for 101.
    ///
    /// After [`Unfinished::NotBegun`] the request is still there, and another connection may take it over.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Unfinished>> {
        match self.sending {
            Sending::Begun => {
                self.sending = Sending::Due;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Sending::Due => {
                // The upstream may have closed the connection in that turn, or spoken on it.
                if let Some(unasked) = self.unasked() {
                    return Poll::Ready(Err(Unfinished::NotBegun(unasked)));
                }
                self.sending = Sending::Going;
            }
            Sending::Going | Sending::Deaf | Sending::Whole | Sending::Lost => {}
        }
        if let Poll::Ready(Err(why)) = self.poll_send(cx) {
            return Poll::Ready(Err(why));
        }
        if self.written == 0 {
            // Nothing that comes before the request's first byte could be its answer.
            return Poll::Pending;
        }
        loop {
            let Some(end) = self.lines.end(&self.input)? else {
                match ready!(self.poll_fill(cx)) {
                    Ok(0) => return Poll::Ready(Err(Unfinished::Closed)),
                    Ok(_) => continue,
                    Err(error) => return Poll::Ready(Err(error.into())),
                }
            };
            let bytes = self.input.split_to(end).freeze();
            let fields = mem::take(&mut self.spare);
            let head = Head::read(&bytes, &self.lines, &self.method, fields);
            self.lines.reset();
            let head = head.map_err(Unfinished::Malformed)?;
            if head.is_interim() {
                self.interim += 1;
                if self.interim > MAX_INTERIM {
                    return Poll::Ready(Err(BadHead::TooManyInterim.into()));
                }
                continue;
            }
            self.after = head.after;
            self.rests_for = head.rests_for;
            self.reading = Reading::Body;
            self.order = if self.is_sent() {
                Order::Behind
            } else {
                Order::Early
            };
            return Poll::Ready(Ok(head));
        }
    }

    /// Whether nothing of the request was taken yet, by a socket or by TLS: it waits for its turn, or for room.
    pub(super) const fn is_untouched(&self) -> bool {
        self.written == 0
    }

    /// Whether the request has gone out whole, or goes nowhere any more and has been read to its end.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.sending, Sending::Whole | Sending::Lost)
    }

    /// Whether another request may follow: the last one was answered behind its own end, and nothing stands in the way.
    pub(super) fn may_follow(&self) -> bool {
        self.sending == Sending::Whole
            && self.reading == Reading::Idle
            && self.after == After::Reuse
            && self.order == Order::Behind
            && self.input.is_empty()
    }

    /// The answer's body has come whole.
    const fn answered(&mut self) {
        self.reading = Reading::Idle;
    }

    /// What becomes of the rest of a request whose answer has come whole. Of an unwanted one nothing more is written; what is left of its
    /// body is read.
    fn remainder(&mut self) -> Remainder {
        if self.after == After::Reuse && self.sending != Sending::Deaf {
            return Remainder::Wanted;
        }
        if !self.is_sent() {
            self.sending = Sending::Deaf;
        }
        Remainder::Unwanted
    }

    /// When it may not take another request any more, idle since `now`; `None`: never.
    pub(super) fn ends(&self, now: Instant) -> Option<Instant> {
        let rested = self.rests_for.and_then(|time| now.checked_add(time));
        match (self.ends, rested) {
            (Some(ends), Some(rested)) => Some(ends.min(rested)),
            (ends, rested) => ends.or(rested),
        }
    }

    /// Makes it small for the time that it is idle.
    pub(super) fn rests(&mut self) {
        if self.room > LEAST_READ {
            self.room = LEAST_READ;
            self.input = BytesMut::new();
        }
        if self.out.front.capacity() > LEAST_READ {
            self.out.front = Vec::new();
        }
    }

    /// Sends on; ready when the request has gone out whole.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unfinished>> {
        while !self.is_sent() {
            let more = if self.out.data.is_empty() && self.out.behind.is_empty() {
                self.poll_body(cx)?
            } else {
                Poll::Pending
            };
            if !self.out.is_empty() {
                ready!(self.poll_write(cx))?;
                continue;
            }
            if self.sending != Sending::Deaf {
                let flushed = ready!(Pin::new(&mut self.wire).poll_flush(cx));
                self.unless_deaf(flushed)?;
            }
            if self.body.is_some() {
                if more.is_pending() {
                    return Poll::Pending;
                }
                continue;
            }
            self.sending = match self.sending {
                Sending::Deaf => Sending::Lost,
                _ => Sending::Whole,
            };
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the next piece of the body, if it is there; pending: not yet.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, Unfinished> {
        let Some(body) = &mut self.body else {
            return Ok(Poll::Ready(()));
        };
        let frame = match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Some(Err(why))) => return Err(Unfinished::Upload(Box::new(why))),
            Poll::Ready(Some(Ok(frame))) => Some(frame),
            Poll::Ready(None) => None,
        };
        let is_last = frame.is_none() || body.is_end_stream();
        let frame = match frame.map(http_body::Frame::into_data) {
            Some(Ok(data)) => {
                self.queue(data, is_last);
                None
            }
            Some(Err(frame)) => frame.into_trailers().ok(),
            None => None,
        };
        if is_last || frame.is_some() {
            self.body = None;
            match &self.encoding {
                Encoding::Length(1..) => return Err(Unfinished::Short),
                // What ends it may stand behind its last data already.
                Encoding::Chunked(announced) if self.out.behind != LAST_CHUNK_END => {
                    write_end(&mut self.out.front, frame.as_ref(), announced);
                }
                Encoding::Chunked(_) | Encoding::Length(0) | Encoding::Nothing => {}
            }
        }
        Ok(Poll::Ready(()))
    }

    fn queue(&mut self, mut data: bytes::Bytes, is_last: bool) {
        if data.is_empty() {
            return;
        }
        match &mut self.encoding {
            Encoding::Nothing => return,
            Encoding::Length(left) => {
                // More than was announced would be taken for another request.
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
            }
            Encoding::Chunked(_) => {
                write_chunk_size(&mut self.out.front, data.len());
                self.out.behind = if is_last { LAST_CHUNK_END } else { CHUNK_END };
            }
        }
        self.out.data = data;
    }

    /// Writes some of what waits.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unfinished>> {
        if self.sending == Sending::Deaf {
            self.written += self.out.data.len() as u64;
            self.out.clear();
            return Poll::Ready(Ok(()));
        }
        if self.wire.keeps_what_it_writes() {
            self.written = self.written.max(1);
        }
        let parts = self.out.parts().map(IoSlice::new);
        let wrote = Pin::new(&mut self.wire).poll_write_vectored(cx, &parts);
        match ready!(wrote) {
            Ok(0) => Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
            Ok(count) => {
                self.written += count as u64;
                self.out.advance(count);
                Poll::Ready(Ok(()))
            }
            Err(error) if self.written == 0 => Poll::Ready(Err(Unfinished::NotBegun(Err(error)))),
            Err(error) => Poll::Ready(self.unless_deaf(Err(error))),
        }
    }

    /// An upstream that closes its connection may have answered before.
    fn unless_deaf(&mut self, wrote: io::Result<()>) -> Result<(), Unfinished> {
        match wrote {
            Err(error) if is_closed(&error) => {
                self.sending = Sending::Deaf;
                Ok(())
            }
            wrote => wrote.map_err(Unfinished::Io),
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests;
