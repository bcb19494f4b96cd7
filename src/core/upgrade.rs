//! Upgrades (RFC 9110, section 7.8): which protocols a request asks to switch to, and whether an answer may switch to them.

use http::{
    HeaderMap, HeaderValue, Version,
    header::{CONNECTION, UPGRADE},
};

/// The protocols that a request asks to switch to, as the next hop is asked for them. Never `h2c`: HTTP/2 is a matter of this hop
/// (RFC 9113, section 3.1, has done away with it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocols(HeaderValue);

impl Protocols {
    /// What the head of a request asks for; `None`: nothing that could be passed on. `Upgrade` counts in HTTP/1.1 alone, and only where `Connection`
    /// names it.
    #[must_use]
    pub fn asked(version: Version, headers: &HeaderMap) -> Option<Self> {
        if version != Version::HTTP_11
            || !headers.contains_key(UPGRADE)
            || !tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"))
        {
            return None;
        }
        let asked: Vec<&[u8]> = tokens(headers, &UPGRADE)
            .filter(|protocol| !is_h2c(protocol))
            .collect();
        if asked.is_empty() {
            return None;
        }
        HeaderValue::from_bytes(&asked.join(&b", "[..]))
            .ok()
            .map(Self)
    }

    /// As `Upgrade` says them.
    #[must_use]
    pub fn value(&self) -> &HeaderValue {
        &self.0
    }

    /// Whether an answer switches to what was asked for, and to nothing else: its `Upgrade` has to name it.
    #[must_use]
    pub fn allow(&self, answer: &HeaderMap) -> bool {
        let mut switched = tokens(answer, &UPGRADE).peekable();
        switched.peek().is_some()
            && switched
                .all(|protocol| split(&self.0).any(|asked| asked.eq_ignore_ascii_case(protocol)))
    }
}

fn is_h2c(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.eq_ignore_ascii_case(b"h2c"))
}

fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &'a http::HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).iter().flat_map(split)
}

fn split(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes()
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn asked(connection: &'static str, upgrade: &'static str) -> Option<String> {
        let headers = head(&[("connection", connection), ("upgrade", upgrade)]);
        let protocols = Protocols::asked(Version::HTTP_11, &headers)?;
        Some(protocols.value().to_str().expect("ASCII").to_owned())
    }

    #[test]
    fn an_upgrade_is_asked_for_on_two_lines() {
        assert_eq!(asked("Upgrade", "websocket").as_deref(), Some("websocket"));
        assert_eq!(
            asked("keep-alive, upgrade", "SPDY/3.1, tcp").as_deref(),
            Some("SPDY/3.1, tcp")
        );
        assert_eq!(asked("keep-alive", "websocket"), None);
        assert_eq!(asked("upgrade", ""), None);
        let headers = head(&[("connection", "upgrade"), ("upgrade", "websocket")]);
        assert_eq!(Protocols::asked(Version::HTTP_10, &headers), None);
        assert_eq!(Protocols::asked(Version::HTTP_2, &headers), None);
    }

    #[test]
    fn http_2_in_cleartext_is_never_asked_for() {
        assert_eq!(asked("Upgrade, HTTP2-Settings", "h2c"), None);
        assert_eq!(
            asked("Upgrade", "H2C, websocket").as_deref(),
            Some("websocket")
        );
        assert_eq!(asked("Upgrade", "h2c/1"), None);
    }

    #[test]
    fn an_answer_switches_to_what_was_asked_for_alone() {
        let headers = head(&[("connection", "upgrade"), ("upgrade", "websocket, tcp")]);
        let protocols = Protocols::asked(Version::HTTP_11, &headers).expect("an upgrade");
        assert!(protocols.allow(&head(&[("upgrade", "WebSocket")])));
        assert!(protocols.allow(&head(&[("upgrade", "tcp")])));
        for other in ["h2c", "websocket, h2c", "", "web"] {
            assert!(!protocols.allow(&head(&[("upgrade", other)])), "{other}");
        }
        assert!(!protocols.allow(&head(&[])));
    }
}
