//! A request that nobody is before, here: it asks the store for the claim.

use http::request::Parts;
use tokio::time::Instant;

use super::Visit;
use crate::{
    core::{policy::InFlight, problem::Problem, transition::Found},
    flight::{Landing, Seat},
    limit::Permit,
    proxy::{answer::Answer, traced::failed},
    store::{Begin, Claim, StoreError},
    telemetry::metrics::{Limit, Outcome, StoreOp, StoreResult},
    upstream::{Leave, Moment},
};

impl Visit<'_> {
    /// Asks for the claim. Until the flight runs or lands, whoever boards it waits.
    ///
    /// Dropping the future while the store is asked drops the seat: those who joined look again.
    pub(super) async fn lead(&self, seat: Seat, parts: &Parts) -> Led {
        let proxy = &self.worker.proxy;
        let Some(permit) = proxy.executions.take(1) else {
            proxy.metrics.limit_refused(Limit::MaxExecutions);
            seat.land(Landing::Failed(Problem::Overloaded));
            return Led::answered(self.problem(&Problem::Overloaded, Outcome::Overloaded));
        };
        let begun = self.place.traced.map(|_| Instant::now());
        // The claim's lease counts from when the store gave it, which is later.
        let asked = Moment::now();
        let done = proxy.records.begin(&self.id, &self.ask()).await;
        if let (Some(traced), Some(begun)) = (self.place.traced, begun) {
            let result = done
                .as_ref()
                .map_or_else(|why| failed(*why), |_| StoreResult::Ok);
            traced.store(self.worker, StoreOp::Begin, result, begun);
        }
        match done {
            Ok(Begin::Claimed(claim)) => {
                if let Some(traced) = self.place.traced {
                    seat.traced(traced.span());
                }
                seat.running();
                Led::Claimed(Start {
                    claim,
                    seat,
                    permit,
                    leave: Leave::new(asked, self.policy().terms.lease),
                })
            }
            Ok(Begin::Found(found)) => {
                drop(permit); // nothing is executed
                // Who joined looks too, or waits for itself: with its own patience, and for its own request.
                if matches!(found, Found::InFlight { .. })
                    && self.policy().in_flight == InFlight::Wait
                {
                    seat.land(Landing::Elsewhere);
                    return Led::Elsewhere;
                }
                seat.land(Landing::NotStarted);
                Led::answered(self.found(&found, parts).await)
            }
            Err(error) => {
                // Each who joined would ask for itself else, one after the other, for as long as the store takes to fail.
                seat.land(Landing::StoreFailed(error));
                Led::Failed(error)
            }
        }
    }
}

/// What leading a flight came to.
pub(super) enum Led {
    Claimed(Start),
    Answered(Box<Answer>),
    /// The same request runs on another proxy, and is waited for.
    Elsewhere,
    /// The store did not say: nothing was claimed.
    Failed(StoreError),
}

impl Led {
    fn answered(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}

/// All that an execution needs to be allowed.
pub(in crate::proxy) struct Start {
    pub(in crate::proxy) claim: Claim,
    pub(in crate::proxy) seat: Seat,
    pub(in crate::proxy) permit: Permit,
    /// For as long as the claim is surely held.
    pub(in crate::proxy) leave: Leave,
}
