//! Settling a record, and counting what it became.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Worker,
    traced::{Traced, failed},
};
use crate::{
    core::{
        fingerprint::Fingerprint,
        policy::{Policy, Terms},
        record::{ClaimToken, NotRetained, Record, RecordId, ShortId, State},
        transition::{self, After, Ask, Begun, Settlement},
    },
    flight::Entered,
    store::{Claim, Settled, StoreError, Unsettled, clock::Clock as _},
    telemetry::metrics::{RouteMetrics, SettledAs, StoreOp, StoreResult},
};

/// Whose record it is.
#[derive(Clone, Copy)]
pub(super) struct Settling<'a> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) policy: &'a Policy,
    pub(super) metrics: &'a RouteMetrics,
    pub(super) id: RecordId,
    pub(super) fingerprint: &'a Arc<Fingerprint>,
    /// Whether the first client was told 504 before.
    pub(super) late: bool,
    /// The request that began it, where that is traced.
    pub(super) traced: Option<Traced>,
}

impl Settling<'_> {
    /// Settles the record; counted by what it became. `None`: the store would not take it now; it is asked again behind the
    /// answer, for as long as the claim holds, and what it holds of the limits is held until then.
    pub(super) async fn settle(
        &self,
        claim: Claim,
        settlement: Settlement,
        held: impl Send + 'static,
    ) -> Option<Settled> {
        let terms = self.policy.terms;
        let begun = self.traced.map(|_| Instant::now());
        let records = &self.worker.proxy.records;
        let done = records.settle(claim, settlement, &terms).await;
        if let (Some(traced), Some(begun)) = (self.traced, begun) {
            let result = match &done {
                Ok(Settled::Lost) => StoreResult::Lost,
                Ok(Settled::Kept(_) | Settled::Released) => StoreResult::Ok,
                Err(unsettled) => failed(unsettled.why),
            };
            traced.store(self.worker, StoreOp::Settle, result, begun);
        }
        match done {
            Ok(settled) => {
                count(&settled, self.metrics, self.id.short(), self.late);
                Some(settled)
            }
            Err(unsettled) => {
                tracing::warn!(record = %self.id.short(), error = %unsettled, "a record could not be settled; trying again");
                // Before anybody is answered: whoever comes back meets it.
                let entered = self.enter(self.settled(&unsettled.settlement));
                let (worker, metrics) = (Arc::clone(self.worker), self.metrics.clone());
                let again = settle_again(worker, metrics, unsettled, terms, self.late, entered);
                self.worker.executions.spawn(async move {
                    again.await;
                    drop(held);
                });
                None
            }
        }
    }

    /// Makes it known here that the call goes on, though nobody can join it, until `deadline` at the latest.
    pub(super) fn runs_until(&self, deadline: Instant) -> Entered {
        let lease = deadline.saturating_duration_since(Instant::now());
        let terms = Terms {
            lease,
            ..self.policy.terms
        };
        self.enter(self.claimed(&terms))
    }

    fn enter(&self, record: Option<Record>) -> Entered {
        let unsaved = self.worker.proxy.flights.unsaved();
        unsaved.enter(self.id, record)
    }

    /// The record as it would be saved, begun now; `None`: it would be removed.
    fn settled(&self, settlement: &Settlement) -> Option<Record> {
        let terms = &self.policy.terms;
        let claimed = Arc::new(self.claimed(terms)?);
        let now = self.worker.proxy.clock.now();
        match transition::settle(Some(&claimed), NOBODY, settlement.clone(), terms, now) {
            After::Kept(record) => Some(record),
            After::Released | After::Lost => None,
        }
    }

    fn claimed(&self, terms: &Terms) -> Option<Record> {
        let ask = Ask {
            fingerprint: self.fingerprint,
            terms,
            route: self.metrics.name(),
        };
        match transition::begin(None, &ask, NOBODY, self.worker.proxy.clock.now()) {
            Begun::Claimed(record) => Some(record),
            Begun::Found(_) => None, // there is nothing to be found
        }
    }
}

/// The token of records that no store has.
const NOBODY: ClaimToken = ClaimToken::from_random([0; 16]);

/// Counts what a claim came to, once. `late`: its client was told 504 before.
fn count(settled: &Settled, metrics: &RouteMetrics, record: ShortId, late: bool) {
    let settled_as = match settled {
        Settled::Lost => {
            metrics.claim_lost();
            tracing::warn!(%record, "a claim was lost before its call ended; nothing was written");
            return;
        }
        _ if late => SettledAs::Late,
        Settled::Released => SettledAs::Released,
        Settled::Kept(record) => match record.state {
            State::Complete(_) => SettledAs::Complete,
            State::Tombstone { .. } => SettledAs::Tombstone,
            State::Unknown { .. } | State::InFlight { .. } | State::Expired => SettledAs::Unknown,
        },
    };
    metrics.settled(settled_as);
}

/// Settles a claim that the store would not take at first, for as long as the claim can be renewed; counted once, by what came of it.
/// Until then it is known here.
async fn settle_again(
    worker: Arc<Worker>,
    metrics: RouteMetrics,
    mut unsettled: Unsettled,
    terms: Terms,
    late: bool,
    _entered: Entered,
) {
    let record = unsettled.claim.id().short();
    let mut may_have_taken_effect = unsettled.why == StoreError::Unavailable;
    let mut refused = 0;
    loop {
        sleep(RETRY_SETTLE).await;
        let Unsettled {
            claim, settlement, ..
        } = unsettled;
        let releases = matches!(settlement, Settlement::Release);
        // A settlement that took effect although its answer was lost looks like a lost claim to a renewal, and is known to a repetition.
        if let Err(why) = worker.proxy.records.renew(&claim, &terms).await {
            unsettled = Unsettled {
                claim,
                settlement,
                why,
            };
            continue;
        }
        // An answer that is refused again and again, by a store that renews its claim, would be so for ever: the record goes without it.
        let settlement = match settlement {
            Settlement::Complete(answer) if refused >= MOST_REFUSED => {
                tracing::error!(%record, "a store that works does not take an answer; its record is kept without it");
                let (status, why) = (answer.status(), NotRetained::NoRoom);
                Settlement::Tombstone { status, why }
            }
            settlement => settlement,
        };
        refused += 1;
        let settled = match worker.proxy.records.settle(claim, settlement, &terms).await {
            // Of a release nothing is left to know it by, and nothing to protect.
            Ok(Settled::Lost) if releases && may_have_taken_effect => Settled::Released,
            Ok(settled) => settled,
            Err(again) => {
                may_have_taken_effect |= again.why == StoreError::Unavailable;
                unsettled = again;
                continue;
            }
        };
        return count(&settled, &metrics, record, late);
    }
}

/// So often a settlement is refused by a store that renews its claim, at most.
const MOST_REFUSED: u32 = 20;

/// How long after a store refused a settlement it is asked again.
const RETRY_SETTLE: Duration = Duration::from_millis(200);
