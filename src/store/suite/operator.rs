//! What operators may rely on.

use http::StatusCode;

use super::{
    Held, Met, Outcome, Purged, Query, Request, Settled, Subject, ask, complete, completed, secs,
};
use crate::core::{
    fixtures::{answer, id, route, terms},
    policy::{AfterExpiry, RouteName, Terms},
    record::{NotRetained, RecordId},
    transition::{Resolution, Settlement, Standing},
};

/// One record of each standing, a second apart: 1 is in flight, 2 unknown, 3 complete, 4 a tombstone, 5 lapsed, 6 expired.
async fn one_of_each(store: &impl Subject) {
    let other = |n, terms| Request {
        id: id(n),
        ..ask("a", terms)
    };
    let short = Terms {
        retention: secs(8),
        lease: secs(3),
        ..terms()
    };
    let expired = other(6, short).claim(store).await;
    store.settle(expired, complete("6"), &short).await;
    let lapsing = Terms {
        lease: secs(5),
        ..terms()
    };
    drop(other(5, lapsing).claim(store).await);
    let tombstone = Settlement::Tombstone {
        status: StatusCode::ACCEPTED,
        why: NotRetained::Stream,
    };
    for (n, settlement) in [
        (4, Some(tombstone)),
        (3, Some(complete("done"))),
        (2, Some(Settlement::Unknown)),
        (1, None),
    ] {
        store.pass(secs(1)).await;
        let claim = other(n, terms()).claim(store).await;
        if let Some(settlement) = settlement {
            store.settle(claim, settlement, &terms()).await;
        }
    }
    store.pass(secs(4)).await;
}

async fn listed(store: &impl Subject, query: Query) -> Vec<RecordId> {
    store.list(&query).await.iter().map(|row| row.id).collect()
}

pub(in crate::store) async fn operators_see_what_has_not_expired_the_latest_first(
    store: &impl Subject,
) {
    one_of_each(store).await;
    let query = |standing| Query {
        standing,
        limit: 100,
        ..Query::default()
    };
    let ids = |all: &[u64]| all.iter().map(|n| id(*n)).collect::<Vec<_>>();
    assert_eq!(listed(store, query(None)).await, ids(&[1, 2, 3, 4, 5]));
    for (standing, wanted) in [
        (Standing::InFlight, &[1][..]),
        (Standing::Unknown, &[2, 5]),
        (Standing::Complete, &[3]),
        (Standing::Tombstone, &[4]),
    ] {
        assert_eq!(listed(store, query(Some(standing))).await, ids(wanted));
    }
    let on = |name| Query {
        route: Some(RouteName::new(name)),
        ..query(None)
    };
    assert_eq!(listed(store, on("orders")).await.len(), 5);
    assert_eq!(listed(store, on("others")).await, []);
    // Page by page.
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = Query {
            limit: 2,
            after,
            ..query(None)
        };
        let page = store.list(&page).await;
        let Some(last) = page.last() else { break };
        after = Some(last.place());
        pages.extend(page.iter().map(|row| row.id));
    }
    assert_eq!(pages, ids(&[1, 2, 3, 4, 5]));
}

pub(in crate::store) async fn a_row_says_what_there_is_to_know_and_is_found_by_its_first_digits(
    store: &impl Subject,
) {
    one_of_each(store).await;
    let mut seen = Vec::new();
    for n in 1..7 {
        let found = store.find(id(n).short()).await;
        assert_eq!(found.len(), usize::from(n < 6), "{n}");
        assert_eq!(store.row(&id(n)).await, found.first().cloned(), "{n}");
        for row in found {
            assert_eq!((row.id, row.route), (id(n), route()));
            assert_eq!(row.lease_until.is_some(), n == 1);
            assert_eq!(row.bytes > 0, n == 3);
            assert!(row.expires_at > row.started_at);
            seen.push((row.standing, row.status.map(|status| status.as_u16())));
        }
    }
    let wanted = [
        (Standing::InFlight, None),
        (Standing::Unknown, None),
        (Standing::Complete, Some(201)),
        (Standing::Tombstone, Some(202)),
        (Standing::Unknown, None),
    ];
    assert_eq!(seen, wanted);
    assert_eq!(store.find(id(77).short()).await, []);
    assert_eq!(store.row(&id(77)).await, None);
    // Another id that begins so.
    let mut twin = *id(3).as_bytes();
    twin[31] ^= 1;
    let twin = Request {
        id: RecordId::from_bytes(twin),
        ..ask("a", terms())
    };
    drop(twin.claim(store).await);
    assert_eq!(store.find(id(3).short()).await.len(), 2);
}

