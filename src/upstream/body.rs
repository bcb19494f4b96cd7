//! Bodies on their way to the upstream and back.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::{
    http1::Answer,
    multiplexed::Stream,
    received::{Broken, Received},
};

/// A request body as it is sent.
#[derive(Debug)]
pub enum OutgoingBody {
    /// Whole, and at hand.
    Whole(Option<Bytes>),
    /// As the client sends it.
    Streamed(Streamed),
}

/// A client's body passing through.
#[derive(Debug)]
pub struct Streamed {
    incoming: Received,
    pause: Pause,
    upload: Arc<Upload>,
    /// A piece that was taken already.
    ahead: Option<Box<Result<Frame<Bytes>, Incomplete>>>,
}

/// How far a streamed request body is, seen from outside while its connection has it.
#[derive(Debug)]
pub struct Upload {
    started: Instant,
    /// When the last piece was taken, in milliseconds after `started`; `0`: none was yet.
    taken_ms: AtomicU64,
    stage: AtomicU8,
}

/// Where an upload stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadStage {
    /// Nothing of it has been asked for yet: the connection is still being made.
    NotBegun,
    /// It goes on; the last piece was taken at this point.
    Going(Instant),
    /// It has gone out whole, at this point.
    Ended(Instant),
    /// The client did not send the next piece in time.
    Stalled,
    /// The client went away in the middle of it, or its framing broke.
    Broken,
}

// The values of `Upload::stage`; it goes up only.
const GOING: u8 = 0;
const ENDED: u8 = 1;
const STALLED: u8 = 2;
const BROKEN: u8 = 3;

impl Upload {
    fn new(started: Instant) -> Self {
        Self {
            started,
            taken_ms: AtomicU64::new(0),
            stage: AtomicU8::new(GOING),
        }
    }

    /// Where it stands now.
    #[must_use]
    pub fn stage(&self) -> UploadStage {
        let taken_ms = self.taken_ms.load(Ordering::Acquire);
        let last = self.started + Duration::from_millis(taken_ms);
        match self.stage.load(Ordering::Acquire) {
            GOING if taken_ms == 0 => UploadStage::NotBegun,
            GOING => UploadStage::Going(last),
            ENDED => UploadStage::Ended(last),
            STALLED => UploadStage::Stalled,
            _ => UploadStage::Broken,
        }
    }

    fn took_a_piece(&self) {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.taken_ms.store(elapsed.max(1), Ordering::Release);
    }

    fn becomes(&self, stage: u8) {
        self.took_a_piece();
        self.stage.store(stage, Ordering::Release);
    }
}

