//! Paths: how a request's path is read for matching, and the templates it is matched with.
//!
//! There are two readings. The normalised path ([`normalise`]) is what record ids and fingerprints are made of. For routes
//! ([`for_matching`]) the delimiters that may stand in a segment as they are count as decoded too: an origin that decodes them
//! would serve `/orders%3Abatch` as `/orders:batch`, so that no such spelling may escape the route.
//!
//! Matching sees a copy with dot segments resolved, unreserved characters decoded, empty segments and a trailing
//! slash dropped (contract, section 3), so that no spelling of a path escapes its route. The upstream gets the
//! bytes that the client sent.

use std::borrow::Cow;

/// The path as routes, record ids and fingerprints see it. It starts with `/`.
///
/// Percent-encoded unreserved characters (RFC 3986, section 2.3) are decoded, other escapes get upper-case digits
/// (section 6.2.2.1), then empty segments go and dot segments are resolved. Most paths are in this form already and
/// are borrowed.
#[must_use]
pub fn normalise(raw: &str) -> Cow<'_, str> {
    if is_normal(raw) {
        return Cow::Borrowed(raw);
    }
    let unreserved =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let decoded = decode(raw, unreserved);
    let mut kept: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            other => kept.push(other),
        }
    }
    let mut path = String::with_capacity(decoded.len());
    for segment in &kept {
        path.push('/');
        path.push_str(segment);
    }
    if path.is_empty() {
        path.push('/');
    }
    Cow::Owned(path)
}

/// The normalised path as routes see it: sub-delimiters, `:` and `@` decoded, which may stand in a segment (RFC 3986, section 3.3).
/// `%2F` and everything else stays encoded. Hardly any path has such an escape; the others are borrowed.
#[must_use]
pub fn for_matching(normalised: &str) -> Cow<'_, str> {
    if normalised.contains('%') {
        let in_segment = |byte: u8| b"!$&'()*+,;=:@".contains(&byte);
        Cow::Owned(decode(normalised, in_segment))
    } else {
        Cow::Borrowed(normalised)
    }
}

/// Whether normalising would change nothing. One pass, no allocation.
fn is_normal(raw: &str) -> bool {
    if raw == "/" {
        return true;
    }
    let Some(rest) = raw.strip_prefix('/') else {
        return false;
    };
    // "/." starts every dot segment; "." elsewhere in a segment is harmless but rare enough not to matter here.
    let mut at_start = true;
    for byte in rest.bytes() {
        if byte == b'%' || (at_start && matches!(byte, b'/' | b'.')) {
            return false;
        }
        at_start = byte == b'/';
    }
    !at_start
}

/// Decodes the escapes of the characters that `plain` names; the digits of others become upper case.
fn decode(raw: &str, plain: impl Fn(u8) -> bool) -> String {
    let bytes = raw.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|b| char::from(*b).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            out.push(byte); // a stray `%` stays what it is
            continue;
        };
        rest = tail.get(2..).unwrap_or_default();
        let value = u8::try_from(high * 16 + low).unwrap_or(u8::MAX); // two hexadecimal digits fit
        if plain(value) {
            out.push(value);
        } else {
            out.push(b'%');
            out.extend(tail.iter().take(2).map(u8::to_ascii_uppercase));
        }
    }
    // Only ASCII was put in the place of ASCII, so this is still the UTF-8 that it was.
    String::from_utf8(out).unwrap_or_else(|_| raw.to_owned())
}

/// A path template: literal segments, `{name}` for one segment, `{*rest}` for the rest, which may be nothing: `/a/{*rest}` takes `/a`
/// and `/a/` as well, for nothing below a protected path should lie beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
}

/// One segment of a template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// These characters, normalised.
    Literal(String),
    /// `{name}`: any one segment.
    One,
    /// `{*rest}`: any number of segments; only at the end.
    Rest,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence that names the segment.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(inner) = text.strip_prefix('/') else {
            return Err("a path starts with `/`".into());
        };
        if text.contains(['?', '#']) {
            return Err("a path has no query and no fragment".into());
        }
        let mut segments = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for raw in inner.split('/').filter(|segment| !segment.is_empty()) {
            if segments.last() == Some(&Segment::Rest) {
                return Err(format!(
                    "`{{*{}}}` takes the rest, so nothing can follow it",
                    names.last().unwrap_or(&"rest")
                ));
            }
            let Some(name) = raw.strip_prefix('{').and_then(|r| r.strip_suffix('}')) else {
                if raw.contains(['{', '}']) {
                    return Err(format!(
                        "`{raw}`: a placeholder is a whole segment, `{{name}}` or `{{*rest}}`"
                    ));
                }
                match for_matching(&normalise(&encoded(raw))).strip_prefix('/') {
                    Some(literal) if !literal.is_empty() => {
                        segments.push(Segment::Literal(literal.to_owned()));
                    }
                    _ => {
                        return Err(format!(
                            "`{raw}`: dot segments never match, for paths are compared with them resolved"
                        ));
                    }
                }
                continue;
            };
            let (name, kind) = match name.strip_prefix('*') {
                Some(rest) => (rest, Segment::Rest),
                None => (name, Segment::One),
            };
            let valid =
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !valid {
                return Err(format!(
                    "`{raw}`: a placeholder's name is letters, digits and `_`"
                ));
            }
            if names.contains(&name) {
                return Err(format!("`{{{name}}}` stands twice"));
            }
            names.push(name);
            segments.push(kind);
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
        })
    }

    /// The template as it is configured.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its segments, from the left.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

