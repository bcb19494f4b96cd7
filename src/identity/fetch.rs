//! Keys from a URL: one GET over a connection of its own, bounded in time and size. Redirects are not followed.

use std::{future, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::{KeySet, MAX_SET_BYTES, Unreadable, Url};

/// How long a fetch may take, from the name's resolution to the last byte.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Fetches the keys. Dropping the future closes the connection.
///
/// # Errors
/// Why there are none.
pub(super) async fn fetch(url: &Url) -> Result<KeySet, Unreadable> {
    let text = timeout(PATIENCE, get(url));
    let text = text.await.map_err(|_| Unreadable::TooLate)??;
    Ok(KeySet::parse(&text)?)
}

async fn get(url: &Url) -> Result<Bytes, Unreadable> {
    let broken = |_| Unreadable::Broken;
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await?;
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
