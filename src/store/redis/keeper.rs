//! Keeps one node's connection: makes it, checks the server, listens for what others publish, and does so again when it breaks.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use ::redis::{PushInfo, RedisError, Value, aio::MultiplexedConnection, cmd};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    checks::{Said, Unfit},
    cluster::View,
    node::{Live, Node},
    place::Place,
    replicas::Lanes,
    sentinel::{Sentinels, Told},
};
use crate::{config::RedisStore as Settings, core::record::RecordId, tasks::Tasks};

/// One of it a node.
pub(super) struct Keeper {
    inner: Arc<Inner>,
    node: Arc<Node>,
    source: Source,
    tasks: Tasks,
    timeout: Duration,
    allow_eviction: bool,
    stopped: CancellationToken,
    /// What was last said of the server, so that it is said once.
    said: Option<String>,
    warned: Vec<String>,
    /// Whether it was found to have as many replicas as claims wait for.
    followed: Option<bool>,
}

/// Where the node is.
pub(super) enum Source {
    /// There.
    Fixed(Place),
    /// There, and one of a cluster.
    Member(Place),
    /// Where the sentinels say.
    Sentinels(Sentinels),
}

/// What came of the first try.
#[derive(Debug)]
pub(super) enum First {
    /// The server is used.
    Up,
    /// It is there, and is not to be used.
    Unfit {
        /// Which.
        server: String,
        /// Why.
        why: Unfit,
    },
    /// It cannot be reached now, or not used yet.
    Down,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("it does not answer within {0} ms")]
    Late(u128),
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error("it does not run scripts as it should")]
    Scripts,
    #[error("the cluster is down, as this node sees it (cluster_state)")]
    NotWhole,
    #[error("the sentinels name no master: {0}")]
    NoMaster(String),
    #[error("the sentinels name another master, {0}")]
    Switched(String),
}

impl Keeper {
    pub(super) fn new(
        inner: Arc<Inner>,
        node: Arc<Node>,
        source: Source,
        settings: &Settings,
        tasks: Tasks,
        stopped: CancellationToken,
    ) -> Self {
        Self {
            inner,
            node,
            source,
            tasks,
            timeout: settings.timeout,
            allow_eviction: settings.allow_eviction,
            stopped,
            said: None,
            warned: Vec::new(),
            followed: None,
        }
    }

    /// Until it is stopped. What comes of the first try is told to `first`.
    pub(super) async fn run(mut self, first: impl FnOnce(First)) {
        let (node, inner) = (Arc::clone(&self.node), Arc::clone(&self.inner));
        let stopped = self.stopped.clone();
        tokio::select! {
            () = stopped.cancelled() => {}
            () = self.keep(first) => {}
        }
        node.down();
        inner.changes.wake_all();
    }

