//! Clients that go away: first ones and joiners, with FIN and with RST, at every point of a request's life.

use crate::{
    common::{
        Client, Gate, Proxy, Request, Step, Upstream, eventually, executed, key, marker, problem,
        replayed, reply, sleep_ms,
    },
    executions::{CONFLICT, joiner, leader},
};

/// Ways to leave.
const DEPARTURES: [fn(Client); 3] = [drop::<Client>, Client::reset, |mut client| {
    // The bytes of a next request stand behind the first one: the proxy still has something to read.
    let _ = client.try_say("GET /f");
    client.reset();
}];

#[test]
fn a_client_that_leaves_while_the_upstream_works_changes_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, CONFLICT);
    for (index, leave) in DEPARTURES.into_iter().enumerate() {
        let request = Request::order(&key());
        let (client, gate) = leader(&proxy, &upstream, &request);
        leave(client);
        sleep_ms(100);
        problem(&proxy.send(&request), "in-flight");
        gate.open();
        proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
        let retry = proxy.send(&request);
        assert_eq!(
            (marker(&retry), retry.execution()),
            (Some("hit"), index as u64 + 1),
            "{retry}"
        );
    }
    assert_eq!(upstream.executions(), DEPARTURES.len());
}

#[test]
fn a_client_that_leaves_as_soon_as_its_request_is_sent_changes_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (index, leave) in DEPARTURES.into_iter().enumerate() {
        let request = Request::order(&key());
        leave(proxy.begin(&request));
        // Whether the proxy read the request before the end of the connection or not, it runs once in all.
        let retry = proxy.send(&request);
        assert_eq!(retry.execution(), index as u64 + 1, "{retry}");
        assert!(marker(&retry).is_some());
    }
    assert_eq!(upstream.executions(), DEPARTURES.len());
}

#[test]
fn a_client_that_leaves_while_the_answer_comes_in_changes_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, CONFLICT);
    for leave in DEPARTURES {
        let request = Request::order(&key());
        let gate = Gate::new();
        upstream.then(reply(201).halted("first half, ", &gate, "second half"));
        let client = proxy.begin(&request);
        gate.arrived();
        leave(client);
        sleep_ms(100);
        gate.open();
        proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
        let retry = proxy.send(&request);
        assert_eq!(marker(&retry), Some("hit"), "{retry}");
        assert_eq!(retry.body, b"first half, second half");
    }
    assert_eq!(upstream.executions(), DEPARTURES.len());
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_leaves_nothing_behind() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, CONFLICT);
    for leave in DEPARTURES {
        for chunked in [false, true] {
            let request = Request::order(&key()).body("x".repeat(5000));
            let request = if chunked { request.chunked() } else { request };
            let bytes = request.bytes();
            let before = upstream.executions();
            let mut client = proxy.client();
            client.say(&bytes[..bytes.len() - 100]);
            leave(client);
            executed(proxy.send(&request));
            assert_eq!(upstream.executions(), before + 1);
        }
    }
    assert_eq!(upstream.partial(), 0);
}

#[test]
fn a_client_that_closes_its_sending_side_is_one_that_left() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let (mut client, gate) = leader(&proxy, &upstream, &request);
    client.finish_writing();
    gate.open();
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    assert_eq!(marker(&proxy.send(&request)), Some("hit"));
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn the_first_client_leaves_and_joiners_get_the_answer() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for leave in DEPARTURES {
        let request = Request::order(&key());
        let (client, gate) = leader(&proxy, &upstream, &request);
        let mut joined = [joiner(&proxy, &request, 1.0), joiner(&proxy, &request, 2.0)];
        leave(client);
        sleep_ms(50);
        gate.open();
        let answers = joined.each_mut().map(Client::answer);
        for answer in &answers {
            assert_eq!(
                (answer.status, marker(answer)),
                (201, Some("hit")),
                "{answer}"
            );
            assert_eq!(answer.body, answers[0].body);
        }
    }
    assert_eq!(upstream.executions(), DEPARTURES.len());
}

#[test]
fn a_joiner_that_leaves_takes_nobody_with_it() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for leave in [drop::<Client>, Client::reset] {
        let request = Request::order(&key());
        let (mut first, gate) = leader(&proxy, &upstream, &request);
        let mut stays = joiner(&proxy, &request, 1.0);
        let goes = joiner(&proxy, &request, 2.0);
        leave(goes);
        proxy.await_metric("idem_proxy_waiters", &[], 1.0);
        gate.open();
        let first = executed(first.answer());
        replayed(&stays.answer(), &first);
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn when_everybody_leaves_the_answer_is_still_recorded() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let (first, gate) = leader(&proxy, &upstream, &request);
    let second = joiner(&proxy, &request, 1.0);
    first.reset();
    drop(second);
    sleep_ms(100);
    gate.open();
    eventually("the record is complete", || {
        proxy
            .metrics()
            .sum("idem_proxy_records_settled_total", &[("as", "complete")])
            > 0.5
    });
    assert_eq!(marker(&proxy.send(&request)), Some("hit"));
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_request_whose_client_leaves_is_counted_and_logged_once() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let requests = "idem_proxy_requests_total";
    for (leave, count) in [(drop as fn(Client), 1), (Client::reset, 2)] {
        let wanted = f64::from(count);
        let gate = upstream.hold(Step::default());
        let client = proxy.begin(&Request::write("POST", "/orders"));
        gate.arrived();
        leave(client);
        proxy.await_metric(requests, &[("outcome", "unkeyed")], wanted);
        let calls = "idem_proxy_upstream_duration_seconds_count";
        proxy.await_metric(calls, &[("status_class", "none")], wanted);
        gate.open();
    }
    let request = Request::order(&key());
    let (first, gate) = leader(&proxy, &upstream, &request);
    drop(joiner(&proxy, &request, 1.0));
    proxy.await_metric(requests, &[("outcome", "joined")], 1.0);
    drop(first);
    proxy.await_metric(requests, &[("outcome", "miss")], 1.0);
    gate.open();
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    assert_eq!(marker(&proxy.send(&request)), Some("hit"));
    // One that was answered is counted by that alone.
    assert_eq!(proxy.send(&Request::write("POST", "/orders")).status, 201);
    let unkeyed = [("outcome", "unkeyed")];
    assert_eq!(
        proxy.metrics().sum(requests, &unkeyed).to_bits(),
        3_f64.to_bits()
    );
    assert_eq!(
        proxy.metrics().sum(requests, &[]).to_bits(),
        6_f64.to_bits()
    );
    let lines = || {
        let log = proxy.log();
        let lines = log.lines().filter(|line| line.contains("\"outcome\":"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("each has a line", || lines().len() == 6);
    let left = lines()
        .into_iter()
        .filter(|line| !line.contains("\"status\":"));
    assert_eq!(left.count(), 4, "{}", proxy.log());
}

#[test]
fn a_request_that_never_came_whole_is_counted_and_logged_once() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let bytes = Request::order(&key()).bytes();
    for (leave, count) in [(drop as fn(Client), 1), (Client::reset, 2)] {
        let mut client = proxy.client();
        client.say(&bytes[..bytes.len() - 5]);
        sleep_ms(50);
        leave(client);
        let bad = [("outcome", "bad_request")];
        proxy.await_metric("idem_proxy_requests_total", &bad, f64::from(count));
    }
    assert_eq!(upstream.executions(), 0);
}
