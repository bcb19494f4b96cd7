//! The life of one record as pure functions: what is there, what is asked, what time it is → what follows.
//!
//! A record begins in flight, under a claim. Its holder makes it complete, a tombstone or unknown, or releases it;
//! a claim whose lease runs out counts as unknown from that moment on, without anything being written. At the end of
//! its retention a record expires, without anything being written either: its key is refused for as long as the record
//! says, then forgotten; what is forgotten counts as nothing. [`look`] is the one place that decides whether a request may execute, and [`begin`]
//! asks it; [`renew`] and [`settle`] ask for the token alone. No store decides any of this for itself.

mod operator;

use std::{sync::Arc, time::Duration};

use http::StatusCode;

pub use self::operator::{Purged, Resolution, Resolved, Standing, purge, resolve, standing};
use super::{
    fingerprint::Fingerprint,
    policy::{AfterExpiry, RetentionFrom, RouteName, Terms, UnknownOutcome},
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
        /// When the record expires.
        expires_at: Timestamp,
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
    /// The key is past its retention and refused, whatever the request.
    Expired,
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
#[derive(Clone, Debug)]
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
#[expect(
    clippy::large_enum_variant,
    reason = "it is handed over once, to whoever takes the record out"
)]
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
/// The terms of the asking route say how an unknown outcome is held; the record itself says what its key does once it
/// has expired. Costs one comparison of digests where the
/// requests are byte-equal; otherwise canonical digests may be computed.
#[must_use]
pub fn look(record: Option<&Arc<Record>>, ask: &Ask<'_>, now: Timestamp) -> Option<Found> {
    let record = record.filter(|record| !forgotten(record, now))?;
    if expired(record, now) {
        return Some(Found::Expired);
    }
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
            let tombstone = Found::Tombstone {
                status: *status,
                why: *why,
                expires_at: record.expires_at,
            };
            Some(unless_same(tombstone, false))
        }
        State::Expired => Some(Found::Expired),
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
    if let Some(own) = holder(record, token, now) {
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
        // A lapsed claim under these terms is free at once, so there is nothing to refuse later.
        after_expiry: match ask.terms.unknown {
            UnknownOutcome::Release => AfterExpiry::Execute,
            UnknownOutcome::HoldForever | UnknownOutcome::HoldFor(_) => ask.terms.after_expiry,
        },
        route: ask.route.clone(),
    };
    check_invariants(&claimed);
    Begun::Claimed(claimed)
}

/// The record with its lease drawn out to a full one from `now`; `None`: the claim is lost.
///
/// A lease that ran out meanwhile is renewed too, as long as nobody took the record and it has not expired: its holder
/// is alive after all.
/// A renewal never shortens a lease.
#[must_use]
pub fn renew(
    record: Option<&Arc<Record>>,
    token: ClaimToken,
    terms: &Terms,
    now: Timestamp,
) -> Option<Record> {
    let mut renewed = Record::clone(holder(record, token, now)?);
    if let State::InFlight { lease_until, .. } = &mut renewed.state {
        *lease_until = now.after(terms.lease).max(*lease_until);
    }
    check_invariants(&renewed);
    Some(renewed)
}

/// What becomes of a record by its holder's word. The retention is fixed here and never extended afterwards.
///
/// A holder whose lease ran out settles too, as long as nobody took the record and it has not expired: knowing beats
/// not knowing.
/// May compute the canonical digest of the request, which is then let go.
#[must_use]
pub fn settle(
    record: Option<&Arc<Record>>,
    token: ClaimToken,
    settlement: Settlement,
    terms: &Terms,
    now: Timestamp,
) -> After {
    let Some(claimed) = holder(record, token, now) else {
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
        after_expiry: terms.after_expiry,
        route: claimed.route.clone(),
    };
    check_invariants(&settled);
    After::Kept(settled)
}

/// What becomes of a claim whose process is known to be gone: its outcome is unknown from now on, or, if its lease had
/// run out before, from then on. `None`: it is no claim.
#[must_use]
pub fn orphaned(record: &Record, now: Timestamp) -> Option<Record> {
    let State::InFlight { lease_until, .. } = record.state else {
        return None;
    };
    let since = lease_until.min(now).max(record.started_at);
    let orphan = Record {
        print: Print::Settled(record.print.digests()),
        state: State::Unknown { since },
        ..record.clone()
    };
    check_invariants(&orphan);
    Some(orphan)
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

/// What has become of a record by time alone: the marker that stands for it while its key is refused. `None`: it is
/// not expired, is such a marker already, or is forgotten.
///
/// A marker holds no answer, so that none takes up room for as long as its key is refused. Writing it is nobody's
/// duty: with and without it, everything here gives the same answers. May compute the canonical digest of a request.
#[must_use]
pub fn aged(record: &Record, now: Timestamp) -> Option<Record> {
    if matches!(record.state, State::Expired) || !expired(record, now) || forgotten(record, now) {
        return None;
    }
    let marker = Record {
        print: Print::Settled(record.print.digests()),
        state: State::Expired,
        started_at: record.started_at,
        expires_at: retained_until(record),
        after_expiry: record.after_expiry,
        route: record.route.clone(),
    };
    check_invariants(&marker);
    Some(marker)
}

/// When time alone makes something else of a record: when it expires, or, if it has, when it is forgotten.
#[must_use]
pub fn changes_at(record: &Record) -> Timestamp {
    match record.state {
        State::Expired => forgotten_at(record),
        _ => retained_until(record),
    }
}

/// Whether a record is past its retention. At exactly the end of it, it is.
#[must_use]
pub fn expired(record: &Record, now: Timestamp) -> bool {
    retained_until(record).reached(now)
}

/// Whether a record counts for nothing, and may be dropped. At exactly the end of its refusal it does not count any
/// more; where its key is not refused, at exactly the end of its retention.
#[must_use]
pub fn forgotten(record: &Record, now: Timestamp) -> bool {
    forgotten_at(record).reached(now)
}

/// The end of a record's retention. A claim lives by its lease, however short the retention; once that has run out it
/// is unknown, and ends with the retention counted from its start.
fn retained_until(record: &Record) -> Timestamp {
    match record.state {
        State::InFlight { lease_until, .. } => lease_until.max(record.expires_at),
        State::Unknown { .. } | State::Complete(_) | State::Tombstone { .. } | State::Expired => {
            record.expires_at
        }
    }
}

fn forgotten_at(record: &Record) -> Timestamp {
    let end = retained_until(record);
    match record.after_expiry {
        AfterExpiry::Execute => end,
        AfterExpiry::RefuseFor(refused) => end.after(refused),
    }
}

/// Whether a call runs under this record, for all that is known.
#[must_use]
pub fn runs(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::InFlight { lease_until, .. } if !lease_until.reached(now))
}

/// The record, if it is held under `token`, whether or not the lease has run out. Once it has expired it is nobody's:
/// what counts for nothing, or was said to be over, does not come back.
fn holder(record: Option<&Arc<Record>>, token: ClaimToken, now: Timestamp) -> Option<&Arc<Record>> {
    record.filter(|record| {
        matches!(record.state, State::InFlight { token: holder, .. } if holder == token)
            && !expired(record, now)
    })
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
        State::Expired => {
            debug_assert!(
                record.after_expiry != AfterExpiry::Execute,
                "nothing stands for a key that executes as new"
            );
        }
    }
    let claim = matches!(record.state, State::InFlight { .. });
    debug_assert!(
        claim || matches!(record.print, Print::Settled(_)),
        "a settled record lets its request go"
    );
}

#[cfg(test)]
mod tests;
