//! The application: what `main`, the demo and tests all build, serve and drain.

mod changes;
mod file;
mod ready;
mod reload;
mod running;
mod workers;

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::file::WatchedFile;
use self::{reload::Reloading, running::Running};
pub use crate::admin::drain::Left;
use crate::{
    admin::{self, AdminState, Operator, Reach, drain::DrainEnd, health::Health},
    config::Config,
    core::framing::Limits,
    descriptors,
    identity::Kept,
    limit::Limit,
    otlp,
    proxy::{Proxy, Records},
    server::{
        accept::{Accepting, Front, accept},
        certificates,
        connection::Settings,
        drain::Drain,
        guard::Times,
        listen::{Listener, Listeners},
        tls::Secured,
        worker::Cores,
    },
    store::{Bound, Levels},
    tasks::{Tasks, caught},
    telemetry::{
        access::AccessLog,
        metrics::{Limit as LimitName, Metrics},
        spans::Spans,
    },
    tls::{self, Follow},
    upstream::{Origin, SWEEP_EVERY},
};

/// A proxy that listens and is ready to serve.
#[derive(Debug)]
pub struct App {
    /// What is in force.
    config: Arc<ArcSwap<Config>>,
    accepting: Arc<Accepting>,
    origins: Arc<ArcSwap<Vec<Arc<Origin>>>>,
    listeners: Listeners,
    admin: Arc<AdminState>,
    health: Arc<Health>,
    reloads: Option<(WatchedFile, mpsc::Receiver<()>)>,
    running: Running,
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// All that ran has finished.
    Whole,
    /// `drain_timeout` passed first, or it was to end at once.
    CutOff(Left),
}

impl App {
    /// Puts the parts together and gives each core its worker; nothing is accepted yet. Belongs into the runtime that will accept.
    ///
    /// # Errors
    /// The disk store cannot be opened, the system gives no random bytes, keys of tokens are to come by `https` and there are no roots, or a
    /// file that the configuration names has changed meanwhile and cannot be used.
    pub fn new(
        config: Config,
        listeners: Listeners,
        cores: Cores,
        metrics: &Metrics,
        access: AccessLog,
    ) -> anyhow::Result<Self> {
        let stopped = CancellationToken::new();
        let own = Tasks::new(Handle::current(), TaskTracker::new());
        let client = tls::Client::default();
        let verifiers = config.verifiers.iter().map(|settings| {
            let verifier = reload::new_verifier(settings, &client)?;
            Ok(Kept::new(verifier, &own, &stopped))
        });
        let verifiers = verifiers.collect::<anyhow::Result<_>>()?;
        let (spans, exporter) = match &config.telemetry.otlp {
            None => (Spans::off(), None),
            Some(otlp) => {
                let (spans, exporter) = otlp::start(otlp, &config.routes, metrics, &own)?;
                (spans, Some(exporter))
            }
        };
        let proxy = Arc::new(Proxy::new(&config, verifiers, metrics, access, spans)?);
        let mut running = Running {
            drain: Drain::default(),
            stopped,
            connections: TaskTracker::new(),
            executions: TaskTracker::new(),
            flights: Arc::clone(&proxy.flights),
            store: proxy.records.shared(),
            cores,
            exporter,
        };
        let health = Arc::new(Health::default());
        let config = Arc::new(config);
        let in_force = Arc::new(ArcSwap::new(Arc::clone(&config)));
        let admin = AdminState::new(
            metrics.clone(),
            Arc::clone(&health),
            proxy.records.shared(),
            Arc::clone(&in_force),
        );
        let origins =
            workers::origins(&config.upstreams, &[], metrics).context("no TLS to upstreams")?;
        let secured = Secured::new(config.server.tls.clone()).context("no TLS to clients")?;
        let app = Self {
            accepting: Arc::new(Accepting {
                front: ArcSwap::from_pointee(front(&config, Arc::clone(&proxy))),
                secured,
                workers: running.start_workers(&proxy, &origins)?,
                connections: Limit::new(room(&config)),
                refusals: Limit::new(descriptors::refusals(descriptors::limit())),
                drain: running.drain.clone(),
            }),
            origins: Arc::new(ArcSwap::from_pointee(origins)),
            listeners,
            admin: Arc::new(admin),
            health,
            reloads: None,
            running,
            config: in_force,
        };
        app.watch_limits(&proxy, metrics);
        let connections = Arc::clone(&app.accepting.connections);
        app.admin.watch_max_connections(move || connections.max());
        let (trouble, in_force) = (proxy.records.watch(), Arc::clone(&app.config));
        app.health.watch_store(move || {
            let needed = in_force.load().needs_store();
            trouble().filter(|_| needed)
        });
        Ok(app)
    }

