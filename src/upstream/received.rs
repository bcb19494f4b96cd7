//! Bodies as they are received, on either side, and whether they have come whole.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http1::Unfinished;
use crate::core::trailers;

/// A body from a client or an upstream. Its trailers are clean.
///
/// hyper takes a stream of HTTP/2 that was reset with `NO_ERROR` for one that has ended. Here an end has to be shown: by the stream's own, by
/// trailers, or by as many bytes as were announced.
#[derive(Debug)]
pub struct Received {
    incoming: Incoming,
    end: End,
}

/// What is believed of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is as hyper says: over HTTP/1, or behind trailers.
    Told,
    /// Over HTTP/2.
    ToBeShown,
}

/// A body that did not come whole.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// Its connection broke, or its framing did.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The same, of an answer over HTTP/1.
    #[error(transparent)]
    Http1(#[from] Unfinished),
    /// Its stream was reset before its end, as if nothing were wrong with that.
    #[error("its stream was reset before its end")]
    CutOff,
}

impl Received {
    /// The body of a message of this version.
    #[must_use]
    pub fn new(incoming: Incoming, version: Version) -> Self {
        let end = if version == Version::HTTP_2 {
            End::ToBeShown
        } else {
            End::Told
        };
        Self { incoming, end }
    }

    fn is_cut_off(&self) -> bool {
        self.end == End::ToBeShown
            && !self.incoming.is_end_stream()
            && self.incoming.size_hint().exact() != Some(0)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.incoming).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(mut frame)) => {
                if let Some(fields) = frame.trailers_mut() {
                    trailers::clean(fields);
                    this.end = End::Told;
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None if this.is_cut_off() => {
                this.end = End::Told; // it is told once
                Some(Err(Broken::CutOff))
            }
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
