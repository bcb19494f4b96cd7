//! The database of a disk store: SQLite in write-ahead mode. Tables, statements, and what may be believed of an error.
//!
//! | table | holds |
//! |---|---|
//! | `record` | one row a record; `head` and `answer` are frames of [`crate::core::record::encoding`], sealed where there is a key |
//! | `route` | the names that records call by their numbers, sealed likewise |
//! | `house` | one row: the latest time that the store ever knew, how often it was written, and how many records of each state there are |
//!
//! Indexes: `record_id` for every look; `record_claim` for what is in flight, which is little and soon something else; of all others `record_due` for
//! what time changes next, and `record_state` for lists by state in the order of their starts, those of one route too. Rows are never scanned.
//! What is in flight stands in no index of the others: it would be taken out of each a moment later.
//!
//! Pages of rows that are gone are used again; the file does not shrink.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{CachedStatement, Connection, Error, ErrorCode, OpenFlags, Row, params};

use super::{
    folder::{self, FileId},
    reads,
};
use crate::core::{
    record::{ClaimToken, RecordId},
    time::Timestamp,
};

/// A connection, and which files it was opened on.
#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    log: PathBuf,
    files: Files,
    #[cfg(test)]
    pub(super) faults: super::faults::Faults,
}

/// The files that make up a database. While they are the same, what was committed is where it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Files {
    database: Option<FileId>,
    log: Option<FileId>,
}

/// A record as its row has it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) state: u8,
    pub(super) token: ClaimToken,
    pub(super) head: Vec<u8>,
    /// How many bytes its answer has, as it is kept.
    pub(super) answer_bytes: u64,
}

/// A row to be written.
#[derive(Debug)]
pub(super) struct NewRow<'a> {
    pub(super) state: u8,
    pub(super) token: ClaimToken,
    pub(super) route: i64,
    pub(super) started_at: Timestamp,
    /// [`crate::core::transition::changes_at`]
    pub(super) due_at: Timestamp,
    pub(super) head: &'a [u8],
    pub(super) answer: Option<&'a [u8]>,
}

/// Where a sweep is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    due_at: i64,
    row: i64,
}

/// What the store knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct House {
    /// The latest time that was ever saved.
    pub(super) clock: Timestamp,
    /// How often it was saved, ever. A database in which that is less than it was is an older state of itself.
    pub(super) writes: u64,
    pub(super) counts: Counts,
}

/// Records by state: in the order of [`crate::core::record::State::number`].
pub(super) type Counts = [u64; 5];

/// How a database is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// At start: an empty file becomes a database.
    Start,
    /// Again, after an error: what is not there any more is not made anew, for its records would be forgotten.
    Again,
}

/// Why a database is not ours to use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Database(#[from] Error),
    #[error("it is no database of idem-proxy")]
    Foreign,
    #[error("it was written by another version of idem-proxy (format {0})")]
    Version(i64),
    #[error("it is an older state of itself: what was promised since is not in it")]
    Older,
    #[error("its file system has no write-ahead log: the journal is {0}")]
    NoLog(String),
}

/// `idem` in ASCII.
const APPLICATION: i64 = 0x6964_656d;
const FORMAT: i64 = 2;

const SCHEMA: &str = "
CREATE TABLE record (
    id BLOB NOT NULL,
    state INTEGER NOT NULL,
    token BLOB NOT NULL,
    route INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    head BLOB NOT NULL,
    answer BLOB
) STRICT;
CREATE UNIQUE INDEX record_id ON record (id);
CREATE TABLE route (number INTEGER PRIMARY KEY, name BLOB NOT NULL) STRICT;
CREATE TABLE house (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    clock INTEGER NOT NULL,
    writes INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    unknown INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    tombstone INTEGER NOT NULL,
    expired INTEGER NOT NULL
) STRICT;
INSERT INTO house VALUES (1, 0, 0, 0, 0, 0, 0, 0);
";

const INDEXES: &str = "
CREATE INDEX record_claim ON record (due_at) WHERE state = 0;
CREATE INDEX record_due ON record (due_at) WHERE state > 0;
CREATE INDEX record_state ON record (state, started_at, route) WHERE state > 0;
";

/// What becomes of a database of format 1, whose indexes were others.
const FROM_FORMAT_1: &str = "
DROP INDEX record_due;
DROP INDEX record_state;
DROP INDEX record_route;
";

