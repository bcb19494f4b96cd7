//! The Redis store: several proxies, one Redis or Valkey. All of them see a claim at once; one of them executes.
//!
//! - `inner`: what is done with records; `scripts`: the transitions as the server runs them, one script and one round trip each; `kept`: records as hashes.
//! - `link`: the way to the node that has a record; `node`: one server's connection, its breaker, the estimate of its clock; `place`:
//!   where it is; `keeper`: makes and keeps the connection; `checks`: what a server must be.
//! - `topology`: which servers there are: one; the one that `sentinel`s name; or a `cluster`'s, by `slots`. Its work is done on a
//!   thread of its own. `routes`: who has what, and what is wrong with them.
//! - `abandoned`: claims that may have been made for nobody.
//! - `changes`: who waits for a record that runs elsewhere, and `wait`: what they do. Each settlement is published; polling makes up for
//!   what is lost.
//! - `replicas`: claims that replicas must have before they count, over connections of their own.
//! - the `cache` of the room above: settled records in memory. It is believed for 3 s after the last answer that proves that no purge
//!   is missing, so that what was purged elsewhere is replayed no longer than that.
//! - `operator`: lists, look-ups, purges and resolutions.
//!
//! The server's clock decides. A `begin` carries the latest time at which it may still take effect: one that was stuck on its way
//! makes no claim behind the back of whoever gave it up. Whether it took effect before that is not known, so its claim is let go
//! afterwards.

mod abandoned;
mod changes;
mod checks;
mod cluster;
mod inner;
mod keeper;
mod kept;
mod link;
mod node;
mod operator;
mod place;
mod replicas;
mod routes;
mod scripts;
mod sentinel;
mod slots;
#[cfg(test)]
mod tests;
mod topology;
mod wait;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    time::{Duration, Instant},
};

use ::redis::Value;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub use self::checks::Unfit;
use self::{
    changes::Changes,
    keeper::First,
    kept::{Kept, hex, millis},
    link::{Call, Link},
    scripts::Scripts,
};
use super::{
    Begin, Claim, Eviction, Held, Levels, Settled, StoreError, Unsettled, cache::Cache, digest,
    draw_token, seal::Seal,
};
use crate::{
    config::{MemoryLimits, RedisStore as Settings, SealKeys},
    core::{
        policy::{AfterExpiry, Terms, UnknownOutcome},
        record::{ClaimToken, RecordId},
        time::Timestamp,
        transition::{self, Ask, Found, Settlement},
    },
    tasks::{self, JoinThread},
    telemetry::metrics::StoreMetrics,
};

/// The Redis store.
pub struct RedisStore {
    inner: Arc<Inner>,
    timeout: Duration,
    /// Asks the keeper to end.
    ending: CancellationToken,
    /// It has.
    ended: CancellationToken,
    keeper: Option<JoinThread>,
}

/// What requests and the keeper share.
struct Inner {
    link: Link,
    changes: Arc<Changes>,
    cache: Cache,
    seal: Seal,
    /// What every key begins with.
    prefix: String,
    /// Where changes are published.
    channel: String,
    /// This process among those who publish.
    origin: [u8; ORIGIN],
    /// The server without its credentials, for logs.
    server: String,
}

const ORIGIN: usize = 8;

/// Why a Redis store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server is not to be trusted with records.
    #[error("store.redis: {server}: {why}")]
    Unfit {
        /// Which server.
        server: String,
        /// Why.
        why: Unfit,
    },
    /// The system gives no thread, event loop or random bytes.
    #[error("the Redis store cannot be started: {0}")]
    System(std::io::Error),
}

impl RedisStore {
    /// Opens the store. `cache` bounds what is kept in memory of settled records. Blocks until the first try to reach the server has
    /// ended; where it cannot be reached the store is open all the same, and answers once it can.
    ///
    /// # Errors
    /// The server is there and must not be used, or the system gives no thread.
    pub fn open(
        settings: &Settings,
        namespace: &str,
        cache: MemoryLimits,
        keys: Option<&SealKeys>,
        metrics: StoreMetrics,
    ) -> Result<Self, OpenError> {
        let scripts = Scripts::of_server();
        Self::open_with(scripts, settings, namespace, cache, keys, metrics)
    }