/// The text with what cannot stand in a path as it is (RFC 3986, section 3.3) percent-encoded, as clients send it.
fn encoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`|".contains(&byte) {
            out.push(byte);
        } else {
            out.extend(format!("%{byte:02X}").bytes());
        }
    }
    String::from_utf8(out).unwrap_or_default() // it is ASCII
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        for raw in [
            "/orders",
            "/orders/",
            "//orders",
            "/%6Frders",
            "/%6frders",
            "/x/../orders",
            "/./orders",
            "/orders/.",
            "/x/%2e%2E/orders",
            "/../orders",
            "/orders//",
            "/orders/x/..",
        ] {
            assert_eq!(normalise(raw), "/orders", "{raw}");
        }
        assert_eq!(normalise("/"), "/");
        assert_eq!(normalise(""), "/");
        assert_eq!(normalise("/.."), "/");
        assert_eq!(normalise("/.well-known/x"), "/.well-known/x");
    }

    #[test]
    fn reserved_characters_stay_encoded() {
        assert_eq!(normalise("/a%2fb"), "/a%2Fb");
        assert_eq!(normalise("/a%2Fb"), "/a%2Fb");
        assert_eq!(normalise("/a%"), "/a%");
        assert_eq!(normalise("/a%4"), "/a%4");
        assert_eq!(normalise("/a%zz"), "/a%zz");
        assert_eq!(normalise("/%7Eu"), "/~u");
        assert_eq!(normalise("/%C3%A9"), "/%C3%A9");
        assert_eq!(normalise("/caf\u{e9}/%2e"), "/caf\u{e9}");
    }

    #[test]
    fn delimiters_of_a_segment_match_in_either_spelling() {
        for (raw, read) in [
            ("/v1/orders%3Abatch", "/v1/orders:batch"),
            ("/odata/Orders%281%29", "/odata/Orders(1)"),
            ("/a%2Fb%3f%23%25", "/a%2Fb%3F%23%25"),
        ] {
            assert_eq!(for_matching(&normalise(raw)), read, "{raw}");
        }
        assert_eq!(
            normalise("/orders%3Abatch"),
            "/orders%3Abatch",
            "it is another record"
        );
    }

    #[test]
    fn a_path_in_normal_form_is_borrowed() {
        for raw in ["/", "/orders", "/orders/42", "/a.b/c~d"] {
            assert!(matches!(normalise(raw), Cow::Borrowed(_)), "{raw}");
        }
    }

    proptest::proptest! {
        #[test]
        fn normalising_twice_changes_nothing(raw in "(/|[a-z.%]|%2[eEfF]|%6F|\u{e9}){0,24}") {
            let once = normalise(&raw).into_owned();
            proptest::prop_assert!(once.starts_with('/'));
            // A decoded `%` could form a new escape: `%25` is reserved and stays, so it cannot.
            proptest::prop_assert_eq!(normalise(&once).into_owned(), once);
        }
    }

    #[test]
    fn templates_are_read_or_refused_with_a_reason() {
        let read = |text: &str| Template::parse(text).map(|t| t.segments().to_vec());
        assert_eq!(read("/"), Ok(vec![]));
        assert_eq!(
            read("/a/{id}/{*rest}"),
            Ok(vec![
                Segment::Literal("a".into()),
                Segment::One,
                Segment::Rest
            ])
        );
        assert_eq!(
            read("/%6Frders/"),
            Ok(vec![Segment::Literal("orders".into())])
        );
        let literal = |text: &str| Ok(vec![Segment::Literal(text.into())]);
        assert_eq!(read("/caf\u{e9}"), literal("caf%C3%A9"));
        assert_eq!(read("/caf%c3%a9"), literal("caf%C3%A9"));
        assert_eq!(read("/s p"), literal("s%20p"));
        assert_eq!(read("/orders%3abatch"), literal("orders:batch"));
        for (bad, why) in [
            ("orders", "starts with"),
            ("/a/{*rest}/b", "rest"),
            ("/a{id}", "whole segment"),
            ("/{}", "name"),
            ("/{a}/{a}", "twice"),
            ("/a/../b", "dot segments"),
            ("/a?b", "query"),
        ] {
            let said = read(bad).expect_err(bad);
            assert!(said.contains(why), "{bad}: {said}");
        }
    }
}
