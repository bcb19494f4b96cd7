//! A request whose copy runs on another proxy.

use http::request::Parts;
use tokio::time::timeout;

use super::Visit;
use crate::{
    core::transition::Found,
    proxy::answer::Answer,
    store::{Awaited, Runs, StoreError},
    telemetry::metrics::{Limit, Outcome},
};

impl Visit<'_> {
    /// Joins a call that runs on another proxy: waits for what it is settled as, and never executes. `None`: there was no such call to
    /// begin with, or the store cannot say whether there was; never where it surely runs.
    ///
    /// Dropping the future gives the place up and changes nothing else.
    pub(super) async fn join_elsewhere(&self, parts: &Parts, runs: Runs) -> Option<Answer> {
        let (proxy, policy, ask) = (&self.worker.proxy, self.policy(), self.ask());
        self.left_as.becomes(Outcome::Joined);
        let _counted = self.metrics().waiter();
        let wait = proxy
            .records
            .wait_for_change(&self.id, &ask, policy.max_waiters, runs);
        let answer = match timeout(policy.wait_timeout, wait).await {
            Ok(Ok(Awaited::Found(found @ Found::Complete(_)))) => {
                let mut answer = self.found(&found, parts).await;
                if answer.outcome == Outcome::Hit {
                    answer.outcome = Outcome::Joined;
                }
                answer
            }
            Ok(Ok(Awaited::Found(found))) => self.found(&found, parts).await,
            Ok(Ok(Awaited::Nothing)) => return None,
            Ok(Err(StoreError::Full)) => {
                proxy.metrics.limit_refused(Limit::MaxWaiters);
                self.in_flight()
            }
            Ok(Err(error)) => self.store_failure(error),
            // Its answer was not stored, or the wait is over.
            Ok(Ok(Awaited::Gone)) | Err(_) => self.in_flight(),
        };
        Some(answer)
    }
}
