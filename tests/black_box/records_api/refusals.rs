//! What the records API refuses, whom, and what it never tells.

use serde_json::json;

use super::{HELD, ask, list, local, logged, lost, on_each, record_of, refused, resolve};
use crate::common::{Proxy, Request, Step, Upstream, eventually, executed, key, problem, reply};

#[test]
fn what_is_asked_wrongly_is_refused_and_changes_nothing() {
    on_each(|store| {
        let upstream = Upstream::start();
        let settings = format!("{HELD}\npolicy.max_response_body = '1KiB'");
        let proxy = store.serve(&upstream, &settings);
        let (request, record) = lost(&proxy, &upstream);
        for (path, says) in [
            (format!("/{}", &record[..15]), "first 16"),
            (format!("/{record}z"), "first 16"),
            (format!("/{}", "0".repeat(65)), "first 16"),
            ("/".into(), "first 16"),
            ("?limit=0".into(), "1 to 1000"),
            ("?limit=1001".into(), "1 to 1000"),
            (
                "?state=running".into(),
                "in-flight, unknown, complete, tombstone",
            ),
            ("?page=2".into(), "state, route, limit, after"),
            ("?after=7".into(), "next"),
        ] {
            refused(&ask(&proxy, "GET", &path), 400, says);
        }
        refused(
            &ask(&proxy, "GET", &format!("/{}", "0".repeat(16))),
            404,
            "no such record",
        );
        for (document, says) in [
            (json!({}), "outcome"),
            (json!({"outcome": "done"}), "outcome"),
            (json!({"outcome": "release", "status": 201}), "no member"),
            (json!({"outcome": "complete"}), "status"),
            (json!({"outcome": "complete", "status": 101}), "status"),
            (
                json!({"outcome": "complete", "status": 204, "body": "x"}),
                "no body",
            ),
            (
                json!({"outcome": "complete", "status": 200, "headers": {"Connection": "x"}}),
                "not kept",
            ),
            (
                json!({"outcome": "complete", "status": 200, "headers": {"Set-Cookie": "x"}}),
                "replay_headers",
            ),
            (
                json!({"outcome": "complete", "status": 200, "headers": {"X": "a\r\nb"}}),
                "character",
            ),
        ] {
            refused(&resolve(&proxy, &record, &document), 400, says);
        }
        let large = json!({"outcome": "complete", "status": 200, "body": "x".repeat(1025)});
        refused(&resolve(&proxy, &record, &large), 413, "max_response_body");
        let path = format!("/api/v1/records/{record}/resolve");
        let document = json!({"outcome": "release"}).to_string();
        let post = || local(Request::new("POST", &path)).body(&document);
        refused(&proxy.admin(&post()), 415, "application/json");
        let text = post().header("Content-Type", "text/plain");
        refused(&proxy.admin(&text), 415, "application/json");
        let huge = local(Request::new("POST", &path))
            .header("Content-Type", "application/json")
            .body(vec![b' '; (8 << 20) + 1]);
        refused(&proxy.admin(&huge), 413, "at most");
        for (method, path, allow) in [
            ("POST", "", "GET, HEAD"),
            ("DELETE", "", "GET, HEAD"),
            ("PUT", &format!("/{record}")[..], "GET, HEAD, DELETE"),
            ("GET", &format!("/{record}/resolve"), "POST"),
        ] {
            let answer = ask(&proxy, method, path);
            assert_eq!((answer.status, answer.one("Allow")), (405, Some(allow)));
        }
        assert_eq!(ask(&proxy, "POST", &format!("/{record}/else")).status, 404);
        problem(&proxy.send(&request), "outcome-unknown");
        let exact = json!({"outcome": "complete", "status": 200, "body": "x".repeat(1024)});
        assert_eq!(resolve(&proxy, &record, &exact).status, 200);
    });
}

#[test]
fn a_route_that_replays_cookies_takes_them_from_operators() {
    let upstream = Upstream::start();
    let settings = format!("{HELD}\npolicy.replay_headers = ['Set-Cookie']");
    let proxy = Proxy::with(&upstream, &settings);
    let (request, record) = lost(&proxy, &upstream);
    let given =
        json!({"outcome": "complete", "status": 200, "headers": {"Set-Cookie": ["a=1", "b=2"]}});
    assert_eq!(resolve(&proxy, &record, &given).status, 200);
    assert_eq!(proxy.send(&request).all("Set-Cookie"), ["a=1", "b=2"]);
}

