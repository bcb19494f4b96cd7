//! What operators ask a store for, and what they are told: records by their ids, never by their keys, and never a header or body.

pub use crate::core::transition::Purged;
use crate::core::{
    policy::RouteName,
    record::{Record, RecordId, State},
    time::Timestamp,
    transition::{self, Standing},
};

/// Which records an operator wants to see.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Those that stand so; `None`: all.
    pub standing: Option<Standing>,
    /// Those of this route; `None`: all.
    pub route: Option<RouteName>,
    /// At most so many.
    pub limit: usize,
    /// Those behind this one, as the last of a page before says it.
    pub after: Option<Place>,
}

/// Where a record stands in a list: the latest start first, and of equal starts the lowest id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// [`Row::started_at`]
    pub started_at: Timestamp,
    /// [`Row::id`]
    pub id: RecordId,
}

impl Place {
    /// What lists are sorted by.
    #[must_use]
    pub fn order(&self) -> (std::cmp::Reverse<Timestamp>, [u8; 32]) {
        (std::cmp::Reverse(self.started_at), *self.id.as_bytes())
    }
}

/// What an operator sees of a record: never its headers or body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which record.
    pub id: RecordId,
    /// The route it came by.
    pub route: RouteName,
    /// How it stands.
    pub standing: Standing,
    /// What the upstream answered with, where that is known.
    pub status: Option<http::StatusCode>,
    /// When the claim was made.
    pub started_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
    /// Of a call that runs.
    pub lease_until: Option<Timestamp>,
    /// What its answer takes, about, in bytes.
    pub bytes: u64,
}

impl Row {
    /// The row of a record that has not expired.
    pub(super) fn of(id: RecordId, record: &Record, now: Timestamp, bytes: u64) -> Option<Self> {
        let standing = transition::standing(record, now)?;
        let (status, lease_until) = match &record.state {
            State::Complete(answer) => (Some(answer.status()), None),
            State::Tombstone { status, .. } => (Some(*status), None),
            State::InFlight { lease_until, .. } if standing == Standing::InFlight => {
                (None, Some(*lease_until))
            }
            State::InFlight { .. } | State::Unknown { .. } | State::Expired => (None, None),
        };
        Some(Self {
            id,
            route: record.route.clone(),
            standing,
            status,
            started_at: record.started_at,
            expires_at: record.expires_at,
            lease_until,
            bytes,
        })
    }

    /// Its place in lists.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place {
            started_at: self.started_at,
            id: self.id,
        }
    }
}

impl Query {
    /// Whether it asks for this one, its limit aside.
    pub(super) fn wants(&self, row: &Row) -> bool {
        self.standing
            .is_none_or(|standing| standing == row.standing)
            && self.route.as_ref().is_none_or(|route| *route == row.route)
            && self
                .after
                .is_none_or(|after| row.place().order() > after.order())
    }
}

/// What came of a resolution.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The record as it is kept now.
    Kept(Row),
    /// The key is free.
    Released,
    /// Its outcome is not unknown; nothing was written.
    NotUnknown,
    /// There is no such record.
    Absent,
}
