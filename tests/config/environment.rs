//! The environment over the file.

use std::time::Duration;

use idem_proxy::{
    config::Listen,
    core::policy::{BodyMode, QueryMode},
};

use crate::common::{ROUTE, assert_says, load_with, problems_with};

#[test]
fn it_wins_over_the_file() {
    let text = "[upstream]\nurl = \"http://a:1\"\n[policy]\nretention = \"1h\"\n";
    let variables = [
        ("IDEM_PROXY_UPSTREAM__URL", "http://b:2"),
        ("IDEM_PROXY_POLICY__FINGERPRINT__QUERY", "off"),
        ("IDEM_PROXY_SERVER__MAX_CONNECTIONS", "7"),
        (
            "IDEM_PROXY_SERVER__LISTEN",
            "[\"127.0.0.1:1\", \"[::1]:1\"]",
        ),
        ("IDEM_PROXY_ADMIN__LISTEN", "[::1]:9090"),
        ("IDEM_PROXY_TELEMETRY__ACCESS_LOG", "false"),
        ("IDEM_PROXY_IDENTITY__FROM", "[]"),
    ];
    let config = load_with(text, &variables).expect("valid").config;
    assert_eq!(config.upstreams[0].authority, "b:2");
    assert_eq!(config.defaults.terms.retention, Duration::from_hours(1));
    assert_eq!(config.defaults.fingerprint.query, QueryMode::Off);
    assert_eq!(config.server.max_connections, 7);
    assert_eq!(config.server.listen.len(), 2);
    assert_eq!(config.admin.listen, [Listen::Tcp("[::1]:9090".into())]);
    assert!(!config.telemetry.access_log);
    assert!(config.defaults.identity.from.is_empty());
}

#[test]
fn what_kubernetes_injects_is_no_setting() {
    let variables = [
        ("IDEM_PROXY_PORT", "tcp://10.0.0.1:8080"),
        ("IDEM_PROXY_SERVICE_HOST", "10.0.0.1"),
        ("IDEM_PROXY_PORT_8080_TCP_PROTO", "tcp"),
        ("IDEM_PROXYX__A", "x"),
        ("PATH", "/bin"),
    ];
    let loaded = load_with(ROUTE, &variables).expect("none is a setting");
    let alone = load_with(ROUTE, &[]).expect("valid");
    assert_eq!(loaded.printed, alone.printed);
}

#[test]
fn an_unknown_name_is_an_error_that_names_the_variable() {
    for (name, value, words) in [
        (
            "IDEM_PROXY_UPSTREAM__ULR",
            "x",
            ["IDEM_PROXY_UPSTREAM__ULR", "did you mean url?"],
        ),
        (
            "IDEM_PROXY_NO__SUCH",
            "x",
            ["IDEM_PROXY_NO__SUCH", "no: unknown key"],
        ),
        (
            "IDEM_PROXY_ROUTE__NAME",
            "x",
            ["IDEM_PROXY_ROUTE__NAME", "from the file only"],
        ),
        (
            "IDEM_PROXY_SERVER__",
            "x",
            ["IDEM_PROXY_SERVER__", "names no setting"],
        ),
        (
            "IDEM_PROXY___URL",
            "x",
            ["IDEM_PROXY___URL", "names no setting"],
        ),
        (
            "IDEM_PROXY_SERVER__WORKERS__X",
            "x",
            ["server.workers.x", "no table"],
        ),
        (
            "IDEM_PROXY_SERVER__WORKERS",
            "two",
            ["= \"two\"", "not a whole number"],
        ),
        (
            "IDEM_PROXY_STORE__NAMESPACE",
            "a\u{fffd}",
            ["store.namespace", "UTF-8"],
        ),
    ] {
        let said = problems_with("[server]\nworkers = 1\n", &[(name, value)]);
        assert_says(&said, &words);
    }
}

#[test]
fn a_string_of_digits_stays_a_string() {
    let variables = [
        ("IDEM_PROXY_STORE__NAMESPACE", "0123456"),
        ("IDEM_PROXY_POLICY__MARKER_HIT", "true"),
    ];
    let config = load_with("", &variables).expect("valid").config;
    assert_eq!(config.store.namespace, "0123456");
    assert_eq!(
        config.defaults.marker.hit.as_ref().expect("a value"),
        "true"
    );
    let said = problems_with("", &[("IDEM_PROXY_STORE__REDIS__URL", "123456")]);
    assert_says(&said, &["IDEM_PROXY_STORE__REDIS__URL", "redis://"]);
    assert!(!said.contains("123456"), "{said}");
}

#[test]
fn named_upstreams_are_found_whatever_their_spelling() {
    let text = "[upstreams.Card-Billing]\nurl = \"http://a:1\"\n";
    let variables = [("IDEM_PROXY_UPSTREAMS__CARD_BILLING__URL", "http://b:2")];
    let config = load_with(text, &variables).expect("valid").config;
    assert_eq!(config.upstreams.len(), 2);
    assert_eq!(config.upstreams[1].name, "Card-Billing");
    assert_eq!(config.upstreams[1].authority, "b:2");
}

#[test]
fn a_table_is_laid_over_key_by_key() {
    let text = "[policy.fingerprint]\nquery = \"off\"\nbody = \"raw\"\n";
    let variables = [
        (
            "IDEM_PROXY_POLICY__FINGERPRINT",
            "{ query = \"sorted\", method = false }",
        ),
        ("IDEM_PROXY_POLICY__FINGERPRINT__METHOD", "true"),
    ];
    let rule = load_with(text, &variables)
        .expect("valid")
        .config
        .defaults
        .fingerprint
        .clone();
    assert_eq!((rule.query, rule.method), (QueryMode::Sorted, true));
    assert_eq!(rule.body, BodyMode::Raw);
}
