//! Header fields on their way through: what ends at the proxy, what is kept for replays, what is added.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE,
        CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, MAX_FORWARDS, RANGE,
        SET_COOKIE, TE, TRAILER, VIA,
    },
    request,
};

use super::policy::ReplayHeaders;

/// Fields that mean one connection and end with it (RFC 9110, section 7.6.1), beside those that `Connection` names.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "http2-settings"
            | "te"
            | "transfer-encoding"
            | "upgrade"
            | "proxy-authenticate"
            | "proxy-authorization"
    )
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Takes out everything that ends at this hop, in either direction.
///
/// Names in `Connection` that would take away what the proxy or the upstream lives by are not followed: those fields
/// stay (RFC 9110, section 7.6.1, forbids naming end-to-end fields there).
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // One pass finds out whether there is anything to do; mostly there is not.
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .filter(may_be_named)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    while let Some(name) = headers.keys().find(|name| is_hop_by_hop(name)).cloned() {
        headers.remove(name);
    }
}

fn may_be_named(name: &HeaderName) -> bool {
    let text = name.as_str();
    !(text.starts_with("content-")
        || text.starts_with("x-forwarded-")
        || [
            "host",
            "authorization",
            "cookie",
            "cache-control",
            "idempotency-key",
        ]
        .contains(&text))
}

/// Makes the head of an HTTP/2 request what the same request is over HTTP/1.1 (RFC 9113, section 8.3.1): `:authority` becomes Host,
/// the target its path and query. `:scheme` says nothing that is believed.
///
/// Where `:authority` and Host differ there are two Hosts afterwards, which no request may have. Cookies that came as several
/// fields are one again (section 8.2.3).
pub fn from_http2(parts: &mut request::Parts) {
    let headers = &mut parts.headers;
    if let Some(authority) = parts.uri.authority() {
        let authority = authority.as_str();
        let same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes());
        let mut hosts = headers.get_all(HOST).iter();
        let there = hosts.next().is_some_and(same) && hosts.next().is_none();
        if !there && let Ok(host) = HeaderValue::from_str(authority) {
            headers.append(HOST, host);
        }
    }
    if let Some(target) = parts.uri.path_and_query().cloned()
        && parts.uri.scheme().is_some()
    {
        parts.uri = Uri::from(target);
    }
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_some() && cookies.next().is_some() {
        let lines: Vec<&[u8]> = headers
            .get_all(COOKIE)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        // Values that were fit for a header are fit for one together.
        if let Ok(one) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
            headers.insert(COOKIE, one);
        }
    }
}

/// Takes out of trailers what has no place there: what frames, routes or authenticates a message, or controls how it is handled
/// (RFC 9110, section 6.5.1). A receiver that merged them would act on what nobody has judged.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    let has_no_place = |name: &HeaderName| {
        is_hop_by_hop(name)
            || name.as_str().starts_with("content-")
            || name.as_str().starts_with("x-forwarded-")
            || [
                AUTHORIZATION,
                CACHE_CONTROL,
                COOKIE,
                EXPECT,
                FORWARDED,
                HOST,
                MAX_FORWARDS,
                RANGE,
                SET_COOKIE,
                TRAILER,
                VIA,
            ]
            .contains(name)
            || name.as_str() == "idempotency-key"
    };
    while let Some(name) = trailers.keys().find(|name| has_no_place(name)).cloned() {
        trailers.remove(name);
    }
}

/// Whether the one expectation that exists is what the request has, or none (RFC 9110, section 10.1.1).
#[must_use]
pub fn expectation_can_be_met(headers: &HeaderMap) -> bool {
    headers
        .get_all(EXPECT)
        .iter()
        .all(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Whether a client takes trailers (RFC 9110, section 10.1.4).
#[must_use]
pub fn takes_trailers(headers: &HeaderMap) -> bool {
    let names_trailers = |value: &HeaderValue| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    };
    headers.get_all(TE).iter().any(names_trailers)
}

/// Adds this hop to `Via` (RFC 9110, section 7.6.3).
pub fn add_hop(headers: &mut HeaderMap, hop: &HeaderValue) {
    headers.append(VIA, hop.clone());
}

/// Whether the request has been here before: one line of `Via` is `hop`, or has it among others.
#[must_use]
pub fn has_hop(headers: &HeaderMap, hop: &HeaderValue) -> bool {
    let is_hop = |line: &HeaderValue| {
        line.as_bytes()
            .split(|byte| *byte == b',')
            .any(|one| one.trim_ascii() == hop.as_bytes())
    };
    headers.get_all(VIA).iter().any(is_hop)
}

/// How a request came in, as the upstream is told.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The peer's address, as `X-Forwarded-For` writes it; `None` for a unix socket.
    pub peer: Option<HeaderValue>,
    /// Whether the peer is one of `trusted_proxies`.
    pub trusted: bool,
    /// `http` or `https`.
    pub proto: HeaderValue,
}

