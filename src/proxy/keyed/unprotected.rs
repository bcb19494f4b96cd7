//! A request for which the store could not say anything.

use std::mem;

use http::{HeaderValue, header::TRAILER, request::Parts};

use super::Visit;
use crate::{
    core::{policy::OnStoreFailure, problem::Problem},
    proxy::{
        answer::{Answer, mark},
        buffered::Buffered,
        forward::{forward_whole, take_request},
    },
    store::StoreError,
    telemetry::metrics::{Limit, Outcome},
};

/// What the marker says of an answer that nothing protects.
const BYPASS: HeaderValue = HeaderValue::from_static("bypass");

impl Visit<'_> {
    /// Refuses the request, or forwards it without its key's protection, as `on_store_failure` has it. A store that is full has
    /// answered: that is a refusal under either.
    ///
    /// Dropping the future of one that is forwarded ends its call, as that of an unkeyed one.
    pub(super) async fn failed(
        &self,
        error: StoreError,
        parts: &mut Parts,
        buffered: &mut Buffered,
    ) -> Answer {
        match (error, self.policy().on_store_failure) {
            (StoreError::Unavailable, OnStoreFailure::Bypass) => {
                Box::pin(self.forward_unprotected(parts, buffered)).await
            }
            (
                StoreError::Unavailable | StoreError::Full | StoreError::None,
                OnStoreFailure::Reject | OnStoreFailure::Bypass,
            ) => self.store_failure(error),
        }
    }

    /// Nothing is claimed or stored, and nobody can join.
    async fn forward_unprotected(&self, parts: &mut Parts, buffered: &mut Buffered) -> Answer {
        let proxy = &self.worker.proxy;
        let Some(_permit) = proxy.executions.take(1) else {
            proxy.metrics.limit_refused(Limit::MaxExecutions);
            return self.problem(&Problem::Overloaded, Outcome::Overloaded);
        };
        if let Some(requests) = proxy.records.unprotected() {
            let (record, route) = (self.record(), self.metrics().name().as_str());
            tracing::warn!(%record, route, requests, "the store takes no claims; keyed requests are forwarded unprotected");
        }
        // The body goes out whole, and without the trailers that it may have come with.
        parts.headers.remove(TRAILER);
        let through = self.place.through(Outcome::Bypass);
        let request = take_request(parts, mem::take(&mut buffered.body));
        let mut answer = forward_whole(self.worker, through, request, self.place.peer).await;
        if answer.outcome == Outcome::Bypass {
            mark(answer.response.headers_mut(), self.policy(), Some(&BYPASS));
        }
        answer.of(self.record())
    }
}
