//! The life of one record as a pure function: what is there, what is asked, what time it is → what follows.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    fingerprint::Fingerprint,
    policy::{RouteName, Terms},
    record::{ClaimToken, NotRetained, Record, StoredAnswer},
    time::Timestamp,
};

/// What a keyed request brings to its record.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// What the request is.
    pub fingerprint: &'a Arc<Fingerprint>,
    /// The terms of its route.
    pub terms: &'a Terms,
    /// Its route, for operators.
    pub route: &'a RouteName,
}

/// What a request finds where it may not execute.
#[derive(Clone, Debug)]
pub enum Found {
    /// The same request runs; its lease has so much left.
    InFlight {
        /// Until the lease runs out.
        left: Duration,
    },
    /// The same request is complete; the record's state is [`super::record::State::Complete`].
    Complete(Arc<Record>),
    /// The same request was executed and its answer is not kept.
    Tombstone {
        /// What the upstream answered with.
        status: StatusCode,
        /// Why it is not kept.
        why: NotRetained,
    },
    /// The same request may have been executed.
    Unknown {
        /// What is left of the hold.
        left: HoldLeft,
    },
    /// Another request has this key.
    Mismatch {
        /// Whether that one still runs.
        in_flight: bool,
    },
}

/// What is left of the hold on an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldLeft {
    /// So much; then the same request may run again.
    For(Duration),
    /// No end but the record's.
    Forever,
}

/// What the holder of a claim makes of it.
#[derive(Debug)]
pub enum Settlement {
    /// The answer is kept and replayed.
    Complete(StoredAnswer),
    /// Nothing is kept; the next request executes.
    Release,
    /// The upstream may have executed. With `unknown_outcome = "release"` the same as `Release`.
    Unknown,
    /// It was executed; its answer is not kept.
    Tombstone {
        /// What the upstream answered with.
        status: StatusCode,
        /// Why it is not kept.
        why: NotRetained,
    },
}
