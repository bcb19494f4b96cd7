//! What a head's fields may say, in HTTP/1.1 and in HTTP/2: they are parsed by now, and not believed yet.

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
};

use crate::core::{
    headers::is_end_to_end,
    present::{Kind, Present},
};

/// Judges a request's head.
///
/// `acted_on` are those that anything here is decided by; `present` is what the head has.
///
/// # Errors
/// What is wrong with it, in a sentence for the client.
pub fn check(
    version: Version,
    headers: &HeaderMap,
    present: Present,
    acted_on: &[HeaderName],
) -> Result<(), &'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() || (host.is_none() && version >= Version::HTTP_11) {
        return Err("A request has exactly one Host (RFC 9112, section 3.2).");
    }
    if !host.is_none_or(|host| is_authority(host.as_bytes())) {
        return Err("The Host is no host and port (RFC 9110, section 7.2).");
    }
    let hop_by_hop = present.has(Kind::HopByHop);
    if hop_by_hop && headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let chunked = codings
            .next()
            .is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !chunked || codings.next().is_some() {
            return Err("The only transfer coding is chunked, once.");
        }
        if headers.contains_key(CONTENT_LENGTH) {
            return Err("A request has a Content-Length or a Transfer-Encoding, not both.");
        }
    }
    // Over HTTP/2 nobody has looked at it as a number.
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_length = |length: &HeaderValue| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    };
    if !lengths.next().is_none_or(is_length) || lengths.next().is_some() {
        return Err("A Content-Length is one number (RFC 9110, section 8.6).");
    }
    if hop_by_hop && headers.contains_key(CONNECTION) && names_end_to_end(headers, acted_on) {
        return Err(
            "Connection names a field that is not the connection's (RFC 9110, section 7.6.1).",
        );
    }
    Ok(())
}

/// Whether a host, and a port if there is one, stand there and nothing else (RFC 3986, section 3.2); none at all is allowed, and a
/// list of hosts is not.
#[must_use]
pub fn is_authority(text: &[u8]) -> bool {
    let (host, rest) = if let [b'[', inner @ ..] = text {
        let end = inner.iter().position(|byte| *byte == b']');
        let Some((address, [_, rest @ ..])) = end.and_then(|end| inner.split_at_checked(end))
        else {
            return false;
        };
        let address = std::str::from_utf8(address).ok();
        if address.is_none_or(|address| address.parse::<std::net::Ipv6Addr>().is_err()) {
            return false;
        }
        (&b""[..], rest)
    } else {
        let end = text.iter().position(|byte| *byte == b':');
        text.split_at(end.unwrap_or(text.len()))
    };
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%".contains(byte);
    let is_port = |port: &[u8]| {
        let number = std::str::from_utf8(port).ok();
        port.iter().all(u8::is_ascii_digit)
            && number.is_some_and(|port| port.is_empty() || port.parse::<u16>().is_ok())
    };
    host.iter().all(fits)
        && match rest {
            [] => true,
            [b':', port @ ..] => is_port(port),
            _ => false,
        }
}

/// Whether a `Connection` line names a field that the request, the proxy or the upstream lives by: following it would take
/// that field away.
fn names_end_to_end(headers: &HeaderMap, acted_on: &[HeaderName]) -> bool {
    let names = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii);
    let protected = |name: &[u8]| {
        let is = |field: &HeaderName| name.eq_ignore_ascii_case(field.as_str().as_bytes());
        is_end_to_end(name) || acted_on.iter().any(is)
    };
    names.into_iter().any(protected)
}

