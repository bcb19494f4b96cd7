//! What requests, operators and the keeper do with records alike.

use std::{fmt, sync::Arc};

use ::redis::Value;

use super::{
    Inner,
    kept::{self, Kept, Unreadable, hex},
    node::Node,
    refused, span, time,
};
use crate::{
    core::{
        policy::{RetentionFrom, Terms, UnknownOutcome},
        record::{ClaimToken, Print, Record, RecordId, State},
        time::Timestamp,
        transition::{self, Ask, Found, Settlement},
    },
    store::{Claim, Settled, StoreError, cache::Seen},
};

impl Inner {
    pub(super) fn key(&self, id: &RecordId) -> String {
        format!("{}{}", self.prefix, hex(id.as_bytes()))
    }

    /// What the cache says, while it is believed. A record near its end is the server's to judge.
    pub(super) fn hot(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        let believed = |node: &Node| node.believes().then(|| node.latest());
        let now = self.link.with_node(&self.prefix, id, believed)??;
        let record = self.cache.get(id)?;
        if transition::expired(&record, now) {
            return None;
        }
        transition::look(Some(&record), ask, now)
    }

    pub(super) async fn read(
        &self,
        id: &RecordId,
    ) -> Result<(Option<Kept>, Timestamp, Seen), StoreError> {
        let seen = self.cache.seen(id);
        let link = &self.link;
        let told = link.run(&link.scripts.read, &self.key(id), &[], 0).await?;
        let mut told = told.into_iter();
        let now = time(told.next());
        let kept = told.next().map(Kept::read).transpose();
        let kept = kept.map_err(|why| self.unreadable(id, why))?;
        Ok((kept, now, seen))
    }

    pub(super) fn record(
        &self,
        id: &RecordId,
        kept: Kept,
        now: Timestamp,
    ) -> Result<Arc<Record>, StoreError> {
        let complete = kept.state == 2;
        let answered = kept.has_answer();
        let record = kept.whole(&self.seal, id);
        let record = record.map_err(|why| self.unreadable(id, why))?;
        // The answer of what has expired may be gone; nobody is told it.
        if complete && !answered && !transition::expired(&record, now) {
            return Err(self.unreadable(id, Unreadable::Field("b")));
        }
        Ok(Arc::new(record))
    }

    /// Says that a record cannot be read. It is there all the same, so nobody may claim it.
    pub(super) fn unreadable(&self, id: &RecordId, error: Unreadable) -> StoreError {
        if self.link.may_complain() {
            let record = id.short();
            tracing::error!(%record, %error, "a record in Redis cannot be read; its key is refused, and nothing is executed under it");
        }
        StoreError::Unavailable
    }

    pub(super) async fn settle(
        &self,
        claim: &Claim,
        settlement: &Settlement,
        terms: &Terms,
    ) -> Result<Settled, StoreError> {
        let (id, token) = (&claim.id, claim.token.to_bytes());
        let (mut status, mut why, mut answer) = (String::new(), "", Vec::new());
        let state = match settlement {
            Settlement::Release => "",
            Settlement::Unknown if terms.unknown == UnknownOutcome::Release => "",
            Settlement::Unknown => "1",
            Settlement::Complete(stored) => {
                stored.status().as_str().clone_into(&mut status);
                answer = kept::write_answer(&self.seal, id, claim.token, stored)
                    .map_err(|_| StoreError::Unavailable)?;
                "2"
            }
            Settlement::Tombstone {
                status: said,
                why: reason,
            } => {
                said.as_str().clone_into(&mut status);
                why = reason.as_str();
                "3"
            }
        };
        let (retention, refused) = (span(terms.retention), refused(terms.after_expiry));
        let from = match terms.retention_from {
            RetentionFrom::Start => "start",
            RetentionFrom::Completion => "completion",
        };
        let arguments: [&[u8]; 11] = [
            &token,
            state.as_bytes(),
            retention.as_bytes(),
            from.as_bytes(),
            refused.as_bytes(),
            status.as_bytes(),
            why.as_bytes(),
            &answer,
            self.channel.as_bytes(),
            &self.origin,
            id.as_bytes(),
        ];
        let (link, key) = (&self.link, self.key(id));
        let seen = self.cache.seen(id);
        let told = link.run(&link.scripts.settle, &key, &arguments, 1).await?;
        let mut told = told.into_iter();
        match told.next() {
            Some(Value::Int(0)) => return Ok(Settled::Lost),
            Some(Value::Int(2)) => return Ok(Settled::Released),
            Some(Value::Int(1)) => {}
            _ => return Err(link.odd()),
        }
        let now = time(told.next());
        let (started_at, expires_at) = (time(told.next()), time(told.next()));
        let Some(Value::BulkString(head)) = told.next() else {
            return Err(link.odd());
        };
        let (print, route) = kept::read_head(&self.seal, id, claim.token, head)
            .map_err(|why| self.unreadable(id, why))?;
        let record = Arc::new(Record {
            print: Print::Settled(print.digests()),
            state: match settlement {
                Settlement::Complete(answer) => State::Complete(answer.clone()),
                Settlement::Tombstone { status, why } => State::Tombstone {
                    status: *status,
                    why: *why,
                },
                Settlement::Release | Settlement::Unknown => State::Unknown {
                    since: now.max(started_at),
                },
            },
            started_at,
            expires_at,
            after_expiry: terms.after_expiry,
            route,
        });
        // A purge after it may have been heard of before this.
        self.cache.fill(*id, &record, seen);
        Ok(Settled::Kept(record))
    }

    /// Lets a claim go that nobody holds.
    pub(super) async fn release(&self, id: &RecordId, token: ClaimToken) -> Result<(), StoreError> {
        let token = token.to_bytes();
        let mut arguments: [&[u8]; 11] = [&[]; 11];
        let [own, .., channel, origin, record] = &mut arguments;
        (*own, *channel, *origin, *record) =
            (&token, self.channel.as_bytes(), &self.origin, id.as_bytes());
        let (link, key) = (&self.link, self.key(id));
        link.run(&link.scripts.settle, &key, &arguments, 1).await?;
        Ok(())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}
