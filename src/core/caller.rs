//! Callers: the authenticated party that a key belongs to (contract, section 6).
//!
//! A caller is a digest over the parts that `identity.from` names, each framed with its kind, its name, the number
//! of its values and their lengths, so that no part can be shifted into its neighbour and no two configurations
//! meet. Here is also decided whose address a request comes from ([`client_address`]).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderMap, header};
use ipnet::IpNet;

use super::{
    claims::Claims,
    digest,
    policy::{CallerPart, Identity, MissingCaller},
};

mod certified;
mod sigv4;

pub use certified::Certified;

/// A caller, as SHA-256 over its framed parts: no credential is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerId([u8; 32]);

impl CallerId {
    /// The version of the frames; another version never meets this one's callers.
    const FORMAT: &'static [u8] = b"c2";

    /// The digest, for a record's id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for CallerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerId(…)")
    }
}

/// The caller cannot be told: 401 `caller-missing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request does not say who is calling")]
pub struct CallerMissing;

/// What the connection says about the client, beside the request's own headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer<'a> {
    /// The client's address, from [`client_address`]. `None`: a unix socket, or it cannot be told.
    pub address: Option<IpAddr>,
    /// Who its verified certificate says it is. `None`: it has none.
    pub certificate: Option<&'a Certified>,
}

/// What became of the request's bearer token.
#[derive(Clone, Debug, Default)]
pub enum Token {
    /// There is none, or nobody asked for its claims.
    #[default]
    Absent,
    /// There is a credential, and it is not to be believed.
    Refused,
    /// Signature, times, issuer and audience are as they should be.
    Verified(Arc<Claims>),
}

/// The token of an `Authorization: Bearer …` (RFC 6750, section 2.1), not verified. `None`: there is no credential.
///
/// # Errors
/// [`CallerMissing`] where Authorization comes on several lines or has another scheme: a credential that cannot be read is
/// refused rather than taken for none.
pub fn bearer_token(headers: &HeaderMap) -> Result<Option<&[u8]>, CallerMissing> {
    let Some(value) = one_authorization(headers)? else {
        return Ok(None);
    };
    let (scheme, token) = value
        .split_at_checked(scheme_length(value))
        .ok_or(CallerMissing)?;
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(CallerMissing);
    }
    Ok(Some(token.trim_ascii_start()))
}

/// Who is calling.
///
/// - A part is missing if it is absent or if all its values are empty. What that means is said by `missing`: no
///   caller at all, or the part counts as empty and the others still count.
/// - A header on several lines counts with every line, so that it is another caller than any one of the lines.
/// - `authorization` counts with its scheme in lower case and the rest, from the first white space on, byte for
///   byte. A value without white space has no scheme (some APIs take a bare token) and counts as it is.
/// - A cookie that comes twice is refused whatever `missing` says: which of the two the upstream believes cannot
///   be told, and neither a stranger's scope nor the anonymous one is the right place for it.
/// - A claim counts with its kind, so that `7` and `"7"` are two callers; an absent one, `null` and an empty string are
///   missing; an array or object is refused whatever `missing` says, and so is a token that was.
/// - A certificate that names nobody, or several, is refused whatever `missing` says.
/// - For `sigv4` an Authorization that is not written as AWS does, or comes on several lines, is refused likewise.
///
/// # Errors
/// [`CallerMissing`] where a part is missing and `missing = "reject"`, or a cookie is ambiguous.
pub fn identify(
    rule: &Identity,
    headers: &HeaderMap,
    peer: &Peer<'_>,
    token: &Token,
) -> Result<CallerId, CallerMissing> {
    let mut hash = Frames::new(CallerId::FORMAT);
    for part in &rule.from {
        let values = match part {
            CallerPart::Authorization => {
                frame(&mut hash, &[b"authorization"]);
                header_values(&mut hash, headers, &header::AUTHORIZATION, scheme_length)
            }
            CallerPart::Header(name) => {
                frame(&mut hash, &[b"header", name.as_str().as_bytes()]);
                header_values(&mut hash, headers, name, |_| 0)
            }
            CallerPart::Cookie(name) => {
                frame(&mut hash, &[b"cookie", name.as_bytes()]);
                one_value(&mut hash, cookie(headers, name)?)
            }
            CallerPart::Jwt(path) => {
                let names = path.names().iter().map(String::as_bytes);
                let parts: Vec<&[u8]> = std::iter::once(&b"jwt"[..]).chain(names).collect();
                frame(&mut hash, &parts);
                let claim = match token {
                    Token::Absent => None,
                    Token::Refused => return Err(CallerMissing),
                    Token::Verified(claims) => claims.at(path).map_err(|_| CallerMissing)?,
                };
                one_value(&mut hash, claim.as_deref())
            }
            CallerPart::SigV4 => {
                frame(&mut hash, &[b"sigv4"]);
                let key_id = one_authorization(headers)?
                    .map(|value| sigv4::access_key_id(value).ok_or(CallerMissing));
                one_value(&mut hash, key_id.transpose()?)
            }
            CallerPart::ClientCert => match peer.certificate {
                Some(Certified::Spiffe(id)) => {
                    frame(&mut hash, &[b"client-cert", b"spiffe"]);
                    one_value(&mut hash, Some(id.as_bytes()))
                }
                Some(Certified::Subject(name)) => {
                    frame(&mut hash, &[b"client-cert", b"subject"]);
                    one_value(&mut hash, Some(name))
                }
                Some(Certified::Unclear) => return Err(CallerMissing),
                None => {
                    frame(&mut hash, &[b"client-cert"]);
                    one_value(&mut hash, None)
                }
            },
            CallerPart::PeerIp => {
                frame(&mut hash, &[b"peer-ip"]);
                match peer.address.map(|address| address.to_canonical()) {
                    Some(IpAddr::V4(address)) => one_value(&mut hash, Some(&address.octets())),
                    Some(IpAddr::V6(address)) => one_value(&mut hash, Some(&address.octets())),
                    None => one_value(&mut hash, None),
                }
            }
        };
        if values == Values::Missing && rule.missing == MissingCaller::Reject {
            return Err(CallerMissing);
        }
    }
    Ok(CallerId(hash.digest()))
}

