//! Every limit holds: what is over it is refused early and cheaply, and what is under it goes on.

use std::time::Duration;

use crate::common::{
    Client, Gate, PATIENCE, Proxy, Request, Step, Trouble, Upstream, chunk, events, eventually,
    executed, key, marker, problem, replayed, reply, retry_after, sleep_ms,
};

#[test]
fn a_body_over_the_limit_is_refused_before_anything_is_claimed() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_request_body = '4KiB'");
    for chunked in [false, true] {
        let request = Request::order(&key());
        let large = request.clone().body("x".repeat(4097));
        let answer = proxy.send(&if chunked { large.chunked() } else { large });
        problem(&answer, "body-too-large");
        let just = request.body("x".repeat(4096));
        let first = executed(proxy.send(&if chunked {
            just.clone().chunked()
        } else {
            just.clone()
        }));
        replayed(&proxy.send(&just), &first);
    }
    assert_eq!(upstream.executions(), 2);
    let unkeyed = Request::write("POST", "/orders").body("x".repeat(1 << 20));
    assert_eq!(
        proxy.send(&unkeyed).status,
        201,
        "the limit is for keyed requests"
    );
}

#[test]
fn an_endless_keyed_body_is_refused_at_the_limit_and_never_held() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    let head = Request::order(&key())
        .without_body()
        .header("Transfer-Encoding", "chunked")
        .head();
    client.say(head);
    let piece = chunk(&vec![b'u'; 1 << 20]);
    let mut sent = 0_u64;
    // A gibibyte, if nobody stops it.
    while sent < 1024 && !client.stirs_within(Duration::from_millis(1)) {
        if client.try_say(&piece).is_err() {
            break;
        }
        sent += 1;
    }
    problem(&client.answer(), "body-too-large");
    assert!(sent < 256, "{sent} MiB were taken before the refusal");
    assert!(
        proxy.peak_memory() < 96 << 20,
        "{} MiB resident",
        proxy.peak_memory() >> 20
    );
    assert_eq!(upstream.executions() + upstream.partial(), 0);
}

#[test]
fn more_executions_than_allowed_are_refused_before_a_claim() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_executions = 2");
    let gate = Gate::new();
    upstream.always(Step::default().behind(&gate));
    let running = [Request::order(&key()), Request::order(&key())];
    let mut clients = running.each_ref().map(|request| proxy.begin(request));
    gate.arrivals(2);
    let third = Request::order(&key());
    let refused = proxy.send(&third);
    problem(&refused, "overloaded");
    assert!(retry_after(&refused) >= 1);
    // A copy of a running one is no execution.
    let mut copy = proxy.begin(&running[0]);
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    let first = executed(clients[0].answer());
    executed(clients[1].answer());
    replayed(&copy.answer(), &first);
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    assert_eq!(executed(proxy.send(&third)).execution(), 3);
}

#[test]
fn a_stream_counts_as_an_execution_to_its_end() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_executions = 1");
    let [first, last] = [(); 2].map(|()| Gate::new());
    upstream.then(events(&[(&first, "one"), (&last, "two")]));
    let mut client = proxy.begin(&Request::order(&key()));
    first.open();
    let (status, head) = client.head(PATIENCE).expect("a head");
    assert_eq!(status, 200);
    last.arrived();
    let other = Request::order(&key());
    problem(&proxy.send(&other), "overloaded");
    last.open();
    let read = client.count_body(&head, PATIENCE).expect("a body");
    assert_eq!(read, "data: one\n\ndata: two\n\n".len() as u64);
    eventually("its place is free", || {
        marker(&proxy.send(&other)) == Some("miss")
    });
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_stream_whose_client_leaves_gives_its_place_back() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_executions = 1");
    let [first, last] = [(); 2].map(|()| Gate::new());
    upstream.then(events(&[(&first, "one"), (&last, "two")]));
    let mut client = proxy.begin(&Request::order(&key()));
    first.open();
    client.head(PATIENCE).expect("a head");
    client.reset();
    let other = Request::order(&key());
    eventually("its place is free", || {
        marker(&proxy.send(&other)) == Some("miss")
    });
    last.open();
}

