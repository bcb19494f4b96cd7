//! Settling a record, and counting what it became.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Worker,
    traced::{Traced, failed},
};
use crate::{
    config::Route,
    core::{
        policy::Terms,
        record::{RecordId, State},
        transition::Settlement,
    },
    store::{Claim, Held, Settled, Unsettled},
    telemetry::metrics::{RouteMetrics, SettledAs, StoreOp, StoreResult},
};

/// Whose record it is.
#[derive(Clone, Copy)]
pub(super) struct Settling<'a> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) route: &'a Route,
    pub(super) metrics: &'a RouteMetrics,
    pub(super) id: RecordId,
    /// Whether the first client was told 504 before.
    pub(super) late: bool,
    /// The request that began it, where that is traced.
    pub(super) traced: Option<Traced>,
}

impl Settling<'_> {
    /// Settles the record; counted by what it became. `None`: the store would not take it now; it is asked again behind the
    /// answer, for as long as the claim holds.
    pub(super) async fn settle(&self, claim: Claim, settlement: Settlement) -> Option<Settled> {
        let terms = self.route.policy.terms;
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
                self.count(&settled);
                Some(settled)
            }
            Err(unsettled) => {
                tracing::warn!(record = %self.id.short(), error = %unsettled, "a record could not be settled; trying again");
                let again = settle_again(Arc::clone(self.worker), unsettled, terms);
                self.worker.executions.spawn(again);
                None
            }
        }
    }

    fn count(&self, settled: &Settled) {
        let settled_as = match settled {
            Settled::Lost => {
                self.metrics.claim_lost();
                tracing::warn!(record = %self.id.short(), "a claim was lost before its call ended; nothing was written");
                return;
            }
            _ if self.late => SettledAs::Late,
            Settled::Released => SettledAs::Released,
            Settled::Kept(record) => match record.state {
                State::Complete(_) => SettledAs::Complete,
                State::Tombstone { .. } => SettledAs::Tombstone,
                State::Unknown { .. } | State::InFlight { .. } | State::Expired => {
                    SettledAs::Unknown
                }
            },
        };
        self.metrics.settled(settled_as);
    }
}

/// Settles a claim that the store would not take at first, for as long as the claim can be renewed.
async fn settle_again(worker: Arc<Worker>, mut unsettled: Unsettled, terms: Terms) {
    loop {
        sleep(RETRY_SETTLE).await;
        let Unsettled {
            claim, settlement, ..
        } = unsettled;
        if let Ok(Held::Lost) = worker.proxy.records.renew(&claim, &terms).await {
            return; // somebody else has the key: the lease had run out
        }
        match worker.proxy.records.settle(claim, settlement, &terms).await {
            Ok(_) => return,
            Err(again) => unsettled = again,
        }
    }
}

/// How long after a store refused a settlement it is asked again.
const RETRY_SETTLE: Duration = Duration::from_millis(200);
