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
    identity::{self, Verifier},
    limit::Limit,
    route::Router,
    store::{Stores, clock::SystemClock, memory::MemoryStore},
    telemetry::{access::AccessLog, metrics::Metrics},
    tls,
};

impl Proxy {
    /// The proxy that `config` describes, with an empty store.
    ///
    /// # Errors
    /// The system gives no random bytes, the published policy is no answer, or keys are to come by `https` and there are no
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
