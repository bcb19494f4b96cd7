//! Answer bodies on their way to a client.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::{
    limit::Permit,
    upstream::{Broken, UpstreamBody},
};

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// Whole and shared: a replay, a captured answer, an error. `None`: nothing (more) to send.
    Whole(Option<Bytes>),
    /// Whole, with trailers behind it.
    Trailed(Trailed),
    /// As the upstream sends it.
    Streamed(UpstreamBody),
    /// What was read of a keyed request's answer before it turned out not to be kept, then the rest as it comes.
    Resumed(Box<Resumed>),
    /// As an execution hands it on, which reads to the end whatever becomes of the client.
    Piped(Pipe),
}

/// An answer that passes to one client alone.
#[derive(Debug)]
pub struct Resumed {
    /// In reverse order.
    pub(super) read: Vec<Frame<Bytes>>,
    /// What follows.
    pub(super) rest: UpstreamBody,
    /// Its call still counts as an execution.
    pub(super) _room: Permit,
}

/// A whole body and its trailers, each until it is sent.
#[derive(Debug)]
pub struct Trailed {
    body: Option<Bytes>,
    trailers: Option<Box<HeaderMap>>,
}

/// Why an answer's body did not come whole; its client's connection then breaks off too.
#[derive(Debug, thiserror::Error)]
pub enum CutOff {
    /// The upstream's did.
    #[error(transparent)]
    Upstream(#[from] Broken),
    /// The execution gave it up.
    #[error("the rest of the answer was given up")]
    GivenUp,
}

/// The client's end of a pipe.
#[derive(Debug)]
pub struct Pipe {
    pieces: mpsc::Receiver<Piece>,
    ended: bool,
}

/// What goes through a pipe.
#[derive(Debug)]
pub(super) enum Piece {
    /// A part of the body.
    Frame(Frame<Bytes>),
    /// It is whole.
    End,
    /// It broke off.
    Broken(Broken),
}

/// So many pieces may wait in a pipe for a client that reads slowly.
const PIPE_LENGTH: usize = 4;

impl AnswerBody {
    /// A body at hand.
    #[must_use]
    pub fn whole(body: Bytes) -> Self {
        Self::Whole((!body.is_empty()).then_some(body))
    }

    /// A body at hand and the fields behind it.
    pub(super) fn with_trailers(body: Bytes, trailers: HeaderMap) -> Self {
        Self::Trailed(Trailed {
            body: (!body.is_empty()).then_some(body),
            trailers: Some(Box::new(trailers)),
        })
    }

    /// A body that comes through a pipe, and the pipe's other end. A pipe that is dropped before [`Piece::End`] breaks the body off.
    pub(super) fn piped() -> (mpsc::Sender<Piece>, Self) {
        let (sender, pieces) = mpsc::channel(PIPE_LENGTH);
        let ended = false;
        (sender, Self::Piped(Pipe { pieces, ended }))
    }
}

impl Trailed {
    fn next(&mut self) -> Option<Frame<Bytes>> {
        match self.body.take() {
            Some(body) => Some(Frame::data(body)),
            None => self.trailers.take().map(|fields| Frame::trailers(*fields)),
        }
    }
}

impl Pipe {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = ready!(self.pieces.poll_recv(cx));
        let frame = match piece {
            Some(Piece::Frame(frame)) => return Poll::Ready(Some(Ok(frame))),
            Some(Piece::End) => None,
            Some(Piece::Broken(error)) => Some(Err(error.into())),
            None => Some(Err(CutOff::GivenUp)),
        };
        self.ended = true;
        Poll::Ready(frame)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Trailed(trailed) => Poll::Ready(trailed.next().map(Ok)),
            Self::Streamed(rest) => upstream_frame(rest, cx),
            Self::Resumed(resumed) => match resumed.read.pop() {
                Some(piece) => Poll::Ready(Some(Ok(piece))),
                None => upstream_frame(&mut resumed.rest, cx),
            },
            Self::Piped(pipe) => pipe.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Trailed(Trailed { body, trailers }) => body.is_none() && trailers.is_none(),
            Self::Streamed(rest) => rest.is_end_stream(),
            Self::Resumed(resumed) => resumed.read.is_empty() && resumed.rest.is_end_stream(),
            Self::Piped(pipe) => pipe.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Streamed(rest) => rest.size_hint(),
            Self::Resumed(resumed) => {
                let Resumed { read, rest, .. } = &**resumed;
                // A body with trailers has no length: they would not be sent behind one.
                let here = read.iter().map(|piece| piece.data_ref().map(Bytes::len));
                match (here.sum::<Option<usize>>(), rest.size_hint().exact()) {
                    (Some(here), Some(left)) => SizeHint::with_exact(here as u64 + left),
                    _ => SizeHint::default(),
                }
            }
            Self::Trailed(_) | Self::Piped(_) => SizeHint::default(),
        }
    }
}

fn upstream_frame(
    body: &mut UpstreamBody,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
    Pin::new(body)
        .poll_frame(cx)
        .map(|frame| frame.map(|frame| frame.map_err(CutOff::Upstream)))
}
