//! The verifier: a token in, its claims out; and the task that keeps its keys fresh.

use std::{ops::Deref, path::Path, sync::Arc, time::Duration};

use moka::{policy::EvictionPolicy, sync::Cache};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    KeySet, Settings, Source, Unreadable,
    fetch::Fetcher,
    file::Watch,
    jws,
    keys::{Change, Current, Keys},
};
use crate::{
    core::{
        claims::{Claims, TokenFault},
        time::Timestamp,
    },
    tasks::Tasks,
    tls,
};

/// The longest token, in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// How much of tokens that were verified is kept, in bytes of claims and what a cache adds to them.
const REMEMBERED_BYTES: u64 = 4 << 20;
/// What one remembered token takes beside its claims.
const ENTRY_BYTES: usize = 256;
/// A file is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A URL is fetched so often.
const FETCH_EVERY: Duration = Duration::from_mins(5);
/// After an attempt that failed, the next one comes so soon.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Verifies tokens by one `[identity.jwt]`.
#[derive(Debug)]
pub struct Verifier {
    settings: Settings,
    keys: Keys,
    origin: Origin,
    /// Claims by the generation of keys that verified them and the token's SHA-256.
    remembered: Cache<(u64, [u8; 32]), Arc<Claims>>,
}

/// A verifier that is in use: its keys are kept fresh until the last clone of this is dropped.
#[derive(Clone, Debug)]
pub struct Kept {
    verifier: Arc<Verifier>,
    _in_use: Arc<DropGuard>,
}

impl Kept {
    /// Keeps the keys of `verifier` fresh by a task of `tasks`, until `stopped` at the latest.
    #[must_use]
    pub fn new(verifier: Verifier, tasks: &Tasks, stopped: &CancellationToken) -> Self {
        let verifier = Arc::new(verifier);
        let unused = stopped.child_token();
        tasks.detach(Arc::clone(&verifier).keep_fresh(tasks.clone(), unused.clone()));
        Self {
            verifier,
            _in_use: Arc::new(unused.drop_guard()),
        }
    }
}

impl Deref for Kept {
    type Target = Verifier;

    fn deref(&self) -> &Verifier {
        &self.verifier
    }
}

/// Where the keys are read again.
#[derive(Debug)]
enum Origin {
    File(Arc<Path>),
    Url(Fetcher),
}

