//! Bodies of answers, read from the connection by whoever wants them.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::{
    Connection, Unfinished,
    chunked::{Chunked, Piece},
    early::Early,
    head::{self, Framing},
};
use crate::{core::trailers, upstream::Pool};

/// An answer's body, and the connection that it comes by. That goes back to its pool when the body has come whole; dropped before, it is
/// closed.
#[derive(Debug)]
pub(in crate::upstream) struct Answer {
    left: Left,
    on: Option<On>,
}

/// What it comes by.
#[derive(Debug)]
enum On {
    /// A connection that the request has gone out by, whole.
    Alone(Box<Connection>, Pool),
    /// One that it still goes out by.
    Shared(Early),
}

/// What is still to come.
#[derive(Debug)]
enum Left {
    Nothing,
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    /// Something, but it does not come.
    Broken,
}

impl Answer {
    /// The body behind the head that was read from this connection.
    pub(in crate::upstream) fn new(
        framing: Framing,
        connection: Box<Connection>,
        pool: Pool,
    ) -> Self {
        let on = if connection.is_sent() {
            On::Alone(connection, pool)
        } else {
            On::Shared(Early::new(connection, &pool))
        };
        let mut answer = Self {
            left: match framing {
                Framing::Nothing | Framing::Length(0) => Left::Nothing,
                Framing::Length(length) => Left::Length(length),
                Framing::Chunked => Left::Chunked(Chunked::default()),
                Framing::UntilClose => Left::UntilClose,
            },
            on: Some(on),
        };
        if answer.is_end_stream() {
            answer.ended();
        }
        answer
    }

    /// Whether all of it was read.
    pub(in crate::upstream) const fn is_end_stream(&self) -> bool {
        matches!(self.left, Left::Nothing)
    }

    /// How much is left.
    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self.left {
            Left::Nothing => SizeHint::with_exact(0),
            Left::Length(left) => SizeHint::with_exact(left),
            Left::Chunked(_) | Left::UntilClose | Left::Broken => SizeHint::default(),
        }
    }

    /// The next piece.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        let left = &mut self.left;
        let piece = match &mut self.on {
            None => return Poll::Ready(None),
            Some(On::Alone(connection, _)) => Self::poll_piece(left, connection, cx),
            Some(On::Shared(early)) => {
                early.poll_read(cx, |connection, cx| Self::poll_piece(left, connection, cx))
            }
        };
        match ready!(piece) {
            Ok(frame) => {
                if self.is_end_stream() {
                    self.ended();
                }
                Poll::Ready(frame.map(Ok))
            }
            Err(why) => Poll::Ready(Some(Err(self.broken(why)))),
        }
    }

    /// Whether a length was announced, and something of it is left.
    pub(in crate::upstream) const fn has_length(&self) -> bool {
        matches!(self.left, Left::Length(_))
    }

    /// Reads some of a body that has a length, behind what is in `buffer`.
    pub(in crate::upstream) fn poll_into(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<u8>,
    ) -> Poll<Result<(), Unfinished>> {
        let Left::Length(left) = &mut self.left else {
            return Poll::Ready(Ok(()));
        };
        let read = match &mut self.on {
            None => return Poll::Ready(Ok(())),
            Some(On::Alone(connection, _)) => connection.poll_into(cx, buffer, *left),
            Some(On::Shared(early)) => {
                early.poll_read(cx, |connection, cx| connection.poll_into(cx, buffer, *left))
            }
        };
        match ready!(read) {
            Ok(read) => {
                *left = left.saturating_sub(read);
                if *left == 0 {
                    self.left = Left::Nothing;
                    self.ended();
                }
                Poll::Ready(Ok(()))
            }
            Err(why) => Poll::Ready(Err(self.broken(why))),
        }
    }

    fn poll_piece(
        left: &mut Left,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Frame<Bytes>>, Unfinished>> {
        loop {
            let input = &mut connection.input;
            match left {
                Left::Nothing | Left::Broken => return Poll::Ready(Ok(None)),
                Left::Length(count) if !input.is_empty() => {
                    let here = usize::try_from(*count).unwrap_or(usize::MAX);
                    let data = input.split_to(here.min(input.len())).freeze();
                    *count -= data.len() as u64;
                    if *count == 0 {
                        *left = Left::Nothing;
                    }
                    return Poll::Ready(Ok(Some(Frame::data(data))));
                }
                Left::UntilClose if !input.is_empty() => {
                    return Poll::Ready(Ok(Some(Frame::data(input.split().freeze()))));
                }
                Left::Chunked(chunked) => match chunked.next(input) {
                    Ok(Piece::Data(data)) => return Poll::Ready(Ok(Some(Frame::data(data)))),
                    Ok(Piece::End(lines)) => {
                        let mut fields = head::trailers(&lines).map_err(Unfinished::Malformed)?;
                        trailers::clean(&mut fields);
                        *left = Left::Nothing;
                        let frame = (!fields.is_empty()).then(|| Frame::trailers(fields));
                        return Poll::Ready(Ok(frame));
                    }
                    Ok(Piece::More) => {}
                    Err(why) => return Poll::Ready(Err(Unfinished::Malformed(why))),
                },
                Left::Length(_) | Left::UntilClose => {}
            }
            if ready!(connection.poll_fill(cx))? == 0 {
                if let Left::UntilClose = left {
                    *left = Left::Nothing;
                    return Poll::Ready(Ok(None));
                }
                return Poll::Ready(Err(Unfinished::Closed));
            }
        }
    }

    fn broken(&mut self, why: Unfinished) -> Unfinished {
        self.left = Left::Broken;
        self.on = None;
        why
    }

    /// The answer has come whole.
    fn ended(&mut self) {
        match self.on.take() {
            Some(On::Alone(mut connection, pool)) => {
                connection.answered();
                pool.keep(connection);
            }
            Some(On::Shared(early)) => early.answered(),
            None => {}
        }
    }
}
