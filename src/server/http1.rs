//! A client connection that speaks HTTP/1.1.

use std::{convert::Infallible, pin::pin, sync::Arc};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    connection::{IDLE_AT_DRAIN, Settings},
    drain::Begun,
    head_timer::HeadTimer,
    requests::{Requests, Tracked},
};
use crate::proxy::{Peer, Worker};

/// The least that hyper takes for a connection's buffer, in bytes.
const MIN_BUFFER: usize = 8192;

/// Serves the connection until its client or `drain` ends it. An answer that is under way is finished first, and says
/// `Connection: close`.
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
    let mut connection = pin!(
        http1::Builder::new()
            .timer(HeadTimer(Arc::clone(&worker.heads)))
            .header_read_timeout(settings.head_timeout)
            .max_header_size(settings.max_head_bytes)
            .max_buf_size(settings.max_head_bytes.max(MIN_BUFFER))
            // Dates are the upstream's; the proxy's own errors have one.
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        biased; // no order is better, and choosing one costs something
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
