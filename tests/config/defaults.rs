//! What stands where nothing is written, and the example file that writes it out.

use std::time::Duration;

use idem_proxy::{
    config::{HostHeader, Listen, StoreKind, Target},
    core::policy::{
        AfterExpiry, CallerPart, InFlight, KeySyntax, MissingCaller, ReplayHeaders, Scope,
        UnknownOutcome,
    },
};

use crate::common::{load, load_with};

#[test]
fn an_empty_file_is_the_contract() {
    let config = load("");
    let server = &config.server;
    assert_eq!(server.listen, [Listen::Tcp("127.0.0.1:8080".into())]);
    assert!(server.threads() >= 1);
    assert_eq!(server.drain_delay, Duration::ZERO);
    assert_eq!(server.drain_timeout, Duration::from_secs(25));
    assert_eq!(server.head_timeout, Duration::from_secs(10));
    assert_eq!(server.body_timeout, Duration::from_secs(30));
    assert_eq!(
        (server.max_head_bytes, server.max_target_bytes),
        (65_536, 16_384)
    );
    assert_eq!(
        (server.max_connections, server.max_executions),
        (10_000, 4096)
    );
    assert_eq!(server.max_buffered_bytes, 256 << 20);
    assert!(server.trusted_proxies.is_empty());
    assert_eq!(config.admin.listen, [Listen::Tcp("127.0.0.1:9090".into())]);
    let upstream = &config.upstreams[0];
    assert_eq!(
        upstream.target,
        Target::Tcp {
            host: "127.0.0.1".into(),
            port: 3000
        }
    );
    assert_eq!(upstream.response_timeout, Duration::from_secs(30));
    assert_eq!(upstream.capture_timeout, Duration::from_mins(10));
    assert_eq!(
        (upstream.max_idle_connections, upstream.host),
        (64, HostHeader::Preserve)
    );
    assert_eq!(
        (config.store.kind, config.store.namespace.as_str()),
        (StoreKind::Memory, "default")
    );
    assert_eq!(
        (
            config.store.memory.max_bytes,
            config.store.memory.max_records
        ),
        (256 << 20, None)
    );
    assert_eq!(config.store.memory.max_claims, 100_000);
    assert!(config.routes.is_empty());
    assert_eq!(server.policy_path, None);
    assert_eq!(&config.published.json()[..], br#"{"routes":[]}"#);
    let policy = &config.defaults;
    assert_eq!(policy.identity.from, [CallerPart::Authorization]);
    assert_eq!(policy.identity.missing, MissingCaller::Reject);
    assert_eq!(
        (policy.key_syntax, policy.key_max_length),
        (KeySyntax::Either, 255)
    );
    assert_eq!(
        (policy.scope, policy.in_flight),
        (Scope::Operation, InFlight::Wait)
    );
    assert_eq!(policy.terms.retention, Duration::from_hours(24));
    assert_eq!(policy.terms.lease, Duration::from_mins(1));
    assert_eq!(policy.terms.unknown, UnknownOutcome::HoldForever);
    assert_eq!(policy.retry_after, Duration::from_secs(2));
    assert_eq!(policy.replay_headers, ReplayHeaders::EndToEnd);
    let marker = &policy.marker;
    assert_eq!(
        marker.header.as_ref().expect("a marker"),
        "idempotency-key-reply"
    );
    assert_eq!(marker.miss.as_ref().expect("a value"), "miss");
    assert_eq!(policy.expiry_header, None);
    assert_eq!(
        (policy.max_request_body, policy.max_response_body),
        (1 << 20, 1 << 20)
    );
    assert_eq!(policy.stream_types, ["text/event-stream"]);
    assert_eq!(policy.terms.after_expiry, AfterExpiry::Execute);
    assert_eq!(policy.replay_auth, None);
    assert_eq!(policy.errors.type_base, "urn:idem-proxy:problem:");
    assert_eq!(policy.errors.link, None);
}

#[test]
fn the_example_is_the_defaults_and_names_every_setting() {
    let example = include_str!("../../config.example.toml");
    let route = "[[route]]\nname = \"submit-job\"\nmethods = [\"POST\"]\nkey = \"required\"\n\
                 path = \"/api/v2/compute/job/{resource_id}\"\n";
    let written = load_with(example, &[]).expect("the example is valid");
    let bare = load_with(route, &[]).expect("the route is valid");
    assert_eq!(written.printed.to_string(), bare.printed.to_string());

    let example: toml::Table = example.parse().expect("TOML");
    let printed: toml::Table = bare.printed.to_string().parse().expect("TOML");
    for (section, keys) in printed.iter().filter(|(name, _)| *name != "route") {
        assert_names(section, keys, &example[section]);
    }
}

fn assert_names(path: &str, wanted: &toml::Value, has: &toml::Value) {
    for (key, value) in wanted.as_table().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let found = has
            .get(key)
            .unwrap_or_else(|| panic!("{path} is not in the example"));
        assert_names(&path, value, found);
    }
}
