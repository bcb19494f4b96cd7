//! Who may use `/api/v1` (contract, section 12): whoever has the token; where there is none, whoever is on this machine, and is not a
//! page in somebody's browser.

use std::net::IpAddr;

use aws_lc_rs::constant_time;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE},
    uri::Authority,
};

use crate::config::Token;

/// How far a listener reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This machine: a loopback address or a unix socket.
    Local,
    /// Others too.
    Remote,
}

/// Why somebody was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    ByToken,
    ByReach,
}

impl Admitted {
    /// How logs spell it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::ByToken => "token",
            Self::ByReach => "loopback",
        }
    }
}

/// Why somebody was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// There is a token, and none was sent.
    NoToken,
    /// Another one was sent.
    WrongToken,
    /// Without a token only local listeners serve this.
    Reach,
    /// The Host is none of this machine's: a name that was made to lead here (DNS rebinding).
    Host,
    /// A page of another origin sent this.
    Origin,
}

impl Turned {
    /// The status that says it.
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::NoToken | Self::WrongToken => StatusCode::UNAUTHORIZED,
            Self::Reach | Self::Host | Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// What is to be done about it.
    pub(super) const fn detail(self) -> &'static str {
        match self {
            Self::NoToken => "The bearer token of admin.token_file is needed.",
            Self::WrongToken => "This is not the bearer token of admin.token_file.",
            Self::Reach => {
                "Without admin.token_file the API is served on loopback and unix listeners alone."
            }
            Self::Host => "Without admin.token_file the Host has to be a loopback one.",
            Self::Origin => "Pages of other origins may not use the API.",
        }
    }

    /// The challenge of a 401 (RFC 6750, section 3).
    pub(super) fn challenge(self) -> Option<(http::HeaderName, HeaderValue)> {
        let challenge = match self {
            Self::NoToken => r#"Bearer realm="idem-proxy""#,
            Self::WrongToken => r#"Bearer realm="idem-proxy", error="invalid_token""#,
            Self::Reach | Self::Host | Self::Origin => return None,
        };
        Some((WWW_AUTHENTICATE, HeaderValue::from_static(challenge)))
    }
}

/// Whether a request with these headers, on a listener that reaches so far, may use the API.
pub(super) fn admit(
    token: Option<&Token>,
    reach: Reach,
    headers: &HeaderMap,
) -> Result<Admitted, Turned> {
    if let Some(token) = token {
        return match sent(headers) {
            None => Err(Turned::NoToken),
            // In constant time; the length is no secret.
            Some(sent) => constant_time::verify_slices_are_equal(sent, token.as_bytes())
                .map(|()| Admitted::ByToken)
                .map_err(|_| Turned::WrongToken),
        };
    }
    if reach == Reach::Remote {
        return Err(Turned::Reach);
    }
    let host = only(headers, &HOST).filter(|host| is_loopback(host));
    let Some(host) = host else {
        return Err(Turned::Host);
    };
    let own = |origin: &str| {
        origin
            .split_once("://")
            .is_some_and(|(_, rest)| rest == host)
    };
    if headers.contains_key(ORIGIN) && !only(headers, &ORIGIN).is_some_and(own) {
        return Err(Turned::Origin);
    }
    Ok(Admitted::ByReach)
}

/// The token that was sent; an empty one where what was sent is none.
fn sent(headers: &HeaderMap) -> Option<&[u8]> {
    if !headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let bearer = only(headers, &AUTHORIZATION).and_then(|value| value.split_once(' '));
    let token = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    Some(token.map_or(&[], |(_, token)| token.trim_matches(' ').as_bytes()))
}

/// The value of a field that stands there once.
fn only<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next()?.to_str().ok()?;
    lines.next().is_none().then_some(value)
}

/// Whether a Host is this machine's own name or address.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    !host.contains('@')
        && (name.eq_ignore_ascii_case("localhost")
            || address
                .parse::<IpAddr>()
                .is_ok_and(|address| address.to_canonical().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        lines
            .iter()
            .map(line)
            .fold(HeaderMap::new(), |mut all, (name, value)| {
                all.append(name, value);
                all
            })
    }

    fn token() -> Token {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "s3cret\n").unwrap();
        let text = format!("[admin]\ntoken_file = '{}'", path.display());
        let loaded = crate::config::parse("test", &text, []).loaded().unwrap();
        loaded.config.admin.token.unwrap()
    }

    #[test]
    fn the_token_opens_every_listener_and_nothing_else_does() {
        let token = token();
        let ask = |lines: &[_]| admit(Some(&token), Reach::Remote, &headers(lines));
        let by_token = Ok(Admitted::ByToken);
        assert_eq!(ask(&[("authorization", "Bearer s3cret")]), by_token);
        assert_eq!(ask(&[("authorization", "bearer  s3cret ")]), by_token);
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3cret2",
            "Bearer S3CRET",
            "Basic s3cret",
            "s3cret",
            "",
        ] {
            let answer = ask(&[("authorization", wrong)]);
            assert_eq!(answer, Err(Turned::WrongToken), "{wrong}");
        }
        let twice = ("authorization", "Bearer s3cret");
        assert_eq!(ask(&[twice, twice]), Err(Turned::WrongToken));
        assert_eq!(ask(&[("host", "localhost")]), Err(Turned::NoToken));
        let local = admit(
            Some(&token),
            Reach::Local,
            &headers(&[("host", "localhost")]),
        );
        assert_eq!(
            local,
            Err(Turned::NoToken),
            "a token that is there is needed everywhere"
        );
    }

    #[test]
    fn without_a_token_this_machine_alone_is_let_in() {
        let ask = |host| admit(None, Reach::Local, &headers(&[("host", host)]));
        for host in [
            "localhost",
            "LOCALHOST:9090",
            "127.0.0.1",
            "127.8.7.6:1",
            "[::1]:9090",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(ask(host), Ok(Admitted::ByReach), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "10.0.0.1",
            "[::2]",
            "a@localhost",
            "0.0.0.0",
        ] {
            assert_eq!(ask(host), Err(Turned::Host), "{host}");
        }
        assert_eq!(
            admit(None, Reach::Local, &HeaderMap::new()),
            Err(Turned::Host)
        );
        let two = headers(&[("host", "localhost"), ("host", "localhost")]);
        assert_eq!(admit(None, Reach::Local, &two), Err(Turned::Host));
        let remote = headers(&[("host", "localhost")]);
        assert_eq!(admit(None, Reach::Remote, &remote), Err(Turned::Reach));
    }

    #[test]
    fn a_page_of_another_origin_is_turned_away() {
        let ask = |origin| {
            let lines = headers(&[("host", "localhost:9090"), ("origin", origin)]);
            admit(None, Reach::Local, &lines)
        };
        assert_eq!(ask("http://localhost:9090"), Ok(Admitted::ByReach));
        for other in ["http://localhost:3000", "https://example.org", "null", ""] {
            assert_eq!(ask(other), Err(Turned::Origin), "{other}");
        }
    }
}
