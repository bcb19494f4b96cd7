//! Byte streams: TCP or a unix socket, the same to whoever speaks over them.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// A connected stream.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP, without Nagle's delay.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

impl Stream {
    /// A TCP stream that sends small answers at once.
    ///
    /// # Errors
    /// The socket is already gone.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::uninit(); FEW];
        let mut all = ReadBuf::uninit(&mut space);
        if gather(bufs, &mut all) {
            return self.poll_write(cx, all.filled());
        }
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }
}

/// So few bytes are copied together before they are written: a system call that takes several pieces costs more than copying them does.
const FEW: usize = 2048;

/// Copies the pieces together; `false`: there are too many bytes.
fn gather(pieces: &[io::IoSlice<'_>], all: &mut ReadBuf<'_>) -> bool {
    for piece in pieces {
        if piece.len() > all.remaining() {
            return false;
        }
        all.put_slice(piece);
    }
    true
}

/// A stream between two event loops.
#[derive(Debug)]
pub enum Detached {
    /// Over TCP.
    Tcp(std::net::TcpStream),
    /// Over a unix socket.
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    /// Takes the stream off the event loop that accepted it.
    ///
    /// # Errors
    /// The socket is already gone.
    pub fn detach(self) -> io::Result<Detached> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(Detached::Tcp),
            Self::Unix(stream) => stream.into_std().map(Detached::Unix),
        }
    }
}

impl Detached {
    /// Puts the stream on the event loop of the runtime that this is called in.
    ///
    /// # Errors
    /// The event loop takes no more.
    pub fn attach(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn pieces_arrive_in_order_however_long_they_are() {
        for lengths in [
            &[][..],
            &[0, 0],
            &[5, 0, 7],
            &[FEW - 1, 1],
            &[FEW, 1],
            &[1, FEW],
            &[3 * FEW, 0],
        ] {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
            let mut ours = Stream::Unix(ours);
            let pieces: Vec<_> = (b'a'..)
                .zip(lengths)
                .map(|(letter, length)| vec![letter; *length])
                .collect();
            let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let written = ours.write_vectored(&slices).await.expect("there is room");
            drop(ours);
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).await.expect("the end");
            let all = pieces.concat();
            assert_eq!((written, read), (all.len(), all));
        }
    }
}
