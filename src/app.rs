//! The application: what `main`, the demo and tests all build, serve and drain.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use anyhow::Context as _;
use http::{
    HeaderName, HeaderValue,
    header::{AUTHORIZATION, CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, TRANSFER_ENCODING},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{self, AdminState, health::Health},
    config::{Config, Server, StoreKind},
    core::{
        policy::{CallerPart, KeyPlace},
        record::ShortId,
    },
    flight::Flights,
    identity::Verifier,
    limit::{Limit, Permit},
    net::Stream,
    proxy::{Peer, PolicyPage, Proxy, Records, Worker},
    route::Router,
    server::{
        connection::{self, Settings},
        drain::Drain,
        listen::Listener,
        worker::{Core, Cores, Load},
    },
    store::{Stores, clock::SystemClock, memory::MemoryStore},
    tasks::Tasks,
    telemetry::{
        access::AccessLog,
        metrics::{Limit as LimitName, Metrics, Side},
    },
    upstream::{Pool, SWEEP_EVERY},
};

/// A proxy that listens and is ready to serve.
#[derive(Debug)]
pub struct App {
    config: Config,
    proxy: Arc<Proxy>,
    workers: Vec<Serving>,
    clients: Vec<Listener>,
    operators: Vec<Listener>,
    admin: Arc<AdminState>,
    health: Arc<Health>,
    connections: Arc<Limit>,
    running: Running,
}

/// One worker, and the core that it runs on.
#[derive(Debug)]
struct Serving {
    core: Core,
    worker: Arc<Worker>,
    connections: Tasks,
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
    /// Binds every address and starts the workers, each on a core of its own; nothing is accepted yet. Belongs into the runtime that will
    /// accept.
    ///
    /// # Errors
    /// An address that cannot be bound, or a thread that cannot be started.
    pub async fn start(
        config: Config,
        metrics: Metrics,
        access: AccessLog,
    ) -> anyhow::Result<Self> {
        let cores = Cores::start(config.server.workers).context("cannot start the workers")?;
        Self::start_on(cores, config, metrics, access).await
    }

    /// [`App::start`] on these cores, whatever `server.workers` says.
    ///
    /// # Errors
    /// An address that cannot be bound.
    pub async fn start_on(
        cores: Cores,
        config: Config,
        metrics: Metrics,
        access: AccessLog,
    ) -> anyhow::Result<Self> {
        let clients = bind(&config.server.listen).await?;
        let operators = bind(&config.admin.listen).await?;
        let running = Running {
            drain: Drain::default(),
            stopped: CancellationToken::new(),
            connections: TaskTracker::new(),
            executions: TaskTracker::new(),
            cores,
        };
        let health = Arc::new(Health::default());
        let mut app = Self {
            proxy: Arc::new(proxy(&config, &metrics, access)?),
            workers: Vec::new(),
            clients,
            operators,
            admin: Arc::new(AdminState::new(metrics.clone(), Arc::clone(&health))),
            health,
            connections: Limit::new(config.server.max_connections),
            running,
            config,
        };
        app.watch_limits(&metrics);
        app.start_workers(&metrics);
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
        self.clients.iter().map(Listener::address)
    }

