//! The store and the pure functions side by side: random operations on few records, and after each of them both
//! must have said the same. A third party, a ledger that knows nothing of transitions, looks that no operation was
//! ever executed while it should not have been.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use proptest::prelude::*;

use super::{
    Claim, Held, Outcome, Purged, Settled,
    suite::{Met, Request, Subject},
};
use crate::core::{
    fixtures::{answer, id, request, route, terms},
    policy::{AfterExpiry, RetentionFrom, Terms, UnknownOutcome},
    record::{ClaimToken, NotRetained, Record},
    time::Timestamp,
    transition::{self, After, Ask, Begun, Resolution, Resolved, Settlement},
};

/// One step. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Look {
        record: usize,
        body: usize,
        terms: usize,
    },
    Begin {
        record: usize,
        body: usize,
        terms: usize,
    },
    Renew {
        claim: usize,
        terms: usize,
    },
    Settle {
        claim: usize,
        say: Say,
        terms: usize,
    },
    Crash {
        claim: usize,
    },
    Purge {
        record: usize,
    },
    Resolve {
        record: usize,
        executed: bool,
    },
    Pass {
        ms: u64,
    },
    Sweep,
}

/// What a holder says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Say {
    Complete(u8),
    Release,
    Unknown,
    Tombstone,
}

impl Say {
    fn settlement(self) -> Settlement {
        match self {
            Self::Complete(n) => Settlement::Complete(answer(&[n])),
            Self::Release => Settlement::Release,
            Self::Unknown => Settlement::Unknown,
            Self::Tombstone => Settlement::Tombstone {
                status: StatusCode::OK,
                why: NotRetained::TooLarge,
            },
        }
    }
}

const RECORDS: usize = 3;
const BODIES: [&str; 2] = ["a", "b"];
const LEASE: u64 = 60_000;
const TERMS: usize = 6;

fn all_terms() -> [Terms; TERMS] {
    let short = Terms {
        retention: Duration::from_secs(100),
        ..terms()
    };
    [
        short,
        Terms {
            unknown: UnknownOutcome::HoldFor(Duration::from_secs(10)),
            ..short
        },
        Terms {
            unknown: UnknownOutcome::Release,
            ..short
        },
        Terms {
            retention: Duration::from_secs(30),
            retention_from: RetentionFrom::Start,
            ..short
        },
        Terms {
            after_expiry: AfterExpiry::RefuseFor(Duration::from_secs(50)),
            ..short
        },
        Terms {
            after_expiry: AfterExpiry::RefuseFor(Duration::from_secs(50)),
            retention: Duration::from_secs(30),
            retention_from: RetentionFrom::Start,
            unknown: UnknownOutcome::Release,
            ..short
        },
    ]
}

/// Sequences of steps, with times that hit the limits exactly and miss them by one.
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (record, body, terms, claim) = (0..RECORDS, 0..BODIES.len(), 0..TERMS, any::<usize>());
    let say = prop_oneof![
        3 => any::<u8>().prop_map(Say::Complete),
        1 => Just(Say::Release),
        2 => Just(Say::Unknown),
        1 => Just(Say::Tombstone),
    ];
    let ms = prop_oneof![
        0..30u64,
        (1..=11u64, 0..3u64).prop_map(|(tens, off)| tens * 10_000 + off - 1),
        Just(LEASE),
        Just(LEASE - 1),
    ];
    let step = prop_oneof![
        2 => (record.clone(), body.clone(), terms.clone()).prop_map(|(record, body, terms)| Step::Look { record, body, terms }),
        6 => (record, body, terms.clone()).prop_map(|(record, body, terms)| Step::Begin { record, body, terms }),
        2 => (claim, terms.clone()).prop_map(|(claim, terms)| Step::Renew { claim, terms }),
        4 => (claim, say, terms).prop_map(|(claim, say, terms)| Step::Settle { claim, say, terms }),
        1 => claim.prop_map(|claim| Step::Crash { claim }),
        1 => (0..RECORDS).prop_map(|record| Step::Purge { record }),
        2 => (0..RECORDS, any::<bool>()).prop_map(|(record, executed)| Step::Resolve { record, executed }),
        4 => ms.prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 1..120)
}

