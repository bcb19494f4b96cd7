//! Reloading: a new configuration takes effect whole or not at all, and nobody is interrupted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use crate::common::{
    Proxy, Request, Step, Upstream, eventually, executed, key, marker, problem, replayed, reply,
    signer::{Signer, jwks},
};

const RELOADS: &str = "idem_proxy_config_reloads_total";

fn route(name: &str, path: &str) -> String {
    format!("[[route]]\nname = '{name}'\nmethods = ['POST']\npath = '{path}'\n")
}

#[test]
fn a_request_that_runs_keeps_its_policy() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&request);
    gate.arrived();
    proxy.reload("policy.key = 'required'\npolicy.marker_header = 'X-Said'");
    problem(
        &proxy.send(&Request::write("POST", "/orders")),
        "key-missing",
    );
    gate.open();
    let first = executed(running.answer());
    assert_eq!(first.one("X-Said"), None);
    let again = proxy.send(&request);
    assert_eq!(again.one("X-Said"), Some("hit"), "{again}");
    assert_eq!(again.body, first.body);
    let next = running.ask(&Request::order(&key())).answer();
    assert_eq!(next.one("X-Said"), Some("miss"), "the connection goes on");
    assert_eq!(marker(&next), None);
}

#[test]
fn requests_go_to_the_new_upstream_and_finish_on_the_old_one() {
    let [old, new] = [Upstream::start(), Upstream::start()];
    let proxy = Proxy::start(&old);
    let gate = old.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    assert_eq!(proxy.send(&Request::get("/free")).status, 200);
    let settings = format!("upstream.url = 'http://{}'", new.address());
    proxy.reload(&settings);
    executed(proxy.send(&Request::order(&key())));
    assert_eq!(proxy.send(&Request::get("/free")).status, 200);
    assert_eq!((old.executions(), new.executions()), (2, 2));
    gate.open();
    executed(running.answer());
    assert_eq!((old.executions(), new.executions(), old.lost()), (2, 2, 0));
    // Nothing uses the old upstream's connections any more, so that they go.
    new.close_idle();
    proxy.await_metric("idem_proxy_connections", &[("side", "upstream")], 0.0);
}

#[test]
fn connections_to_an_upstream_that_stays_are_kept() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    for settings in ["policy.retention = '1h'", "server.drain_timeout = '3s'"] {
        proxy.reload(settings);
        assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    }
    assert_eq!(upstream.connections(), 1);
    proxy.reload("upstream.response_timeout = '7s'");
    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    assert_eq!(upstream.connections(), 2, "what it is to do has changed");
}

#[test]
fn a_new_route_gets_its_series_and_an_old_one_keeps_its_values() {
    let upstream = Upstream::start();
    let [a, b, c] = [("a", "/a"), ("b", "/b"), ("c", "/c")].map(|(name, path)| route(name, path));
    let proxy = Proxy::with(&upstream, &format!("{a}{b}"));
    let requests = "idem_proxy_requests_total";
    let send = |path: &str| executed(proxy.send(&Request::write("POST", path).key(&key())));
    send("/a");
    send("/b");
    // The index of `b` is another one now.
    proxy.reload(&format!("{b}{c}"));
    send("/b");
    send("/c");
    assert_eq!(
        proxy.send(&Request::write("POST", "/a").key(&key())).status,
        201
    );
    for (name, outcome, count) in [
        ("a", "miss", 1.0),
        ("b", "miss", 2.0),
        ("c", "miss", 1.0),
        ("", "passthrough_keyed", 1.0),
    ] {
        let labels = [("route", name), ("outcome", outcome)];
        proxy.await_metric(requests, &labels, count);
    }
    proxy.reload(&format!("{a}{b}{c}"));
    send("/a");
    proxy.await_metric(requests, &[("route", "a"), ("outcome", "miss")], 2.0);
    eventually("the access lines name the routes", || {
        let log = proxy.log();
        let lines = |name: &str| log.matches(&format!("\"route\":\"{name}\"")).count();
        [lines("a"), lines("b"), lines("c")] == [2, 2, 1]
    });
}

