//! Reloading: at SIGHUP, or when the configuration file has changed, what it says takes effect, whole or not at all.
//!
//! Nothing is interrupted: a request keeps the configuration that it began under, a connection goes on, records, flights and counts
//! are the same. What is wrong with a new configuration, or needs a restart, refuses it as a whole.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    changes,
    file::{Look, WatchedFile},
    front, room, workers,
};
use crate::{
    admin::AdminState,
    config::{self, Config, Loaded, StoreKind},
    identity::{Kept, Settings, Verifier},
    server::accept::Accepting,
    tasks::Tasks,
    telemetry::metrics::Reload,
    tls::{self, ServerFiles, Watched},
    upstream::Origin,
};

/// The file is looked at so often; a change is believed when several looks find the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What reloads a configuration, and what it then changes.
#[derive(Debug)]
pub(super) struct Reloading {
    pub(super) file: Arc<Mutex<WatchedFile>>,
    pub(super) hangups: mpsc::Receiver<()>,
    /// What is in force.
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) accepting: Arc<Accepting>,
    pub(super) admin: Arc<AdminState>,
    pub(super) origins: Arc<ArcSwap<Vec<Arc<Origin>>>>,
    pub(super) tasks: Tasks,
    /// The process ends.
    pub(super) stopped: CancellationToken,
}

/// Why a configuration is not put in force, one line each.
type Refused = Vec<String>;

/// What a reload is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// SIGHUP: somebody means it.
    Hangup,
    /// The file has changed.
    File,
}

/// A configuration that can be put in force, and what was made for it.
struct Prepared {
    loaded: Loaded,
    verifiers: Vec<Kept>,
    origins: Vec<Arc<Origin>>,
    secured: Secured,
}

/// What becomes of TLS to clients.
enum Secured {
    /// `[server.tls]` says what it said.
    AsBefore,
    /// It is spoken by this; `None`: not at all.
    By(Option<Watched<ServerConfig>>),
}

