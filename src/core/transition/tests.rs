use super::*;
use crate::core::fixtures::{answer, request, route, terms, token};

/// One record and a clock, moved by the functions under test.
struct Life {
    record: Option<Arc<Record>>,
    terms: Terms,
    now: Timestamp,
}

impl Life {
    fn new(terms: Terms) -> Self {
        Self {
            record: None,
            terms,
            now: Timestamp::from_millis(1_000_000),
        }
    }

    /// A life that was begun by `body` under token 1.
    fn begun(terms: Terms, body: &str) -> Self {
        let mut life = Self::new(terms);
        assert_eq!(life.begin(body, 1), "claimed");
        life
    }

    fn pass(&mut self, ms: u64) -> &mut Self {
        self.now = self.now.after(Duration::from_millis(ms));
        self
    }

    fn look(&self, body: &str) -> String {
        let (fingerprint, route) = (request(body), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &self.terms,
            route: &route,
        };
        look(self.record.as_ref(), &ask, self.now).map_or("claimable".into(), |found| say(&found))
    }

    fn begin(&mut self, body: &str, n: u64) -> String {
        let (fingerprint, route) = (request(body), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms: &self.terms,
            route: &route,
        };
        let seen = self.look(body);
        match begin(self.record.as_ref(), &ask, token(n), self.now) {
            Begun::Claimed(record) => {
                self.record = Some(Arc::new(record));
                "claimed".into()
            }
            Begun::Found(found) => {
                assert_eq!(say(&found), seen, "one decision, with and without claiming");
                seen
            }
        }
    }

    fn renew(&mut self, n: u64) -> bool {
        let renewed = renew(self.record.as_ref(), token(n), &self.terms, self.now);
        let held = renewed.is_some();
        self.record = renewed.map(Arc::new).or(self.record.take());
        held
    }

    fn settle(&mut self, n: u64, settlement: Settlement) -> &'static str {
        match settle(
            self.record.as_ref(),
            token(n),
            settlement,
            &self.terms,
            self.now,
        ) {
            After::Kept(record) => {
                self.record = Some(Arc::new(record));
                "kept"
            }
            After::Released => {
                self.record = None;
                "released"
            }
            After::Lost => "lost",
        }
    }
}

fn say(found: &Found) -> String {
    match found {
        Found::InFlight { left } => format!("in flight {}", left.as_millis()),
        Found::Complete(record) => match &record.state {
            State::Complete(answer) => {
                format!("complete {}", String::from_utf8_lossy(answer.body()))
            }
            other => panic!("complete, but {other:?}"),
        },
        Found::Tombstone { status, why, .. } => {
            format!("tombstone {} {}", status.as_u16(), why.as_str())
        }
        Found::Unknown {
            left: HoldLeft::Forever,
        } => "unknown".into(),
        Found::Unknown {
            left: HoldLeft::For(left),
        } => format!("unknown {}", left.as_millis()),
        Found::Mismatch { in_flight: true } => "mismatch in flight".into(),
        Found::Mismatch { in_flight: false } => "mismatch".into(),
        Found::Expired => "expired".into(),
    }
}

fn complete(body: &str) -> Settlement {
    Settlement::Complete(answer(body.as_bytes()))
}

const TOMBSTONE: Settlement = Settlement::Tombstone {
    status: StatusCode::OK,
    why: NotRetained::Stream,
};

const HOUR: u64 = 3_600_000;

fn hold_for(ms: u64) -> Terms {
    Terms {
        unknown: UnknownOutcome::HoldFor(Duration::from_millis(ms)),
        ..terms()
    }
}

#[test]
fn the_first_request_claims_and_its_copies_find_it_in_flight() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.pass(1_500).begin("a", 2), "in flight 58500");
    assert_eq!(life.begin("b", 2), "mismatch in flight");
}

