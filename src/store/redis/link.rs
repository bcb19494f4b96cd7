//! The way to the server: one connection that all requests share, and a circuit breaker. While there is no connection that was found
//! good, every operation fails at once.
//!
//! The connection speaks RESP3, so that what is published comes over it too, in the order in which the server wrote it: an answer proves
//! that everything published before it has come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ::redis::{
    Cmd, ErrorKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection, cmd,
};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    kept::millis,
    scripts::{Script, Scripts},
};
use crate::{
    core::{
        record::{ClaimToken, RecordId},
        time::Timestamp,
    },
    store::StoreError,
    telemetry::metrics::StoreMetrics,
};

/// One of it a store.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) scripts: &'static Scripts,
    pub(super) metrics: StoreMetrics,
    live: ArcSwapOption<Live>,
    /// Somebody found the connection broken.
    pub(super) broken: Notify,
    started: Instant,
    /// So far the server's clock is ahead of the time since `started`, at most, in milliseconds.
    ahead: AtomicI64,
    /// What is cached may be believed until then, in milliseconds since `started`.
    believed_until: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) purged: AtomicU64,
    /// Claims that may have been made although nobody was told: to be let go.
    abandoned: Mutex<Vec<Abandoned>>,
    complained: Mutex<Option<Instant>>,
}

/// A connection that was found good.
pub(super) struct Live(pub(super) MultiplexedConnection);

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Live(…)")
    }
}

/// A claim of which nobody knows whether it was made.
#[derive(Clone, Debug)]
pub(super) struct Abandoned {
    pub(super) id: RecordId,
    pub(super) token: ClaimToken,
    /// From then on it was made or never will be.
    due: Instant,
}

impl Link {
    pub(super) fn new(scripts: &'static Scripts, metrics: StoreMetrics) -> Self {
        Self {
            scripts,
            metrics,
            live: ArcSwapOption::empty(),
            broken: Notify::new(),
            started: Instant::now(),
            ahead: AtomicI64::new(0),
            believed_until: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            abandoned: Mutex::default(),
            complained: Mutex::default(),
        }
    }

    /// Closes the breaker.
    pub(super) fn up(&self, connection: MultiplexedConnection) {
        self.live.store(Some(Arc::new(Live(connection))));
    }

    /// Opens it.
    pub(super) fn down(&self) {
        self.live.store(None);
        self.believed_until.store(0, Relaxed);
    }

    pub(super) fn is_up(&self) -> bool {
        self.live.load().is_some()
    }

    pub(super) fn live(&self) -> Result<Arc<Live>, StoreError> {
        self.live.load_full().ok_or(StoreError::Unavailable)
    }

    /// Milliseconds since the store was opened.
    pub(super) fn local(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The latest time that the server's clock may show now, by what it showed last.
    pub(super) fn latest(&self) -> Timestamp {
        let local = i64::try_from(self.local()).unwrap_or(i64::MAX);
        let now = local.saturating_add(self.ahead.load(Relaxed));
        Timestamp::from_millis(u64::try_from(now).unwrap_or(0))
    }

    fn learn(&self, sent: u64, server: u64) {
        let (Ok(server), Ok(sent)) = (i64::try_from(server), i64::try_from(sent)) else {
            return;
        };
        self.ahead.store(server.saturating_sub(sent), Relaxed);
    }

    /// Everything that was published up to `sent` has come; so what is cached may be believed for a while.
    pub(super) fn believe(&self, sent: u64) {
        self.believed_until
            .fetch_max(sent.saturating_add(BELIEVED_MS), Relaxed);
    }

    pub(super) fn believes(&self) -> bool {
        self.local() < self.believed_until.load(Relaxed)
    }

    /// Runs a script on one key; what it answers, its time being learnt. `at` is the place of the time in the answer.
    pub(super) async fn run(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&[u8]],
        at: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let live = self.live()?;
        self.run_on(&live, script, key, arguments, at).await
    }