#[test]
fn records_are_for_those_who_may_use_the_api() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ken-of-operators\n").expect("the folder takes a file");
    let settings = format!("admin.token_file = '{}'\n{HELD}", token.display());
    let proxy = Proxy::with(&upstream, &settings);
    let (request, record) = lost(&proxy, &upstream);
    let path = format!("/api/v1/records/{record}");
    let with = |method: &str, path: &str, authorization: Option<&str>| {
        let request = local(Request::new(method, path));
        proxy.admin(&match authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        })
    };
    for wrong in [None, Some("Bearer other")] {
        for (method, path) in [
            ("GET", "/api/v1/records"),
            ("GET", &path[..]),
            ("DELETE", &path),
            ("POST", &format!("{path}/resolve")),
        ] {
            let answer = with(method, path, wrong);
            assert_eq!(answer.status, 401, "{method} {path}: {answer}");
        }
    }
    problem(&proxy.send(&request), "outcome-unknown");
    let right = Some("Bearer t0ken-of-operators");
    assert_eq!(with("GET", "/api/v1/records", right).status, 200);
    assert_eq!(with("DELETE", &path, right).status, 204);
    eventually("the log says by what", || {
        proxy.log().contains("\"admitted\":\"token\"")
    });
    assert!(!proxy.log().contains("t0ken-of-operators"));

    let open = Proxy::start(&upstream);
    for stranger in [
        Request::get("/api/v1/records"),
        local(Request::get("/api/v1/records")).header("Origin", "https://example.org"),
    ] {
        assert_eq!(open.admin(&stranger).status, 403);
    }
}

#[test]
fn no_key_credential_header_or_body_is_told_anywhere() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, HELD);
        let secret = |key: &str| {
            Request::order(key)
                .caller("Bearer s3cret-credential")
                .body("{\"card\":\"4242424242424242\"}")
        };
        upstream.then(
            reply(201)
                .header("X-Secret", "s3cret-header")
                .body("s3cret-answer"),
        );
        executed(proxy.send(&secret("s3cret-key")));
        upstream.then(Step::drop());
        let held = secret("s3cret-held");
        problem(&proxy.send(&held), "upstream-failed");
        let record = record_of(&proxy, &held);
        let mut told = list(&proxy, "").to_string();
        let given = json!({"outcome": "complete", "status": 200, "headers": {"X-Given": "s3cret-given"}, "body": "s3cret-body"});
        told += &resolve(&proxy, &record, &given).to_string();
        told += &ask(&proxy, "GET", &format!("/{record}")).to_string();
        let bad = json!({"outcome": "complete", "status": 204, "headers": {"X-Given": "s3cret-given"}, "body": "s3cret-body"});
        told += &resolve(&proxy, &record, &bad).to_string();
        told += &proxy.metrics().0;
        logged(&proxy, "an operator resolved a record");
        told += &proxy.log();
        for word in ["s3cret", "42424242"] {
            assert!(!told.contains(word), "{word}: {told}");
        }
    });
}

#[test]
fn operators_see_what_a_proxy_is_and_what_it_promises() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, "server.policy_path = '/policy'");
        executed(proxy.send(&Request::order(&key())));
        let get = |path: &str| proxy.admin(&local(Request::get(path)));
        let published = proxy.send(&Request::get("/policy"));
        let policy = get("/api/v1/policy");
        assert_eq!((policy.status, &policy.body), (200, &published.body));
        let status = get("/api/v1/status");
        assert_eq!(status.status, 200, "{status}");
        let status = status.json();
        assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(
            (&status["ready"], &status["reasons"]),
            (&json!(true), &json!([]))
        );
        let kind = if store.folder.is_some() {
            "disk"
        } else {
            "memory"
        };
        assert_eq!(status["store"]["kind"], kind);
        assert_eq!(
            (&status["store"]["records"], &status["store"]["answers"]),
            (&json!(1), &json!(true))
        );
        let own = [proxy.address(), proxy.admin_address()].map(|address| vec![address.to_string()]);
        assert_eq!(
            status["listeners"],
            json!({"clients": own[0], "operators": own[1]})
        );
        assert_eq!(
            status["limits"]["max_executions"],
            json!({"level": 0, "max": 4096})
        );
        assert!(status["uptime_s"].is_u64(), "{status}");
        let digest = status["policy_digest"].clone();
        assert_eq!(digest.as_str().map(str::len), Some(16));
        let post = |path: &str| proxy.admin(&local(Request::write("POST", path))).status;
        assert_eq!((post("/api/v1/status"), post("/api/v1/policy")), (405, 405));
        let more =
            "server.policy_path = '/policy'\nserver.max_executions = 7\npolicy.retention = '1h'";
        if store.folder.is_none() {
            proxy.reload(more);
            let status = get("/api/v1/status").json();
            assert_eq!(status["limits"]["max_executions"]["max"], 7);
            assert_ne!(status["policy_digest"], digest);
            assert_eq!(
                get("/api/v1/policy").body,
                proxy.send(&Request::get("/policy")).body
            );
        }
    });
}
