//! What a configuration makes of a proxy.

use std::sync::Arc;

use anyhow::Context as _;
use http::{
    HeaderName, HeaderValue,
    header::{AUTHORIZATION, CONNECTION, COOKIE, EXPECT, FORWARDED, HOST, TRANSFER_ENCODING},
};

use super::{PolicyPage, Proxy, Records};
use crate::{
    config::{Config, StoreKind},
    core::policy::{CallerPart, KeyPlace},
    flight::Flights,
    identity::{self, Verifier},
    limit::Limit,
    route::Router,
    store::{Stores, clock::SystemClock, disk::DiskStore, memory::MemoryStore},
    telemetry::{access::AccessLog, metrics::Metrics},
    tls,
};

impl Proxy {
    /// The proxy that `config` describes, with an empty store, or what the disk has.
    ///
    /// # Errors
    /// The disk store cannot be opened, the system gives no random bytes, the published policy is no answer, or keys are to come by `https` and there are no
    /// roots.
    pub fn new(config: &Config, metrics: &Metrics, access: AccessLog) -> anyhow::Result<Self> {
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
        let tls = tls::Client::default();
        let verifier = |settings: &identity::Settings| {
            let made = Verifier::new(settings.clone(), &tls).map(Arc::new);
            made.with_context(|| format!("no keys of tokens from {}", settings.source))
        };
        let verifiers = config.verifiers.iter().map(verifier);
        let verifiers = verifiers.collect::<anyhow::Result<_>>()?;
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
        };
        Ok(Self {
            router,
            key_headers,
            acted_on,
            hop: hop()?,
            errors: config.defaults.errors.clone(),
            records: Records::new(store, metrics),
            namespace: config.store.namespace.clone(),
            flights: Flights::new(),
            executions: Limit::new(config.server.max_executions),
            buffered: Limit::new(config.server.max_buffered_bytes),
            body_timeout: config.server.body_timeout,
            max_target_bytes: config.server.max_target_bytes,
            trusted: config.server.trusted_proxies.clone(),
            policy_page: PolicyPage::of(config)?,
            verifiers,
            metrics: metrics.clone(),
            access,
            clock,
        })
    }
}

/// This process as `Via` names it.
fn hop() -> anyhow::Result<HeaderValue> {
    let mut tag = [0; 8];
    getrandom::fill(&mut tag).context("the system gives no random bytes")?;
    Ok(HeaderValue::try_from(format!(
        "1.1 idem-proxy-{:016x}",
        u64::from_be_bytes(tag)
    ))?)
}

/// Headers that are acted on whatever the configuration.
const ALWAYS_ACTED_ON: [HeaderName; 7] = [
    AUTHORIZATION,
    CONNECTION,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    TRANSFER_ENCODING,
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
