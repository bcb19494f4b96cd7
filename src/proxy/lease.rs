//! Leases: how a claim is kept while its call runs.

use std::pin::{Pin, pin};

use tokio::time::Instant;

use super::Worker;
use crate::{
    core::policy::Policy,
    store::{Claim, Held},
    upstream::{Leave, Moment},
};

/// A claim while it is held, and what it is renewed by.
pub(super) struct Lease<'a> {
    pub(super) worker: &'a Worker,
    pub(super) claim: &'a Claim,
    pub(super) policy: &'a Policy,
    /// What goes on with it, where something does.
    pub(super) leave: Option<&'a Leave>,
}

impl Lease<'_> {
    /// Runs `work` until `deadline` and renews the claim every third of its lease meanwhile; `None`: it had not ended by then. A claim that
    /// is lost does not end the work: its client still gets its answer; it is counted when it comes to be settled, once.
    ///
    /// Dropping the future drops the work.
    pub(super) async fn renewed<F: Future>(&self, deadline: Instant, work: F) -> Option<F::Output> {
        let timers = &self.worker.renewals;
        let mut work = pin!(work);
        loop {
            let due = Instant::now() + self.policy.terms.lease / 3;
            let until = due.min(deadline);
            if let Some(output) = timers.within(until, work.as_mut()).await {
                return Some(output);
            }
            if until == deadline {
                return None;
            }
            // What renews it is rare; boxed, it makes no execution larger.
            match Box::pin(self.renew(deadline, work.as_mut())).await? {
                Renewal::Held => {}
                Renewal::Lost => {
                    if let Some(leave) = self.leave {
                        // What is not begun yet is somebody else's to do.
                        leave.end();
                    }
                    return timers.within(deadline, work).await;
                }
                Renewal::NotNeeded(output) => return Some(output),
            }
        }
    }

    /// Renews the claim, once, while `work` goes on: a store that is slow to answer does not hold it up. `None`: `deadline` has come.
    async fn renew<F: Future>(
        &self,
        deadline: Instant,
        mut work: Pin<&mut F>,
    ) -> Option<Renewal<F::Output>> {
        let asked = Moment::now();
        let renewing = self
            .worker
            .proxy
            .records
            .renew(self.claim, &self.policy.terms);
        let renewed = tokio::select! {
            biased;
            output = work.as_mut() => return Some(Renewal::NotNeeded(output)),
            renewed = renewing => renewed,
            () = self.worker.renewals.at(deadline) => return None,
        };
        match renewed {
            Ok(Held::Yes) => {
                if let Some(leave) = self.leave {
                    leave.extend(asked, self.policy.terms.lease);
                }
            }
            Ok(Held::Lost) => {
                tracing::warn!(record = %self.claim.id().short(), "a claim was lost while its call runs");
                return Some(Renewal::Lost);
            }
            Err(error) => {
                tracing::warn!(record = %self.claim.id().short(), %error, "a claim could not be renewed");
            }
        }
        Some(Renewal::Held)
    }
}

/// What a try to renew a claim came to.
enum Renewal<T> {
    /// It is held for another lease, or for what is left of it: the store could not say.
    Held,
    /// Somebody else has the key.
    Lost,
    /// The work has ended.
    NotNeeded(T),
}
