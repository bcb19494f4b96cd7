//! What operators see of a record, and what becomes of it by their word.

use std::sync::Arc;

use super::{check_invariants, expired, runs};
use crate::core::{
    record::{Print, Record, State, StoredAnswer},
    time::Timestamp,
};

/// What an operator is told of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// A call runs under it, for all that is known.
    InFlight,
    /// The upstream may have executed, and nobody can tell.
    Unknown,
    /// Its answer is replayed.
    Complete,
    /// It was executed, and its answer is not kept.
    Tombstone,
}

impl Standing {
    /// Every one.
    pub const ALL: [Self; 4] = [
        Self::InFlight,
        Self::Unknown,
        Self::Complete,
        Self::Tombstone,
    ];

    /// How the admin API spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in-flight",
            Self::Unknown => "unknown",
            Self::Complete => "complete",
            Self::Tombstone => "tombstone",
        }
    }
}

/// How a record stands; `None`: it has expired, and is nothing to an operator, whether or not its key is refused.
#[must_use]
pub fn standing(record: &Record, now: Timestamp) -> Option<Standing> {
    if expired(record, now) {
        return None;
    }
    match record.state {
        State::InFlight { .. } if runs(record, now) => Some(Standing::InFlight),
        State::InFlight { .. } | State::Unknown { .. } => Some(Standing::Unknown),
        State::Complete(_) => Some(Standing::Complete),
        State::Tombstone { .. } => Some(Standing::Tombstone),
        State::Expired => None,
    }
}

/// What comes of a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purged {
    /// The record is to be removed, or is gone.
    Gone,
    /// A call runs under it: without it the next request would be executed beside that call. It stays.
    Runs,
    /// There is none.
    Absent,
}

/// What comes of a purge of this record.
#[must_use]
pub fn purge(record: &Record, now: Timestamp) -> Purged {
    match standing(record, now) {
        None => Purged::Absent,
        Some(Standing::InFlight) => Purged::Runs,
        Some(Standing::Unknown | Standing::Complete | Standing::Tombstone) => Purged::Gone,
    }
}

/// What an operator found out about an unknown outcome.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// It was not executed: the key is free.
    Release,
    /// It was, and this is its answer.
    Complete(StoredAnswer),
}

/// What [`resolve`] answers with.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is handed over once, to whoever takes the record out"
)]
pub enum Resolved {
    /// The record to write in its place.
    Kept(Record),
    /// The record is to be removed.
    Released,
    /// Its outcome is not unknown: nothing may be written.
    NotUnknown,
    /// There is no record.
    Absent,
}

/// What becomes of a record by an operator's word. Its end stays where it was: a resolution extends nothing.
///
/// A holder whose lease ran out, and who comes later, has lost it.
#[must_use]
pub fn resolve(record: Option<&Arc<Record>>, resolution: Resolution, now: Timestamp) -> Resolved {
    let found = record.and_then(|record| Some((record, standing(record, now)?)));
    match (found, resolution) {
        (None, _) => Resolved::Absent,
        (Some((_, Standing::Unknown)), Resolution::Release) => Resolved::Released,
        (Some((record, Standing::Unknown)), Resolution::Complete(answer)) => {
            let resolved = Record {
                print: Print::Settled(record.print.digests()),
                state: State::Complete(answer),
                ..Record::clone(record)
            };
            check_invariants(&resolved);
            Resolved::Kept(resolved)
        }
        (Some((_, Standing::InFlight | Standing::Complete | Standing::Tombstone)), _) => {
            Resolved::NotUnknown
        }
    }
}
