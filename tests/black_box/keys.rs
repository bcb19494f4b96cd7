//! Which requests carry a key, what a key may look like, and that no spelling gets past the rule.

use crate::common::{Proxy, Request, Upstream, executed, key, marker, problem, replayed, sleep_ms};

/// A route like the default one, with more policy.
fn route(more: &str) -> String {
    format!("[[route]]\nname = 'orders'\nmethods = ['POST', 'PATCH']\npath = '/orders'\n{more}\n")
}

fn unkeyed() -> Request {
    Request::write("POST", "/orders")
}

/// Every value is refused as a key, and nothing of it reaches the upstream.
#[track_caller]
fn refused(settings: &str, values: &[&str]) {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, settings);
    for value in values {
        let answer = proxy.send(&unkeyed().key(value));
        assert_eq!(answer.status, 400, "{value:?} is taken for a key: {answer}");
        problem(&answer, "key-invalid");
    }
    assert_eq!(upstream.executions(), 0);
}

/// Every value is a key of its own.
#[track_caller]
fn taken(settings: &str, values: &[&str]) {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, settings);
    for value in values {
        let request = unkeyed().key(value);
        let first = executed(proxy.send(&request));
        replayed(&proxy.send(&request), &first);
        assert_eq!(
            upstream.last().all("Idempotency-Key"),
            [*value],
            "the key is passed on as it came"
        );
    }
    assert_eq!(upstream.executions(), values.len());
}

#[test]
fn without_a_key_every_request_runs_and_nothing_is_marked() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for execution in 1..=3 {
        let answer = proxy.send(&unkeyed());
        assert_eq!((answer.execution(), marker(&answer)), (execution, None));
        assert!(
            upstream.last().all("Idempotency-Key").is_empty(),
            "the proxy made up a key"
        );
    }
}

#[test]
fn a_required_key_that_is_missing_is_asked_for_with_the_documentation() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.key = 'required'");
    problem(&proxy.send(&unkeyed()), "key-missing");
    let docs = Proxy::with(
        &upstream,
        "policy.key = 'required'\npolicy.docs_url = 'https://docs.test/keys'",
    );
    let answer = docs.send(&unkeyed());
    assert_eq!(answer.json()["type"], "https://docs.test/keys#key-missing");
    assert_eq!(
        answer.one("Link"),
        Some("<https://docs.test/keys>; rel=\"describedby\"")
    );
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn an_error_to_head_has_no_body() {
    let upstream = Upstream::start();
    let settings = "[[route]]\nname = 'h'\nmethods = ['HEAD']\npath = '/orders'\nkey = 'required'";
    let proxy = Proxy::with(&upstream, settings);
    let mut client = proxy.client();
    let answer = client.ask(&Request::new("HEAD", "/orders")).answer();
    assert_eq!((answer.status, answer.body.len()), (400, 0), "{answer}");
    // What followed would be read as the next answer.
    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
}

#[test]
fn a_bare_key_is_visible_ascii_without_comma_and_space() {
    taken(
        "",
        &[
            "a",
            "!#$%&'*+-./:;<=>?@[]^_`{|}~",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            &"k".repeat(255),
        ],
    );
    refused("", &["a b", "a,b", "a\tb", "caf\u{e9}", &"k".repeat(256)]);
}

