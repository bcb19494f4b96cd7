//! The process and its limit of open files: it is raised, it is kept, and a flood that reaches it ends with it.

use std::{net::TcpStream, time::Duration};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::common::{Client, Proxy, Request, Upstream, eventually, executed, key, sleep_ms};

/// Its soft and its hard limit of open files.
fn open_files(proxy: &Proxy) -> (u64, u64) {
    let path = format!("/proc/{}/limits", proxy.id());
    let limits = std::fs::read_to_string(path).expect("the proxy runs");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let mut words = line.expect("there is one").split_whitespace().skip(3);
    let mut number = || words.next().and_then(|word| word.parse().ok());
    (
        number().expect("a number"),
        number().expect("another number"),
    )
}

/// The processor time that it has used.
fn cpu(proxy: &Proxy) -> Duration {
    let path = format!("/proc/{}/stat", proxy.id());
    let stat = std::fs::read_to_string(path).expect("the proxy runs");
    let (_, rest) = stat.rsplit_once(')').expect("the name stands in brackets");
    let ticks = |at: usize| -> u64 {
        let word = rest.split_whitespace().nth(at);
        word.and_then(|word| word.parse().ok()).expect("a number")
    };
    // User and system time, in hundredths of a second.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

fn serves(proxy: &Proxy) -> bool {
    let Ok(stream) = TcpStream::connect(proxy.address()) else {
        return false;
    };
    drop(stream);
    let mut client = Client::connect(proxy.address());
    client.try_say(Request::get("/free").bytes()).is_ok()
        && client
            .try_answer(Duration::from_secs(5))
            .is_ok_and(|answer| answer.status == 200)
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let upstream = Upstream::start();
    let proxy = Proxy::launch_after("ulimit -S -n 100", &upstream, "", &[]);
    let (soft, hard) = open_files(&proxy);
    assert_eq!(soft, hard);
    assert!(hard > 100, "{hard}");
}

#[test]
fn connections_that_do_not_fit_into_the_limit_are_refused_and_not_taken() {
    let upstream = Upstream::start();
    let proxy = Proxy::launch_after("ulimit -n 64", &upstream, "", &[]);
    assert_eq!(open_files(&proxy), (64, 64));
    let warned = |line: &str| {
        line.contains("\"max_connections\":10000") && line.contains("\"open_files\":64")
    };
    eventually("the log names both numbers", || {
        proxy.log().lines().any(warned)
    });
    executed(proxy.send(&Request::order(&key())));
    let flood: Vec<_> = (0..300)
        .filter_map(|_| TcpStream::connect(proxy.address()).ok())
        .collect();
    let before = cpu(&proxy);
    sleep_ms(2000);
    let used = cpu(&proxy).saturating_sub(before);
    assert!(used < Duration::from_secs(1), "{used:?} of 2 s were used");
    let refused = "idem_proxy_limit_refusals_total";
    let over = proxy
        .metrics()
        .sum(refused, &[("limit", "max_connections")]);
    assert!(over > 100.0, "{over}");
    drop(flood);
    eventually("it serves again", || serves(&proxy));
    executed(proxy.send(&Request::order(&key())));
}

#[test]
fn a_process_without_files_waits_for_them_and_counts_it() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let pid = i32::try_from(proxy.id()).ok().and_then(Pid::from_raw);
    let limit = |files: Option<u64>| {
        let (_, hard) = open_files(&proxy);
        let limit = Rlimit {
            current: Some(files.unwrap_or(hard)),
            maximum: Some(hard),
        };
        prlimit(pid, Resource::Nofile, limit).expect("the proxy is ours");
    };
    // Not one more than there are, which are numbered from 0.
    limit(Some(3));
    let waiting: Vec<_> = (0..20).map(|_| proxy.client()).collect();
    let before = cpu(&proxy);
    sleep_ms(2000);
    let used = cpu(&proxy).saturating_sub(before);
    assert!(used < Duration::from_secs(1), "{used:?} of 2 s were used");
    limit(None);
    for mut client in waiting {
        let answer = client.ask(&Request::get("/free")).answer();
        assert_eq!(answer.status, 200, "who waited is served");
    }
    let labels = [("limit", "open_files")];
    let counted = proxy
        .metrics()
        .sum("idem_proxy_limit_refusals_total", &labels);
    assert!(counted > 0.0 && counted < 1000.0, "{counted}");
    assert!(
        proxy
            .log()
            .contains("cannot accept connections; trying again")
    );
}
