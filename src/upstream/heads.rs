//! The heads of answers on connections that are hyper's, looked at as their bytes pass: what its parser lets through and another would read
//! otherwise. Those connections may switch protocols; all others are read in `http1`.
//!
//! Only heads are looked at; a body costs nothing here. A head that is refused breaks the connection: its request may have been
//! executed.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::wire::Wire;

/// The most that one head may have, in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// So many interim answers (1xx) may come before the answer.
pub(super) const MAX_INTERIM: usize = 1000;

/// Why an answer's head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.as_str())]
pub(super) enum BadHead {
    BareLineFeed,
    NoStatusLine,
    TooLarge,
    TooManyFields,
    TooManyInterim,
}

impl BadHead {
    /// What is wrong with it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::BareLineFeed => "a line of an answer's head ends with a bare LF",
            Self::NoStatusLine => "an answer begins with an empty line",
            Self::TooLarge => "an answer's head is over 64 KiB",
            Self::TooManyFields => "an answer's head has over 100 fields",
            Self::TooManyInterim => "over 1000 interim answers came before the answer",
        }
    }
}

/// Where in the answers to one request the bytes are.
#[derive(Debug, Default)]
pub(super) struct Heads {
    place: Place,
    interim: usize,
}

#[derive(Debug, Default)]
enum Place {
    /// No request waits for an answer, or its final head has passed.
    #[default]
    Past,
    Head(Head),
}

#[derive(Debug, Default)]
struct Head {
    bytes: usize,
    /// Bytes of the line so far, without its end.
    line: usize,
    /// The byte before the one that comes next.
    last: u8,
    /// What the status line begins with: `HTTP/1.1 200`.
    start: [u8; 12],
}

impl Heads {
    /// Of a request that is about to be sent.
    fn expected() -> Self {
        Self {
            place: Place::Head(Head::default()),
            interim: 0,
        }
    }

    /// Looks at the bytes that come next.
    fn pass(&mut self, mut bytes: &[u8]) -> Result<(), BadHead> {
        while let Place::Head(head) = &mut self.place {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                return head.goes_on(bytes);
            };
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            head.goes_on(line)?;
            if head.last != b'\r' {
                return Err(BadHead::BareLineFeed);
            }
            // The CR is the line's last byte so far.
            let empty = head.line == 1;
            let first = head.bytes == head.line;
            head.bytes += 1;
            head.line = 0;
            head.last = b'\n';
            if empty && first {
                return Err(BadHead::NoStatusLine);
            }
            if empty {
                self.place = if head.is_interim() {
                    self.interim += 1;
                    if self.interim > MAX_INTERIM {
                        return Err(BadHead::TooManyInterim);
                    }
                    Place::Head(Head::default())
                } else {
                    Place::Past
                };
            }
        }
        Ok(())
    }
}

impl Head {
    fn goes_on(&mut self, bytes: &[u8]) -> Result<(), BadHead> {
        if let Some(room) = self.start.get_mut(self.bytes..) {
            for (kept, byte) in room.iter_mut().zip(bytes) {
                *kept = *byte;
            }
        }
        self.bytes += bytes.len();
        self.line += bytes.len();
        self.last = bytes.last().copied().unwrap_or(self.last);
        if self.bytes > MAX_HEAD_BYTES {
            return Err(BadHead::TooLarge);
        }
        Ok(())
    }

    /// 1xx, but 101: that one is final (RFC 9110, section 15.2).
    fn is_interim(&self) -> bool {
        match self.start.split_at(9) {
            (_, b"101") => false,
            (_, [first, ..]) => *first == b'1',
            _ => false,
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// What a connection's two ends know of each other: whoever sends a request says that its answer begins with the next byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn(Arc<AtomicBool>);

impl Turn {
    /// A request is about to be sent, and all of the answer before was read.
    pub(super) fn begins(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn has_begun(&self) -> bool {
        // The load alone is what a body's every read costs.
        self.0.load(Ordering::Acquire) && self.0.swap(false, Ordering::AcqRel)
    }
}

/// A connection whose answers' heads are looked at.
#[derive(Debug)]
pub(super) struct Watching {
    wire: Wire,
    heads: Heads,
    turn: Turn,
    /// The upstream takes no more.
    deaf: bool,
}

impl Watching {
    /// An upstream that closes its connection may have answered before: what it said is still to be read, so that a write that fails is
    /// no end. What is written from here on goes nowhere.
    fn unless_deaf<T>(&mut self, wrote: Poll<io::Result<T>>, lost: T) -> Poll<io::Result<T>> {
        match wrote {
            Poll::Ready(Err(error)) if is_closed(&error) => {
                self.deaf = true;
                Poll::Ready(Ok(lost))
            }
            wrote => wrote,
        }
    }

    pub(super) fn new(wire: Wire) -> (Self, Turn) {
        let turn = Turn::default();
        let watching = Self {
            wire,
            heads: Heads::default(),
            turn: turn.clone(),
            deaf: false,
        };
        (watching, turn)
    }
}

impl AsyncRead for Watching {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.wire).poll_read(cx, buf))?;
        if this.turn.has_begun() {
            this.heads = Heads::expected();
        }
        let new = buf.filled().get(before..).unwrap_or_default();
        let passed = this.heads.pass(new);
        Poll::Ready(passed.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why)))
    }
}

