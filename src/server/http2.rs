//! A client connection that speaks HTTP/2 (RFC 9113).

use std::{convert::Infallible, pin::pin, sync::Arc};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    connection::{IDLE_AT_DRAIN, Settings},
    drain::Begun,
    head_timer::HeadTimer,
    requests::{Requests, Tracked},
};
use crate::{
    proxy::{Peer, Worker},
    tasks::Streams,
};

/// So many requests of one connection may run at a time.
const MAX_STREAMS: u32 = 100;

/// What a client may send of one body before the proxy has taken it, in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all bodies of one connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Serves the connection until its client or `drain` ends it. Answers that are under way are finished first.
pub(super) async fn serve<S>(
    stream: S,
    worker: Arc<Worker>,
    peer: Arc<Peer>,
    settings: Settings,
    drain: Begun,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let requests = Requests::default();
    let counted = requests.clone();
    let served = Arc::clone(&worker);
    let service = service_fn(move |request| {
        let (worker, peer) = (Arc::clone(&served), Arc::clone(&peer));
        let running = counted.start();
        async move {
            let answer = worker.answer(request, peer).await;
            Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, running)))
        }
    });
    let max_head = u32::try_from(settings.max_head_bytes).unwrap_or(u32::MAX);
    let mut connection = pin!(
        http2::Builder::new(Streams(worker.executions.clone()))
            .timer(HeadTimer(Arc::clone(&worker.heads)))
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(max_head)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = drain => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = requests.none_for(IDLE_AT_DRAIN) => return,
            }
        }
    };
    if let Err(error) = ended {
        // A client that goes away is no event of ours.
        tracing::debug!(%error, "a client connection ended early");
    }
}
