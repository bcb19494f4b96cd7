//! Addresses: where to listen, and where upstreams listen.

use std::path::{Path, PathBuf};

use http::uri::Authority;
use ipnet::IpNet;

use super::{Listen, Target, problem::Refusal};

const LISTEN: &str = "\"host:port\", \"[::1]:8080\", \"unix:/run/idem.sock\"";
const URL: &str =
    "\"http://host:port\" or \"https://host:port\" without a path, \"unix:/path.sock\"";

/// Reads one address of a `listen` list.
pub(super) fn listen(text: &str) -> Result<Listen, Refusal> {
    let refuse = |why: &str| Refusal::wrong(why).allowed(LISTEN);
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(Listen::Unix).map_err(refuse);
    }
    if text.contains('/') {
        return Err(refuse("an address has no scheme and no path"));
    }
    let (authority, _) = host_and_port(text).map_err(refuse)?;
    if authority.port_u16().is_none() {
        return Err(refuse("it has no port"));
    }
    Ok(Listen::Tcp(text.to_owned()))
}

/// `upstream.url`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// Where it leads.
    pub(super) target: Target,
    /// Host and port, as they are written.
    pub(super) authority: Authority,
    scheme: Scheme,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Cleartext,
    Tls,
}

impl Url {
    /// The host that has to prove itself; `None`: the URL is not `https`.
    pub(super) fn tls_host(&self) -> Option<&str> {
        match (self.scheme, &self.target) {
            (Scheme::Tls, Target::Tcp { host, .. }) => Some(host),
            _ => None,
        }
    }
}

/// Reads `upstream.url`. A Unix socket has no host of its own: its authority is `localhost`.
pub(super) fn url(text: &str) -> Result<Url, Refusal> {
    let refuse = |why: &str| Refusal::wrong(why).allowed(URL);
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Url {
            target: unix(path).map(Target::Unix).map_err(refuse)?,
            authority: Authority::from_static("localhost"),
            scheme: Scheme::Cleartext,
        });
    }
    let (scheme, default, rest) = match text.split_once("://") {
        Some(("http", rest)) => (Scheme::Cleartext, 80, rest),
        Some(("https", rest)) => (Scheme::Tls, 443, rest),
        _ => return Err(refuse("it is no URL that this proxy can call")),
    };
    // `http://host/` is the same URL as `http://host` (RFC 9110, section 4.2.3).
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#']) {
        return Err(refuse(
            "it has a path, a query or a fragment: the request's own are sent",
        ));
    }
    let (authority, host) = host_and_port(rest).map_err(refuse)?;
    match authority.port_u16() {
        Some(0) => Err(refuse("port 0 cannot be called")),
        port => {
            let port = port.unwrap_or(default);
            Ok(Url {
                target: Target::Tcp { host, port },
                authority,
                scheme,
            })
        }
    }
}

/// Reads where an admin listener is, as a command line has it: `http://host:port` or `unix:/path`.
///
/// # Errors
/// What is wrong with it.
pub fn admin_url(text: &str) -> Result<Listen, String> {
    let refuse = |why: &str| {
        format!("--admin {text}: {why}; allowed: \"http://host:port\", \"unix:/path.sock\"")
    };
    let url = url(text).map_err(|_| refuse("it is no URL of an admin listener"))?;
    if url.tls_host().is_some() {
        return Err(refuse("admin listeners speak no TLS"));
    }
    Ok(match url.target {
        Target::Unix(path) => Listen::Unix(path),
        Target::Tcp { host, port } if host.contains(':') => Listen::Tcp(format!("[{host}]:{port}")),
        Target::Tcp { host, port } => Listen::Tcp(format!("{host}:{port}")),
    })
}

/// Reads an entry of `trusted_proxies`: a network, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, Refusal> {
    let network = text
        .parse()
        .or_else(|_| text.parse().map(|address: std::net::IpAddr| address.into()));
    network.map_err(|_| {
        Refusal::wrong("it is no network")
            .allowed("CIDRs such as \"10.0.0.0/8\", \"fd00::/8\", \"192.0.2.1\"")
    })
}