#[test]
fn a_complete_record_is_replayed_to_the_same_request_alone() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, complete("done")), "kept");
    assert_eq!(life.begin("a", 2), "complete done");
    assert_eq!(life.begin("b", 2), "mismatch");
}

#[test]
fn an_empty_answer_is_an_answer() {
    let mut life = Life::begun(terms(), "");
    assert_eq!(life.settle(1, complete("")), "kept");
    assert_eq!(life.begin("", 2), "complete ");
}

#[test]
fn a_released_key_is_free_for_any_request() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, Settlement::Release), "released");
    assert_eq!(life.begin("b", 2), "claimed");
}

#[test]
fn a_tombstone_is_never_executed_again_before_its_retention_ends() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, TOMBSTONE), "kept");
    assert_eq!(life.begin("a", 2), "tombstone 200 stream");
    assert_eq!(life.pass(24 * HOUR - 1).begin("b", 2), "mismatch");
    assert_eq!(life.pass(1).begin("b", 2), "claimed");
}

#[test]
fn exactly_at_the_limit_is_expired() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, complete("1")), "kept");
    assert_eq!(life.pass(24 * HOUR - 1).look("a"), "complete 1");
    assert_eq!(life.pass(1).look("a"), "claimable");
    assert_eq!(life.look("b"), "claimable");
}

#[test]
fn fifty_seconds_of_retention_are_fifty_seconds() {
    let mut life = Life::begun(
        Terms {
            retention: Duration::from_secs(50),
            ..terms()
        },
        "a",
    );
    assert_eq!(life.settle(1, complete("1")), "kept");
    assert_eq!(life.pass(49_999).begin("a", 2), "complete 1");
    assert_eq!(life.pass(1).begin("a", 2), "claimed");
}

#[test]
fn a_replay_does_not_extend_the_retention() {
    let mut life = Life::begun(
        Terms {
            retention: Duration::from_secs(10),
            ..terms()
        },
        "a",
    );
    assert_eq!(life.settle(1, complete("1")), "kept");
    for _ in 0..9 {
        assert_eq!(life.pass(1_000).begin("a", 2), "complete 1");
    }
    assert_eq!(life.pass(1_000).begin("a", 2), "claimed");
}

#[test]
fn the_retention_counts_from_completion_or_from_the_start() {
    for (from, left_ms) in [
        (RetentionFrom::Completion, 10_000),
        (RetentionFrom::Start, 4_000),
    ] {
        let mut life = Life::begun(
            Terms {
                retention: Duration::from_secs(10),
                retention_from: from,
                ..terms()
            },
            "a",
        );
        assert_eq!(life.pass(6_000).settle(1, complete("1")), "kept");
        assert_eq!(life.pass(left_ms - 1).look("a"), "complete 1", "{from:?}");
        assert_eq!(life.pass(1).look("a"), "claimable", "{from:?}");
    }
}

#[test]
fn a_claim_lives_by_its_lease_however_short_the_retention() {
    let mut life = Life::begun(
        Terms {
            retention: Duration::from_secs(1),
            ..terms()
        },
        "a",
    );
    assert_eq!(life.pass(59_999).begin("a", 2), "in flight 1");
    assert_eq!(
        life.pass(1).begin("a", 2),
        "claimed",
        "unknown, and past its retention"
    );
}

#[test]
fn a_renewed_claim_lives_on_and_a_renewal_never_shortens_it() {
    let mut life = Life::begun(terms(), "a");
    assert!(life.pass(20_000).renew(1));
    assert_eq!(life.pass(50_000).look("a"), "in flight 10000");
    life.terms.lease = Duration::from_millis(1);
    assert!(life.renew(1));
    assert_eq!(life.look("a"), "in flight 10000");
}

