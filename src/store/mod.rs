//! Stores hold records. They translate the core's transitions, they do not decide.
//!
//! Every operation is atomic for its record. [`Stores::begin`] is the only one that can give the right to execute,
//! and it gives it as a value: a [`Claim`].

mod cache;
pub mod clock;
pub mod disk;
mod hash;
mod levels;
pub mod memory;
#[cfg(test)]
mod model;
mod operator;
pub mod redis;
pub mod seal;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod tests;
mod token;

use std::sync::Arc;

use self::token::draw_token;
pub use self::{
    hash::{IdHash, IdHasher},
    levels::{Bound, Eviction, Levels},
    operator::{Outcome, Place, Purged, Query, Row},
};
use crate::core::{
    policy::Terms,
    record::{ClaimToken, Record, RecordId, ShortId},
    transition::{Ask, Found, Resolution, Settlement},
};
use crate::tasks;

/// The store that the configuration chose.
#[derive(Debug)]
pub enum Stores {
    /// `store.kind = "none"`: keyed requests get 501.
    None,
    /// `store.kind = "memory"`
    Memory(Box<memory::MemoryStore>),
    /// `store.kind = "disk"`
    Disk(Box<disk::DiskStore>),
    /// `store.kind = "redis"`
    Redis(Box<redis::RedisStore>),
}