#[test]
fn a_file_with_problems_changes_nothing_and_each_is_named() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    let wrong = "policy.key = 'required'\npolicy.retenton = '1h'\nserver.drain_timeout = 'soon'";
    proxy.put_config(&proxy.configuration(wrong));
    proxy.signal("HUP");
    proxy.await_metric(RELOADS, &[("result", "refused")], 1.0);
    eventually("the log names each problem", || {
        let log = proxy.log();
        log.contains("retenton") && log.contains("server.drain_timeout")
    });
    let unkeyed = Request::write("POST", "/orders");
    assert_eq!(client.ask(&unkeyed).answer().status, 201);
    proxy.put_config("[server\n");
    proxy.signal("HUP");
    proxy.await_metric(RELOADS, &[("result", "refused")], 2.0);
    std::fs::remove_file(proxy.config()).expect("it was there");
    proxy.signal("HUP");
    proxy.await_metric(RELOADS, &[("result", "refused")], 3.0);
    assert_eq!(client.ask(&unkeyed).answer().status, 201);
    proxy.put_config(&proxy.configuration("policy.key = 'required'"));
    proxy.signal("HUP");
    proxy.await_metric(RELOADS, &[("result", "applied")], 1.0);
    problem(&client.ask(&unkeyed).answer(), "key-missing");
}

#[test]
fn what_needs_a_restart_is_refused_whole_and_each_key_is_named() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let elsewhere = "server.listen = '127.0.0.1:1'\nserver.workers = 1\nadmin.listen = []\n\
        store.namespace = 'other'\ntelemetry.log_level = 'warn'\npolicy.key = 'required'";
    proxy.put_config(&proxy.configuration(elsewhere));
    proxy.signal("HUP");
    proxy.await_metric(RELOADS, &[("result", "refused")], 1.0);
    eventually("the log names each key", || {
        let log = proxy.log();
        let keys = [
            "server.listen",
            "server.workers",
            "admin.listen",
            "store.namespace",
            "telemetry.log_level",
        ];
        let named = |key: &str| log.contains(&format!("{key} was changed, which needs a restart"));
        keys.into_iter().all(named)
    });
    let unkeyed = proxy.send(&Request::write("POST", "/orders"));
    assert_eq!(unkeyed.status, 201, "{unkeyed}");
    assert!(!proxy.log().contains("policy.key"));
}

#[test]
fn a_file_without_its_routes_is_half_a_file_until_a_signal_says_that_it_is_meant() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut half: toml::Table = proxy.configuration("").parse().expect("TOML");
    half.remove("route").expect("the harness has routes");
    proxy.put_config(&half.to_string());
    proxy.await_metric(RELOADS, &[("result", "refused")], 1.0);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    proxy.signal("HUP");
    proxy.await_metric(RELOADS, &[("result", "applied")], 1.0);
    assert_eq!(marker(&proxy.send(&request)), None);
}

#[test]
fn a_file_that_changes_is_reloaded_without_a_signal() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    proxy.put_config(&proxy.configuration("policy.key = 'required'"));
    proxy.await_metric(RELOADS, &[("result", "applied")], 1.0);
    problem(
        &proxy.send(&Request::write("POST", "/orders")),
        "key-missing",
    );
    // As a volume of Kubernetes changes: a link is moved to another folder.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let links_to = |name: &str, text: &str| {
        let target = folder.path().join(name);
        std::fs::write(&target, text).expect("the folder takes a file");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&target, &link).expect("the folder takes a link");
        std::fs::rename(&link, proxy.config()).expect("both folders are on one file system");
    };
    links_to("first", &proxy.configuration("policy.key = 'optional'"));
    proxy.await_metric(RELOADS, &[("result", "applied")], 2.0);
    let unkeyed = Request::write("POST", "/orders");
    assert_eq!(proxy.send(&unkeyed).status, 201);
    links_to("second", &proxy.configuration("policy.key = 'required'"));
    proxy.await_metric(RELOADS, &[("result", "applied")], 3.0);
    problem(&proxy.send(&unkeyed), "key-missing");
    links_to("third", "nonsense = 1");
    proxy.await_metric(RELOADS, &[("result", "refused")], 1.0);
    problem(&proxy.send(&unkeyed), "key-missing");
}

#[test]
fn whom_to_believe_changes_on_open_connections_too() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    let request = Request::get("/free").header("X-Forwarded-For", "192.0.2.7");
    let mut forwarded = || {
        client.ask(&request).answer();
        upstream.last().all("X-Forwarded-For").join(", ")
    };
    assert_eq!(forwarded(), "127.0.0.1");
    proxy.reload("server.trusted_proxies = ['127.0.0.0/8']");
    assert_eq!(forwarded(), "192.0.2.7, 127.0.0.1");
    proxy.reload("");
    assert_eq!(forwarded(), "127.0.0.1");
}

#[test]
fn limits_move_and_take_nothing_away() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    proxy.reload("server.max_executions = 1\nserver.max_connections = 1");
    problem(&proxy.send(&Request::get("/free")), "overloaded");
    proxy.reload("server.max_executions = 1");
    problem(&proxy.send(&Request::order(&key())), "overloaded");
    gate.open();
    executed(running.answer());
    executed(proxy.send(&Request::order(&key())));
}

