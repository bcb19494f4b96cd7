//! Connections to upstreams: what is no answer, what is not reused, what cannot be reached and how that is told.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Mutex,
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use crate::common::{
    Proxy, Request, Step, Upstream, eventually, executed, key, problem, replayed, reply,
};

/// Answers that one reader takes for another than the next does.
fn not_to_be_believed() -> Vec<(&'static str, String)> {
    [misframed(), misspelt()].concat()
}

fn answer(head: &str, body: &str) -> String {
    format!("HTTP/1.1 201 Created\r\n{head}\r\n\r\n{body}")
}

/// Answers whose end is not plain.
fn misframed() -> Vec<(&'static str, String)> {
    vec![
        (
            "length and chunks",
            answer(
                "Content-Length: 2\r\nTransfer-Encoding: chunked",
                "2\r\n{}\r\n0\r\n\r\n",
            ),
        ),
        (
            "chunks and length",
            answer(
                "Transfer-Encoding: chunked\r\nContent-Length: 2",
                "2\r\n{}\r\n0\r\n\r\n",
            ),
        ),
        (
            "two equal lengths",
            answer("Content-Length: 2\r\nContent-Length: 2", "{}"),
        ),
        (
            "two different lengths",
            answer("Content-Length: 2\r\nContent-Length: 3", "{}"),
        ),
        ("a list of lengths", answer("Content-Length: 2, 2", "{}")),
        ("a signed length", answer("Content-Length: +2", "{}")),
        ("a length in hex", answer("Content-Length: 0x2", "{}")),
        (
            "a length over 64 bits",
            answer("Content-Length: 18446744073709551618", "{}"),
        ),
        (
            "another coding below chunked",
            answer("Transfer-Encoding: gzip, chunked", "2\r\n{}\r\n0\r\n\r\n"),
        ),
        (
            "chunked twice",
            answer(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                "2\r\n{}\r\n0\r\n\r\n",
            ),
        ),
        (
            "a coding that is not chunked",
            answer("Transfer-Encoding: gzip", "{}"),
        ),
        (
            "chunks over HTTP/1.0",
            "HTTP/1.0 201 C\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n".into(),
        ),
    ]
}

/// Answers whose heads are none, or have no bounds.
fn misspelt() -> Vec<(&'static str, String)> {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let fields = |count: usize| "X-Field: value\r\n".repeat(count);
    vec![
        (
            "a bare LF behind the status line",
            "HTTP/1.1 201 C\nContent-Length: 2\r\n\r\n{}".into(),
        ),
        (
            "bare LFs alone",
            "HTTP/1.1 201 C\nContent-Length: 2\n\n{}".into(),
        ),
        (
            "a bare LF at the head's end",
            "HTTP/1.1 201 C\r\nContent-Length: 2\r\n\n{}".into(),
        ),
        (
            "an empty line first",
            format!("\r\n{}", answer("Content-Length: 2", "{}")),
        ),
        (
            "a folded line",
            answer("X-A: a\r\n b\r\nContent-Length: 2", "{}"),
        ),
        ("space before a colon", answer("Content-Length : 2", "{}")),
        ("a bare CR", answer("X-A: a\rb\r\nContent-Length: 2", "{}")),
        ("a NUL", answer("X-A: a\0b\r\nContent-Length: 2", "{}")),
        (
            "a status below 100",
            "HTTP/1.1 099 What\r\nContent-Length: 2\r\n\r\n{}".into(),
        ),
        (
            "a status of two digits",
            "HTTP/1.1 20 What\r\nContent-Length: 2\r\n\r\n{}".into(),
        ),
        ("HTTP/0.9", "<html>hello</html>\r\n".into()),
        (
            "HTTP/2 in letters",
            "HTTP/2.0 201 C\r\nContent-Length: 2\r\n\r\n{}".into(),
        ),
        (
            "too many fields",
            answer(&format!("{}Content-Length: 2", fields(150)), "{}"),
        ),
        (
            "a head without end",
            format!("HTTP/1.1 201 C\r\nX: {}", "x".repeat(300_000)),
        ),
        (
            "a head over its bound",
            answer(
                &format!("X: {}\r\nContent-Length: 2", "x".repeat(70_000)),
                "{}",
            ),
        ),
        (
            "a flood of interim answers",
            format!(
                "{}{}",
                interim.repeat(5_000),
                answer("Content-Length: 2", "{}")
            ),
        ),
    ]
}

