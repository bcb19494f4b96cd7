//! Bodies of any size pass as they come, in both directions, and are never held.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use crate::common::{
    Gate, PATIENCE, Proxy, Request, Step, Upstream, chunk, events, eventually, key, reply,
};

/// What a proxy may need at most while it moves a body of any size.
const MOVING: u64 = 96 << 20;

#[test]
fn a_large_upload_passes_without_being_held() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upload(&proxy, &upstream, 256);
}

/// The same with more than any buffer would ever be.
#[test]
#[ignore = "takes a minute: cargo test -- --ignored"]
fn an_upload_of_a_gibibyte_passes_without_being_held() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upload(&proxy, &upstream, 1024);
}

fn upload(proxy: &Proxy, upstream: &Upstream, mebibytes: u64) {
    let mut client = proxy.client();
    client.say("POST /free HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    let piece = chunk(&vec![b'u'; 1 << 20]);
    for _ in 0..mebibytes {
        client.say(&piece);
    }
    client.say("0\r\n\r\n");
    assert_eq!(client.answer().status, 201);
    assert_eq!(upstream.only().body_size, mebibytes << 20);
    let peak = proxy.peak_memory();
    assert!(peak < MOVING, "{} MiB resident", peak >> 20);
}

#[test]
fn a_large_answer_passes_without_being_held() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.max_response_body = '64KiB'");
    // Without a key, and under a key that keeps no answer of this size.
    for request in [Request::get("/free"), Request::order(&key())] {
        upstream.then(reply(200).endless(256 << 20));
        let mut client = proxy.begin(&request);
        let (status, head) = client.head(PATIENCE).expect("the head");
        assert_eq!(status, 200);
        assert_eq!(client.count_body(&head, PATIENCE * 3), Ok(256 << 20));
    }
    let peak = proxy.peak_memory();
    assert!(peak < MOVING, "{} MiB resident", peak >> 20);
}

#[test]
fn an_upload_is_on_its_way_before_its_end() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut client = proxy.client();
    client.say("POST /free HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.say(chunk(b"hello"));
    eventually("the first piece is at the upstream", || {
        upstream.uploading() == 5
    });
    client.say("0\r\n\r\n");
    assert_eq!(
        (client.answer().status, upstream.only().body.as_slice()),
        (201, &b"hello"[..])
    );
}

#[test]
fn an_answer_may_come_before_the_end_of_the_upload() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.then(Step::from(reply(413).body("too much")).early());
    let mut client = proxy.client();
    client.say("POST /free HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.say(chunk(b"hello"));
    let answer = client.answer();
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (413, &b"too much"[..])
    );
}

/// More than the sockets on the way hold.
const LONG: usize = 24 << 20;

#[test]
fn an_upload_goes_on_while_nobody_reads_its_early_answer() {
    let own = Upstream::start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let upstream = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the proxy's connection");
        let mut answering = stream.try_clone().expect("a socket");
        // It answers as soon as it has seen something of the request.
        let mut piece = vec![0; 1 << 16];
        let mut read = stream.read(&mut piece).expect("the head");
        let answer = thread::spawn(move || {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
            answering.write_all(head.as_bytes())?;
            answering.write_all(&vec![b'a'; LONG])
        });
        while read < LONG {
            match stream.read(&mut piece) {
                Ok(more @ 1..) => read += more,
                ended => panic!("{ended:?} after {read} bytes"),
            }
        }
        answer
            .join()
            .expect("no panic")
            .expect("the answer goes out");
    });
    let proxy = Proxy::with(&own, &format!("upstream.url = 'http://{address}'"));
    let mut client = proxy.client();
    client.say(format!(
        "POST /free HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {LONG}\r\n\r\n"
    ));
    // All of it, before it reads a byte.
    client.say(vec![b'u'; LONG]);
    let (status, head) = client.head(PATIENCE).expect("the head");
    assert_eq!(status, 200);
    assert_eq!(client.count_body(&head, PATIENCE), Ok(LONG as u64));
    upstream.join().expect("the upstream has all of it");
}

#[test]
fn events_pass_as_they_come() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let (now, later) = (Gate::new(), Gate::new());
    now.open();
    upstream.then(events(&[(&now, "1"), (&later, "2")]));
    let mut client = proxy.begin(&Request::get("/free"));
    let (_, head) = client
        .head(PATIENCE)
        .expect("the head comes before the end");
    assert!(
        client.stirs_within(PATIENCE),
        "the first event is held back"
    );
    later.open();
    assert_eq!(client.count_body(&head, PATIENCE), Ok(18));
}

#[test]
fn a_client_that_leaves_ends_an_unkeyed_call() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.then(Step::hang());
    let client = proxy.begin(&Request::get("/free"));
    upstream.await_executions(1);
    client.reset();
    eventually("the upstream's connection ends", || upstream.lost() == 1);
}

#[test]
fn an_upload_that_breaks_off_never_looks_whole() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for head in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
        let before = upstream.partial();
        let mut client = proxy.client();
        client.say(format!(
            "POST /free HTTP/1.1\r\nHost: shop.test\r\n{head}\r\n\r\n5\r\nhello"
        ));
        eventually("the beginning is at the upstream", || {
            upstream.uploading() > 0
        });
        client.reset();
        eventually("the upstream's connection ends", || {
            upstream.partial() == before + 1
        });
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn an_answer_that_breaks_off_never_looks_whole() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for answer in [reply(200).cut_after(5), reply(200).chunked().cut_after(5)] {
        upstream.then(answer);
        match proxy.begin(&Request::get("/free")).try_answer(PATIENCE) {
            Err(_) => {}
            Ok(answer) => assert_eq!(answer.status, 502, "{answer}"),
        }
    }
}
