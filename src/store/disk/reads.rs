//! What those read who only read. Every statement walks an index.

use std::ops::ControlFlow;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::database::{Kept, kept, signed};
use crate::core::{record::RecordId, time::Timestamp};

/// A whole row, for readers.
pub(super) fn read_whole(
    connection: &Connection,
    id: &RecordId,
) -> rusqlite::Result<Option<(Kept, Option<Vec<u8>>)>> {
    connection
        .prepare_cached(
            "SELECT state, token, head, length(answer), answer FROM record WHERE id = ?1",
        )?
        .query_row([id.as_bytes()], |row| Ok((kept(row)?, row.get(4)?)))
        .optional()
}

/// A row without its answer.
pub(super) fn head_of(connection: &Connection, id: &RecordId) -> rusqlite::Result<Option<Kept>> {
    connection
        .prepare_cached("SELECT state, token, head, length(answer) FROM record WHERE id = ?1")?
        .query_row([id.as_bytes()], kept)
        .optional()
}

/// Calls `take` with the rows of this state that have not expired, the latest first, until it wants no more.
pub(super) fn each_of(
    connection: &Connection,
    state: u8,
    route: Option<i64>,
    now: Timestamp,
    from: Timestamp,
    mut take: impl FnMut(RecordId, Kept) -> ControlFlow<()>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(if state == CLAIMED {
        // They are few, and put into order as they are.
        "SELECT state, token, head, length(answer), id FROM record INDEXED BY record_claim
         WHERE state = 0 AND state = ?1 AND started_at <= ?2 AND due_at > ?3 AND ifnull(route = ?4, 1) ORDER BY started_at DESC, id"
    } else {
        "SELECT state, token, head, length(answer), id FROM record INDEXED BY record_state
         WHERE state > 0 AND state = ?1 AND started_at <= ?2 AND due_at > ?3 AND ifnull(route = ?4, 1) ORDER BY started_at DESC, id"
    })?;
    let (from, now) = (signed(from.as_millis()), signed(now.as_millis()));
    let mut rows = statement.query(params![state, from, now, route])?;
    while let Some(row) = rows.next()? {
        if take(RecordId::from_bytes(row.get(4)?), kept(row)?).is_break() {
            break;
        }
    }
    Ok(())
}

/// The rows whose ids begin so; three of more.
pub(super) fn beginning_with(
    connection: &Connection,
    first: [u8; 8],
) -> rusqlite::Result<Vec<(RecordId, Kept)>> {
    let (mut least, mut most) = ([0; 32], [0xff; 32]);
    for end in [&mut least, &mut most] {
        if let Some(place) = end.first_chunk_mut() {
            *place = first;
        }
    }
    let mut statement = connection.prepare_cached(
        "SELECT state, token, head, length(answer), id FROM record WHERE id BETWEEN ?1 AND ?2 LIMIT 3",
    )?;
    let rows = statement.query_map([least, most], |row| {
        Ok((RecordId::from_bytes(row.get(4)?), kept(row)?))
    })?;
    rows.collect()
}

/// Number and name, as it is kept, of every route, for readers.
pub(super) fn routes(connection: &Connection) -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
    let mut statement =
        connection.prepare_cached("SELECT number, name FROM route ORDER BY number")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// The state of what is in flight.
const CLAIMED: u8 = 0;
