//! Words of a policy: the strings that are more than a choice, each read into what it means.

use http::{HeaderName, HeaderValue, uri::PathAndQuery};
use regex::Regex;

use super::{kinds::choose, problem::Refusal};
use crate::core::{
    claims::ClaimPath,
    path::normalise,
    policy::{CallerPart, Carrier, JsonPointer, KeyFormat, KeyPlace, KeySource},
};

pub(super) fn key_source(text: &str) -> Result<KeySource, Refusal> {
    let allowed = "header:NAME, query:NAME, json:/pointer, form:NAME";
    let refuse = |why: &str| Err(Refusal::wrong(why).allowed(allowed));
    let (kind, name) = text.split_once(':').unwrap_or_default();
    let place = match kind {
        "header" => KeyPlace::Header(key_header(name)?),
        "query" | "form" if name.is_empty() => return refuse("the name is missing"),
        "query" => KeyPlace::Query(name.to_owned()),
        "form" => KeyPlace::Form(name.to_owned()),
        "json" => match JsonPointer::parse(name) {
            Some(pointer) if !name.is_empty() => KeyPlace::Json(pointer),
            _ => return refuse("it is no JSON pointer into a document (RFC 6901)"),
        },
        _ => return refuse("it is no place for a key"),
    };
    let carrier = Carrier::new(name);
    Ok(KeySource { place, carrier })
}

pub(super) fn key_format(text: &str) -> Result<KeyFormat, Refusal> {
    match text {
        "any" => Ok(KeyFormat::Any),
        "uuid" => Ok(KeyFormat::Uuid),
        pattern => {
            // Alone first: only what is one expression by itself can be put between anchors.
            let whole = regex(pattern).and_then(|_| regex(&format!("^(?:{pattern})$")));
            whole
                .map(KeyFormat::Pattern)
                .map_err(|refusal| refusal.allowed("any, uuid, or a regular expression"))
        }
    }
}

pub(super) fn regex(pattern: &str) -> Result<Regex, Refusal> {
    Regex::new(pattern).map_err(|error| {
        // The last line of the error says what is wrong; those before it draw where.
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default().trim();
        Refusal::wrong(format!(
            "it is no regular expression: {}",
            why.trim_start_matches("error: ")
        ))
    })
}

pub(super) fn marker_value(text: &str) -> Result<Option<HeaderValue>, Refusal> {
    let fits = text.trim() == text && text.chars().all(|c| matches!(c, ' '..='~'));
    match HeaderValue::from_str(text) {
        Ok(_) if text.is_empty() => Ok(None),
        Ok(value) if fits => Ok(Some(value)),
        _ => {
            Err(Refusal::wrong("it is no header value")
                .allowed("visible ASCII, or \"\" for no header"))
        }
    }
}

/// The URL and its `Link` header (RFC 8288); `""` is none.
pub(super) fn docs_url(text: &str) -> Result<Option<(String, HeaderValue)>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let refuse = || {
        Refusal::wrong("it is no such URL")
            .allowed("an http or https URL without a fragment, or \"\"")
    };
    let uri: http::Uri = text.parse().map_err(|_| refuse())?;
    let web = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty());
    if !web || text.contains(['#', '<', '>', '"']) {
        return Err(refuse());
    }
    let link =
        HeaderValue::from_str(&format!("<{text}>; rel=\"describedby\"")).map_err(|_| refuse())?;
    Ok(Some((text.to_owned(), link)))
}

/// A path that the upstream is asked for, with a query if need be; `""` is none.
pub(super) fn upstream_path(text: &str) -> Result<Option<PathAndQuery>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let fits = text.starts_with('/') && !text.contains('#') && text.is_ascii();
    match text.parse() {
        Ok(path) if fits => Ok(Some(path)),
        _ => {
            Err(Refusal::wrong("it is no path")
                .allowed("a path such as \"/internal/whoami\", or \"\""))
        }
    }
}