    /// The addresses that operators connect to.
    pub fn operator_addresses(&self) -> impl Iterator<Item = &str> {
        self.operators.iter().map(Listener::address)
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
        for listener in self.operators.drain(..) {
            own.detach(operate(
                listener,
                Arc::clone(&self.admin),
                own.clone(),
                self.running.stopped.clone(),
            ));
        }
        own.detach(sweep_store(
            Arc::clone(&self.proxy),
            own.clone(),
            self.running.stopped.clone(),
        ));
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
        for listener in self.clients.drain(..) {
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

async fn bind(addresses: &[crate::config::Listen]) -> anyhow::Result<Vec<Listener>> {
    let mut bound = Vec::new();
    for address in addresses {
        bound.append(&mut Listener::bind(address).await?);
    }
    Ok(bound)
}

fn proxy(config: &Config, metrics: &Metrics, access: AccessLog) -> anyhow::Result<Proxy> {
    let router = Router::new(config.routes.clone());
    let policies = || {
        router
            .routes()
            .iter()
            .map(|route| &route.policy)
            .chain([&config.defaults])
    };
    let key_headers = distinct(
        policies()
            .flat_map(|policy| &policy.key_sources)
            .filter_map(|source| match &source.place {
                KeyPlace::Header(name) => Some(name),
                KeyPlace::Query(_) | KeyPlace::Json(_) | KeyPlace::Form(_) => None,
            }),
    );
    let callers = policies()
        .flat_map(|policy| &policy.identity.from)
        .filter_map(|part| match part {
            CallerPart::Header(name) => Some(name),
            CallerPart::Authorization
            | CallerPart::Cookie(_)
            | CallerPart::Jwt(_)
            | CallerPart::SigV4
            | CallerPart::PeerIp => None,
        });
    let fingerprinted = policies().flat_map(|policy| &policy.fingerprint.headers);
    let acted_on = distinct(
        ALWAYS_ACTED_ON
            .iter()
            .chain(&key_headers)
            .chain(callers)
            .chain(fingerprinted),
    );
    let clock = SystemClock::start();
    let store = match config.store.kind {
        StoreKind::None => Stores::None,
        StoreKind::Memory => Stores::Memory(MemoryStore::with_clock(config.store.memory, clock)),
    };
    Ok(Proxy {
        router,
        key_headers,
        acted_on,
        hop: hop()?,
        errors: config.defaults.errors.clone(),
        records: Records::new(store, metrics),
        namespace: config.store.namespace.clone(),
        flights: Flights::new(),
        executions: Limit::new(config.server.max_executions),
        buffered: Limit::new(config.server.max_buffered_bytes),
        body_timeout: config.server.body_timeout,
        max_target_bytes: config.server.max_target_bytes,
        trusted: config.server.trusted_proxies.clone(),
        policy_page: PolicyPage::of(config)?,
        verifiers: config
            .verifiers
            .iter()
            .map(|settings| Arc::new(Verifier::new(settings.clone())))
            .collect(),
        metrics: metrics.clone(),
        access,
        clock,
    })
}

/// This process as `Via` names it.
fn hop() -> anyhow::Result<HeaderValue> {
    let mut tag = [0; 8];
    getrandom::fill(&mut tag).context("the system gives no random bytes")?;
    Ok(HeaderValue::try_from(format!(
        "1.1 idem-proxy-{:016x}",
        u64::from_be_bytes(tag)
    ))?)
}

/// Headers that are acted on whatever the configuration.
const ALWAYS_ACTED_ON: [HeaderName; 7] = [
    AUTHORIZATION,
    CONNECTION,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    TRANSFER_ENCODING,
];

fn distinct<'a>(names: impl Iterator<Item = &'a HeaderName>) -> Vec<HeaderName> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(name) {
            distinct.push(name.clone());
        }
    }
    distinct
}

/// What the accept loops share.
struct Accepting {
    settings: Settings,
    workers: Vec<Serving>,
    connections: Arc<Limit>,
    refusals: Arc<Limit>,
    proxy: Arc<Proxy>,
    drain: Drain,
}

/// So many connections are told at a time that there is no room for them; more are closed without a word.
const MAX_REFUSALS: usize = 256;

/// Accepts until the drain begins; then the listener goes, and with it its address.
async fn accept(listener: Listener, app: Arc<Accepting>) {
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
                Ok(stream) => connection::serve(stream, worker, peer, settings, drain).await,
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

/// Lets the store free what has expired, where it may take its time.
async fn sweep_store(proxy: Arc<Proxy>, tasks: Tasks, stopped: CancellationToken) {
    while !over(&stopped, SWEEP_EVERY).await {
        let proxy = Arc::clone(&proxy);
        // A sweep that panicked is reported by the panic hook; the next one tries again.
        let _ = tasks.block(move || proxy.records.store().sweep()).await;
    }
}

/// Waits for `pause`; whether the end came first.
async fn over(stopped: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = stopped.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}
