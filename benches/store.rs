//! What the memory store costs a request: a hit, a miss from claim to settlement, and the decision alone.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use idem_proxy::{
    config::{MemoryLimits, OnFull},
    core::{
        fingerprint::Fingerprint,
        policy::{
            AfterExpiry, BodyMode, FingerprintRule, QueryMode, RetentionFrom, RouteName, Terms,
            UnknownOutcome,
        },
        record::{ClaimToken, Print, Record, RecordId, State, StoredAnswer},
        time::Timestamp,
        transition::{self, Ask, Found, Settlement},
    },
    store::{Begin, Settled, memory::MemoryStore},
};

/// The allocator of the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How many complete records a store holds.
const SIZES: [(&str, u64); 2] = [("1 k records", 1_000), ("1 M records", 1_000_000)];

/// Walks over the records in no order (Knuth's linear congruence).
const LCG: u64 = 6_364_136_223_846_793_005;

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
                after_expiry: AfterExpiry::Execute,
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

/// A store that holds this many complete records; `full`: and has no room for another.
fn filled(records: u64, full: Full, request: &Request) -> MemoryStore {
    let max_bytes = match full {
        Full::Yes => records * answer().weight() as u64,
        Full::No => u64::MAX,
    };
    let store = store(max_bytes);
    for n in 0..records {
        assert!(matches!(
            execute(&store, request, n, complete()),
            Some(Settled::Kept(_))
        ));
    }
    store
}

/// Whether a store has no room left.
#[derive(Clone, Copy)]
enum Full {
    Yes,
    No,
}

fn hit(c: &mut Criterion) {
    let request = Request::new();
    for (name, records) in SIZES {
        let store = filled(records, Full::No, &request);
        let mut n = 0u64;
        c.bench_function(&format!("memory: hit, {name}"), |b| {
            b.iter(|| {
                n = n.wrapping_mul(LCG).wrapping_add(1);
                let found = store.look(&id((n >> 20) % records), &request.ask());
                assert!(matches!(black_box(found), Some(Found::Complete(_))));
            });
        });
    }
}

fn miss(c: &mut Criterion) {
    let request = Request::new();
    for (name, records) in SIZES {
        let (mut store, mut n) = (filled(records, Full::No, &request), records);
        c.bench_function(
            &format!("memory: begin and settle with room, {name}"),
            |b| {
                b.iter_custom(|iterations| {
                    let (mut left, mut spent) = (iterations, Duration::ZERO);
                    while left > 0 {
                        // The store is never more than twice as large as it is said to be.
                        if n >= 2 * records {
                            (store, n) = (filled(records, Full::No, &request), records);
                        }
                        let last = (n + left).min(2 * records);
                        left -= last - n;
                        let started = Instant::now();
                        for n in n..last {
                            let settled = execute(&store, &request, n, complete());
                            assert!(matches!(black_box(settled), Some(Settled::Kept(_))));
                        }
                        spent += started.elapsed();
                        n = last;
                    }
                    spent
                });
            },
        );
    }
    for (name, records) in SIZES {
        let (store, mut n) = (filled(records, Full::Yes, &request), records);
        c.bench_function(
            &format!("memory: begin and settle, one evicted for each, {name}"),
            |b| {
                b.iter(|| {
                    n += 1;
                    let settled = execute(&store, &request, n, complete());
                    assert!(matches!(black_box(settled), Some(Settled::Kept(_))));
                });
            },
        );
    }
    let store = store(1 << 20);
    c.bench_function("memory: begin and release", |b| {
        b.iter(|| {
            let settled = execute(&store, &request, 1, Settlement::Release);
            assert!(matches!(black_box(settled), Some(Settled::Released)));
        });
    });
}

/// One of the calls that a store gets every second; nothing has expired.
fn sweep(c: &mut Criterion) {
    let request = Request::new();
    for (name, records) in SIZES {
        let store = filled(records, Full::No, &request);
        c.bench_function(&format!("memory: sweep, {name}"), |b| {
            b.iter(|| store.sweep());
        });
    }
}

fn decision(c: &mut Criterion) {
    let (request, now) = (Request::new(), Timestamp::from_millis(1_800_000_000_000));
    c.bench_function("transition: begin", |b| {
        b.iter(|| transition::begin(black_box(None), &request.ask(), token(1), now));
    });
    let record = Arc::new(Record {
        after_expiry: AfterExpiry::Execute,
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

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = hit, miss, sweep, decision
}
criterion_main!(benches);
