//! Wrong values and unknown names: place, key, value, what is allowed.

use std::path::Path;

use idem_proxy::config;

use crate::common::{ROUTE, assert_says, load, problems, problems_with};

/// Each row: a section, a key, a wrong value, a part of what is said about it.
fn assert_refused(rows: &[(&str, &str, &str, &str)]) {
    for (section, key, value, said_of_it) in rows {
        let said = problems(&format!("# first line\n[{section}]\n{key} = {value}\n"));
        let said = said.lines().next().expect("a problem");
        assert_says(said, &["proxy.toml:3: ", section, key, said_of_it]);
    }
}

#[test]
fn a_wrong_value_of_the_policy_is_named_with_its_place_and_what_is_allowed() {
    assert_refused(&[
        ("policy", "retention", "\"0s\"", "from 1ms to 3650d"),
        ("policy", "retention", "\"4000d\"", "from 1ms to 3650d"),
        ("policy", "lease", "\"-5s\"", "from 100ms to 3650d"),
        ("policy", "lease", "\"50ms\"", "from 100ms to 3650d"),
        ("policy", "wait_timeout", "\"soon\"", "\"250ms\""),
        ("policy", "wait_timeout", "30", "not a string"),
        ("policy", "key_max_length", "0", "from 1 to"),
        (
            "policy",
            "key_max_length",
            "99999999999999999999",
            "not a whole number",
        ),
        ("policy", "in_flight", "\"queue\"", "wait, conflict"),
        ("policy", "key_format", "\"(\"", "regular expression"),
        ("policy", "key_format", "\"a)|(b\"", "regular expression"),
        ("policy", "key_sources", "[]", "empty"),
        ("policy", "key_sources", "[\"header:\"]", "token"),
        (
            "policy",
            "key_sources",
            "[\"header:Authorization\"]",
            "the key alone",
        ),
        (
            "policy",
            "key_sources",
            "[\"header:Transfer-Encoding\"]",
            "",
        ),
        ("policy", "key_sources", "[\"query:\"]", "form:NAME"),
        ("policy", "key_sources", "[\"form:\"]", "missing"),
        ("policy", "key_sources", "[\"json:\"]", "json:/pointer"),
        ("policy", "key_sources", "[\"json:k\"]", "RFC 6901"),
        ("policy", "key_sources", "[\"json:/~2\"]", "RFC 6901"),
        ("policy", "key_sources", "[\"cookie:k\"]", "query:NAME"),
        (
            "policy",
            "key_sources",
            "[\"Idempotency-Key\"]",
            "header:NAME",
        ),
        ("policy", "store_responses", "[\"2xx\", \"6xx\"]", "!429"),
        (
            "policy",
            "replay_headers",
            "\"all\"",
            "end-to-end, none, or a list",
        ),
        (
            "policy",
            "replay_headers",
            "[\"Connection\"]",
            "end-to-end headers",
        ),
        ("policy", "marker_hit", "\"caf\\u00e9\"", "visible ASCII"),
        (
            "policy",
            "expiry_header",
            "\"Idempotency-Key-Reply\"",
            "marker_header",
        ),
        ("policy", "stream_types", "[\"text\"]", "media types"),
        ("policy", "docs_url", "\"docs\"", "http or https"),
        (
            "policy",
            "unknown_hold",
            "\"for ever\"",
            "did you mean forever?",
        ),
        (
            "policy",
            "key_required_if",
            "[{ header = \"a\" }]",
            "matches",
        ),
        (
            "policy",
            "key_required_if",
            "[{ header = \"a\", matches = \"(\" }]",
            "regular expression",
        ),
        (
            "policy",
            "key_required_if",
            "[{ header = \"a\", match = \"b\", matches = \"c\" }]",
            "did you mean matches?",
        ),
        (
            "policy.fingerprint",
            "headers",
            "[\"Authorization\"]",
            "identity.from",
        ),
        ("policy.fingerprint", "ignore", "[\"a\"]", "RFC 6901"),
        ("policy.fingerprint", "body", "\"xml\"", "multipart"),
    ]);
}

