//! HTTP/2 connections to an upstream: a few for each worker, each with many requests at a time (RFC 9113).
//!
//! Bounds, each connection: [`MAX_STREAMS`] requests at a time or as many as the upstream allows, [`STREAM_WINDOW`] of each answer's
//! body that nobody has read yet, so much of all of them together that one that is not read holds up no other, [`SEND_BUFFER`] of each
//! request's, and [`MAX_HEAD_BYTES`](super::heads::MAX_HEAD_BYTES) a head. A connection on which requests run is asked for a sign of
//! life when nothing comes for [`PING_EVERY`], and broken [`PING_TIMEOUT`] after that.

use std::{
    future::{Future as _, poll_fn},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{
    HeaderValue, Request, Response, Version,
    header::HOST,
    uri::{Authority, Parts, PathAndQuery, Scheme, Uri},
};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http2::{Builder, SendRequest},
    },
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use super::{OutgoingBody, connect::Unreached, heads::MAX_HEAD_BYTES, wire::Wire};
use crate::{config, tasks::Tasks};

/// Connections of one worker to one upstream. Beyond what they all take at a time, requests wait for their turn.
pub(super) const MAX_CONNECTIONS: usize = 4;

/// Requests at a time on one connection.
const MAX_STREAMS: usize = 100;

/// Bytes of one answer's body that were not read yet.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all answers of a connection: room for each of [`MAX_STREAMS`], so that none that is not read holds up the others.
const CONNECTION_WINDOW: u32 = 100 * STREAM_WINDOW;

/// Bytes of one request's body that were taken and not sent yet.
const SEND_BUFFER: usize = 256 * 1024;

const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection. It closes once nobody holds it.
#[derive(Debug)]
pub(super) struct Multiplexed {
    sender: SendRequest<OutgoingBody>,
    /// Requests on it.
    active: AtomicUsize,
    /// How many the upstream allows at a time, as far as is known.
    allowed: Arc<AtomicUsize>,
    room: Arc<Notify>,
}

/// The place of one request on a connection, until it is dropped; whoever waits for one is told then.
#[derive(Debug)]
pub(super) struct Stream(Arc<Multiplexed>);

impl Multiplexed {
    /// Begins to speak HTTP/2, and waits until the upstream does too: before that nobody knows whether it will, and whether it takes
    /// our certificate.
    pub(super) async fn open(
        wire: Wire,
        tasks: &Tasks,
        deadline: Instant,
        room: &Arc<Notify>,
    ) -> Result<Arc<Self>, Unreached> {
        let (greeted, greeting) = oneshot::channel();
        let io = Greeted {
            wire,
            read: 0,
            told: Some(greeted),
        };
        let (sender, mut connection) = Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(io))
            .await
            .map_err(Unreached::NoGreeting)?;
        let allowed = Arc::new(AtomicUsize::new(MAX_STREAMS));
        let (learned, rings) = (Arc::clone(&allowed), Arc::clone(room));
        let (tell, begun) = oneshot::channel();
        let mut first = Some((greeting, tell));
        tasks.detach(async move {
            // What went wrong on it is told to the requests that met it.
            let _ = poll_fn(|cx| {
                let polled = Pin::new(&mut connection).poll(cx);
                let now = connection.current_max_send_streams();
                if learned.swap(now, Ordering::Relaxed) < now {
                    rings.notify_waiters();
                }
                // Told from here: what the upstream's first word allows is known by then.
                if let Some((greeting, _)) = &mut first
                    && let Poll::Ready(said) = Pin::new(greeting).poll(cx)
                    && let (Some((_, tell)), Ok(said)) = (first.take(), said)
                {
                    // Whoever has stopped waiting needs no word.
                    let _ = tell.send(said);
                }
                polled
            })
            .await;
            // Another may be made in its place.
            rings.notify_waiters();
        });
        match timeout_at(deadline, begun).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => return Err(Unreached::Greeting(error)),
            // The connection's task is gone with its stream.
            Ok(Err(_)) => return Err(Unreached::Greeting(io::ErrorKind::UnexpectedEof.into())),
            Err(_) => return Err(Unreached::Timeout),
        }
        Ok(Arc::new(Self {
            sender,
            active: AtomicUsize::new(0),
            allowed,
            room: Arc::clone(room),
        }))
    }

    /// Whether it takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// How many requests are on it.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether it takes another request at once.
    pub(super) fn has_room(&self) -> bool {
        self.active() < self.allowed.load(Ordering::Relaxed).min(MAX_STREAMS)
    }

    /// A place on it, which there has to be: what is given to hyper beyond that waits there, out of our hands, and goes out in its turn even if
    /// nobody wants it any more.
    pub(super) fn take(self: &Arc<Self>) -> Stream {
        self.active.fetch_add(1, Ordering::Relaxed);
        Stream(Arc::clone(self))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
        self.0.room.notify_one();
    }
}