/// Makes a client's request head one of ours: hop-by-hop fields and the expectation end here, `X-Forwarded-*` say
/// who came. A stranger's claims about that are dropped, a trusted peer's are kept and the peer is added.
pub fn forward_request(headers: &mut HeaderMap, arrival: &Arrival) {
    strip_hop_by_hop(headers);
    // One pass over the names is less than a look-up for each of these, which mostly are not there.
    let claims = |name: &HeaderName| name == FORWARDED || name.as_str().starts_with("x-forwarded-");
    let ends_here = |name: &HeaderName| name == EXPECT || (!arrival.trusted && claims(name));
    while let Some(name) = headers.keys().find(|name| ends_here(name)).cloned() {
        headers.remove(name);
    }
    let addresses = if arrival.trusted {
        chain(headers, arrival.peer.as_ref())
    } else {
        arrival.peer.clone()
    };
    match addresses {
        Some(addresses) => drop(headers.insert(X_FORWARDED_FOR, addresses)),
        None => drop(headers.remove(X_FORWARDED_FOR)),
    }
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| arrival.proto.clone());
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// The addresses that a trusted peer reported, and the peer's own.
fn chain(headers: &HeaderMap, peer: Option<&HeaderValue>) -> Option<HeaderValue> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().chain(peer);
    let parts: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
    HeaderValue::from_bytes(&parts.join(&b", "[..]))
        .ok()
        .filter(|all| !all.is_empty())
}

/// Whether an answer has no body whatever its head says (RFC 9110, section 6.4.1).
#[must_use]
pub fn is_bodyless(method: &Method, status: StatusCode) -> bool {
    method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
}

