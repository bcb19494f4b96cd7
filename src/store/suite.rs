//! What every kind of store must do: one set of behaviours, run on each of them.
//!
//! A store is brought by a [`Subject`]; [`suite!`] makes one test of each behaviour.

mod operator;

use std::time::Duration;

use http::StatusCode;

pub(super) use self::operator::*;
use super::{Begin, Claim, Held, Outcome, Purged, Query, Row, Settled};
use crate::core::{
    fixtures::{answer, id, request, route, terms},
    policy::{AfterExpiry, RetentionFrom, Terms, UnknownOutcome},
    record::{NotRetained, RecordId, ShortId, State},
    transition::{Ask, Found, HoldLeft, Resolution, Settlement},
};

/// A store under test, and its clock.
pub(super) trait Subject {
    /// As [`super::Stores::look`]; the store answers.
    async fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found>;
    /// As [`super::Stores::begin`]; the store answers, and has room.
    async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Begin;
    /// As [`super::Stores::renew`]; the store answers.
    async fn renew(&self, claim: &Claim, terms: &Terms) -> Held;
    /// As [`super::Stores::settle`]; the store answers.
    async fn settle(&self, claim: Claim, settlement: Settlement, terms: &Terms) -> Settled;
    /// As [`super::Stores::list`]; the store answers.
    async fn list(&self, query: &Query) -> Vec<Row>;
    /// As [`super::Stores::find`]; the store answers.
    async fn find(&self, short: ShortId) -> Vec<Row>;
    /// As [`super::Stores::row`]; the store answers.
    async fn row(&self, id: &RecordId) -> Option<Row>;
    /// As [`super::Stores::purge`]; the store answers.
    async fn purge(&self, id: &RecordId) -> Purged;
    /// As [`super::Stores::resolve`]; the store answers, and has room.
    async fn resolve(&self, id: &RecordId, resolution: Resolution) -> Outcome;
    /// Lets so much time pass on the store's clock.
    async fn pass(&self, span: Duration);
    /// Lets the store tidy up, as it does now and then by itself.
    async fn sweep(&self);
}

/// What a request met with, in a form that can be compared.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// Nothing, or what did not count any more.
    Nothing,
    InFlight(Duration),
    Complete(StatusCode, Vec<u8>),
    Tombstone(StatusCode, NotRetained),
    Unknown(HoldLeft),
    Mismatch {
        in_flight: bool,
    },
    Expired,
}

impl From<&Found> for Met {
    fn from(found: &Found) -> Self {
        match found {
            Found::InFlight { left } => Self::InFlight(*left),
            Found::Complete(record) => match &record.state {
                State::Complete(answer) => Self::Complete(answer.status(), answer.body().to_vec()),
                other => panic!("a complete record is in state {other:?}"),
            },
            Found::Tombstone { status, why, .. } => Self::Tombstone(*status, *why),
            Found::Unknown { left } => Self::Unknown(*left),
            Found::Mismatch { in_flight } => Self::Mismatch {
                in_flight: *in_flight,
            },
            Found::Expired => Self::Expired,
        }
    }
}

/// One request, on one route's terms.
pub(super) struct Request {
    pub(super) id: RecordId,
    pub(super) body: &'static str,
    pub(super) terms: Terms,
}

impl Request {
    pub(super) async fn look(&self, store: &impl Subject) -> Met {
        let (fingerprint, route) = (request(self.body), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &self.terms,
            route: &route,
        };
        let found = store.look(&self.id, &ask).await;
        found.as_ref().map_or(Met::Nothing, Met::from)
    }

    pub(super) async fn begin(&self, store: &impl Subject) -> Result<Claim, Met> {
        let (fingerprint, route) = (request(self.body), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &self.terms,
            route: &route,
        };
        match store.begin(&self.id, &ask).await {
            Begin::Claimed(claim) => Ok(claim),
            Begin::Found(found) => Err(Met::from(&found)),
        }
    }

    async fn claim(&self, store: &impl Subject) -> Claim {
        self.begin(store).await.expect("nothing stands in the way")
    }

    async fn meets(&self, store: &impl Subject, expected: Met) {
        assert_eq!(self.look(store).await, expected, "looking");
        match self.begin(store).await {
            Ok(_) => assert_eq!(Met::Nothing, expected, "claiming"),
            Err(met) => assert_eq!(met, expected, "claiming"),
        }
    }
}

fn ask(body: &'static str, terms: Terms) -> Request {
    Request {
        id: id(1),
        body,
        terms,
    }
}