/// The path of a page of the proxy's own, as routes see paths; `""` is none.
pub(super) fn own_path(text: &str) -> Result<Option<String>, Refusal> {
    if text.contains('?') {
        return Err(Refusal::wrong("it has a query").allowed("a path without a query, or \"\""));
    }
    upstream_path(text).map(|path| path.map(|path| normalise(path.path()).into_owned()))
}

pub(super) fn caller_part(text: &str) -> Result<CallerPart, Refusal> {
    let allowed = "authorization, header:NAME, cookie:NAME, jwt:CLAIM, sigv4, client-cert, peer-ip";
    match text.split_once(':') {
        Some(("header", name)) => header_name(name).map(CallerPart::Header),
        // A cookie's name is a token (RFC 6265, section 4.1.1), as a header's is.
        Some(("cookie", name)) => match header_name(name) {
            Ok(_) => Ok(CallerPart::Cookie(name.to_owned())),
            Err(_) => Err(Refusal::wrong("it is no name of a cookie").allowed(allowed)),
        },
        Some(("jwt", path)) => ClaimPath::parse(path).map(CallerPart::Jwt).ok_or_else(|| {
            Refusal::wrong("it is no path to a claim").allowed(
                "jwt:sub, jwt:realm.tenant, or a JSON pointer where names have dots: \"jwt:/https:~1~1id.test~1tenant\"",
            )
        }),
        _ => {
            let words = [
                ("authorization", Some(Word::Authorization)),
                ("peer-ip", Some(Word::PeerIp)),
                ("sigv4", Some(Word::SigV4)),
                ("client-cert", Some(Word::ClientCert)),
            ];
            match choose(text, &words).map_err(|refusal| refusal.allowed(allowed))? {
                Word::Authorization => Ok(CallerPart::Authorization),
                Word::SigV4 => Ok(CallerPart::SigV4),
                Word::ClientCert => Ok(CallerPart::ClientCert),
                Word::PeerIp => Ok(CallerPart::PeerIp),
            }
        }
    }
}

/// The entries of `identity.from` that are one word.
#[derive(Clone, Copy)]
enum Word {
    Authorization,
    SigV4,
    ClientCert,
    PeerIp,
}

pub(super) fn header_name(text: &str) -> Result<HeaderName, Refusal> {
    text.parse().map_err(|_| {
        Refusal::wrong("it is no header name").allowed("a token (RFC 9110, section 5.6.2)")
    })
}

/// A header that can carry a key: none that says something else already.
fn key_header(text: &str) -> Result<HeaderName, Refusal> {
    const TAKEN: [&str; 6] = [
        "authorization",
        "content-type",
        "cookie",
        "expect",
        "host",
        "via",
    ];
    let name = end_to_end(text)?;
    if TAKEN.contains(&name.as_str()) {
        return Err(
            Refusal::wrong("it has a meaning of its own and can be no key")
                .allowed("a header for the key alone, such as header:Idempotency-Key"),
        );
    }
    Ok(name)
}

/// A header that a proxy may pass on or write: none that belongs to one connection (RFC 9110, section 7.6.1).
pub(super) fn end_to_end(text: &str) -> Result<HeaderName, Refusal> {
    const OF_THE_CONNECTION: [&str; 10] = [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    ];
    let name = header_name(text)?;
    if OF_THE_CONNECTION.contains(&name.as_str()) {
        return Err(
            Refusal::wrong("this header belongs to the connection").allowed("end-to-end headers")
        );
    }
    Ok(name)
}

pub(super) fn optional_header(text: &str) -> Result<Option<HeaderName>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    end_to_end(text)
        .map(Some)
        .map_err(|refusal| refusal.allowed("a header's name, or \"\" for none"))
}

pub(super) fn media_type(text: &str) -> Result<String, Refusal> {
    let parts = text.split_once('/');
    let valid =
        parts.is_some_and(|(kind, rest)| header_name(kind).is_ok() && header_name(rest).is_ok());
    if !valid || text.contains('*') {
        let allowed = "media types without parameters, such as \"text/event-stream\"";
        return Err(Refusal::wrong("it is no media type").allowed(allowed));
    }
    Ok(text.to_ascii_lowercase())
}