/// The frames of a caller. Longer credentials are put together with an allocation.
type Frames = digest::Frames<256>;

/// Whether a part had anything to say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Present,
    Missing,
}

/// The count of `parts`, and each of them behind its length.
fn frame(hash: &mut Frames, parts: &[&[u8]]) {
    hash.number(parts.len());
    for part in parts {
        hash.frame(part);
    }
}

fn one_value(hash: &mut Frames, value: Option<&[u8]>) -> Values {
    match value {
        Some(value) if !value.is_empty() => {
            frame(hash, &[value]);
            Values::Present
        }
        _ => {
            frame(hash, &[]);
            Values::Missing
        }
    }
}

/// Frames every line of a header; of each, as many bytes as `folded` says count in lower case.
fn header_values(
    hash: &mut Frames,
    headers: &HeaderMap,
    name: &header::HeaderName,
    folded: impl Fn(&[u8]) -> usize,
) -> Values {
    let lines = || {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.as_bytes().trim_ascii())
    };
    if lines().all(<[u8]>::is_empty) {
        return one_value(hash, None);
    }
    hash.number(lines().count());
    for line in lines() {
        hash.number(line.len());
        let (lower, rest) = line.split_at_checked(folded(line)).unwrap_or((&[], line));
        hash.raw_lower(lower);
        hash.raw(rest);
    }
    Values::Present
}

/// How many bytes the scheme of an Authorization value has (RFC 9110, section 11.4); none: there is no scheme.
fn scheme_length(value: &[u8]) -> usize {
    value
        .iter()
        .position(|byte| matches!(byte, b' ' | b'\t'))
        .unwrap_or(0)
}

/// The value of the one Authorization line; `None`: there is none, or it is empty.
fn one_authorization(headers: &HeaderMap) -> Result<Option<&[u8]>, CallerMissing> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let first = lines.next().map(|value| value.as_bytes().trim_ascii());
    if lines.next().is_some() {
        return Err(CallerMissing);
    }
    Ok(first.filter(|value| !value.is_empty()))
}

/// The value of a cookie (RFC 6265, section 5.4), byte for byte, over all Cookie lines.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a [u8]>, CallerMissing> {
    let pairs = headers
        .get_all(header::COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let value = pair.get(equals + 1..)?.trim_ascii();
        (pair.get(..equals)?.trim_ascii() == name.as_bytes()).then_some(value)
    });
    let first = values.next();
    if values.next().is_some() {
        return Err(CallerMissing);
    }
    Ok(first)
}

/// The address that a request comes from (contract, section 12).
///
/// `peer` is the TCP peer's. If it is not in `trusted`, or sent no X-Forwarded-For, it is the answer; otherwise the
/// right-most address of X-Forwarded-For that is not in `trusted` is, over all lines of it; the left-most if all are.
/// Ports beside addresses (`192.0.2.1:4711`, `[2001:db8::1]:4711`) are tolerated, empty elements skipped (RFC 9110,
/// section 5.6.1), IPv4 addresses mapped into IPv6 count as IPv4.
///
/// `None`: the peer has no address (a unix socket), or a trusted proxy vouches for something that is no address, such
/// as `unknown`. What stands left of that was vouched for by nobody, and the proxy's own address would make one
/// caller of all the clients behind it.
#[must_use]
pub fn client_address(
    peer: Option<IpAddr>,
    headers: &HeaderMap,
    trusted: &[IpNet],
) -> Option<IpAddr> {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let mut client = peer?.to_canonical();
    for line in headers.get_all("x-forwarded-for").iter().rev() {
        for element in line.as_bytes().rsplit(|byte| *byte == b',') {
            if !is_trusted(&client) {
                return Some(client);
            }
            let element = element.trim_ascii();
            if !element.is_empty() {
                client = read_address(element)?.to_canonical();
            }
        }
    }
    Some(client)
}

fn read_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().ok();
    address.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests;