impl Stream {
    /// The connection that it is on.
    pub(super) fn connection(&self) -> &Arc<Multiplexed> {
        &self.0
    }

    /// Sends a request.
    ///
    /// Dropping the future resets the stream, and leaves the others on the connection alone.
    pub(super) async fn send(
        &self,
        request: Request<OutgoingBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<OutgoingBody>>> {
        self.0.sender.clone().try_send_request(request).await
    }
}

/// Gives a request the form that HTTP/2 has: an absolute target, and no Host beside it (RFC 9113, section 8.3.1).
pub(super) fn to_http2<B>(request: &mut Request<B>, upstream: &config::Upstream) {
    let host = request.headers_mut().remove(HOST);
    let authority = host
        .and_then(|host| Authority::try_from(host.as_bytes()).ok())
        .or_else(|| request.uri().authority().cloned())
        .unwrap_or_else(|| upstream.authority.clone());
    let mut parts = Parts::default();
    parts.scheme = Some(match upstream.tls {
        Some(_) => Scheme::HTTPS,
        None => Scheme::HTTP,
    });
    parts.authority = Some(authority);
    let target = request.uri().path_and_query().cloned();
    parts.path_and_query = Some(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    // All its parts are there.
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
}

/// Gives a request that was for HTTP/2 the form of HTTP/1.1 again.
pub(super) fn to_http1<B>(request: &mut Request<B>) {
    let Some(authority) = request.uri().authority() else {
        return;
    };
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        request.headers_mut().insert(HOST, host);
    }
    let target = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    *request.version_mut() = Version::HTTP_11;
}

/// Where a frame's head has its type, and the type of the frame that comes first (RFC 9113, sections 3.4, 4.1 and 6.5).
const FRAME_TYPE: usize = 3;
const SETTINGS: u8 = 4;

/// A connection that tells when its peer has begun to speak HTTP/2, or has broken off or said something else.
struct Greeted {
    wire: Wire,
    /// How much of the first frame's head has come: so far as its type.
    read: usize,
    told: Option<oneshot::Sender<io::Result<()>>>,
}

impl AsyncRead for Greeted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut this.wire).poll_read(cx, buf));
        if this.told.is_some() {
            let new = buf.filled().get(before..).unwrap_or_default();
            let said = match &read {
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                Ok(()) if new.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(()) => match new.get(FRAME_TYPE - this.read) {
                    None => {
                        this.read += new.len();
                        return Poll::Ready(Ok(()));
                    }
                    Some(&SETTINGS) => Ok(()),
                    Some(_) => Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "what it says is not HTTP/2",
                    )),
                },
            };
            if let Some(told) = this.told.take() {
                // Whoever has stopped waiting needs no word.
                let _ = told.send(said);
            }
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().wire).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().wire).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(settings: &str) -> config::Upstream {
        let text = format!("[upstream]\n{settings}\n");
        let loaded = config::parse("test", &text, []).loaded().unwrap();
        loaded.config.upstreams[0].clone()
    }

    fn request(target: &str, host: Option<&str>) -> Request<()> {
        let mut request = Request::builder().uri(target);
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_request_takes_the_form_of_http2_and_back() {
        let upstream = upstream("url = 'http://10.0.0.1:3000'");
        let mut there = request("/a//%2e?", Some("shop.test:81"));
        to_http2(&mut there, &upstream);
        assert_eq!(there.uri(), "http://shop.test:81/a//%2e?");
        assert!(!there.headers().contains_key(HOST));
        assert_eq!(there.version(), Version::HTTP_2);
        to_http2(&mut there, &upstream);
        assert_eq!(there.uri(), "http://shop.test:81/a//%2e?", "twice is once");
        to_http1(&mut there);
        assert_eq!(there.uri(), "/a//%2e?");
        assert_eq!(there.headers().get(HOST).unwrap(), "shop.test:81");
        assert_eq!(there.version(), Version::HTTP_11);
    }

    #[test]
    fn without_a_host_the_upstreams_own_stands_in() {
        let upstream = upstream("url = 'http://10.0.0.1:3000'");
        for host in [None, Some("")] {
            let mut request = request("/", host);
            to_http2(&mut request, &upstream);
            assert_eq!(request.uri(), "http://10.0.0.1:3000/", "{host:?}");
        }
    }

    #[test]
    fn the_whole_server_can_be_asked() {
        let upstream = upstream("url = 'http://10.0.0.1:3000'");
        let mut request = request("*", Some("a"));
        to_http2(&mut request, &upstream);
        let target = request.uri().path_and_query();
        assert_eq!(target.map(PathAndQuery::as_str), Some("*"));
    }
}
