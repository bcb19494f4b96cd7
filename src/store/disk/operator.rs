//! What operators ask of a disk store. Lists walk an index and end when they are long enough.

use std::ops::ControlFlow;

use super::{
    Command, DiskStore, Shared, database::Kept, draw_token, queue::Resolving, reads, rows,
};
use crate::{
    core::{
        policy::RouteName,
        record::{RecordId, ShortId},
        time::Timestamp,
        transition::{Resolution, Standing},
    },
    store::{
        Outcome, Purged, Query, Row, StoreError,
        seal::{Place, Seal},
    },
};

impl DiskStore {
    /// As [`crate::store::Stores::list`]. Records that cannot be read are left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn list(&self, query: &Query) -> Result<Vec<Row>, StoreError> {
        let query = query.clone();
        self.reading(move |shared| {
            let listed = shared.with_reader(|reader| list(shared, reader, &query));
            listed.map_err(|_| StoreError::Unavailable)
        })
        .await
    }

    /// As [`crate::store::Stores::row`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; also if the record cannot be read.
    pub async fn row(&self, id: &RecordId) -> Result<Option<Row>, StoreError> {
        let id = *id;
        self.reading(move |shared| {
            let found = shared.with_reader(|reader| reads::head_of(reader, &id));
            let found = found.map_err(|_| StoreError::Unavailable)?;
            let row = |kept| shared.row(id, &kept);
            found.map(row).transpose().map(Option::flatten)
        })
        .await
    }

    /// As [`crate::store::Stores::find`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; also if such a record cannot be read.
    pub async fn find(&self, short: ShortId) -> Result<Vec<Row>, StoreError> {
        self.reading(move |shared| {
            let found =
                shared.with_reader(|reader| reads::beginning_with(reader, short.to_bytes()));
            let found = found.map_err(|_| StoreError::Unavailable)?;
            let mut rows = Vec::new();
            for (id, kept) in found {
                rows.extend(shared.row(id, &kept)?);
            }
            rows.truncate(2);
            Ok(rows)
        })
        .await
    }

    /// As [`crate::store::Stores::ids`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn ids(&self, short: ShortId) -> Result<Vec<RecordId>, StoreError> {
        self.reading(move |shared| {
            let found =
                shared.with_reader(|reader| reads::beginning_with(reader, short.to_bytes()));
            let found = found.map_err(|_| StoreError::Unavailable)?;
            Ok(found.into_iter().map(|(id, _)| id).collect())
        })
        .await
    }

    /// As [`crate::store::Stores::purge`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn purge(&self, id: &RecordId) -> Result<Purged, StoreError> {
        self.ask(|reply| Command::Purge(*id, reply)).await
    }

    /// As [`crate::store::Stores::resolve`].
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Unavailable`]
    pub async fn resolve(
        &self,
        id: &RecordId,
        resolution: Resolution,
    ) -> Result<Outcome, StoreError> {
        let token = draw_token()?;
        let answer = match &resolution {
            Resolution::Complete(answer) => {
                let answer = rows::write_answer(&self.shared.seal, id, token, answer);
                Some(answer.map_err(|_| StoreError::Unavailable)?)
            }
            Resolution::Release => None,
        };
        let resolving = Box::new(Resolving {
            id: *id,
            token,
            resolution,
            answer,
        });
        self.ask(|reply| Command::Resolve(resolving, reply)).await
    }
}

impl Shared {
    /// The row of what was found under this id; none if it has expired.
    fn row(&self, id: RecordId, kept: &Kept) -> Result<Option<Row>, StoreError> {
        let record = rows::read_head(&self.seal, &id, kept);
        let record = record.map_err(|why| self.unreadable(&id, why))?;
        Ok(Row::of(id, &record, self.clock.now(), kept.answer_bytes))
    }
}

fn list(
    shared: &Shared,
    reader: &rusqlite::Connection,
    query: &Query,
) -> rusqlite::Result<Vec<Row>> {
    let route = match &query.route {
        None => None,
        Some(name) => match number_of(&shared.seal, reads::routes(reader)?, name) {
            // No record came by it.
            None => return Ok(Vec::new()),
            number => number,
        },
    };
    // States as they are written down: a claim whose lease has run out stands as unknown.
    let states: &[u8] = match query.standing {
        None => &[0, 1, 2, 3],
        Some(Standing::InFlight) => &[0],
        Some(Standing::Unknown) => &[0, 1],
        Some(Standing::Complete) => &[2],
        Some(Standing::Tombstone) => &[3],
    };
    let now = shared.clock.now();
    let from = query
        .after
        .map_or(Timestamp::from_millis(u64::MAX), |place| place.started_at);
    let mut rows = Vec::new();
    for state in states {
        let mut left = query.limit;
        let take = |id: RecordId, kept: Kept| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            let record = rows::read_head(&shared.seal, &id, &kept).ok();
            let row = record.and_then(|record| Row::of(id, &record, now, kept.answer_bytes));
            if let Some(row) = row.filter(|row| query.wants(row)) {
                rows.push(row);
                left -= 1;
            }
            ControlFlow::Continue(())
        };
        reads::each_of(reader, *state, route, now, from, take)?;
    }
    rows.sort_by_key(|row| row.place().order());
    rows.truncate(query.limit);
    Ok(rows)
}

/// The number that records call this route by.
fn number_of(seal: &Seal, routes: Vec<(i64, Vec<u8>)>, name: &RouteName) -> Option<i64> {
    // The last one counts: an earlier one of the same name may be sealed with a key that is gone.
    routes.into_iter().rev().find_map(|(number, kept)| {
        let own = seal.open(Place::Route { number }, kept).ok()?;
        (own == name.as_str().as_bytes()).then_some(number)
    })
}
