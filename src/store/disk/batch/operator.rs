//! What operators have done in a batch.

use std::sync::Arc;

use super::Batch;
use crate::{
    core::{
        record::RecordId,
        transition::{self, Resolved},
    },
    store::{
        Outcome, Purged, Row, StoreError,
        disk::{queue::Resolving, rows},
    },
};

impl Batch<'_> {
    /// Forgets a record, readable or not, unless a call runs under it.
    pub(super) fn purge(&mut self, id: &RecordId) -> rusqlite::Result<Result<Purged, StoreError>> {
        let Some(kept) = self.database.find(id)? else {
            return Ok(Ok(Purged::Absent));
        };
        let now = self.shared.clock.now();
        let record = rows::read_head(&self.shared.seal, id, &kept);
        let purged = record.map_or(Purged::Gone, |record| transition::purge(&record, now));
        if purged == Purged::Gone {
            self.remove(id, Some(kept))?;
            self.purged += 1;
        }
        Ok(Ok(purged))
    }

    /// Settles an unknown outcome. An answer that has no room is refused, and the outcome stays unknown.
    pub(super) fn resolve(
        &mut self,
        resolving: Resolving,
    ) -> rusqlite::Result<Result<Outcome, StoreError>> {
        let Resolving {
            id,
            token,
            resolution,
            answer,
        } = resolving;
        let standing = match self.find(&id)? {
            Ok(standing) => standing,
            Err(error) => return Ok(Err(error)),
        };
        let there = standing.as_ref().map(|(_, record)| record);
        let now = self.shared.clock.now();
        let record = match transition::resolve(there, resolution, now) {
            Resolved::Absent => return Ok(Ok(Outcome::Absent)),
            Resolved::NotUnknown => return Ok(Ok(Outcome::NotUnknown)),
            Resolved::Released => {
                self.remove(&id, standing.map(|(kept, _)| kept))?;
                return Ok(Ok(Outcome::Released));
            }
            Resolved::Kept(record) => record,
        };
        let bytes = answer.as_ref().map_or(0, Vec::len);
        if !self.room.holds(bytes) {
            return Ok(Err(StoreError::Full));
        }
        let was = standing.map(|(kept, _)| kept);
        // Under a token of its own: a holder that comes late does not find its claim settled by itself.
        let written = self.write(&id, was, token, &record, answer.as_deref())?;
        Ok(written.map(|()| {
            let record = Arc::new(record);
            self.changes.push((id, Some(Arc::clone(&record))));
            let row = Row::of(id, &record, now, bytes as u64);
            row.map_or(Outcome::Absent, Outcome::Kept)
        }))
    }
}