pub(in crate::store) async fn a_purged_record_is_nothing_whatever_it_was(store: &impl Subject) {
    one_of_each(store).await;
    for n in 2..7 {
        // What is looked at before is not to be remembered.
        let one = Request {
            id: id(n),
            ..ask("a", terms())
        };
        let _ = one.look(store).await;
        let wanted = if n == 6 { Purged::Absent } else { Purged::Gone };
        assert_eq!(store.purge(&id(n)).await, wanted, "{n}");
        assert_eq!(store.purge(&id(n)).await, Purged::Absent, "{n}");
        one.meets(store, Met::Nothing).await;
    }
}

pub(in crate::store) async fn a_record_under_which_a_call_runs_is_not_purged(store: &impl Subject) {
    let a = ask("a", terms());
    let claim = a.claim(store).await;
    assert_eq!(store.purge(&id(1)).await, Purged::Runs);
    assert_eq!(store.renew(&claim, &terms()).await, Held::Yes);
    assert_eq!(store.purge(&id(1)).await, Purged::Runs);
    let settled = store.settle(claim, complete("1"), &terms()).await;
    assert!(matches!(settled, Settled::Kept(_)));
    a.meets(store, completed("1")).await;
    assert_eq!(store.purge(&id(1)).await, Purged::Gone);
}

pub(in crate::store) async fn who_lost_the_claim_to_a_purge_settles_nothing(store: &impl Subject) {
    let a = ask("a", terms());
    let late = a.claim(store).await;
    store.pass(terms().lease).await;
    assert_eq!(
        store.purge(&id(1)).await,
        Purged::Gone,
        "its lease has run out"
    );
    assert_eq!(store.renew(&late, &terms()).await, Held::Lost);
    let settled = store.settle(late, complete("late"), &terms()).await;
    assert!(matches!(settled, Settled::Lost));
    a.meets(store, Met::Nothing).await;
}

pub(in crate::store) async fn a_refused_key_cannot_be_purged(store: &impl Subject) {
    let refusing = Terms {
        retention: secs(50),
        after_expiry: AfterExpiry::RefuseFor(secs(100)),
        ..terms()
    };
    let a = ask("a", refusing);
    let claim = a.claim(store).await;
    store.settle(claim, complete("1"), &refusing).await;
    store.pass(secs(50)).await;
    assert_eq!(store.purge(&id(1)).await, Purged::Absent);
    a.meets(store, Met::Expired).await;
}

pub(in crate::store) async fn an_unknown_outcome_is_settled_by_an_operators_word(
    store: &impl Subject,
) {
    let one = |n| Request {
        id: id(n),
        ..ask("a", terms())
    };
    let done = || Resolution::Complete(answer(b"by hand"));
    for n in [1, 2] {
        let claim = one(n).claim(store).await;
        store.settle(claim, Settlement::Unknown, &terms()).await;
    }
    assert!(matches!(
        store.resolve(&id(1), Resolution::Release).await,
        Outcome::Released
    ));
    one(1).meets(store, Met::Nothing).await;
    let Outcome::Kept(row) = store.resolve(&id(2), done()).await else {
        panic!("it was unknown")
    };
    assert_eq!(
        (row.standing, row.status),
        (Standing::Complete, Some(StatusCode::CREATED))
    );
    assert_eq!(row.expires_at.left(row.started_at), terms().retention);
    one(2).meets(store, completed("by hand")).await;
    // What is not unknown stays as it is.
    assert!(matches!(
        store.resolve(&id(2), Resolution::Release).await,
        Outcome::NotUnknown
    ));
    one(2).meets(store, completed("by hand")).await;
    assert!(matches!(
        store.resolve(&id(3), done()).await,
        Outcome::Absent
    ));
    let late = one(4).claim(store).await;
    assert!(matches!(
        store.resolve(&id(4), done()).await,
        Outcome::NotUnknown
    ));
    // A claim whose lease has run out is unknown, and its holder comes too late.
    store.pass(secs(60)).await;
    assert!(matches!(
        store.resolve(&id(4), done()).await,
        Outcome::Kept(_)
    ));
    assert!(matches!(
        store.settle(late, complete("late"), &terms()).await,
        Settled::Lost
    ));
    one(4).meets(store, completed("by hand")).await;
    store.pass(terms().retention).await;
    assert!(matches!(
        store.resolve(&id(2), done()).await,
        Outcome::Absent
    ));
}