#[test]
fn more_bodies_than_may_be_held_are_refused_before_a_claim() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.max_buffered_bytes = '64KiB'\npolicy.max_request_body = '60KiB'",
    );
    let request = Request::order(&key()).body("x".repeat(50_000));
    let bytes = request.bytes();
    let mut slow = proxy.client();
    slow.say(&bytes[..bytes.len() - 1]);
    sleep_ms(500);
    let second = Request::order(&key()).body("y".repeat(50_000));
    problem(&proxy.send(&second), "overloaded");
    executed(slow.say(&bytes[bytes.len() - 1..]).answer());
    eventually("there is room again", || proxy.send(&second).status == 201);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_client_that_leaves_its_body_unfinished_gives_its_room_back() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.max_buffered_bytes = '64KiB'\npolicy.max_request_body = '60KiB'",
    );
    let request = Request::order(&key()).body("x".repeat(50_000));
    let bytes = request.bytes();
    for leave in [drop::<Client>, Client::reset] {
        for _ in 0..5 {
            let mut client = proxy.client();
            client.say(&bytes[..bytes.len() - 1]);
            leave(client);
        }
    }
    eventually("there is room again", || proxy.send(&request).status == 201);
}

#[test]
fn more_connections_than_allowed_are_refused_and_closed() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.max_connections = 3");
    let mut clients: Vec<_> = (0..3)
        .map(|_| proxy.begin(&Request::get("/free")))
        .collect();
    assert!(
        clients
            .iter_mut()
            .all(|client| client.answer().status == 200)
    );
    let mut fourth = proxy.client();
    let _ = fourth.try_say(Request::get("/free").bytes());
    problem(&fourth.answer(), "overloaded");
    assert!(fourth.is_closed());
    assert_eq!(clients[0].ask(&Request::get("/free")).answer().status, 200);
    drop(clients);
    eventually("there is room again", || {
        let mut client = proxy.client();
        let _ = client.try_say(Request::get("/free").bytes());
        client
            .try_answer(PATIENCE)
            .is_ok_and(|answer| answer.status == 200)
    });
}

#[test]
fn a_body_that_does_not_come_is_given_up_and_blocks_nobody() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '500ms'");
    let request = Request::order(&key());
    let bytes = request.bytes();
    let mut slow = proxy.client();
    slow.say(&bytes[..bytes.len() - 5]);
    sleep_ms(100);
    executed(proxy.send(&request));
    assert_eq!(slow.answer().status, 408);
    assert!(slow.is_closed());
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn an_unkeyed_upload_that_stalls_is_cut_on_both_sides() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '500ms'");
    let mut client = proxy.client();
    client.say("POST /free HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    eventually("the upstream's side ends", || upstream.partial() == 1);
    match client.try_answer(PATIENCE) {
        Ok(answer) => assert!(matches!(answer.status, 408 | 502 | 504), "{answer}"),
        Err(trouble) => assert_ne!(trouble, Trouble::Late, "the client is left hanging"),
    }
}

#[test]
fn a_body_that_comes_slowly_but_comes_is_taken() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '1500ms'");
    let request = Request::order(&key()).body("0123456789");
    let bytes = request.bytes();
    let mut client = proxy.client();
    client.say(&bytes[..bytes.len() - 8]);
    for at in (1..=8).rev() {
        sleep_ms(300);
        client.say(&bytes[bytes.len() - at..=bytes.len() - at]);
    }
    executed(client.answer());
    assert_eq!(upstream.only().body, b"0123456789");
}

#[test]
fn a_keyed_body_of_a_byte_now_and_then_is_not_waited_for_for_ever() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.body_timeout = '200ms'");
    let request = Request::order(&key()).body("x".repeat(1000));
    let bytes = request.bytes();
    let mut client = proxy.client();
    let (begun, rest) = bytes.split_at(bytes.len() - 900);
    client.say(begun);
    let gave_up = rest.iter().any(|byte| {
        sleep_ms(50);
        client.try_say([*byte]).is_err()
    });
    assert!(gave_up, "all of it was taken");
    assert_eq!(upstream.executions(), 0);
    executed(proxy.send(&request));
}