impl Verifier {
    /// A verifier with the keys of its file, or with none yet. `tls` is asked for its configuration where they come by `https`.
    ///
    /// # Errors
    /// There is no TLS, and it is needed.
    pub fn new(settings: Settings, tls: &tls::Client) -> Result<Self, tls::Unusable> {
        let (first, origin) = match &settings.source {
            Source::File { keys, path } => (Arc::clone(keys), Origin::File(path.as_path().into())),
            Source::Url(url) => (Arc::default(), Origin::Url(Fetcher::new(url.clone(), tls)?)),
        };
        let weigh = |_: &(u64, [u8; 32]), claims: &Arc<Claims>| {
            u32::try_from(claims.size() + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let remembered = Cache::builder()
            .max_capacity(REMEMBERED_BYTES)
            .weigher(weigh)
            .eviction_policy(EvictionPolicy::lru())
            .build();
        Ok(Self {
            settings,
            keys: Keys::new(first),
            origin,
            remembered,
        })
    }

    /// Whether this one does what `settings` ask for: keys of the same place, the same demands.
    #[must_use]
    pub fn is_for(&self, settings: &Settings) -> bool {
        let place = match (&self.settings.source, &settings.source) {
            (Source::File { path: own, .. }, Source::File { path, .. }) => own == path,
            (Source::Url(own), Source::Url(url)) => own == url,
            (Source::File { .. }, Source::Url(_)) | (Source::Url(_), Source::File { .. }) => false,
        };
        place && self.settings.expected == settings.expected
    }

    /// Takes over the keys that were read with `settings`, where these stand in a file.
    pub fn renew(&self, settings: &Settings) {
        if let Source::File { keys, .. } = &settings.source {
            self.take(Ok(KeySet::clone(keys)));
        }
    }

    /// Fetches the keys of a URL for the first time, so that nobody has to wait for them. Where they cannot be had, the log says so.
    ///
    /// Dropping the future leaves the verifier as it was.
    pub async fn prepare(&self) {
        if let Origin::Url(origin) = &self.origin {
            self.take(origin.fetch().await);
        }
    }

    /// The claims of a token that is to be believed. `now` is the wall clock's time.
    ///
    /// A token that no key fits waits for the keys of a URL, where they are being fetched or may be; six seconds at most.
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// Why it is not to be believed.
    pub async fn verify(
        &self,
        token: &[u8],
        now: impl Fn() -> Timestamp,
    ) -> Result<Arc<Claims>, TokenFault> {
        if token.len() > MAX_TOKEN {
            return Err(TokenFault::Malformed);
        }
        let current = self.keys.current();
        match self.judge(&current, token, now()) {
            Err(TokenFault::UnknownKey)
                if matches!(self.origin, Origin::Url(_))
                    && self.keys.newer_than(&current).await =>
            {
                self.judge(&self.keys.current(), token, now())
            }
            verdict => verdict,
        }
    }

    fn judge(
        &self,
        current: &Current,
        token: &[u8],
        now: Timestamp,
    ) -> Result<Arc<Claims>, TokenFault> {
        let name = (current.generation, Sha256::digest(token).into());
        if let Some(claims) = self.remembered.get(&name) {
            claims.in_force(now)?;
            return Ok(claims);
        }
        let payload = jws::verify(&current.set, token)?;
        let claims = Arc::new(Claims::read(payload, &self.settings.expected)?);
        claims.in_force(now)?;
        self.remembered.insert(name, Arc::clone(&claims));
        Ok(claims)
    }

    /// Keeps the keys fresh until the process ends. A file is read where blocking is allowed.
    pub async fn keep_fresh(self: Arc<Self>, tasks: Tasks, stopped: CancellationToken) {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = async {
                match &self.origin {
                    Origin::File(path) => self.watch_file(path, tasks).await,
                    Origin::Url(origin) => loop {
                        self.keys.begin();
                        let fetched = origin.fetch().await;
                        let pause = if fetched.is_ok() { FETCH_EVERY } else { RETRY_AFTER };
                        self.take(fetched);
                        tokio::select! {
                            biased;
                            () = self.keys.wanted() => {}
                            () = tokio::time::sleep(pause) => {}
                        }
                    },
                }
            } => {}
        }
    }

    async fn watch_file(self: &Arc<Self>, path: &Arc<Path>, tasks: Tasks) {
        let watch = Arc::new(Mutex::new(Watch::default()));
        loop {
            let (verifier, watch, path) = (Arc::clone(self), Arc::clone(&watch), Arc::clone(path));
            // A look that panicked is reported by the panic hook; the next one tries again.
            let _ = tasks
                .block(move || {
                    if let Some(read) = watch.lock().look(&path) {
                        verifier.take(read);
                    }
                })
                .await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Puts keys in force, or says why those that are there stay.
    fn take(&self, read: Result<KeySet, Unreadable>) {
        let source = &self.settings.source;
        match read {
            Ok(set) => {
                let (keys, skipped) = (set.len(), set.skipped());
                if self.keys.end(Some(set)) == Change::Replaced {
                    self.remembered.invalidate_all();
                    tracing::info!(%source, keys, skipped, "the keys of tokens were replaced");
                }
            }
            Err(error) => {
                self.keys.end(None);
                let keys = self.keys.current().set.len();
                tracing::warn!(%error, %source, keys, "the keys of tokens could not be read; those in force stay in force");
            }
        }
    }
}

#[cfg(test)]
mod tests;
