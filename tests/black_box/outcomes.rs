//! What the upstream did decides what becomes of the key: stored, released, unknown, or still running.

use std::collections::HashMap;

use crate::common::{
    Proxy, Request, Step, Upstream, executed, key, marker, problem, replayed, reply, retry_after,
    sleep_ms,
};

/// Answers that are sent and are no answers.
fn failures() -> Vec<(&'static str, Step)> {
    vec![
        ("closed without a byte", Step::drop()),
        ("reset", Step::reset()),
        ("not HTTP", Step::bytes("\0\x01 what is this\r\n\r\n")),
        (
            "half a head",
            Step::bytes("HTTP/1.1 201 Created\r\nContent-Le"),
        ),
        ("half a body by length", reply(201).cut_after(5).into()),
        (
            "half a body in chunks",
            reply(201).chunked().cut_after(5).into(),
        ),
        (
            "two lengths",
            Step::bytes("HTTP/1.1 201 C\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        ),
        (
            "a length that is none",
            Step::bytes("HTTP/1.1 201 C\r\nContent-Length: +2\r\n\r\nab"),
        ),
        (
            "a bad chunk",
            Step::bytes(
                "HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
            ),
        ),
        (
            "only an interim answer",
            Step::bytes("HTTP/1.1 102 Processing\r\n\r\n"),
        ),
    ]
}

#[test]
fn a_request_that_was_sent_and_not_answered_is_an_unknown_outcome() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (number, (what, step)) in failures().into_iter().enumerate() {
        let request = Request::order(&key());
        upstream.then(step);
        let first = proxy.send(&request);
        assert_eq!(first.status, 502, "{what}: {first}");
        problem(&first, "upstream-failed");
        let held = proxy.send(&request);
        assert_eq!(held.status, 409, "{what}: {held}");
        assert_eq!(
            problem(&held, "outcome-unknown")["retryable"],
            false,
            "{what}"
        );
        assert_eq!(retry_after(&held), 2, "{what}");
        problem(&proxy.send(&request.clone().body("{}")), "key-reused");
        assert_eq!(upstream.executions(), number + 1, "{what}");
    }
    let failures = u32::try_from(failures().len()).map_or(f64::NAN, f64::from);
    proxy.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "unknown")],
        failures,
    );
}

#[test]
fn a_connection_that_is_refused_releases_the_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.refuse();
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    assert_eq!(proxy.send(&Request::get("/free")).status, 502);
    upstream.recover();
    assert_eq!(executed(proxy.send(&request)).execution(), 1);
}

#[test]
fn an_upstream_that_went_away_with_its_connections_releases_the_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    executed(proxy.send(&Request::order(&key())));
    upstream.refuse();
    sleep_ms(200);
    let request = Request::order(&key());
    problem(&proxy.send(&request), "upstream-unreachable");
    upstream.recover();
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
fn a_hold_that_ends_lets_the_same_request_run_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.unknown_hold = '3s'");
    let request = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&request), "upstream-failed");
    let held = proxy.send(&request);
    assert_eq!(problem(&held, "outcome-unknown")["retryable"], true);
    assert!((1..=3).contains(&retry_after(&held)), "{held}");
    sleep_ms(3200);
    problem(&proxy.send(&request.clone().body("{}")), "key-reused");
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
fn a_hold_without_end_lasts_until_the_retention_ends() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.retention = '3s'\nupstream.capture_timeout = '1s'\nupstream.response_timeout = '1s'",
    );
    let request = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&request), "upstream-failed");
    problem(&proxy.send(&request), "outcome-unknown");
    sleep_ms(3200);
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
fn with_release_an_unknown_outcome_runs_again_at_once() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.unknown_outcome = 'release'");
    let request = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&request), "upstream-failed");
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
fn an_answer_outside_store_responses_passes_and_releases_the_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for status in [
        301, 303, 400, 401, 403, 404, 409, 422, 429, 500, 502, 503, 504,
    ] {
        let request = Request::order(&key());
        upstream.then(
            reply(status)
                .body("the upstream's own words")
                .header("X-Why", "db")
                .header("Retry-After", "7"),
        );
        let first = proxy.send(&request);
        assert_eq!(
            (first.status, first.body.as_slice()),
            (status, &b"the upstream's own words"[..])
        );
        assert_eq!(
            (first.one("X-Why"), first.one("Retry-After"), marker(&first)),
            (Some("db"), Some("7"), None)
        );
        executed(proxy.send(&request));
    }
}

#[test]
fn the_list_of_stored_statuses_reads_from_left_to_right() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.store_responses = ['201', '3xx', '4xx', '!429']",
    );
    for (status, stored) in [
        (201, true),
        (200, false),
        (303, true),
        (404, true),
        (429, false),
        (500, false),
    ] {
        let request = Request::order(&key());
        upstream.then(reply(status));
        let first = proxy.send(&request);
        assert_eq!(first.status, status);
        if stored {
            replayed(&proxy.send(&request), &executed(first));
        } else {
            assert_eq!(marker(&first), None, "{first}");
            executed(proxy.send(&request));
        }
    }
}

#[test]
fn chosen_statuses_leave_the_outcome_unknown() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.unknown_responses = ['502', '504']");
    let request = Request::order(&key());
    upstream.then(reply(504).body("from the upstream"));
    let first = proxy.send(&request);
    assert_eq!(
        (first.status, first.body.as_slice(), marker(&first)),
        (504, &b"from the upstream"[..], None)
    );
    problem(&proxy.send(&request), "outcome-unknown");
    assert_eq!(upstream.executions(), 1);
}

const IMPATIENT: &str = "policy.in_flight = 'conflict'\nupstream.response_timeout = '300ms'\nupstream.capture_timeout = ";