fn unix(path: &str) -> Result<PathBuf, &'static str> {
    if !Path::new(path).is_absolute() || path.contains('\0') {
        return Err("the socket's path must be absolute");
    }
    Ok(PathBuf::from(path))
}

/// `host[:port]` and its host without brackets.
pub(super) fn host_and_port(text: &str) -> Result<(Authority, String), &'static str> {
    if text.contains('@') {
        return Err("it has credentials");
    }
    let authority: Authority = text.parse().map_err(|_| "it is no host and port")?;
    let host = authority.host();
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let bare = match host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        Some(address) => address
            .parse::<std::net::Ipv6Addr>()
            .is_ok()
            .then_some(address),
        None => (!host.is_empty() && host.chars().all(named)).then_some(host),
    };
    let bare = bare.ok_or("it has no valid host")?.to_owned();
    // What follows the host is nothing or `:` and a port; a port over 65535 is none.
    let tail = text.strip_prefix(host).unwrap_or_default();
    if !tail.is_empty() && authority.port_u16().is_none() {
        return Err("its port is not a number from 0 to 65535");
    }
    Ok((authority, bare))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_tcp_or_unix() {
        for good in [
            "127.0.0.1:8080",
            "localhost:0",
            "[::1]:8080",
            "0.0.0.0:65535",
        ] {
            assert_eq!(listen(good).ok(), Some(Listen::Tcp(good.into())), "{good}");
        }
        assert_eq!(
            listen("unix:/run/x").ok(),
            Some(Listen::Unix("/run/x".into()))
        );
        for bad in [
            "",
            "8080",
            ":8080",
            "*:8080",
            "::1:8080",
            "[::1]",
            "host",
            "host:",
            "host:65536",
            "host:-1",
            "host:http",
            "http://host:1",
            "u@host:1",
            "unix:",
            "unix:run/x",
            "[::g]:1",
            "[127.0.0.1]:80",
            "a b:1",
        ] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_name_a_host_and_nothing_else() {
        let tcp = |host: &str, port| Target::Tcp {
            host: host.into(),
            port,
        };
        for (text, target, authority) in [
            (
                "http://127.0.0.1:3000",
                tcp("127.0.0.1", 3000),
                "127.0.0.1:3000",
            ),
            ("http://app", tcp("app", 80), "app"),
            ("http://app/", tcp("app", 80), "app"),
            ("https://app", tcp("app", 443), "app"),
            ("http://[::1]:81", tcp("::1", 81), "[::1]:81"),
            (
                "unix:/run/app.sock",
                Target::Unix("/run/app.sock".into()),
                "localhost",
            ),
        ] {
            let got = url(text).expect(text);
            let secure = text.starts_with("https");
            assert_eq!(got.tls_host().is_some(), secure, "{text}");
            let host = got.authority.as_str();
            assert_eq!((got.target.clone(), host), (target, authority), "{text}");
        }
        for bad in [
            "",
            "ftp://x",
            "http://",
            "http://:80",
            "http://a/b",
            "http://a?b",
            "http://a#b",
            "http://u:p@a",
            "app:80",
            "http://a:0",
            "http://a:99999",
            "HTTP://a",
            "unix:app.sock",
            "http://a//",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_admin_url_is_cleartext_or_a_socket() {
        for (text, listen) in [
            ("http://127.0.0.1:9090", "127.0.0.1:9090"),
            ("http://[::1]:9090/", "[::1]:9090"),
            ("http://proxy", "proxy:80"),
        ] {
            assert_eq!(admin_url(text), Ok(Listen::Tcp(listen.into())));
        }
        let unix = Ok(Listen::Unix("/run/a.sock".into()));
        assert_eq!(admin_url("unix:/run/a.sock"), unix);
        for bad in ["https://a:1", "127.0.0.1:9090", "http://a/b", "unix:a", ""] {
            assert!(admin_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_trusted_proxy_is_a_network_or_an_address() {
        assert_eq!(network("10.0.0.0/8").ok(), "10.0.0.0/8".parse().ok());
        assert_eq!(network("::1").ok(), "::1/128".parse().ok());
        for bad in ["", "10.0.0.0/33", "host", "10.0.0/8"] {
            assert!(network(bad).is_err(), "{bad}");
        }
    }
}