    fn open_with(
        scripts: &'static Scripts,
        settings: &Settings,
        namespace: &str,
        cache: MemoryLimits,
        keys: Option<&SealKeys>,
        metrics: StoreMetrics,
    ) -> Result<Self, OpenError> {
        let mut origin = [0; ORIGIN];
        getrandom::fill(&mut origin)
            .map_err(|error| OpenError::System(std::io::Error::other(error)))?;
        let hash = Sha256::digest(namespace.as_bytes());
        let place = format!("idem:{}", hex(hash.first_chunk::<8>().unwrap_or(&[0; 8])));
        let inner = Arc::new(Inner {
            link: Link::new(
                scripts,
                metrics,
                topology::routes(&settings.servers),
                settings.wait_replicas,
            ),
            changes: Arc::default(),
            cache: Cache::new(cache.max_bytes, cache.max_records),
            seal: Seal::new(keys),
            channel: format!("{place}:changes"),
            prefix: format!("{place}:"),
            origin,
            server: settings.servers.shown(),
        });
        // The one cryptography of the house; where it was chosen before, that is the same.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (ending, ended) = (CancellationToken::new(), CancellationToken::new());
        let guard = ended.clone().drop_guard();
        let (kept, wanted, until) = (Arc::clone(&inner), settings.clone(), ending.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(OpenError::System)?;
        let (tell, told) = mpsc::sync_channel(1);
        let work = move || {
            let _ended = guard;
            runtime.block_on(topology::run(kept, wanted, until, tell));
        };
        let thread = tasks::thread("redis-store", work).map_err(OpenError::System)?;
        let store = Self {
            inner,
            timeout: settings.timeout,
            ending,
            ended,
            keeper: Some(thread),
        };
        match told.recv() {
            Ok(First::Unfit { server, why }) => Err(OpenError::Unfit { server, why }),
            Ok(First::Up | First::Down) => Ok(store),
            // It would never answer. Why is logged.
            Err(_) => Err(OpenError::System(std::io::Error::other(
                "its thread has ended",
            ))),
        }
    }

    /// What a request finds among the records that are in memory, while they are believed; `None`: it could claim, for all that is
    /// known there.
    #[must_use]
    pub fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        self.inner.hot(id, ask)
    }

    /// Claims the record unless something stands in the way.
    ///
    /// Dropping the future may leave a claim, which is let go a moment later.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Unavailable`]
    pub async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Result<Begin, StoreError> {
        // The digests are written down with the claim.
        digest(ask).await;
        let inner = &*self.inner;
        let (link, terms, key) = (&inner.link, ask.terms, inner.key(id));
        let token = draw_token()?;
        let token_bytes = token.to_bytes();
        let digests = ask.fingerprint.digests();
        let head = kept::write_head(&inner.seal, id, token, digests, ask.route)
            .map_err(|_| StoreError::Unavailable)?;
        let (lease, retention) = (span(terms.lease), span(terms.retention));
        // A lapsed claim under these terms is free at once, so there is nothing to refuse later.
        let refused = match terms.unknown {
            UnknownOutcome::Release => String::new(),
            UnknownOutcome::HoldForever | UnknownOutcome::HoldFor(_) => refused(terms.after_expiry),
        };
        // What is not sent can take no effect, and need not be let go.
        link.ready(&key)?;
        let unsure = Unsure {
            inner,
            id: *id,
            token,
            within: self.timeout + SLACK * 2,
            last: terms.lease.max(terms.retention),
        };
        let asked = Instant::now();
        // Of the record that may be taken over: nothing at first.
        let mut over: [Vec<u8>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let seen = inner.cache.seen(id);
            let [over_token, over_state, over_since] = &over;
            let arguments: [&[u8]; 9] = [
                &token_bytes,
                lease.as_bytes(),
                retention.as_bytes(),
                refused.as_bytes(),
                &head,
                // The deadline, by the clock of whichever node runs it.
                b"",
                over_token,
                over_state,
                over_since,
            ];
            let ran = link.run_there(Call {
                script: &link.scripts.begin,
                key: &key,
                arguments: &arguments,
                deadline: Some((DEADLINE, self.timeout + SLACK)),
                at: 1,
            });
            let (told, there) = ran.await?;
            let mut told = told.into_iter();
            let (code, now) = (told.next(), time(told.next()));
            match code {
                Some(Value::Int(1)) => {
                    let claim = Claim { id: *id, token };
                    let claim = inner.shared(claim, &there, terms, asked, unsure);
                    return claim.await.map(Begin::Claimed);
                }
                Some(Value::Int(0)) => {}
                // The server's clock was not known well enough: it is now.
                _ => continue,
            }
            let found = Kept::read(told.next().unwrap_or_default());
            let found = found.map_err(|why| inner.unreadable(id, why))?;
            over = [
                found.token.to_bytes().to_vec(),
                found.state.to_string().into_bytes(),
                found
                    .since
                    .map_or_else(Vec::new, |at| at.as_millis().to_string().into_bytes()),
            ];
            let record = inner.record(id, found, now)?;
            if let Some(found) = transition::look(Some(&record), ask, now) {
                unsure.settled();
                inner.cache.fill(*id, &record, seen);
                return Ok(Begin::Found(found));
            }
        }
        Err(StoreError::Unavailable)
    }