#[test]
fn no_answer_in_time_is_a_504_then_in_flight_then_unknown() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, &format!("{IMPATIENT}'3s'"));
    let request = Request::order(&key());
    upstream.then(Step::hang());
    problem(&proxy.send(&request), "upstream-timeout");
    problem(&proxy.send(&request), "in-flight");
    proxy.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "unknown")],
        1.0,
    );
    problem(&proxy.send(&request), "outcome-unknown");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_late_answer_is_recorded_and_replayed() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, &format!("{IMPATIENT}'1m'"));
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    problem(&proxy.send(&request), "upstream-timeout");
    gate.open();
    proxy.await_metric("idem_proxy_records_settled_total", &[("as", "late")], 1.0);
    let retry = proxy.send(&request);
    assert_eq!(
        (retry.status, marker(&retry), retry.execution()),
        (201, Some("hit"), 1)
    );
}

#[test]
fn a_late_answer_that_is_not_stored_releases_the_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, &format!("{IMPATIENT}'1m'"));
    let request = Request::order(&key());
    let gate = upstream.hold(reply(503));
    problem(&proxy.send(&request), "upstream-timeout");
    gate.open();
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    assert_eq!(executed(proxy.send(&request)).execution(), 2);
}

#[test]
fn a_joiner_waits_by_its_own_limit_and_not_by_the_first_clients() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "upstream.response_timeout = '300ms'");
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = proxy.begin(&request);
    problem(&first.answer(), "upstream-timeout");
    let mut third = proxy.begin(&request);
    proxy.await_metric("idem_proxy_waiters", &[], 2.0);
    gate.open();
    for client in [&mut second, &mut third] {
        let answer = client.answer();
        assert_eq!(
            (answer.status, marker(&answer), answer.execution()),
            (201, Some("hit"), 1)
        );
    }
}

#[test]
fn a_stream_that_breaks_off_stays_executed() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(
        reply(200)
            .bare()
            .header("Content-Type", "text/event-stream")
            .body("data: 1\n\n")
            .chunked()
            .cut_after(4),
    );
    let mut client = proxy.begin(&request);
    let broken = client.try_answer(std::time::Duration::from_secs(20));
    assert!(broken.is_err(), "half a stream looks whole: {broken:?}");
    problem(&proxy.send(&request), "response-not-retained");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn an_answer_that_comes_before_the_body_was_read_reaches_the_client() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key()).body("x".repeat(900_000));
    upstream.then(Step::from(reply(403).body("not for you")).early());
    let first = proxy.send(&request);
    assert_eq!(
        (first.status, first.body.as_slice()),
        (403, &b"not for you"[..]),
        "{first}"
    );
    executed(proxy.send(&request));
}

#[test]
fn interim_answers_do_not_count_as_the_answer() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(
        reply(201)
            .after_interim("HTTP/1.1 102 Processing\r\n\r\n")
            .after_interim("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"),
    );
    let first = executed(proxy.send(&request));
    assert_eq!((first.status, first.one("Link")), (201, None));
    replayed(&proxy.send(&request), &first);
}

#[test]
fn the_proxy_never_sends_a_request_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for step in [Step::drop(), Step::reset()] {
        // Fresh connections first, then pooled ones.
        for warm in [false, true] {
            if warm {
                assert_eq!(proxy.send(&Request::get("/warm")).status, 200);
            }
            let before = upstream.executions();
            upstream.then(step.clone());
            problem(&proxy.send(&Request::order(&key())), "upstream-failed");
            upstream.then(step.clone());
            assert_eq!(proxy.send(&Request::write("POST", "/orders")).status, 502);
            sleep_ms(150);
            assert_eq!(upstream.executions(), before + 2);
        }
    }
    assert_eq!(upstream.partial(), 0);
}

#[test]
fn connections_that_the_upstream_closed_while_idle_harm_nobody() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for execution in 1..=10 {
        assert_eq!(
            executed(proxy.send(&Request::order(&key()))).execution(),
            execution
        );
        upstream.close_idle();
        sleep_ms(100);
    }
    assert_eq!(upstream.executions(), 10);
}

#[test]
fn an_upstream_that_closes_at_random_gets_no_request_twice() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    // A fixed sequence that looks random: what the upstream does with each request.
    let mut seed = 0x2545_F491_u32;
    let mut client = proxy.client();
    let mut answers = HashMap::new();
    for number in 0..300 {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        upstream.always(match seed % 4 {
            0 => Step::drop(),
            1 | 2 => reply(201).then_close().into(),
            _ => reply(201).into(),
        });
        let name = format!("try-{number}");
        let mut request = Request::write("POST", "/orders").header("X-Try", &name);
        if seed & 64 == 0 {
            request = request.key(&key());
        }
        let answer = client.ask(&request).answer();
        if answer.one("Connection") == Some("close") {
            client = proxy.client();
        }
        answers.insert(name, answer);
    }
    let mut deliveries: HashMap<String, usize> = HashMap::new();
    for seen in upstream.seen() {
        *deliveries
            .entry(seen.one("X-Try").unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    for (name, answer) in &answers {
        let count = deliveries.get(name).copied().unwrap_or_default();
        assert!(count <= 1, "{name} was delivered {count} times");
        match answer.status {
            201 => assert_eq!(
                count, 1,
                "{name} was answered without having been delivered"
            ),
            502 if answer.json()["code"] == "UPSTREAM_UNREACHABLE" => {
                assert_eq!(
                    count, 0,
                    "{name} was delivered, and its client was told that it was not"
                );
            }
            status => assert_eq!(status, 502, "{answer}"),
        }
    }
    assert!(
        answers
            .values()
            .filter(|answer| answer.status == 201)
            .count()
            > 100
    );
}