#[test]
fn a_control_byte_in_a_key_is_refused_wherever_it_is_noticed() {
    let upstream = Upstream::start();
    for settings in ["", "policy.key_syntax = 'raw'"] {
        let proxy = Proxy::with(&upstream, settings);
        for value in ["k\u{7f}", "k\u{1}k", "\"k\u{8}\""] {
            let answer = proxy.send(&unkeyed().key(value));
            assert_eq!(answer.status, 400, "{value:?}: {answer}");
        }
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn a_quoted_key_is_one_structured_string() {
    taken(
        "",
        &[
            r#""a b""#,
            r#""with, comma""#,
            r#""a \" and a \\""#,
            &format!("\"{}\"", "q".repeat(255)),
        ],
    );
    refused(
        "",
        &[
            r#"""#,
            r#""a"#,
            r#""a"b"#,
            r#""a", "b""#,
            r#""a\n""#,
            &format!("\"{}\"", "q".repeat(256)),
        ],
    );
}

#[test]
fn an_empty_key_is_no_key_and_refused() {
    refused("", &["", "\"\""]);
}

#[test]
fn an_empty_key_may_count_as_none() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.empty_key = 'bypass'");
    for execution in 1..=2 {
        let answer = proxy.send(&unkeyed().key(""));
        assert_eq!(answer.execution(), execution);
        assert!(!matches!(marker(&answer), Some("miss" | "hit")), "{answer}");
    }
}

#[test]
fn the_quoted_and_the_bare_spelling_are_one_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let name = key();
    let first = executed(proxy.send(&unkeyed().key(&format!("\"{name}\""))));
    replayed(&proxy.send(&unkeyed().key(&name)), &first);
    replayed(
        &proxy.send(&unkeyed().key(&format!("\"{name}\";version=2"))),
        &first,
    );
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn two_key_lines_are_refused_whether_equal_or_not() {
    let upstream = Upstream::start();
    for settings in [
        "",
        "policy.key_syntax = 'raw'",
        "policy.key_syntax = 'structured'",
    ] {
        let proxy = Proxy::with(&upstream, settings);
        let one = format!("\"{}\"", key());
        problem(&proxy.send(&unkeyed().key(&one).key(&one)), "key-invalid");
        problem(
            &proxy.send(&unkeyed().key(&one).key("\"other\"")),
            "key-invalid",
        );
        assert_eq!(upstream.executions(), 0);
    }
}

#[test]
fn structured_takes_strings_alone() {
    let settings = "policy.key_syntax = 'structured'";
    taken(
        settings,
        &["\"clkyoesmbgybucifusbbtdsbohtyuuwz\"", "\"a\";p=1"],
    );
    refused(
        settings,
        &[
            "clkyo",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "123",
            "?1",
            ":YWJj:",
            "@1659578233",
            "(\"a\")",
        ],
    );
}

#[test]
fn raw_takes_every_value_byte_for_byte() {
    taken(
        "policy.key_syntax = 'raw'",
        &["a, b c", "\"a\"", "a", "\"a"],
    );
    refused("policy.key_syntax = 'raw'", &["", &"r".repeat(256)]);
}

#[test]
fn a_format_is_asked_of_the_whole_content() {
    let settings = "policy.key_format = 'uuid'";
    let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    taken(settings, &[uuid]);
    refused(
        settings,
        &[
            &format!("{uuid}0"),
            &format!("{{{uuid}}}"),
            &uuid.replace('-', ""),
            "x",
        ],
    );
    taken("policy.key_format = 'a|bc'", &["a", "bc"]);
    refused("policy.key_format = 'a|bc'", &["ac", "abc", "xa"]);
}

#[test]
fn the_letter_case_of_a_uuid_does_not_count() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.key_format = 'uuid'");
    let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    let first = executed(proxy.send(&unkeyed().key(uuid)));
    replayed(&proxy.send(&unkeyed().key(&uuid.to_uppercase())), &first);
    replayed(&proxy.send(&unkeyed().key(&format!("\"{uuid}\""))), &first);
}

#[test]
fn a_shorter_limit_counts_the_content_alone() {
    taken(
        "policy.key_max_length = 4",
        &["abcd", "\"efgh\"", "\"a\\\\bc\""],
    );
    refused("policy.key_max_length = 4", &["abcde", "\"abcde\""]);
}

#[test]
fn some_requests_may_need_a_key() {
    let upstream = Upstream::start();
    let settings =
        "policy.key_required_if = [{ header = 'authorization', matches = '^Bearer sk_' }]";
    let proxy = Proxy::with(&upstream, settings);
    problem(
        &proxy.send(&unkeyed().caller("Bearer sk_live")),
        "key-missing",
    );
    assert_eq!(proxy.send(&unkeyed().caller("Bearer pk_live")).status, 201);
    executed(proxy.send(&unkeyed().caller("Bearer sk_live").key(&key())));
}

#[test]
fn the_sources_of_a_key_are_tried_in_order() {
    let upstream = Upstream::start();
    let settings = "policy.key_sources = ['header:X-Request-Token', 'header:Idempotency-Key']";
    let proxy = Proxy::with(&upstream, settings);
    let (a, b) = (key(), key());
    let first = executed(proxy.send(&unkeyed().header("X-Request-Token", &a)));
    let both = unkeyed().header("X-Request-Token", &a).key(&a);
    replayed(&proxy.send(&both), &first);
    replayed(&proxy.send(&unkeyed().key(&a)), &first);
    assert_eq!(executed(proxy.send(&unkeyed().key(&b))).execution(), 2);
}

#[test]
fn a_headers_letter_case_does_not_count_and_an_underscore_is_another_header() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let name = key();
    let first = executed(proxy.send(&unkeyed().header("idempotency-key", &name)));
    replayed(
        &proxy.send(&unkeyed().header("IDEMPOTENCY-KEY", &name)),
        &first,
    );
    let twin = unkeyed().header("Idempotency_Key", "twin");
    assert_eq!(marker(&proxy.send(&twin)), None);
    executed(proxy.send(&twin.key(&key())));
    let strict = Proxy::with(&upstream, "policy.key = 'required'");
    problem(
        &strict.send(&unkeyed().header("Idempotency_Key", "twin")),
        "key-missing",
    );
    for seen in upstream.seen() {
        assert!(
            seen.all("Idempotency_Key").is_empty(),
            "an upstream may read it as the key: {seen}"
        );
    }
}

