//! The way in.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::Instant,
};

use super::{super::conversation::Protocol, Guard, Held, Phase, REST_AFTER};
use crate::core::framing::{Fault, Place, Read, Then};

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.held.give(buf) {
                return Poll::Ready(Ok(()));
            }
            match this.phase {
                Phase::Requests => {
                    if let Some(end) = ready!(this.poll_requests(cx, buf)) {
                        return Poll::Ready(end);
                    }
                }
                Phase::Undecided => {
                    let protocol = ready!(this.state.poll_decision(cx));
                    this.decided(protocol);
                }
                Phase::Tunnel => return Pin::new(&mut this.stream).poll_read(cx, buf),
                Phase::Broken => {
                    let why = io::Error::new(io::ErrorKind::InvalidData, "the body is malformed");
                    return Poll::Ready(Err(why));
                }
                // The stand-in ends the connection. An end of the stream would end it before its answer.
                Phase::Refused => return Poll::Pending,
                Phase::Over | Phase::Resting => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> Guard<S> {
    /// Reads once, into `buf`, and judges what came. `None`: there may be something to give, or another phase.
    fn poll_requests(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Option<io::Result<()>>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
            Poll::Pending => return self.poll_times(cx).map(|()| None),
        }
        let new = buf.filled().get(before..).unwrap_or_default();
        if new.is_empty() {
            // Half a head is none.
            self.held = Held::default();
            self.phase = Phase::Over;
            return Poll::Ready(Some(Ok(())));
        }
        if self.held.bytes.is_empty() {
            let heads = self.requests.heads();
            let Read { pass, then } = self.requests.read(new);
            let rest = new.get(pass..).unwrap_or_default();
            if matches!(then, Then::More | Then::Undecided) && !rest.is_empty() {
                self.held.bytes.extend_from_slice(rest);
            }
            let stand_in = stand_in(rest);
            buf.set_filled(before + pass);
            self.judged(then, heads, stand_in);
            return Poll::Ready((pass > 0).then_some(Ok(())));
        }
        self.held.bytes.extend_from_slice(new);
        buf.set_filled(before);
        self.judge_held();
        Poll::Ready(None)
    }

    /// Judges what is held, none of which may pass so far.
    fn judge_held(&mut self) {
        let heads = self.requests.heads();
        let Read { pass, then } = self.requests.read(&self.held.bytes);
        if pass > 0 {
            self.head_since = None;
        }
        self.held.ready = pass;
        let stand_in = stand_in(self.held.bytes.get(pass..).unwrap_or_default());
        if matches!(then, Then::Refused(_) | Then::Broken(_)) {
            self.held.bytes.truncate(pass);
        }
        self.judged(then, heads, stand_in);
    }

    /// Follows the verdict on what came; `before` it there were so many heads. `stand_in` is for what does not pass.
    fn judged(&mut self, then: Then, before: u64, stand_in: &[u8]) {
        // Nothing behind such a request is judged, so that it is the last.
        if self.requests.heads() > before && self.requests.asks_upgrade() {
            self.state.ask(self.requests.heads());
        }
        match then {
            Then::More => {
                if self.held.ready < self.held.bytes.len() && self.head_since.is_none() {
                    self.head_since = Some(Instant::now());
                }
            }
            Then::Undecided => self.phase = Phase::Undecided,
            Then::Refused(fault) => self.refuse(fault, stand_in),
            Then::Broken(_) => self.phase = Phase::Broken,
        }
    }

    /// Puts a stand-in in the place of the head that would be next.
    fn refuse(&mut self, fault: Fault, stand_in: &[u8]) {
        self.requests.refuse(fault);
        self.state.refuse(self.requests.heads() + 1, fault.into());
        self.held.bytes.truncate(self.held.ready);
        self.held.bytes.extend_from_slice(stand_in);
        self.held.ready = self.held.bytes.len();
        self.head_since = None;
        self.phase = Phase::Refused;
    }

    fn decided(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Tunnel => {
                self.requests.tunnel();
                self.phase = Phase::Tunnel;
                self.held.ready = self.held.bytes.len();
            }
            Protocol::Http => {
                self.requests.no_tunnel();
                self.phase = Phase::Requests;
                self.judge_held();
            }
        }
    }

    /// Nothing has come: whether the time for it is over. Ready: yes, and it was seen to.
    ///
    /// The timer is never armed for later than `keepalive_timeout` from now. So it is not late for the end of any idling that begins while it
    /// is armed, and an answer that ends needs to wake nobody. A rest may begin late, by the time of a head at most.
    fn poll_times(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(since) = self.head_since {
            let due = since + self.times.head;
            while !self.reading.is_armed_for(due, cx) {
                let now = Instant::now();
                if now >= due {
                    let stand_in = stand_in(&self.held.bytes);
                    self.refuse(Fault::HeadTooLate, stand_in);
                    return Poll::Ready(());
                }
                let until = due.min(now + self.times.keepalive);
                ready!(self.reading.poll_until(until, cx));
            }
            return Poll::Pending;
        }
        // How long a body may take is the service's affair.
        if self.requests.place() != Place::Head {
            return Poll::Pending;
        }
        let time = if self.requests.heads() == 0 {
            self.times.head
        } else {
            self.times.keepalive
        };
        let may_rest = self.requests.heads() > 0 && REST_AFTER < time;
        let rest = if may_rest { REST_AFTER } else { time };
        while !self.reading.is_armed(cx) {
            let now = Instant::now();
            // While a request is under way nothing is late, and it is looked at again some time.
            let due = match self.state.idle_since() {
                Some(since) if now >= since + time => {
                    self.phase = Phase::Over;
                    return Poll::Ready(());
                }
                Some(since) if may_rest && now >= since + rest => {
                    self.phase = Phase::Resting;
                    return Poll::Ready(());
                }
                Some(since) => since + rest,
                None => now + time,
            };
            let until = due.min(now + rest.min(self.times.keepalive));
            ready!(self.reading.poll_until(until, cx));
        }
        Poll::Pending
    }
}

/// What the parser gets in the place of a head that is refused: answers to HEAD have no body.
fn stand_in(head: &[u8]) -> &'static [u8] {
    if head.starts_with(b"HEAD ") {
        b"HEAD / HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n\r\n"
    } else {
        b"GET / HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n\r\n"
    }
}

impl Held {
    /// Gives what may pass and fits; whether that was anything.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let ready = self.bytes.get(self.given..self.ready).unwrap_or_default();
        let fits = ready.get(..buf.remaining()).unwrap_or(ready);
        if fits.is_empty() {
            return false;
        }
        buf.put_slice(fits);
        self.given += fits.len();
        if self.given == self.ready {
            // It is seldom needed again, and need not be kept for as long as the connection lasts.
            *self = Self {
                bytes: self.bytes.split_off(self.ready),
                ..Self::default()
            };
        }
        true
    }
}