#[test]
fn a_head_that_does_not_come_is_given_up() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.head_timeout = '500ms'");
    let mut client = proxy.client();
    client.say("POST /orders HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    assert_eq!(client.answer().status, 408);
    assert!(client.is_closed());
    // A byte now and then is no whole head either.
    let mut drip = proxy.client();
    for byte in b"GET /free HTTP/1.1\r\n" {
        sleep_ms(100);
        if drip.try_say([*byte]).is_err() {
            break;
        }
    }
    assert!(
        drip.try_answer(PATIENCE)
            .map_or(true, |answer| answer.status == 408)
    );
    assert_eq!(upstream.executions() + upstream.partial(), 0);
}

#[test]
fn heads_and_targets_over_their_limits_are_refused() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "server.max_head_bytes = '8KiB'\nserver.max_target_bytes = '1KiB'",
    );
    let long = |count: usize| Request::get("/free").header("X-Long", "x".repeat(count));
    assert_eq!(proxy.send(&long(7900)).status, 200);
    assert_eq!(proxy.send(&long(9000)).status, 431);
    // Far more than would be read: the refusal may come while it is still being sent.
    let mut client = proxy.client();
    let _ = client.try_say(long(3_000_000).bytes());
    assert_eq!(client.answer().status, 431);
    let target = |count: usize| Request::get(&format!("/{}", "t".repeat(count - 1)));
    assert_eq!(proxy.send(&target(1024)).status, 200);
    assert_eq!(proxy.send(&target(1025)).status, 414);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn waiters_beyond_the_limit_are_refused_and_memory_stays_bounded() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_waiters = 100");
    crowd(&proxy, &upstream, 400, 100);
}

/// The same with as many as a stampede brings.
#[test]
#[ignore = "needs 20 000 file descriptors: cargo test -- --ignored"]
fn ten_thousand_waiters_on_one_key_are_refused_beyond_the_limit() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.max_waiters = 1000\nserver.max_connections = 20000",
    );
    crowd(&proxy, &upstream, 10_000, 1000);
}

/// What a client that waits may cost, with its connection.
const A_CONNECTION: u64 = 40 << 10;

fn crowd(proxy: &Proxy, upstream: &Upstream, count: usize, limit: u32) {
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let mut first = proxy.begin(&request);
    gate.arrived();
    let mut clients: Vec<_> = (0..count).map(|_| proxy.begin(&request)).collect();
    let refused = f64::from(u32::try_from(count).unwrap_or_default() - limit);
    proxy.await_metric(
        "idem_proxy_requests_total",
        &[("outcome", "conflict")],
        refused,
    );
    proxy.await_metric("idem_proxy_waiters", &[], f64::from(limit));
    let bound = (64 << 20) + count as u64 * A_CONNECTION;
    assert!(
        proxy.peak_memory() < bound,
        "{} MiB resident",
        proxy.peak_memory() >> 20
    );
    gate.open();
    let first = executed(first.answer());
    let (mut shared, mut conflicts) = (0, 0);
    for answer in clients.iter_mut().map(Client::answer) {
        if answer.status == 409 {
            problem(&answer, "in-flight");
            conflicts += 1;
        } else {
            replayed(&answer, &first);
            shared += 1;
        }
    }
    assert_eq!(
        (shared, conflicts),
        (limit as usize, count - limit as usize)
    );
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn clients_that_do_not_read_share_one_copy_of_a_stored_answer() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(reply(201).body("r".repeat(1 << 20)));
    executed(proxy.send(&request));
    let lazy: Vec<_> = (0..200).map(|_| proxy.begin(&request)).collect();
    proxy.await_metric("idem_proxy_connections", &[("side", "client")], 200.0);
    sleep_ms(500);
    assert!(
        proxy.peak_memory() < 128 << 20,
        "{} MiB resident",
        proxy.peak_memory() >> 20
    );
    drop(lazy);
    assert_eq!(marker(&proxy.send(&request)), Some("hit"));
}

/// Room for three answers of this size, not four.
const THREE: &str = "store.memory.max_bytes = '1MiB'";

