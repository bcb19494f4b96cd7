//! Waiting for a record that runs elsewhere.
//!
//! One of those who wait reads the store for all: what it found serves everybody who was not told of a change since. Each of them judges
//! it by its own fingerprint and terms.

use std::{sync::Arc, time::Duration};

use super::{Inner, RedisStore, changes::Look, node::Node};
use crate::{
    core::{
        record::{Record, RecordId, State},
        transition::{self, Ask, Found},
    },
    store::{Awaited, Runs, StoreError},
};

impl RedisStore {
    /// Waits until the record that runs elsewhere is something else, and says what. Whoever has waited never executes by it.
    ///
    /// Dropping the future gives the place up.
    ///
    /// # Errors
    /// [`StoreError::Full`]: `max` wait already. A record that cannot be read is waited for.
    pub async fn wait(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
        max: usize,
        runs: Runs,
    ) -> Result<Awaited, StoreError> {
        let inner = &*self.inner;
        let waiting = inner.changes.join(*id, max).ok_or(StoreError::Full)?;
        let mut changed = waiting.subscribe();
        let (mut pause, mut ran, mut last) = (LEAST_POLL, runs == Runs::Surely, 0);
        loop {
            let told = *changed.borrow_and_update();
            let looked = {
                let mut look = waiting.entry.look.lock().await;
                let known = look.as_ref();
                let serves = |look: &&Look| look.changes >= told && look.number > last;
                let found = match known.filter(serves).map(|look| inner.judge(id, look, ask)) {
                    Some(Judged::Says(found)) => Ok(found),
                    Some(Judged::Lapsed) | None => {
                        let number = known.map_or(0, |look| look.number) + 1;
                        let told_before = waiting.entry.changes();
                        match inner.hot(id, ask) {
                            Some(found) => Ok(Some(found)),
                            None => inner.look(id, ask).await.map(|(record, found)| {
                                *look = Some(Look {
                                    changes: told_before,
                                    number,
                                    record,
                                });
                                found
                            }),
                        }
                    }
                };
                last = look.as_ref().map_or(last, |look| look.number);
                found
            };
            let left = match looked {
                Ok(Some(Found::InFlight { left })) => {
                    ran = true;
                    left
                }
                Ok(Some(found)) => return Ok(Awaited::Found(found)),
                Ok(None) if ran => return Ok(Awaited::Gone),
                Ok(None) => return Ok(Awaited::Nothing),
                // Whether it runs is not known: the store is asked for the claim, and fails or not.
                Err(_) if !ran => return Ok(Awaited::Nothing),
                Err(_) => Duration::MAX,
            };
            let poll = pause.min(left.saturating_add(AFTER_LEASE));
            pause = (pause * 2).min(MOST_POLL);
            // Woken or not, the record is looked at.
            let _ = tokio::time::timeout(poll, changed.changed()).await;
        }
    }

    /// Whether somebody waits for this record.
    #[must_use]
    pub fn awaited(&self, id: &RecordId) -> bool {
        self.inner.changes.awaits(id)
    }
}

/// What a look says to one request.
enum Judged {
    Says(Option<Found>),
    /// The lease that was seen may have run out since: the server knows whether it was renewed.
    Lapsed,
}

impl Inner {
    fn judge(&self, id: &RecordId, look: &Look, ask: &Ask<'_>) -> Judged {
        let now = self.link.with_node(&self.prefix, id, Node::latest);
        // Where nobody has it now, who reads it finds that out.
        let Some(now) = now else {
            return Judged::Lapsed;
        };
        let record = look.record.as_ref();
        if let Some(State::InFlight { lease_until, .. }) = record.map(|record| &record.state)
            && now >= *lease_until
        {
            return Judged::Lapsed;
        }
        Judged::Says(transition::look(record, ask, now))
    }

    /// Reads the record from the server: all of it, and what it says to this request.
    pub(super) async fn look(
        &self,
        id: &RecordId,
        ask: &Ask<'_>,
    ) -> Result<(Option<Arc<Record>>, Option<Found>), StoreError> {
        let (kept, now, seen) = self.read(id).await?;
        let Some(kept) = kept else {
            return Ok((None, None));
        };
        let record = self.record(id, kept, now)?;
        self.cache.fill(*id, &record, seen);
        let found = transition::look(Some(&record), ask, now);
        Ok((Some(record), found))
    }
}

const LEAST_POLL: Duration = Duration::from_millis(100);
const MOST_POLL: Duration = Duration::from_secs(2);

/// So long after a lease has ended its record is looked at.
const AFTER_LEASE: Duration = Duration::from_millis(20);
