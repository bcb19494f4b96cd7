//! The application: what `main`, the demo and tests all build, serve and drain.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{self, AdminState, health::Health},
    config::{Config, Server},
    core::record::ShortId,
    flight::Flights,
    limit::Limit,
    proxy::{Proxy, Worker},
    server::{
        accept::{Accepting, MAX_REFUSALS, Serving, accept},
        connection::Settings,
        drain::Drain,
        listen::{Listener, Listeners},
        worker::Cores,
    },
    store::{Bound, Levels},
    tasks::{Tasks, caught},
    telemetry::{
        access::AccessLog,
        metrics::{Limit as LimitName, Metrics},
    },
    upstream::{Pool, SWEEP_EVERY},
};

/// A proxy that listens and is ready to serve.
#[derive(Debug)]
pub struct App {
    config: Config,
    proxy: Arc<Proxy>,
    workers: Vec<Serving>,
    listeners: Listeners,
    admin: Arc<AdminState>,
    health: Arc<Health>,
    connections: Arc<Limit>,
    running: Running,
}

/// What has to end before the process may.
#[derive(Debug)]
struct Running {
    drain: Drain,
    /// What goes on beside the requests ends.
    stopped: CancellationToken,
    connections: TaskTracker,
    executions: TaskTracker,
    cores: Cores,
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// All that ran has finished.
    Whole,
    /// `drain_timeout` passed first, or it was to end at once.
    CutOff {
        /// The records of the executions that were cut off; they are left to their leases.
        executions: Vec<ShortId>,
        /// How many client connections were.
        connections: usize,
    },
}

impl App {
    /// Puts the parts together and gives each core its worker; nothing is accepted yet. Belongs into the runtime that will accept.
    ///
    /// # Errors
    /// The disk store cannot be opened, or the system gives no random bytes.
    pub fn new(
        config: Config,
        listeners: Listeners,
        cores: Cores,
        metrics: &Metrics,
        access: AccessLog,
    ) -> anyhow::Result<Self> {
        let running = Running {
            drain: Drain::default(),
            stopped: CancellationToken::new(),
            connections: TaskTracker::new(),
            executions: TaskTracker::new(),
            cores,
        };
        let health = Arc::new(Health::default());
        let mut app = Self {
            proxy: Arc::new(Proxy::new(&config, metrics, access)?),
            workers: Vec::new(),
            listeners,
            admin: Arc::new(AdminState::new(metrics.clone(), Arc::clone(&health))),
            health,
            connections: Limit::new(config.server.max_connections),
            running,
            config,
        };
        app.watch_limits(metrics);
        app.health.watch_store(app.proxy.records.watch());
        app.start_workers(metrics);
        Ok(app)
    }

    fn watch_limits(&self, metrics: &Metrics) {
        for (name, limit) in [
            (LimitName::MaxConnections, &self.connections),
            (LimitName::MaxExecutions, &self.proxy.executions),
            (LimitName::MaxBufferedBytes, &self.proxy.buffered),
        ] {
            let limit = Arc::clone(limit);
            metrics.watch_limit(name, Arc::new(move || limit.level() as u64));
        }
        let proxy = Arc::downgrade(&self.proxy);
        let levels = move || {
            let proxy = proxy.upgrade();
            proxy.map_or_else(Levels::default, |proxy| proxy.records.store().levels())
        };
        match self.proxy.records.store().bound() {
            Bound::Claims => {
                metrics.watch_limit(LimitName::MaxClaims, Arc::new(move || levels().claims));
            }
            Bound::Bytes => {
                metrics.watch_limit(LimitName::MaxBytes, Arc::new(move || levels().bytes));
            }
        }
    }

    fn start_workers(&mut self, metrics: &Metrics) {
        let idle_totals: Vec<_> = self
            .config
            .upstreams
            .iter()
            .map(|_| Arc::new(AtomicUsize::new(0)))
            .collect();
        for core in self.running.cores.take() {
            let executions = Tasks::new(core.runtime().clone(), self.running.executions.clone());
            let connections = Tasks::new(core.runtime().clone(), self.running.connections.clone());
            let pool = |(upstream, total): (&crate::config::Upstream, &Arc<AtomicUsize>)| {
                Pool::new(
                    upstream.clone(),
                    Arc::clone(total),
                    executions.clone(),
                    metrics.clone(),
                )
            };
            let pools: Vec<Pool> = self
                .config
                .upstreams
                .iter()
                .zip(&idle_totals)
                .map(pool)
                .collect();
            connections.detach(sweep_pools(pools.clone(), self.running.stopped.clone()));
            let worker = Arc::new(Worker {
                proxy: Arc::clone(&self.proxy),
                pools,
                executions,
                heads: Arc::default(),
            });
            self.workers.push(Serving {
                core,
                worker,
                connections,
            });
        }
    }