impl AsyncWrite for Watching {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.deaf {
            return Poll::Ready(Ok(buf.len()));
        }
        let wrote = Pin::new(&mut this.wire).poll_write(cx, buf);
        this.unless_deaf(wrote, buf.len())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.deaf {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut this.wire).poll_flush(cx);
        this.unless_deaf(flushed, ())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let all = bufs.iter().map(|buf| buf.len()).sum();
        if this.deaf {
            return Poll::Ready(Ok(all));
        }
        let wrote = Pin::new(&mut this.wire).poll_write_vectored(cx, bufs);
        this.unless_deaf(wrote, all)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of these bytes, in one piece and one by one.
    fn passed(bytes: &str) -> Result<bool, BadHead> {
        let whole = {
            let mut heads = Heads::expected();
            heads.pass(bytes.as_bytes()).map(|()| is_past(&heads))
        };
        let mut heads = Heads::expected();
        let one_by_one = bytes
            .bytes()
            .try_for_each(|byte| heads.pass(&[byte]))
            .map(|()| is_past(&heads));
        assert_eq!(whole, one_by_one, "{bytes:?}");
        whole
    }

    fn is_past(heads: &Heads) -> bool {
        matches!(heads.place, Place::Past)
    }

    #[test]
    fn a_head_passes_and_its_body_is_not_looked_at() {
        assert_eq!(passed("HTTP/1.1 200 OK\r\nA: b\r\n\r\na\nb\n\n"), Ok(true));
        assert_eq!(passed("HTTP/1.1 200 OK\r\nA: b\r\n"), Ok(false));
        assert_eq!(passed("HTTP/1.1 204\r\n\r\n"), Ok(true));
        let mut idle = Heads::default();
        assert_eq!(idle.pass(b"anything\n"), Ok(()));
    }

    #[test]
    fn bare_line_feeds_are_refused_wherever_they_stand() {
        for head in [
            "HTTP/1.1 200 OK\nA: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n\n",
            "HTTP/1.1 103 Early\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "\n",
        ] {
            assert_eq!(passed(head), Err(BadHead::BareLineFeed), "{head:?}");
        }
        assert_eq!(
            passed("\r\nHTTP/1.1 200 OK\r\n\r\n"),
            Err(BadHead::NoStatusLine)
        );
    }

    #[test]
    fn interim_answers_pass_and_are_counted() {
        let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        let end = "HTTP/1.1 200 OK\r\n\r\n\n";
        assert_eq!(
            passed(&format!("{}{end}", interim.repeat(MAX_INTERIM))),
            Ok(true)
        );
        assert_eq!(
            passed(&format!("{}{end}", interim.repeat(MAX_INTERIM + 1))),
            Err(BadHead::TooManyInterim)
        );
        assert_eq!(
            passed("HTTP/1.1 101 Switching\r\n\r\nraw\n"),
            Ok(true),
            "101 is final"
        );
    }

    #[test]
    fn a_heads_size_is_bounded_also_where_no_line_ends() {
        assert_eq!(
            passed(&"x".repeat(MAX_HEAD_BYTES + 1)),
            Err(BadHead::TooLarge)
        );
        let lines = "A: b\r\n".repeat(MAX_HEAD_BYTES / 6);
        assert_eq!(
            passed(&format!("HTTP/1.1 200 OK\r\n{lines}")),
            Err(BadHead::TooLarge)
        );
        let body = "x".repeat(MAX_HEAD_BYTES);
        assert_eq!(passed(&format!("HTTP/1.1 200 OK\r\n\r\n{body}")), Ok(true));
    }
}
