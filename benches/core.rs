//! What a fingerprint costs: the exact digest that every keyed request pays, and the canonical form that is paid for
//! where the exact digests differ.

use std::{fmt::Write as _, hint::black_box, sync::Arc};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue, Method, header};
use idem_proxy::core::{
    canonical,
    fingerprint::Fingerprint,
    policy::{BodyMode, FingerprintRule, QueryMode},
};

/// An order with as many lines as make about `size` bytes.
fn order(size: usize) -> Bytes {
    let mut text =
        String::from(r#"{"id":"8e03978e-40d5-43e8-bc93-6894a57f9324","currency":"EUR","lines":["#);
    let mut line = 0;
    while line == 0 || text.len() + 110 < size {
        let comma = if line > 0 { "," } else { "" };
        let _ = write!(
            text,
            r#"{comma}{{"sku":"A-{line:06}","quantity":{},"price":{}.50,"note":"gr\u00fcn"}}"#,
            line % 9 + 1,
            line % 100
        );
        line += 1;
    }
    text.push_str(r#"],"customer":{"name":"Ada","vip":true}}"#);
    text.into()
}

const SIZES: [(&str, usize); 3] = [("300 B", 300), ("10 KiB", 10 << 10), ("1 MiB", 1 << 20)];

fn exact(criterion: &mut Criterion) {
    let rule = Arc::new(FingerprintRule {
        method: true,
        path: true,
        query: QueryMode::Exact,
        headers: vec![header::CONTENT_TYPE],
        body: BodyMode::Auto,
        ignore: vec![],
        only: vec![],
    });
    let headers: HeaderMap = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )]
    .into_iter()
    .collect();
    let mut group = criterion.benchmark_group("fingerprint/exact");
    for (name, size) in SIZES {
        let body = order(size);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                Fingerprint::new(
                    &rule,
                    &Method::POST,
                    black_box("/orders"),
                    None,
                    &headers,
                    body.clone(),
                )
            });
        });
    }
}

fn canonical_json(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("canonical/json");
    for (name, size) in SIZES {
        let body = order(size);
        assert!(
            canonical::json(&body, &[], &[]).is_some(),
            "the sample is JSON"
        );
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| canonical::json(black_box(&body), &[], &[]));
        });
    }
}

/// Objects nested as deep as they may, each to be sorted: the worst case that the text allows.
fn hostile(criterion: &mut Criterion) {
    let members = (0..60_000)
        .rev()
        .map(|at| format!("\"{at:06}\":{}", at % 10))
        .collect::<Vec<_>>()
        .join(",");
    let body = "{\"b\":".repeat(127) + &format!("{{{members}}}") + &",\"a\":1}".repeat(127);
    let small = "{\"b\":".repeat(60) + "1" + &",\"a\":1}".repeat(60);
    let many = format!("[{}]", vec![small; 1400].join(","));
    let mut group = criterion.benchmark_group("canonical/hostile");
    for (name, text) in [
        ("one large object, nested", body),
        ("small objects, nested", many),
    ] {
        assert!(
            canonical::json(text.as_bytes(), &[], &[]).is_some(),
            "the sample is JSON"
        );
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| canonical::json(black_box(text.as_bytes()), &[], &[]));
        });
    }
}

criterion_group!(benches, exact, canonical_json, hostile);
criterion_main!(benches);
