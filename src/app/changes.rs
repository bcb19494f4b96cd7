//! What a new configuration changes: what only a restart can, and what makes older records fit no more.

use crate::{
    config::{Config, Otlp, Route, Telemetry},
    core::policy::Policy,
};

/// The keys whose change needs a restart, those of them that differ.
pub(super) fn need_a_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let [server, other_server] = [&old.server, &new.server];
    let [store, other_store] = [&old.store, &new.store];
    let [memory, other_memory] = [&store.memory, &other_store.memory];
    let [telemetry, other_telemetry] = [&old.telemetry, &new.telemetry];
    [
        ("server.listen", server.listen == other_server.listen),
        ("server.workers", server.workers == other_server.workers),
        ("admin.listen", old.admin.listen == new.admin.listen),
        ("store.kind", store.kind == other_store.kind),
        ("store.namespace", store.namespace == other_store.namespace),
        (
            "store.memory.max_bytes",
            memory.max_bytes == other_memory.max_bytes,
        ),
        (
            "store.memory.max_records",
            memory.max_records == other_memory.max_records,
        ),
        (
            "store.memory.max_claims",
            memory.max_claims == other_memory.max_claims,
        ),
        (
            "store.memory.on_full",
            memory.on_full == other_memory.on_full,
        ),
        ("store.disk.path", store.disk.path == other_store.disk.path),
        (
            "store.disk.max_bytes",
            store.disk.max_bytes == other_store.disk.max_bytes,
        ),
        // As a whole: its URL is a secret, and whatever comes to it is compared too.
        ("store.redis", store.redis == other_store.redis),
        ("store.encryption_key_file", store.seal == other_store.seal),
        (
            "telemetry.log_format",
            telemetry.log_format == other_telemetry.log_format,
        ),
        (
            "telemetry.log_level",
            telemetry.log_level == other_telemetry.log_level,
        ),
        (
            "telemetry.access_log",
            telemetry.access_log == other_telemetry.access_log,
        ),
        (
            "telemetry.otlp_endpoint",
            endpoint(telemetry) == endpoint(other_telemetry),
        ),
        (
            "telemetry.otlp_sample_ratio",
            same_ratio(telemetry, other_telemetry),
        ),
    ]
    .into_iter()
    .filter_map(|(key, same)| (!same).then_some(key))
    .collect()
}

/// Where traces go, whichever part of them.
fn endpoint(telemetry: &Telemetry) -> Option<Otlp> {
    let otlp = telemetry.otlp.clone()?;
    Some(Otlp {
        sample_ratio: 1.0,
        ..otlp
    })
}

/// Whether the same part of the traces goes there; where none do, no part counts.
fn same_ratio(old: &Telemetry, new: &Telemetry) -> bool {
    let ratios = old.otlp.as_ref().zip(new.otlp.as_ref());
    ratios.is_none_or(|(old, new)| old.sample_ratio.to_bits() == new.sample_ratio.to_bits())
}

/// The routes, by name, whose older records may no longer be found by their retries, or be taken for others'.
pub(super) fn forgetful<'a>(old: &Config, new: &'a Config) -> Vec<&'a str> {
    let identity = |config: &Config, policy: &Policy| {
        let identity = &policy.identity;
        let verifier = identity.jwt.and_then(|index| config.verifiers.get(index));
        (
            identity.from.clone(),
            identity.missing,
            verifier.map(|settings| settings.expected.clone()),
        )
    };
    let differs = |route: &&Route| {
        let before = old.routes.iter().find(|other| other.name == route.name);
        before.is_some_and(|before| {
            let (then, now) = (&*before.policy, &*route.policy);
            identity(old, then) != identity(new, now)
                || then.scope != now.scope
                || then.fingerprint != now.fingerprint
        })
    };
    let routes = new.routes.iter().filter(differs);
    routes.map(|route| route.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn read(text: &str) -> Config {
        config::parse("test", text, []).loaded().unwrap().config
    }

    #[test]
    fn every_key_that_needs_a_restart_is_named() {
        let old = read("");
        for (text, key) in [
            ("server.listen = '127.0.0.1:1'", "server.listen"),
            ("server.workers = 3", "server.workers"),
            ("admin.listen = []", "admin.listen"),
            ("store.kind = 'none'", "store.kind"),
            ("store.namespace = 'other'", "store.namespace"),
            ("store.memory.max_bytes = '1MiB'", "store.memory.max_bytes"),
            ("store.memory.max_records = 7", "store.memory.max_records"),
            ("store.memory.max_claims = 7", "store.memory.max_claims"),
            ("store.memory.on_full = 'reject'", "store.memory.on_full"),
            ("store.disk.path = '/other'", "store.disk.path"),
            ("store.disk.max_bytes = '7GiB'", "store.disk.max_bytes"),
            ("store.redis.timeout = '7s'", "store.redis"),
            ("telemetry.log_format = 'text'", "telemetry.log_format"),
            ("telemetry.log_level = 'warn'", "telemetry.log_level"),
            ("telemetry.access_log = false", "telemetry.access_log"),
            (
                "telemetry.otlp_endpoint = 'http://c:4317'",
                "telemetry.otlp_endpoint",
            ),
        ] {
            assert_eq!(need_a_restart(&old, &read(text)), [key]);
        }
        let both = read("store.kind = 'none'\nserver.workers = 3");
        assert_eq!(
            need_a_restart(&old, &both),
            ["server.workers", "store.kind"]
        );
        let others = "server.max_connections = 7\nserver.drain_timeout = '1s'\nserver.trusted_proxies = ['::1']\n\
            upstream.url = 'http://other'\npolicy.key = 'off'\nidentity.from = []";
        assert_eq!(need_a_restart(&old, &read(others)), Vec::<&str>::new());
    }

    #[test]
    fn routes_whose_records_may_not_fit_are_named() {
        const ROUTES: &str = "[[route]]\nname = 'a'\nmethods = ['POST']\npath = '/a'\n\
            [[route]]\nname = 'b'\nmethods = ['POST']\npath = '/b'\n";
        let old = read(ROUTES);
        for (addition, named) in [
            ("", &[][..]),
            ("scope = 'caller'", &["b"]),
            ("fingerprint.query = 'off'", &["b"]),
            ("identity.from = ['header:X-Account']", &["b"]),
            ("identity.missing = 'anonymous'", &["b"]),
            ("retention = '1h'", &[]),
            (
                "[[route]]\nname = 'c'\nmethods = ['POST']\npath = '/c'\nscope = 'caller'",
                &[],
            ),
        ] {
            let new = read(&format!("{ROUTES}{addition}"));
            assert_eq!(forgetful(&old, &new), named, "{addition}");
        }
    }
}
