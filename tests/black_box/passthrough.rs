//! Being a proxy: what has no key passes untouched, and hop-by-hop things end here.

use crate::common::{
    PATIENCE, Proxy, Request, Step, Upstream, executed, key, marker, problem, replayed, reply,
};

#[test]
fn headers_and_bodies_pass_as_they_are() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let body: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for path in ["/free/%7Eu//x/../y?b=2&a=1&c", "/orders?b=2&a=1"] {
        for chunked in [false, true] {
            let request = Request::new("POST", path)
                .header("X-Odd", "a,b;c=\"d\"")
                .header("X-Empty", "")
                .header("x-twice", "1")
                .header("X-Say", b"na\xefve")
                .header("X-Twice", "2")
                .header("Cookie", "a=1; b=2")
                .body(&body);
            let request = if chunked { request.chunked() } else { request };
            let answer = proxy.send(&request);
            let seen = upstream.last();
            assert_eq!((seen.target.as_str(), seen.body == body), (path, true));
            assert_eq!(seen.all("X-Odd"), ["a,b;c=\"d\""]);
            assert_eq!(seen.all("X-Twice"), ["1", "2"]);
            assert_eq!(
                (seen.one("X-Empty"), seen.one("X-Say")),
                (Some(""), Some("na\u{ef}ve"))
            );
            assert_eq!(
                (seen.one("Cookie"), seen.one("Host")),
                (Some("a=1; b=2"), Some("shop.test"))
            );
            let number = seen.execution;
            assert_eq!(
                (answer.status, answer.execution(), marker(&answer)),
                (201, number, None)
            );
            assert_eq!(answer.one("ETag"), Some(format!("\"v{number}\"").as_str()));
            assert_eq!(
                answer.one("Set-Cookie"),
                Some(format!("session={number}").as_str())
            );
            assert!(
                !answer.head.fields.has("Server") && !answer.head.fields.has("Date"),
                "{answer}"
            );
        }
    }
}

#[test]
fn hop_by_hop_fields_end_at_the_proxy_in_both_directions() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let inner = reply(201)
        .header("Connection", "X-Inner")
        .header("X-Inner", "1")
        .header("Connection", "x-other");
    upstream.always(
        inner
            .header("X-Other", "1")
            .header("Keep-Alive", "timeout=9")
            .header("Proxy-Connection", "keep-alive"),
    );
    let request = Request::write("POST", "/orders")
        .header("Connection", "X-Private, keep-alive")
        .header("Connection", "x-second")
        .header("X-Private", "1")
        .header("X-Second", "1")
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Connection", "keep-alive")
        .header("Proxy-Authorization", "Basic eDp5")
        .header("TE", "gzip")
        .header("Upgrade", "h2c")
        .header("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA");
    let name = key();
    for request in [
        request.clone().key(&name),
        request.clone().key(&name),
        request,
    ] {
        let answer = proxy.send(&request);
        assert_eq!(answer.status, 201, "{answer}");
        for gone in ["X-Inner", "X-Other", "Keep-Alive", "Proxy-Connection"] {
            assert!(!answer.head.fields.has(gone), "{gone} passed: {answer}");
        }
    }
    assert_eq!(upstream.executions(), 2);
    for seen in upstream.seen() {
        for gone in [
            "X-Private",
            "X-Second",
            "Keep-Alive",
            "Proxy-Connection",
            "Proxy-Authorization",
            "TE",
            "Upgrade",
            "HTTP2-Settings",
        ] {
            assert!(seen.all(gone).is_empty(), "{gone} passed: {seen}");
        }
    }
}

