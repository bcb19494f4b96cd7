//! `idem-proxy drain` and the API behind it: what runs finishes, and the process stays until it is told to end.

use std::{
    os::unix::net::UnixStream,
    process::{Child, Command, Output, Stdio},
};

use crate::common::{
    PATIENCE, Proxy, Redis, Request, Step, Trouble, Upstream, eventually, executed, key, reply,
};

/// `idem-proxy drain` with these arguments, running.
fn drain(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idem-proxy"));
    command
        .arg("drain")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

/// The same for the proxy's own configuration.
fn drain_of(proxy: &Proxy) -> Child {
    drain(&["--config", &proxy.config().to_string_lossy()])
}

fn ended(child: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = child.wait_with_output().expect("the drain is ours");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

fn await_not_ready(proxy: &Proxy) {
    eventually("the proxy is not ready any more", || {
        proxy.ready() == Some(503)
    });
}

fn refuses(proxy: &Proxy) -> bool {
    std::net::TcpStream::connect(proxy.address()).is_err()
}

#[test]
fn a_drain_ends_when_what_runs_has_finished_and_the_process_stays() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let mut idle = proxy.client();
    assert_eq!(idle.ask(&Request::get("/free")).answer().status, 200);
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    let mut draining = drain_of(&proxy);
    await_not_ready(&proxy);
    eventually("new connections are refused", || refuses(&proxy));
    assert_eq!(proxy.admin(&Request::get("/livez")).status, 200);
    let still = draining.try_wait().expect("the drain is ours");
    assert!(still.is_none(), "a call runs, and the drain has ended");
    gate.open();
    let answer = executed(running.answer());
    assert_eq!(answer.one("Connection"), Some("close"));
    assert_eq!(ended(draining), (Some(0), String::new()));
    assert!(idle.is_closed());

    assert!(proxy.runs(), "{}", proxy.log());
    assert!(refuses(&proxy));
    assert_eq!(proxy.ready(), Some(503));
    assert_eq!(proxy.admin(&Request::get("/livez")).status, 200);
    assert_eq!(ended(drain_of(&proxy)).0, Some(0), "once more is no harm");
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    assert_eq!(upstream.lost(), 0);
    assert!(proxy.log().contains("a drain was asked for"));
}

#[test]
fn a_drain_that_takes_too_long_fails_and_cuts_nothing_off_before_the_end() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(
        &upstream,
        "server.drain_timeout = '300ms'\npolicy.in_flight = 'conflict'",
    );
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&request);
    gate.arrived();
    let record = proxy.send(&request).json()["record"].clone();
    let record = record.as_str().expect("the problem names its record");
    let (status, said) = ended(drain_of(&proxy));
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains(record) && said.contains("drain_timeout"),
        "{said}"
    );
    gate.open();
    executed(running.answer());
    eventually("a later drain is whole", || {
        ended(drain_of(&proxy)).0 == Some(0)
    });
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
}

#[test]
fn after_a_drain_the_signal_ends_the_process_at_once_whatever_runs() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.drain_timeout = '200ms'");
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    assert_eq!(ended(drain_of(&proxy)).0, Some(1));
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(1), "{}", proxy.log());
    assert!(proxy.log().contains("this execution was cut off"));
    assert!(!matches!(running.try_answer(PATIENCE), Err(Trouble::Late)));
    gate.open();
}

#[test]
fn what_could_not_be_saved_is_named_when_the_process_ends() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let settings = format!(
        "store.kind = 'redis'\nstore.redis.url = '{}'\nstore.redis.timeout = '300ms'\nserver.drain_timeout = '300ms'",
        redis.url()
    );
    let mut proxy = Proxy::with(&upstream, &settings);
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    redis.freeze();
    gate.open();
    assert_eq!(running.answer().status, 201);
    drop(running);
    let (status, said) = ended(drain_of(&proxy));
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("is not saved yet"), "{said}");
    assert!(!said.contains("still runs"), "{said}");
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(1), "{}", proxy.log());
    let log = proxy.log();
    assert!(log.contains("was never saved"), "{log}");
    assert!(
        log.contains("ended before all that ran had finished"),
        "{log}"
    );
    assert!(!log.contains("this execution was cut off"), "{log}");
}

#[test]
fn what_goes_on_behind_an_answer_is_named_when_it_holds_up_the_end() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.drain_timeout = '300ms'");
    // An answer that is whole before its request is: what is left of that goes out behind it.
    upstream.then(Step::from(reply(200)).early());
    let mut client = proxy.client();
    client.say("POST /free HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 99\r\n\r\nhello");
    assert_eq!(client.answer().status, 200);
    proxy.signal("TERM");
    let code = proxy.exit_code();
    let log = proxy.log();
    let named = log.contains("ended before all that ran had finished");
    assert_eq!(named, code == Some(1), "{code:?}: {log}");
}

#[test]
fn a_signal_in_the_middle_of_a_drain_lets_it_finish_and_ends_the_process() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    let draining = drain_of(&proxy);
    await_not_ready(&proxy);
    proxy.signal("TERM");
    eventually("new connections are refused", || refuses(&proxy));
    assert!(proxy.runs(), "{}", proxy.log());
    gate.open();
    executed(running.answer());
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    assert_eq!(ended(draining), (Some(0), String::new()));
}

