//! Keeps the connection: makes it, checks the server, listens for what others publish, and does so again when it breaks.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc::SyncSender},
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo as _, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value, aio::MultiplexedConnection, cmd,
};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    checks::{Said, Unfit},
    link::Live,
};
use crate::{config::RedisStore as Settings, core::record::RecordId};

/// One of it a store.
pub(super) struct Keeper {
    pub(super) inner: Arc<Inner>,
    pub(super) settings: Settings,
    pub(super) stopped: CancellationToken,
    /// What was last said of the server, so that it is said once.
    said: Option<String>,
    warned: Vec<String>,
}

/// What came of the first try.
#[derive(Debug)]
pub(super) enum First {
    /// The server is used.
    Up,
    /// It is there, and is not to be used.
    Unfit(Unfit),
    /// It cannot be reached now, or not used yet.
    Down,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("it does not answer within {0} ms")]
    Late(u128),
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error("it does not run scripts as it should")]
    Scripts,
}

impl Keeper {
    pub(super) fn new(inner: Arc<Inner>, settings: Settings, stopped: CancellationToken) -> Self {
        Self {
            inner,
            settings,
            stopped,
            said: None,
            warned: Vec::new(),
        }
    }

    /// Until it is stopped. What comes of the first try is told to `first`.
    pub(super) async fn run(mut self, first: SyncSender<First>) {
        let stopped = self.stopped.clone();
        let mut first = Some(first);
        let mut tell = |what: First| {
            if let Some(first) = first.take() {
                // Nobody may wait for it any more.
                let _ = first.try_send(what);
            }
        };
        let mut pause = LEAST_PAUSE;
        let mut connected = false;
        loop {
            let tried = tokio::select! {
                () = stopped.cancelled() => return,
                tried = self.connect() => tried,
            };
            match tried {
                Ok(connection) => {
                    if connected {
                        self.inner.link.metrics.reconnected();
                    }
                    connected = true;
                    pause = LEAST_PAUSE;
                    self.said = None;
                    self.inner.link.up(connection);
                    tell(First::Up);
                    let ended = tokio::select! {
                        () = stopped.cancelled() => None,
                        why = self.tend() => Some(why),
                    };
                    self.inner.link.down();
                    self.inner.changes.wake_all();
                    match ended {
                        None => return,
                        Some(why) => self.say(&why),
                    }
                }
                Err(failure) => {
                    self.say(&failure);
                    tell(match failure {
                        Failure::Unfit(unfit @ (Unfit::Evicts(_) | Unfit::TooOld(_))) => {
                            First::Unfit(unfit)
                        }
                        _ => First::Down,
                    });
                }
            }
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    /// Says why there is no connection, once for each reason.
    fn say(&mut self, failure: &Failure) {
        let why = failure.to_string();
        if self.said.as_ref() != Some(&why) {
            let server = &self.inner.server;
            tracing::error!(%server, error = %why, "Redis cannot be used; keyed requests are refused until it can");
            self.said = Some(why);
        }
    }

    /// A connection to a server that was found good, with its scripts loaded.
    async fn connect(&mut self) -> Result<MultiplexedConnection, Failure> {
        let patience = self.settings.timeout * 4;
        match tokio::time::timeout(patience, self.try_connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(Failure::Late(patience.as_millis())),
        }
    }

    async fn try_connect(&mut self) -> Result<MultiplexedConnection, Failure> {
        let info = self.settings.url.expose().into_connection_info()?;
        let redis = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(redis))?;
        let inner = Arc::clone(&self.inner);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.timeout))
            .set_response_timeout(Some(self.settings.timeout))
            .set_push_sender(move |push: PushInfo| {
                inner.pushed(&push);
                Ok::<_, Infallible>(())
            });
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        self.check(&mut connection).await?;
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
        let (link, live) = (&self.inner.link, Live(connection.clone()));
        let sent = link.local();
        let nothing = self.inner.key(&RecordId::from_bytes([0; 32]));
        link.run_on(&live, &link.scripts.read, &nothing, &[], 0)
            .await
            .map_err(|_| Failure::Scripts)?;
        link.believe(sent);
        self.inner.changes.wake_all();
        let server = &self.inner.server;
        tracing::info!(%server, "Redis is connected");
        Ok(connection)
    }

    /// Looks whether the server is to be trusted, and says what can be lost.
    async fn check(&mut self, connection: &mut MultiplexedConnection) -> Result<(), Failure> {
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
        if let Some(unfit) = said.unfit(self.settings.allow_eviction) {
            return Err(unfit.into());
        }
        if let Some(replicas) = &self.inner.replicas {
            replicas.told(said.replicas(), &self.inner.server);
        }
        let link = &self.inner.link;
        link.records.store(records, Relaxed);
        link.bytes.store(said.used_memory(), Relaxed);
        let warnings = said.warnings();
        if warnings != self.warned {
            for warning in &warnings {
                let (server, version) = (&self.inner.server, said.version());
                tracing::warn!(%server, version, "Redis may lose records: {warning}");
            }
            self.warned = warnings;
        }
        Ok(())
    }

    /// Asks the server every second whether it is there, every few seconds what it is, and lets go what was abandoned; until it breaks.
    async fn tend(&mut self) -> Failure {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut beats = 0_u64;
        let inner = Arc::clone(&self.inner);
        let link = &inner.link;
        loop {
            tokio::select! {
                () = link.broken.notified() => {
                    if !link.is_up() {
                        return Failure::Late(self.settings.timeout.as_millis());
                    }
                    // An earlier connection broke, or this one has: it is asked at once.
                    beat.reset_immediately();
                }
                _ = beat.tick() => {
                    let Ok(live) = link.live() else {
                        return Failure::Late(self.settings.timeout.as_millis());
                    };
                    let sent = link.local();
                    match link.ask(&live, &cmd("PING")).await {
                        Ok(Value::SimpleString(_) | Value::Okay | Value::BulkString(_)) => link.believe(sent),
                        Ok(_) => return Failure::Scripts,
                        Err(error) => return error.into(),
                    }
                    beats += 1;
                    if beats.is_multiple_of(CHECK_EVERY)
                        && let Err(failure) = self.check(&mut live.0.clone()).await
                    {
                        return failure;
                    }
                    inner.let_go().await;
                }
            }
        }
    }
}

impl Inner {
    /// What another process, or this one, has published: its kind, who published it, the record.
    fn pushed(&self, push: &PushInfo) {
        if push.kind == PushKind::Disconnection {
            self.link.broken.notify_one();
            return;
        }
        let (PushKind::Message, Some(Value::BulkString(message))) = (&push.kind, push.data.get(1))
        else {
            return;
        };
        let Some((kind, rest)) = message.split_first() else {
            return;
        };
        let Some((origin, id)) = rest.split_at_checked(super::ORIGIN) else {
            return;
        };
        let Ok(id) = <[u8; 32]>::try_from(id) else {
            return;
        };
        let id = RecordId::from_bytes(id);
        // What this process settled, it has put into its cache itself.
        if *kind == b'p' || origin != self.origin {
            self.cache.written(id, None);
        }
        self.changes.wake(&id);
    }

    /// Lets claims go that nobody holds.
    async fn let_go(&self) {
        for one in self.link.due() {
            if self.release(&one.id, one.token).await.is_err() {
                self.link.again(one);
            }
        }
    }
}

const LEAST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// How often the server is asked whether it is there.
const BEAT: Duration = Duration::from_secs(1);

/// Every so many beats what it is.
const CHECK_EVERY: u64 = 4;