#[test]
fn a_connection_line_may_not_name_what_others_rely_on() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for name in [
        "Authorization",
        "host",
        "Content-Length",
        "content-type",
        "Cookie",
        "Idempotency-Key",
    ] {
        let request = Request::order(&key()).header("Connection", format!("keep-alive, {name}"));
        assert_eq!(proxy.send(&request).status, 400, "{name}");
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn head_and_bodyless_answers_keep_their_framing() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream
        .then(reply(200).body("x".repeat(77)))
        .then(reply(304))
        .then(reply(204));
    let mut client = proxy.client();
    let answer = client.ask(&Request::new("HEAD", "/free")).answer();
    assert_eq!(
        (answer.status, answer.one("Content-Length")),
        (200, Some("77"))
    );
    let answer = client.ask(&Request::get("/free")).answer();
    assert_eq!(
        (answer.status, answer.one("ETag"), answer.body.len()),
        (304, Some("\"v2\""), 0)
    );
    assert_eq!(
        client.ask(&Request::new("DELETE", "/free")).answer().status,
        204
    );
    assert_eq!(client.ask(&Request::get("/free")).answer().status, 200);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn trailers_reach_a_client_that_asks_for_them() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.always(reply(200).body("hello").trailer("X-Sum", "9"));
    let answer = proxy.send(
        &Request::get("/free")
            .header("Connection", "TE")
            .header("TE", "trailers"),
    );
    assert_eq!(
        (answer.body.as_slice(), answer.trailers.one("X-Sum")),
        (&b"hello"[..], Some("9")),
        "{answer}"
    );
    let answer = proxy.send(&Request::get("/free"));
    assert_eq!(
        (answer.body.as_slice(), answer.one("X-Sum")),
        (&b"hello"[..], None),
        "{answer}"
    );
}

#[test]
fn answers_on_one_connection_come_in_the_order_of_its_requests() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let keyed = Request::order(&key());
    let mut client = proxy.client();
    client
        .ask(&keyed)
        .ask(&Request::get("/free"))
        .ask(&keyed)
        .ask(&Request::write("POST", "/orders"));
    let first = executed(client.answer());
    assert_eq!(client.answer().status, 200);
    replayed(&client.answer(), &first);
    assert_eq!(
        (client.answer().status, upstream.last().method.as_str()),
        (201, "POST")
    );
}

#[test]
fn the_proxy_asks_for_the_body_once_and_by_itself() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for request in [Request::order(&key()), Request::write("POST", "/free")] {
        let request = request.header("Expect", "100-continue");
        let mut client = proxy.client();
        client.say(request.head());
        assert_eq!(client.head(PATIENCE).map(|(status, _)| status), Ok(100));
        let answer = client.say(request.framed_body()).answer();
        assert_eq!((answer.status, answer.interim.len()), (201, 0), "{answer}");
        let seen = upstream.last();
        assert!(
            seen.all("Expect").is_empty() && seen.body_size > 0,
            "{seen}"
        );
    }
}

#[test]
fn a_refusal_that_needs_no_body_comes_before_the_100() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.key = 'required'\npolicy.max_request_body = '1KiB'",
    );
    let large = Request::order(&key()).body("x".repeat(5000));
    let refusals = [
        ("key-missing", Request::write("POST", "/orders")),
        ("key-invalid", Request::order("a b")),
        (
            "caller-missing",
            Request::order(&key()).without("Authorization"),
        ),
        ("body-too-large", large),
    ];
    for (slug, request) in refusals {
        let mut client = proxy.client();
        client.say(request.header("Expect", "100-continue").head());
        let answer = client.answer();
        problem(&answer, slug);
        assert!(
            answer.interim.is_empty(),
            "{slug}: asked for a body that it refuses"
        );
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn an_early_refusal_never_garbles_what_follows() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let smuggled = "POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".repeat(20_000);
    for request in [Request::order("no key"), Request::order("no key").chunked()] {
        let mut client = proxy.client();
        // The proxy may refuse and close while the body is still being sent.
        let _ = client.try_say(request.body(&smuggled).bytes());
        let refused = client.answer();
        problem(&refused, "key-invalid");
        assert_eq!(refused.one("Connection"), Some("close"), "{refused}");
        if client.try_say(Request::get("/free").bytes()).is_ok()
            && let Ok(next) = client.try_answer(PATIENCE)
        {
            assert_eq!(next.status, 200, "{next}");
        }
    }
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.target != "/smuggled")
    );
}

