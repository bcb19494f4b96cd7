//! What a proxy says of itself on the way: Forwarded, X-Forwarded-*, Via, Max-Forwards.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use crate::common::{PATIENCE, Proxy, Request, Upstream, executed, key};

#[test]
fn a_trusted_peers_chain_is_continued_and_nobody_elses() {
    let upstream = Upstream::start();
    let trusting = Proxy::with(&upstream, "server.trusted_proxies = ['127.0.0.0/8']");
    let wary = Proxy::start(&upstream);
    let chain = "for=\"[2001:db8::1]\";proto=https, for=203.0.113.9";
    for plain in [
        Request::get("/free"),
        Request::order(&key()).caller("Bearer a"),
    ] {
        let chained = plain.clone().header("Forwarded", chain);
        trusting.send(&chained);
        let seen = upstream.last();
        assert_eq!(
            seen.one("Forwarded"),
            Some(format!("{chain}, for=127.0.0.1;proto=http;host=shop.test").as_str()),
            "{seen}"
        );
        assert_eq!(seen.one("X-Forwarded-For"), Some("127.0.0.1"));
        wary.send(&chained);
        assert!(upstream.last().all("Forwarded").is_empty());
    }
    trusting.send(&Request::get("/free"));
    assert!(upstream.last().all("Forwarded").is_empty(), "none is begun");
    let port = Request::get("/free")
        .without("Host")
        .header("Host", "shop.test:8080")
        .header("Forwarded", "for=_hidden");
    trusting.send(&port);
    assert_eq!(
        upstream.last().one("Forwarded"),
        Some("for=_hidden, for=127.0.0.1;proto=http;host=\"shop.test:8080\"")
    );
}

#[test]
fn the_host_that_the_client_named_is_told_where_the_upstream_gets_its_own() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "upstream.host = 'upstream'");
    for request in [
        "GET /free HTTP/1.1\r\nHost: shop.test\r\n\r\n",
        "GET http://shop.test/free HTTP/1.1\r\nHost: other.test\r\n\r\n",
    ] {
        assert_eq!(proxy.say(request).status, 200);
        let seen = upstream.last();
        assert_eq!(
            seen.one("Host"),
            Some(upstream.address().to_string().as_str())
        );
        assert_eq!(seen.one("X-Forwarded-Host"), Some("shop.test"), "{seen}");
        assert_eq!(seen.target, "/free");
    }
}

#[test]
fn a_peer_on_a_unix_socket_has_no_address_and_is_not_trusted() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let settings = format!(
        "server.listen = ['SELF', 'unix:{}']\nserver.trusted_proxies = ['0.0.0.0/0', '::/0']",
        socket.display()
    );
    let _proxy = Proxy::with(&upstream, &settings);
    let mut client = UnixStream::connect(&socket).expect("the proxy listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    client
        .write_all(
            b"GET /free HTTP/1.1\r\nHost: shop.test\r\nX-Forwarded-For: 203.0.113.9\r\nX_Forwarded_For: 203.0.113.9\r\n\
              X-Forwarded-Proto: https\r\nForwarded: for=203.0.113.9\r\nConnection: close\r\n\r\n",
        )
        .expect("bytes go");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let seen = upstream.only();
    for gone in ["X-Forwarded-For", "X_Forwarded_For", "Forwarded"] {
        assert!(seen.all(gone).is_empty(), "{gone}: {seen}");
    }
    assert_eq!(seen.one("X-Forwarded-Proto"), Some("http"));
    assert_eq!(seen.one("X-Forwarded-Host"), Some("shop.test"));
}

#[test]
fn underscore_twins_of_what_is_said_here_are_dropped() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "server.trusted_proxies = ['127.0.0.0/8']");
    let request = Request::get("/free")
        .header("X_Forwarded_For", "203.0.113.9")
        .header("X-Forwarded_Host", "evil.test")
        .header("Max_Forwards", "0")
        .header("Idempotency_Key", "k")
        .header("Content_Length", "3")
        .header("X_Other", "kept");
    proxy.send(&request);
    let seen = upstream.only();
    let twins: Vec<_> = seen.head.fields.names();
    let twins: Vec<_> = twins.iter().filter(|name| name.contains('_')).collect();
    assert_eq!(twins, ["x_other"]);
}

#[test]
fn via_names_the_version_that_was_received_behind_the_hops_before() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (version, expected) in [("1.0", "1.0 idem-proxy-"), ("1.1", "1.1 idem-proxy-")] {
        let mut client = proxy.client();
        client.say(format!(
            "GET /free HTTP/{version}\r\nHost: a\r\nVia: 1.1 before\r\nConnection: close\r\n\r\n"
        ));
        assert!(client.everything().contains(" 200 "));
        let seen = upstream.last();
        assert!(seen.head.start.ends_with(" HTTP/1.1"), "{seen}");
        let via = seen.all("Via");
        assert_eq!((via.len(), via[0]), (2, "1.1 before"), "{seen}");
        assert!(via[1].starts_with(expected), "{seen}");
    }
    executed(proxy.send(&Request::order(&key())));
    assert!(
        upstream
            .last()
            .one("Via")
            .is_some_and(|via| via.starts_with("1.1 idem-proxy-"))
    );
}

#[test]
fn a_loop_ends_within_one_hop_and_is_counted() {
    let upstream = Upstream::start();
    let proxy = Proxy::looped(&upstream);
    for (turn, request) in [
        Request::get("/free"),
        Request::order(&key()),
        Request::write("POST", "/orders"),
    ]
    .iter()
    .enumerate()
    {
        let answer = proxy.send(request);
        assert_eq!(answer.status, 508, "{answer}");
        let turns = f64::from(u32::try_from(turn).expect("few") + 1);
        let refused = [("outcome", "bad_request")];
        proxy.await_metric("idem_proxy_requests_total", &refused, turns);
    }
    // Each was one request from outside and one from ourselves.
    proxy.await_metric("idem_proxy_requests_total", &[], 6.0);
    let upgrade = Request::get("/ws")
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket");
    assert_eq!(proxy.send(&upgrade).status, 508);
    proxy.await_metric("idem_proxy_requests_total", &[], 8.0);
}

#[test]
fn max_forwards_bounds_how_far_options_goes() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for target in ["/free", "*", "/orders"] {
        let options = Request::new("OPTIONS", target);
        let answer = proxy.send(&options.clone().header("Max-Forwards", "0"));
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{answer}");
        assert_eq!(answer.one("Content-Length"), Some("0"));
        assert!(
            answer
                .one("Allow")
                .is_some_and(|allow| allow.contains("POST"))
        );
    }
    assert_eq!(upstream.executions(), 0);
    for (sent, expected) in [("1", "0"), ("10", "9"), ("x", "x")] {
        proxy.send(&Request::new("OPTIONS", "*").header("Max-Forwards", sent));
        let seen = upstream.last();
        assert_eq!(
            (seen.target.as_str(), seen.one("Max-Forwards")),
            ("*", Some(expected)),
            "{seen}"
        );
    }
    proxy.send(&Request::get("/free").header("Max-Forwards", "0"));
    assert_eq!(upstream.last().one("Max-Forwards"), Some("0"));
    let trace = Request::new("TRACE", "/free").header("Max-Forwards", "5");
    assert_eq!(proxy.send(&trace).status, 405);
}