/// Why a body did not come whole.
#[derive(Debug)]
pub enum Incomplete {
    /// The next piece did not come in time.
    Stalled,
    /// Its connection broke, or its framing did.
    Broken(Broken),
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled => f.write_str("the next piece of the body did not come in time"),
            Self::Broken(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for Incomplete {}

impl OutgoingBody {
    /// A body at hand; an empty one is none.
    #[must_use]
    pub fn whole(body: Bytes) -> Self {
        Self::Whole((!body.is_empty()).then_some(body))
    }

    /// A client's body as it comes, each piece within `body_timeout`.
    #[must_use]
    pub fn streamed(
        incoming: Received,
        body_timeout: Duration,
        now: Instant,
    ) -> (Self, Arc<Upload>) {
        let upload = Arc::new(Upload::new(now));
        let streamed = Streamed {
            incoming,
            pause: Pause::new(body_timeout),
            upload: Arc::clone(&upload),
            ahead: None,
        };
        (Self::Streamed(streamed), upload)
    }

    /// Takes the first piece, if it has come. A body that has ended without any becomes none: over HTTP/2 nothing else tells the two apart.
    pub(super) fn look_ahead(&mut self) {
        let Self::Streamed(streamed) = self else {
            return;
        };
        let mut cx = Context::from_waker(Waker::noop());
        match streamed.poll_frame(&mut cx) {
            Poll::Pending => {}
            Poll::Ready(None) => *self = Self::Whole(None),
            Poll::Ready(Some(Ok(frame)))
                if streamed.incoming.is_end_stream()
                    && frame.data_ref().is_some_and(Bytes::is_empty) =>
            {
                *self = Self::Whole(None);
            }
            Poll::Ready(Some(frame)) => streamed.ahead = Some(Box::new(frame)),
        }
    }
}

impl Streamed {
    /// How long a pause between two of its pieces may be.
    pub(super) const fn patience(&self) -> Duration {
        self.pause.limit
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Incomplete>>> {
        if let Some(frame) = self.ahead.take() {
            return Poll::Ready(Some(*frame));
        }
        let frame = ready!(poll_piece(&mut self.incoming, &mut self.pause, cx));
        match &frame {
            None => self.upload.becomes(ENDED),
            Some(Err(Incomplete::Stalled)) => self.upload.becomes(STALLED),
            Some(Err(Incomplete::Broken(_))) => self.upload.becomes(BROKEN),
            Some(Ok(_)) if self.incoming.is_end_stream() => self.upload.becomes(ENDED),
            Some(Ok(_)) => self.upload.took_a_piece(),
        }
        Poll::Ready(frame)
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = Incomplete;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Incomplete>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Streamed(streamed) => streamed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Streamed(streamed) => {
                streamed.ahead.is_none() && streamed.incoming.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Streamed(streamed) => streamed.incoming.size_hint(),
        }
    }
}

/// The next piece of a client's body, or [`Incomplete::Stalled`].
///
/// Dropping the future loses nothing: a piece that has come is still there.
pub(crate) async fn next_piece(
    incoming: &mut Received,
    pause: &mut Pause,
) -> Option<Result<Frame<Bytes>, Incomplete>> {
    poll_fn(|cx| poll_piece(incoming, pause, cx)).await
}

fn poll_piece(
    incoming: &mut Received,
    pause: &mut Pause,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Incomplete>>> {
    match Pin::new(incoming).poll_frame(cx) {
        Poll::Ready(frame) => {
            pause.over();
            Poll::Ready(frame.map(|frame| frame.map_err(Incomplete::Broken)))
        }
        Poll::Pending => {
            ready!(pause.poll(cx));
            Poll::Ready(Some(Err(Incomplete::Stalled)))
        }
    }
}

/// The time that a pause between two pieces may take. The timer exists only once there is a pause.
#[derive(Debug)]
pub(crate) struct Pause {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    running: bool,
}

impl Pause {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            timer: None,
            running: false,
        }
    }

    fn over(&mut self) {
        self.running = false;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        if !self.running {
            self.running = true;
            timer.as_mut().reset(Instant::now() + self.limit);
        }
        timer.as_mut().poll(cx)
    }
}

/// An answer's body as the upstream sends it. Its connection goes back to the pool when the body has come whole; dropped before that, the
/// connection is closed, or the stream is reset.
///
/// A failure is told a turn later than it is found: what came before it, which may be the head alone, is sent to the client first; hyper
/// drops what it still holds of an answer whose body has failed.
#[derive(Debug)]
pub struct UpstreamBody(Source);

#[derive(Debug)]
enum Source {
    /// A connection that serves nothing else meanwhile.
    Http1(Answer),
    /// A place on a connection that serves many; it is given up behind the body's end.
    Http2(Received, Option<Stream>),
    /// A connection that serves nothing else ever, and is driven elsewhere.
    Alone(Received),
    /// Nothing any more, for this reason, until it is told.
    Failed(Option<Broken>),
}

impl UpstreamBody {
    pub(super) const fn http1(answer: Answer) -> Self {
        Self(Source::Http1(answer))
    }

    pub(super) fn http2(incoming: Received, stream: Stream) -> Self {
        let stream = (!incoming.is_end_stream()).then_some(stream);
        Self(Source::Http2(incoming, stream))
    }

    /// The same on a connection that serves no other request.
    pub(super) const fn alone(incoming: Received) -> Self {
        Self(Source::Alone(incoming))
    }

    /// Whether [`Self::read_into`] reads it: it comes over HTTP/1, and has a length.
    pub(crate) const fn has_length(&self) -> bool {
        matches!(&self.0, Source::Http1(answer) if answer.has_length())
    }

    /// Reads some of a body that has a length straight from its connection, behind what is in `buffer`. Once it has come whole, it has none.
    ///
    /// Dropping the future loses nothing: what was read is in `buffer`.
    pub(crate) async fn read_into(&mut self, buffer: &mut Vec<u8>) -> Result<(), Broken> {
        match &mut self.0 {
            Source::Http1(answer) => poll_fn(|cx| answer.poll_into(cx, buffer))
                .await
                .map_err(Broken::Http1),
            Source::Http2(..) | Source::Alone(_) => Ok(()),
            Source::Failed(why) => why.take().map_or(Ok(()), Err),
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let frame = match &mut this.0 {
            Source::Http1(answer) => {
                ready!(answer.poll_frame(cx)).map(|frame| frame.map_err(Broken::Http1))
            }
            Source::Http2(incoming, stream) => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                if !matches!(&frame, Some(Ok(_))) || incoming.is_end_stream() {
                    *stream = None;
                }
                frame
            }
            Source::Alone(incoming) => ready!(Pin::new(incoming).poll_frame(cx)),
            Source::Failed(why) => return Poll::Ready(why.take().map(Err)),
        };
        match frame {
            Some(Err(why)) => {
                this.0 = Source::Failed(Some(why));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Http1(answer) => answer.is_end_stream(),
            Source::Http2(incoming, _) | Source::Alone(incoming) => incoming.is_end_stream(),
            Source::Failed(_) => false, // it never came to its end
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Http1(answer) => answer.size_hint(),
            Source::Http2(incoming, _) | Source::Alone(incoming) => incoming.size_hint(),
            Source::Failed(_) => SizeHint::default(),
        }
    }
}