fn complete(body: &str) -> Settlement {
    Settlement::Complete(answer(body.as_bytes()))
}

fn completed(body: &str) -> Met {
    Met::Complete(StatusCode::CREATED, body.as_bytes().to_vec())
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) async fn one_request_claims_and_its_copies_find_it_in_flight(store: &impl Subject) {
    let a = ask("a", terms());
    assert_eq!(a.look(store).await, Met::Nothing);
    let _claim = a.claim(store).await;
    a.meets(store, Met::InFlight(secs(60))).await;
    ask("b", terms())
        .meets(store, Met::Mismatch { in_flight: true })
        .await;
}

pub(super) async fn an_answer_is_replayed_as_it_was_settled(store: &impl Subject) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    let settled = store.settle(claim, complete("done"), &terms()).await;
    let Settled::Kept(record) = settled else {
        panic!("{settled:?}")
    };
    assert_eq!(record.expires_at.left(record.started_at), secs(86_400));
    a.meets(store, completed("done")).await;
    ask("b", terms())
        .meets(store, Met::Mismatch { in_flight: false })
        .await;
    Request {
        id: id(2),
        ..ask("a", terms())
    }
    .meets(store, Met::Nothing)
    .await;
}

pub(super) async fn a_released_key_is_free(store: &impl Subject) {
    let claim = ask("a", terms()).claim(store).await;
    assert!(matches!(
        store.settle(claim, Settlement::Release, &terms()).await,
        Settled::Released
    ));
    ask("b", terms()).meets(store, Met::Nothing).await;
}

pub(super) async fn a_tombstone_says_what_the_upstream_said(store: &impl Subject) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    let tombstone = Settlement::Tombstone {
        status: StatusCode::ACCEPTED,
        why: NotRetained::Stream,
    };
    assert!(matches!(
        store.settle(claim, tombstone, &terms()).await,
        Settled::Kept(_)
    ));
    a.meets(
        store,
        Met::Tombstone(StatusCode::ACCEPTED, NotRetained::Stream),
    )
    .await;
    ask("b", terms())
        .meets(store, Met::Mismatch { in_flight: false })
        .await;
}

pub(super) async fn at_exactly_its_end_a_record_is_expired(store: &impl Subject) {
    let a = ask(
        "a",
        Terms {
            retention: secs(50),
            ..terms()
        },
    );
    let claim = a.claim(store).await;
    assert!(matches!(
        store.settle(claim, complete("1"), &a.terms).await,
        Settled::Kept(_)
    ));
    store.pass(Duration::from_millis(49_999)).await;
    a.meets(store, completed("1")).await;
    store.pass(Duration::from_millis(1)).await;
    let claim = a.claim(store).await;
    assert!(matches!(
        store.settle(claim, complete("2"), &a.terms).await,
        Settled::Kept(_)
    ));
    a.meets(store, completed("2")).await;
}

pub(super) async fn an_expired_record_is_nothing_to_another_request_too(store: &impl Subject) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    assert!(matches!(
        store.settle(claim, complete("1"), &terms()).await,
        Settled::Kept(_)
    ));
    store.pass(secs(86_400)).await;
    let claim = ask("b", terms()).claim(store).await;
    assert!(matches!(
        store.settle(claim, Settlement::Release, &terms()).await,
        Settled::Released
    ));
    assert_eq!(
        a.look(store).await,
        Met::Nothing,
        "what had expired does not come back"
    );
}

pub(super) async fn the_retention_may_count_from_the_start(store: &impl Subject) {
    let a = ask(
        "a",
        Terms {
            retention: secs(10),
            retention_from: RetentionFrom::Start,
            ..terms()
        },
    );
    let claim = a.claim(store).await;
    store.pass(secs(6)).await;
    assert!(matches!(
        store.settle(claim, complete("1"), &a.terms).await,
        Settled::Kept(_)
    ));
    store.pass(Duration::from_millis(3_999)).await;
    assert_eq!(a.look(store).await, completed("1"));
    store.pass(Duration::from_millis(1)).await;
    assert_eq!(a.look(store).await, Met::Nothing);
}

pub(super) async fn a_renewed_claim_lives_on(store: &impl Subject) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    for _ in 0..10 {
        store.pass(secs(20)).await;
        assert_eq!(store.renew(&claim, &terms()).await, Held::Yes);
        a.meets(store, Met::InFlight(secs(60))).await;
    }
    assert!(matches!(
        store.settle(claim, complete("1"), &terms()).await,
        Settled::Kept(_)
    ));
    a.meets(store, completed("1")).await;
}

