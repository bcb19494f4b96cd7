//! Trailers: fields behind a body (RFC 9110, section 6.5). What may stand there passes and is kept; what a recipient could take for framing,
//! routing, credentials or a description of the body does not.

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{CONTENT_LENGTH, TRAILER},
    request,
};

use super::headers;

/// Whether a field may not stand in trailers (RFC 9110, section 6.5.1), whatever its sender announced.
fn is_forbidden(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("content-")
        || name.starts_with("x-forwarded-")
        || name.starts_with("if-")
        || name.starts_with("proxy-")
        || matches!(
            name,
            // How the message is framed, and where it goes.
            "connection"
                | "host"
                | "http2-settings"
                | "keep-alive"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                // What is made of it.
                | "cache-control"
                | "expect"
                | "idempotency-key"
                | "max-forwards"
                | "pragma"
                | "range"
                // Who sent it.
                | "authorization"
                | "cookie"
                | "forwarded"
                | "set-cookie"
                | "via"
                | "www-authenticate"
                // What an answer is controlled by.
                | "age"
                | "date"
                | "expires"
                | "location"
                | "retry-after"
                | "vary"
                | "warning"
        )
}

/// Takes out what may not stand in trailers.
pub fn clean(trailers: &mut HeaderMap) {
    if !trailers.keys().any(is_forbidden) {
        return;
    }
    // One by one, many would take a time that grows with their square.
    let mut kept = HeaderMap::with_capacity(trailers.keys_len());
    for (name, value) in trailers.iter().filter(|(name, _)| !is_forbidden(name)) {
        kept.append(name.clone(), value.clone());
    }
    *trailers = kept;
}

/// How many bytes they are on the wire, in HTTP/1.1: what bodies are bounded by counts them too.
#[must_use]
pub fn size(trailers: &HeaderMap) -> usize {
    let line = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
    trailers.iter().map(line).sum()
}

/// Whether whoever sent a request takes trailers behind its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It does: it speaks HTTP/2, or says `TE: trailers`.
    Yes,
    /// Nothing says so.
    No,
}

impl Taken {
    /// What a request's head says of it.
    #[must_use]
    pub fn by(version: Version, headers: &HeaderMap) -> Self {
        if version == Version::HTTP_2
            || (version == Version::HTTP_11 && headers::takes_trailers(headers))
        {
            Self::Yes
        } else {
            Self::No
        }
    }
}

impl From<&request::Parts> for Taken {
    fn from(parts: &request::Parts) -> Self {
        Self::by(parts.version, &parts.headers)
    }
}

/// Makes the head of an answer whose body is at hand announce these trailers, and leaves its framing to whoever sends it: with trailers a body has
/// no length, for HTTP/1.1 sends them behind chunks alone.
pub fn announce<'a>(headers: &mut HeaderMap, names: impl Iterator<Item = &'a HeaderName>) {
    headers.remove(CONTENT_LENGTH);
    headers.remove(TRAILER);
    for name in names {
        headers.append(TRAILER, HeaderValue::from_name(name.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(names: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for name in names {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_static("1"));
        }
        headers
    }

    #[test]
    fn what_may_not_stand_in_trailers_is_taken_out() {
        let mut trailers = map(&[
            "grpc-status",
            "content-length",
            "content-type",
            "transfer-encoding",
            "host",
            "authorization",
            "set-cookie",
            "set-cookie",
            "idempotency-key",
            "x-forwarded-for",
            "if-match",
            "trailer",
            "server-timing",
            "etag",
            "digest",
            "x-sum",
            "x-sum",
        ]);
        clean(&mut trailers);
        let mut left: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["digest", "etag", "grpc-status", "server-timing", "x-sum"]
        );
        assert_eq!(trailers.get_all("x-sum").iter().count(), 2);
        assert_eq!(size(&map(&["x-sum", "x-sum"])), 20);
    }

    #[test]
    fn http_2_takes_trailers_and_http_1_1_where_it_says_so() {
        let mut te = HeaderMap::new();
        te.insert("te", HeaderValue::from_static("trailers"));
        for (version, headers, expected) in [
            (Version::HTTP_2, HeaderMap::new(), Taken::Yes),
            (Version::HTTP_11, te.clone(), Taken::Yes),
            (Version::HTTP_11, HeaderMap::new(), Taken::No),
            (Version::HTTP_10, te, Taken::No),
        ] {
            assert_eq!(Taken::by(version, &headers), expected, "{version:?}");
        }
    }

    #[test]
    fn what_is_announced_leaves_no_length() {
        let mut head = map(&["content-length", "trailer", "x"]);
        let (a, b) = (
            HeaderName::from_static("x-a"),
            HeaderName::from_static("x-b"),
        );
        announce(&mut head, [&a, &b].into_iter());
        let lines: Vec<_> = head.get_all(TRAILER).iter().collect();
        assert_eq!(lines, ["x-a", "x-b"]);
        assert!(!head.contains_key(CONTENT_LENGTH) && head.contains_key("x"));
    }
}
