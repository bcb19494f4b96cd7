//! Flights: executions on this proxy that others may join. Published once, joined by many, bounded.
//!
//! A request that finds no settled record boards the flight of its record: the first one leads, the others wait for what it
//! lands with. What came of a flight and is not saved yet stands in [`Unsaved`].
//!
//! Invariants: at most one flight a record; a flight that is gone has landed; a landing is published once; waiters only listen, so whoever
//! leaves takes nothing along.

mod unsaved;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::unsaved::{Entered, Outstanding, Unsaved};
use crate::{
    core::{
        fingerprint::Fingerprint,
        problem::Problem,
        record::{Record, RecordId, ShortId, StoredAnswer},
        time::Timestamp,
        trace::SpanRef,
    },
    store::{IdHash, StoreError},
};

/// All flights of this proxy.
#[derive(Debug)]
pub struct Flights {
    shards: [Mutex<Running>; SHARDS],
    unsaved: Arc<Unsaved>,
}

/// Those of one shard, under the ids of their records.
type Running = HashMap<RecordId, Arc<Flight>, IdHash>;

const SHARDS: usize = 64;

/// One flight, as those who join it see it.
#[derive(Debug)]
pub struct Flight {
    fingerprint: Arc<Fingerprint>,
    stage: Mutex<Stage>,
    /// Tells who waits here that the stage has changed.
    changed: Notify,
    waiters: AtomicUsize,
    execution: OnceLock<Arc<SpanRef>>,
}

/// Where a flight is.
#[derive(Clone, Debug)]
enum Stage {
    /// Its leader asks the store.
    Boarding,
    /// Its leader has the claim and executes.
    Running,
    /// It is over.
    Landed(Landing),
}

/// What a flight lands with, for those who joined it.
#[derive(Clone, Debug)]
pub enum Landing {
    /// The answer was stored.
    Complete(Arc<Record>),
    /// The answer was not stored and is shared all the same.
    Shared(Arc<StoredAnswer>),
    /// The answer was not stored and is too large to be shared.
    TooLarge,
    /// It was executed, and the answer is the first client's alone.
    Tombstone {
        /// The status that it was answered with.
        status: StatusCode,
        /// When its record expires.
        expires_at: Timestamp,
    },
    /// There is no answer; this is said instead.
    Failed(Problem),
    /// No execution came of it: whoever joined looks at the record again.
    NotStarted,
    /// The store gave no claim, and would give none to anybody now.
    StoreFailed(StoreError),
    /// Nor here, for the call runs on another proxy: whoever joined waits for that.
    Elsewhere,
}

/// What boarding came to.
#[derive(Debug)]
pub enum Boarding {
    /// Nobody is on it: the caller leads.
    Lead(Seat),
    /// There is a leader.
    Join(Arc<Flight>),
}

/// The leader's seat. It lands by [`Seat::land`]. A seat that is dropped lands too: as not started before
/// [`Seat::running`], as a failed upstream after it.
#[derive(Debug)]
#[must_use = "a dropped seat lands as not started, or as a failure"]
pub struct Seat {
    flights: Arc<Flights>,
    id: RecordId,
    flight: Arc<Flight>,
    landing: Option<Landing>,
}

impl Flights {
    /// No flight yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            unsaved: Arc::default(),
        })
    }

    /// What is known here and not saved.
    #[must_use]
    pub fn unsaved(&self) -> &Arc<Unsaved> {
        &self.unsaved
    }

    /// Boards the flight of the record `id`.
    #[must_use]
    pub fn board(self: &Arc<Self>, id: RecordId, fingerprint: &Arc<Fingerprint>) -> Boarding {
        match self.shard(&id).lock().entry(id) {
            Entry::Occupied(there) => Boarding::Join(Arc::clone(there.get())),
            Entry::Vacant(free) => {
                let flight = Arc::new(Flight {
                    fingerprint: Arc::clone(fingerprint),
                    stage: Mutex::new(Stage::Boarding),
                    changed: Notify::new(),
                    waiters: AtomicUsize::new(0),
                    execution: OnceLock::new(),
                });
                free.insert(Arc::clone(&flight));
                Boarding::Lead(Seat {
                    flights: Arc::clone(self),
                    id,
                    flight,
                    landing: None,
                })
            }
        }
    }

    /// The flight of the record `id`, if there is one: it executes, or may be about to.
    #[must_use]
    pub fn of(&self, id: &RecordId) -> Option<Arc<Flight>> {
        self.shard(id).lock().get(id).map(Arc::clone)
    }

    /// The records whose flights have not landed.
    #[must_use]
    pub fn records(&self) -> Vec<ShortId> {
        let ids =
            |shard: &Mutex<Running>| shard.lock().keys().map(RecordId::short).collect::<Vec<_>>();
        self.shards.iter().flat_map(ids).collect()
    }

    fn shard(&self, id: &RecordId) -> &Mutex<Running> {
        let [first, ..] = *id.as_bytes();
        let [zero, ..] = &self.shards;
        self.shards.get(usize::from(first) % SHARDS).unwrap_or(zero)
    }
}