/// Drops fields that are spelt with `_` for `-` and would be one of `acted_on` then: many an origin reads both as one, so such a
/// twin could say there what was not said here.
pub fn drop_underscore_twins(headers: &mut HeaderMap, acted_on: &[HeaderName]) {
    let is_twin = |name: &HeaderName| {
        let name = name.as_str();
        name.contains('_') && {
            let dashed = name.replace('_', "-");
            dashed.starts_with("x-forwarded-")
                || dashed.starts_with("content-")
                || acted_on.iter().any(|own| own.as_str() == dashed)
        }
    };
    while let Some(twin) = headers.keys().find(|name| is_twin(name)).cloned() {
        headers.remove(twin);
    }
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    fn check(
        version: Version,
        headers: &HeaderMap,
        acted_on: &[HeaderName],
    ) -> Result<(), &'static str> {
        super::check(version, headers, Present::of(headers), acted_on)
    }

    fn head(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn refused(lines: &[(&str, &str)]) -> bool {
        let keys = [HeaderName::from_static("idempotency-key")];
        check(Version::HTTP_11, &head(lines), &keys).is_err()
    }

    #[test]
    fn there_is_one_host() {
        assert!(!refused(&[("host", "a")]));
        assert!(refused(&[]));
        assert!(refused(&[("host", "a"), ("host", "a")]));
        for good in ["", "a.example:80", "[::1]:8080", "192.0.2.1"] {
            assert!(!refused(&[("host", good)]), "{good}");
        }
        for bad in ["a b", "a/b", "user@a", "a?b", "a#b", "a\\b"] {
            assert!(refused(&[("host", bad)]), "{bad}");
        }
        assert!(check(Version::HTTP_10, &head(&[]), &[]).is_ok());
        assert!(
            check(
                Version::HTTP_10,
                &head(&[("host", "a"), ("host", "b")]),
                &[]
            )
            .is_err()
        );
    }

    #[test]
    fn the_only_transfer_coding_is_one_chunked() {
        let with = |codings: &[&str]| {
            let mut lines = vec![("host", "a")];
            lines.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
            refused(&lines)
        };
        assert!(!with(&["chunked"]) && !with(&["Chunked"]));
        for bad in [
            &["gzip, chunked"][..],
            &["chunked, chunked"],
            &["chunked", "chunked"],
            &["identity"],
            &["gzip", "chunked"],
            &[""],
        ] {
            assert!(with(bad), "{bad:?}");
        }
        assert!(refused(&[
            ("host", "a"),
            ("transfer-encoding", "chunked"),
            ("content-length", "1")
        ]));
    }

    #[test]
    fn a_length_is_one_number() {
        let with = |lengths: &[&str]| {
            let mut lines = vec![("host", "a")];
            lines.extend(lengths.iter().map(|length| ("content-length", *length)));
            refused(&lines)
        };
        assert!(!with(&[]) && !with(&["0"]) && !with(&["12"]));
        for bad in [
            &["1", "1"][..],
            &["1", "2"],
            &["+1"],
            &["1, 1"],
            &[""],
            &["0x1"],
        ] {
            assert!(with(bad), "{bad:?}");
        }
        let keys: [HeaderName; 0] = [];
        assert!(check(Version::HTTP_2, &head(&[]), &keys).is_err());
        assert!(check(Version::HTTP_2, &head(&[("host", "a")]), &keys).is_ok());
    }

    #[test]
    fn a_host_is_a_host_and_a_port() {
        for good in [
            "",
            "a",
            "shop.example:8443",
            "a:",
            "127.0.0.1:1",
            "[::1]",
            "[2001:db8::1]:443",
            "x_y",
            "caf%C3%A9",
            "a;b",
        ] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "a:99999", "a:x", "a:-1", "a:1:2", "a,b", "[::1", "[::g]", "[::1]x", "::1", "u@a",
            "u:p@a", "a/b", "a b", "a]", "[]", "a:+1",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn connection_names_its_own_fields_only() {
        for good in [
            "close",
            "keep-alive",
            "x-private, keep-alive",
            "",
            "upgrade",
            "content",
        ] {
            assert!(!refused(&[("host", "a"), ("connection", good)]), "{good}");
        }
        for bad in [
            "close, Authorization",
            "HOST",
            "content-length",
            "Content-Type",
            "cookie",
            "x, Idempotency-Key",
            "x-forwarded-for",
            "cache-control",
        ] {
            assert!(refused(&[("host", "a"), ("connection", bad)]), "{bad}");
        }
        assert!(refused(&[
            ("host", "a"),
            ("connection", "close"),
            ("connection", "cookie")
        ]));
    }

    #[test]
    fn underscore_twins_of_what_we_act_on_are_dropped_and_nothing_else() {
        let acted_on = [HeaderName::from_static("idempotency-key"), AUTHORIZATION];
        let mut headers = head(&[
            ("idempotency_key", "a"),
            ("idempotency_key", "b"),
            ("x_forwarded_for", "192.0.2.1"),
            ("content_length", "3"),
            ("my_field", "kept"),
            ("idempotency-key", "kept"),
        ]);
        drop_underscore_twins(&mut headers, &acted_on);
        assert_eq!(headers.len(), 2);
        assert!(headers.contains_key("my_field") && headers.contains_key("idempotency-key"));
    }
}
