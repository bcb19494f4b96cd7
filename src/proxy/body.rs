//! Bodies: those of answers on their way to a client, and the pieces of one that is read whole.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::UpstreamBody;

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// Whole and shared: a replay, a captured answer, an error. `None`: nothing (more) to send.
    Whole(Option<Bytes>),
    /// As the upstream sends it.
    Streamed(UpstreamBody),
    /// What was read of an answer before it turned out not to be kept, then the rest as it comes.
    Resumed {
        /// In reverse order.
        read: Vec<Bytes>,
        /// What follows.
        rest: UpstreamBody,
    },
}

impl AnswerBody {
    /// A body at hand.
    #[must_use]
    pub fn whole(body: Bytes) -> Self {
        Self::Whole((!body.is_empty()).then_some(body))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Streamed(rest) => Pin::new(rest).poll_frame(cx),
            Self::Resumed { read, rest } => match read.pop() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => Pin::new(rest).poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Streamed(rest) => rest.is_end_stream(),
            Self::Resumed { read, rest } => read.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Streamed(rest) => rest.size_hint(),
            Self::Resumed { read, rest } => {
                let here: u64 = read.iter().map(|piece| piece.len() as u64).sum();
                match rest.size_hint().exact() {
                    Some(left) => SizeHint::with_exact(here + left),
                    None => SizeHint::default(),
                }
            }
        }
    }
}

/// The pieces of a body until it is whole. One piece is never copied.
#[derive(Default)]
pub(super) struct Pieces {
    first: Option<Bytes>,
    all: Vec<u8>,
    length: usize,
}

impl Pieces {
    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds a piece; `announced` is the length of the whole, as far as it is known.
    pub(super) fn push(&mut self, piece: Bytes, announced: usize) {
        self.length += piece.len();
        match &self.first {
            None if self.all.is_empty() => self.first = Some(piece),
            None => self.all.extend_from_slice(&piece),
            Some(first) => {
                self.all.reserve_exact(announced.max(self.length));
                self.all.extend_from_slice(first);
                self.all.extend_from_slice(&piece);
                self.first = None;
            }
        }
    }

    /// The whole body.
    pub(super) fn whole(self) -> Bytes {
        self.first.unwrap_or_else(|| self.all.into())
    }
}
