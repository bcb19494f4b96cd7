//! A key belongs to a caller: two callers never see each other's records, whatever the caller is made of.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::{Client, Proxy, Request, Upstream, executed, key, problem, replayed, reply};

#[test]
fn callers_are_apart_and_nobody_learns_of_anothers_key() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    executed(proxy.send(&request.clone().caller("Bearer bob")));
    // Another body under a key that is taken by others: no 422, nothing to be learnt.
    executed(proxy.send(&request.clone().caller("Bearer carol").body("{}")));
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn without_a_caller_a_keyed_request_is_refused() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let nobody = Request::order(&key()).without("Authorization");
    problem(&proxy.send(&nobody), "caller-missing");
    problem(&proxy.send(&nobody.clone().caller("")), "caller-missing");
    assert_eq!(upstream.executions(), 0);
    let unkeyed = Request::write("POST", "/orders").without("Authorization");
    assert_eq!(
        proxy.send(&unkeyed).status,
        201,
        "a request without a key needs no caller"
    );
}

#[test]
fn callers_without_a_credential_may_share_one_scope() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "identity.missing = 'anonymous'");
    let nobody = Request::order(&key()).without("Authorization");
    let first = executed(proxy.send(&nobody));
    replayed(&proxy.send(&nobody), &first);
    executed(proxy.send(&nobody.clone().caller("Bearer alice")));
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn all_callers_may_share_one_scope() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "identity.from = []");
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request.clone().caller("Bearer bob")), &first);
    replayed(&proxy.send(&request.without("Authorization")), &first);
}

#[test]
fn a_credential_counts_byte_for_byte_but_for_the_case_of_its_scheme() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request.clone().caller("Bearer abc")));
    replayed(&proxy.send(&request.clone().caller("bEARER abc")), &first);
    for other in ["Bearer ABC", "Bearer abcd", "Basic abc", "Bearer"] {
        executed(proxy.send(&request.clone().caller(other)));
    }
    assert_eq!(upstream.executions(), 5);
}

#[test]
fn a_refreshed_credential_is_another_caller_and_never_a_reuse() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    upstream.then(reply(401));
    assert_eq!(
        proxy.send(&request.clone().caller("Bearer expired")).status,
        401
    );
    assert_eq!(
        executed(proxy.send(&request.clone().caller("Bearer fresh"))).execution(),
        2
    );
    assert_eq!(
        executed(proxy.send(&request.caller("Bearer expired"))).execution(),
        3
    );
}

#[test]
fn a_caller_is_made_of_several_parts_that_cannot_be_shifted() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "identity.from = ['header:X-Tenant', 'cookie:user']",
    );
    let request = Request::order(&key());
    let by = |tenant: &str, user: &str| {
        let cookie = format!("theme=dark; user={user}; x=1");
        request
            .clone()
            .header("X-Tenant", tenant)
            .header("Cookie", cookie)
    };
    let first = executed(proxy.send(&by("a:b", "c")));
    executed(proxy.send(&by("a", "b:c")));
    executed(proxy.send(&by("a:b", "cc")));
    replayed(
        &proxy.send(&by("a:b", "c").caller("Bearer someone")),
        &first,
    );
    problem(
        &proxy.send(&request.clone().header("X-Tenant", "a")),
        "caller-missing",
    );
    problem(&proxy.send(&by("", "c")), "caller-missing");
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn a_route_may_know_its_callers_in_its_own_way() {
    let upstream = Upstream::start();
    let settings = "[[route]]\nname = 'a'\nmethods = ['POST']\npath = '/a'\nidentity = { from = ['header:X-Tenant'] }\n\
                    [[route]]\nname = 'b'\nmethods = ['POST']\npath = '/b'\n";
    let proxy = Proxy::with(&upstream, settings);
    let a = Request::write("POST", "/a")
        .key(&key())
        .header("X-Tenant", "t1");
    let first = executed(proxy.send(&a));
    replayed(&proxy.send(&a.clone().caller("Bearer bob")), &first);
    let b = Request::write("POST", "/b")
        .key(&key())
        .header("X-Tenant", "t1");
    executed(proxy.send(&b));
    executed(proxy.send(&b.caller("Bearer bob")));
}

#[test]
fn a_peers_address_can_be_the_caller() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(&upstream, "identity.from = ['peer-ip']");
    let request = Request::order(&key()).header("X-Forwarded-For", "203.0.113.9");
    let from = |last: u8, request: &Request| {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        Client::connect_from(address, proxy.address())
            .ask(request)
            .answer()
    };
    let first = executed(from(2, &request));
    replayed(&from(2, &request), &first);
    executed(from(3, &request));
    // What a stranger claims to be forwarded for does not count.
    let claims = request
        .without("X-Forwarded-For")
        .header("X-Forwarded-For", "127.0.0.2");
    executed(from(4, &claims));
    assert_eq!(upstream.executions(), 3);
}

#[test]
fn behind_a_trusted_proxy_the_caller_is_the_last_address_that_is_not_trusted() {
    let upstream = Upstream::start();
    let settings =
        "identity.from = ['peer-ip']\nserver.trusted_proxies = ['127.0.0.0/8', '10.0.0.0/8']";
    let proxy = Proxy::with(&upstream, settings);
    let request = Request::order(&key());
    let from = |chain: &str| proxy.send(&request.clone().header("X-Forwarded-For", chain));
    let first = executed(from("203.0.113.9"));
    replayed(&from("203.0.113.9, 10.1.1.1"), &first);
    replayed(&from("198.51.100.1, 203.0.113.9"), &first);
    executed(from("203.0.113.9, 198.51.100.1"));
}

#[test]
fn an_access_key_is_one_caller_whatever_the_signature() {
    let upstream = Upstream::start();
    let settings = "identity.from = ['sigv4']\nidentity.trust_unverified = true";
    let strict = Proxy::with(&upstream, settings);
    let lax = Proxy::with(
        &upstream,
        &format!("{settings}\nidentity.missing = 'anonymous'"),
    );
    let signed = |id: &str, date: &str, digit: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/{date}/eu-west-1/orders/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature={}",
            digit.repeat(64)
        )
    };
    let request = Request::order(&key());
    let first = executed(strict.send(&request.clone().caller(&signed("AKID1", "20261130", "a"))));
    for (date, digit) in [("20261130", "b"), ("20261201", "c")] {
        let again = request.clone().caller(&signed("AKID1", date, digit));
        replayed(&strict.send(&again), &first);
    }
    executed(strict.send(&request.clone().caller(&signed("AKID2", "20261130", "a"))));
    let good = signed("AKID1", "20261130", "a");
    for bad in [
        request.clone().caller("Bearer AKID1"),
        request.clone().caller("AWS4-HMAC-SHA256 Credential=AKID1"),
        request.clone().caller(&good.replace("/aws4_request", "")),
        request
            .clone()
            .caller(&good.replace("Signature=a", "Signature=")),
        request.clone().caller(&good).header("Authorization", &good),
    ] {
        problem(&strict.send(&bad), "caller-missing");
        problem(&lax.send(&bad), "caller-missing");
    }
    problem(
        &strict.send(&request.clone().without("Authorization")),
        "caller-missing",
    );
    executed(lax.send(&request.without("Authorization")));
    assert_eq!(upstream.executions(), 3);
}
