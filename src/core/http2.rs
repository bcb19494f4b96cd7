//! The head of an HTTP/2 request, made what the rest of the house knows.

use http::{
    HeaderValue, Uri,
    header::{COOKIE, HOST},
    request,
};

/// Makes the head of an HTTP/2 request what the same request is over HTTP/1.1 (RFC 9113, section 8.3.1): `:authority` becomes Host,
/// the target its path and query. `:scheme` says nothing that is believed.
///
/// Where `:authority` and Host differ there are two Hosts afterwards, which no request may have. Cookies that came as several
/// fields are one again (section 8.2.3).
pub fn to_http1(parts: &mut request::Parts) {
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

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName};

    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                name.parse::<HeaderName>().expect("a name"),
                HeaderValue::from_str(value).expect("a value"),
            );
        }
        headers
    }

    #[test]
    fn a_head_of_http2_becomes_one_of_http1() {
        let head = |uri: &str, lines: &[(&str, &str)]| {
            let mut request = http::Request::new(());
            *request.uri_mut() = uri.parse().expect("a target");
            *request.headers_mut() = map(lines);
            let mut parts = request.into_parts().0;
            to_http1(&mut parts);
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
}
