//! `wait_replicas`: a claim counts once so many replicas have it.
//!
//! `WAIT` answers for what its own connection has written, and blocks that connection meanwhile. So it has connections of its own, lanes.
//! A lane takes all claims that wait, renews one of them there, and waits once: a replica that has this renewal has everything that the
//! server wrote before it, and so every claim that was made when the renewal was sent. While one lane waits, the next takes what comes.
//!
//! Only claims are waited for. A failover that loses a settlement leaves the claim, and so an unknown outcome; it executes nothing twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ::redis::{AsyncConnectionConfig, Client, IntoConnectionInfo as _, RedisError, Value, cmd};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Inner, SLACK, Unsure, link::Live, span};
use crate::{
    config::RedisStore as Settings,
    core::{policy::Terms, record::RecordId},
    store::{Claim, StoreError},
    tasks::{self, JoinThread},
};

/// What a store has of it, if claims wait for replicas.
#[derive(Debug)]
pub(super) struct Replicas {
    wanted: u32,
    /// How many the server said were there.
    connected: AtomicU32,
    claims: mpsc::Sender<Waiting>,
    timeout: Duration,
}

/// A claim that waits.
#[derive(Debug)]
struct Waiting {
    id: RecordId,
    token: [u8; 16],
    lease: String,
    until: Instant,
    said: oneshot::Sender<Result<(), StoreError>>,
}

/// The other end: claims for the lanes.
pub(super) struct Claims(Mutex<mpsc::Receiver<Waiting>>);

impl Replicas {
    /// For so many replicas; `None`: no claim waits.
    pub(super) fn new(settings: &Settings) -> Option<(Self, Claims)> {
        let (claims, waiting) = mpsc::channel(QUEUE);
        let replicas = Self {
            wanted: settings.wait_replicas,
            connected: AtomicU32::new(NOT_SAID),
            claims,
            timeout: settings.timeout,
        };
        (settings.wait_replicas > 0).then_some((replicas, Claims(Mutex::new(waiting))))
    }

    /// What the server says of its replicas. Where that are too few now, or enough again, it is logged.
    pub(super) fn told(&self, connected: u32, server: &str) {
        let wanted = self.wanted;
        let before = self.connected.swap(connected, Relaxed);
        if connected < wanted && connected != before {
            tracing::error!(
                server,
                connected,
                wanted,
                "Redis has fewer replicas than wait_replicas; new keys are refused until it has enough"
            );
        } else if connected >= wanted && (before < wanted || before == NOT_SAID) {
            tracing::info!(
                server,
                connected,
                wanted,
                "Redis has as many replicas as wait_replicas"
            );
        }
    }

    /// Whether there are enough to wait for.
    pub(super) fn enough(&self) -> bool {
        self.connected.load(Relaxed) >= self.wanted
    }

    /// Waits until enough replicas have a claim that was made, for which the store was asked then.
    ///
    /// Dropping the future leaves the claim as it is.
    ///
    /// # Errors
    /// They do not have it within the store's timeout, or it is lost.
    pub(super) async fn have(
        &self,
        claim: &Claim,
        terms: &Terms,
        asked: Instant,
    ) -> Result<(), StoreError> {
        let (said, answer) = oneshot::channel();
        let until = asked + self.timeout;
        let waiting = Waiting {
            id: claim.id,
            token: claim.token.to_bytes(),
            lease: span(terms.lease),
            until,
            said,
        };
        self.claims
            .try_send(waiting)
            .map_err(|_| StoreError::Unavailable)?;
        match tokio::time::timeout_at(until.into(), answer).await {
            Ok(Ok(said)) => said,
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable),
        }
    }
}

impl Inner {
    /// A claim that was made, once enough replicas have it. One that they do not have is let go.
    ///
    /// Dropping the future has it let go a moment later.
    ///
    /// # Errors
    /// They do not have it in time.
    pub(super) async fn shared(
        &self,
        claim: Claim,
        terms: &Terms,
        asked: Instant,
        unsure: Unsure<'_>,
    ) -> Result<Claim, StoreError> {
        let had = match &self.replicas {
            Some(replicas) => replicas.have(&claim, terms, asked).await,
            None => Ok(()),
        };
        // At once if that is possible, and else with those of which nobody knows.
        let known = if had.is_ok() {
            true
        } else {
            let release = self.release(&claim.id, claim.token);
            matches!(tokio::time::timeout(SLACK, release).await, Ok(Ok(())))
        };
        if known {
            unsure.settled();
        }
        had.map(|()| claim)
    }
}

