//! What is kept and comes back: the status, the header lines, every byte of the body, and for how long.

use std::time::Duration;

use crate::common::{
    Framing, Gate, PATIENCE, Proxy, Request, Upstream, events, executed, key, marker, problem,
    replayed, reply, sleep_ms,
};

#[test]
fn the_status_comes_back() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for status in [200, 201, 202, 203, 204, 206, 226, 299] {
        let request = Request::order(&key());
        upstream.then(reply(status));
        let first = executed(proxy.send(&request));
        assert_eq!(first.status, status);
        let again = proxy.send(&request);
        replayed(&again, &first);
        // The usual phrase, or none where there is no usual one.
        let phrase = http::StatusCode::from_u16(status).ok();
        let phrase = phrase.and_then(|status| status.canonical_reason());
        let line = format!("HTTP/1.1 {status} {}", phrase.unwrap_or_default());
        assert_eq!(again.head.start, line);
    }
    assert_eq!(upstream.executions(), 8);
}

#[test]
fn a_204_has_neither_body_nor_type_nor_length() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::write("DELETE", "/orders/7")
        .without_body()
        .key(&key());
    upstream.then(reply(204)).then(reply(404));
    let mut client = proxy.client();
    let first = executed(client.ask(&request).answer());
    let again = client.ask(&request).answer();
    replayed(&again, &first);
    assert_eq!(
        (again.one("Content-Length"), again.one("Content-Type")),
        (None, None),
        "{again}"
    );
    // The gone resource shows itself to a new key only.
    assert_eq!(
        client
            .ask(&request.without("Idempotency-Key").key(&key()))
            .answer()
            .status,
        404
    );
}

#[test]
fn header_lines_come_back_in_their_order_and_byte_for_byte() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(
        reply(201)
            .header("Link", "</a>; rel=next")
            .header("X-Note", b"caf\xe9")
            .header("Link", "</b>; rel=prev")
            .header("Warning", "199 - one")
            .header("Link", "</a>; rel=next")
            .header("X-Empty", "")
            .header("Location", "/orders/9?x=%7E"),
    );
    let first = executed(proxy.send(&request));
    let again = proxy.send(&request);
    replayed(&again, &first);
    for answer in [first, again] {
        assert_eq!(
            answer.all("Link"),
            ["</a>; rel=next", "</b>; rel=prev", "</a>; rel=next"]
        );
        assert_eq!(answer.one("X-Note"), Some("caf\u{e9}"));
        assert_eq!(
            (answer.one("X-Empty"), answer.one("Location")),
            (Some(""), Some("/orders/9?x=%7E"))
        );
        assert!(answer.one("ETag").is_some());
    }
}

#[test]
fn bodies_come_back_byte_for_byte_whatever_they_are() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let every_byte: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let looks_packed: &[u8] = &[31, 139, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
    let bodies: [&[u8]; 7] = [
        b"",
        b"false",
        b"null",
        b"0",
        b"{}",
        &every_byte,
        looks_packed,
    ];
    for body in bodies {
        for chunked in [false, true] {
            let request = Request::order(&key());
            let answer = reply(200)
                .body(body)
                .header("Content-Type", "application/x-odd")
                .header("Content-Encoding", "gzip");
            upstream.then(if chunked { answer.chunked() } else { answer });
            let mut client = proxy.client();
            let first = executed(client.ask(&request).answer());
            assert!(first.body == body, "the first client got {first}");
            let again = client.ask(&request).answer();
            replayed(&again, &first);
            assert_eq!(again.one("Content-Encoding"), Some("gzip"));
            assert_ne!(again.framing, Framing::Close);
        }
    }
    assert_eq!(upstream.executions(), 14);
}

#[test]
fn large_bodies_come_back_byte_for_byte_however_they_are_framed() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for size in [8_000, 16_383, 16_384, 16_385, 200_000, 1 << 20] {
        let body = (0..=250).cycle().take(size).collect::<Vec<u8>>();
        for answer in [reply(201), reply(201).chunked(), reply(201).until_close()] {
            let request = Request::order(&key());
            upstream.then(answer.body(&body));
            let first = executed(proxy.send(&request));
            assert!(first.body == body, "{size} bytes");
            replayed(&proxy.send(&request), &first);
        }
    }
}

#[test]
fn a_large_answer_that_breaks_off_is_an_unknown_outcome() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for cut in [10, 20_000, 199_999] {
        let request = Request::order(&key());
        upstream.then(reply(201).body("x".repeat(200_000)).cut_after(cut));
        problem(&proxy.send(&request), "upstream-failed");
        problem(&proxy.send(&request), "outcome-unknown");
    }
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn an_answer_that_ends_with_its_connection_is_replayed_with_a_length() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(
        reply(200)
            .body("a,b\n1,2\n")
            .header("Content-Type", "text/csv; header=present")
            .until_close(),
    );
    let first = executed(proxy.send(&request));
    let again = proxy.send(&request);
    replayed(&again, &first);
    assert_eq!(again.one("Content-Type"), Some("text/csv; header=present"));
    assert_eq!(again.body, b"a,b\n1,2\n");
}