#[test]
fn a_drain_that_is_asked_for_after_a_signal_is_the_same_one() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let gate = upstream.hold(Step::default());
    let mut running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    proxy.signal("TERM");
    await_not_ready(&proxy);
    let draining = drain_of(&proxy);
    eventually("it was asked for", || {
        proxy.log().contains("a drain was asked for")
    });
    gate.open();
    executed(running.answer());
    assert_eq!(ended(draining), (Some(0), String::new()));
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
}

#[test]
fn a_second_signal_ends_a_drain_and_whoever_waits_for_it_is_told() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.drain_timeout = '10m'");
    let gate = upstream.hold(Step::default());
    let _running = proxy.begin(&Request::order(&key()));
    gate.arrived();
    let draining = drain_of(&proxy);
    await_not_ready(&proxy);
    proxy.signal("TERM");
    // Two that come at once may be one.
    while proxy.runs() {
        proxy.signal("INT");
        crate::common::sleep_ms(20);
    }
    assert_eq!(proxy.exit_code(), Some(1), "{}", proxy.log());
    let (status, said) = ended(draining);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("still runs"), "{said}");
    gate.open();
}

#[test]
fn before_a_drain_that_is_asked_for_the_proxy_stays_open_for_a_while_too() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.drain_delay = '3s'");
    let draining = drain_of(&proxy);
    await_not_ready(&proxy);
    assert!(!refuses(&proxy), "others may still send to it");
    assert_eq!(ended(draining).0, Some(0));
    assert!(refuses(&proxy));
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0));
}

#[test]
fn nobody_at_the_other_end_is_a_failure_and_a_wrong_command_line_is_refused() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let admin = format!("http://{}", proxy.admin_address());
    let config = proxy.config().to_string_lossy().into_owned();
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0));
    for arguments in [&["--admin", &admin][..], &["--config", &config]] {
        let (status, said) = ended(drain(arguments));
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("nobody answers"), "{said}");
    }
    proxy.put_config("nonsense = 1");
    let missing = proxy.config().with_extension("missing");
    let missing = missing.to_string_lossy();
    for arguments in [
        &["--config", &config][..],
        &["--config", &missing],
        &["--admin", "https://127.0.0.1:1"],
        &["--admin", &admin, "--token-file", &missing],
        &[],
    ] {
        let (status, said) = ended(drain(arguments));
        assert_eq!(status, Some(2), "{arguments:?}: {said}");
        assert!(!said.is_empty());
    }
}

#[test]
fn the_token_opens_the_api_and_a_wrong_one_does_not() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [right, wrong] = ["right", "wrong"].map(|name| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{name}-token\n")).expect("the folder takes a file");
        path.to_string_lossy().into_owned()
    });
    let proxy = Proxy::with(&upstream, &format!("admin.token_file = '{right}'"));
    let admin = format!("http://{}", proxy.admin_address());
    for (arguments, status) in [
        (&["--admin", &admin][..], "401"),
        (&["--admin", &admin, "--token-file", &wrong], "401"),
    ] {
        let (code, said) = ended(drain(arguments));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(status) && !said.contains("-token"), "{said}");
    }
    assert_eq!(proxy.ready(), Some(200));
    let answer = proxy.admin(&Request::write("POST", "/api/v1/drain"));
    assert_eq!(answer.status, 401);
    let challenge = answer.one("WWW-Authenticate").unwrap_or_default();
    assert!(challenge.starts_with("Bearer"), "{challenge}");
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(proxy.admin(&Request::get(path)).status, 200, "{path}");
    }
    let opened = drain(&["--admin", &admin, "--token-file", &right]);
    assert_eq!(ended(opened).0, Some(0));
    assert_eq!(
        ended(drain_of(&proxy)).0,
        Some(0),
        "it reads the token's file"
    );
    assert!(!proxy.log().contains("right-token"));
}

#[test]
fn pages_and_other_hosts_do_not_drain_a_proxy() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let drain = Request::new("POST", "/api/v1/drain").header("Content-Length", "0");
    let host = |name: &str| drain.clone().without("Host").header("Host", name);
    for refused in [
        host("rebound.example:9090"),
        host("10.0.0.1"),
        host("localhost").header("Origin", "https://example.org"),
    ] {
        let answer = proxy.admin(&refused);
        assert_eq!(answer.status, 403, "{answer}");
        assert_eq!(answer.one("Content-Type"), Some("application/problem+json"));
    }
    let get = Request::get("/api/v1/drain")
        .without("Host")
        .header("Host", "localhost");
    let answer = proxy.admin(&get);
    assert_eq!((answer.status, answer.one("Allow")), (405, Some("POST")));
    let other = Request::get("/api/v1/nothing")
        .without("Host")
        .header("Host", "localhost");
    assert_eq!(proxy.admin(&other).status, 404);
    assert_eq!(proxy.ready(), Some(200));
    assert_eq!(proxy.admin(&host("localhost")).status, 200);
    assert_eq!(proxy.ready(), Some(503));
}

#[test]
fn a_drain_finds_a_unix_socket() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("admin.sock");
    let settings = format!("admin.listen = ['SELF-ADMIN', 'unix:{}']", socket.display());
    let proxy = Proxy::with(&upstream, &settings);
    UnixStream::connect(&socket).expect("the socket is there");
    let url = format!("unix:{}", socket.display());
    assert_eq!(ended(drain(&["--admin", &url])).0, Some(0));
    assert_eq!(ended(drain_of(&proxy)).0, Some(0));
    eventually("the log says who asked", || {
        proxy.log().contains("\"by\":\"unix\"")
    });
}
