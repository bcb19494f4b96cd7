//! One upstream, as the pools of all workers share it.

use std::sync::{Arc, atomic::AtomicUsize};

use rustls::ClientConfig;
use tokio::sync::Semaphore;

use super::{NotSent, connect::Unreached};
use crate::{
    config::{self, Protocol},
    telemetry::metrics::{Metrics, UpstreamMetrics},
    tls::{Alpn, Unusable, Watched},
};

/// One upstream: what is configured, what its connections prove themselves by, and what is counted for all of them.
#[derive(Debug)]
pub struct Origin {
    pub(super) upstream: config::Upstream,
    pub(super) tls: Option<Arc<Watched<ClientConfig>>>,
    /// Idle HTTP/1 connections on all workers.
    pub(super) idle_total: AtomicUsize,
    /// Who may ask the resolver.
    pub(super) resolving: Arc<Semaphore>,
    pub(super) seen: UpstreamMetrics,
    pub(super) metrics: Metrics,
}

impl Origin {
    /// Of this configuration. For `https` it reads files, the system's roots among them, and blocks for as long as the file system does:
    /// not for an event loop that serves.
    ///
    /// # Errors
    /// One of the files cannot be used, or the system has no roots and is to be believed.
    pub fn new(upstream: config::Upstream, metrics: Metrics) -> Result<Arc<Self>, Unusable> {
        let offer = offer(upstream.protocol);
        let tls = upstream.tls.clone().map(|files| files.watched(offer));
        Ok(Arc::new(Self {
            tls: tls.transpose()?.map(Arc::new),
            resolving: Arc::new(Semaphore::new(MAX_RESOLVING)),
            idle_total: AtomicUsize::new(0),
            seen: metrics.upstream(&upstream.name),
            metrics,
            upstream,
        }))
    }

    /// Counts how connecting ended, and tells where that is news.
    pub(super) fn counted<T>(&self, reached: Result<T, Unreached>) -> Result<T, NotSent> {
        let name = &self.upstream.name;
        match reached {
            Ok(connected) => {
                if self.seen.connected() {
                    tracing::info!(upstream = name, "an upstream can be reached again");
                }
                Ok(connected)
            }
            Err(failure) => {
                if self.seen.connect_failed(failure.reason()) {
                    tracing::warn!(upstream = name, %failure, "an upstream cannot be reached");
                }
                Err(NotSent::connect(failure))
            }
        }
    }

    /// What it is configured as.
    #[must_use]
    pub fn upstream(&self) -> &config::Upstream {
        &self.upstream
    }

    /// What TLS to it is spoken by, made anew when its files change; `None`: it is called in cleartext.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<Watched<ClientConfig>>> {
        self.tls.as_ref()
    }
}

/// So many may wait for the resolver at a time, on all workers; more wait for their turn.
const MAX_RESOLVING: usize = 8;

/// What is offered to an upstream of this protocol.
fn offer(protocol: Protocol) -> Alpn {
    match protocol {
        Protocol::Auto => Alpn::Either,
        Protocol::Http1 => Alpn::Http1,
        Protocol::Http2 => Alpn::Http2,
    }
}