#[test]
fn a_replay_is_a_snapshot_and_needs_no_upstream() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(reply(201).body("queued"));
    let first = executed(proxy.send(&request));
    upstream.then(reply(200).body("done"));
    assert_eq!(proxy.send(&Request::get("/orders")).body, b"done");
    upstream.refuse();
    replayed(&proxy.send(&request), &first);
}

#[test]
fn a_cookie_reaches_the_first_client_alone() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(
        reply(201)
            .header("Set-Cookie", "a=1")
            .header("Set-Cookie", "b=2"),
    );
    assert_eq!(proxy.send(&request).all("Set-Cookie"), ["a=1", "b=2"]);
    assert!(proxy.send(&request).all("Set-Cookie").is_empty());
}

#[test]
fn a_joiners_answer_is_a_replay() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.expiry_header = 'Idempotency-Key-Expires'",
    );
    let request = Request::order(&key());
    let gate = upstream.hold(reply(201));
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut second = proxy.begin(&request);
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    let (first, second) = (executed(first.answer()), second.answer());
    replayed(&second, &first);
    assert!(first.one("Idempotency-Key-Expires").is_some());
}

#[test]
fn the_replayed_headers_are_those_that_the_policy_names() {
    let upstream = Upstream::start();
    for (setting, wanted) in [
        (
            "'end-to-end'",
            &[
                "content-language",
                "content-type",
                "etag",
                "location",
                "x-execution",
            ][..],
        ),
        ("'none'", &["content-language", "content-type"]),
        (
            "['location', 'set-cookie']",
            &["content-language", "content-type", "location", "set-cookie"],
        ),
    ] {
        let proxy = Proxy::with(&upstream, &format!("policy.replay_headers = {setting}"));
        let request = Request::order(&key());
        upstream.then(reply(201).header("Content-Language", "de"));
        let first = executed(proxy.send(&request));
        assert!(
            first.one("Set-Cookie").is_some() && first.one("ETag").is_some(),
            "{first}"
        );
        let again = proxy.send(&request);
        let mut names = again.head.fields.names();
        let ours = ["content-length", "date", "idempotency-key-reply"];
        names.retain(|name| !ours.contains(&name.as_str()));
        names.sort();
        assert_eq!(names, wanted, "with {setting}");
    }
}

#[test]
fn the_marker_has_the_name_and_values_of_the_policy() {
    let upstream = Upstream::start();
    let settings =
        "policy.marker_header = 'X-Replay'\npolicy.marker_miss = ''\npolicy.marker_hit = 'again'";
    let proxy = Proxy::with(&upstream, settings);
    let request = Request::order(&key());
    let (first, again) = (proxy.send(&request), proxy.send(&request));
    assert_eq!((first.one("X-Replay"), marker(&first)), (None, None));
    assert_eq!(
        (again.one("X-Replay"), marker(&again)),
        (Some("again"), None)
    );
    let silent = Proxy::with(&upstream, "policy.marker_header = ''");
    let request = Request::order(&key());
    for _ in 0..2 {
        assert_eq!(marker(&silent.send(&request)), None);
    }
}

#[test]
fn the_upstreams_own_header_of_the_markers_name_is_replaced() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for status in [201, 500] {
        let request = Request::order(&key());
        upstream.then(reply(status).header("Idempotency-Key-Reply", "hit"));
        let first = proxy.send(&request);
        assert_eq!(marker(&first), (status == 201).then_some("miss"), "{first}");
    }
}

#[test]
fn the_end_of_the_retention_is_told_and_stays_the_same() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.expiry_header = 'Idempotency-Key-Expires'\npolicy.retention = '1h'\npolicy.max_response_body = '1KiB'",
    );
    #[expect(
        clippy::disallowed_methods,
        reason = "the header is a time of the wall clock"
    )]
    let now = std::time::SystemTime::now();
    for answer in [reply(201), reply(201).body("x".repeat(5000))] {
        let request = Request::order(&key());
        upstream.then(answer);
        let first = executed(proxy.send(&request));
        let expires = first
            .one("Idempotency-Key-Expires")
            .expect("the header is there");
        let expires = httpdate::parse_http_date(expires).expect("an HTTP date");
        let left = expires.duration_since(now).expect("in the future");
        assert!((3590..3690).contains(&left.as_secs()), "{left:?}");
        sleep_ms(1100);
        let again = proxy.send(&request);
        if again.status == 201 {
            replayed(&again, &first);
        }
        assert_eq!(
            again.one("Idempotency-Key-Expires"),
            first.one("Idempotency-Key-Expires"),
            "{again}"
        );
    }
}

