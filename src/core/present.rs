//! Which of the fields that decide anything a head has at all. One walk over its names is less than a look-up for each of them, and most
//! heads have none.

use http::{
    HeaderMap, HeaderName,
    header::{CONTENT_ENCODING, EXPECT, FORWARDED, VIA},
};

use super::headers::is_hop_by_hop;

/// What was found in a head. What is added to the head later is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present(u8);

/// A kind of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What ends at this hop ([`is_hop_by_hop`]): `Connection`, `TE`, `Transfer-Encoding`, `Upgrade` and their like.
    HopByHop = 1,
    /// A name with `_` in it.
    Underscored = 2,
    /// `Expect`
    Expect = 4,
    /// `Via`
    Via = 8,
    /// `Forwarded` and `X-Forwarded-*`
    Forwarded = 16,
    /// `traceparent`, `tracestate`
    Trace = 32,
    /// `Content-Encoding`
    Encoded = 64,
}

impl Present {
    /// Looks at all names of a head.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |seen, name| seen | kinds(name)))
    }

    /// Whether a field of this kind is there.
    #[must_use]
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & kind as u8 != 0
    }
}

/// The kinds that a name is of. Its first byte tells nearly all others apart.
fn kinds(name: &HeaderName) -> u8 {
    let text = name.as_str();
    // Names are short: a look at every byte is less than a call that looks for the first.
    let is_underscore = |byte: u8| byte == b'_';
    let any = text
        .bytes()
        .fold(false, |any, byte| any | is_underscore(byte));
    let underscored = if any { Kind::Underscored as u8 } else { 0 };
    let kind = match text.as_bytes().first() {
        Some(b'c' | b'h' | b'k' | b'p' | b't' | b'u') if is_hop_by_hop(name) => Kind::HopByHop,
        Some(b't') if matches!(text, "traceparent" | "tracestate") => Kind::Trace,
        Some(b'c') if name == CONTENT_ENCODING => Kind::Encoded,
        Some(b'e') if name == EXPECT => Kind::Expect,
        Some(b'v') if name == VIA => Kind::Via,
        Some(b'f') if name == FORWARDED => Kind::Forwarded,
        Some(b'x') if text.starts_with("x-forwarded-") => Kind::Forwarded,
        _ => return underscored,
    };
    underscored | kind as u8
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn present(names: &[&'static str]) -> Present {
        let lines = names.iter().map(|name| HeaderName::from_static(name));
        Present::of(
            &lines
                .map(|name| (name, HeaderValue::from_static("1")))
                .collect(),
        )
    }

    #[test]
    fn each_kind_is_seen_by_any_of_its_names() {
        let hop_by_hop = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "http2-settings",
            "te",
            "transfer-encoding",
            "upgrade",
            "proxy-authenticate",
            "proxy-authorization",
        ];
        for (kind, names) in [
            (Kind::HopByHop, &hop_by_hop[..]),
            (Kind::Underscored, &["idempotency_key", "_"]),
            (Kind::Expect, &["expect"]),
            (Kind::Via, &["via"]),
            (
                Kind::Forwarded,
                &["forwarded", "x-forwarded-for", "x-forwarded-x"],
            ),
            (Kind::Trace, &["traceparent", "tracestate"]),
            (Kind::Encoded, &["content-encoding"]),
        ] {
            for name in names {
                let found = present(&["host", name, "accept"]);
                assert!(found.has(kind), "{name}");
                assert_eq!(found, Present(kind as u8), "{name}");
            }
        }
        let others = [
            "host",
            "content-type",
            "cookie",
            "trailer",
            "user-agent",
            "x-forward",
            "vary",
            "etag",
        ];
        assert_eq!(present(&others), Present(0));
        assert_eq!(present(&[]), Present(0));
        let both = present(&["via", "x-forwarded-_"]);
        assert!(both.has(Kind::Via) && both.has(Kind::Forwarded) && both.has(Kind::Underscored));
    }
}
