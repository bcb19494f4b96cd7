//! The way to the collector: one connection, made when it is needed and kept while it serves, over which one message is sent at a time.

use std::{io, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{
    HeaderMap, Request, Response, StatusCode, Version,
    header::{CONTENT_TYPE, HOST, RETRY_AFTER, TE, USER_AGENT},
    uri::Uri,
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::encode::rejected;
use crate::{
    config::{Otlp, OtlpTransport},
    tasks::Tasks,
    tls::{self, Alpn, Unusable},
};

/// Where spans go.
pub(super) struct Collector {
    otlp: Otlp,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    tasks: Tasks,
    open: Option<Sender>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Untaken {
    /// The collector does not want it, now or later.
    #[error("the collector answered {0}")]
    Refused(Told),
    /// The collector does not want it now.
    #[error("the collector answered {told}")]
    NotNow {
        /// What it said.
        told: Told,
        /// How long it wants to be left alone, if it said so.
        pause: Option<Duration>,
    },
    /// There is no way to it.
    #[error("no connection: {0}")]
    Unreachable(#[from] io::Error),
    /// The connection broke, or what came over it is no answer.
    #[error("no answer: {0}")]
    Broken(#[from] hyper::Error),
    /// It did not answer in time.
    #[error("no answer in time")]
    TooLate,
}

/// What a collector said instead of yes. Nothing that it wrote itself: that is not for our log.
#[derive(Debug, thiserror::Error)]
pub(super) enum Told {
    /// A status of HTTP.
    #[error("{0}")]
    Status(StatusCode),
    /// A code of gRPC, 0 to 16.
    #[error("gRPC status {0}")]
    Grpc(u32),
    /// An answer that is none of OTLP's.
    #[error("something that is not OTLP")]
    NotOtlp,
}

impl Collector {
    /// The way to this one. Blocks for as long as it takes to read the system's roots, if it is `https`.
    ///
    /// # Errors
    /// There are no roots, and they are needed.
    pub(super) fn new(otlp: &Otlp, tasks: Tasks) -> Result<Self, Unusable> {
        let alpn = match otlp.transport {
            OtlpTransport::Grpc => Alpn::Http2,
            OtlpTransport::Http(_) => Alpn::Http1,
        };
        let tls = match &otlp.tls {
            None => None,
            Some(name) => {
                let config = tls::client_config(None, None, alpn)?;
                Some((TlsConnector::from(config), name.clone()))
            }
        };
        Ok(Self {
            otlp: otlp.clone(),
            tls,
            tasks,
            open: None,
        })
    }

    /// Sends one message and waits for its answer: how many of its spans were not taken.
    ///
    /// Dropping the future loses the connection, so that no late answer is taken for the next message's.
    ///
    /// # Errors
    /// [`Untaken`]
    pub(super) async fn deliver(&mut self, message: &Bytes) -> Result<u64, Untaken> {
        let mut sender = match self.open.take().filter(|open| !open.is_closed()) {
            Some(open) => open,
            None => self.connect().await?,
        };
        let request = self.request(message)?;
        let response = match &mut sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let rejected = match self.otlp.transport {
            OtlpTransport::Grpc => grpc_answer(response).await?,
            OtlpTransport::Http(_) => http_answer(response).await?,
        };
        self.open = Some(sender);
        Ok(rejected)
    }

    async fn connect(&self) -> Result<Sender, Untaken> {
        let stream = TcpStream::connect((self.otlp.host.as_str(), self.otlp.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.shake_hands(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                self.shake_hands(stream).await
            }
        }
    }

    async fn shake_hands<S>(&self, stream: S) -> Result<Sender, Untaken>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        match self.otlp.transport {
            OtlpTransport::Grpc => {
                let (sender, connection) = http2::handshake(self.tasks.clone(), stream).await?;
                // It ends with its sender; what went wrong is seen there.
                self.tasks.detach(async { drop(connection.await) });
                Ok(Sender::Http2(sender))
            }
            OtlpTransport::Http(_) => {
                let (sender, connection) = http1::handshake(stream).await?;
                self.tasks.detach(async { drop(connection.await) });
                Ok(Sender::Http1(sender))
            }
        }
    }

    fn request(&self, message: &Bytes) -> Result<Request<Full<Bytes>>, Untaken> {
        let authority = &self.otlp.authority;
        let agent = concat!("idem-proxy/", env!("CARGO_PKG_VERSION"));
        let request = match &self.otlp.transport {
            OtlpTransport::Http(target) => Request::post(target.as_str())
                .header(HOST, authority.as_str())
                .header(CONTENT_TYPE, PROTOBUF)
                .header(USER_AGENT, agent)
                .body(Full::new(message.clone())),
            OtlpTransport::Grpc => {
                let scheme = if self.tls.is_some() { "https" } else { "http" };
                let uri = Uri::builder()
                    .scheme(scheme)
                    .authority(authority.clone())
                    .path_and_query(EXPORT)
                    .build();
                let uri = uri.map_err(io::Error::other)?;
                Request::post(uri)
                    .version(Version::HTTP_2)
                    .header(CONTENT_TYPE, "application/grpc")
                    .header(TE, "trailers")
                    .header(USER_AGENT, agent)
                    .body(Full::new(framed(message)))
            }
        };
        Ok(request.map_err(io::Error::other)?)
    }
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }
}

/// The method of the service that takes spans.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

const PROTOBUF: &str = "application/x-protobuf";

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// A message as gRPC has it: not compressed, and its length.
fn framed(message: &Bytes) -> Bytes {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    // No batch comes near 4 GiB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

async fn read(body: Incoming) -> Result<(Bytes, Option<HeaderMap>), Untaken> {
    let read = Limited::new(body, MAX_ANSWER).collect().await;
    let read = read.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(broken) => Untaken::Broken(*broken),
        // It is too long for one.
        Err(_) => Untaken::Refused(Told::NotOtlp),
    })?;
    let trailers = read.trailers().cloned();
    Ok((read.to_bytes(), trailers))
}

async fn http_answer(response: Response<Incoming>) -> Result<u64, Untaken> {
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        return Err(not_taken(head.status, &head.headers));
    }
    let (body, _) = read(body).await?;
    let media_type = head
        .headers
        .get(CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes);
    if !body.is_empty() && !media_type.is_some_and(|own| own.starts_with(PROTOBUF.as_bytes())) {
        // Whatever answers here is no collector.
        return Err(Untaken::Refused(Told::NotOtlp));
    }
    rejected(&body).ok_or(Untaken::Refused(Told::NotOtlp))
}

/// An answer that is no success, by what OTLP says of its status: some may be tried again, all others are final.
fn not_taken(status: StatusCode, headers: &HeaderMap) -> Untaken {
    let told = Told::Status(status);
    match status.as_u16() {
        429 | 502 | 503 | 504 => {
            let seconds = headers
                .get(RETRY_AFTER)
                .and_then(|after| after.to_str().ok());
            let seconds = seconds.and_then(|after| after.trim().parse().ok());
            let pause = seconds.map(Duration::from_secs);
            Untaken::NotNow { told, pause }
        }
        _ => Untaken::Refused(told),
    }
}

async fn grpc_answer(response: Response<Incoming>) -> Result<u64, Untaken> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(not_taken(head.status, &head.headers));
    }
    let (body, trailers) = read(body).await?;
    // An answer without a body may have its status in the head.
    let status = trailers
        .as_ref()
        .and_then(|trailers| trailers.get(GRPC_STATUS))
        .or_else(|| head.headers.get(GRPC_STATUS));
    let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
    match status {
        Some(0) => {
            let message = body.get(5..).unwrap_or_default();
            rejected(message).ok_or(Untaken::Refused(Told::NotOtlp))
        }
        // Those that may be tried again (OTLP, section "failures" of OTLP/gRPC).
        Some(code @ (1 | 4 | 8 | 10 | 11 | 14 | 15)) => Err(Untaken::NotNow {
            told: Told::Grpc(code),
            pause: None,
        }),
        Some(code) => Err(Untaken::Refused(Told::Grpc(code))),
        None => Err(Untaken::Refused(Told::NotOtlp)),
    }
}

const GRPC_STATUS: &str = "grpc-status";