#[test]
fn only_the_methods_of_a_route_are_keyed() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, &route("key = 'required'"));
    let name = key();
    executed(proxy.send(&unkeyed().key(&name)));
    for method in ["GET", "HEAD", "PUT", "OPTIONS"] {
        for _ in 0..2 {
            let answer = proxy.send(&Request::new(method, "/orders").key(&name));
            assert_eq!(
                (answer.status, marker(&answer)),
                (200, None),
                "{method}: {answer}"
            );
        }
    }
    let preflight = Request::new("OPTIONS", "/orders").header("Origin", "https://a.test");
    assert_eq!(proxy.send(&preflight).status, 200);
    assert_eq!(upstream.executions(), 10);
}

#[test]
fn every_write_method_is_covered_where_a_route_lists_it() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = Request::write(method, "/orders/7").key(&key());
        let request = if method == "DELETE" {
            request.without_body()
        } else {
            request
        };
        let first = executed(proxy.send(&request));
        replayed(&proxy.send(&request), &first);
    }
    assert_eq!(upstream.executions(), 4);
}

#[test]
fn a_route_that_is_off_and_a_path_without_route_pass_keys_through() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, &route("key = 'off'"));
    let name = key();
    for path in ["/orders", "/elsewhere"] {
        for _ in 0..2 {
            let answer = proxy.send(&Request::write("POST", path).key(&name));
            assert_eq!((answer.status, marker(&answer)), (201, None));
            assert_eq!(upstream.last().one("Idempotency-Key"), Some(name.as_str()));
        }
    }
    assert_eq!(upstream.executions(), 4);
}

#[test]
fn without_a_store_a_keyed_request_is_refused_and_others_pass() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "store.kind = 'none'");
    problem(&proxy.send(&Request::order(&key())), "no-store");
    assert_eq!(upstream.executions(), 0);
    assert_eq!(proxy.send(&unkeyed()).status, 201);
}

#[test]
fn no_spelling_of_a_path_gets_past_its_route() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.key = 'required'");
    for path in [
        "/orders/",
        "//orders",
        "/%6Frders",
        "/%6frders",
        "/x/../orders",
        "/./orders",
        "/orders/.",
        "/orders//",
        "/x/%2e%2E/orders",
        "/orders?",
        "/orders?a=b",
        "/orders/7/",
        "/orders//7",
        "/orders/7/../8",
        "/../orders",
    ] {
        problem(&proxy.send(&Request::write("POST", path)), "key-missing");
    }
    for method in ["post", "Post", "pOST"] {
        assert_eq!(
            proxy.send(&Request::write(method, "/orders")).status,
            400,
            "{method}"
        );
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn spellings_of_one_path_are_one_operation_and_the_upstream_gets_what_was_sent() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let name = key();
    let first = executed(proxy.send(&Request::write("POST", "/%6Frders?x=%7E").key(&name)));
    assert_eq!(upstream.only().target, "/%6Frders?x=%7E");
    replayed(
        &proxy.send(&Request::write("POST", "//orders/?x=%7E").key(&name)),
        &first,
    );
}

#[test]
fn fixed_segments_win_over_names_and_names_over_the_rest() {
    let upstream = Upstream::start();
    let route = |name: &str, path: &str| {
        format!(
            "[[route]]\nname = '{name}'\nmethods = ['POST']\npath = '{path}'\nmarker_miss = '{name}'\n"
        )
    };
    let routes = [
        route("rest", "/a/{*rest}"),
        route("named", "/a/{id}/c"),
        route("fixed", "/a/b/c"),
    ]
    .concat();
    let proxy = Proxy::with(&upstream, &routes);
    for (path, name) in [
        ("/a/b/c", "fixed"),
        ("/a/x/c", "named"),
        ("/a/x/y", "rest"),
        ("/a/b/c/d", "rest"),
    ] {
        let answer = proxy.send(&Request::write("POST", path).key(&key()));
        assert_eq!(marker(&answer), Some(name), "{path}");
    }
}

#[test]
fn a_refused_request_leaves_nothing_that_blocks_its_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.max_request_body = '1KiB'\npolicy.in_flight = 'conflict'",
    );
    let name = key();
    problem(
        &proxy.send(&Request::order(&name).body("x".repeat(2000))),
        "body-too-large",
    );
    problem(
        &proxy.send(&Request::order(&name).without("Authorization")),
        "caller-missing",
    );
    problem(
        &proxy.send(&Request::order(&name).key("second")),
        "key-invalid",
    );
    sleep_ms(20);
    assert_eq!(executed(proxy.send(&Request::order(&name))).execution(), 1);
}
