//! Bytes on their way in: into the connection's own buffer, or straight into one that is given.

use std::{
    future::Future as _,
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BufMut as _;
use tokio::io::AsyncReadExt as _;

use super::{Connection, Unfinished};

/// So much is read at a time at first, and at most.
pub(super) const LEAST_READ: usize = 8 * 1024;
const MOST_READ: usize = 256 * 1024;

impl Connection {
    /// Reads once, behind what was read; how much, 0 for the end.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < self.room / 2 {
            self.input.reserve(self.room);
        }
        let room = self.input.capacity() - self.input.len();
        let read = ready!(pin!(self.wire.read_buf(&mut self.input)).poll(cx))?;
        if read == room {
            self.room = (self.room * 2).min(MOST_READ);
        }
        Poll::Ready(Ok(read))
    }

    /// Reads once, at most so many bytes, straight into `buffer`: first those that were read already. How many; never 0.
    pub(super) fn poll_into(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<u8>,
        most: u64,
    ) -> Poll<Result<u64, Unfinished>> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if !self.input.is_empty() {
            let here = self.input.split_to(most.min(self.input.len()));
            buffer.extend_from_slice(&here);
            return Poll::Ready(Ok(here.len() as u64));
        }
        let mut room = buffer.limit(most);
        match ready!(pin!(self.wire.read_buf(&mut room)).poll(cx))? {
            0 => Poll::Ready(Err(Unfinished::Closed)),
            read => Poll::Ready(Ok(read as u64)),
        }
    }
}