pub(super) async fn the_claim_of_a_holder_that_died_is_held_and_then_claimable(
    store: &impl Subject,
) {
    let a = ask(
        "a",
        Terms {
            unknown: UnknownOutcome::HoldFor(secs(5)),
            ..terms()
        },
    );
    drop(a.claim(store).await);
    store.pass(Duration::from_millis(59_999)).await;
    a.meets(store, Met::InFlight(Duration::from_millis(1)))
        .await;
    store.pass(Duration::from_millis(1)).await;
    a.meets(store, Met::Unknown(HoldLeft::For(secs(5)))).await;
    ask("b", a.terms)
        .meets(store, Met::Mismatch { in_flight: false })
        .await;
    store.pass(secs(5)).await;
    ask("b", a.terms)
        .meets(store, Met::Mismatch { in_flight: false })
        .await;
    let claim = a.claim(store).await;
    assert!(matches!(
        store.settle(claim, complete("1"), &a.terms).await,
        Settled::Kept(_)
    ));
}

pub(super) async fn an_unknown_outcome_is_held_for_good_until_the_retention_ends(
    store: &impl Subject,
) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    store.pass(secs(1)).await;
    assert!(matches!(
        store.settle(claim, Settlement::Unknown, &terms()).await,
        Settled::Kept(_)
    ));
    store.pass(Duration::from_millis(86_400_000 - 1_001)).await;
    a.meets(store, Met::Unknown(HoldLeft::Forever)).await;
    store.pass(Duration::from_millis(1)).await;
    ask("b", terms()).meets(store, Met::Nothing).await;
}

pub(super) async fn with_release_an_unknown_outcome_is_free_at_once(store: &impl Subject) {
    let release = Terms {
        unknown: UnknownOutcome::Release,
        ..terms()
    };
    let a = ask("a", release);
    let claim = a.claim(store).await;
    assert!(matches!(
        store.settle(claim, Settlement::Unknown, &release).await,
        Settled::Released
    ));
    drop(a.claim(store).await);
    store.pass(secs(60)).await;
    ask("b", release).meets(store, Met::Nothing).await;
}

pub(super) async fn a_late_holder_may_still_say_what_happened(store: &impl Subject) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    store.pass(secs(61)).await;
    a.meets(store, Met::Unknown(HoldLeft::Forever)).await;
    assert_eq!(store.renew(&claim, &terms()).await, Held::Yes);
    a.meets(store, Met::InFlight(secs(60))).await;
    store.pass(secs(61)).await;
    assert!(matches!(
        store.settle(claim, complete("late"), &terms()).await,
        Settled::Kept(_)
    ));
    a.meets(store, completed("late")).await;
}

pub(super) async fn a_late_holder_writes_nothing_over_what_is_anothers(store: &impl Subject) {
    let a = ask(
        "a",
        Terms {
            unknown: UnknownOutcome::Release,
            ..terms()
        },
    );
    let mut late = Vec::new();
    for _ in 0..5 {
        late.push(a.claim(store).await);
        store.pass(secs(60)).await;
    }
    let claim = a.claim(store).await;
    let tombstone = Settlement::Tombstone {
        status: StatusCode::OK,
        why: NotRetained::TooLarge,
    };
    assert_eq!(
        store.renew(late.first().expect("five"), &a.terms).await,
        Held::Lost
    );
    for settlement in [
        Settlement::Release,
        Settlement::Unknown,
        complete("late"),
        tombstone,
    ] {
        let held = late.pop().expect("five");
        assert!(matches!(
            store.settle(held, settlement, &a.terms).await,
            Settled::Lost
        ));
        a.meets(store, Met::InFlight(secs(60))).await;
    }
    assert!(matches!(
        store.settle(claim, complete("1"), &a.terms).await,
        Settled::Kept(_)
    ));
    let held = late.pop().expect("five");
    assert!(matches!(
        store.settle(held, Settlement::Release, &a.terms).await,
        Settled::Lost
    ));
    a.meets(store, completed("1")).await;
}

/// The default terms, with keys that are refused for 100 s after 50 s of retention.
fn refusing() -> Terms {
    Terms {
        retention: secs(50),
        after_expiry: AfterExpiry::RefuseFor(secs(100)),
        ..terms()
    }
}