// What waits is boxed, so that the futures of a store that answers at once stay small.
impl Stores {
    /// What a request finds; `None`: it could claim, for all that can be told without waiting. This is all that a replay of a hot
    /// record takes; [`Self::begin`] has the last word.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// The store cannot answer.
    #[expect(
        clippy::unused_async,
        reason = "these stores answer at once; a store elsewhere will not"
    )]
    pub async fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Result<Option<Found>, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(store.look(id, ask)),
            Self::Disk(store) => Ok(store.look(id, ask)),
            Self::Redis(store) => Ok(store.look(id, ask)),
        }
    }

    /// Claims the record for a request, if nothing stands in its way.
    ///
    /// The token is drawn here, so that a store elsewhere can repeat a `begin` whose answer was lost: the record
    /// that has this token already is claimed, and not its own rival.
    ///
    /// Dropping the future may leave a claim without a holder for a moment, which is then let go: nothing was executed.
    ///
    /// # Errors
    /// The store cannot answer, or has no room for another claim. Nothing was claimed.
    pub async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Result<Begin, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => store.begin(id, ask, draw_token()?),
            Self::Disk(store) => Box::pin(store.begin(id, ask)).await,
            Self::Redis(store) => Box::pin(store.begin(id, ask)).await,
        }
    }

    /// Waits, as one of at most `max`, until a record that runs elsewhere is something else, and says what. Nothing is claimed by it. A
    /// store that nobody shares has nothing elsewhere: what runs is left running.
    ///
    /// Dropping the future gives the place up.
    ///
    /// # Errors
    /// [`StoreError::Full`]: so many wait already.
    pub async fn wait_for_change(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
        max: usize,
        runs: Runs,
    ) -> Result<Awaited, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(_) | Self::Disk(_) => {
                let found = self.look(id, ask).await?;
                Ok(match (found, runs) {
                    (Some(found), _) => Awaited::Found(found),
                    (None, Runs::Surely) => Awaited::Gone,
                    (None, Runs::Perhaps) => Awaited::Nothing,
                })
            }
            Self::Redis(store) => Box::pin(store.wait(id, ask, max, runs)).await,
        }
    }

    /// Whether somebody waits here for this record, because it runs elsewhere.
    #[must_use]
    pub fn awaited(&self, id: &RecordId) -> bool {
        match self {
            Self::None | Self::Memory(_) | Self::Disk(_) => false,
            Self::Redis(store) => store.awaited(id),
        }
    }

    /// Draws out a claim's lease to a full one. Its holder does so every third of a lease while the call runs.
    ///
    /// Dropping the future leaves the claim as it was or renewed.
    ///
    /// # Errors
    /// The store cannot answer. The claim is still its holder's, for what is left of its lease.
    pub async fn renew(&self, claim: &Claim, terms: &Terms) -> Result<Held, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(store.renew(claim, terms)),
            Self::Disk(store) => Box::pin(store.renew(claim, terms)).await,
            Self::Redis(store) => Box::pin(store.renew(claim, terms)).await,
        }
    }

    /// Says what came of a claim, and fixes how long the record lives.
    ///
    /// Dropping the future drops the claim: it is settled as said, or its outcome is unknown once its lease has run
    /// out. It is never released by that. Settle in work of the proxy's own.
    ///
    /// # Errors
    /// The store cannot answer. Claim and settlement come back, to be tried again.
    pub async fn settle(
        &self,
        claim: Claim,
        settlement: Settlement,
        terms: &Terms,
    ) -> Result<Settled, Unsettled> {
        match self {
            Self::None => Err(Unsettled {
                claim,
                settlement,
                why: StoreError::None,
            }),
            Self::Memory(store) => Ok(store.settle(claim, settlement, terms)),
            Self::Disk(store) => Box::pin(store.settle(claim, settlement, terms)).await,
            Self::Redis(store) => Box::pin(store.settle(claim, settlement, terms)).await,
        }
    }

    /// Some of the records that have not expired, the latest first, for operators.
    ///
    /// Dropping the future changes nothing; so it is with [`Self::find`].
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn list(&self, query: &Query) -> Result<Vec<Row>, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(Box::pin(store.list_slowly(query)).await),
            Self::Disk(store) => Box::pin(store.list(query)).await,
            Self::Redis(store) => Box::pin(store.list(query)).await,
        }
    }

    /// Finishes what it was asked, and lets go of what nobody holds, before the process ends. Nothing is to be asked of it any more.
    ///
    /// Dropping the future leaves the rest undone.
    pub async fn end(&self) {
        match self {
            Self::None | Self::Memory(_) => {}
            Self::Disk(store) => store.end().await,
            Self::Redis(store) => store.end().await,
        }
    }

    /// The record of this id, for operators; none if it has expired.
    ///
    /// # Errors
    /// The store cannot answer, or cannot read it.
    pub async fn row(&self, id: &RecordId) -> Result<Option<Row>, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(store.row(id)),
            Self::Disk(store) => Box::pin(store.row(id)).await,
            Self::Redis(store) => Box::pin(store.row(id)).await,
        }
    }

    /// The records whose ids begin so, for operators: none, one, or two of several. One that has expired is none.
    ///
    /// # Errors
    /// The store cannot answer, or cannot read it.
    pub async fn find(&self, short: ShortId) -> Result<Vec<Row>, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(store.find(short)),
            Self::Disk(store) => Box::pin(store.find(short)).await,
            Self::Redis(store) => Box::pin(store.find(short)).await,
        }
    }

    /// The ids that begin so, of records that can be read and of those that cannot, for operators: none, one, or a few of several.
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn ids(&self, short: ShortId) -> Result<Vec<RecordId>, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(store.find(short).iter().map(|row| row.id).collect()),
            Self::Disk(store) => Box::pin(store.ids(short)).await,
            Self::Redis(store) => Box::pin(store.ids(short)).await,
        }
    }

    /// Forgets a record, whatever its state; one that has expired is none, and a key that is refused stays refused. If a call runs under it, its holder has lost
    /// it, and the next request executes beside it.
    ///
    /// Dropping the future purges it or not.
    ///
    /// # Errors
    /// The store cannot answer. Unreadable records can be purged.
    pub async fn purge(&self, id: &RecordId) -> Result<Purged, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => Ok(store.purge(id)),
            Self::Disk(store) => Box::pin(store.purge(id)).await,
            Self::Redis(store) => Box::pin(store.purge(id)).await,
        }
    }

    /// Settles an unknown outcome by an operator's word.
    ///
    /// Dropping the future resolves it or not.
    ///
    /// # Errors
    /// The store cannot answer, or an answer has no room ([`StoreError::Full`]).
    pub async fn resolve(
        &self,
        id: &RecordId,
        resolution: Resolution,
    ) -> Result<Outcome, StoreError> {
        match self {
            Self::None => Err(StoreError::None),
            Self::Memory(store) => store.resolve(id, resolution),
            Self::Disk(store) => Box::pin(store.resolve(id, resolution)).await,
            Self::Redis(store) => Box::pin(store.resolve(id, resolution)).await,
        }
    }

    /// Frees what is forgotten, and the answers of what has expired, in small steps between which others run. Called every second on a
    /// worker.
    ///
    /// Dropping the future leaves the rest to the next sweep.
    pub async fn sweep(&self) {
        match self {
            Self::None => {}
            Self::Memory(store) => store.sweep_slowly().await,
            Self::Disk(store) => Box::pin(store.sweep()).await,
            Self::Redis(store) => store.sweep(),
        }
    }

    /// What it holds, for the gauges.
    #[must_use]
    pub fn levels(&self) -> Levels {
        match self {
            Self::None => Levels::default(),
            Self::Memory(store) => store.levels(),
            Self::Disk(store) => store.levels(),
            Self::Redis(store) => store.levels(),
        }
    }

    /// How many records it has evicted for this cause since its start.
    #[must_use]
    pub fn evictions(&self, cause: Eviction) -> u64 {
        match self {
            Self::None => 0,
            Self::Memory(store) => store.evictions(cause),
            Self::Disk(store) => store.evictions(cause),
            Self::Redis(store) => store.evictions(cause),
        }
    }

    /// Whether it can answer now, for all that it knows; without a store there is nothing to wait for.
    #[must_use]
    pub fn answers(&self) -> bool {
        match self {
            Self::None | Self::Memory(_) => true,
            Self::Disk(store) => store.answers(),
            Self::Redis(store) => store.answers(),
        }
    }

    /// What keeps it from answering, or from answering for every key; `None`: nothing does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::None | Self::Memory(_) => None,
            Self::Disk(store) => {
                let down = !store.answers();
                down.then(|| "the disk does not work, or its files are gone".to_owned())
            }
            Self::Redis(store) => store.trouble(),
        }
    }

    /// What says that it is full.
    #[must_use]
    pub const fn bound(&self) -> Bound {
        match self {
            Self::None | Self::Memory(_) => Bound::Claims,
            Self::Disk(_) | Self::Redis(_) => Bound::Bytes,
        }
    }

    /// Its kind, as the configuration and the metrics spell it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Memory(_) => "memory",
            Self::Disk(_) => "disk",
            Self::Redis(_) => "redis",
        }
    }
}

