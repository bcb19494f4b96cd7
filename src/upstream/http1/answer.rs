//! Bodies of answers, read from the connection by whoever wants them.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::{
    Connection, Unfinished,
    chunked::{Chunked, Piece},
    head::{self, Framing},
};
use crate::{core::trailers, upstream::Pool};

/// An answer's body, and the connection that it comes by. That goes back to its pool when the body has come whole; dropped before, it is
/// closed.
#[derive(Debug)]
pub(in crate::upstream) struct Answer {
    left: Left,
    on: Option<(Box<Connection>, Pool)>,
}

/// What is still to come.
#[derive(Debug)]
enum Left {
    Nothing,
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

impl Answer {
    /// The body behind the head that was read from this connection.
    pub(in crate::upstream) fn new(
        framing: Framing,
        connection: Box<Connection>,
        pool: Pool,
    ) -> Self {
        let mut answer = Self {
            left: match framing {
                Framing::Nothing | Framing::Length(0) => Left::Nothing,
                Framing::Length(length) => Left::Length(length),
                Framing::Chunked => Left::Chunked(Chunked::default()),
                Framing::UntilClose => Left::UntilClose,
            },
            on: Some((connection, pool)),
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
            Left::Chunked(_) | Left::UntilClose => SizeHint::default(),
        }
    }

    /// The next piece. What is left of the request goes out meanwhile.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        let Some((connection, _)) = &mut self.on else {
            return Poll::Ready(None);
        };
        if !connection.is_sent()
            && let Poll::Ready(Err(why)) = connection.poll_send(cx)
        {
            return Poll::Ready(Some(Err(self.broken(why))));
        }
        match ready!(Self::poll_piece(&mut self.left, connection, cx)) {
            Ok(frame) => {
                if self.is_end_stream() {
                    self.ended();
                }
                Poll::Ready(frame.map(Ok))
            }
            Err(why) => Poll::Ready(Some(Err(self.broken(why)))),
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
                Left::Nothing => return Poll::Ready(Ok(None)),
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
        self.left = Left::Nothing;
        self.on = None;
        why
    }

    /// The answer has come whole. A request that has not gone out yet goes out behind it, for its answer may rely on that; then its
    /// connection is closed.
    fn ended(&mut self) {
        let Some((mut connection, pool)) = self.on.take() else {
            return;
        };
        if connection.is_sent() {
            pool.keep(connection);
            return;
        }
        let tasks = pool.tasks().clone();
        tasks.detach(async move {
            // Who wanted the answer has it, and nobody waits for this.
            let _ = poll_fn(|cx| connection.poll_send(cx)).await;
        });
    }
}