#[test]
fn an_answer_that_comes_before_the_end_of_an_upload_is_the_clients_even_if_the_rest_is_refused() {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", origin.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in origin.incoming().flatten() {
            let mut stream = stream;
            let mut head = [0; 512];
            let _ = stream.read(&mut head);
            // What is unread when it is closed resets the connection.
            let _ = stream
                .write_all(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        }
    });
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, &format!("upstream.url = '{url}'"));
    let body = "x".repeat(900_000);
    for _ in 0..30 {
        let mut client = proxy.client();
        let request = Request::write("POST", "/free").body(&body);
        let _ = client.try_say(request.bytes());
        let answer = client.answer();
        assert_eq!(
            (answer.status, answer.body.as_slice()),
            (413, &b"no"[..]),
            "{answer}"
        );
    }
}

#[test]
fn an_answer_that_two_readers_can_read_differently_is_none() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (number, (what, bytes)) in not_to_be_believed().into_iter().enumerate() {
        let request = Request::order(&key());
        upstream.then(Step::bytes(&bytes));
        let first = proxy.send(&request);
        assert_eq!(first.status, 502, "{what}: {first}");
        problem(&first, "upstream-failed");
        problem(&proxy.send(&request), "outcome-unknown");
        assert_eq!(upstream.executions(), number + 1, "{what}");
    }
    let all = upstream.executions();
    for (what, bytes) in not_to_be_believed() {
        upstream.then(Step::bytes(&bytes));
        assert_eq!(proxy.send(&Request::get("/free")).status, 502, "{what}");
    }
    assert_eq!(upstream.executions(), 2 * all);
    executed(proxy.send(&Request::order(&key())));
}

/// A server that keeps its connections open and answers each request with the next of these, and then with a plain one.
struct Keeping {
    address: SocketAddr,
    /// On how many-eth connection each request came.
    requests: std::sync::Arc<Mutex<Vec<usize>>>,
}