#[test]
fn records_that_may_no_longer_match_are_warned_of() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        &format!("{}{}", route("a", "/a"), route("b", "/b")),
    );
    let request = Request::write("POST", "/a").key(&key());
    let first = executed(proxy.send(&request));
    let scoped = format!("{}{}scope = 'caller'", route("a", "/a"), route("b", "/b"));
    proxy.reload(&scoped);
    replayed(&proxy.send(&request), &first);
    let warns = |routes: &str| {
        let log = proxy.log();
        let warned = |line: &str| {
            line.contains("their older records may no longer match")
                && line.contains(&format!("\"routes\":\"{routes}\""))
        };
        log.lines().any(warned)
    };
    eventually("the log names the route", || warns("b"));
    let every = format!("identity.from = ['header:X-Account']\n{scoped}");
    proxy.reload(&every);
    eventually("the log names the routes", || warns("a, b"));
    assert!(!warns("a"));
}

/// Seconds since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "tokens are dated by the wall clock"
)]
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

#[test]
fn a_reload_never_refuses_a_good_token() {
    let [upstream, issuer] = [Upstream::start(), Upstream::start()];
    let signer = Signer::ed25519("k1");
    issuer.always(reply(200).body(jwks(&[&signer])));
    let settings = |audience: &str, retention: &str| {
        format!(
            "identity.from = ['jwt:sub']\nidentity.jwt.jwks_url = 'http://{}/keys'\n\
             identity.jwt.audience = '{audience}'\npolicy.retention = '{retention}'",
            issuer.address()
        )
    };
    let proxy = Proxy::with(&upstream, &settings("one", "1h"));
    let claims = json!({"sub": "ann", "exp": now() + 600, "aud": ["one", "two"]});
    let token = format!("Bearer {}", signer.token(&claims));
    let ask = || proxy.send(&Request::order(&key()).caller(&token));
    executed(ask());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                executed(ask());
            }
        });
        for (audience, retention) in [("two", "1h"), ("two", "2h"), ("one", "2h"), ("two", "1h")] {
            proxy.reload(&settings(audience, retention));
        }
        over.store(true, Ordering::Relaxed);
        asking.join().expect("every token was believed");
    });
    proxy.reload(&settings("three", "1h"));
    problem(&ask(), "caller-missing");
}

#[test]
fn a_token_of_operators_can_be_replaced() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("token");
    let settings = format!("admin.token_file = '{}'", path.display());
    std::fs::write(&path, "first").expect("the folder takes a file");
    let proxy = Proxy::with(&upstream, &settings);
    let status = |token: &str| {
        let ask = Request::get("/api/v1/drain").header("Authorization", format!("Bearer {token}"));
        proxy.admin(&ask).status
    };
    assert_eq!([status("first"), status("second")], [405, 401]);
    std::fs::write(&path, "second").expect("the folder takes a file");
    proxy.reload(&settings);
    assert_eq!([status("first"), status("second")], [401, 405]);
}

/// Reloads so many times between two configurations, while clients write and read on connections that they keep.
fn reload_under_load(times: usize) {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let [over, asked] = [AtomicBool::new(false), AtomicBool::new(false)];
    let requests = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(scope.spawn(|| {
                let mut client = proxy.client();
                while !over.load(Ordering::Relaxed) {
                    let request = Request::order(&key());
                    let first = executed(client.ask(&request).answer());
                    replayed(&client.ask(&request).answer(), &first);
                    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
                    requests.fetch_add(3, Ordering::Relaxed);
                    asked.store(true, Ordering::Relaxed);
                }
            }));
        }
        eventually("there is load", || asked.load(Ordering::Relaxed));
        let extra = route("extra", "/extra");
        let others = format!(
            "upstream.idle_timeout = '7s'\nserver.max_connections = 100\n{}{extra}",
            "[[route]]\nname = 'orders'\nmethods = ['POST']\npath = '/{*rest}'\n"
        );
        for turn in 0..times {
            proxy.reload(if turn % 2 == 0 { &others } else { "" });
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("no request failed");
        }
    });
    let requests = requests.load(Ordering::Relaxed);
    assert_eq!(upstream.executions(), requests / 3 * 2);
    assert_eq!(upstream.lost(), 0);
    let answered = proxy.metrics().sum("idem_proxy_requests_total", &[]);
    assert!(answered.to_bits() == f64::from(u32::try_from(requests).expect("few")).to_bits());
}

#[test]
fn reloads_under_load_fail_no_request() {
    reload_under_load(10);
}

#[test]
#[ignore = "the long form: half a minute"]
fn many_reloads_under_load_fail_no_request() {
    reload_under_load(200);
}
