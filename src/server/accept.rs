//! Accepting: each connection goes to the worker that has the fewest.

use std::sync::Arc;

use super::{
    connection::{self, Negotiated, Settings},
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
    /// What it serves with.
    pub worker: Arc<Worker>,
    /// Its connections are spawned here and waited for at a drain.
    pub connections: Tasks,
}

/// What the accept loops share.
#[derive(Debug)]
pub struct Accepting {
    /// How connections are served.
    pub settings: Settings,
    /// By whom; never empty.
    pub workers: Vec<Serving>,
    /// `max_connections`
    pub connections: Arc<Limit>,
    /// How many refusals may be told at a time.
    pub refusals: Arc<Limit>,
    /// What all workers share.
    pub proxy: Arc<Proxy>,
    /// When to stop.
    pub drain: Drain,
}

/// So many connections are told at a time that there is no room for them; more are closed without a word.
pub const MAX_REFUSALS: usize = 256;

/// Accepts until the drain begins; then the listener goes, and with it its address.
pub async fn accept(listener: Listener, app: Arc<Accepting>) {
    let mut begun = app.drain.begun();
    loop {
        let (stream, address) = tokio::select! {
            biased;
            () = &mut begun => return,
            accepted = listener.accept() => accepted,
        };
        let Some(permit) = app.connections.take(1) else {
            app.refuse(stream);
            continue;
        };
        app.hand_over(stream, Peer::new(address, &app.proxy.trusted), permit);
    }
}

impl Accepting {
    /// Gives the connection to the core that has the fewest.
    fn hand_over(&self, stream: Stream, peer: Peer, permit: Permit) {
        let least = self
            .workers
            .iter()
            .min_by_key(|serving| serving.core.load());
        let (Some(serving), Ok(stream)) = (least, stream.detach()) else {
            return; // there is always a worker, and a socket that cannot be moved is gone
        };
        let load: Load = serving.core.take_one();
        let counted = self.proxy.metrics.connection(Side::Client);
        let worker = Arc::clone(&serving.worker);
        let (settings, drain) = (self.settings, self.drain.clone());
        serving.connections.spawn(async move {
            match stream.attach() {
                Ok(stream) => {
                    let said = Negotiated::Unsaid;
                    connection::serve(stream, said, worker, peer, settings, drain).await;
                }
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
            drop((permit, load, counted));
        });
    }

    /// Over `max_connections`: 503 and the end, by one of the workers.
    fn refuse(&self, stream: Stream) {
        self.proxy.metrics.limit_refused(LimitName::MaxConnections);
        if let (Some(permit), Some(serving), Ok(stream)) =
            (self.refusals.take(1), self.workers.first(), stream.detach())
        {
            let errors = self.proxy.errors.clone();
            serving.connections.spawn(async move {
                if let Ok(stream) = stream.attach() {
                    connection::refuse(stream, &errors).await;
                }
                drop(permit);
            });
        }
    }
}
