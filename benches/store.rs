//! What the memory store costs a request: a hit, a miss from claim to settlement, and the decision alone.

use std::{hint::black_box, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use idem_proxy::{
    config::{MemoryLimits, OnFull},
    core::{
        fingerprint::Fingerprint,
        policy::{
            BodyMode, FingerprintRule, QueryMode, RetentionFrom, RouteName, Terms, UnknownOutcome,
        },
        record::{ClaimToken, Print, Record, RecordId, State, StoredAnswer},
        time::Timestamp,
        transition::{self, Ask, Found, Settlement},
    },
    store::{Begin, Settled, memory::MemoryStore},
};

/// What one client sends again and again.
struct Request {
    fingerprint: Arc<Fingerprint>,
    terms: Terms,
    route: RouteName,
}

impl Request {
    fn new() -> Self {
        let rule = Arc::new(FingerprintRule {
            method: true,
            path: true,
            query: QueryMode::Exact,
            headers: vec![HeaderName::from_static("content-type")],
            body: BodyMode::Auto,
            ignore: Vec::new(),
            only: Vec::new(),
        });
        let body = Bytes::from_static(br#"{"amount":1999,"currency":"eur"}"#);
        Self {
            fingerprint: Arc::new(Fingerprint::new(
                &rule,
                &Method::POST,
                "/payments",
                None,
                &HeaderMap::new(),
                body,
            )),
            terms: Terms {
                retention: Duration::from_hours(24),
                retention_from: RetentionFrom::Completion,
                lease: Duration::from_mins(1),
                unknown: UnknownOutcome::HoldForever,
            },
            route: RouteName::new("payments"),
        }
    }

    fn ask(&self) -> Ask<'_> {
        Ask {
            fingerprint: &self.fingerprint,
            terms: &self.terms,
            route: &self.route,
        }
    }
}

fn id(n: u64) -> RecordId {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    RecordId::from_bytes(bytes)
}

fn token(n: u64) -> ClaimToken {
    ClaimToken::from_random(u128::from(n).to_be_bytes())
}

fn answer() -> StoredAnswer {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("location", HeaderValue::from_static("/payments/4711"));
    StoredAnswer::capture(StatusCode::CREATED, &headers, &[b'x'; 300])
}

fn store(max_bytes: u64) -> MemoryStore {
    MemoryStore::new(MemoryLimits {
        max_bytes,
        max_records: None,
        max_claims: 100_000,
        on_full: OnFull::Evict,
    })
}

/// One miss; `None`: the store would not have it.
fn execute(
    store: &MemoryStore,
    request: &Request,
    n: u64,
    settlement: Settlement,
) -> Option<Settled> {
    match store.begin(&id(n), &request.ask(), token(n)) {
        Ok(Begin::Claimed(claim)) => Some(store.settle(claim, settlement, &request.terms)),
        Ok(Begin::Found(_)) | Err(_) => None,
    }
}

fn complete() -> Settlement {
    Settlement::Complete(answer())
}

fn hit(c: &mut Criterion) {
    let (store, request) = (store(256 << 20), Request::new());
    (0..256).for_each(|n| {
        assert!(matches!(
            execute(&store, &request, n, complete()),
            Some(Settled::Kept(_))
        ));
    });
    let ids: Vec<_> = (0..256).map(id).collect();
    let mut next = ids.iter().cycle();
    c.bench_function("memory: hit, 256 hot keys", |b| {
        b.iter(|| {
            let found = next.next().and_then(|id| store.look(id, &request.ask()));
            assert!(matches!(black_box(found), Some(Found::Complete(_))));
        });
    });
}

fn miss(c: &mut Criterion) {
    let request = Request::new();
    for (name, max_bytes) in [
        ("with room", 64 << 30),
        ("full, one evicted for each", 4 << 20),
    ] {
        let store = store(max_bytes);
        let mut n = 0;
        c.bench_function(&format!("memory: begin and settle, {name}"), |b| {
            b.iter(|| {
                n += 1;
                let settled = execute(&store, &request, n, complete());
                assert!(matches!(black_box(settled), Some(Settled::Kept(_))));
            });
        });
    }
    let store = store(1 << 20);
    c.bench_function("memory: begin and release", |b| {
        b.iter(|| {
            let settled = execute(&store, &request, 1, Settlement::Release);
            assert!(matches!(black_box(settled), Some(Settled::Released)));
        });
    });
}

fn decision(c: &mut Criterion) {
    let (request, now) = (Request::new(), Timestamp::from_millis(1_800_000_000_000));
    c.bench_function("transition: begin", |b| {
        b.iter(|| transition::begin(black_box(None), &request.ask(), token(1), now));
    });
    let record = Arc::new(Record {
        print: Print::Settled(request.fingerprint.digests()),
        state: State::Complete(answer()),
        started_at: now,
        expires_at: now.after(request.terms.retention),
        route: request.route.clone(),
    });
    c.bench_function("transition: look at a complete record", |b| {
        b.iter(|| {
            let found = transition::look(black_box(Some(&record)), &request.ask(), now);
            assert!(matches!(found, Some(Found::Complete(_))));
        });
    });
}

criterion_group!(benches, hit, miss, decision);
criterion_main!(benches);