impl Claims {
    /// Starts the lanes, on a thread of their own, until `stopped`.
    pub(super) fn serve(
        self,
        inner: Arc<Inner>,
        settings: Settings,
        stopped: CancellationToken,
    ) -> std::io::Result<JoinThread> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        tasks::thread("redis-replicas", move || {
            let lane = || Lane {
                inner: &inner,
                settings: &settings,
                claims: &self,
                connection: None,
            };
            runtime.block_on(async {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    _ = async { tokio::join!(lane().run(), lane().run(), lane().run(), lane().run()) } => {}
                }
            });
        })
    }
}

/// A connection of its own, and what goes over it.
struct Lane<'a> {
    inner: &'a Inner,
    settings: &'a Settings,
    claims: &'a Claims,
    connection: Option<Live>,
}

impl Lane<'_> {
    async fn run(mut self) {
        loop {
            let mut batch = Vec::new();
            let taken = self
                .claims
                .0
                .lock()
                .await
                .recv_many(&mut batch, BATCH)
                .await;
            if taken == 0 {
                return;
            }
            // Whoever has waited long enough is gone.
            batch.retain(|claim| !claim.said.is_closed());
            let said = self.wait(&mut batch).await;
            if said.is_err() {
                // Whatever went wrong, the next ones do not wait behind it.
                self.connection = None;
            }
            for claim in batch {
                // Nobody may wait for it any more.
                let _ = claim.said.send(said);
            }
        }
    }

    /// Waits once for all of them. Those whose claims are lost are told so and taken out.
    async fn wait(&mut self, batch: &mut Vec<Waiting>) -> Result<(), StoreError> {
        let link = &self.inner.link;
        let live = match self.connection.take() {
            Some(live) => live,
            None => self
                .connect()
                .await
                .map_err(|error| link.complains(&error))?,
        };
        let live = &*self.connection.insert(live);
        while let Some(first) = batch.first() {
            let key = self.inner.key(&first.id);
            let arguments: [&[u8]; 2] = [&first.token, first.lease.as_bytes()];
            let renewed = link
                .run_on(live, &link.scripts.renew, &key, &arguments, 1)
                .await?;
            if matches!(renewed.first(), Some(Value::Int(1))) {
                break;
            }
            let lost = batch.swap_remove(0);
            let _ = lost.said.send(Err(StoreError::Unavailable));
        }
        let Some(until) = batch.iter().map(|claim| claim.until).max() else {
            return Ok(());
        };
        let left = until
            .saturating_duration_since(Instant::now())
            .as_millis()
            .max(1);
        let wanted = self.settings.wait_replicas;
        let mut wait = cmd("WAIT");
        wait.arg(wanted)
            .arg(u64::try_from(left).unwrap_or(u64::MAX));
        match link.ask(live, &wait).await {
            Ok(Value::Int(have)) if have >= i64::from(wanted) => Ok(()),
            Ok(Value::Int(have)) => Err(link.complains(&format_args!(
                "{have} of {wanted} replicas have a claim in time"
            ))),
            Ok(_) => Err(link.odd()),
            Err(error) => Err(link.failed(live, &error)),
        }
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let info = self.settings.url.expose().into_connection_info()?;
        let timeout = self.settings.timeout;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout + GRACE));
        let connection = Client::open(info)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Live(connection))
    }
}

/// More than any server has.
const NOT_SAID: u32 = u32::MAX;

/// So many claims can wait for a lane; one more is refused.
const QUEUE: usize = 16 * 1024;

/// So many are waited for at once, at most.
const BATCH: usize = 4 * 1024;

/// So much longer than the server is to wait its answer is waited for.
const GRACE: Duration = Duration::from_millis(250);
