//! Reads `[store]`. The tables of the kinds that are not chosen are checked and have no effect, so that a switch of
//! `kind` is one edit.

use std::path::PathBuf;

use super::{
    DiskStore, MemoryLimits, OnFull, Store, StoreKind,
    problem::Refusal,
    reader::{Section, Show},
    redis::{Chosen, redis},
    seal_keys,
    server::MANY,
    units,
};

/// Reads `[store]` and the tables in it.
pub(super) fn store(mut section: Section<'_>) -> Option<Store> {
    let s = &mut section;
    let kinds = [
        ("none", Some(StoreKind::None)),
        ("memory", Some(StoreKind::Memory)),
        ("disk", Some(StoreKind::Disk)),
        ("redis", Some(StoreKind::Redis)),
        ("postgres", None),
    ];
    let mut named = String::new();
    let kind = s.text("kind", "memory", |text| {
        text.clone_into(&mut named);
        super::kinds::choose(text, &kinds)
    });
    let namespace = s.text("namespace", "default", namespace);
    let seal = s.text_or("encryption_key_file", None, |path| {
        seal_keys::read(path).map(Some)
    });
    if matches!(kind, Some(StoreKind::Memory | StoreKind::None)) && matches!(seal, Some(Some(_))) {
        s.report.warn(format!(
            "store.encryption_key_file has no effect with store.kind = \"{named}\": nothing is kept outside the process"
        ));
    }
    let memory = memory(s.child("memory", Show::All));
    let show = |kind: &str| {
        if named == kind {
            Show::All
        } else {
            Show::Given
        }
    };
    let disk = disk(s.child("disk", show("disk")));
    let chosen = if named == "redis" {
        Chosen::Yes
    } else {
        Chosen::No
    };
    let redis = redis(s.child("redis", show("redis")), chosen);
    postgres(s.child("postgres", show("postgres")));
    section.finish();
    Some(Store {
        kind: kind?,
        namespace: namespace?,
        memory: memory?,
        disk: disk?,
        redis: redis?,
        seal: seal?,
    })
}

fn namespace(text: &str) -> Result<String, Refusal> {
    if text.is_empty() || text.len() > 255 || text.contains(char::is_control) {
        return Err(
            Refusal::wrong("it is no name").allowed("1 to 255 bytes without control characters")
        );
    }
    Ok(text.to_owned())
}

fn memory(mut section: Section<'_>) -> Option<MemoryLimits> {
    let s = &mut section;
    let max_bytes = s.size("max_bytes", "256MiB");
    let max_records = s.count("max_records", 0, 0..=i64::MAX);
    let max_claims = s.count("max_claims", 100_000, 1..=MANY);
    let rules = [
        ("evict", Some(OnFull::Evict)),
        ("reject", Some(OnFull::Reject)),
    ];
    let on_full = s.choice("on_full", "evict", &rules);
    section.finish();
    Some(MemoryLimits {
        max_bytes: max_bytes?,
        max_records: max_records.map(|records: u64| (records > 0).then_some(records))?,
        max_claims: max_claims?,
        on_full: on_full?,
    })
}

fn disk(mut section: Section<'_>) -> Option<DiskStore> {
    let s = &mut section;
    let path = s.text("path", "/var/lib/idem-proxy", |path| match path {
        "" => Err(Refusal::wrong("it is empty").allowed("a folder")),
        path => Ok(PathBuf::from(path)),
    });
    let sizes =
        "a size such as \"64MiB\", \"4GiB\", from \"1MiB\" on; other units: \"512B\", \"64KiB\"";
    let max_bytes = s.text_of("max_bytes", "4GiB", sizes, |text| {
        let bytes = match units::size(text) {
            Ok(bytes) if bytes < LEAST_DISK => Err(Refusal::wrong("it is too small")),
            Ok(bytes) => Ok(bytes),
            Err(why) => Err(Refusal::wrong(why)),
        };
        bytes.map_err(|refusal| refusal.allowed(sizes))
    });
    section.finish();
    Some(DiskStore {
        path: path?,
        max_bytes: max_bytes?,
    })
}

/// A smaller database would be full of its own tables.
const LEAST_DISK: u64 = 1 << 20;

fn postgres(mut section: Section<'_>) {
    let s = &mut section;
    s.text_or("url", (), |url| {
        scheme(url, &["postgres://", "postgresql://"])
    });
    section.finish();
}

/// Looks whether a URL starts as one of these do.
pub(super) fn scheme(url: &str, schemes: &[&str]) -> Result<(), Refusal> {
    let rest = schemes.iter().find_map(|scheme| url.strip_prefix(scheme));
    match rest {
        Some(rest) if !rest.is_empty() => Ok(()),
        _ => Err(Refusal::wrong("it is no such URL")
            .allowed(format!("URLs that start with {}", schemes.join(" or ")))),
    }
}
