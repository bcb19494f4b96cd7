//! Reads `[server.tls]` and `[upstream.tls]`. Every file that they name is read here once, so that `--check` finds what is wrong with it.

use std::path::{Path, PathBuf};

use rustls::pki_types::ServerName;

use super::{
    problem::Refusal,
    reader::{Reported, Section, Show},
};
use crate::tls::{self, ClientAuth, Pair, ServerFiles, Unusable, UpstreamFiles};

/// Reads `[server.tls]` of `[server]`; `None`: it is not there.
pub(super) fn server(server: &mut Section<'_>) -> Result<Option<ServerFiles>, Reported> {
    let there = server.find("tls").is_some();
    let mut section = server.child("tls", Show::Given);
    let s = &mut section;
    let (cert, key) = if there {
        (
            s.required("cert", "a certificate proves who the proxy is", certificate),
            s.required("key", "the private key of cert", private_key),
        )
    } else {
        (None, None)
    };
    let ca = s.text_or("client_ca", None, |path| roots(path).map(Some));
    let rules = [
        ("off", Some(Asked::Nobody)),
        ("optional", Some(Asked::WhoCan)),
        ("required", Some(Asked::Everybody)),
    ];
    let asked = s.choice("client_auth", "off", &rules);
    let client_auth = match (asked, ca) {
        (Some(Asked::Nobody), Some(_)) => Some(ClientAuth::Off),
        (Some(Asked::WhoCan), Some(Some(ca))) => Some(ClientAuth::Optional(ca)),
        (Some(Asked::Everybody), Some(Some(ca))) => Some(ClientAuth::Required(ca)),
        (Some(Asked::WhoCan | Asked::Everybody), Some(None)) => {
            s.object(
                "client_auth",
                "it needs client_ca: whom client certificates must lead to",
            );
            None
        }
        _ => None,
    };
    if !there {
        section.finish();
        return Ok(None);
    }
    let files = match (cert, key, client_auth) {
        (Some(cert), Some(key), Some(client_auth)) => Some(ServerFiles {
            pair: Pair { cert, key },
            client_auth,
        }),
        _ => None,
    };
    let files = files.and_then(|files| match tls::server_config(&files) {
        Ok(_) => Some(files),
        Err(why) => {
            s.object("key", why.to_string());
            None
        }
    });
    section.finish();
    files.map(Some).ok_or(Reported)
}

/// `client_auth`
#[derive(Debug, Clone, Copy)]
enum Asked {
    Nobody,
    WhoCan,
    Everybody,
}

/// Reads `[upstream.tls]` of an upstream; `host` is what its `https` URL names, or `None` where it is called in cleartext.
pub(super) fn upstream(
    upstream: &mut Section<'_>,
    host: Option<&str>,
) -> Result<Option<UpstreamFiles>, Reported> {
    let there = upstream.find("tls").is_some();
    let mut section = upstream.child("tls", Show::Given);
    let s = &mut section;
    let ca = s.text_or("ca", None, |path| roots(path).map(Some));
    let cert = s.text_or("cert", None, |path| certificate(path).map(Some));
    let key = s.text_or("key", None, |path| private_key(path).map(Some));
    let name = s.text_or("server_name", None, |name| server_name(name).map(Some));
    let pair = match (cert, key) {
        (Some(Some(cert)), Some(Some(key))) => Some(Some(Pair { cert, key })),
        (Some(None), Some(None)) => Some(None),
        (Some(Some(_)), Some(None)) => {
            s.object("cert", "key is missing beside it");
            None
        }
        (Some(None), Some(Some(_))) => {
            s.object("key", "cert is missing beside it");
            None
        }
        _ => None,
    };
    let (Some(ca), Some(pair), Some(name)) = (ca, pair, name) else {
        section.finish();
        return Err(Reported);
    };
    let Some(host) = host else {
        section.finish();
        if !there {
            return Ok(None);
        }
        upstream.object(
            "tls",
            "the upstream's url is not https: it would have no effect",
        );
        return Err(Reported);
    };
    // A host of a URL that is neither a name nor an address was refused with the URL.
    let name = name.or_else(|| server_name(host).ok());
    if let Some(pair) = &pair
        && let Err(why) = tls::client_config(ca.as_deref(), Some(pair), tls::Alpn::Either)
    {
        s.object("key", why.to_string());
        section.finish();
        return Err(Reported);
    }
    section.finish();
    Ok(Some(UpstreamFiles {
        ca,
        pair,
        server_name: name.ok_or(Reported)?,
    }))
}

fn server_name(name: &str) -> Result<ServerName<'static>, Refusal> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        Refusal::wrong("it is no host name and no address")
            .allowed("a name such as \"api.internal\"")
    })
}

fn certificate(path: &str) -> Result<PathBuf, Refusal> {
    read(
        path,
        "a PEM file with a certificate and its chain",
        |path| tls::certificates(path).map(drop),
    )
}

fn private_key(path: &str) -> Result<PathBuf, Refusal> {
    read(path, "a PEM file with a private key", |path| {
        tls::private_key(path).map(drop)
    })
}

fn roots(path: &str) -> Result<PathBuf, Refusal> {
    read(path, "a PEM file with certificates", |path| {
        tls::roots(path).map(drop)
    })
}

fn read(
    path: &str,
    allowed: &str,
    read: impl FnOnce(&Path) -> Result<(), Unusable>,
) -> Result<PathBuf, Refusal> {
    let path = PathBuf::from(path);
    match read(&path) {
        Ok(()) => Ok(path),
        Err(Unusable::File { why, .. }) => Err(Refusal::wrong(why).allowed(allowed)),
        Err(why) => Err(Refusal::wrong(why.to_string()).allowed(allowed)),
    }
}
