//! Keys from a URL: one GET over a connection of its own, in cleartext or over TLS, bounded in time and size. Redirects are not
//! followed.

use std::{fmt, future, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{KeySet, MAX_SET_BYTES, Scheme, Unreadable, Url};
use crate::tls;

/// How long a fetch may take, from the name's resolution to the last byte, TLS included.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Fetches the keys of one URL.
pub(super) struct Fetcher {
    url: Url,
    /// With what, and whose certificate is believed; `None`: in cleartext.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fetcher").field(&self.url).finish()
    }
}

impl Fetcher {
    /// For `url`; `tls` is asked for its configuration where that is `https`.
    ///
    /// # Errors
    /// There is no TLS, and it is needed.
    pub(super) fn new(url: Url, tls: &tls::Client) -> Result<Self, tls::Unusable> {
        let tls = match &url.scheme {
            Scheme::Http => None,
            Scheme::Https(name) => Some((TlsConnector::from(tls.config()?), name.clone())),
        };
        Ok(Self { url, tls })
    }

    /// Fetches the keys. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) async fn fetch(&self) -> Result<KeySet, Unreadable> {
        let text = timeout(PATIENCE, self.text());
        let text = text.await.map_err(|_| Unreadable::TooLate)??;
        Ok(KeySet::parse(&text)?)
    }

    async fn text(&self) -> Result<Bytes, Unreadable> {
        let url = &self.url;
        let stream = TcpStream::connect((url.host.as_str(), url.port)).await?;
        match &self.tls {
            None => get(url, stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                get(url, stream.map_err(Unreadable::Tls)?).await
            }
        }
    }
}

async fn get(url: &Url, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<Bytes, Unreadable> {
    let broken = |_| Unreadable::Broken;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let request = Request::get(url.target.as_str())
        .header(header::HOST, url.authority.as_str())
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| Unreadable::Broken)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        if response.status() != StatusCode::OK {
            return Err(Unreadable::Status(response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), MAX_SET_BYTES).collect();
        match body.await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(Unreadable::TooLarge)
            }
            Err(_) => Err(Unreadable::Broken),
        }
    };
    // The connection is driven beside the exchange; its end is seen by the exchange too.
    tokio::select! {
        text = exchange => text,
        never = async { let _ = connection.await; future::pending().await } => never,
    }
}