    /// The addresses that clients connect to.
    pub fn client_addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.clients.iter().map(Listener::address)
    }

    /// The addresses that operators connect to.
    pub fn operator_addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.operators.iter().map(Listener::address)
    }

    /// Serves until `term`, then drains: not ready at once, no new connections after `drain_delay`, and what runs is waited for until
    /// `drain_timeout`, or until `now`.
    ///
    /// Dropping the future stops everything at once; what ran is left to its lease.
    pub async fn serve(
        mut self,
        term: impl Future<Output = ()>,
        now: impl Future<Output = ()>,
    ) -> Drained {
        let own = Tasks::new(tokio::runtime::Handle::current(), TaskTracker::new());
        for listener in self.listeners.operators.drain(..) {
            own.detach(operate(
                listener,
                Arc::clone(&self.admin),
                own.clone(),
                self.running.stopped.clone(),
            ));
        }
        if let Some(serving) = self.workers.first() {
            let stopped = self.running.stopped.clone();
            let sweeping = sweep_store(Arc::clone(&self.proxy), stopped);
            serving.connections.detach(sweeping);
        }
        for verifier in &self.proxy.verifiers {
            own.detach(Arc::clone(verifier).keep_fresh(own.clone(), self.running.stopped.clone()));
        }
        let app = Arc::new(Accepting {
            settings: Settings {
                head_timeout: self.config.server.head_timeout,
                max_head_bytes: self.config.server.max_head_bytes,
            },
            workers: self.workers,
            connections: self.connections,
            refusals: Limit::new(MAX_REFUSALS),
            proxy: Arc::clone(&self.proxy),
            drain: self.running.drain.clone(),
        });
        for listener in self.listeners.clients.drain(..) {
            own.spawn(accept(listener, Arc::clone(&app)));
        }
        drop(app);
        self.health.set_ready();
        tracing::info!("ready");

        term.await;
        self.health.set_draining();
        tracing::info!("draining");
        let Server {
            drain_delay,
            drain_timeout,
            ..
        } = self.config.server;
        let mut now = std::pin::pin!(now);
        tokio::select! {
            () = tokio::time::sleep(drain_delay) => {}
            () = now.as_mut() => {
                return self.running.drain(std::future::ready(()), &self.proxy.flights).await;
            }
        }
        let enough = async {
            tokio::select! {
                () = tokio::time::sleep(drain_timeout) => {}
                () = now => {}
            }
        };
        self.running.drain(enough, &self.proxy.flights).await
    }
}

impl Running {
    /// Waits for what runs, but not longer than for `enough`.
    async fn drain(self, enough: impl Future<Output = ()>, flights: &Flights) -> Drained {
        self.drain.begin();
        self.connections.close();
        let finished = async {
            // A connection can still start an execution, so that the executions are counted after the connections.
            self.connections.wait().await;
            self.executions.close();
            self.executions.wait().await;
        };
        let drained = tokio::select! {
            biased;
            () = finished => Drained::Whole,
            () = enough => Drained::CutOff {
                executions: flights.records(),
                connections: self.connections.len(),
            },
        };
        self.stopped.cancel();
        self.cores.end();
        drained
    }
}

/// Serves one admin listener until the process ends.
async fn operate(
    listener: Listener,
    state: Arc<AdminState>,
    tasks: Tasks,
    stopped: CancellationToken,
) {
    loop {
        let (stream, _) = tokio::select! {
            () = stopped.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        tasks.detach(admin::serve(
            stream,
            Arc::clone(&state),
            stopped.clone().cancelled_owned(),
        ));
    }
}

async fn sweep_pools(pools: Vec<Pool>, stopped: CancellationToken) {
    while !over(&stopped, SWEEP_EVERY).await {
        pools.iter().for_each(Pool::drop_old);
    }
}

async fn sweep_store(proxy: Arc<Proxy>, stopped: CancellationToken) {
    while !over(&stopped, SWEEP_EVERY).await {
        // A sweep that panicked is reported by the panic hook; the next one tries again.
        let _ = caught(proxy.records.store().sweep()).await;
    }
}

/// Waits for `pause`; whether the end came first.
async fn over(stopped: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = stopped.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}
