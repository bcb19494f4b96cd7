//! Request bodies that are read whole, within their bounds.

use bytes::Bytes;
use http_body::Body as _;
use tokio::time::Instant;

use super::{Refusal, Worker};
use crate::{
    core::{problem::Problem, record::Gathered},
    limit::Permit,
    telemetry::metrics::{Limit, Outcome},
    upstream::{Incomplete, Pause, Received, next_piece},
};

/// A body that was read whole, and the room that it takes.
pub(super) struct Buffered {
    pub(super) body: Bytes,
    pub(super) room: Permit,
}

impl Buffered {
    /// Reads a whole body of at most `limit` bytes; `see` gets each piece as it comes, but for one that is known to be the last.
    ///
    /// Dropping the future gives up the rest of the body.
    pub(super) async fn read(
        worker: &Worker,
        limit: usize,
        mut incoming: Received,
        mut see: impl FnMut(&[u8]),
    ) -> Result<Self, Refusal> {
        let proxy = &worker.proxy;
        let too_large = || (Problem::BodyTooLarge { limit }, Outcome::TooLarge);
        let announced = incoming
            .size_hint()
            .exact()
            .map_or(Ok(0), usize::try_from)
            .unwrap_or(usize::MAX);
        if announced > limit {
            return Err(too_large());
        }
        // What is announced has to fit now, but only what comes is counted: heads without bodies take nobody's room.
        let room = proxy.buffered.take(announced);
        let mut room = room.ok_or_else(|| overloaded(worker))?;
        room.shrink_to(0);
        let mut pieces = Pieces::default();
        let mut pause = Pause::new(proxy.body_timeout);
        // Set by the first piece that is not the last: most bodies are one piece, and need no clock.
        let mut enough = None;
        while let Some(piece) = next_piece(&mut incoming, &mut pause).await {
            let frame = piece.map_err(|why| match why {
                Incomplete::Stalled => (Problem::RequestTimeout, Outcome::BadRequest),
                Incomplete::Broken(_) => (
                    Problem::BadRequest("The request's body is broken."),
                    Outcome::BadRequest,
                ),
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if pieces.length + data.len() > limit {
                return Err(too_large());
            }
            if !room.grow_to(pieces.length + data.len()) {
                return Err(overloaded(worker));
            }
            if announced == 0 || pieces.length + data.len() < announced {
                let now = Instant::now();
                let patience = proxy.body_timeout.saturating_mul(BODY_TIMEOUTS);
                if now > *enough.get_or_insert_with(|| now + patience) {
                    return Err((Problem::RequestTimeout, Outcome::BadRequest));
                }
                see(&data);
            }
            pieces.push(data, announced);
            // Most bodies are one piece: they need not be asked for another.
            if incoming.is_end_stream() {
                break;
            }
        }
        let body = pieces.whole();
        Ok(Self { body, room })
    }

    /// Takes room for so many bytes more, which stand beside the body.
    pub(super) fn take_beside(&mut self, worker: &Worker, bytes: usize) -> Result<(), Refusal> {
        if self.room.grow_to(self.room.units().saturating_add(bytes)) {
            Ok(())
        } else {
            Err(overloaded(worker))
        }
    }
}

/// A body that is held has so many times `body_timeout` in all: a piece now and then would hold it for ever.
const BODY_TIMEOUTS: u32 = 10;

fn overloaded(worker: &Worker) -> Refusal {
    worker.proxy.metrics.limit_refused(Limit::MaxBufferedBytes);
    (Problem::Overloaded, Outcome::Overloaded)
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

    /// The whole body, for keeping. What was copied together on the way need not be copied again, unless its buffer grew too large, as it
    /// may where no length was announced.
    pub(super) fn gathered(self) -> Gathered {
        let spare = self.all.capacity() - self.all.len();
        match self.first {
            Some(piece) => Gathered::Shared(piece),
            None if spare > self.all.len() / SPARE => Gathered::Shared(self.all.into()),
            None => Gathered::Own(self.all.into()),
        }
    }
}

impl From<Vec<u8>> for Pieces {
    /// A whole body in a buffer of its own.
    fn from(all: Vec<u8>) -> Self {
        let length = all.len();
        Self {
            first: None,
            all,
            length,
        }
    }
}

/// A body whose buffer has room for one part in so many more has a buffer of its own size.
const SPARE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(pieces: &[&'static [u8]], announced: usize) -> Gathered {
        let mut all = Pieces::default();
        for piece in pieces {
            all.push(Bytes::from_static(piece), announced);
        }
        all.gathered()
    }

    #[test]
    fn only_a_buffer_of_the_bodys_own_size_is_its_own() {
        let own = |gathered: Gathered| match gathered {
            Gathered::Own(body) => Some(body),
            Gathered::Shared(_) => None,
        };
        assert_eq!(own(gathered(&[b"one piece"], 9)), None);
        let body = own(gathered(&[b"two ", b"pieces"], 10));
        assert_eq!(body.as_deref(), Some(&b"two pieces"[..]));
        let grown: Vec<&'static [u8]> = vec![b"a piece "; 9];
        assert_eq!(
            own(gathered(&grown, 0)),
            None,
            "it grew to twice eight pieces"
        );
    }
}
