//! The life of one record as pure functions: what is there, what is asked, what time it is → what follows.
//!
//! A record begins in flight, under a claim. Its holder makes it complete, a tombstone or unknown, or releases it;
//! a claim whose lease runs out counts as unknown from that moment on, without anything being written. Whatever has
//! expired counts as nothing. [`look`] is the one place that decides whether a request may execute, and [`begin`]
//! asks it; [`renew`] and [`settle`] ask for the token alone. No store decides any of this for itself.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    fingerprint::Fingerprint,
    policy::{RetentionFrom, RouteName, Terms, UnknownOutcome},
    record::{ClaimToken, NotRetained, Print, Record, State, StoredAnswer},
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

/// What [`begin`] answers with.
#[derive(Debug)]
pub enum Begun {
    /// The request may execute: this is the record to write, in one step with the look that allowed it.
    Claimed(Record),
    /// A record stands in the way.
    Found(Found),
}

/// What [`settle`] answers with.
#[derive(Debug)]
pub enum After {
    /// The record to write in the claim's place.
    Kept(Record),
    /// The claim is to be removed.
    Released,
    /// The token is not, or no longer, the record's: nothing may be written.
    Lost,
}

/// What a request finds; `None`: nothing stands in its way, and it may claim.
///
/// The terms of the asking route say how an unknown outcome is held. Costs one comparison of digests where the
/// requests are byte-equal; otherwise canonical digests may be computed.
#[must_use]
pub fn look(record: Option<&Arc<Record>>, ask: &Ask<'_>, now: Timestamp) -> Option<Found> {
    let record = record.filter(|record| !expired(record, now))?;
    let unless_same = |found, in_flight| {
        if record.print.is_of(ask.fingerprint) {
            found
        } else {
            Found::Mismatch { in_flight }
        }
    };
    match &record.state {
        State::InFlight { lease_until, .. } if !lease_until.reached(now) => {
            let left = lease_until.left(now);
            Some(unless_same(Found::InFlight { left }, true))
        }
        State::InFlight {
            lease_until: since, ..
        }
        | State::Unknown { since } => {
            let left = match ask.terms.unknown {
                UnknownOutcome::Release => return None,
                UnknownOutcome::HoldForever => HoldLeft::Forever,
                UnknownOutcome::HoldFor(hold) => {
                    HoldLeft::For(since.after(hold).min(record.expires_at).left(now))
                }
            };
            match unless_same(Found::Unknown { left }, false) {
                // The hold is over. It binds the same request alone: another one waits for the retention's end.
                Found::Unknown {
                    left: HoldLeft::For(Duration::ZERO),
                } => None,
                found => Some(found),
            }
        }
        State::Complete(_) => Some(unless_same(Found::Complete(Arc::clone(record)), false)),
        State::Tombstone { status, why } => {
            let (status, why) = (*status, *why);
            Some(unless_same(Found::Tombstone { status, why }, false))
        }
    }
}

/// Claims the record under `token` if nothing stands in the way.
///
/// Repeatable: where `token` holds the record already (the answer to an earlier try was lost), it is claimed as it
/// stands, so that nobody meets himself as a rival.
#[must_use]
pub fn begin(
    record: Option<&Arc<Record>>,
    ask: &Ask<'_>,
    token: ClaimToken,
    now: Timestamp,
) -> Begun {
    if let Some(own) = holder(record, token) {
        return Begun::Claimed(Record::clone(own));
    }
    if let Some(found) = look(record, ask, now) {
        return Begun::Found(found);
    }
    debug_assert!(
        !record.is_some_and(|old| runs(old, now)),
        "a running call is never claimed again"
    );
    let claimed = Record {
        print: Print::Live(Arc::clone(ask.fingerprint)),
        state: State::InFlight {
            token,
            lease_until: now.after(ask.terms.lease),
        },
        started_at: now,
        expires_at: now.after(ask.terms.retention),
        route: ask.route.clone(),
    };
    check_invariants(&claimed);
    Begun::Claimed(claimed)
}

