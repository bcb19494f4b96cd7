//! A pool's HTTP/2 connections, and places on them.

use std::sync::Arc;

use http::Response;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{Pool, is_over};
use crate::upstream::{
    MaybeSent, SendFailure, UpstreamBody,
    framing::judge,
    multiplexed::{MAX_CONNECTIONS, Multiplexed, Stream},
    received::Received,
};

/// A connection that takes requests.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) connection: Arc<Multiplexed>,
    pub(super) ends: Option<Instant>,
    /// When a request was seen on it last.
    pub(super) used: Instant,
}

/// Whether there is room for a request on HTTP/2 connections.
#[derive(Debug)]
pub(super) enum Room {
    /// On this one.
    Here(Stream),
    /// On one more, which may be made.
    ForAnother,
    /// When a request ends, a connection does, or an upstream allows more.
    None,
}

impl Kept {
    pub(super) fn is_good(&self, now: Instant) -> bool {
        !self.connection.is_closed() && !is_over(self.ends, now)
    }
}

impl Pool {
    /// A place on a connection that stands, once there is one; `None`: a further connection may be made.
    pub(super) async fn place(&self) -> Option<Stream> {
        loop {
            // Made before it is looked: no word after that is missed.
            let freed = self.0.room.notified();
            match self.take_stream() {
                Room::Here(stream) => return Some(stream),
                Room::ForAnother => return None,
                Room::None => freed.await,
            }
        }
    }

    pub(super) fn take_stream(&self) -> Room {
        let now = Instant::now();
        let mut all = self.0.multiplexed.lock();
        // Those that are too old go on with what is on them, and close behind it.
        all.retain(|kept| kept.is_good(now));
        let room_for_another = all.len() < MAX_CONNECTIONS;
        match all.iter_mut().find(|kept| kept.connection.has_room()) {
            Some(kept) => {
                kept.used = now;
                Room::Here(kept.connection.take())
            }
            None if room_for_another => Room::ForAnother,
            None => Room::None,
        }
    }

    /// No further request gets this connection.
    pub(super) fn forget(&self, connection: &Arc<Multiplexed>) {
        let mut all = self.0.multiplexed.lock();
        all.retain(|kept| !Arc::ptr_eq(&kept.connection, connection));
        drop(all);
        self.0.room.notify_waiters();
    }
}

pub(super) fn answered_on(
    stream: Stream,
    response: Response<Incoming>,
) -> Result<Response<UpstreamBody>, SendFailure> {
    judge(response.status(), response.headers())
        .map_err(|why| SendFailure::MaybeSent(MaybeSent::not_believed(why)))?;
    let version = response.version();
    Ok(response.map(|incoming| UpstreamBody::http2(Received::new(incoming, version), stream)))
}