#[test]
fn any_other_wrong_value_is_too() {
    assert_refused(&[
        ("identity", "from", "[\"authorisation\"]", "authorization"),
        ("server", "max_head_bytes", "\"many\"", "\"64KiB\""),
        ("server", "max_head_bytes", "65536", "not a string"),
        ("server", "max_buffered_bytes", "\"0B\"", "\"64KiB\""),
        ("server", "max_connections", "-1", "from 1 to"),
        ("server", "listen", "[]", "empty"),
        ("server", "listen", "\"8080\"", "host:port"),
        ("server", "listen", "[\"127.0.0.1:1\", 2]", "not a string"),
        (
            "server",
            "listen",
            "[\"127.0.0.1:1\", \"127.0.0.1:1\"]",
            "127.0.0.1:1 stands twice",
        ),
        (
            "server",
            "trusted_proxies",
            "[\"10.0.0.0/99\"]",
            "10.0.0.0/8",
        ),
        ("upstream", "url", "\"ftp://x\"", "http://host:port"),
        ("upstream", "url", "1960-01-01", "not a string"),
        ("upstream", "capture_timeout", "\"5s\"", "response_timeout"),
        ("store", "kind", "\"nonsense\"", "none, memory"),
        ("store", "namespace", "\"\"", "255"),
        (
            "store.redis",
            "topology",
            "\"ring\"",
            "single, cluster, sentinel",
        ),
        ("store.redis", "timeout", "\"0s\"", "from 1ms"),
        ("store.disk", "max_bytes", "\"0B\"", "\"64KiB\""),
        ("telemetry", "access_log", "\"yes\"", "true or false"),
        (
            "telemetry",
            "otlp_endpoint",
            "\"c:4317\"",
            "http://host:port/path",
        ),
        (
            "telemetry",
            "otlp_endpoint",
            "\"grpc://c:4317\"",
            "http://host:port/path",
        ),
        ("telemetry", "otlp_sample_ratio", "1.5", "0.0 to 1.0"),
        ("telemetry", "otlp_sample_ratio", "-0.1", "0.0 to 1.0"),
        ("telemetry", "otlp_sample_ratio", "nan", "0.0 to 1.0"),
        (
            "telemetry",
            "otlp_sample_ratio",
            "\"half\"",
            "a number such as 1.0",
        ),
        ("telemetry", "log_level", "\"inof\"", "did you mean info?"),
        ("telemetry", "log_level", "\"info,=\"", "list"),
    ]);
}

#[test]
fn clients_and_operators_do_not_share_an_address() {
    let said = problems("[server]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:9090\"]\n");
    assert_says(
        &said,
        &["admin.listen: 127.0.0.1:9090 stands in server.listen too"],
    );
    load("[server]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n[admin]\nlisten = []\n");
}

#[test]
fn the_value_is_said_as_it_was_written() {
    for (line, path) in [
        ("in_flight = \"queue\"", "policy.in_flight = \"queue\": "),
        ("key_max_length = 0", "policy.key_max_length = 0: "),
        (
            "store_responses = [\"2xx\", \"6xx\"]",
            "policy.store_responses[1] = \"6xx\": ",
        ),
        ("lease = \"a\\u001bb\"", "policy.lease = \"a\\u001Bb\": "),
    ] {
        assert_says(&problems(&format!("[policy]\n{line}\n")), &[path]);
    }
    let long = "x".repeat(500);
    assert!(problems(&format!("[policy]\nlease = \"{long}\"\n")).len() < 400);
}