    async fn keep(&mut self, first: impl FnOnce(First)) {
        let mut first = Some(first);
        let mut tell = |what: First| {
            if let Some(first) = first.take() {
                first(what);
            }
        };
        let mut pause = LEAST_PAUSE;
        let mut connected = false;
        loop {
            match self.connect().await {
                Ok(live) => {
                    if connected {
                        self.inner.link.metrics.reconnected();
                    }
                    connected = true;
                    pause = LEAST_PAUSE;
                    self.said = None;
                    let place = live.place.clone();
                    self.node.up(live);
                    tell(First::Up);
                    let why = self.tend().await;
                    self.node.down();
                    self.inner.link.astray.notify_one();
                    self.inner.changes.wake_all();
                    self.say(&why, Some(&place));
                }
                Err(failure) => {
                    self.say(&failure, None);
                    tell(match failure {
                        Failure::Unfit(why @ (Unfit::Evicts(_) | Unfit::TooOld(_))) => {
                            First::Unfit {
                                server: self.server(None),
                                why,
                            }
                        }
                        _ => First::Down,
                    });
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    /// What the server is called, where it is known which it is.
    fn server(&self, place: Option<&Place>) -> String {
        match (&self.source, place) {
            (Source::Fixed(_), _) => self.inner.server.clone(),
            (Source::Member(place), _) | (Source::Sentinels(_), Some(place)) => {
                place.address().to_owned()
            }
            (Source::Sentinels(sentinels), None) => {
                format!("the master by the sentinels {}", sentinels.shown())
            }
        }
    }

    /// Says why there is no connection, once for each reason.
    fn say(&mut self, failure: &Failure, place: Option<&Place>) {
        let why = failure.to_string();
        if self.said.as_ref() == Some(&why) {
            return;
        }
        let server = self.server(place);
        match &self.source {
            Source::Member(_) if self.inner.link.shard(&server).is_some() => {
                tracing::error!(%server, error = %why, "a shard of Redis cannot be used; keyed requests of its slots get what on_store_failure says until it can");
            }
            // A replica by now, or a node that left.
            Source::Member(_) => {
                tracing::debug!(%server, error = %why, "a Redis node that has no slots is not used");
            }
            Source::Fixed(_) | Source::Sentinels(_) => {
                tracing::error!(%server, error = %why, "Redis cannot be used; keyed requests get what on_store_failure says until it can");
            }
        }
        self.said = Some(why);
    }

    /// A connection to a server that was found good, with its scripts loaded.
    async fn connect(&mut self) -> Result<Live, Failure> {
        let patience = self.timeout * 4;
        match tokio::time::timeout(patience, self.try_connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(Failure::Late(patience.as_millis())),
        }
    }

    async fn try_connect(&mut self) -> Result<Live, Failure> {
        let place = match &mut self.source {
            Source::Fixed(place) | Source::Member(place) => place.clone(),
            Source::Sentinels(sentinels) => match sentinels.ask().await {
                Told::Master(place) => place,
                Told::Nobody(why) => return Err(Failure::NoMaster(why.to_owned())),
                Told::Silence(why) => {
                    let why = why.map_or_else(|| "none answers".to_owned(), |why| why.to_string());
                    return Err(Failure::NoMaster(why));
                }
            },
        };
        let (inner, node) = (Arc::clone(&self.inner), Arc::clone(&self.node));
        let pushed = move |push: &PushInfo| inner.pushed(&node, push);
        let mut connection = place.connect(self.timeout, pushed).await?;
        self.check(&mut connection, &place).await?;
        for script in self.inner.link.scripts.all() {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(&script.text);
            if load.query_async::<String>(&mut connection).await? != script.hash {
                return Err(Failure::Scripts);
            }
        }
        connection.subscribe(&self.inner.channel).await?;
        // What was published while nobody listened is not known.
        self.inner.cache.clear();
        let mut live = Live::new(connection, place);
        if self.inner.link.wait_replicas > 0 {
            let (inner, node) = (&self.inner, &self.node);
            let lanes = Lanes::open(inner, node, &live.place, self.timeout, &self.tasks);
            live.lanes = Some(lanes);
        }
        self.look_at_clock(&live).await?;
        self.inner.changes.wake_all();
        let server = self.server(Some(&live.place));
        tracing::info!(%server, "Redis is connected");
        Ok(live)
    }

    /// Learns the server's time, so that the first claim is no guess; where there is no telling which keys are this node's, by TIME.
    async fn look_at_clock(&self, live: &Live) -> Result<(), Failure> {
        let sent = self.node.local();
        if let Source::Member(_) = self.source {
            return self.ask_time(live).await;
        }
        self.run_nothing(live, &RecordId::from_bytes([0; 32]))
            .await?;
        self.node.believe(sent);
        Ok(())
    }

    /// Learns it again: it may have been set, and a proxy that only replays runs no script that would tell.
    async fn follow_clock(&self, live: &Live) -> Result<(), Failure> {
        let link = &self.inner.link;
        if link.scripts.take_server_time {
            link.metrics.round_trip();
            return self.ask_time(live).await;
        }
        match link.nothing_on(&self.node, &self.inner.prefix) {
            Some(nothing) => self.run_nothing(live, &nothing).await,
            None => Ok(()),
        }
    }

    async fn ask_time(&self, live: &Live) -> Result<(), Failure> {
        let (sent, time) = (self.node.local(), cmd("TIME"));
        let (seconds, micros): (u64, u64) = time.query_async(&mut live.connection.clone()).await?;
        self.node.learn(sent, seconds * 1000 + micros / 1000);
        Ok(())
    }

    /// Runs a script, which tells the time, on a key that is not there.
    async fn run_nothing(&self, live: &Live, nothing: &RecordId) -> Result<(), Failure> {
        let (link, key) = (&self.inner.link, self.inner.key(nothing));
        link.run_on(&self.node, live, &link.scripts.read, &key, &[], 0)
            .await
            .map(drop)
            .map_err(|_| Failure::Scripts)
    }

    /// Looks whether the server is to be trusted, and says what can be lost.
    async fn check(
        &mut self,
        connection: &mut MultiplexedConnection,
        place: &Place,
    ) -> Result<(), Failure> {
        let info: String = cmd("INFO").query_async(connection).await?;
        let mut config = HashMap::new();
        for name in ["appendfsync", "save"] {
            let mut ask = cmd("CONFIG");
            ask.arg("GET").arg(name);
            let told = ask.query_async::<HashMap<String, String>>(connection).await;
            // Many services do not tell: then nothing is said of it.
            config.extend(told.unwrap_or_default());
        }
        let records: u64 = cmd("DBSIZE").query_async(connection).await?;
        let said = Said::new(&info, config);
        if let Some(unfit) = said.unfit(self.allow_eviction) {
            return Err(unfit.into());
        }
        if let Source::Member(place) = &self.source
            && !View::ask(connection, place.host()).await?.whole
        {
            return Err(Failure::NotWhole);
        }
        let node = &self.node;
        node.records.store(records, Relaxed);
        node.bytes.store(said.used_memory(), Relaxed);
        self.count_replicas(said.replicas(), place);
        let warnings = said.warnings();
        if warnings != self.warned {
            for warning in &warnings {
                let (server, version) = (self.server(Some(place)), said.version());
                tracing::warn!(%server, version, "Redis may lose records: {warning}");
            }
            self.warned = warnings;
        }
        Ok(())
    }

    /// Where its replicas are too few now, or enough again, that is logged.
    fn count_replicas(&mut self, connected: u32, place: &Place) {
        let wanted = self.inner.link.wait_replicas;
        let (before, enough) = (self.node.has_replicas(connected), connected >= wanted);
        if wanted == 0 || self.followed == Some(enough) && before == connected {
            return;
        }
        let server = self.server(Some(place));
        if !enough {
            tracing::error!(%server, connected, wanted, "Redis has fewer replicas than wait_replicas; new keys get what on_store_failure says until it has enough");
        } else if self.followed != Some(true) {
            tracing::info!(%server, connected, wanted, "Redis has as many replicas as wait_replicas");
        }
        self.followed = Some(enough);
    }

    /// Asks the server every second whether it is there, every few seconds what it is, and lets go what was abandoned; until it breaks.
    async fn tend(&mut self) -> Failure {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut beats = 0_u64;
        let (inner, node) = (Arc::clone(&self.inner), Arc::clone(&self.node));
        let news = match &self.source {
            Source::Sentinels(sentinels) => Some(Arc::clone(&sentinels.news)),
            Source::Fixed(_) | Source::Member(_) => None,
        };
        let news = async || match &news {
            Some(news) => news.notified().await,
            None => std::future::pending().await,
        };
        loop {
            tokio::select! {
                () = node.broken.notified() => {
                    if !node.is_up() {
                        return Failure::Late(self.timeout.as_millis());
                    }
                    // An earlier connection broke, or this one has: it is asked at once.
                    beat.reset_immediately();
                }
                () = news() => {
                    if let Err(failure) = self.still_master().await {
                        return failure;
                    }
                    // A sentinel that ends every connection is no reason to do nothing else.
                    tokio::time::sleep(AFTER_NEWS).await;
                }
                _ = beat.tick() => {
                    let Ok(live) = node.live() else {
                        return Failure::Late(self.timeout.as_millis());
                    };
                    if let Err(failure) = self.beat(&live).await {
                        return failure;
                    }
                    beats += 1;
                    if beats.is_multiple_of(CHECK_EVERY)
                        && let Err(failure) = self.check(&mut live.connection.clone(), &live.place).await
                    {
                        return failure;
                    }
                    if !matches!(self.source, Source::Member(_)) {
                        inner.let_go().await;
                    }
                }
            }
        }
    }

    /// Asks whether the server is there, and still what it was. What it published before the answer has come with it.
    async fn beat(&mut self, live: &Live) -> Result<(), Failure> {
        let (link, node) = (&self.inner.link, &self.node);
        let sent = node.local();
        self.follow_clock(live).await?;
        match &self.source {
            Source::Fixed(_) => match link.ask(live, &cmd("PING")).await? {
                Value::SimpleString(_) | Value::Okay | Value::BulkString(_) => node.believe(sent),
                _ => return Err(Failure::Scripts),
            },
            Source::Member(place) => {
                link.metrics.round_trip();
                let view = View::ask(&mut live.connection.clone(), place.host()).await?;
                if !view.whole {
                    return Err(Failure::NotWhole);
                }
                // One that sees other slots as its own says nothing of those that are thought to be.
                if link.is_mapped(&view.map) {
                    node.believe(sent);
                } else {
                    link.astray.notify_one();
                }
            }
            Source::Sentinels(_) => {
                match link.ask(live, &cmd("ROLE")).await? {
                    Value::Array(role) if says_master(role.first()) => node.believe(sent),
                    _ => return Err(Unfit::Replica.into()),
                }
                self.still_master().await?;
            }
        }
        Ok(())
    }

    /// Asks the sentinels. Where none answers, nothing is known against the master.
    async fn still_master(&mut self) -> Result<(), Failure> {
        let Source::Sentinels(sentinels) = &mut self.source else {
            return Ok(());
        };
        let live = self.node.live().ok();
        match sentinels.ask().await {
            Told::Master(place) => match live {
                Some(live) if live.place.address() != place.address() => {
                    Err(Failure::Switched(place.address().to_owned()))
                }
                _ => Ok(()),
            },
            Told::Nobody(why) => Err(Failure::NoMaster(why.to_owned())),
            Told::Silence(_) => Ok(()),
        }
    }
}

fn says_master(role: Option<&Value>) -> bool {
    match role {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    }
}

const LEAST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// How often the server is asked whether it is there.
const BEAT: Duration = Duration::from_secs(1);

/// What sentinels publish is looked into so often at most.
const AFTER_NEWS: Duration = Duration::from_millis(20);

/// Every so many beats what it is.
const CHECK_EVERY: u64 = 4;
