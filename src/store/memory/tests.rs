//! The suite and the model on the memory store, and what its other tests are written with.

mod bounds;
mod expiry;
mod recency;
mod sweeping;

use std::{cell::Cell, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::{
    config::OnFull,
    core::{
        fixtures::{answer, id, request, route, terms, token},
        record::{NotRetained, ShortId},
        transition::Resolution,
    },
    store::{
        Outcome, Purged, Query, Row,
        clock::ManualClock,
        model,
        suite::{Met, Subject, suite},
    },
};

const MIB: u64 = 1 << 20;

const ROOMY: MemoryLimits = MemoryLimits {
    max_bytes: 256 * MIB,
    max_records: None,
    max_claims: 1000,
    on_full: OnFull::Evict,
};

/// A memory store with a clock that stands, and tokens that are counted.
struct Timed {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    tokens: Cell<u64>,
}

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

impl Timed {
    fn new(limits: MemoryLimits) -> Self {
        let clock = ManualClock::at(START);
        Self {
            store: MemoryStore::with_clock(limits, clock.clone()),
            clock,
            tokens: Cell::new(0),
        }
    }

    fn try_begin(&self, record: u64, terms: &Terms) -> Result<Begin, StoreError> {
        let (fingerprint, route) = (request("a"), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms,
            route: &route,
        };
        self.tokens.set(self.tokens.get() + 1);
        let begun = self
            .store
            .begin(&id(record), &ask, token(self.tokens.get()));
        self.store.assert_counted();
        begun
    }

    fn claim(&self, record: u64) -> Claim {
        match self.try_begin(record, &terms()) {
            Ok(Begin::Claimed(claim)) => claim,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&self, claim: Claim, settlement: Settlement) -> Settled {
        let settled = self.store.settle(claim, settlement, &terms());
        self.store.assert_counted();
        settled
    }

    /// Executes one request, whose answer has so many bytes of body.
    fn execute(&self, record: u64, body: usize) -> Settled {
        self.settle(
            self.claim(record),
            Settlement::Complete(answer(&vec![b'x'; body])),
        )
    }

    fn look(&self, record: u64) -> Met {
        let (fingerprint, route, terms) = (request("a"), route(), terms());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &terms,
            route: &route,
        };
        let found = self.store.look(&id(record), &ask);
        found.as_ref().map_or(Met::Nothing, Met::from)
    }

    /// Whether a record is complete, without using it.
    fn holds(&self, record: u64) -> bool {
        let id = id(record);
        self.store.in_shard(&id, |shard, _| {
            matches!(shard.table.get(&id), Some((_, Class::Complete(_))))
        })
    }

    /// Which of the first `n` records are complete, without using any of them.
    fn complete(&self, n: u64) -> Vec<u64> {
        (0..n).filter(|record| self.holds(*record)).collect()
    }
}

impl Subject for Timed {
    async fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        self.store.look(id, ask)
    }

    async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Begin {
        self.tokens.set(self.tokens.get() + 1);
        self.store
            .begin(id, ask, token(self.tokens.get()))
            .expect("room")
    }

    async fn renew(&self, claim: &Claim, terms: &Terms) -> Held {
        self.store.renew(claim, terms)
    }

    async fn settle(&self, claim: Claim, settlement: Settlement, terms: &Terms) -> Settled {
        self.store.settle(claim, settlement, terms)
    }

    async fn list(&self, query: &Query) -> Vec<Row> {
        self.store.list(query)
    }

    async fn row(&self, id: &RecordId) -> Option<Row> {
        self.store.row(id)
    }

    async fn find(&self, short: ShortId) -> Vec<Row> {
        self.store.find(short)
    }

    async fn purge(&self, id: &RecordId) -> Purged {
        let purged = self.store.purge(id);
        self.store.assert_counted();
        purged
    }

    async fn resolve(&self, id: &RecordId, resolution: Resolution) -> Outcome {
        let outcome = self.store.resolve(id, resolution).expect("room");
        self.store.assert_counted();
        outcome
    }

    async fn pass(&self, span: Duration) {
        self.clock.pass(span);
    }

    async fn sweep(&self) {
        self.store.sweep();
        self.store.assert_counted();
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Counts what is there, and compares with what is said to be there.
    fn assert_counted(&self) {
        let mut counted = (0, 0, 0, 0);
        for (index, shard) in self.shards.iter().enumerate() {
            let shard = shard.lock();
            let (unsettled, settled, complete, bytes) = shard.table.counted();
            counted.0 += unsettled;
            counted.1 += settled;
            counted.2 += complete;
            counted.3 += bytes;
            assert_eq!(self.recency.shown(index), shard.table.oldest_use());
        }
        let taken = self.room.taken();
        let settled = taken.claims as u64 - taken.unsettled;
        assert_eq!(
            counted,
            (taken.unsettled, settled, taken.complete, taken.bytes)
        );
    }
}

fn tombstone_of(settled: Settled) -> NotRetained {
    match settled {
        Settled::Kept(record) => match record.state {
            State::Tombstone { why, .. } => why,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn is_complete(settled: &Settled) -> bool {
    matches!(settled, Settled::Kept(record) if matches!(record.state, State::Complete(_)))
}

suite!(Timed::new(ROOMY));

proptest! {
    #[test]
    fn the_memory_store_does_what_the_pure_functions_say(steps in model::steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let timed = Timed::new(ROOMY);
        runtime.block_on(model::agree(&timed, START, &steps))?;
        timed.store.assert_counted();
        // Sweeping takes what has expired, and nothing else.
        let before: Vec<_> = (0..3).map(|record| timed.look(record)).collect();
        timed.store.sweep();
        timed.store.assert_counted();
        prop_assert_eq!(before, (0..3).map(|record| timed.look(record)).collect::<Vec<_>>());
    }
}