/// Computes both digests of a request, on another thread if that takes long.
async fn digest(ask: &Ask<'_>) {
    if ask.fingerprint.unread() <= AT_ONCE {
        let _ = ask.fingerprint.digests();
        return;
    }
    let fingerprint = Arc::clone(ask.fingerprint);
    let elsewhere = tasks::elsewhere(move || {
        let _ = fingerprint.digests();
    });
    // If that thread failed, whoever needs them computes them.
    let _ = elsewhere.await;
}

/// A body of so many bytes is canonicalised without making others wait noticeably.
const AT_ONCE: usize = 64 * 1024;

/// The right to execute one operation, and to settle its record.
///
/// It is consumed by [`Stores::settle`]. Dropping it settles nothing: the lease then runs out and the outcome
/// is unknown; a dropped claim is never released.
#[derive(Debug)]
#[must_use = "a dropped claim leaves its outcome unknown"]
pub struct Claim {
    id: RecordId,
    token: ClaimToken,
}

impl Claim {
    /// Which record it is of.
    #[must_use]
    pub const fn id(&self) -> &RecordId {
        &self.id
    }
}

/// What `begin` answers with.
#[derive(Debug)]
pub enum Begin {
    /// Nothing stood in the way: the caller executes, and nobody else does.
    Claimed(Claim),
    /// A record is there.
    Found(Found),
}

/// Whether whoever waits for a record knows that it runs elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The store has said so.
    Surely,
    /// Others wait for it.
    Perhaps,
}

/// What waiting for a record came to.
#[derive(Debug)]
pub enum Awaited {
    /// It is this now.
    Found(Found),
    /// It ran, and there is none any more.
    Gone,
    /// It did not run when it was first looked at, nor is it anything else; or that look failed. Never where it surely runs.
    Nothing,
}

/// Whether the claim was still its holder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Held {
    /// It was.
    Yes,
    /// Its lease had run out and somebody else has the key, or an operator settled it.
    Lost,
}

/// What became of a claim.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The record as it is kept now: complete, a tombstone, or unknown.
    Kept(Arc<Record>),
    /// The key is free again.
    Released,
    /// The claim was lost before: nothing was written.
    Lost,
}

/// A claim that the store would not settle now.
#[derive(Debug, thiserror::Error)]
#[error("the claim is not settled: {why}")]
pub struct Unsettled {
    /// Still its holder's, for what is left of its lease.
    pub claim: Claim,
    /// What its holder said.
    pub settlement: Settlement,
    /// Why nothing was written.
    pub why: StoreError,
}

/// Why a store could not answer. Nothing was executed; but what it was asked to change may be changed all the same, where it is
/// [`StoreError::Unavailable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no room for another claim.
    #[error("the store is full")]
    Full,
    /// It cannot answer: its disk fails, the record cannot be read, or the system has no randomness for a token.
    #[error("the store cannot answer")]
    Unavailable,
    /// There is no store.
    #[error("no store is configured")]
    None,
}