impl Reloading {
    /// Reloads when it is time to, until the drain begins.
    pub(super) async fn run(mut self, draining: CancellationToken) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let cause = tokio::select! {
                biased;
                () = draining.cancelled() => return,
                Some(()) = self.hangups.recv() => Cause::Hangup,
                _ = looks.tick() => match self.look().await {
                    Look::Nothing => continue,
                    Look::Changed => Cause::File,
                },
            };
            self.reload(cause).await;
        }
    }

    async fn look(&self) -> Look {
        let file = Arc::clone(&self.file);
        let look = self.tasks.block(move || file.lock().look());
        // A look that panicked is reported by the panic hook; the next one tries again.
        look.await.unwrap_or(Look::Nothing)
    }

    async fn reload(&mut self, cause: Cause) {
        let result = match self.prepare(cause).await {
            Ok(prepared) => self.put_in_force(prepared),
            Err(refused) => Err(refused),
        };
        let counted = match result {
            Ok(()) => Reload::Applied,
            Err(refused) => {
                for problem in &refused {
                    tracing::error!(%problem, "this keeps the configuration from being reloaded");
                }
                let problems = refused.len();
                tracing::error!(
                    problems,
                    "the configuration was not reloaded: the old one stays in force"
                );
                Reload::Refused
            }
        };
        let front = self.accepting.front.load();
        front.proxy.metrics.config_reload(counted);
    }

    /// Reads what is to be put in force, and makes ready what takes its time.
    async fn prepare(&self, cause: Cause) -> Result<Prepared, Refused> {
        let file = Arc::clone(&self.file);
        let reading = self.tasks.block(move || {
            let mut file = file.lock();
            file.note();
            if !file.is_file() {
                let path = file.path().display();
                return Err(vec![format!(
                    "{path}: there is no file that could be read again"
                )]);
            }
            let lines = |problems: config::Problems| {
                problems.to_string().lines().map(str::to_owned).collect()
            };
            config::load(file.path(), config::environment()).map_err(lines)
        });
        let loaded = reading.await.unwrap_or_else(|_| {
            Err(vec![
                "reading it failed: this is a fault of idem-proxy".into(),
            ])
        })?;
        let old = self.config.load_full();
        let restart: Refused = changes::need_a_restart(&old, &loaded.config)
            .into_iter()
            .map(|key| format!("{key} was changed, which needs a restart"))
            .collect();
        if !restart.is_empty() {
            return Err(restart);
        }
        if cause == Cause::File && loaded.config.routes.is_empty() && !old.routes.is_empty() {
            return Err(vec![
                "there is no [[route]] any more, as in a file that is half written: if it is meant, SIGHUP puts it in force".into(),
            ]);
        }
        let failed = |error: anyhow::Error| vec![format!("{error:#}")];
        let verifiers = self.verifiers(&loaded.config.verifiers).await;
        let verifiers = verifiers.map_err(failed)?;
        let (origins, secured) = self.tls(&old, &loaded.config).await.map_err(failed)?;
        Ok(Prepared {
            loaded,
            verifiers,
            origins,
            secured,
        })
    }

    /// The upstreams, and what TLS to clients is spoken by if that has changed. Their files are read where blocking is allowed.
    async fn tls(&self, old: &Config, new: &Config) -> anyhow::Result<(Vec<Arc<Origin>>, Secured)> {
        let before = self.origins.load_full();
        let metrics = self.accepting.front.load().proxy.metrics.clone();
        let upstreams = new.upstreams.clone();
        let changed = (old.server.tls != new.server.tls).then(|| new.server.tls.clone());
        let made = self.tasks.block(move || {
            let origins = workers::origins(&upstreams, &before, &metrics)?;
            let secured = match changed {
                None => Secured::AsBefore,
                Some(files) => Secured::By(files.map(ServerFiles::watched).transpose()?),
            };
            Ok::<_, tls::Unusable>((origins, secured))
        });
        Ok(made.await.context("TLS was not prepared")??)
    }

    /// Those of the old configuration where they do what is asked, with their keys; new ones have theirs fetched.
    async fn verifiers(&self, wanted: &[Settings]) -> anyhow::Result<Vec<Kept>> {
        let proxy = Arc::clone(&self.accepting.front.load().proxy);
        let mut verifiers = Vec::with_capacity(wanted.len());
        for settings in wanted {
            let same = proxy.verifiers.iter().find(|kept| kept.is_for(settings));
            if let Some(kept) = same {
                kept.renew(settings);
                verifiers.push(kept.clone());
                continue;
            }
            // The system's roots are read for it, which blocks.
            let own = settings.clone();
            let made = self
                .tasks
                .block(move || new_verifier(&own, &tls::Client::default()));
            let verifier = made.await.context("no verifier")??;
            verifier.prepare().await;
            verifiers.push(Kept::new(verifier, &self.tasks, &self.stopped));
        }
        Ok(verifiers)
    }

    /// From now on requests that begin are treated by `loaded`.
    fn put_in_force(&mut self, prepared: Prepared) -> Result<(), Refused> {
        let Prepared {
            loaded,
            verifiers,
            origins,
            secured,
        } = prepared;
        let Loaded {
            config, warnings, ..
        } = loaded;
        let before = Arc::clone(&self.accepting.front.load().proxy);
        let proxy = before.under(&config, verifiers);
        let proxy = Arc::new(proxy.map_err(|error| vec![format!("{error:#}")])?);
        // Nothing fails from here on.
        let old = self.config.load_full();
        for serving in &self.accepting.workers {
            let worker = workers::next(&serving.worker.load(), &proxy, &origins);
            serving.worker.store(Arc::new(worker));
        }
        self.origins.store(Arc::new(origins));
        if let Secured::By(watched) = secured {
            self.accepting.secured.set(watched);
        }
        self.accepting
            .front
            .store(Arc::new(front(&config, Arc::clone(&proxy))));
        self.accepting.connections.set_max(room(&config));
        proxy.executions.set_max(config.server.max_executions);
        proxy.buffered.set_max(config.server.max_buffered_bytes);
        self.admin.set_token(config.admin.token.clone());
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let routes = changes::forgetful(&old, &config).join(", ");
        if config.store.kind != StoreKind::None && !routes.is_empty() {
            tracing::warn!(
                routes,
                "identity, scope or fingerprint of these routes has changed: their older records may no longer match"
            );
        }
        self.config.store(Arc::new(config));
        tracing::info!("the configuration was reloaded");
        Ok(())
    }
}

/// A verifier by these settings, without the keys of its URL.
///
/// # Errors
/// Keys are to come by `https`, and there are no roots.
pub(super) fn new_verifier(settings: &Settings, tls: &tls::Client) -> anyhow::Result<Verifier> {
    Verifier::new(settings.clone(), tls)
        .with_context(|| format!("no keys of tokens from {}", settings.source))
}
