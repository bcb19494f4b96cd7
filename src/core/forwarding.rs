//! Where a request has been: `Forwarded` (RFC 7239), `Via` and `Max-Forwards` (RFC 9110, sections 7.6.2 and 7.6.3).

use http::{
    HeaderMap, HeaderValue, Method, Version,
    header::{FORWARDED, MAX_FORWARDS, VIA},
};

use super::headers::Arrival;

/// This process in `Via`: a tag that cannot be guessed, behind the version of HTTP that a request came by.
#[derive(Clone, Debug)]
pub struct Hop {
    tag: Box<[u8]>,
    by_1_0: HeaderValue,
    by_1_1: HeaderValue,
    by_2: HeaderValue,
}

impl Hop {
    /// The hop of this tag; `None` where it is no word of visible ASCII, or holds a comma.
    #[must_use]
    pub fn new(tag: &str) -> Option<Self> {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if tag.is_empty() || !tag.bytes().all(fits) {
            return None;
        }
        let by = |version: &str| HeaderValue::try_from(format!("{version} {tag}")).ok();
        Some(Self {
            tag: tag.as_bytes().into(),
            by_1_0: by("1.0")?,
            by_1_1: by("1.1")?,
            by_2: by("2.0")?,
        })
    }

    /// What `Via` says of a request that came by `version`.
    #[must_use]
    pub const fn via(&self, version: Version) -> &HeaderValue {
        match version {
            Version::HTTP_09 | Version::HTTP_10 => &self.by_1_0,
            Version::HTTP_2 | Version::HTTP_3 => &self.by_2,
            _ => &self.by_1_1,
        }
    }

    /// Whether the request has been here before, by whatever version.
    #[must_use]
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let is_here = |hop: &[u8]| {
            let mut words = hop
                .split(|byte| matches!(byte, b' ' | b'\t'))
                .filter(|word| !word.is_empty());
            words.nth(1) == Some(&*self.tag)
        };
        headers
            .get_all(VIA)
            .iter()
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
            .any(is_here)
    }
}

/// Adds this hop to a chain that a trusted peer has begun: whom it came from, by which scheme, to which host. Where there is no chain, none is
/// begun: `X-Forwarded-*` say the same.
pub fn append_forwarded(headers: &mut HeaderMap, arrival: &Arrival, host: Option<&HeaderValue>) {
    let lines: Vec<&[u8]> = headers
        .get_all(FORWARDED)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.is_empty() {
        return;
    }
    let mut hop = lines.join(&b", "[..]);
    hop.extend_from_slice(b", for=");
    match arrival.peer.as_ref().map(HeaderValue::as_bytes) {
        // An IPv6 address is bracketed, and so has to be quoted (RFC 7239, section 6).
        Some(address) if address.contains(&b':') => {
            hop.extend_from_slice(b"\"[");
            hop.extend_from_slice(address);
            hop.extend_from_slice(b"]\"");
        }
        Some(address) => hop.extend_from_slice(address),
        None => hop.extend_from_slice(b"unknown"),
    }
    hop.extend_from_slice(b";proto=");
    hop.extend_from_slice(arrival.proto.as_bytes());
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        hop.extend_from_slice(b";host=");
        push_value(&mut hop, host.as_bytes());
    }
    if let Ok(hop) = HeaderValue::from_bytes(&hop) {
        headers.insert(FORWARDED, hop);
    }
}

/// A token as it is, anything else quoted (RFC 7239, section 4).
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if value.iter().all(is_token) {
        out.extend_from_slice(value);
        return;
    }
    out.push(b'"');
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// What `Max-Forwards` makes of an OPTIONS request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxForwards {
    /// The request goes on, as far as this field is concerned.
    Unbounded,
    /// It may be forwarded so many times more, this one included.
    Left(u64),
    /// This is where it ends.
    Here,
}

/// Reads `Max-Forwards`. It bounds OPTIONS and TRACE alone; on other methods, and where it is no number, it means nothing.
#[must_use]
pub fn max_forwards(method: &Method, headers: &HeaderMap) -> MaxForwards {
    if method != Method::OPTIONS {
        return MaxForwards::Unbounded;
    }
    let mut lines = headers.get_all(MAX_FORWARDS).iter();
    let (Some(value), None) = (lines.next(), lines.next()) else {
        return MaxForwards::Unbounded;
    };
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return MaxForwards::Unbounded;
    }
    let number = digits.iter().fold(0_u64, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    });
    match number {
        0 => MaxForwards::Here,
        left => MaxForwards::Left(left),
    }
}

