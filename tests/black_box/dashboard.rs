//! The dashboard, looked at and used in a browser; and its files, without one.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::common::{Answer, Proxy, Request, Step, Upstream, executed, key, problem};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What stuck keys are about: an outcome that stays unknown.
const HELD: &str = "policy.unknown_hold = 'forever'";

fn both(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Where what drives the browser is; it is installed once, under `target/`.
fn installed() -> PathBuf {
    let mut command = Command::new(Path::new(ROOT).join("scripts/browser"));
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("the script starts");
    assert!(output.status.success(), "{}", both(&output));
    String::from_utf8_lossy(&output.stdout).trim().into()
}

/// Plays a scenario of `browser.mjs` on the dashboard of this proxy.
#[track_caller]
fn browse(proxy: &Proxy, scenario: &str, more: &[&str]) {
    let home = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new("timeout")
        .args(["--kill-after=10", "240", "node"])
        .arg(Path::new(ROOT).join("tests/black_box/dashboard/browser.mjs"))
        .arg(scenario)
        .arg(format!("http://{}/", proxy.admin_address()))
        .args(more)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .env("NODE_PATH", installed().join("node_modules"))
        .stdin(Stdio::null())
        .output()
        .expect("node starts");
    assert!(output.status.success(), "{scenario}: {}", both(&output));
}

/// A request that the upstream got and did not answer; and its record.
fn lost(proxy: &Proxy, upstream: &Upstream) -> (Request, String) {
    let request = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&request), "upstream-failed");
    let told = problem(&proxy.send(&request), "outcome-unknown");
    let record = told["record"].as_str().expect("a record").to_owned();
    (request, record)
}

fn ask(proxy: &Proxy, method: &str, path: &str, origin: Option<&str>) -> Answer {
    let host = proxy.admin_address().to_string();
    let mut request = Request::new(method, path)
        .without("Host")
        .header("Host", &host);
    if let Some(origin) = origin {
        request = request.header("Origin", origin);
    }
    proxy.admin(&request)
}

#[test]
fn it_draws_what_happens_and_fits_on_a_phone() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    let address = format!("http://{}", proxy.address());
    browse(&proxy, "draws", &[&address, "not called yet"]);
}

#[test]
fn a_stuck_key_is_released_by_clicks() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    let (request, record) = lost(&proxy, &upstream);
    browse(&proxy, "release", &[&record]);
    executed(proxy.send(&request));
}

#[test]
fn a_stuck_key_gets_its_answer_by_the_keyboard_alone() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    let (request, record) = lost(&proxy, &upstream);
    browse(&proxy, "complete", &[&record]);
    let replay = proxy.send(&request);
    assert_eq!((replay.status, &replay.body[..]), (201, &b"{\"id\":9}"[..]));
    assert_eq!(replay.one("Idempotency-Key-Reply"), Some("hit"));
    assert_eq!(replay.one("Content-Type"), Some("application/json"));
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_record_is_forgotten_by_clicks() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    let (request, record) = lost(&proxy, &upstream);
    browse(&proxy, "purge", &[&record]);
    executed(proxy.send(&request));
}

#[test]
fn the_token_is_asked_for_and_a_wrong_one_refused() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cret-of-the-test\n").expect("the folder takes a file");
    let settings = format!("admin.token_file = '{}'", file.display());
    let proxy = Proxy::with(&upstream, &settings);
    browse(&proxy, "token", &["s3cret-of-the-test"]);
}

#[test]
fn a_proxy_that_is_gone_is_said_to_be_and_found_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    browse(&proxy, "gone", &[]);
}

#[test]
fn its_files_name_no_other_place_and_are_asked_for_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let page = ask(&proxy, "GET", "/", None);
    assert_eq!(page.status, 200, "{page}");
    assert_eq!(page.one("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.one("Cache-Control"), Some("no-cache"));
    assert_eq!(page.one("X-Content-Type-Options"), Some("nosniff"));
    let policy = page.one("Content-Security-Policy").expect("a policy");
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let tag = page.one("ETag").expect("a tag").to_owned();
    let again = Request::new("GET", "/").header("If-None-Match", &tag);
    let again = proxy.admin(&again);
    assert_eq!((again.status, again.body.len()), (304, 0), "{again}");
    assert_eq!(ask(&proxy, "POST", "/", None).status, 405);
    assert_eq!(ask(&proxy, "GET", "/dashboard/none.js", None).status, 404);
    // Nor is it on the clients' side.
    let other = proxy.send(&Request::new("GET", "/dashboard/main.js"));
    assert_ne!(
        other.one("Content-Type"),
        Some("text/javascript; charset=utf-8")
    );
}

#[test]
fn the_page_may_use_the_api_and_pages_of_others_may_not() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    let (_, record) = lost(&proxy, &upstream);
    let path = format!("/api/v1/records/{record}");
    let own = format!("http://{}", proxy.admin_address());
    for other in ["http://127.0.0.1", "https://example.org", "null"] {
        let refused = ask(&proxy, "DELETE", &path, Some(other));
        assert_eq!(refused.status, 403, "{other}: {refused}");
    }
    assert_eq!(ask(&proxy, "DELETE", &path, Some(&own)).status, 204);
}

#[test]
fn the_history_tells_of_what_happened_and_of_trouble() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    executed(proxy.send(&Request::order(&key())));
    lost(&proxy, &upstream);
    let answer = ask(&proxy, "GET", "/api/v1/history", None);
    assert_eq!(answer.status, 200, "{answer}");
    let told: Value = answer.json();
    let requests = &told["totals"]["requests"];
    assert_eq!(
        (&requests["miss"], &requests["unknown"]),
        (&1.into(), &1.into())
    );
    assert_eq!(told["trouble"]["counts"]["unknown"], 1, "{told}");
    assert_eq!(told["latency"]["miss"]["count"], 1, "{told}");
    let most = told["latency"]["miss"]["p99_s"].as_f64().expect("a time");
    assert!(most > 0.0 && told["interval_s"] == 5, "{told}");
    assert_eq!(ask(&proxy, "POST", "/api/v1/history", None).status, 405);

    let status = ask(&proxy, "GET", "/api/v1/status", None).json();
    let upstreams = status["upstreams"].as_array().expect("a list");
    assert_eq!(upstreams.len(), 1, "{status}");
    assert_eq!(upstreams[0]["state"], "reachable", "{status}");
}
