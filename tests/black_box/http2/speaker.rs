//! A client of HTTP/2 that keeps to the protocol: the `h2` crate, told what to send.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::{
    Reason,
    client::{ResponseFuture, SendRequest},
};
use http::{HeaderMap, Request};
use tokio::{net::TcpStream, runtime::Runtime, sync::watch, time::timeout};

use crate::common::PATIENCE;

/// One connection.
pub(super) struct Speaker {
    runtime: Runtime,
    send: SendRequest<Bytes>,
    /// How the connection ended; `None`: it has not.
    ended: watch::Receiver<Option<Result<(), String>>>,
}

/// An answer as it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    pub(super) trailers: HeaderMap,
}

impl Answer {
    /// The value of `name`, which stands there once at most.
    pub(super) fn one(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.get_all(name).iter();
        let first = all.next().map(|value| value.to_str().expect("ASCII"));
        assert!(all.next().is_none(), "{name} stands twice: {self:?}");
        first
    }

    pub(super) fn marker(&self) -> Option<&str> {
        self.one("idempotency-key-reply")
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The whole of a problem's name.
    pub(super) fn slug(&self) -> String {
        let said = self.json()["type"].as_str().unwrap_or_default().to_owned();
        said.trim_start_matches("urn:idem-proxy:problem:")
            .to_owned()
    }
}

/// A request without a body.
pub(super) fn request(method: &str, target: &str) -> Request<()> {
    let request = Request::builder().method(method);
    let request = request.uri(format!("http://shop.test{target}"));
    request.body(()).expect("a request")
}

/// The POST most tests use.
pub(super) fn order(key: &str) -> Request<()> {
    let mut request = request("POST", "/orders");
    for (name, value) in [
        ("authorization", "Bearer alice"),
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ] {
        let value = value.parse().expect("a value");
        request.headers_mut().insert(name, value);
    }
    request
}

/// With one more header line.
pub(super) fn with(mut request: Request<()>, name: &'static str, value: &str) -> Request<()> {
    let value = value.parse().expect("a value");
    request.headers_mut().append(name, value);
    request
}

/// A request that was sent, and whose answer may come.
pub(super) struct Asked {
    answer: ResponseFuture,
    pub(super) body: h2::SendStream<Bytes>,
}

impl Speaker {
    pub(super) fn connect(to: SocketAddr) -> Self {
        Self::with_window(to, 1 << 20)
    }

    /// A connection on which each answer may send so many bytes before it is read.
    pub(super) fn with_window(to: SocketAddr, window: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (over, ended) = watch::channel(None);
        let send = runtime.block_on(async {
            let stream = TcpStream::connect(to).await.expect("it listens");
            let (send, connection) = h2::client::Builder::new()
                .initial_window_size(window)
                .initial_connection_window_size(1 << 20)
                .handshake(stream)
                .await
                .expect("a handshake");
            runtime.spawn(async move {
                let end = connection.await.map_err(|error| error.to_string());
                let _ = over.send(Some(end));
            });
            send
        });
        Self {
            runtime,
            send,
            ended,
        }
    }

    /// Sends a head, and the body's pieces as the test sends them.
    pub(super) fn begin(&mut self, request: Request<()>, then: Then) -> Asked {
        let ready = self.send.clone().ready();
        self.send = self
            .runtime
            .block_on(async { timeout(PATIENCE, ready).await })
            .expect("in time")
            .expect("a connection");
        let ends = matches!(then, Then::End);
        let sent = self.send.send_request(request, ends);
        let (answer, body) = sent.expect("a request");
        Asked { answer, body }
    }

    /// Sends a request with this body.
    pub(super) fn ask(&mut self, request: Request<()>, body: &'static str) -> Asked {
        if body.is_empty() {
            return self.begin(request, Then::End);
        }
        let mut asked = self.begin(request, Then::Body);
        let body = Bytes::from_static(body.as_bytes());
        asked.body.send_data(body, true).expect("an open stream");
        asked
    }

    /// Its answer, or why there is none.
    pub(super) fn try_answer(&self, asked: Asked) -> Result<Answer, h2::Error> {
        let read = async {
            let (head, mut body) = asked.answer.await?.into_parts();
            let mut whole = Vec::new();
            while let Some(piece) = body.data().await {
                let piece = piece?;
                body.flow_control().release_capacity(piece.len())?;
                whole.extend_from_slice(&piece);
            }
            let trailers = body.trailers().await?.unwrap_or_default();
            Ok(Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body: whole,
                trailers,
            })
        };
        let read = self
            .runtime
            .block_on(async { timeout(PATIENCE, read).await });
        read.expect("an answer in time")
    }

    pub(super) fn answer(&self, asked: Asked) -> Answer {
        self.try_answer(asked).expect("an answer")
    }

    /// Sends a request and gives its answer.
    pub(super) fn send(&mut self, request: Request<()>, body: &'static str) -> Answer {
        let asked = self.ask(request, body);
        self.answer(asked)
    }

    /// The answer's head, whose body is not read.
    pub(super) fn head(&self, asked: Asked) -> http::Response<h2::RecvStream> {
        let head = self
            .runtime
            .block_on(async { timeout(PATIENCE, asked.answer).await });
        head.expect("in time").expect("a head")
    }

    /// The next piece of a body.
    pub(super) fn piece(&self, body: &mut h2::RecvStream) -> Bytes {
        let piece = self
            .runtime
            .block_on(async { timeout(PATIENCE, body.data()).await });
        piece
            .expect("in time")
            .expect("a piece")
            .expect("a whole one")
    }

    /// Waits until the connection has ended; how it did.
    pub(super) fn ended(&mut self) -> Result<(), String> {
        let ended = self.ended.wait_for(Option::is_some);
        let ended = self
            .runtime
            .block_on(async { timeout(PATIENCE, ended).await })
            .expect("the connection ends")
            .expect("it is driven");
        ended.clone().expect("it has ended")
    }

    /// Whether the connection goes on.
    pub(super) fn goes_on(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing.
    End,
    /// A body.
    Body,
}

impl Asked {
    /// Gives the request up.
    pub(super) fn reset(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }
}
