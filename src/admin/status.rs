//! `/api/v1/status` and `/api/v1/policy`: what this process is, and what it promises.

use http::StatusCode;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    AdminState,
    answer::{Answer, json as document, plain},
    health::Readiness,
};
use crate::{
    config::{Config, Listen},
    store::Stores,
    telemetry::metrics::Limit,
};

/// The published policy, byte for byte as at `policy_path`.
pub(super) fn policy(state: &AdminState) -> Answer {
    let published = state.config.load().published.json().clone();
    plain(StatusCode::OK, "application/json", published)
}

/// Version, uptime, readiness, store, listeners and limits. Nothing that a client sent, and no secret.
pub(super) fn status(state: &AdminState) -> Answer {
    let config = state.config.load();
    let reasons = match state.health.readiness() {
        Readiness::Ready => Vec::new(),
        Readiness::NotReady(reasons) => reasons,
    };
    let reasons: Vec<_> = reasons.iter().map(|reason| reason.as_str()).collect();
    document(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": state.started.elapsed().as_secs(),
        "ready": reasons.is_empty(),
        "reasons": reasons,
        "policy_digest": digest(config.published.json()),
        "store": store(&state.store),
        "listeners": {
            "clients": addresses(&config.server.listen),
            "operators": addresses(&config.admin.listen),
        },
        "limits": limits(state, &config),
    }))
}

/// The first 16 digits of its SHA-256: two processes with the same have the same policies.
fn digest(published: &[u8]) -> String {
    let digest = Sha256::digest(published);
    let first = digest
        .first_chunk()
        .map_or(0, |first| u64::from_be_bytes(*first));
    format!("{first:016x}")
}

fn store(store: &Stores) -> Value {
    let levels = store.levels();
    json!({
        "kind": store.as_str(),
        "answers": store.answers(),
        "records": levels.records,
        "bytes": levels.bytes,
    })
}

fn addresses(listen: &[Listen]) -> Vec<String> {
    listen.iter().map(ToString::to_string).collect()
}

/// The level of each limit that has one, and what it is configured to; `max_connections` may be lower in force.
fn limits(state: &AdminState, config: &Config) -> Map<String, Value> {
    let most = |limit| match limit {
        Limit::MaxConnections => Some(config.server.max_connections as u64),
        Limit::MaxExecutions => Some(config.server.max_executions as u64),
        Limit::MaxBufferedBytes => Some(config.server.max_buffered_bytes as u64),
        Limit::MaxClaims => Some(config.store.memory.max_claims as u64),
        Limit::MaxBytes => Some(config.store.disk.max_bytes),
        Limit::AdminConnections => Some(super::MAX_CONNECTIONS as u64),
        Limit::MaxWaiters | Limit::OpenFiles => None,
    };
    let levels = state.metrics.limit_levels().into_iter();
    levels
        .map(|(limit, level)| {
            let known = json!({"level": level, "max": most(limit)});
            (limit.as_str().to_owned(), known)
        })
        .collect()
}
