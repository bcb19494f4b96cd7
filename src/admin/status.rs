//! `/api/v1/status` and `/api/v1/policy`: what this process is, and what it promises.

use http::StatusCode;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    AdminState, ReadMax,
    answer::{Answer, json as document, plain},
    health::{Readiness, upstream_json},
};
use crate::{
    config::{Config, Listen, StoreKind, Target, Upstream},
    store::{Stores, clock::wall},
    telemetry::{
        log::rfc3339,
        metrics::{Limit, UpstreamState},
    },
};

/// The published policy, byte for byte as at `policy_path`.
pub(super) fn policy(state: &AdminState) -> Answer {
    let published = state.config.load().published.json().clone();
    plain(StatusCode::OK, "application/json", published)
}

/// Version, time, uptime, readiness, store, listeners, upstreams and limits. Nothing that a client sent, and no secret.
pub(super) fn status(state: &AdminState) -> Answer {
    let config = state.config.load();
    let reasons = match state.health.readiness() {
        Readiness::Ready => Vec::new(),
        Readiness::NotReady(reasons) => reasons,
    };
    let reasons: Vec<_> = reasons.iter().map(|reason| reason.as_str()).collect();
    document(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": rfc3339(wall()),
        "uptime_s": state.started.elapsed().as_secs(),
        "ready": reasons.is_empty(),
        "reasons": reasons,
        "policy_digest": digest(config.published.json()),
        "store": store(&state.store),
        "listeners": {
            "clients": addresses(&config.server.listen),
            "operators": addresses(&config.admin.listen),
        },
        "upstreams": upstreams(state, &config),
        "api_needs_token": state.token.lock().is_some(),
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

/// Each upstream, as it is configured and as it looked last.
fn upstreams(state: &AdminState, config: &Config) -> Vec<Value> {
    let seen = state.metrics.upstream_states();
    let each = config.upstreams.iter().map(|upstream| {
        let looks = seen.iter().find(|(name, _)| *name == upstream.name);
        let looks = looks.map_or(UpstreamState::Untried, |(_, looks)| *looks);
        let mut known = upstream_json(looks);
        if let Some(members) = known.as_object_mut() {
            members.insert("name".to_owned(), upstream.name.as_str().into());
            members.insert("address".to_owned(), place(upstream).into());
        }
        known
    });
    each.collect()
}

/// Where it listens; nothing else of its URL, which may hold a secret.
fn place(upstream: &Upstream) -> String {
    let scheme = if upstream.tls.is_some() {
        "https"
    } else {
        "http"
    };
    match &upstream.target {
        Target::Unix(path) => format!("unix:{}", path.display()),
        Target::Tcp { host, port } if host.contains(':') => format!("{scheme}://[{host}]:{port}"),
        Target::Tcp { host, port } => format!("{scheme}://{host}:{port}"),
    }
}

/// The level of each limit that has one, and what it is in force; beside that what it is configured to, where the limit of open files
/// has lowered it.
fn limits(state: &AdminState, config: &Config) -> Map<String, Value> {
    let most = |limit| match limit {
        Limit::MaxConnections => Some(config.server.max_connections as u64),
        Limit::MaxExecutions => Some(config.server.max_executions as u64),
        Limit::MaxBufferedBytes => Some(config.server.max_buffered_bytes as u64),
        Limit::MaxClaims => Some(config.store.memory.max_claims as u64),
        // The bound of other stores is not the proxy's to say.
        Limit::MaxBytes => {
            (config.store.kind == StoreKind::Disk).then_some(config.store.disk.max_bytes)
        }
        Limit::AdminConnections => Some(super::MAX_CONNECTIONS as u64),
        Limit::MaxWaiters | Limit::OpenFiles => None,
    };
    let in_force = state.connections_in_force.get();
    let in_force = in_force.map(|ReadMax(read)| read() as u64);
    let levels = state.metrics.limit_levels().into_iter();
    levels
        .map(|(limit, level)| {
            let configured = most(limit);
            let lowered = in_force.filter(|_| limit == Limit::MaxConnections);
            let lowered = lowered.filter(|lowered| Some(*lowered) != configured);
            let known = match lowered {
                None => json!({"level": level, "max": configured}),
                Some(max) => json!({"level": level, "max": max, "configured": configured}),
            };
            (limit.as_str().to_owned(), known)
        })
        .collect()
}
