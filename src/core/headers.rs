//! Header fields on their way through: what ends at the proxy, what is kept for replays, what is added.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE,
        CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, SET_COOKIE, TE, TRAILER,
    },
};

use super::{
    added::{Stranger, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO},
    forwarding::append_forwarded,
    policy::ReplayHeaders,
    present::{Kind, Present},
};

/// Fields that mean one connection and end with it (RFC 9110, section 7.6.1), beside those that `Connection` names.
#[must_use]
pub fn is_hop_by_hop(name: &HeaderName) -> bool {
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
        if headers.contains_key(TRAILER) {
            announce_without(headers, &named);
        }
        for name in named {
            headers.remove(name);
        }
    }
    while let Some(name) = headers.keys().find(|name| is_hop_by_hop(name)).cloned() {
        headers.remove(name);
    }
}

/// What `Connection` names ends here behind the body too: a trailer that is not announced is not sent on.
fn announce_without(headers: &mut HeaderMap, named: &[HeaderName]) {
    let is_named = |word: &[u8]| {
        let is = |name: &HeaderName| word.eq_ignore_ascii_case(name.as_str().as_bytes());
        named.iter().any(is)
    };
    let words: Vec<&[u8]> = headers
        .get_all(TRAILER)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    if !words.iter().any(|word| is_named(word)) {
        return;
    }
    let left: Vec<&[u8]> = words.into_iter().filter(|word| !is_named(word)).collect();
    let left = HeaderValue::from_bytes(&left.join(&b", "[..]));
    match left.ok().filter(|left| !left.is_empty()) {
        Some(left) => drop(headers.insert(TRAILER, left)),
        None => drop(headers.remove(TRAILER)),
    }
}

fn may_be_named(name: &HeaderName) -> bool {
    !(is_end_to_end(name.as_str().as_bytes()) || name.as_str() == "idempotency-key")
}

/// Whether a field is one that requests and answers live by, whatever the configuration: `Connection` may not name it.
pub(super) fn is_end_to_end(name: &[u8]) -> bool {
    let starts = |prefix: &[u8]| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let is = |field: &HeaderName| name.eq_ignore_ascii_case(field.as_str().as_bytes());
    starts(b"content-")
        || starts(b"x-forwarded-")
        || [HOST, AUTHORIZATION, COOKIE, CACHE_CONTROL].iter().any(is)
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

/// Makes a client's request head one of ours: hop-by-hop fields and the expectation end here. A trusted peer's claims about who came are kept
/// and the peer is added, to `Forwarded` too where it has one; a stranger's are dropped, and what is to be said of it is given back. `present` is
/// what the head has.
#[must_use]
pub fn forward_request<'a>(
    headers: &mut HeaderMap,
    present: Present,
    arrival: &'a Arrival,
) -> Option<Stranger<'a>> {
    if present.has(Kind::HopByHop) {
        strip_hop_by_hop(headers);
    }
    let claims = |name: &HeaderName| name == FORWARDED || name.as_str().starts_with("x-forwarded-");
    let ends_here = |name: &HeaderName| name == EXPECT || (!arrival.trusted && claims(name));
    if present.has(Kind::Expect) || present.has(Kind::Forwarded) {
        while let Some(name) = headers.keys().find(|name| ends_here(name)).cloned() {
            headers.remove(name);
        }
    }
    let host = headers.get(HOST).cloned();
    if !arrival.trusted {
        return Some(Stranger { arrival, host });
    }
    match chain(headers, arrival.peer.as_ref()) {
        Some(addresses) => drop(headers.insert(X_FORWARDED_FOR, addresses)),
        None => drop(headers.remove(X_FORWARDED_FOR)),
    }
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| arrival.proto.clone());
    append_forwarded(headers, arrival, host.as_ref());
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    None
}

/// The addresses that a trusted peer reported, and the peer's own.
fn chain(headers: &HeaderMap, peer: Option<&HeaderValue>) -> Option<HeaderValue> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().chain(peer);
    let parts: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
    HeaderValue::from_bytes(&parts.join(&b", "[..]))
        .ok()
        .filter(|all| !all.is_empty())
}

/// Takes the length out of an answer that has none (RFC 9110, section 8.6).
pub fn strip_length(status: StatusCode, headers: &mut HeaderMap) {
    if status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Whether an answer has no body whatever its head says (RFC 9110, section 6.4.1).
#[must_use]
pub fn is_bodyless(method: &Method, status: StatusCode) -> bool {
    method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
}

/// Whether a field of an answer is one that its replays carry. Hop-by-hop fields are gone already.
///
/// `Content-Length` is made anew on each answer, but where there is no body it describes one that is not here, and stays.
pub fn kept_for_replay(rule: &ReplayHeaders, bodyless: bool) -> impl Fn(&HeaderName) -> bool {
    let describes_body =
        |name: &HeaderName| [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE].contains(name);
    move |name| {
        if name == CONTENT_LENGTH {
            return bodyless;
        }
        match rule {
            ReplayHeaders::EndToEnd => name != SET_COOKIE,
            ReplayHeaders::None => describes_body(name),
            ReplayHeaders::Only(listed) => listed.contains(name) || describes_body(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::added::Added, *};

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

    fn forward(headers: &mut HeaderMap, arrival: &Arrival) {
        let stranger = forward_request(headers, Present::of(headers), arrival);
        let via = HeaderValue::from_static("1.1 here");
        let added = Added {
            stranger,
            via: &via,
            traceparent: None,
        };
        added.insert_into(headers);
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
    fn what_connection_names_is_not_announced_as_a_trailer_either() {
        let mut headers = map(&[
            ("connection", "x-a, x-b"),
            ("trailer", "X-A, x-c"),
            ("trailer", "x-b"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(
            headers.get_all("trailer").iter().collect::<Vec<_>>(),
            ["x-c"]
        );
        let mut headers = map(&[("connection", "x-a"), ("trailer", "x-a")]);
        strip_hop_by_hop(&mut headers);
        assert!(headers.is_empty());
        let mut headers = map(&[
            ("connection", "x-a"),
            ("trailer", "x-b"),
            ("trailer", "x-c"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.get_all("trailer").iter().count(), 2);
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
        forward(&mut headers, &stranger());
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
        forward(&mut headers, &arrival);
        let addresses: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(addresses, ["203.0.113.9, 198.51.100.1, 192.0.2.7"]);
        assert_eq!(
            headers.get("x-forwarded-proto"),
            Some(&HeaderValue::from_static("https"))
        );
        let forwarded: Vec<_> = headers.get_all("forwarded").iter().collect();
        assert_eq!(
            forwarded,
            ["for=203.0.113.9, for=192.0.2.7;proto=http;host=shop.example"]
        );
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
            let keeps = kept_for_replay(rule, bodyless);
            let mut kept = names(&answer);
            kept.retain(|name| keeps(&name.parse().expect("a name")));
            kept.join(" ")
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