fn large() -> Step {
    reply(201).body("x".repeat(300 << 10)).into()
}

#[test]
fn a_full_store_forgets_what_was_used_longest_ago_and_says_so() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, THREE);
    upstream.always(large());
    let requests = [(); 4].map(|()| Request::order(&key()));
    for request in &requests[..3] {
        executed(proxy.send(request));
    }
    assert_eq!(marker(&proxy.send(&requests[0])), Some("hit"));
    executed(proxy.send(&requests[3]));
    for at in [0, 2, 3] {
        assert_eq!(marker(&proxy.send(&requests[at])), Some("hit"), "{at}");
    }
    proxy.await_metric(
        "idem_proxy_store_evictions_total",
        &[("cause", "size")],
        1.0,
    );
    eventually("the log says that protection was lost", || {
        proxy.log().to_ascii_lowercase().contains("evict")
    });
    assert_eq!(marker(&proxy.send(&requests[1])), Some("miss"));
    assert!(proxy.metrics().sum("idem_proxy_store_bytes", &[]) <= f64::from(1 << 20));
}

#[test]
fn a_new_key_is_kept_however_popular_the_old_ones_are() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, THREE);
    upstream.always(large());
    for request in [(); 3].map(|()| Request::order(&key())) {
        for _ in 0..12 {
            proxy.send(&request);
        }
    }
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
}

#[test]
fn a_full_store_that_may_not_forget_refuses_new_keys_before_they_run() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        &format!("{THREE}\nstore.memory.on_full = 'reject'"),
    );
    upstream.always(reply(201).body("x".repeat(500)));
    let mut kept = Vec::new();
    let refused = loop {
        let request = Request::order(&key());
        let answer = proxy.send(&request);
        if answer.status != 201 {
            break answer;
        }
        kept.push((request, executed(answer)));
        assert!(kept.len() < 4000, "a store of 1 MiB is never full");
    };
    problem(&refused, "store-full");
    assert_eq!(upstream.executions(), kept.len());
    for (request, first) in kept.iter().step_by(50) {
        replayed(&proxy.send(request), first);
    }
}

#[test]
fn an_answer_without_room_is_still_never_executed_twice() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        &format!("{THREE}\nstore.memory.on_full = 'reject'"),
    );
    upstream.then(large());
    let small_enough = Request::order(&key());
    let kept = executed(proxy.send(&small_enough));
    // There is room for another answer like the first one, but not for this.
    upstream.then(reply(201).body("x".repeat(900 << 10)));
    let too_large = Request::order(&key());
    executed(proxy.send(&too_large));
    problem(&proxy.send(&too_large), "response-not-retained");
    replayed(&proxy.send(&small_enough), &kept);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_store_without_room_for_a_usual_answer_refuses_before_it_executes() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        &format!("{THREE}\nstore.memory.on_full = 'reject'"),
    );
    upstream.always(large());
    let requests = [(); 3].map(|()| Request::order(&key()));
    let answers = requests
        .each_ref()
        .map(|request| executed(proxy.send(request)));
    problem(&proxy.send(&Request::order(&key())), "store-full");
    for (request, first) in requests.iter().zip(&answers) {
        replayed(&proxy.send(request), first);
    }
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn claims_are_bounded_and_one_more_is_refused_before_it_runs() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "store.memory.max_claims = 2");
    let gate = Gate::new();
    upstream.always(Step::default().behind(&gate));
    let mut clients = [(); 2].map(|()| proxy.begin(&Request::order(&key())));
    gate.arrivals(2);
    problem(&proxy.send(&Request::order(&key())), "store-full");
    gate.open();
    for client in &mut clients {
        executed(client.answer());
    }
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    executed(proxy.send(&Request::order(&key())));
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn what_has_expired_is_freed_without_being_asked_for() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.retention = '1s'");
    upstream.then(Step::drop());
    for _ in 0..20 {
        proxy.send(&Request::order(&key()));
    }
    proxy.await_metric("idem_proxy_store_records", &[], 0.0);
    proxy.await_metric("idem_proxy_store_bytes", &[], 0.0);
}
