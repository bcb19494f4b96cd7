//! Whose turn it is in each request of an HTTP/2 connection: the proxy's, or the client's, which has been sent as much as it allows
//! (RFC 9113, section 5.2) and does not read on.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::frames::Frames;
use crate::proxy::{AnswerBody, CutOff};

/// More than a connection has requests at a time, by those that were reset and are still being put away.
const PLACES: usize = 256;

// What a place holds; any other value is the client's turn, since so many milliseconds (and two) after the connection began.
const FREE: u64 = 0;
const OURS: u64 = 1;
const THEIRS: u64 = 2;

/// All turns of one connection.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<[AtomicU64]>);

impl Turns {
    pub(super) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(FREE)).collect())
    }

    /// A request that begins; until it is dropped.
    pub(super) fn begin(&self) -> Turn {
        let take = |place: &AtomicU64| {
            place
                .compare_exchange(FREE, OURS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        Turn {
            place: self.0.iter().position(take),
            turns: self.clone(),
        }
    }

    /// How many requests there are, and since when one of them has waited for its client.
    pub(super) fn look(&self) -> (usize, Option<Duration>) {
        let mut count = 0;
        let mut oldest = None;
        for place in self.0.iter() {
            let value = place.load(Ordering::Relaxed);
            count += usize::from(value != FREE);
            if let Some(since) = value.checked_sub(THEIRS) {
                oldest = Some(oldest.map_or(since, |oldest: u64| oldest.min(since)));
            }
        }
        (count, oldest.map(Duration::from_millis))
    }
}

/// One request's turn.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    /// `None`: there was no place left, and nobody looks.
    place: Option<usize>,
}

impl Turn {
    fn becomes(&self, value: u64) {
        let place = self.place.and_then(|place| self.turns.0.get(place));
        if let Some(place) = place {
            place.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.becomes(FREE);
    }
}

/// An answer's body, which is asked for its next piece when the client has room for it.
pub(super) struct Paced {
    body: AnswerBody,
    turn: Turn,
    frames: Frames,
}

impl Paced {
    pub(super) fn new(body: AnswerBody, turn: Turn, frames: Frames) -> Self {
        Self { body, turn, frames }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let value = match &frame {
            Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                let now = u64::try_from(this.frames.now().as_millis()).unwrap_or(u64::MAX);
                now.saturating_add(THEIRS)
            }
            Poll::Ready(_) | Poll::Pending => OURS,
        };
        this.turn.becomes(value);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_has_the_turn_from_a_piece_until_the_next_is_asked_for() {
        let (turns, frames) = (Turns::new(), Frames::new(1024));
        let first = turns.begin();
        let other = turns.begin();
        assert_eq!(turns.look(), (2, None));
        let body = AnswerBody::whole(Bytes::from_static(b"body"));
        let mut body = Paced::new(body, first, frames.clone());
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(body.frame().await.is_some());
        assert_eq!(turns.look(), (2, Some(Duration::from_secs(3))));
        assert!(body.frame().await.is_none());
        assert_eq!(turns.look(), (2, None));
        drop((body, other));
        assert_eq!(turns.look(), (0, None));
    }

    #[test]
    fn more_requests_than_places_are_not_looked_at() {
        let turns = Turns::new();
        let all: Vec<_> = (0..PLACES + 3).map(|_| turns.begin()).collect();
        assert_eq!(turns.look(), (PLACES, None));
        drop(all);
        assert_eq!(turns.look(), (0, None));
    }
}
