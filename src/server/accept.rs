//! Accepting: each connection goes to the worker that has the fewest.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::time::Instant;

use super::{
    connection::{self, Negotiated, Settings},
    drain::Drain,
    listen::Listener,
    tls::{Secured, handshake},
    worker::{Core, Load},
};
use crate::{
    limit::{Limit, Permit},
    net::{Detached, Stream},
    proxy::{Peer, Proxy, Worker},
    tasks::Tasks,
    telemetry::metrics::{Limit as LimitName, Side},
};

/// One worker, and the core that it runs on.
#[derive(Debug)]
pub struct Serving {
    /// Where it runs.
    pub core: Core,
    /// What it serves with; a reload puts another one in its place, for the requests that begin afterwards.
    pub worker: Arc<ArcSwap<Worker>>,
    /// Its connections are spawned here and waited for at a drain.
    pub connections: Tasks,
}

/// What one configuration says of connections that begin.
#[derive(Debug)]
pub struct Front {
    /// How they are served.
    pub settings: Settings,
    /// What all workers share.
    pub proxy: Arc<Proxy>,
}

/// What the accept loops share.
#[derive(Debug)]
pub struct Accepting {
    /// What is in force for new connections.
    pub front: ArcSwap<Front>,
    /// Whether over TLS.
    pub secured: Secured,
    /// Who serves them; never empty.
    pub workers: Vec<Serving>,
    /// `max_connections`
    pub connections: Arc<Limit>,
    /// How many connections may be told at a time that there is no room for them; more are closed without a word.
    pub refusals: Arc<Limit>,
    /// When to stop.
    pub drain: Drain,
}

/// Accepts until the drain begins; then the listener goes, and with it its address.
pub async fn accept(listener: Listener, app: Arc<Accepting>) {
    let mut begun = app.drain.begun();
    let no_files = || {
        let metrics = &app.front.load().proxy.metrics;
        metrics.limit_refused(LimitName::OpenFiles);
    };
    loop {
        let (stream, address) = tokio::select! {
            biased;
            () = &mut begun => return,
            accepted = listener.accept(no_files) => accepted,
        };
        let front = app.front.load();
        match app.connections.take(1) {
            Some(permit) => {
                let peer = Peer::new(address, &front.proxy.trusted);
                app.hand_over(stream, peer, permit, &front);
            }
            None => app.refuse(stream, &front.proxy),
        }
    }
}

impl Accepting {
    /// Gives the connection to the core that has the fewest.
    fn hand_over(&self, stream: Stream, peer: Peer, permit: Permit, front: &Front) {
        let least = self
            .workers
            .iter()
            .min_by_key(|serving| serving.core.load());
        let (Some(serving), Ok(stream)) = (least, stream.detach()) else {
            return; // there is always a worker, and a socket that cannot be moved is gone
        };
        let load: Load = serving.core.take_one();
        let counted = front.proxy.metrics.connection(Side::Client);
        let connection = Connection {
            stream,
            worker: Arc::clone(&serving.worker),
            peer,
            settings: front.settings,
            drain: self.drain.clone(),
        };
        let held = (permit, load, counted);
        // Two tasks rather than one that does either, for that would have the size of the larger.
        match self.secured.config() {
            None => serving.connections.spawn(async move {
                connection.serve().await;
                drop(held);
            }),
            Some(config) => serving.connections.spawn(async move {
                connection.serve_over_tls(config).await;
                drop(held);
            }),
        };
    }

    /// Over `max_connections`: 503 and the end, by one of the workers. Over TLS only the end: to tell it would take the handshake, which
    /// is what costs most.
    fn refuse(&self, stream: Stream, proxy: &Proxy) {
        proxy.metrics.limit_refused(LimitName::MaxConnections);
        if self.secured.watched().is_some() {
            return;
        }
        if let (Some(permit), Some(serving), Ok(stream)) =
            (self.refusals.take(1), self.workers.first(), stream.detach())
        {
            let errors = proxy.errors.clone();
            serving.connections.spawn(async move {
                if let Ok(stream) = stream.attach() {
                    connection::refuse(stream, &errors).await;
                }
                drop(permit);
            });
        }
    }
}

/// A connection on its way to the worker that serves it.
struct Connection {
    stream: Detached,
    worker: Arc<ArcSwap<Worker>>,
    peer: Peer,
    settings: Settings,
    drain: Drain,
}

impl Connection {
    async fn serve(self) {
        let Some(stream) = attach(self.stream) else {
            return;
        };
        let (negotiated, peer) = (Negotiated::Unsaid, self.peer);
        connection::serve(
            stream,
            negotiated,
            self.worker,
            peer,
            self.settings,
            self.drain,
        )
        .await;
    }

    async fn serve_over_tls(self, config: Arc<ServerConfig>) {
        let Some(stream) = attach(self.stream) else {
            return;
        };
        let timers = Arc::clone(&self.worker.load().times);
        let deadline = Instant::now() + self.settings.times.head;
        let shaken = tokio::select! {
            biased;
            shaken = handshake(stream, config, &timers, deadline) => shaken,
            // It has no request that could be waited for.
            () = self.drain.begun() => return,
        };
        match shaken {
            Ok(shaken) => {
                let peer = self.peer.over_tls(shaken.certificate);
                let (stream, negotiated) = (shaken.stream, shaken.negotiated);
                connection::serve(
                    stream,
                    negotiated,
                    self.worker,
                    peer,
                    self.settings,
                    self.drain,
                )
                .await;
            }
            Err(why) => self.worker.load().proxy.metrics.handshake_failed(why),
        }
    }
}

fn attach(stream: Detached) -> Option<Stream> {
    stream
        .attach()
        .inspect_err(|error| tracing::warn!(%error, "a connection could not be taken over"))
        .ok()
}
