//! What one complete record costs the process beside its payload: body, header names and header values.
//!
//! A program of its own, for it looks at the memory of the whole process, with the product's allocator.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use idem_proxy::{
    config::{MemoryLimits, OnFull},
    core::{
        fingerprint::Fingerprint,
        policy::{
            AfterExpiry, BodyMode, FingerprintRule, QueryMode, RetentionFrom, RouteName, Terms,
            UnknownOutcome,
        },
        record::{ClaimToken, Record, RecordId, StoredAnswer},
        transition::{Ask, Settlement},
    },
    store::{Begin, Settled, memory::MemoryStore},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn main() {
    // Without `--bench` it is run as a test, and only has to work.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let mut steps = if measured {
        vec![100_000, 1_000_000]
    } else {
        vec![1_000]
    };
    let store = MemoryStore::new(MemoryLimits {
        max_bytes: u64::MAX,
        max_records: None,
        max_claims: 100_000,
        on_full: OnFull::Evict,
    });
    let route = RouteName::new("payments");
    let answer = answer();
    let payload = answer.body().len()
        + answer
            .headers()
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum::<usize>();
    println!("payload {payload} B, weight {} B", answer.weight());
    let (before, mut n) = (resident(), 0);
    for records in steps.drain(..) {
        while n < records {
            execute(&store, &route, n);
            n += 1;
        }
        let bytes = resident().saturating_sub(before) / records;
        println!(
            "{records} records: {bytes} B a record, {} B beside the payload",
            bytes.saturating_sub(payload as u64)
        );
    }
    let held = resident();
    drop(store);
    println!(
        "{} MiB held, {} MiB given back",
        held >> 20,
        (held - resident().min(held)) >> 20
    );
}

/// One call, whose request and answer have buffers of their own.
fn execute(store: &MemoryStore, route: &RouteName, n: u64) {
    let rule = Arc::new(FingerprintRule {
        method: true,
        path: true,
        query: QueryMode::Exact,
        headers: Vec::new(),
        body: BodyMode::Auto,
        ignore: Vec::new(),
        only: Vec::new(),
    });
    let body = Bytes::from(vec![b'x'; 300]);
    let headers = HeaderMap::new();
    let fingerprint = Arc::new(Fingerprint::new(
        &rule,
        &Method::POST,
        "/payments",
        None,
        &headers,
        body,
    ));
    let terms = Terms {
        retention: Duration::from_hours(24),
        retention_from: RetentionFrom::Completion,
        after_expiry: AfterExpiry::Execute,
        lease: Duration::from_mins(1),
        unknown: UnknownOutcome::HoldForever,
    };
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route,
    };
    let token = ClaimToken::from_random(u128::from(n).to_be_bytes());
    let Ok(Begin::Claimed(claim)) = store.begin(&id(n), &ask, token) else {
        return;
    };
    let settled = store.settle(claim, Settlement::Complete(answer()), &terms);
    let Settled::Kept(record) = settled else {
        return;
    };
    // As the client gets it: the answer that goes out shares what is kept.
    drop(Record::clone(&record));
}

fn answer() -> StoredAnswer {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert(
        "date",
        HeaderValue::from_static("Mon, 30 Nov 2026 12:00:00 GMT"),
    );
    headers.insert("location", HeaderValue::from_static("/payments/4711"));
    StoredAnswer::capture(StatusCode::CREATED, &headers, &[b'x'; 300])
}

fn id(n: u64) -> RecordId {
    let mut bytes = [0x5a; 32];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    RecordId::from_bytes(bytes)
}

/// Resident bytes of this process; 0 where the system does not say.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0u64) * 4096
}