impl Keeping {
    fn start(answers: Vec<String>) -> Self {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = std::sync::Arc::new(Mutex::new(Vec::new()));
        let seen = std::sync::Arc::clone(&requests);
        let answers = std::sync::Arc::new(Mutex::new(answers.into_iter()));
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (seen, answers) = (seen.clone(), answers.clone());
                thread::spawn(move || {
                    let mut stream: TcpStream = stream;
                    let (mut read, mut space) = (Vec::new(), [0; 4096]);
                    loop {
                        // Requests without a body alone come here.
                        while !read.ends_with(b"\r\n\r\n") {
                            match stream.read(&mut space) {
                                Ok(0) | Err(_) => return,
                                Ok(count) => read.extend_from_slice(&space[..count]),
                            }
                        }
                        read.clear();
                        seen.lock().expect("no panic").push(number);
                        let next = answers.lock().expect("no panic").next();
                        let plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}".to_owned();
                        if stream.write_all(next.unwrap_or(plain).as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }

    fn settings(&self) -> String {
        format!(
            "upstream.url = 'http://{}'\nserver.workers = 1",
            self.address
        )
    }

    fn requests(&self) -> Vec<usize> {
        self.requests.lock().expect("no panic").clone()
    }
}

#[test]
fn a_connection_is_not_reused_after_an_answer_that_is_none() {
    let doubtful = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}";
    let origin = Keeping::start(vec![doubtful.into()]);
    let proxy = Proxy::with(&Upstream::start(), &origin.settings());
    assert_eq!(proxy.send(&Request::get("/a")).status, 502);
    assert_eq!(proxy.send(&Request::get("/b")).status, 200);
    assert_eq!(proxy.send(&Request::get("/c")).status, 200);
    assert_eq!(origin.requests(), [0, 1, 1]);
}

#[test]
fn a_connection_is_not_reused_after_a_204_that_tells_of_a_body() {
    let told = "HTTP/1.1 204 No Content\r\nContent-Length: 40\r\n\r\n";
    let quiet = "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
    let origin = Keeping::start(vec![told.into(), quiet.into()]);
    let proxy = Proxy::with(&Upstream::start(), &origin.settings());
    assert_eq!(proxy.send(&Request::get("/a")).status, 204);
    assert_eq!(proxy.send(&Request::get("/b")).status, 204);
    assert_eq!(proxy.send(&Request::get("/c")).status, 200);
    assert_eq!(origin.requests(), [0, 1, 1]);
}

#[test]
fn bytes_behind_an_answer_are_no_answer_to_the_next_request() {
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong";
    let origin = Keeping::start(vec![two.into()]);
    let proxy = Proxy::with(&Upstream::start(), &origin.settings());
    assert_eq!(proxy.send(&Request::get("/a")).body, b"1");
    let next = proxy.send(&Request::get("/b"));
    assert!(next.body != b"wrong", "{next}");
}

#[test]
fn interim_answers_of_every_kind_are_dropped_and_end_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let after = |count: usize| {
        (0..count).fold(reply(201), |reply, _| {
            reply
                .after_interim("HTTP/1.1 100 Continue\r\n\r\n")
                .after_interim("HTTP/1.1 102 Processing\r\n\r\n")
                .after_interim("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        })
    };
    // One connection is one worker, and so one pool.
    let mut client = proxy.client();
    for count in [1, 30] {
        let request = Request::order(&key());
        upstream.then(after(count));
        let first = executed(client.ask(&request).answer());
        assert!(first.interim.is_empty(), "{:?}", first.interim);
        replayed(&client.ask(&request).answer(), &first);
    }
    assert_eq!(upstream.executions(), 2);
    assert_eq!(upstream.connections(), 1, "it was reused");
}

#[test]
fn two_thousand_writes_to_an_upstream_that_closes_behind_each_are_delivered_once_at_most() {
    let upstream = Upstream::start();
    upstream.always(reply(201).then_close());
    let proxy = Proxy::start(&upstream);
    let answers = Mutex::new(HashMap::new());
    thread::scope(|scope| {
        for worker in 0..8 {
            let (proxy, answers) = (&proxy, &answers);
            scope.spawn(move || {
                let mut client = proxy.client();
                for number in 0..250 {
                    let name = format!("{worker}-{number}");
                    let request = Request::order(&key()).header("X-Try", &name);
                    let answer = client.ask(&request).answer();
                    answers.lock().expect("no panic").insert(name, answer);
                }
            });
        }
    });
    let mut deliveries: HashMap<String, usize> = HashMap::new();
    for seen in upstream.seen() {
        let name = seen.one("X-Try").unwrap_or_default().to_owned();
        *deliveries.entry(name).or_default() += 1;
    }
    let answers = answers.into_inner().expect("no panic");
    assert_eq!(answers.len(), 2000);
    let mut served = 0;
    for (name, answer) in &answers {
        let count = deliveries.get(name).copied().unwrap_or_default();
        assert!(count <= 1, "{name} was delivered {count} times");
        if answer.status == 201 {
            served += 1;
            assert_eq!(count, 1, "{name}");
        } else if answer.json()["code"] == "UPSTREAM_UNREACHABLE" {
            assert_eq!(count, 0, "{name}: {answer}");
        }
    }
    assert!(served > 1000, "only {served} were served");
}

// --- what cannot be reached ---

/// What /readyz says of an upstream.
fn seen(proxy: &Proxy, name: &str) -> serde_json::Value {
    let answer = proxy.admin(&Request::get("/readyz"));
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()["upstreams"][name].clone()
}

fn failures(proxy: &Proxy, upstream: &str, reason: &str) -> f64 {
    proxy.metrics().sum(
        "idem_proxy_upstream_connect_failures_total",
        &[("upstream", upstream), ("reason", reason)],
    )
}

#[test]
fn an_upstream_that_refuses_is_told_counted_and_found_again() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    assert_eq!(seen(&proxy, "")["state"], "untried");
    upstream.refuse();
    let request = Request::order(&key());
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    let state = seen(&proxy, "");
    assert_eq!(
        (&state["state"], &state["reason"]),
        (&"unreachable".into(), &"connect".into()),
        "{state}"
    );
    assert!(state["for_s"].is_u64(), "{state}");
    assert!((failures(&proxy, "", "connect") - 2.0).abs() < 0.1);
    upstream.recover();
    executed(proxy.send(&request));
    assert_eq!(seen(&proxy, "")["state"], "reachable");
    eventually("the log tells of both changes", || {
        let log = proxy.log();
        log.matches("an upstream cannot be reached").count() == 1
            && log.matches("an upstream can be reached again").count() == 1
    });
}

#[test]
fn a_name_that_does_not_resolve_is_unreachable() {
    let proxy = Proxy::with(
        &Upstream::start(),
        "upstream.url = 'http://no-such-host.invalid:1'",
    );
    let request = Request::order(&key());
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    // Where the resolver itself does not answer, it is too late first.
    let counted = failures(&proxy, "", "dns") + failures(&proxy, "", "timeout");
    assert!(counted > 1.9, "{counted}");
}

#[test]
fn an_upstream_that_does_not_take_connections_is_given_up() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    socket.bind(&any.into()).expect("a free port");
    socket.listen(0).expect("a listener");
    let address = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    let address = address.expect("an address");
    // Nobody accepts: once the queue is full, a connection gets no answer.
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
        queued.push(stream);
        assert!(queued.len() < 1000, "the queue has no end");
    }
    let proxy = Proxy::with(
        &Upstream::start(),
        &format!("upstream.url = 'http://{address}'\nupstream.connect_timeout = '1s'"),
    );
    let request = Request::order(&key());
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    assert_eq!(seen(&proxy, "")["reason"], "timeout");
    assert!((failures(&proxy, "", "timeout") - 2.0).abs() < 0.1);
}

#[test]
fn each_named_upstream_stands_for_itself() {
    let (first, billing, ledger) = (Upstream::start(), Upstream::start(), Upstream::start());
    let settings = format!(
        "upstreams.billing.url = 'http://{}'\nupstreams.ledger.url = 'http://{}'\n\
         [[route]]\nname = 'orders'\nmethods = ['POST']\npath = '/orders'\n\
         [[route]]\nname = 'bills'\nmethods = ['POST']\npath = '/bills'\nupstream = 'billing'\n\
         [[route]]\nname = 'entries'\nmethods = ['POST']\npath = '/entries'\nupstream = 'ledger'\n",
        billing.address(),
        ledger.address()
    );
    let proxy = Proxy::with(&first, &settings);
    billing.refuse();
    let at = |path: &str| Request::write("POST", path).key(&key());
    executed(proxy.send(&at("/orders")));
    problem(&proxy.send(&at("/bills")), "upstream-unreachable");
    executed(proxy.send(&at("/entries")));
    assert_eq!((first.executions(), ledger.executions()), (1, 1));
    assert_eq!(seen(&proxy, "")["state"], "reachable");
    assert_eq!(seen(&proxy, "billing")["state"], "unreachable");
    assert_eq!(seen(&proxy, "ledger")["state"], "reachable");
    assert!((failures(&proxy, "billing", "connect") - 1.0).abs() < 0.1);
    assert!(failures(&proxy, "ledger", "connect") < 0.1);
}

#[test]
fn an_upstream_over_ipv6_is_reached() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    };
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nv6");
        }
    });
    // By its address, and by a name that leads to both families.
    for host in ["[::1]", "localhost"] {
        let proxy = Proxy::with(
            &Upstream::start(),
            &format!("upstream.url = 'http://{host}:{port}'"),
        );
        let answer = proxy.send(&Request::get("/"));
        if host == "localhost" && answer.status == 502 {
            eprintln!("SKIPPED: localhost has no IPv6 address here");
            return;
        }
        assert_eq!(answer.body, b"v6", "{host}: {answer}");
    }
}
