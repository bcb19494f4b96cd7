//! Starting and ending: a drain cuts off nothing that runs, and an end says by its code what it was.

use std::net::TcpListener;

use crate::common::{
    Client, PATIENCE, Proxy, Request, Step, Trouble, Upstream, eventually, executed, key, marker,
    replayed, sleep_ms,
};

/// Whether the proxy serves a new connection.
fn serves(proxy: &Proxy) -> bool {
    let Ok(stream) = std::net::TcpStream::connect(proxy.address()) else {
        return false;
    };
    drop(stream);
    let mut client = Client::connect(proxy.address());
    client.try_say(Request::get("/free").bytes()).is_ok()
        && client
            .try_answer(PATIENCE)
            .is_ok_and(|answer| answer.status == 200)
}

#[test]
fn a_drain_lets_what_runs_finish_and_takes_nothing_new() {
    for signal in ["TERM", "INT"] {
        let upstream = Upstream::start();
        let mut proxy = Proxy::start(&upstream);
        let request = Request::order(&key());
        let gate = upstream.hold(Step::default());
        let mut first = proxy.begin(&request);
        gate.arrived();
        let mut second = proxy.begin(&request);
        proxy.await_metric("idem_proxy_waiters", &[], 1.0);
        proxy.signal(signal);
        eventually("the proxy is not ready any more", || {
            proxy.ready() == Some(503)
        });
        assert_eq!(proxy.admin(&Request::get("/livez")).status, 200);
        eventually("new connections are refused", || {
            std::net::TcpStream::connect(proxy.address()).is_err()
        });
        assert!(proxy.runs());
        gate.open();
        let (first, second) = (executed(first.answer()), second.answer());
        replayed(&second, &first);
        assert_eq!(first.one("Connection"), Some("close"));
        assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
        assert_eq!((upstream.executions(), upstream.lost()), (1, 0));
    }
}

#[test]
fn a_drain_waits_for_an_execution_whose_client_has_left() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::start(&upstream);
    let gate = upstream.hold(Step::default());
    let client = proxy.begin(&Request::order(&key()));
    gate.arrived();
    client.reset();
    proxy.signal("TERM");
    eventually("the proxy is not ready any more", || {
        proxy.ready() == Some(503)
    });
    sleep_ms(300);
    assert!(
        proxy.runs(),
        "the proxy left a running call behind: {}",
        proxy.log()
    );
    gate.open();
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    assert_eq!(upstream.lost(), 0);
}

#[test]
fn idle_connections_and_half_a_head_do_not_hold_a_drain_up() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(
        &upstream,
        "server.drain_timeout = '20s'\nserver.head_timeout = '60s'",
    );
    let mut idle = proxy.client();
    assert_eq!(idle.ask(&Request::get("/free")).answer().status, 200);
    let silent = proxy.client();
    let mut half = proxy.client();
    half.say("GET /free HT");
    let started = std::time::Instant::now();
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    assert!(
        started.elapsed().as_secs() < 15,
        "the drain took {:?}",
        started.elapsed()
    );
    assert!(idle.is_closed());
    drop(silent);
}

#[test]
fn before_a_drain_the_proxy_may_stay_open_for_a_while() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.drain_delay = '3s'");
    proxy.signal("TERM");
    eventually("the proxy is not ready any more", || {
        proxy.ready() == Some(503)
    });
    assert!(
        serves(&proxy),
        "the proxy refused while others may still send to it"
    );
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
}

#[test]
fn work_that_a_drain_cuts_off_is_named_and_makes_it_a_failure() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(
        &upstream,
        "server.drain_timeout = '500ms'\npolicy.in_flight = 'conflict'",
    );
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut client = proxy.begin(&request);
    gate.arrived();
    let busy = proxy.send(&request).json();
    let record = busy["record"]
        .as_str()
        .expect("the problem names its record")
        .to_owned();
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(1), "{}", proxy.log());
    let named = |line: &str| line.contains(&record) && !line.contains("\"outcome\"");
    assert!(
        proxy.log().lines().any(named),
        "{record} is not named: {}",
        proxy.log()
    );
    assert!(!matches!(client.try_answer(PATIENCE), Err(Trouble::Late)));
    gate.open();
}

#[test]
fn a_second_signal_ends_a_drain_at_once() {
    let upstream = Upstream::start();
    let mut proxy = Proxy::with(&upstream, "server.drain_timeout = '10m'");
    let gate = upstream.hold(Step::default());
    let _client = proxy.begin(&Request::order(&key()));
    gate.arrived();
    proxy.signal("TERM");
    eventually("the proxy is not ready any more", || {
        proxy.ready() == Some(503)
    });
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(1), "{}", proxy.log());
    gate.open();
}

#[test]
fn an_address_in_use_is_named_and_ends_the_start() {
    let upstream = Upstream::start();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address");
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let free = elsewhere.local_addr().expect("an address");
    drop(elsewhere);
    for (listen, settings) in [
        (address, String::new()),
        (free, format!("admin.listen = '{address}'")),
    ] {
        let (_folder, path) = Proxy::file(&upstream, listen, &settings);
        let output = Proxy::run(&["--config", &path.to_string_lossy()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains(&address.to_string()),
            "the address is not named: {said}"
        );
    }
}

#[test]
fn a_wrong_configuration_never_starts() {
    let upstream = Upstream::start();
    let address = "127.0.0.1:1".parse().expect("an address");
    let (_folder, path) = Proxy::file(&upstream, address, "policy.retenton = '1h'");
    let output = Proxy::run(&["--config", &path.to_string_lossy()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("retenton") && said.contains("retention"),
        "{said}"
    );
}

#[test]
fn the_start_says_what_a_store_in_memory_forgets() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    eventually("the log says so", || {
        let log = proxy.log().to_ascii_lowercase();
        log.contains("memory") && log.contains("restart")
    });
}

#[test]
fn several_addresses_are_served_at_once() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("idem.sock");
    let settings = format!("server.listen = ['SELF', 'unix:{}']", socket.display());
    let proxy = Proxy::with(&upstream, &settings);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("the socket is there");
    std::io::Write::write_all(&mut stream, &request.header("Connection", "close").bytes())
        .expect("it reads");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("it answers");
    assert!(
        answer
            .to_ascii_lowercase()
            .contains("idempotency-key-reply: hit"),
        "{answer}"
    );
    assert_eq!(marker(&first), Some("miss"));
}