    /// From now on a change of this file, or a message from `hangups`, puts in force what is in it. Before [`App::serve`].
    pub fn reload_from(&mut self, file: WatchedFile, hangups: mpsc::Receiver<()>) {
        self.reloads = Some((file, hangups));
    }

    fn watch_limits(&self, proxy: &Arc<Proxy>, metrics: &Metrics) {
        for (name, limit) in [
            (LimitName::MaxConnections, &self.accepting.connections),
            (LimitName::MaxExecutions, &proxy.executions),
            (LimitName::MaxBufferedBytes, &proxy.buffered),
        ] {
            let limit = Arc::clone(limit);
            metrics.watch_limit(name, Arc::new(move || limit.level() as u64));
        }
        let records = Arc::downgrade(&proxy.records);
        let levels = move || {
            let records = records.upgrade();
            records.map_or_else(Levels::default, |records| records.store().levels())
        };
        match proxy.records.store().bound() {
            Bound::Claims => {
                metrics.watch_limit(LimitName::MaxClaims, Arc::new(move || levels().claims));
            }
            Bound::Bytes => {
                metrics.watch_limit(LimitName::MaxBytes, Arc::new(move || levels().bytes));
            }
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

    /// Serves until `term` or until an operator asks for a drain, and then drains: not ready at once, no new connections after
    /// `drain_delay`, and what runs is waited for until `drain_timeout`, or until `now`. After an operator's drain it stays until `term`.
    ///
    /// Dropping the future stops everything at once; what ran is left to its lease.
    pub async fn serve(
        mut self,
        term: impl Future<Output = ()>,
        now: impl Future<Output = ()>,
    ) -> Drained {
        let operators = Tasks::new(Handle::current(), TaskTracker::new());
        let draining = CancellationToken::new();
        self.start(&operators, &draining);
        self.health.set_ready();
        let telling = ready::tell(Arc::clone(&self.health), self.running.stopped.clone());
        Tasks::new(Handle::current(), TaskTracker::new()).detach(telling);

        let mut term = pin!(term);
        let by_operator = tokio::select! {
            biased;
            () = term.as_mut() => false,
            () = self.admin.drains().asked() => true,
        };
        draining.cancel();
        let config = self.config.load_full();
        let (delay, patience) = (config.server.drain_delay, config.server.drain_timeout);
        if delay.is_zero() {
            // The listeners go first, so that whoever reads that the process is not ready finds none of them.
            self.running.drain.begin();
            tokio::task::yield_now().await;
        }
        self.health.set_draining();
        tracing::info!("draining");
        self.running.drain(delay, patience, now).await;
        self.tell_drain();
        if by_operator {
            self.stay(term).await;
        }
        self.running.end(&operators).await
    }

    /// Starts what goes on until the process ends, and what does until the drain begins.
    fn start(&mut self, operators: &Tasks, draining: &CancellationToken) {
        let own = Tasks::new(Handle::current(), TaskTracker::new());
        let metrics = self.accepting.front.load().proxy.metrics.clone();
        let sampling = sample(Arc::clone(&self.admin), self.running.stopped.clone());
        own.detach(sampling);
        for listener in self.listeners.operators.drain(..) {
            own.detach(operate(
                listener,
                Arc::clone(&self.admin),
                metrics.clone(),
                operators.clone(),
                self.running.stopped.clone(),
            ));
        }
        if let Some(serving) = self.accepting.workers.first() {
            let records = Arc::clone(&self.accepting.front.load().proxy.records);
            let sweeping = sweep_store(records, self.running.stopped.clone());
            serving.connections.detach(sweeping);
        }
        for listener in self.listeners.clients.drain(..) {
            own.detach(accept(listener, Arc::clone(&self.accepting)));
        }
        own.detach(certificates::follow(
            self.followed(),
            own.clone(),
            metrics,
            self.running.stopped.clone(),
        ));
        if let Some((file, hangups)) = self.reloads.take() {
            let reloading = Reloading {
                file: Arc::new(Mutex::new(file)),
                hangups,
                config: Arc::clone(&self.config),
                accepting: Arc::clone(&self.accepting),
                admin: Arc::clone(&self.admin),
                origins: Arc::clone(&self.origins),
                tasks: own.clone(),
                stopped: self.running.stopped.clone(),
            };
            own.detach(reloading.run(draining.clone()));
        }
    }

    /// The files of TLS that are in force, on both sides.
    fn followed(&self) -> Arc<certificates::Followed> {
        let (accepting, origins) = (Arc::clone(&self.accepting), Arc::clone(&self.origins));
        Arc::new(move || {
            let server = accepting.secured.watched();
            let server = server.map(|files| ("server".to_owned(), files as Arc<dyn Follow>));
            let upstream = |origin: &Arc<Origin>| {
                let which = match origin.upstream().name.as_str() {
                    "" => "upstream".to_owned(),
                    name => format!("upstreams.{name}"),
                };
                Some((which, Arc::clone(origin.tls()?) as Arc<dyn Follow>))
            };
            let upstreams = origins.load();
            server
                .into_iter()
                .chain(upstreams.iter().filter_map(upstream))
                .collect()
        })
    }

    /// Tells the operators that wait for it how the drain has ended.
    fn tell_drain(&self) {
        self.admin.drains().tell(match self.running.left() {
            Drained::Whole => DrainEnd::Whole,
            Drained::CutOff(left) => DrainEnd::Unfinished(left),
        });
    }

    /// After an operator's drain: until `term`. What has not finished goes on meanwhile.
    async fn stay(&self, mut term: std::pin::Pin<&mut impl Future<Output = ()>>) {
        match self.running.left() {
            Drained::Whole => tracing::info!("drained; it stays until it is told to end"),
            Drained::CutOff(left) => tracing::warn!(
                executions = left.executions.len(),
                unsaved = left.unsaved.len(),
                connections = left.connections,
                tasks = left.tasks,
                "drain_timeout has passed and not all that runs has finished; it goes on until the process is told to end"
            ),
        }
        tokio::select! {
            biased;
            () = term.as_mut() => return,
            () = self.running.finished() => self.tell_drain(),
        }
        term.await;
    }
}

/// What `config` says of connections that begin.
fn front(config: &Config, proxy: Arc<Proxy>) -> Front {
    let server = &config.server;
    Front {
        settings: Settings {
            limits: Limits {
                head_bytes: server.max_head_bytes,
                target_bytes: server.max_target_bytes,
            },
            times: Times {
                head: server.head_timeout,
                keepalive: server.keepalive_timeout,
                write: server.write_timeout,
            },
        },
        proxy,
    }
}

/// How many client connections are taken: `max_connections`, or as many as the limit of open files has room for.
fn room(config: &Config) -> usize {
    let (wanted, open_files) = (config.server.max_connections, descriptors::limit());
    let listeners = config.server.listen.len() + config.admin.listen.len();
    let room = descriptors::fitting(wanted, open_files, config.server.threads(), listeners);
    if room < wanted && config.server.takes_the_usual_connections() {
        tracing::info!(
            max_connections = wanted,
            in_force = room,
            open_files,
            "the limit of open files has room for less than the default of max_connections; a lower one is in force"
        );
    } else if room < wanted {
        tracing::warn!(
            max_connections = wanted,
            in_force = room,
            open_files,
            "max_connections is more than the limit of open files has room for; a lower one is in force"
        );
    }
    room
}

/// Serves one admin listener until the process ends.
async fn operate(
    listener: Listener,
    state: Arc<AdminState>,
    metrics: Metrics,
    tasks: Tasks,
    stopped: CancellationToken,
) {
    let reach = if listener.is_local() {
        Reach::Local
    } else {
        Reach::Remote
    };
    let no_files = || metrics.limit_refused(LimitName::OpenFiles);
    loop {
        let (stream, address) = tokio::select! {
            () = stopped.cancelled() => return,
            accepted = listener.accept(no_files) => accepted,
        };
        tasks.spawn(admin::serve(
            stream,
            Arc::clone(&state),
            Operator { address, reach },
            stopped.clone().cancelled_owned(),
        ));
    }
}

/// Takes the samples that operators see as history.
async fn sample(admin: Arc<AdminState>, stopped: CancellationToken) {
    while !over(&stopped, admin::SAMPLE_EVERY).await {
        admin.sample();
    }
}

async fn sweep_store(records: Arc<Records>, stopped: CancellationToken) {
    while !over(&stopped, SWEEP_EVERY).await {
        // A sweep that panicked is reported by the panic hook; the next one tries again.
        let _ = caught(records.store().sweep()).await;
    }
}

/// Waits for `pause`; whether the end came first.
async fn over(stopped: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = stopped.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}
