//! The stream under an HTTP/2 connection: it passes bytes, and lets [`Watch`] look at the frames in them.
//!
//! A client that sends too much of what costs it nothing is told so, where that can be put, and the stream ends.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::core::frames::{Excess, Watch};

/// What is known of one connection. Clones share it; nobody else's lock is ever waited for, since one task does it all.
#[derive(Clone, Debug)]
pub(super) struct Frames(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) watch: Watch,
    /// Since when the client takes nothing at all.
    pub(super) blocked_since: Option<Duration>,
    /// Why the connection was ended.
    pub(super) excess: Option<Excess>,
}

impl Frames {
    /// A connection that begins now, with heads of at most so many bytes.
    pub(super) fn new(max_head_bytes: usize) -> Self {
        let state = State {
            watch: Watch::new(max_head_bytes),
            blocked_since: None,
            excess: None,
        };
        Self(Arc::new(Inner {
            began: Instant::now(),
            state: Mutex::new(state),
        }))
    }

    /// How long the connection has been there.
    pub(super) fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// The point in time so long after its beginning.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.0.began + at
    }

    /// Looks at what is known.
    pub(super) fn on<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.state.lock())
    }

    fn received(&self, bytes: &[u8]) -> Result<(), Excess> {
        let now = self.now();
        self.on(|state| {
            let within = state.watch.received(bytes, now);
            state.excess = within.err();
            within
        })
    }

    /// Notes what became of a write of `pieces`.
    fn wrote<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>, outcome: &Poll<io::Result<usize>>) {
        let now = self.now();
        self.on(|state| match outcome {
            Poll::Pending => {
                state.blocked_since.get_or_insert(now);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Ready(Ok(count)) => {
                state.blocked_since = None;
                let mut left = *count;
                for piece in pieces {
                    let here = left.min(piece.len());
                    state.watch.sent(piece.get(..here).unwrap_or_default(), now);
                    left -= here;
                    if left == 0 {
                        break;
                    }
                }
            }
        });
    }
}

/// A stream whose frames are watched.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    frames: Frames,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, frames: Frames) -> Self {
        Self { stream, frames }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let read = buf.filled().get(before..).unwrap_or_default();
        let Err(excess) = this.frames.received(read) else {
            return Poll::Ready(Ok(()));
        };
        // Told if there is room for it, never waited for.
        if let Some(last) = this.frames.on(|state| state.watch.last_word(excess))
            && let Poll::Ready(Ok(_)) = Pin::new(&mut this.stream).poll_write(cx, &last)
        {
            let _ = Pin::new(&mut this.stream).poll_flush(cx);
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.frames.wrote([buf].into_iter(), &outcome);
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.frames.wrote(bufs.iter().map(|buf| &**buf), &outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