/// The fields of an answer that its replays carry, in order. Hop-by-hop fields are gone already.
///
/// `Content-Length` is made anew on each answer, but where there is no body it describes one that is not here, and stays.
#[must_use]
pub fn kept_for_replay(headers: &HeaderMap, rule: &ReplayHeaders, bodyless: bool) -> HeaderMap {
    let describes_body = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE];
    let keeps = |name: &HeaderName| {
        if name == CONTENT_LENGTH {
            return bodyless;
        }
        match rule {
            ReplayHeaders::EndToEnd => name != SET_COOKIE,
            ReplayHeaders::None => describes_body.contains(name),
            ReplayHeaders::Only(listed) => listed.contains(name) || describes_body.contains(name),
        }
    };
    let mut kept = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in headers.iter().filter(|(name, _)| keeps(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                name.parse::<HeaderName>().expect("a name"),
                HeaderValue::from_bytes(value.as_bytes()).expect("a value"),
            );
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    fn stranger() -> Arrival {
        Arrival {
            peer: Some(HeaderValue::from_static("192.0.2.7")),
            trusted: false,
            proto: HeaderValue::from_static("http"),
        }
    }

    #[test]
    fn hop_by_hop_fields_end_here_and_so_does_what_any_connection_line_names() {
        let mut headers = map(&[
            ("connection", "x-a, Keep-Alive"),
            ("connection", "x-b"),
            ("x-a", "1"),
            ("x-b", "1"),
            ("x-c", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-connection", "close"),
            ("proxy-authorization", "Basic x"),
            ("http2-settings", "x"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(names(&headers), ["x-c"]);
    }

    #[test]
    fn naming_an_end_to_end_field_in_connection_takes_nothing_away() {
        let mut headers = map(&[
            (
                "connection",
                "idempotency-key, authorization, content-length, cookie, host",
            ),
            ("idempotency-key", "k"),
            ("authorization", "Bearer a"),
            ("content-length", "2"),
            ("cookie", "a=b"),
            ("host", "h"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.len(), 5);
    }

    #[test]
    fn a_strangers_forwarding_claims_are_replaced() {
        let mut headers = map(&[
            ("host", "shop.example"),
            ("forwarded", "for=203.0.113.9"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("expect", "100-continue"),
        ]);
        forward_request(&mut headers, &stranger());
        assert_eq!(
            headers.get("x-forwarded-for"),
            Some(&HeaderValue::from_static("192.0.2.7"))
        );
        assert_eq!(
            headers.get("x-forwarded-proto"),
            Some(&HeaderValue::from_static("http"))
        );
        assert_eq!(
            headers.get("x-forwarded-host"),
            Some(&HeaderValue::from_static("shop.example"))
        );
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("expect"));
    }

    #[test]
    fn a_trusted_peers_claims_are_kept_and_it_is_added() {
        let arrival = Arrival {
            trusted: true,
            ..stranger()
        };
        let mut headers = map(&[
            ("host", "shop.example"),
            ("forwarded", "for=203.0.113.9"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-proto", "https"),
        ]);
        forward_request(&mut headers, &arrival);
        let addresses: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(addresses, ["203.0.113.9, 198.51.100.1, 192.0.2.7"]);
        assert_eq!(
            headers.get("x-forwarded-proto"),
            Some(&HeaderValue::from_static("https"))
        );
        assert!(headers.contains_key("forwarded"));
    }

    #[test]
    fn replays_carry_what_the_rule_names() {
        let answer = map(&[
            ("content-type", "text/csv"),
            ("content-length", "7"),
            ("set-cookie", "sid=1"),
            ("link", "<a>"),
            ("link", "<b>"),
            ("location", "/7"),
        ]);
        let kept = |rule: &ReplayHeaders, bodyless| {
            names(&kept_for_replay(&answer, rule, bodyless)).join(" ")
        };
        assert_eq!(
            kept(&ReplayHeaders::EndToEnd, false),
            "content-type link location"
        );
        assert_eq!(
            kept(&ReplayHeaders::EndToEnd, true),
            "content-length content-type link location"
        );
        assert_eq!(kept(&ReplayHeaders::None, false), "content-type");
        let listed = ReplayHeaders::Only(vec![SET_COOKIE, http::header::LOCATION]);
        assert_eq!(kept(&listed, false), "content-type location set-cookie");
        let links = kept_for_replay(&answer, &ReplayHeaders::EndToEnd, false);
        assert_eq!(
            links.get_all("link").iter().collect::<Vec<_>>(),
            ["<a>", "<b>"]
        );
    }

    #[test]
    fn a_loop_is_known_by_its_own_hop_alone() {
        let hop = HeaderValue::from_static("1.1 idem-proxy-1");
        let mut headers = map(&[("via", "1.0 fred, 1.1 idem-proxy-2")]);
        assert!(!has_hop(&headers, &hop));
        add_hop(&mut headers, &hop);
        assert!(has_hop(&headers, &hop));
        assert_eq!(headers.get_all("via").iter().count(), 2);
        assert!(has_hop(
            &map(&[("via", "1.1 a,1.1 idem-proxy-1 , 1.1 b")]),
            &hop
        ));
    }

    #[test]
    fn a_head_of_http2_becomes_one_of_http1() {
        let head = |uri: &str, lines: &[(&str, &str)]| {
            let mut request = http::Request::new(());
            *request.uri_mut() = uri.parse().expect("a target");
            *request.headers_mut() = map(lines);
            let mut parts = request.into_parts().0;
            from_http2(&mut parts);
            parts
        };
        let hosts = |uri, lines: &[(&str, &str)]| {
            let parts = head(uri, lines);
            let hosts = parts.headers.get_all(HOST).iter();
            let hosts: Vec<_> = hosts.filter_map(|host| host.to_str().ok()).collect();
            hosts.join(" ")
        };
        let target = "https://shop.test:8443/a//b?c=%2e";
        assert_eq!(head(target, &[]).uri, "/a//b?c=%2e");
        assert_eq!(hosts(target, &[]), "shop.test:8443");
        assert_eq!(
            hosts(target, &[("host", "Shop.Test:8443")]),
            "Shop.Test:8443"
        );
        assert_eq!(
            hosts(target, &[("host", "evil.test")]),
            "evil.test shop.test:8443"
        );
        let twice = [("host", "shop.test:8443"), ("host", "shop.test:8443")];
        assert_eq!(hosts(target, &twice).split(' ').count(), 3);
        assert_eq!(hosts("/a", &[]), "");
        assert_eq!(hosts("/a", &[("host", "shop.test")]), "shop.test");
        let cookies = head(
            "/",
            &[("cookie", "a=b"), ("cookie", "c=d"), ("cookie", "e=f")],
        );
        let cookies: Vec<_> = cookies.headers.get_all(COOKIE).iter().cloned().collect();
        assert_eq!(cookies, ["a=b; c=d; e=f"]);
    }

    #[test]
    fn trailers_frame_route_and_authenticate_nothing() {
        let mut trailers = map(&[
            ("grpc-status", "0"),
            ("x-checksum", "1"),
            ("content-length", "3"),
            ("content-type", "text/html"),
            ("transfer-encoding", "chunked"),
            ("host", "evil.test"),
            ("authorization", "Bearer a"),
            ("cookie", "a=b"),
            ("set-cookie", "a=b"),
            ("connection", "close"),
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=a"),
            ("idempotency-key", "k"),
            ("trailer", "x"),
            ("te", "trailers"),
            ("cache-control", "no-store"),
        ]);
        clean_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["grpc-status", "x-checksum"]);
    }

    #[test]
    fn trailers_are_asked_for_by_name() {
        assert!(takes_trailers(&map(&[("te", "gzip, Trailers")])));
        assert!(!takes_trailers(&map(&[("te", "gzip")])));
        assert!(!takes_trailers(&map(&[])));
    }

    #[test]
    fn one_expectation_can_be_met() {
        assert!(expectation_can_be_met(&map(&[])));
        assert!(expectation_can_be_met(&map(&[("expect", "100-Continue")])));
        assert!(!expectation_can_be_met(&map(&[("expect", "200-ok")])));
    }
}