impl Seat {
    /// The leader has the claim: whoever brings another request now can be told so.
    pub fn running(&self) {
        self.flight.becomes(|_| Stage::Running);
    }

    /// The execution is traced, under this span. Said once, before [`Self::running`].
    pub fn traced(&self, span: SpanRef) {
        // A second word changes nothing.
        let _ = self.flight.execution.set(Arc::new(span));
    }

    /// Ends the flight and tells everybody on it. Whoever comes later boards a new one, and finds what the store says.
    pub fn land(mut self, landing: Landing) {
        self.landing = Some(landing);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.flights.shard(&self.id).lock().remove(&self.id);
        let landing = self.landing.take();
        self.flight.becomes(|stage| {
            let unsaid = match stage {
                Stage::Boarding => Landing::NotStarted,
                Stage::Running | Stage::Landed(_) => Landing::Failed(Problem::UpstreamFailed),
            };
            Stage::Landed(landing.unwrap_or(unsaid))
        });
    }
}

impl Flight {
    /// Waits until it is known whether this flight executes; then whether `request` is the one it executes.
    /// `None`: it has landed meanwhile.
    pub async fn executes(&self, request: &Fingerprint) -> Option<bool> {
        let running = self.once(|stage| match stage {
            Stage::Boarding => None,
            Stage::Running => Some(true),
            Stage::Landed(_) => Some(false),
        });
        running.await.then(|| self.is_of(request))
    }

    /// Waits until `told` has an answer from the stage.
    async fn once<T>(&self, told: impl Fn(&Stage) -> Option<T>) -> T {
        loop {
            // Made before the stage is looked at: no change after that is missed.
            let changed = self.changed.notified();
            let answer = told(&self.stage.lock());
            if let Some(answer) = answer {
                return answer;
            }
            changed.await;
        }
    }

    fn becomes(&self, next: impl FnOnce(&Stage) -> Stage) {
        let mut stage = self.stage.lock();
        *stage = next(&stage);
        drop(stage);
        self.changed.notify_waiters();
    }

    /// Whether `request` is the one that this flight was boarded for.
    #[must_use]
    pub fn is_of(&self, request: &Fingerprint) -> bool {
        self.fingerprint.same_as(request)
    }

    /// The span of the execution, where it is traced: what those who joined link to.
    #[must_use]
    pub fn execution(&self) -> Option<Arc<SpanRef>> {
        self.execution.get().map(Arc::clone)
    }

    /// Takes a place among at most `max` who wait for the landing; `None`: it is full.
    #[must_use]
    pub fn wait(self: &Arc<Self>, max: usize) -> Option<Waiter> {
        let room = |waiters: usize| (waiters < max).then_some(waiters + 1);
        self.waiters
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .ok()?;
        Some(Waiter {
            flight: Arc::clone(self),
        })
    }
}

/// A place among those who wait; given up on drop.
#[derive(Debug)]
pub struct Waiter {
    flight: Arc<Flight>,
}

impl Waiter {
    /// Waits for the landing. A landing that came before is seen as well: none is lost.
    pub async fn landing(self) -> Landing {
        let landed = |stage: &Stage| match stage {
            Stage::Boarding | Stage::Running => None,
            Stage::Landed(landing) => Some(landing.clone()),
        };
        self.flight.once(landed).await
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.flight.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