#[test]
fn unknown_names_come_with_the_nearest_known_one() {
    for (text, words) in [
        (
            "[policy]\ndialect = \"strype\"",
            ["strype", "did you mean stripe-v1?"],
        ),
        (
            "[policy]\nretenton = \"1h\"",
            ["policy.retenton", "did you mean retention?"],
        ),
        (
            "[server]\ndrain_timout = \"1s\"",
            ["server.drain_timout", "did you mean drain_timeout?"],
        ),
        (
            "[sever]\nworkers = 1",
            ["sever: unknown key", "did you mean server?"],
        ),
        (
            "[server]\nzzzzzzzzzzzz = 1",
            ["server.zzzzzzzzzzzz", "the keys here: listen, workers, "],
        ),
        (
            "[store.redis]\npasswd = \"hunter2\"",
            ["store.redis.passwd", "the keys here: url, "],
        ),
        (
            "[policy.fingerprint]\nqeury = \"off\"",
            ["policy.fingerprint.qeury", "did you mean query?"],
        ),
        (
            "[\"sr v\\u001b\"]",
            ["\"sr v\\u001B\": unknown key", "the keys here: server, "],
        ),
    ] {
        let said = problems(text);
        assert_says(&said, &words);
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn all_are_found_at_once_in_the_order_of_the_file() {
    let text = "[policy]\ndialect = \"strype\"\nretenton = \"1h\"\n[server]\ndrain_timout = \"1s\"\nhead_timeout = 5\n";
    let said = problems_with(
        text,
        &[
            ("IDEM_PROXY_ADMIN__LISTEN", "x"),
            ("IDEM_PROXY_ADMIN__LISTN", "x"),
        ],
    );
    let places: Vec<&str> = said
        .lines()
        .map(|line| line.split(": ").next().expect("a place"))
        .collect();
    assert_eq!(
        places,
        [
            "proxy.toml:2",
            "proxy.toml:3",
            "proxy.toml:5",
            "proxy.toml:6",
            "environment variable IDEM_PROXY_ADMIN__LISTEN",
            "environment variable IDEM_PROXY_ADMIN__LISTN",
        ],
        "{said}"
    );
}

#[test]
fn a_fault_of_the_policy_is_said_once_however_many_routes_there_are() {
    let routes = format!("{ROUTE}{}", ROUTE.replace("orders", "others"));
    let said = problems(&format!(
        "[policy]\nlease = \"1\"\nkey_sources = []\nretenton = 1\n{routes}"
    ));
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn a_file_that_is_no_toml_says_where_and_quotes_nothing() {
    let said = problems("[store.redis]\nurl = \"redis://u:hunter2@h\n\n[server\n");
    assert_says(&said, &["proxy.toml:2: ", "not valid TOML"]);
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let none = config::load(Path::new("/no/such/file.toml"), []).expect_err("no file");
    assert_says(
        &none.to_string(),
        &["/no/such/file.toml: ", "cannot be read"],
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.toml");
    std::fs::write(&path, b"\xff").expect("written");
    let odd = config::load(&path, []).expect_err("no UTF-8");
    assert_says(&odd.to_string(), &["p.toml: ", "UTF-8"]);
}

#[test]
fn a_value_of_the_wrong_type_is_told_the_form_too() {
    assert_refused(&[
        (
            "policy",
            "wait_timeout",
            "30",
            "not a string; allowed: a duration such as \"250ms\", \"30s\"",
        ),
        ("policy", "unknown_hold", "30", "\"forever\", or a duration"),
        (
            "policy",
            "unknown_hold",
            "\"soon\"",
            "\"forever\", or a dur",
        ),
        (
            "policy",
            "max_request_body",
            "1024",
            "a size such as \"512B\"",
        ),
        ("store.disk", "max_bytes", "1024", "from \"1MiB\" on"),
        (
            "server",
            "workers",
            "\"two\"",
            "not a whole number; allowed: a whole number from 0 to 1024",
        ),
        (
            "telemetry",
            "otlp_endpoint",
            "\"c:4317\"",
            "allowed: \"\", ",
        ),
    ]);
}