#[test]
fn a_short_body_behind_a_refusal_costs_nothing() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "policy.key = 'required'");
    let mut client = proxy.client();
    problem(
        &client.ask(&Request::write("POST", "/orders")).answer(),
        "key-missing",
    );
    executed(client.ask(&Request::order(&key())).answer());
}

#[test]
fn the_host_is_the_clients_or_the_upstreams() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    proxy.send(&Request::get("/free"));
    assert_eq!(upstream.last().one("Host"), Some("shop.test"));
    let absolute = "GET http://other.test/free?x HTTP/1.1\r\nHost: shop.test\r\n\r\n";
    assert_eq!(proxy.say(absolute).status, 200);
    let seen = upstream.last();
    assert_eq!(
        (seen.target.as_str(), seen.one("Host")),
        ("/free?x", Some("other.test"))
    );
    let proxy = Proxy::with(&upstream, "upstream.host = 'upstream'");
    proxy.send(&Request::get("/free"));
    assert_eq!(
        upstream.last().one("Host"),
        Some(upstream.address().to_string().as_str())
    );
}

#[test]
fn where_a_request_came_from_is_told_and_cannot_be_made_up() {
    let upstream = Upstream::start();
    let request = Request::get("/free")
        .header("X-Forwarded-For", "203.0.113.9")
        .header("X-Forwarded-Proto", "https")
        .header("X-Forwarded-Host", "evil.test")
        .header("Forwarded", "for=203.0.113.9");
    Proxy::start(&upstream).send(&request);
    let seen = upstream.last();
    assert_eq!(
        (seen.one("X-Forwarded-For"), seen.one("X-Forwarded-Proto")),
        (Some("127.0.0.1"), Some("http"))
    );
    assert_eq!(
        (seen.one("X-Forwarded-Host"), seen.all("Forwarded").len()),
        (Some("shop.test"), 0)
    );
    Proxy::with(&upstream, "server.trusted_proxies = ['127.0.0.0/8']").send(&request);
    let seen = upstream.last();
    assert_eq!(
        seen.all("X-Forwarded-For").join(", "),
        "203.0.113.9, 127.0.0.1"
    );
    assert_eq!(seen.one("X-Forwarded-Proto"), Some("https"));
    assert_eq!(
        (seen.one("X-Forwarded-Host"), seen.one("Forwarded")),
        (
            Some("evil.test"),
            Some("for=203.0.113.9, for=127.0.0.1;proto=http;host=shop.test")
        )
    );
}

#[test]
fn two_proxies_in_a_row_are_no_loop() {
    let upstream = Upstream::start();
    let inner = Proxy::start(&upstream);
    let outer = Proxy::with(
        &upstream,
        &format!("upstream.url = 'http://{}'", inner.address()),
    );
    assert_eq!(outer.send(&Request::get("/free")).status, 200);
    let request = Request::order(&key());
    let first = executed(outer.send(&request));
    replayed(&outer.send(&request), &first);
    assert!(upstream.last().head.fields.has("Via"));
}

#[test]
fn a_loop_ends_at_its_first_turn() {
    let upstream = Upstream::start();
    let proxy = Proxy::looped(&upstream);
    assert_eq!(proxy.send(&Request::get("/free")).status, 508);
    assert_eq!(proxy.send(&Request::order(&key())).status, 508);
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn a_reason_phrase_that_is_empty_stays_so() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for status in [200, 299, 599] {
        let answer = format!("HTTP/1.1 {status} \r\nContent-Length: 0\r\n\r\n");
        for request in [Request::get("/free"), Request::order(&key())] {
            upstream.then(Step::bytes(&answer));
            let seen = proxy.send(&request);
            let start = format!("HTTP/1.1 {status} ");
            let usual = http::StatusCode::from_u16(status)
                .ok()
                .and_then(|status| status.canonical_reason())
                .unwrap_or_default();
            // What is stored is answered with the usual phrase from the first.
            let wanted = [start.clone(), format!("{start}{usual}")];
            assert!(wanted.contains(&seen.head.start), "{seen}");
        }
    }
}

