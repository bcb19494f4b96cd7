//! Without a store.

use super::*;
use crate::{
    config::{MemoryLimits, OnFull},
    core::fixtures::{answer, id, request, route, terms, token},
};

#[tokio::test]
async fn without_a_store_nothing_is_claimed_and_a_claim_comes_back() {
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    let store = Stores::None;
    assert_eq!(store.look(&id(1), &ask).await.err(), Some(StoreError::None));
    assert_eq!(
        store.begin(&id(1), &ask).await.err(),
        Some(StoreError::None)
    );
    let claim = Claim {
        id: id(1),
        token: token(1),
    };
    assert_eq!(
        store.renew(&claim, &terms).await.err(),
        Some(StoreError::None)
    );
    let unsettled = store
        .settle(claim, Settlement::Release, &terms)
        .await
        .expect_err("no store");
    assert_eq!(unsettled.claim.id(), &id(1));
    assert!(matches!(unsettled.settlement, Settlement::Release));
    assert_eq!(store.levels(), Levels::default());
}

#[tokio::test]
async fn every_claim_has_a_token_of_its_own() {
    let limits = MemoryLimits {
        max_bytes: 10_000,
        max_records: None,
        max_claims: 10,
        on_full: OnFull::Evict,
    };
    let store = Stores::Memory(Box::new(memory::MemoryStore::new(limits)));
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    let mut tokens = Vec::new();
    for n in 0..10 {
        let begun = store.begin(&id(n), &ask).await;
        let Ok(Begin::Claimed(claim)) = begun else {
            panic!("{begun:?}")
        };
        assert!(!tokens.contains(&claim.token));
        tokens.push(claim.token);
        if n == 0 {
            let settled = store
                .settle(claim, Settlement::Complete(answer(b"x")), &terms)
                .await;
            assert!(matches!(settled, Ok(Settled::Kept(_))), "{settled:?}");
        }
    }
    assert_eq!(store.levels().records, 10);
    assert_eq!(store.levels().claims, 9);
    store.sweep().await;
    for cause in Eviction::ALL {
        assert_eq!(store.evictions(cause), 0, "{}", cause.as_str());
    }
}
