//! What is done, and answered once it is durable.

use std::sync::Arc;

use super::queue::{Grant, Queue, Reply, Said};
use crate::{
    core::{
        record::{ClaimToken, RecordId},
        transition::Found,
    },
    store::{Held, Outcome, Purged, Settled, StoreError},
};

/// A command that is done, and not answered yet.
pub(super) enum Done {
    Begin {
        id: RecordId,
        token: ClaimToken,
        verdict: Result<Verdict, StoreError>,
        reply: Reply<Said>,
    },
    Renew(Result<Held, StoreError>, Reply<Held>),
    Settle(Result<Settled, StoreError>, Reply<Settled>),
    Abandon {
        id: RecordId,
        token: ClaimToken,
    },
    Purge(Result<Purged, StoreError>, Reply<Purged>),
    Resolve(Result<Outcome, StoreError>, Reply<Outcome>),
}

/// What `begin` came to.
pub(super) enum Verdict {
    Claimed,
    Found(Found),
    Cold,
}

impl Done {
    /// Says what came of it, now that it is durable.
    pub(super) fn answer(self, queue: &Arc<Queue>) {
        match self {
            Self::Begin {
                id,
                token,
                verdict,
                reply,
            } => {
                let said = verdict.map(|verdict| match verdict {
                    Verdict::Claimed => Said::Claimed(Grant::new(id, token, Arc::clone(queue))),
                    Verdict::Found(found) => Said::Found(found),
                    Verdict::Cold => Said::Cold,
                });
                // A grant that does not arrive takes itself back.
                let _ = reply.send(said);
            }
            Self::Renew(held, reply) => {
                let _ = reply.send(held);
            }
            Self::Settle(settled, reply) => {
                let _ = reply.send(settled);
            }
            Self::Abandon { .. } => {}
            Self::Purge(purged, reply) => {
                let _ = reply.send(purged);
            }
            Self::Resolve(outcome, reply) => {
                let _ = reply.send(outcome);
            }
        }
    }

    /// Says that it failed; the claim that may all the same be there, and that nobody holds.
    pub(super) fn refuse(self) -> Option<(RecordId, ClaimToken)> {
        let unavailable = StoreError::Unavailable;
        match self {
            Self::Begin {
                id,
                token,
                verdict,
                reply,
            } => {
                let _ = reply.send(Err(unavailable));
                matches!(verdict, Ok(Verdict::Claimed)).then_some((id, token))
            }
            Self::Renew(_, reply) => {
                let _ = reply.send(Err(unavailable));
                None
            }
            Self::Settle(_, reply) => {
                let _ = reply.send(Err(unavailable));
                None
            }
            Self::Abandon { id, token } => Some((id, token)),
            Self::Purge(_, reply) => {
                let _ = reply.send(Err(unavailable));
                None
            }
            Self::Resolve(_, reply) => {
                let _ = reply.send(Err(unavailable));
                None
            }
        }
    }
}