/// The records as the pure functions have them, and the claims that are held.
struct Model {
    now: Timestamp,
    records: [Option<Arc<Record>>; RECORDS],
    claims: Vec<(usize, Claim)>,
    ledger: [Ledger; RECORDS],
}

/// Why a record must not be executed, in the plainest terms.
#[derive(Clone, Copy, Default)]
struct Ledger {
    /// Somebody holds it until then.
    leased_until: u64,
    /// It is done, and to be remembered or refused until then.
    done_until: u64,
}

/// Runs the steps on `store`, whose clock shows `now`; fails where it and the model differ.
pub(super) async fn agree(
    store: &impl Subject,
    now: Timestamp,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut model = Model {
        now,
        records: Default::default(),
        claims: Vec::new(),
        ledger: Default::default(),
    };
    for step in steps {
        model.step(store, step).await?;
    }
    Ok(())
}

impl Model {
    async fn step(&mut self, store: &impl Subject, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Look {
                record,
                body,
                terms,
            } => {
                let request = Request {
                    id: id(record as u64),
                    body: BODIES[body],
                    terms: all_terms()[terms],
                };
                prop_assert_eq!(request.look(store).await, self.look(record, &request));
            }
            Step::Begin {
                record,
                body,
                terms,
            } => {
                let request = Request {
                    id: id(record as u64),
                    body: BODIES[body],
                    terms: all_terms()[terms],
                };
                self.begin(store, record, &request).await?;
            }
            Step::Renew { claim, terms } => self.renew(store, claim, &all_terms()[terms]).await?,
            Step::Settle { claim, say, terms } => {
                self.settle(store, claim, say, &all_terms()[terms]).await?;
            }
            Step::Crash { claim } => {
                if !self.claims.is_empty() {
                    drop(self.claims.swap_remove(claim % self.claims.len()));
                }
            }
            Step::Purge { record } => self.purge(store, record).await?,
            Step::Resolve { record, executed } => self.resolve(store, record, executed).await?,
            Step::Pass { ms } => {
                store.pass(Duration::from_millis(ms)).await;
                self.now = self.now.after(Duration::from_millis(ms));
            }
            // Whatever a store tidies up, it must go on saying the same.
            Step::Sweep => store.sweep().await,
        }
        Ok(())
    }

    fn look(&self, record: usize, of: &Request) -> Met {
        let (fingerprint, route) = (request(of.body), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &of.terms,
            route: &route,
        };
        let found = transition::look(self.records[record].as_ref(), &ask, self.now);
        found.as_ref().map_or(Met::Nothing, Met::from)
    }

    async fn begin(
        &mut self,
        store: &impl Subject,
        record: usize,
        of: &Request,
    ) -> Result<(), TestCaseError> {
        let expected = self.look(record, of);
        match of.begin(store).await {
            Err(met) => prop_assert_eq!(met, expected),
            Ok(claim) => {
                prop_assert_eq!(Met::Nothing, expected);
                self.claimed(record, of, claim.token)?;
                self.claims.push((record, claim));
            }
        }
        Ok(())
    }

    fn claimed(
        &mut self,
        record: usize,
        of: &Request,
        token: ClaimToken,
    ) -> Result<(), TestCaseError> {
        let (fingerprint, route) = (request(of.body), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &of.terms,
            route: &route,
        };
        let begun = transition::begin(self.records[record].as_ref(), &ask, token, self.now);
        let Begun::Claimed(claimed) = begun else {
            return Err(TestCaseError::fail(format!("claimed, but {begun:?}")));
        };
        self.records[record] = Some(Arc::new(claimed));
        let (now, ledger) = (self.now.as_millis(), &mut self.ledger[record]);
        prop_assert!(now >= ledger.leased_until, "claimed while another holds it");
        prop_assert!(now >= ledger.done_until, "claimed although it was done");
        *ledger = Ledger {
            leased_until: now + LEASE,
            done_until: 0,
        };
        Ok(())
    }

    async fn renew(
        &mut self,
        store: &impl Subject,
        claim: usize,
        terms: &Terms,
    ) -> Result<(), TestCaseError> {
        let Some(at) = claim.checked_rem(self.claims.len()) else {
            return Ok(());
        };
        let (record, claim) = &self.claims[at];
        let renewed =
            transition::renew(self.records[*record].as_ref(), claim.token, terms, self.now);
        let held = store.renew(claim, terms).await;
        prop_assert_eq!(held == Held::Yes, renewed.is_some());
        if let Some(renewed) = renewed {
            self.records[*record] = Some(Arc::new(renewed));
            self.ledger[*record].leased_until = self.now.as_millis() + LEASE;
        }
        Ok(())
    }

    async fn purge(&mut self, store: &impl Subject, record: usize) -> Result<(), TestCaseError> {
        let standing = &mut self.records[record];
        let wanted = standing
            .as_ref()
            .map_or(Purged::Absent, |record| transition::purge(record, self.now));
        prop_assert_eq!(store.purge(&id(record as u64)).await, wanted);
        if wanted == Purged::Gone {
            *standing = None;
            self.ledger[record] = Ledger::default();
        }
        Ok(())
    }

    async fn resolve(
        &mut self,
        store: &impl Subject,
        record: usize,
        executed: bool,
    ) -> Result<(), TestCaseError> {
        let resolution = if executed {
            Resolution::Complete(answer(b"by hand"))
        } else {
            Resolution::Release
        };
        let standing = &mut self.records[record];
        let resolved = transition::resolve(standing.as_ref(), resolution.clone(), self.now);
        let outcome = store.resolve(&id(record as u64), resolution).await;
        match (resolved, outcome) {
            (Resolved::Absent, Outcome::Absent) | (Resolved::NotUnknown, Outcome::NotUnknown) => {}
            (Resolved::Released, Outcome::Released) => {
                *standing = None;
                self.ledger[record] = Ledger::default();
            }
            (Resolved::Kept(wanted), Outcome::Kept(row)) => {
                prop_assert_eq!(row.expires_at, wanted.expires_at);
                self.ledger[record] = Ledger {
                    leased_until: 0,
                    done_until: wanted.expires_at.as_millis(),
                };
                *standing = Some(Arc::new(wanted));
            }
            (resolved, outcome) => {
                return Err(TestCaseError::fail(format!(
                    "wanted {resolved:?}, got {outcome:?}"
                )));
            }
        }
        Ok(())
    }

    async fn settle(
        &mut self,
        store: &impl Subject,
        claim: usize,
        say: Say,
        terms: &Terms,
    ) -> Result<(), TestCaseError> {
        let Some(at) = claim.checked_rem(self.claims.len()) else {
            return Ok(());
        };
        let (record, claim) = self.claims.swap_remove(at);
        let standing = &mut self.records[record];
        let after = transition::settle(
            standing.as_ref(),
            claim.token,
            say.settlement(),
            terms,
            self.now,
        );
        let settled = store.settle(claim, say.settlement(), terms).await;
        match (after, settled) {
            (After::Lost, Settled::Lost) => return Ok(()),
            (After::Released, Settled::Released) => {
                *standing = None;
                self.ledger[record] = Ledger::default();
            }
            (After::Kept(wanted), Settled::Kept(kept)) => {
                prop_assert_eq!(format!("{wanted:?}"), format!("{kept:?}"));
                let done = matches!(say, Say::Complete(_) | Say::Tombstone);
                let refused = match terms.after_expiry {
                    AfterExpiry::Execute => 0,
                    AfterExpiry::RefuseFor(_) => 50_000,
                };
                let done_until = if done {
                    wanted.expires_at.as_millis() + refused
                } else {
                    0
                };
                self.ledger[record] = Ledger {
                    leased_until: 0,
                    done_until,
                };
                *standing = Some(Arc::new(wanted));
            }
            (after, settled) => {
                return Err(TestCaseError::fail(format!(
                    "wanted {after:?}, got {settled:?}"
                )));
            }
        }
        Ok(())
    }
}