#[test]
fn a_lapsed_claim_is_unknown_from_that_moment_on() {
    let mut life = Life::begun(hold_for(2_000), "a");
    assert_eq!(life.pass(60_000).look("a"), "unknown 2000");
    assert_eq!(life.look("b"), "mismatch");
    assert_eq!(life.pass(1_999).look("a"), "unknown 1");
    assert_eq!(life.pass(1).look("a"), "claimable");
    assert_eq!(
        life.begin("b", 2),
        "mismatch",
        "the hold's end frees the key for the same request alone"
    );
    assert_eq!(life.begin("a", 3), "claimed");
    assert_eq!(life.settle(1, complete("late")), "lost");
}

#[test]
fn an_outcome_held_for_good_is_held_until_the_retention_counted_from_the_start_ends() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.pass(1_000).settle(1, Settlement::Unknown), "kept");
    assert_eq!(life.pass(24 * HOUR - 1_001).begin("a", 2), "unknown");
    assert_eq!(life.begin("b", 2), "mismatch");
    assert_eq!(life.pass(1).begin("b", 2), "claimed");
}

#[test]
fn a_hold_counts_from_the_settlement_and_ends_with_the_record_at_the_latest() {
    let mut life = Life::begun(hold_for(5_000), "a");
    assert_eq!(life.pass(3_000).settle(1, Settlement::Unknown), "kept");
    assert_eq!(life.look("a"), "unknown 5000");
    let mut short = Life::begun(
        Terms {
            retention: Duration::from_secs(4),
            ..hold_for(5_000)
        },
        "a",
    );
    assert_eq!(short.pass(3_000).settle(1, Settlement::Unknown), "kept");
    assert_eq!(short.look("a"), "unknown 1000");
    assert_eq!(short.pass(1_000).begin("b", 2), "claimed");
}

#[test]
fn with_release_an_unknown_outcome_is_claimable_at_once_by_any_request() {
    let release = Terms {
        unknown: UnknownOutcome::Release,
        ..terms()
    };
    let mut life = Life::begun(release, "a");
    assert_eq!(life.settle(1, Settlement::Unknown), "released");
    let mut lapsed = Life::begun(release, "a");
    assert_eq!(lapsed.pass(59_999).begin("b", 2), "mismatch in flight");
    assert_eq!(lapsed.pass(1).begin("b", 2), "claimed");
}

#[test]
fn the_asking_routes_terms_decide_how_an_unknown_outcome_is_held() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, Settlement::Unknown), "kept");
    assert_eq!(life.look("a"), "unknown");
    life.terms = hold_for(700);
    assert_eq!(life.look("a"), "unknown 700");
    life.terms.unknown = UnknownOutcome::Release;
    assert_eq!(life.look("b"), "claimable");
}

#[test]
fn a_holder_whose_lease_ran_out_may_renew_and_settle_while_nobody_took_the_record() {
    let mut life = Life::begun(terms(), "a");
    assert!(life.pass(61_000).renew(1));
    assert_eq!(life.look("a"), "in flight 60000");
    assert_eq!(life.pass(90_000).look("a"), "unknown");
    assert_eq!(life.settle(1, complete("late")), "kept");
    assert_eq!(life.look("a"), "complete late");
}

#[test]
fn a_holder_whose_record_has_expired_has_lost_it() {
    let mut life = Life::begun(terms(), "a");
    life.pass(24 * HOUR - 1);
    assert!(life.renew(1), "the lease ran out long ago, and yet");
    assert!(life.pass(59_999).renew(1), "a running call outlives it");
    assert!(!life.pass(60_000).renew(1));
    assert_eq!(life.settle(1, complete("late")), "lost");
    assert_eq!(life.begin("b", 2), "claimed");
}

