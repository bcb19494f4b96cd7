//! Streams to an upstream: in cleartext or inside TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use crate::{net::Stream, telemetry::metrics::ConnectionGuard};

/// A connection to an upstream; counted until it is dropped.
#[derive(Debug)]
pub(super) struct Wire {
    kind: Kind,
    _open: ConnectionGuard,
}

#[derive(Debug)]
enum Kind {
    Plain(Stream),
    /// A peer that closes without having said so (`close_notify`) is an error: it could be anybody on the way who cut the connection.
    Tls(Box<TlsStream<Stream>>),
}

impl Wire {
    pub(super) fn plain(stream: Stream, open: ConnectionGuard) -> Self {
        Self {
            kind: Kind::Plain(stream),
            _open: open,
        }
    }

    pub(super) fn tls(stream: TlsStream<Stream>, open: ConnectionGuard) -> Self {
        Self {
            kind: Kind::Tls(Box::new(stream)),
            _open: open,
        }
    }

    /// Whether it may have taken, and sent in part, what a failed write was given: TLS has a buffer of its own.
    pub(super) const fn keeps_what_it_writes(&self) -> bool {
        matches!(self.kind, Kind::Tls(_))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Plain(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