impl Database {
    /// Opens the database for the one who writes.
    pub(super) fn open(path: &Path, how: Open, max_bytes: u64) -> Result<Self, Unusable> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        // After a power cut during the very first start there may be a page with nothing on it.
        let empty = how == Open::Start && pragma(&connection, "schema_version")? == 0;
        if empty {
            connection.pragma_update(None, "page_size", PAGE)?;
        } else if pragma(&connection, "application_id")? != APPLICATION {
            return Err(Unusable::Foreign);
        }
        let format = if empty {
            FORMAT
        } else {
            pragma(&connection, "user_version")?
        };
        if !(1..=FORMAT).contains(&format) {
            return Err(Unusable::Version(format));
        }
        let journal: String =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        if journal != "wal" {
            return Err(Unusable::NoLog(journal));
        }
        connection.execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON; PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -16384; PRAGMA journal_size_limit = 16777216;",
        )?;
        if empty {
            let make = format!(
                "BEGIN IMMEDIATE; {SCHEMA} {INDEXES} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT;"
            );
            connection.execute_batch(&make)?;
        } else if format == 1 {
            let change = format!(
                "BEGIN IMMEDIATE; {FROM_FORMAT_1} {INDEXES} PRAGMA user_version = {FORMAT}; COMMIT;"
            );
            connection.execute_batch(&change)?;
        }
        let pages = i64::try_from(max_bytes / PAGE_BYTES).unwrap_or(i64::MAX);
        // As many pages as there are already is the least that it can be.
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let mut database = Self {
            connection,
            path: path.to_owned(),
            log: log.into(),
            files: Files {
                database: None,
                log: None,
            },
            #[cfg(test)]
            faults: super::faults::Faults::default(),
        };
        // What is in the log may have been read from memory, after an error that the disk told only once, and maybe to a process before this one:
        // it is written again, to where it belongs, and only then believed.
        database.checkpoint()?;
        // The first write makes sure that the log is there, and that it can be written.
        database.begin()?;
        database
            .connection
            .execute("UPDATE house SET clock = clock", [])?;
        database.connection.execute_batch("COMMIT")?;
        // SQLite syncs folders as it syncs files, with fdatasync, which need not cover the name of the log.
        folder::sync(path.parent());
        database.files = database.files_now();
        Ok(database)
    }

    /// Opens the same database for reading alone.
    pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        Ok(connection)
    }

    /// Whether its files are still where they were when it was opened.
    pub(super) fn is_in_place(&self) -> bool {
        self.files == self.files_now()
    }

    fn files_now(&self) -> Files {
        Files {
            database: FileId::of(&self.path),
            log: FileId::of(&self.log),
        }
    }

    /// Writes all that is in the log to the database itself, on the disk.
    pub(super) fn checkpoint(&self) -> rusqlite::Result<()> {
        let busy: i64 =
            self.connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy == 0 {
            Ok(())
        } else {
            Err(io_error(rusqlite::ffi::SQLITE_BUSY))
        }
    }

    pub(super) fn begin(&self) -> rusqlite::Result<()> {
        self.statement("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Makes everything since [`Self::begin`] durable. After an error nobody knows whether it is.
    pub(super) fn commit(&self) -> rusqlite::Result<()> {
        #[cfg(test)]
        if let Some(fault) = self.faults.next() {
            if fault == super::faults::Fault::AfterCommit {
                self.connection.execute_batch("COMMIT")?;
            } else {
                self.connection.execute_batch("ROLLBACK")?;
            }
            return Err(io_error(rusqlite::ffi::SQLITE_IOERR_FSYNC));
        }
        self.statement("COMMIT")?.execute([]).map(drop)
    }

    /// Undoes everything since [`Self::begin`], as far as the error that led here has not.
    pub(super) fn roll_back(&self) {
        // The connection is closed next, which undoes it as well.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    /// The record without its answer.
    pub(super) fn find(&self, id: &RecordId) -> rusqlite::Result<Option<Kept>> {
        reads::head_of(&self.connection, id)
    }

    /// Writes the record in the place of what is there under its id. `was` is its state.
    pub(super) fn put(&self, id: &RecordId, row: &NewRow<'_>) -> rusqlite::Result<()> {
        self.statement(
            "INSERT INTO record (id, state, token, route, started_at, due_at, head, answer) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET state = ?2, token = ?3, route = ?4, started_at = ?5, due_at = ?6, head = ?7, answer = ?8",
        )?
        .execute(params![
            id.as_bytes(),
            row.state,
            row.token.to_bytes(),
            row.route,
            signed(row.started_at.as_millis()),
            signed(row.due_at.as_millis()),
            row.head,
            row.answer,
        ])
        .map(drop)
    }

    pub(super) fn remove(&self, id: &RecordId) -> rusqlite::Result<()> {
        self.statement("DELETE FROM record WHERE id = ?1")?
            .execute([id.as_bytes()])
            .map(drop)
    }

    /// Some of the records that time has changed, behind `after` in that order.
    pub(super) fn due(
        &self,
        now: Timestamp,
        after: Cursor,
        most: usize,
    ) -> rusqlite::Result<Vec<(Cursor, RecordId, Kept)>> {
        let mut statement = self.statement(
            "SELECT state, token, head, length(answer), id, due_at, rowid FROM record INDEXED BY record_due
             WHERE state > 0 AND (due_at, rowid) > (?1, ?2) AND due_at <= ?3
             UNION ALL
             SELECT state, token, head, length(answer), id, due_at, rowid FROM record INDEXED BY record_claim
             WHERE state = 0 AND (due_at, rowid) > (?1, ?2) AND due_at <= ?3
             ORDER BY due_at, rowid LIMIT ?4",
        )?;
        let rows = statement.query_map(
            params![
                after.due_at,
                after.row,
                signed(now.as_millis()),
                signed(most as u64)
            ],
            |row| {
                let cursor = Cursor {
                    due_at: row.get(5)?,
                    row: row.get(6)?,
                };
                Ok((cursor, RecordId::from_bytes(row.get(4)?), kept(row)?))
            },
        )?;
        rows.collect()
    }

    /// Some of the records that were in flight, behind this row.
    pub(super) fn in_flight(
        &self,
        after: i64,
        most: usize,
    ) -> rusqlite::Result<Vec<(i64, RecordId, Kept)>> {
        let mut statement = self.statement(
            "SELECT state, token, head, length(answer), id, rowid FROM record INDEXED BY record_claim
             WHERE state = 0 AND rowid > ?1 ORDER BY rowid LIMIT ?2",
        )?;
        let rows = statement.query_map(params![after, signed(most as u64)], |row| {
            Ok((row.get(5)?, RecordId::from_bytes(row.get(4)?), kept(row)?))
        })?;
        rows.collect()
    }

    pub(super) fn house(&self) -> rusqlite::Result<House> {
        self.statement(
            "SELECT clock, writes, in_flight, unknown, complete, tombstone, expired FROM house",
        )?
        .query_row([], |row| {
            let count = |at: usize| row.get::<_, i64>(at).map(unsigned);
            Ok(House {
                clock: Timestamp::from_millis(count(0)?),
                writes: count(1)?,
                counts: [count(2)?, count(3)?, count(4)?, count(5)?, count(6)?],
            })
        })
    }

    /// Saves it; the clock never goes back.
    pub(super) fn save_house(&self, house: &House) -> rusqlite::Result<()> {
        let [in_flight, unknown, complete, tombstone, expired] = house.counts.map(signed);
        self.statement(
            "UPDATE house SET clock = max(clock, ?1), writes = ?2, in_flight = ?3, unknown = ?4, complete = ?5, tombstone = ?6,
             expired = ?7",
        )?
        .execute(params![
            signed(house.clock.as_millis()),
            signed(house.writes),
            in_flight,
            unknown,
            complete,
            tombstone,
            expired
        ])
        .map(drop)
    }

    /// Number and name, as it is kept, of every route.
    pub(super) fn routes(&self) -> rusqlite::Result<Vec<(i64, Vec<u8>)>> {
        reads::routes(&self.connection)
    }

    pub(super) fn put_route(&self, number: i64, name: &[u8]) -> rusqlite::Result<()> {
        self.statement("INSERT OR REPLACE INTO route (number, name) VALUES (?1, ?2)")?
            .execute(params![number, name])
            .map(drop)
    }

    /// How many bytes of the file are taken, inside the transaction that is open too.
    pub(super) fn used_bytes(&self) -> rusqlite::Result<u64> {
        let number = |sql| {
            self.statement(sql)?
                .query_row([], |row| row.get::<_, i64>(0))
                .map(unsigned)
        };
        let (all, free) = (
            number("PRAGMA page_count")?,
            number("PRAGMA freelist_count")?,
        );
        Ok(all.saturating_sub(free).saturating_mul(PAGE_BYTES))
    }

    fn statement(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(sql)
    }
}

/// Whether an error says that what is kept is broken there, and nothing of the rest.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidColumnType(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::FromSqlConversionFailure(..)
    ) || error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
}

pub(super) fn kept(row: &Row<'_>) -> rusqlite::Result<Kept> {
    Ok(Kept {
        state: row.get(0)?,
        token: ClaimToken::from_random(row.get(1)?),
        head: row.get(2)?,
        answer_bytes: row.get::<_, Option<i64>>(3)?.map_or(0, unsigned),
    })
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn io_error(code: i32) -> Error {
    Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

const PAGE: i64 = 4096;

/// What the file grows by.
pub(super) const PAGE_BYTES: u64 = 4096;

/// How long somebody who looks into the file with a tool of their own may hold the writer up.
const BUSY: Duration = Duration::from_secs(1);

/// More statements than there are here.
const STATEMENTS: usize = 32;
