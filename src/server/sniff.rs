//! Which protocol a client speaks where nothing was agreed on: its first bytes tell.
//!
//! HTTP/2 with prior knowledge starts with a preface that no HTTP/1 request starts with (RFC 9113, section 3.4). Just as many bytes
//! are read as it takes to tell; whoever serves the connection reads them again.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::frames::PREFACE;

/// What the first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    /// The preface of HTTP/2.
    Http2,
    /// Anything else.
    Http1,
}

/// A stream, some of whose bytes were read already and are read again.
#[derive(Debug)]
pub(super) struct Prefixed<S> {
    read: [u8; PREFACE.len()],
    /// Where the bytes to be read again start and end.
    from: usize,
    to: usize,
    stream: S,
}

impl<S> Prefixed<S> {
    /// A stream of which nothing was read.
    pub(super) fn new(stream: S) -> Self {
        Self {
            read: [0; PREFACE.len()],
            from: 0,
            to: 0,
            stream,
        }
    }
}

impl<S: AsyncRead + Unpin> Prefixed<S> {
    /// Reads until it is plain what is spoken; `None`: the client ended first.
    ///
    /// Dropping the future loses nothing: what was read is read again.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn sniff(&mut self) -> io::Result<Option<Spoken>> {
        poll_fn(|cx| self.poll_sniff(cx)).await
    }

    /// Waits for the next bytes, which are read again, as all are that were read so; `false`: the client has ended instead.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) async fn wait(&mut self) -> io::Result<bool> {
        poll_fn(|cx| self.poll_wait(cx)).await
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.from == self.to {
            let mut room = ReadBuf::new(&mut self.read);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
            (self.from, self.to) = (0, room.filled().len());
        }
        Poll::Ready(Ok(self.to > 0))
    }

    fn poll_sniff(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Spoken>>> {
        loop {
            let (read, room) = self.read.split_at_mut(self.to);
            if !PREFACE.starts_with(read) {
                return Poll::Ready(Ok(Some(Spoken::Http1)));
            }
            if room.is_empty() {
                return Poll::Ready(Ok(Some(Spoken::Http2)));
            }
            let mut room = ReadBuf::new(room);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
            match room.filled().len() {
                0 => return Poll::Ready(Ok(None)),
                more => self.to += more,
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.from == this.to {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let again = this.read.get(this.from..this.to).unwrap_or_default();
        let count = again.len().min(buf.remaining());
        buf.put_slice(again.get(..count).unwrap_or_default());
        this.from += count;
        if this.from == this.to {
            // What came with it is read at once, so that a head that is here is not taken for half of one. An error shows again.
            let _ = Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// What is told of `pieces`, and what is read after that.
    async fn told(pieces: &[&[u8]]) -> (Option<Spoken>, Vec<u8>) {
        let (mut client, server) = duplex(1); // each byte comes by itself
        let mut server = Prefixed::new(server);
        let all = pieces.concat();
        let writing = async move {
            for piece in [all.as_slice()] {
                client.write_all(piece).await.expect("the other end reads");
            }
        };
        let reading = async {
            let spoken = server.sniff().await.expect("a pipe does not break");
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).await.expect("the rest");
            (spoken, rest)
        };
        tokio::join!(writing, reading).1
    }

    #[tokio::test]
    async fn the_preface_is_told_from_everything_else_and_all_is_read_again() {
        let http2 = [&PREFACE[..], b"more"].concat();
        assert_eq!(told(&[&http2]).await, (Some(Spoken::Http2), http2));
        for other in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"P",
            b"PRI",
            b"POST /orders HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
            b"PRI * HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01",
            b"",
        ] {
            let expected = (!PREFACE.starts_with(other)).then_some(Spoken::Http1);
            assert_eq!(told(&[other]).await, (expected, other.to_vec()));
        }
    }

    #[tokio::test]
    async fn what_is_waited_for_is_read_again() {
        let (mut client, server) = duplex(1024);
        client.write_all(b"GET /").await.expect("there is room");
        let mut server = Prefixed::new(server);
        let spoken = server.sniff().await.expect("a pipe does not break");
        assert_eq!(spoken, Some(Spoken::Http1));
        let long = [b'x'; 3 * PREFACE.len()];
        let mut read = [0; 1024];
        for expected in [b"GET /".as_slice(), &long, b"y"] {
            assert!(server.wait().await.expect("a pipe does not break"));
            assert!(server.wait().await.expect("it is still there"));
            server
                .read_exact(&mut read[..expected.len()])
                .await
                .unwrap();
            assert_eq!(&read[..expected.len()], expected);
            if expected.starts_with(b"G") {
                client.write_all(&long).await.expect("there is room");
            } else {
                client.write_all(b"y").await.expect("there is room");
            }
        }
        assert!(server.wait().await.expect("a pipe does not break"));
        assert_eq!(server.read(&mut read).await.unwrap(), 1);
        drop(client);
        assert!(!server.wait().await.expect("a pipe does not break"));
    }

    #[tokio::test]
    async fn what_came_with_the_first_bytes_is_read_with_them() {
        let (mut client, server) = duplex(1024);
        let head = b"GET / HTTP/1.1\r\nHost: a.test\r\nUser-Agent: long enough\r\n\r\n";
        client.write_all(head).await.expect("there is room");
        let mut server = Prefixed::new(server);
        let spoken = server.sniff().await.expect("a pipe does not break");
        assert_eq!(spoken, Some(Spoken::Http1));
        let mut read = [0; 1024];
        let count = server.read(&mut read).await.expect("the head");
        assert_eq!(&read[..count], head);
    }
}