#[test]
fn a_late_holder_writes_nothing_over_what_is_anothers() {
    let release = Terms {
        unknown: UnknownOutcome::Release,
        ..terms()
    };
    let mut life = Life::begun(release, "a");
    assert_eq!(life.pass(60_000).begin("a", 2), "claimed");
    assert!(!life.renew(1));
    for settlement in [
        complete("x"),
        Settlement::Release,
        Settlement::Unknown,
        TOMBSTONE,
    ] {
        assert_eq!(life.settle(1, settlement), "lost");
    }
    assert_eq!(life.look("a"), "in flight 60000");
    assert_eq!(life.settle(2, complete("y")), "kept");
    assert_eq!(life.settle(1, Settlement::Release), "lost");
    assert_eq!(
        life.settle(2, Settlement::Release),
        "lost",
        "a settled record is nobody's"
    );
    assert!(!life.renew(2));
    assert_eq!(life.look("a"), "complete y");
}

#[test]
fn a_record_that_is_gone_is_lost_to_its_holder() {
    let mut life = Life::begun(terms(), "a");
    life.record = None;
    assert!(!life.renew(1));
    assert_eq!(life.settle(1, complete("x")), "lost");
    assert!(life.record.is_none());
}

#[test]
fn begin_is_repeatable_with_the_same_token() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.pass(1_000).begin("a", 1), "claimed");
    assert_eq!(life.look("a"), "in flight 59000", "the first claim stands");
    assert_eq!(life.settle(1, complete("1")), "kept");
    assert_eq!(
        life.begin("a", 1),
        "complete 1",
        "a token claims nothing that is settled"
    );
}

#[test]
fn settling_lets_the_request_go() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, Settlement::Unknown), "kept");
    let record = life.record.expect("a record");
    assert!(matches!(record.print, Print::Settled(_)));
}

#[test]
fn an_answer_without_room_becomes_a_tombstone_with_its_status() {
    let mut life = Life::begun(terms(), "a");
    assert_eq!(life.settle(1, complete("1")), "kept");
    let kept = Record::clone(life.record.as_ref().expect("a record"));
    life.record = Some(Arc::new(without_answer(kept, NotRetained::NoRoom)));
    assert_eq!(life.look("a"), "tombstone 201 no-room");
    assert_eq!(life.look("b"), "mismatch");
}

fn refusing() -> Terms {
    Terms {
        after_expiry: AfterExpiry::RefuseFor(Duration::from_secs(10)),
        ..terms()
    }
}

#[test]
fn an_expired_key_is_refused_whatever_the_request_and_then_forgotten() {
    let settlements: [fn() -> Settlement; 3] =
        [|| complete("1"), || Settlement::Unknown, || TOMBSTONE];
    for settlement in settlements {
        let mut life = Life::begun(refusing(), "a");
        assert_eq!(life.settle(1, settlement()), "kept");
        assert_ne!(life.pass(24 * HOUR - 1).look("a"), "expired");
        assert_eq!(life.look("b"), "mismatch");
        assert_eq!(life.pass(1).begin("a", 2), "expired");
        assert_eq!(life.begin("b", 2), "expired");
        assert_eq!(life.pass(9_999).begin("b", 2), "expired");
        assert_eq!(life.pass(1).begin("b", 2), "claimed");
    }
}

#[test]
fn a_marker_says_what_its_record_would_say() {
    let settlements: [Option<fn() -> Settlement>; 4] = [
        Some(|| complete("1")),
        Some(|| Settlement::Unknown),
        Some(|| TOMBSTONE),
        None,
    ];
    for settlement in settlements {
        let mut life = Life::begun(refusing(), "a");
        if let Some(settlement) = settlement {
            assert_eq!(life.settle(1, settlement()), "kept");
        }
        let aged_at = |life: &Life| aged(life.record.as_ref().expect("a record"), life.now);
        assert!(aged_at(life.pass(24 * HOUR - 1)).is_none(), "too early");
        let marker = aged_at(life.pass(1)).expect("it has expired");
        assert!(matches!(marker.state, State::Expired));
        assert!(aged(&marker, life.now).is_none(), "it is one already");
        assert_eq!(changes_at(&marker), life.now.after(Duration::from_secs(10)));
        for ms in [0, 9_999] {
            let (before, now) = (life.record.clone(), life.now);
            let said = life.pass(ms).look("a");
            life.record = Some(Arc::new(marker.clone()));
            assert_eq!(life.look("a"), said);
            assert_eq!(life.look("b"), "expired");
            (life.record, life.now) = (before, now);
        }
        assert!(aged_at(life.pass(10_000)).is_none(), "it is forgotten");
        life.record = Some(Arc::new(marker));
        assert_eq!(life.begin("b", 2), "claimed");
    }
}

