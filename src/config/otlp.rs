//! Reads where traces go: `telemetry.otlp_endpoint` and `telemetry.otlp_sample_ratio`.

use rustls::pki_types::ServerName;

use super::{
    identity::plain_url,
    kinds::Kind,
    problem::Refusal,
    reader::{Reported, Section},
    source::Value,
};
use crate::identity::Scheme;

/// The collector that traces are exported to.
#[derive(Debug, Clone, PartialEq)]
pub struct Otlp {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Host and port as the URL has them.
    pub authority: http::uri::Authority,
    /// What its certificate is for, over TLS; `None`: in cleartext.
    pub tls: Option<ServerName<'static>>,
    /// How it is spoken to.
    pub transport: OtlpTransport,
    /// Which part of the traces that begin here is recorded, from 0 to 1: `otlp_sample_ratio`.
    pub sample_ratio: f64,
}

/// How a collector is spoken to. The messages are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtlpTransport {
    /// gRPC: a URL without a path, on any port but 4318.
    Grpc,
    /// HTTP/1.1 with protobuf bodies, at this path: the URL's, or `/v1/traces` where it has none.
    Http(http::uri::PathAndQuery),
}

/// The port that collectors take HTTP on; where a URL names it and no path, HTTP is meant.
const HTTP_PORT: u16 = 4318;

/// Where traces go; `None`: nowhere.
pub(super) fn otlp(s: &mut Section<'_>) -> Result<Option<Otlp>, Reported> {
    let endpoint = s.text("otlp_endpoint", "", |text| match text {
        "" => Ok(None),
        url => endpoint(url).map(Some).map_err(|refusal| {
            refusal.allowed("\"\", \"https://host:port/path\", \"http://host:port/path\"")
        }),
    });
    let ratio = ratio(s);
    let (endpoint, sample_ratio) = (endpoint.ok_or(Reported)?, ratio.ok_or(Reported)?);
    Ok(endpoint.map(|endpoint| Otlp {
        sample_ratio,
        ..endpoint
    }))
}

fn endpoint(text: &str) -> Result<Otlp, Refusal> {
    let url = plain_url(text)?;
    let bare = url.target.as_str() == "/";
    let transport = match (bare, url.port) {
        (true, HTTP_PORT) => {
            OtlpTransport::Http(http::uri::PathAndQuery::from_static("/v1/traces"))
        }
        (true, _) => OtlpTransport::Grpc,
        (false, _) => OtlpTransport::Http(url.target),
    };
    Ok(Otlp {
        host: url.host,
        port: url.port,
        authority: url.authority,
        tls: match url.scheme {
            Scheme::Http => None,
            Scheme::Https(name) => Some(name),
        },
        transport,
        sample_ratio: 1.0,
    })
}

fn ratio(s: &mut Section<'_>) -> Option<f64> {
    let (node, path) = s.take("otlp_sample_ratio", Kind::Ratio, Some(Value::Ratio(1.0)))?;
    match node.value {
        Value::Ratio(ratio) if (0.0..=1.0).contains(&ratio) => Some(ratio),
        _ => {
            let refusal = Refusal::wrong("it is no part of the whole").allowed("0.0 to 1.0");
            s.refuse("otlp_sample_ratio", &node, &path, refusal);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_or_port_4318_is_http_and_anything_else_grpc() {
        let http =
            |path: &'static str| OtlpTransport::Http(http::uri::PathAndQuery::from_static(path));
        for (text, port, transport) in [
            ("http://c:4317", 4317, OtlpTransport::Grpc),
            ("http://c:4317/", 4317, OtlpTransport::Grpc),
            ("https://c", 443, OtlpTransport::Grpc),
            ("http://c:4318", 4318, http("/v1/traces")),
            ("http://c:4318/", 4318, http("/v1/traces")),
            ("https://c/otlp/v1/traces", 443, http("/otlp/v1/traces")),
            ("http://[::1]:4317/a?b=c", 4317, http("/a?b=c")),
        ] {
            let otlp = endpoint(text).expect(text);
            assert_eq!((otlp.port, otlp.transport), (port, transport), "{text}");
            assert_eq!(otlp.tls.is_some(), text.starts_with("https"), "{text}");
        }
        for bad in ["c:4317", "grpc://c:4317", "http://u:p@c:4317", "http://c:0"] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