#[test]
fn a_replay_has_one_date_and_no_age() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let date = "Mon, 02 Mar 2026 10:00:00 GMT";
    upstream.then(reply(201).header("Date", date));
    for _ in 0..2 {
        let answer = proxy.send(&request);
        assert_eq!(
            (answer.all("Date"), answer.all("Age").len()),
            (vec![date], 0),
            "{answer}"
        );
    }
}

#[test]
fn an_answer_too_large_to_keep_passes_whole_and_is_never_executed_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '64KiB'");
    let large: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for chunked in [false, true] {
        let request = Request::order(&key());
        let answer = reply(201).body(&large);
        upstream.then(if chunked { answer.chunked() } else { answer });
        let first = executed(proxy.send(&request));
        assert!(
            first.body == large,
            "{} of {} bytes came",
            first.body.len(),
            large.len()
        );
        let again = proxy.send(&request);
        assert_eq!(
            problem(&again, "response-not-retained")["original_status"],
            201
        );
        problem(&proxy.send(&request.clone().body("{}")), "key-reused");
    }
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn an_answer_of_just_the_limit_is_kept_and_one_byte_more_is_not() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '4KiB'");
    for (size, kept) in [(4096, true), (4097, false)] {
        for chunked in [false, true] {
            let request = Request::order(&key());
            let answer = reply(201).body("x".repeat(size));
            upstream.then(if chunked { answer.chunked() } else { answer });
            let first = executed(proxy.send(&request));
            assert_eq!(first.body.len(), size);
            let again = proxy.send(&request);
            if kept {
                replayed(&again, &first);
            } else {
                problem(&again, "response-not-retained");
            }
        }
    }
}

#[test]
fn a_large_answer_that_nobody_reads_to_its_end_stays_executed() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '64KiB'");
    let request = Request::order(&key());
    upstream.then(reply(201).endless(64 << 20));
    let mut client = proxy.begin(&request);
    assert_eq!(client.head(PATIENCE).map(|(status, _)| status), Ok(201));
    client.reset();
    sleep_ms(200);
    problem(&proxy.send(&request), "response-not-retained");
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn events_reach_the_client_as_they_come_and_are_not_replayed() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key()).header("Accept", "text/event-stream");
    let (now, later) = (Gate::new(), Gate::new());
    now.open();
    upstream.then(events(&[(&now, "1"), (&later, "2")]));
    let mut client = proxy.begin(&request);
    let (status, head) = client
        .head(PATIENCE)
        .expect("the head comes before the end");
    assert_eq!(
        (status, head.fields.one("Content-Type")),
        (200, Some("text/event-stream"))
    );
    assert!(
        client.stirs_within(PATIENCE),
        "the first event is held back"
    );
    // A copy meanwhile is told that there will be nothing to share.
    let copy = proxy
        .begin(&request)
        .try_answer(PATIENCE)
        .expect("an answer before the stream's end");
    assert_eq!(copy.status, 409, "{copy}");
    later.open();
    assert_eq!(
        client.count_body(&head, PATIENCE),
        Ok("data: 1\n\ndata: 2\n\n".len() as u64)
    );
    assert_eq!(
        problem(&proxy.send(&request), "response-not-retained")["original_status"],
        200
    );
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn other_media_types_can_be_streams_too() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.stream_types = ['application/x-ndjson']");
    let request = Request::order(&key());
    upstream.then(
        reply(200)
            .header("Content-Type", "Application/X-NDJSON; charset=utf-8")
            .body("{}\n"),
    );
    assert_eq!(proxy.send(&request).body, b"{}\n");
    problem(&proxy.send(&request), "response-not-retained");
    // An event stream is no stream there, but an answer like any other.
    let request = Request::order(&key());
    upstream.then(
        reply(200)
            .header("Content-Type", "text/event-stream")
            .body("data: 1\n\n"),
    );
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
}

#[test]
fn a_slow_answer_is_recorded_whole() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(reply(201).dripping(Duration::from_millis(50), &["one ", "two ", "three"]));
    let first = executed(proxy.send(&request));
    assert_eq!(first.body, b"one two three");
    replayed(&proxy.send(&request), &first);
}

#[test]
fn a_record_ends_with_its_retention_and_replays_do_not_extend_it() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.retention = '4s'");
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    for _ in 0..3 {
        sleep_ms(600);
        replayed(&proxy.send(&request), &first);
    }
    sleep_ms(2600);
    let second = executed(proxy.send(&request));
    assert_eq!(second.execution(), 2);
    replayed(&proxy.send(&request), &second);
}

#[test]
fn a_retention_may_count_from_the_start() {
    let upstream = Upstream::start();
    let settings = "policy.retention = '4s'\npolicy.retention_from = 'start'\nupstream.capture_timeout = '4s'\nupstream.response_timeout = '4s'";
    let proxy = Proxy::with(&upstream, settings);
    let request = Request::order(&key());
    upstream.then(crate::common::Step::from(reply(201)).after(Duration::from_secs(2)));
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    sleep_ms(2200);
    executed(proxy.send(&request));
    assert_eq!(upstream.executions(), 2);
}
