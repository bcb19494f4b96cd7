//! Accepting: each connection goes to the worker that has the fewest.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{
    connection::{self, Settings},
    drain::Drain,
    listen::Listener,
    worker::{Core, Load},
};
use crate::{
    limit::{Limit, Permit},
    net::Stream,
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
    /// Who serves them; never empty.
    pub workers: Vec<Serving>,
    /// `max_connections`
    pub connections: Arc<Limit>,
    /// How many refusals may be told at a time.
    pub refusals: Arc<Limit>,
    /// When to stop.
    pub drain: Drain,
}

/// So many connections are told at a time that there is no room for them; more are closed without a word.
pub const MAX_REFUSALS: usize = 256;

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
        let worker = Arc::clone(&serving.worker);
        let (settings, drain) = (front.settings, self.drain.clone());
        serving.connections.spawn(async move {
            match stream.attach() {
                Ok(stream) => connection::serve(stream, worker, peer, settings, drain).await,
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
            drop((permit, load, counted));
        });
    }

    /// Over `max_connections`: 503 and the end, by one of the workers.
    fn refuse(&self, stream: Stream, proxy: &Proxy) {
        proxy.metrics.limit_refused(LimitName::MaxConnections);
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