#[test]
fn a_claim_is_refused_after_its_lease_at_the_earliest_and_never_while_it_runs() {
    let short = Terms {
        retention: Duration::from_secs(1),
        ..refusing()
    };
    let mut life = Life::begun(short, "a");
    assert_eq!(life.pass(59_999).begin("a", 2), "in flight 1");
    assert!(life.renew(1));
    assert_eq!(life.pass(60_000).begin("a", 2), "expired");
    assert!(!life.renew(1), "what is over does not come back");
    assert_eq!(life.settle(1, complete("late")), "lost");
    assert_eq!(life.begin("a", 1), "expired");
    assert_eq!(life.pass(9_999).look("a"), "expired");
    assert_eq!(life.pass(1).begin("b", 2), "claimed");
}

#[test]
fn an_outcome_that_is_let_go_is_not_refused_later() {
    let mut life = Life::begun(
        Terms {
            unknown: UnknownOutcome::Release,
            ..refusing()
        },
        "a",
    );
    assert_eq!(life.pass(60_000).look("b"), "claimable");
    assert_eq!(life.pass(24 * HOUR).look("b"), "claimable");
}

#[test]
fn times_never_wrap() {
    let endless = Terms {
        retention: Duration::MAX,
        after_expiry: AfterExpiry::RefuseFor(Duration::MAX),
        lease: Duration::MAX,
        ..terms()
    };
    let mut life = Life::new(Terms {
        unknown: UnknownOutcome::HoldFor(Duration::MAX),
        ..endless
    });
    life.now = Timestamp::from_millis(u64::MAX - 10);
    assert_eq!(life.begin("a", 1), "claimed");
    assert_eq!(life.begin("a", 2), "in flight 10");
    assert!(life.renew(1));
    assert_eq!(life.settle(1, complete("1")), "kept");
    assert_eq!(life.pass(9).begin("a", 2), "complete 1");
}

#[test]
fn a_clock_that_goes_back_revives_nothing_and_shortens_nothing() {
    let mut life = Life::begun(terms(), "a");
    life.now = Timestamp::from_millis(500_000);
    assert!(life.renew(1));
    assert_eq!(life.look("a"), "in flight 560000");
    assert_eq!(life.settle(1, Settlement::Unknown), "kept");
    assert_eq!(life.look("a"), "unknown");
}

#[test]
fn a_claim_whose_process_is_gone_is_unknown_from_then_on() {
    let mut life = Life::begun(terms(), "a");
    life.pass(10_000);
    let record = Arc::clone(life.record.as_ref().expect("claimed"));
    let orphan = orphaned(&record, life.now).expect("a claim");
    assert!(matches!(orphan.state, State::Unknown { since } if since == life.now));
    assert_eq!(orphan.expires_at, record.expires_at);
    // Its lease had run out before anybody looked.
    let later = life.now.after(Duration::from_hours(1));
    let lapsed = orphaned(&record, later).expect("a claim");
    let lease_end = record.started_at.after(terms().lease);
    assert!(matches!(lapsed.state, State::Unknown { since } if since == lease_end));
    // Nothing else is touched.
    assert!(orphaned(&orphan, later).is_none());
    life.record = Some(Arc::new(orphan));
    assert_eq!(life.settle(1, Settlement::Release), "lost");
    assert!(life.look("a").starts_with("unknown"), "{}", life.look("a"));
}
