//! Bodies as they are received, on either side, and whether they have come whole.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http1::Unfinished;
use crate::{bell::holding, core::trailers};

/// A body from a client or an upstream. Its trailers are clean.
///
/// hyper takes a stream of HTTP/2 that was reset with `NO_ERROR` for one that has ended. Here an end has to be shown: by the stream's own, by
/// trailers, or by as many bytes as were announced.
#[derive(Debug)]
pub struct Received {
    incoming: Incoming,
    end: End,
}

/// What is believed of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is as hyper says: over HTTP/1, or behind trailers.
    Told,
    /// Over HTTP/2.
    ToBeShown,
}

/// A body that did not come whole.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// Its connection broke, or its framing did.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The same, of an answer over HTTP/1.
    #[error(transparent)]
    Http1(#[from] Unfinished),
    /// Its stream was reset before its end, as if nothing were wrong with that.
    #[error("its stream was reset before its end")]
    CutOff,
}

impl Received {
    /// The body of a message of this version.
    #[must_use]
    pub fn new(incoming: Incoming, version: Version) -> Self {
        let end = if version == Version::HTTP_2 {
            End::ToBeShown
        } else {
            End::Told
        };
        Self { incoming, end }
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let (polled, held) = holding(|| Pin::new(&mut self.incoming).poll_frame(cx));
        // Over HTTP/1 nothing is behind the last byte that was announced, so that its connection need not go on reading for it.
        if self.end == End::Told && self.incoming.is_end_stream() {
            held.spare();
        }
        polled
    }

    fn is_cut_off(&self) -> bool {
        self.end == End::ToBeShown
            && !self.incoming.is_end_stream()
            && self.incoming.size_hint().exact() != Some(0)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let frame = ready!(this.poll_incoming(cx));
        Poll::Ready(match frame {
            Some(Ok(mut frame)) => {
                if let Some(fields) = frame.trailers_mut() {
                    trailers::clean(fields);
                    this.end = End::Told;
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None if this.is_cut_off() => {
                this.end = End::Told; // it is told once
                Some(Err(Broken::CutOff))
            }
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Wake, Waker},
    };

    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::bell::Bell;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The length of the body of a request that reads so, as a service reads it, and how often its connection was woken meanwhile. The
    /// connection is polled for as long as it asks for that.
    async fn read(request: &'static str) -> (String, usize) {
        let (mut client, server) = duplex(4096);
        let service = service_fn(async |request: Request<Incoming>| {
            let (parts, incoming) = request.into_parts();
            let mut body = Received::new(incoming, parts.version);
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.expect("it comes whole");
                length += frame.data_ref().map_or(0, Bytes::len);
                if body.is_end_stream() {
                    break;
                }
            }
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(length.to_string()))))
        });
        let io = TokioIo::new(server);
        let mut connection = pin!(http1::Builder::new().serve_connection(io, service));
        let bell = Bell::new();
        let mut work = pin!(bell.wakes(connection.as_mut()));
        client
            .write_all(request.as_bytes())
            .await
            .expect("there is room");
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let mut woken = 0;
        loop {
            let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "{polled:?}");
            match count.0.swap(0, Ordering::Relaxed) {
                0 => break,
                more => woken += more,
            }
        }
        let mut answer = [0; 1024];
        let length = client.read(&mut answer).await.expect("an answer");
        let answer = String::from_utf8_lossy(&answer[..length]);
        let (_, body) = answer.rsplit_once("\r\n\r\n").expect("a head");
        (body.to_owned(), woken)
    }

    #[tokio::test]
    async fn a_body_that_came_with_its_head_wakes_nobody() {
        let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(read(request).await, ("5".to_owned(), 0));
    }

    #[tokio::test]
    async fn a_connection_is_woken_for_what_is_left_of_a_body() {
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        let (length, woken) = read(request).await;
        assert_eq!(length, "11");
        assert!(woken > 0);
    }
}