    /// Draws out a claim's lease.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn renew(&self, claim: &Claim, terms: &Terms) -> Result<Held, StoreError> {
        let link = &self.inner.link;
        let (key, token, lease) = (
            self.inner.key(&claim.id),
            claim.token.to_bytes(),
            span(terms.lease),
        );
        let arguments: [&[u8]; 2] = [&token, lease.as_bytes()];
        let told = link.run(&link.scripts.renew, &key, &arguments, 1).await?;
        match told.first() {
            Some(Value::Int(1)) => Ok(Held::Yes),
            Some(Value::Int(_)) => Ok(Held::Lost),
            _ => Err(link.odd()),
        }
    }

    /// Settles a claim. Repeatable: a claim that is settled so already, because the answer of an earlier try was lost, is settled.
    ///
    /// # Errors
    /// Claim and settlement come back.
    pub async fn settle(
        &self,
        claim: Claim,
        settlement: Settlement,
        terms: &Terms,
    ) -> Result<Settled, Unsettled> {
        match self.inner.settle(&claim, &settlement, terms).await {
            Ok(settled) => Ok(settled),
            Err(why) => Err(Unsettled {
                claim,
                settlement,
                why,
            }),
        }
    }

    /// As [`crate::store::Stores::end`]: claims that nobody holds are let go, or cannot be within a second or so.
    pub async fn end(&self) {
        self.ending.cancel();
        self.ended.cancelled().await;
    }

    /// Records that the server drops by itself need no sweeping.
    pub const fn sweep(&self) {}

    /// What the server says of itself: its keys, whoever's they are, and the memory that it uses.
    #[must_use]
    pub fn levels(&self) -> Levels {
        let (records, bytes) = self.inner.link.levels();
        Levels {
            records,
            bytes,
            claims: 0,
        }
    }

    /// How many records operators have purged here. What the server drops when it expires is not counted.
    #[must_use]
    pub fn evictions(&self, cause: Eviction) -> u64 {
        match cause {
            Eviction::Size | Eviction::Expired => 0,
            Eviction::Purged => self.inner.link.purged.load(Relaxed),
        }
    }

    /// Whether there is a connection to a server that was found good; in a cluster to each that has slots, and each slot has one.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.inner.link.trouble().is_none()
    }

    /// Why it does not answer, or not for every key: which server.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.inner.link.trouble()
    }
}

/// As [`RedisStore::end`].
impl Drop for RedisStore {
    fn drop(&mut self) {
        self.ending.cancel();
        if let Some(keeper) = self.keeper.take() {
            // A keeper that panicked was reported by the panic hook.
            let _ = keeper.join();
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &self.inner.server)
            .field("levels", &self.levels())
            .finish_non_exhaustive()
    }
}

/// A claim that may have been made without anybody being told: let go on drop, unless it is known.
struct Unsure<'a> {
    inner: &'a Inner,
    id: RecordId,
    token: ClaimToken,
    /// From when on it was made or never will be.
    within: Duration,
    /// How long it can be let go. One whose lease has ended still can, and is an unknown outcome until then, of what never ran.
    last: Duration,
}

impl Unsure<'_> {
    fn settled(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        let abandoned = &self.inner.link.abandoned;
        abandoned.add(self.id, self.token, self.within, self.last);
    }
}

fn span(span: Duration) -> String {
    span.as_millis().to_string()
}

/// How long a key is refused after its end, as scripts are told it.
fn refused(after: AfterExpiry) -> String {
    match after {
        AfterExpiry::Execute => String::new(),
        AfterExpiry::RefuseFor(refused) => span(refused),
    }
}

/// A time as scripts tell it; they do.
fn time(told: Option<Value>) -> Timestamp {
    let now = told.and_then(|told| told_millis(&told));
    Timestamp::from_millis(now.unwrap_or(0))
}

/// A time of the server's clock, or of a record's field.
fn told_millis(told: &Value) -> Option<u64> {
    match told {
        Value::Int(now) => u64::try_from(*now).ok(),
        Value::BulkString(bytes) => millis(bytes),
        _ => None,
    }
}

/// The place of the deadline among the arguments of a `begin`.
const DEADLINE: usize = 5;

/// So often a record changes between its reading and its taking over, at most.
const ROUNDS: usize = 8;

/// What the estimate of the server's clock may be wrong by, beside the way.
const SLACK: Duration = Duration::from_millis(250);
