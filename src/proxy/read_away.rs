//! The bodies of requests that are refused.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, header::EXPECT};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// What is left of a request's body when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: the connection can serve the next request.
    Nothing,
    /// Something: the connection ends with the answer.
    Unread,
}

/// Reads the body of a request that is refused, if it is short: its connection can then serve the next request. A long one ends its
/// connection, and so does one that its client still holds back for a 100.
pub(super) async fn read_away(request: Request<Incoming>) -> Rest {
    if request.body().is_end_stream() {
        return Rest::Nothing;
    }
    if request.headers().contains_key(EXPECT) {
        return Rest::Unread;
    }
    let mut body = request.into_body();
    let announced = body.size_hint().exact().unwrap_or(0);
    let mut left = SHORT_BODY;
    let reading = async {
        while let Some(frame) = body.frame().await {
            let length = frame.ok()?.data_ref().map_or(0, Bytes::len) as u64;
            left = left.checked_sub(length)?;
        }
        Some(())
    };
    if announced > SHORT_BODY {
        return Rest::Unread;
    }
    // What does not come in time is not waited for.
    match tokio::time::timeout(SHORT_WAIT, reading).await {
        Ok(Some(())) => Rest::Nothing,
        Ok(None) | Err(_) => Rest::Unread,
    }
}

/// A refused body of so many bytes is read to its end.
const SHORT_BODY: u64 = 64 * 1024;
/// And so long it may take.
const SHORT_WAIT: Duration = Duration::from_secs(1);