pub(super) async fn an_expired_key_is_refused_to_every_request_for_its_time(store: &impl Subject) {
    let (a, b) = (ask("a", refusing()), ask("b", refusing()));
    let claim = a.claim(store).await;
    assert!(matches!(
        store.settle(claim, complete("1"), &a.terms).await,
        Settled::Kept(_)
    ));
    store.pass(Duration::from_millis(49_999)).await;
    a.meets(store, completed("1")).await;
    store.pass(Duration::from_millis(1)).await;
    a.meets(store, Met::Expired).await;
    b.meets(store, Met::Expired).await;
    store.sweep().await;
    store.pass(Duration::from_millis(99_999)).await;
    store.sweep().await;
    b.meets(store, Met::Expired).await;
    // It is the record that says so, not the route that asks.
    ask("a", terms()).meets(store, Met::Expired).await;
    store.pass(Duration::from_millis(1)).await;
    store.sweep().await;
    b.meets(store, Met::Nothing).await;
}

pub(super) async fn unknown_outcomes_and_tombstones_are_refused_after_their_time_too(
    store: &impl Subject,
) {
    let tombstone = Settlement::Tombstone {
        status: StatusCode::OK,
        why: NotRetained::Stream,
    };
    for (n, settlement) in [(1, Settlement::Unknown), (2, tombstone)] {
        let a = Request {
            id: id(n),
            ..ask("a", refusing())
        };
        let claim = a.claim(store).await;
        assert!(matches!(
            store.settle(claim, settlement, &a.terms).await,
            Settled::Kept(_)
        ));
        store.pass(secs(50)).await;
        a.meets(store, Met::Expired).await;
        store.pass(secs(100)).await;
        a.meets(store, Met::Nothing).await;
    }
}

pub(super) async fn a_released_key_is_never_refused(store: &impl Subject) {
    let claim = ask("a", refusing()).claim(store).await;
    assert!(matches!(
        store.settle(claim, Settlement::Release, &refusing()).await,
        Settled::Released
    ));
    store.pass(secs(60)).await;
    ask("b", refusing()).meets(store, Met::Nothing).await;
}

pub(super) async fn a_holder_that_comes_after_its_key_was_refused_has_lost_it(
    store: &impl Subject,
) {
    let a = ask("a", refusing());
    let (late, later) = (a.claim(store).await, secs(60));
    store.pass(later).await;
    a.meets(store, Met::Expired).await;
    assert_eq!(store.renew(&late, &a.terms).await, Held::Lost);
    assert!(matches!(
        store.settle(late, complete("late"), &a.terms).await,
        Settled::Lost
    ));
    store.sweep().await;
    a.meets(store, Met::Expired).await;
}

/// One test of each behaviour, on the store that the expression makes.
macro_rules! suite {
    ($($subject:expr => $($name:ident)+;)+) => {
        $($(
            #[tokio::test]
            async fn $name() {
                crate::store::suite::$name(&$subject).await;
            }
        )+)+
    };
    ($subject:expr) => {
        crate::store::suite::suite! {
            $subject =>
            one_request_claims_and_its_copies_find_it_in_flight
            an_answer_is_replayed_as_it_was_settled
            a_released_key_is_free
            a_tombstone_says_what_the_upstream_said
            at_exactly_its_end_a_record_is_expired
            an_expired_record_is_nothing_to_another_request_too
            the_retention_may_count_from_the_start
            a_renewed_claim_lives_on
            the_claim_of_a_holder_that_died_is_held_and_then_claimable
            an_unknown_outcome_is_held_for_good_until_the_retention_ends
            with_release_an_unknown_outcome_is_free_at_once
            a_late_holder_may_still_say_what_happened
            a_late_holder_writes_nothing_over_what_is_anothers
            an_expired_key_is_refused_to_every_request_for_its_time
            unknown_outcomes_and_tombstones_are_refused_after_their_time_too
            a_released_key_is_never_refused
            a_holder_that_comes_after_its_key_was_refused_has_lost_it
            operators_see_what_has_not_expired_the_latest_first
            a_row_says_what_there_is_to_know_and_is_found_by_its_first_digits
            a_purged_record_is_nothing_whatever_it_was
            a_record_under_which_a_call_runs_is_not_purged
            who_lost_the_claim_to_a_purge_settles_nothing
            a_refused_key_cannot_be_purged
            an_unknown_outcome_is_settled_by_an_operators_word
            ;
        }
    };
}
pub(super) use suite;
