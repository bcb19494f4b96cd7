//! Collectors of every kind: one that takes spans, by gRPC or HTTP, in cleartext or over TLS; and some that do not.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use idem_proxy::tasks::Tasks;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value,
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Runtime,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::common::eventually;

/// A collector that takes spans.
pub(crate) struct Collector {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _runtime: Runtime,
}

#[derive(Default)]
struct State {
    /// What it says before it takes anything: statuses of HTTP or of gRPC.
    first: VecDeque<u16>,
    /// Every message's bytes.
    bytes: Vec<u8>,
    spans: Vec<Span>,
    refused: usize,
    transports: Vec<String>,
}

/// How it is spoken to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Grpc,
    Http,
}

impl Collector {
    pub(crate) fn start(by: By) -> Self {
        Self::with(by, &[], None)
    }

    /// One that first says these statuses.
    pub(crate) fn refusing(by: By, first: &[u16]) -> Self {
        Self::with(by, first, None)
    }

    pub(crate) fn secured(by: By, acceptor: TlsAcceptor) -> Self {
        Self::with(by, &[], Some(acceptor))
    }

    fn with(by: By, first: &[u16], tls: Option<TlsAcceptor>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let state = Arc::new(Mutex::new(State {
            first: first.iter().copied().collect(),
            ..State::default()
        }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let tasks = Tasks::new(runtime.handle().clone(), TaskTracker::new());
        let (own, shared) = (tasks.clone(), Arc::clone(&state));
        tasks.detach(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, state, tasks) = (tls.clone(), Arc::clone(&shared), own.clone());
                own.detach(async move {
                    match tls {
                        None => serve(by, stream, state, tasks).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(by, stream, state, tasks).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            state,
            _runtime: runtime,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The settings of a proxy that exports here, by its URL with this path.
    pub(crate) fn settings(&self, path: &str) -> String {
        format!(
            "telemetry.otlp_endpoint = 'http://{}{path}'\n",
            self.address
        )
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().expect("no one panics inside").spans.len()
    }

    /// How often it has refused.
    pub(crate) fn refused(&self) -> usize {
        self.state.lock().expect("no one panics inside").refused
    }

    /// All bytes that have come, as text.
    pub(crate) fn text(&self) -> String {
        let state = self.state.lock().expect("no one panics inside");
        String::from_utf8_lossy(&state.bytes).into_owned()
    }

    /// Method, path and media type of each message.
    pub(crate) fn transports(&self) -> Vec<String> {
        self.state
            .lock()
            .expect("no one panics inside")
            .transports
            .clone()
    }

    /// The spans, once there are so many.
    pub(crate) fn spans(&self, count: usize) -> Vec<Span> {
        eventually("spans", || self.count() >= count);
        let spans = self
            .state
            .lock()
            .expect("no one panics inside")
            .spans
            .clone();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

async fn serve<S>(by: By, stream: S, state: Arc<Mutex<State>>, tasks: Tasks)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(take(by, request, &state).await) }
    });
    // A proxy that has ended closes its connection.
    let _ = match by {
        By::Grpc => {
            http2::Builder::new(tasks)
                .serve_connection(TokioIo::new(stream), service)
                .await
        }
        By::Http => {
            http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
        }
    };
}

type Body = BoxBody<Bytes, Infallible>;

async fn take(by: By, request: Request<Incoming>, state: &Mutex<State>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return answer(by, 500);
    };
    let body = body.to_bytes();
    let mut state = state.lock().expect("no one panics inside");
    if let Some(status) = state.first.pop_front() {
        state.refused += 1;
        return answer(by, status);
    }
    let message = match by {
        By::Http => body,
        By::Grpc => {
            let length = u32::try_from(body.len() - 5).expect("short").to_be_bytes();
            assert_eq!(body[..5], [&[0][..], &length].concat(), "a frame");
            body.slice(5..)
        }
    };
    let media_type = head.headers[CONTENT_TYPE]
        .to_str()
        .expect("text")
        .to_owned();
    state
        .transports
        .push(format!("{} {} {media_type}", head.method, head.uri.path()));
    let export = ExportTraceServiceRequest::decode(message.clone()).expect("a message of OTLP");
    state.bytes.extend_from_slice(&message);
    let spans = export
        .resource_spans
        .into_iter()
        .flat_map(|of| of.scope_spans);
    state.spans.extend(spans.flat_map(|scope| scope.spans));
    answer(by, if by == By::Grpc { 0 } else { 200 })
}

fn answer(by: By, status: u16) -> Response<Body> {
    match by {
        By::Http => Response::builder()
            .status(StatusCode::from_u16(status).expect("a status"))
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(Bytes::new()).boxed()),
        By::Grpc => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.into());
            let message = Full::new(Bytes::from_static(&[0; 5]));
            let trailers = std::future::ready(Some(Ok(trailers)));
            Response::builder()
                .header(CONTENT_TYPE, "application/grpc")
                .body(message.with_trailers(trailers).boxed())
        }
    }
    .expect("a response")
}

/// Listens, and never answers.
pub(crate) fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Answers whatever comes with these bytes.
pub(crate) fn babbling(bytes: &'static [u8]) -> SocketAddr {
    let (listener, address) = silent();
    std::thread::spawn(move || {
        // It ends with the test's process, and so do its connections: one that is closed on unread bytes loses the answer.
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(bytes);
            open.push(stream);
        }
    });
    address
}

/// The one span of this kind whose name begins so.
pub(crate) fn one<'a>(spans: &'a [Span], kind: SpanKind, name: &str) -> &'a Span {
    let all: Vec<_> = spans
        .iter()
        .filter(|span| span.kind() == kind && span.name.starts_with(name))
        .collect();
    assert_eq!(all.len(), 1, "{kind:?} {name}: {spans:#?}");
    all[0]
}

/// An attribute of a span as text; empty: it has none of that name.
pub(crate) fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|pair| pair.key == key);
    let value = found.and_then(|pair| pair.value.as_ref()?.value.as_ref());
    match value {
        None => String::new(),
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(other) => panic!("{other:?}"),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}
