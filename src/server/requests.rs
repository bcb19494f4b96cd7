//! The requests of one connection, counted from their head to the end of their answer.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::proxy::{AnswerBody, CutOff};

/// The requests of one connection that are under way: from their head to the end of their answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<AtomicUsize>);

impl Requests {
    /// Counts one more, until what it gives is dropped.
    pub(super) fn start(&self) -> Running {
        self.0.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(&self.0))
    }

    /// Completes when there was no request for `pause`.
    pub(super) async fn none_for(&self, pause: Duration) {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            tokio::time::sleep(pause).await;
            if before == 0 && self.0.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

/// One request that is under way; until it is dropped.
#[derive(Debug)]
pub(super) struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body, with which its request ends.
pub(super) struct Tracked {
    body: AnswerBody,
    _running: Running,
}

impl Tracked {
    pub(super) fn new(body: AnswerBody, running: Running) -> Self {
        Self {
            body,
            _running: running,
        }
    }
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