#[test]
fn what_a_proxy_does_not_do_has_its_own_status() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for (status, request) in [
        (405, "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"),
        (405, "TRACE /orders HTTP/1.1\r\nHost: a\r\n\r\n"),
        (
            417,
            "POST /orders HTTP/1.1\r\nHost: a\r\nExpect: teapot\r\nContent-Length: 0\r\n\r\n",
        ),
    ] {
        let mut client = proxy.client();
        let answer = client.say(request).answer();
        assert_eq!(answer.status, status, "{answer}");
        assert_eq!(answer.one("Content-Type"), Some("application/problem+json"));
        let allowed = answer.one("Allow").is_some_and(|all| all.contains("POST"));
        assert_eq!(allowed, status == 405, "{answer}");
        assert!(client.is_closed(), "{status} leaves the connection open");
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn an_older_client_gets_an_answer_it_can_read() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    upstream.always(reply(200).body("hello").chunked());
    let raw = proxy
        .client()
        .say("GET /free HTTP/1.0\r\nHost: a\r\n\r\n")
        .everything();
    let raw = raw.to_ascii_lowercase();
    assert!(raw.starts_with("http/1.") && raw.contains(" 200 "), "{raw}");
    assert!(
        !raw.contains("transfer-encoding") && raw.ends_with("\r\n\r\nhello"),
        "{raw}"
    );
    let seen = upstream.only();
    assert!(seen.head.start.ends_with(" HTTP/1.1"), "{seen}");
    // HTTP/1.0 may name no host; HTTP/1.1 has to.
    proxy
        .client()
        .say("GET /free HTTP/1.0\r\n\r\n")
        .everything();
    let host = upstream.address().to_string();
    assert_eq!(upstream.last().one("Host"), Some(host.as_str()));
    assert_eq!(upstream.last().one("X-Forwarded-Host"), None);
}

#[test]
fn a_host_that_is_none_and_a_target_of_another_scheme_reach_nobody() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for head in [
        "GET /free HTTP/1.1\r\nHost: a:x\r\n\r\n",
        "GET /free HTTP/1.1\r\nHost: a:99999\r\n\r\n",
        "GET /free HTTP/1.1\r\nHost: a,b\r\n\r\n",
        "GET /free HTTP/1.1\r\nHost: [::1\r\n\r\n",
        "GET http://u:p@b/free HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET ftp://b/free HTTP/1.1\r\nHost: b\r\n\r\n",
    ] {
        assert_eq!(proxy.say(head).status, 400, "{head}");
    }
    assert_eq!(upstream.executions(), 0);
    assert_eq!(
        proxy
            .say("GET /free HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n")
            .status,
        200
    );
}

#[test]
fn an_upgrade_on_a_keyed_request_is_ignored() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key())
        .header("Connection", "upgrade")
        .header("Upgrade", "websocket");
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    assert!(upstream.only().all("Upgrade").is_empty());
}

#[test]
fn the_admin_pages_are_not_on_the_public_side() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for path in ["/metrics", "/livez", "/readyz", "/api/v1/records"] {
        assert_eq!(
            proxy.send(&Request::get(path)).execution(),
            upstream.last().execution,
            "{path}"
        );
    }
    assert_eq!(proxy.admin(&Request::get("/livez")).status, 200);
    assert_eq!(proxy.admin(&Request::get("/no/such/page")).status, 404);
}
