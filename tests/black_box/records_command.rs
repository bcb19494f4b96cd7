//! `idem-proxy records`: what an operator types, and how it ends.

use std::process::Output;

use serde_json::Value;

use crate::common::{Proxy, Request, Step, Upstream, executed, key, problem, replayed};

/// How `idem-proxy records` with these arguments ended: status, output, and what it said beside that.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let arguments = [&["records"], arguments].concat();
    let Output {
        status,
        stdout,
        stderr,
    } = Proxy::run(&arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// The same for the proxy's own configuration.
fn records(proxy: &Proxy, arguments: &[&str]) -> (Option<i32>, String, String) {
    let config = proxy.config();
    let config = config.to_string_lossy();
    run(&[arguments, &["--config", &config]].concat())
}

/// What it prints where all is well.
#[track_caller]
fn printed(proxy: &Proxy, arguments: &[&str]) -> String {
    let (status, out, err) = records(proxy, arguments);
    assert_eq!(
        (status, err.as_str()),
        (Some(0), ""),
        "{arguments:?}: {out}"
    );
    out
}

fn lost(proxy: &Proxy, upstream: &Upstream) -> (Request, String) {
    let request = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&request), "upstream-failed");
    let told = problem(&proxy.send(&request), "outcome-unknown");
    let record = told["record"].as_str().expect("a record").to_owned();
    (request, record)
}

const HELD: &str = "policy.unknown_hold = 'forever'";

#[test]
fn an_operator_frees_stuck_keys_from_the_command_line() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, HELD);
    let (free, released) = lost(&proxy, &upstream);
    let (done, completed) = lost(&proxy, &upstream);
    let table = printed(&proxy, &["list", "--state", "unknown"]);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let head = [
        "RECORD", "STATE", "ROUTE", "STATUS", "STARTED", "EXPIRES", "BYTES",
    ];
    assert_eq!(lines[0], head);
    assert_eq!(lines.len(), 3, "{table}");
    assert_eq!(lines[1][..4], [&completed, "unknown", "orders", "-"]);
    assert_eq!(lines[2][..4], [&released, "unknown", "orders", "-"]);
    assert!(!table.contains('\u{1b}'), "{table}");
    let shown = printed(&proxy, &["show", &released]);
    assert!(shown.contains("state        unknown\n"), "{shown}");

    let said = printed(&proxy, &["resolve", &released, "--outcome", "release"]);
    assert_eq!(
        said,
        format!("released {released}: the next request with its key is executed\n")
    );
    let first = executed(proxy.send(&free));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let body = folder.path().join("answer.json");
    std::fs::write(&body, "{\"id\":9}\n").expect("the folder takes a file");
    let body = body.to_string_lossy();
    let arguments = [
        "resolve",
        &completed,
        "--outcome",
        "complete",
        "--status",
        "201",
        "--header",
        "Content-Type: application/json",
        "--header",
        "X-Tag: a",
        "--header",
        "x-tag: b",
        "--body-file",
        &body,
    ];
    let said = printed(&proxy, &arguments);
    assert!(
        said.starts_with(&format!("completed {completed}: ")),
        "{said}"
    );
    let replay = proxy.send(&done);
    assert_eq!(
        (replay.status, &replay.body[..]),
        (201, &b"{\"id\":9}\n"[..])
    );
    assert_eq!(replay.one("Idempotency-Key-Reply"), Some("hit"));
    assert_eq!(replay.one("Content-Type"), Some("application/json"));
    assert_eq!(replay.all("X-Tag"), ["a", "b"]);

    let (status, _, err) = records(&proxy, &arguments);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("409") && err.contains("not unknown"), "{err}");
    replayed(&proxy.send(&free), &first);
    let said = printed(&proxy, &["purge", &released]);
    assert!(said.starts_with(&format!("purged {released}: ")), "{said}");
    executed(proxy.send(&free));
    assert_eq!(upstream.executions(), 4);
}

#[test]
fn what_the_api_says_is_printed_as_it_is() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for _ in 0..3 {
        executed(proxy.send(&Request::order(&key())));
    }
    let page = printed(&proxy, &["list", "--limit", "2", "--json"]);
    let page: Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(page["records"].as_array().map(Vec::len), Some(2));
    assert_eq!(page["truncated"], true);
    let next = page["next"].as_str().expect("there are more");
    let rest = printed(
        &proxy,
        &["list", "--after", next, "--route", "orders", "--json"],
    );
    let rest: Value = serde_json::from_str(&rest).expect("JSON");
    assert_eq!(rest["records"].as_array().map(Vec::len), Some(1));
    let id = rest["records"][0]["id"].as_str().expect("an id");
    let shown = printed(&proxy, &["show", id, "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown, rest["records"][0]);
    let (status, out, err) = records(&proxy, &["list", "--limit", "2"]);
    assert_eq!((status, out.lines().count()), (Some(0), 3));
    assert!(err.contains(&format!("--after {next}")), "{err}");
}

#[test]
fn each_way_to_fail_has_its_exit_status() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ken\n").expect("the folder takes a file");
    let token = token.to_string_lossy();
    let mut proxy = Proxy::with(&upstream, &format!("admin.token_file = '{token}'"));
    let admin = format!("http://{}", proxy.admin_address());
    let nobody = "0123456789abcdef";
    // 3: nothing fits.
    for arguments in [
        &["list"][..],
        &["list", "--state", "unknown", "--json"],
        &["show", nobody],
        &["purge", nobody],
        &["resolve", nobody, "--outcome", "release"],
    ] {
        let (status, _, err) = records(&proxy, arguments);
        assert_eq!(status, Some(3), "{arguments:?}: {err}");
        assert!(!err.is_empty());
        let at = [arguments, &["--admin", &admin, "--token-file", &token]].concat();
        assert_eq!(run(&at).0, Some(3), "{arguments:?}");
    }
    // 1: refused.
    let (status, out, err) = run(&["list", "--admin", &admin]);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(err.contains("401"), "{err}");
    // 2: the command line.
    let missing = folder.path().join("missing");
    let missing = missing.to_string_lossy();
    for arguments in [
        &["list", "--admin", "https://127.0.0.1:1"][..],
        &["list", "--admin", &admin, "--token-file", &missing],
        &["list", "--config", &missing],
        &["list"],
        &["show", "--admin", &admin],
        &["show", "0123", "--admin", &admin],
        &["list", "--state", "lost", "--admin", &admin],
        &["resolve", nobody, "--admin", &admin],
        &[
            "resolve",
            nobody,
            "--outcome",
            "complete",
            "--admin",
            &admin,
        ],
    ] {
        let (status, _, err) = run(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {err}");
        assert!(!err.is_empty());
    }
    // 1: nobody is there.
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    let (status, _, err) = run(&["list", "--admin", &admin]);
    assert_eq!(status, Some(1));
    assert!(err.contains("nobody answers"), "{err}");
}