/// Counts one forwarding of a request off.
pub fn count_forward(method: &Method, headers: &mut HeaderMap) {
    if let MaxForwards::Left(left) = max_forwards(method, headers) {
        headers.insert(MAX_FORWARDS, HeaderValue::from(left - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                http::HeaderName::from_bytes(name.as_bytes()).expect("a name"),
                HeaderValue::from_str(value).expect("a value"),
            );
        }
        headers
    }

    #[test]
    fn a_loop_is_known_by_its_tag_whatever_the_version() {
        let hop = Hop::new("idem-proxy-1").expect("a word");
        let mut headers = map(&[("via", "1.0 fred, 1.1 idem-proxy-2")]);
        assert!(!hop.is_in(&headers));
        headers.append(VIA, hop.via(Version::HTTP_2).clone());
        assert!(hop.is_in(&headers));
        let via: Vec<_> = headers.get_all(VIA).iter().collect();
        assert_eq!(via, ["1.0 fred, 1.1 idem-proxy-2", "2.0 idem-proxy-1"]);
        for seen in [
            "1.1 a,1.1 idem-proxy-1 , 1.1 b",
            "1.0  idem-proxy-1 (a comment)",
            "HTTP/1.1\tidem-proxy-1",
        ] {
            assert!(hop.is_in(&map(&[("via", seen)])), "{seen}");
        }
        for other in [
            "idem-proxy-1",
            "1.1 idem-proxy-11",
            "1.1 x idem-proxy-1",
            "",
            ",",
        ] {
            assert!(!hop.is_in(&map(&[("via", other)])), "{other}");
        }
    }

    #[test]
    fn the_version_is_the_one_that_was_received() {
        let hop = Hop::new("t").expect("a word");
        for (version, expected) in [
            (Version::HTTP_10, "1.0 t"),
            (Version::HTTP_11, "1.1 t"),
            (Version::HTTP_2, "2.0 t"),
        ] {
            assert_eq!(hop.via(version), expected);
        }
        assert!(Hop::new("a b").is_none() && Hop::new("a,b").is_none() && Hop::new("").is_none());
    }

    #[test]
    fn a_chain_is_continued_and_never_begun() {
        let arrival = |peer: Option<&'static str>| Arrival {
            peer: peer.map(HeaderValue::from_static),
            trusted: true,
            proto: HeaderValue::from_static("https"),
        };
        let appended = |peer, host| {
            let mut headers = map(&[("forwarded", "for=203.0.113.9"), ("forwarded", "by=_x")]);
            append_forwarded(&mut headers, &arrival(peer), host);
            let lines: Vec<_> = headers.get_all(FORWARDED).iter().collect();
            let [line] = lines.as_slice() else {
                panic!("{lines:?}")
            };
            let line = line.to_str().expect("ASCII");
            let appended = line.strip_prefix("for=203.0.113.9, by=_x, ");
            appended.expect("the chain is kept").to_owned()
        };
        let host = HeaderValue::from_static("shop.example");
        let port = HeaderValue::from_static("shop.example:8443");
        let empty = HeaderValue::from_static("");
        assert_eq!(
            appended(Some("192.0.2.7"), Some(&host)),
            "for=192.0.2.7;proto=https;host=shop.example"
        );
        assert_eq!(
            appended(Some("2001:db8::7"), Some(&port)),
            "for=\"[2001:db8::7]\";proto=https;host=\"shop.example:8443\""
        );
        assert_eq!(appended(None, Some(&empty)), "for=unknown;proto=https");
        let mut none = HeaderMap::new();
        append_forwarded(&mut none, &arrival(Some("192.0.2.7")), Some(&host));
        assert!(none.is_empty());
    }

    #[test]
    fn max_forwards_bounds_options_alone() {
        let of =
            |method: &Method, value: &str| max_forwards(method, &map(&[("max-forwards", value)]));
        assert_eq!(of(&Method::OPTIONS, "0"), MaxForwards::Here);
        assert_eq!(of(&Method::OPTIONS, "000"), MaxForwards::Here);
        assert_eq!(of(&Method::OPTIONS, "10"), MaxForwards::Left(10));
        assert_eq!(of(&Method::GET, "0"), MaxForwards::Unbounded);
        for odd in ["", "-1", "+1", "1, 2", "x"] {
            assert_eq!(of(&Method::OPTIONS, odd), MaxForwards::Unbounded, "{odd}");
        }
        let mut headers = map(&[("max-forwards", "99999999999999999999999")]);
        count_forward(&Method::OPTIONS, &mut headers);
        assert_eq!(
            headers.get(MAX_FORWARDS).unwrap(),
            &(u64::MAX - 1).to_string()
        );
        let mut headers = map(&[("max-forwards", "3")]);
        count_forward(&Method::GET, &mut headers);
        count_forward(&Method::OPTIONS, &mut headers);
        assert_eq!(headers.get(MAX_FORWARDS).unwrap(), "2");
    }
}
