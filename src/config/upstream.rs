//! Reads `[upstream]` and `[upstreams.NAME]`.

use super::{
    HostHeader, Protocol, Upstream,
    address::{self, Url},
    reader::Section,
    server::{MANY, MOMENT},
    tls,
};

/// Reads one upstream; `[upstream]`'s name is empty, and its `url` may be left out.
pub(super) fn upstream(mut section: Section<'_>, name: &str) -> Option<Upstream> {
    let s = &mut section;
    let url = if name.is_empty() {
        s.text("url", "http://127.0.0.1:3000", address::url)
    } else {
        // A second upstream at the first one's usual place is a mistake.
        s.required(
            "url",
            "where the upstream is, such as \"http://127.0.0.1:3001\"",
            address::url,
        )
    };
    let protocols = [
        ("auto", Some(Protocol::Auto)),
        ("http1", Some(Protocol::Http1)),
        ("http2", Some(Protocol::Http2)),
    ];
    let protocol = s.choice("protocol", "auto", &protocols);
    let connect_timeout = s.duration("connect_timeout", "2s", MOMENT);
    let response_timeout = s.duration("response_timeout", "30s", MOMENT);
    let capture_timeout = s.duration("capture_timeout", "10m", MOMENT);
    let max_idle_connections = s.count("max_idle_connections", 64, 1..=MANY);
    let idle_timeout = s.duration("idle_timeout", "60s", MOMENT);
    let hosts = [
        ("preserve", Some(HostHeader::Preserve)),
        ("upstream", Some(HostHeader::Upstream)),
    ];
    let host = s.choice("host", "preserve", &hosts);
    let tls = tls::upstream(s, url.as_ref().and_then(Url::tls_host));
    if let (Some(response), Some(capture)) = (response_timeout, capture_timeout)
        && capture < response
    {
        s.object(
            "capture_timeout",
            "it is shorter than response_timeout: the proxy cannot stop waiting before its client does",
        );
    }
    section.finish();
    let Url {
        target, authority, ..
    } = url?;
    Some(Upstream {
        name: name.to_owned(),
        target,
        authority,
        tls: tls.ok()?,
        protocol: protocol?,
        connect_timeout: connect_timeout?,
        response_timeout: response_timeout?,
        capture_timeout: capture_timeout?,
        max_idle_connections: max_idle_connections?,
        idle_timeout: idle_timeout?,
        host: host?,
    })
}
