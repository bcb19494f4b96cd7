//! What a configuration makes of a proxy.

use std::sync::Arc;

use anyhow::Context as _;
use http::{
    HeaderName,
    header::{
        AUTHORIZATION, CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, MAX_FORWARDS,
        TRANSFER_ENCODING, VIA,
    },
};

use super::{PolicyPage, Proxy, Records};
use crate::{
    config::{Config, StoreKind},
    core::{
        forwarding::Hop,
        policy::{CallerPart, KeyPlace},
    },
    flight::Flights,
    identity::Kept,
    limit::Limit,
    route::Router,
    store::{Stores, clock::SystemClock, disk::DiskStore, memory::MemoryStore, redis::RedisStore},
    telemetry::{access::AccessLog, metrics::Metrics, spans::Spans},
};

impl Proxy {
    /// The proxy that `config` describes, with an empty store, or what the disk has. `verifiers` are those of its list, in their order.
    ///
    /// # Errors
    /// The disk store cannot be opened, the Redis server must not be used, the system gives no random bytes, or the published policy is no answer.
    pub fn new(
        config: &Config,
        verifiers: Vec<Kept>,
        metrics: &Metrics,
        access: AccessLog,
        spans: Spans,
    ) -> anyhow::Result<Self> {
        let clock = SystemClock::start();
        let store = match config.store.kind {
            StoreKind::None => Stores::None,
            StoreKind::Memory => Stores::Memory(Box::new(MemoryStore::with_clock(
                config.store.memory,
                clock,
            ))),
            StoreKind::Disk => Stores::Disk(Box::new(DiskStore::open(
                &config.store.disk,
                config.store.memory,
                config.store.seal.as_ref(),
                metrics.store("disk"),
            )?)),
            StoreKind::Redis => Stores::Redis(Box::new(RedisStore::open(
                &config.store.redis,
                &config.store.namespace,
                config.store.memory,
                config.store.seal.as_ref(),
                metrics.store("redis"),
            )?)),
        };
        let lasting = Lasting {
            hop: hop()?,
            records: Arc::new(Records::new(store, metrics)),
            flights: Flights::new(),
            executions: Limit::new(config.server.max_executions),
            buffered: Limit::new(config.server.max_buffered_bytes),
            metrics: metrics.clone(),
            access,
            spans,
            clock,
        };
        Self::of(config, verifiers, lasting)
    }

    /// The same proxy under another configuration: what it holds is shared, what it is told is new. The limits are not moved by this.
    ///
    /// # Errors
    /// The published policy is no answer.
    pub fn under(&self, config: &Config, verifiers: Vec<Kept>) -> anyhow::Result<Self> {
        let names: Vec<_> = config
            .routes
            .iter()
            .map(|route| route.name.clone())
            .collect();
        let lasting = Lasting {
            hop: self.hop.clone(),
            records: Arc::clone(&self.records),
            flights: Arc::clone(&self.flights),
            executions: Arc::clone(&self.executions),
            buffered: Arc::clone(&self.buffered),
            metrics: self.metrics.for_routes(&names),
            access: self.access.for_routes(&names),
            spans: self.spans.for_routes(&config.routes),
            clock: self.clock,
        };
        Self::of(config, verifiers, lasting)
    }

    fn of(config: &Config, verifiers: Vec<Kept>, lasting: Lasting) -> anyhow::Result<Self> {
        let router = Router::new(config.routes.clone());
        let policies = || {
            router
                .routes()
                .iter()
                .map(|route| &route.policy)
                .chain([&config.defaults])
        };
        let key_headers = distinct(
            policies()
                .flat_map(|policy| &policy.key_sources)
                .filter_map(|source| match &source.place {
                    KeyPlace::Header(name) => Some(name),
                    KeyPlace::Query(_) | KeyPlace::Json(_) | KeyPlace::Form(_) => None,
                }),
        );
        let callers = policies()
            .flat_map(|policy| &policy.identity.from)
            .filter_map(|part| match part {
                CallerPart::Header(name) => Some(name),
                CallerPart::Authorization
                | CallerPart::Cookie(_)
                | CallerPart::Jwt(_)
                | CallerPart::SigV4
                | CallerPart::ClientCert
                | CallerPart::PeerIp => None,
            });
        let fingerprinted = policies().flat_map(|policy| &policy.fingerprint.headers);
        let acted_on = distinct(
            ALWAYS_ACTED_ON
                .iter()
                .chain(&key_headers)
                .chain(callers)
                .chain(fingerprinted),
        );
        let Lasting {
            hop,
            records,
            flights,
            executions,
            buffered,
            metrics,
            access,
            spans,
            clock,
        } = lasting;
        Ok(Self {
            router,
            key_headers,
            acted_on,
            hop,
            errors: config.defaults.errors.clone(),
            records,
            namespace: config.store.namespace.clone(),
            flights,
            executions,
            buffered,
            body_timeout: config.server.body_timeout,
            max_target_bytes: config.server.max_target_bytes,
            trusted: config.server.trusted_proxies.clone(),
            policy_page: PolicyPage::of(config)?,
            verifiers,
            metrics,
            access,
            spans,
            clock,
        })
    }
}

/// What a proxy has whatever its configuration; counts are those of its routes.
struct Lasting {
    hop: Hop,
    records: Arc<Records>,
    flights: Arc<Flights>,
    executions: Arc<Limit>,
    buffered: Arc<Limit>,
    metrics: Metrics,
    access: AccessLog,
    spans: Spans,
    clock: SystemClock,
}

/// This process as `Via` names it.
fn hop() -> anyhow::Result<Hop> {
    let mut tag = [0; 8];
    getrandom::fill(&mut tag).context("the system gives no random bytes")?;
    let tag = format!("idem-proxy-{:016x}", u64::from_be_bytes(tag));
    Hop::new(&tag).context("the tag in Via is no word")
}

/// Headers that are acted on whatever the configuration.
const ALWAYS_ACTED_ON: [HeaderName; 9] = [
    AUTHORIZATION,
    CONNECTION,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    MAX_FORWARDS,
    TRANSFER_ENCODING,
    VIA,
];

fn distinct<'a>(names: impl Iterator<Item = &'a HeaderName>) -> Vec<HeaderName> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(name) {
            distinct.push(name.clone());
        }
    }
    distinct
}