/// The record with its lease drawn out to a full one from `now`; `None`: the claim is lost.
///
/// A lease that ran out meanwhile is renewed too, as long as nobody took the record: its holder is alive after all.
/// A renewal never shortens a lease.
#[must_use]
pub fn renew(
    record: Option<&Arc<Record>>,
    token: ClaimToken,
    terms: &Terms,
    now: Timestamp,
) -> Option<Record> {
    let mut renewed = Record::clone(holder(record, token)?);
    if let State::InFlight { lease_until, .. } = &mut renewed.state {
        *lease_until = now.after(terms.lease).max(*lease_until);
    }
    check_invariants(&renewed);
    Some(renewed)
}

/// What becomes of a record by its holder's word. The retention is fixed here and never extended afterwards.
///
/// A holder whose lease ran out settles too, as long as nobody took the record: knowing beats not knowing.
/// May compute the canonical digest of the request, which is then let go.
#[must_use]
pub fn settle(
    record: Option<&Arc<Record>>,
    token: ClaimToken,
    settlement: Settlement,
    terms: &Terms,
    now: Timestamp,
) -> After {
    let Some(claimed) = holder(record, token) else {
        return After::Lost;
    };
    // A clock that went back makes nothing older than its own start.
    let now = now.max(claimed.started_at);
    let kept_until = match terms.retention_from {
        RetentionFrom::Completion => now.after(terms.retention),
        RetentionFrom::Start => claimed.started_at.after(terms.retention),
    };
    let (state, expires_at) = match settlement {
        Settlement::Release => return After::Released,
        Settlement::Unknown if terms.unknown == UnknownOutcome::Release => return After::Released,
        Settlement::Unknown => (State::Unknown { since: now }, claimed.expires_at),
        Settlement::Complete(answer) => (State::Complete(answer), kept_until),
        Settlement::Tombstone { status, why } => (State::Tombstone { status, why }, kept_until),
    };
    let settled = Record {
        print: Print::Settled(claimed.print.digests()),
        state,
        started_at: claimed.started_at,
        expires_at,
        route: claimed.route.clone(),
    };
    check_invariants(&settled);
    After::Kept(settled)
}

/// A complete record that the store has no room for, as the tombstone that it becomes; any other as it is.
#[must_use]
pub fn without_answer(record: Record, why: NotRetained) -> Record {
    match record.state {
        State::Complete(answer) => {
            let state = State::Tombstone {
                status: answer.status(),
                why,
            };
            Record { state, ..record }
        }
        _ => record,
    }
}

/// From when on a record counts for nothing and may be dropped. A claim lives by its lease, however short the
/// retention; once that has run out it is unknown, and ends with the retention counted from its start.
#[must_use]
pub fn ends_at(record: &Record) -> Timestamp {
    match record.state {
        State::InFlight { lease_until, .. } => lease_until.max(record.expires_at),
        State::Unknown { .. } | State::Complete(_) | State::Tombstone { .. } => record.expires_at,
    }
}

/// Whether a record counts for nothing. At exactly its end it does not count any more.
#[must_use]
pub fn expired(record: &Record, now: Timestamp) -> bool {
    ends_at(record).reached(now)
}

/// Whether a call runs under this record, for all that is known.
#[must_use]
pub fn runs(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::InFlight { lease_until, .. } if !lease_until.reached(now))
}

/// The record, if it is held under `token`, whether or not the lease has run out.
fn holder(record: Option<&Arc<Record>>, token: ClaimToken) -> Option<&Arc<Record>> {
    record.filter(
        |record| matches!(record.state, State::InFlight { token: holder, .. } if holder == token),
    )
}

/// What holds for every record, whatever its history; looked at in debug builds alone.
pub fn check_invariants(record: &Record) {
    debug_assert!(
        record.started_at <= record.expires_at,
        "a record does not expire before it starts"
    );
    match record.state {
        State::InFlight { lease_until, .. } => {
            debug_assert!(
                lease_until >= record.started_at,
                "a lease does not end before its claim"
            );
        }
        State::Unknown { since } => {
            debug_assert!(
                since >= record.started_at,
                "nothing becomes unknown before it starts"
            );
        }
        State::Complete(_) | State::Tombstone { .. } => {}
    }
    let claim = matches!(record.state, State::InFlight { .. });
    debug_assert!(
        claim || matches!(record.print, Print::Settled(_)),
        "a settled record lets its request go"
    );
}

#[cfg(test)]
mod tests;
