//! The way out, and the end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{Guard, Phase};
use crate::core::framing::Place;

/// How far the end of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// It has not begun.
    Not,
    /// Our side is closed, and what the client still sends is thrown away: were it left unread, the connection would be reset,
    /// and the last answer could be lost with it.
    Lingering {
        /// Until then.
        until: Instant,
        /// So many bytes at most.
        left: usize,
    },
    /// It is over.
    Done,
}

/// What a client still sends behind the end is thrown away for so long.
const LINGER: Duration = Duration::from_secs(1);

/// And so much of it.
const LINGER_BYTES: usize = 64 << 20;

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.in_time(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.in_time(flushed, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.phase == Phase::Resting {
            // Everything was written, or this would not be the end.
            return Poll::Ready(Ok(()));
        }
        if this.closing == Closing::Not {
            let closed = Pin::new(&mut this.stream).poll_shutdown(cx);
            ready!(this.in_time(closed, cx))?;
            if this.phase == Phase::Tunnel {
                // The other direction is open still, and its bytes are somebody's.
                return Poll::Ready(Ok(()));
            }
            this.closing = Closing::Lingering {
                until: Instant::now() + LINGER,
                left: LINGER_BYTES,
            };
        }
        if let Closing::Lingering { until, left } = this.closing {
            ready!(this.poll_linger(cx, until, left));
            this.closing = Closing::Done;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> Guard<S> {
    /// Passes on what became of a write, unless it has waited too long.
    fn in_time<T>(
        &mut self,
        wrote: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.write_since = None;
            return wrote;
        }
        let since = *self.write_since.get_or_insert_with(Instant::now);
        let due = since + self.times.write;
        if !self.writing.is_armed_for(due, cx) {
            ready!(self.writing.poll_until(due, cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> Guard<S> {
    /// Throws away what the client sends, until it ends, too.
    fn poll_linger(&mut self, cx: &mut Context<'_>, until: Instant, mut left: usize) -> Poll<()> {
        let mut sends = self.phase != Phase::Over
            && (self.phase != Phase::Requests
                || self.requests.place() != Place::Head
                || !self.held.bytes.is_empty());
        let mut space = [0; 8192];
        loop {
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    sends = true;
                    match left.checked_sub(buf.filled().len()) {
                        Some(less) => left = less,
                        None => return Poll::Ready(()),
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                // A client that has sent whole requests alone, and nothing behind them, needs no waiting for.
                Poll::Pending if !sends && left == LINGER_BYTES => return Poll::Ready(()),
                Poll::Pending => {
                    self.closing = Closing::Lingering { until, left };
                    return self.writing.poll_until(until, cx);
                }
            }
        }
    }
}