    /// The same on a connection that may not have been found good yet.
    pub(super) async fn run_on(
        &self,
        live: &Live,
        script: &Script,
        key: &str,
        arguments: &[&[u8]],
        at: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let sent = self.local();
        let call = |how: &str, what: &str| {
            let mut call = cmd(how);
            call.arg(what).arg(1).arg(key);
            for argument in arguments {
                call.arg(*argument);
            }
            call
        };
        let told = match self.ask(live, &call("EVALSHA", &script.hash)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                // The server has forgotten its scripts. Told the text, it knows it from then on.
                self.metrics.script_missed();
                self.ask(live, &call("EVAL", &script.text)).await
            }
            told => told,
        };
        let told = told.map_err(|error| self.failed(live, &error))?;
        let Value::Array(told) = told else {
            return Err(self.odd());
        };
        match told.get(at) {
            Some(Value::BulkString(now)) => match millis(now) {
                Some(now) => self.learn(sent, now),
                None => return Err(self.odd()),
            },
            _ => return Err(self.odd()),
        }
        Ok(told)
    }

    /// One round trip.
    pub(super) async fn ask(&self, live: &Live, command: &Cmd) -> Result<Value, RedisError> {
        self.metrics.round_trip();
        command.query_async(&mut live.0.clone()).await
    }

    /// What an error means; where the connection is of no use any more, the breaker opens.
    pub(super) fn failed(&self, live: &Live, error: &RedisError) -> StoreError {
        if error
            .to_string()
            .contains("command not allowed when used memory")
        {
            return StoreError::Full;
        }
        let gone = error.is_timeout() || error.is_io_error() || error.is_unrecoverable_error();
        let refused = matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::Moved
                    | ServerErrorKind::ClusterDown
            )
        );
        if gone || refused {
            // One that was replaced meanwhile says nothing about the one in its place.
            let own = self.live.load();
            if own.as_deref().is_some_and(|own| std::ptr::eq(own, live)) {
                self.down();
            }
            self.broken.notify_one();
        }
        self.complain(error);
        StoreError::Unavailable
    }

    /// The server says what no script says.
    pub(super) fn odd(&self) -> StoreError {
        self.complain(&"it answers what no script answers");
        StoreError::Unavailable
    }

    /// Something is not as it should be.
    pub(super) fn complains(&self, error: &dyn std::fmt::Display) -> StoreError {
        self.complain(error);
        StoreError::Unavailable
    }

    fn complain(&self, error: &dyn std::fmt::Display) {
        if self.may_complain() {
            tracing::warn!(%error, "Redis did not do what it was asked");
        }
    }

    /// At most once a second.
    pub(super) fn may_complain(&self) -> bool {
        let mut complained = self.complained.lock();
        if complained.is_some_and(|at| at.elapsed() < COMPLAIN_EVERY) {
            return false;
        }
        *complained = Some(Instant::now());
        true
    }

    /// To be let go once it was made or never will be.
    pub(super) fn abandon(&self, id: RecordId, token: ClaimToken, within: Duration) {
        let mut abandoned = self.abandoned.lock();
        if abandoned.len() < MAX_ABANDONED {
            let due = Instant::now() + within;
            abandoned.push(Abandoned { id, token, due });
        }
    }

    /// Those that are due.
    pub(super) fn due(&self) -> Vec<Abandoned> {
        let mut abandoned = self.abandoned.lock();
        let now = Instant::now();
        let (due, rest) = abandoned.drain(..).partition(|one| one.due <= now);
        *abandoned = rest;
        due
    }

    /// Not yet: the server did not take it.
    pub(super) fn again(&self, one: Abandoned) {
        self.abandoned.lock().push(one);
    }
}

/// How long the cache is believed after the last answer that proves that nothing published is missing.
pub(super) const BELIEVED_MS: u64 = 3_000;

const COMPLAIN_EVERY: Duration = Duration::from_secs(1);

/// So many claims can wait to be let go; one more is left to its lease.
const MAX_ABANDONED: usize = 100_000;
