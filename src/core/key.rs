//! Idempotency keys: where they stand, how they are written, what is refused (contract, section 5).
//!
//! A [`Key`] exists only in a valid form: not empty, not too long, written as the route's `key_syntax` and
//! `key_format` say. Nothing here shows one: its `Debug` is empty, and faults name the rule, not the value.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use sfv::{BareItem, Item, Parser};

use super::{
    carrier::{self, BodyKind, Document},
    fingerprint::Digests,
    policy::{EmptyKey, KeyFormat, KeyPlace, KeyRule, KeySource, KeySyntax, Policy, RequiredIf},
    problem::{KeyFault, KeyRefused},
};

/// A valid idempotency key: its content, unquoted. It is never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Bytes);

impl Key {
    /// The key of a request on a route with `key = "derived"`: equal requests have equal keys.
    #[must_use]
    pub fn derived(fingerprint: &Digests) -> Self {
        Self(Bytes::copy_from_slice(&fingerprint.canonical))
    }

    /// The content, for hashing.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// What a request says about its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFound {
    /// No source has one, or keys are off.
    Absent,
    /// Every source that is there is empty, and `empty_key = "bypass"` says that this is no key.
    Bypassed,
    /// This one.
    Key(Key),
}

/// What a request's head says about its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// All that is to be said.
    Found(KeyFound),
    /// The body has to be read: a source that stands in it comes before any that has the key.
    InBody,
}

/// A request's head, as far as it carries keys.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its header fields.
    pub headers: &'a HeaderMap,
    /// Its query, as it is spelt.
    pub query: Option<&'a str>,
}

/// Looks for the key in the head, as far as the order of the sources lets it; `body` is how the body is read,
/// [`BodyKind::Opaque`] where there is none.
///
/// # Errors
/// As [`find`].
pub fn find_in_head(policy: &Policy, head: Head<'_>, body: BodyKind) -> Result<Sought, KeyRefused> {
    let found = seek(policy, head, Body::Unread(body))?;
    Ok(found.map_or(Sought::InBody, Sought::Found))
}

/// Looks for the key in the sources of `policy`, in their order: the first that has one is what counts, and those behind it are
/// not looked at. An empty value where `empty_key = "bypass"` is passed over.
///
/// # Errors
/// The rule that the first source which is there breaks, and where: more than one line of a key header, a parameter or
/// field that is there twice, equal or not; a value that is no key as the policy writes them.
pub fn find(policy: &Policy, head: Head<'_>, body: &Document) -> Result<KeyFound, KeyRefused> {
    let found = seek(policy, head, Body::Read(body))?;
    Ok(found.unwrap_or(KeyFound::Absent)) // what was read holds nothing back
}

/// The source that the key of a request was taken from, alone; nothing where there is no key, or it is derived.
///
/// That source is left out of the fingerprint, so that a retry which carries the same key elsewhere is the same request. What stands
/// in another source is a part of the request like any other.
#[must_use]
pub fn carried_by<'p>(
    policy: &'p Policy,
    head: Head<'_>,
    body: Option<&Document>,
) -> &'p [KeySource] {
    match (policy.key, policy.key_sources.as_slice()) {
        (KeyRule::Off | KeyRule::Derived, _) => &[],
        (KeyRule::Required | KeyRule::Optional, [only]) => std::slice::from_ref(only),
        (KeyRule::Required | KeyRule::Optional, several) => several
            .iter()
            .find(|source| matches!(at(policy, &source.place, head, body), Ok(KeyFound::Key(_))))
            .map_or(&[], std::slice::from_ref),
    }
}

#[derive(Clone, Copy)]
enum Body<'a> {
    Unread(BodyKind),
    Read(&'a Document),
}

/// `None`: it depends on the unread body.
fn seek(policy: &Policy, head: Head<'_>, body: Body<'_>) -> Result<Option<KeyFound>, KeyRefused> {
    if matches!(policy.key, KeyRule::Off | KeyRule::Derived) {
        return Ok(Some(KeyFound::Absent));
    }
    let mut found = KeyFound::Absent;
    for source in &policy.key_sources {
        let document = match (source.place.body(), body) {
            (Some(kind), Body::Unread(unread)) if kind == unread => return Ok(None),
            (_, Body::Unread(_)) => None,
            (_, Body::Read(document)) => Some(document),
        };
        let here = at(policy, &source.place, head, document).map_err(|fault| KeyRefused {
            fault,
            carrier: source.carrier.clone(),
        })?;
        match here {
            KeyFound::Key(_) => return Ok(Some(here)),
            KeyFound::Bypassed => found = here,
            KeyFound::Absent => {}
        }
    }
    Ok(Some(found))
}

/// What one source says.
fn at(
    policy: &Policy,
    place: &KeyPlace,
    head: Head<'_>,
    body: Option<&Document>,
) -> Result<KeyFound, KeyFault> {
    let value: Option<Cow<'_, [u8]>> = match place {
        KeyPlace::Header(name) => only_line(head.headers, name)?.map(Cow::Borrowed),
        KeyPlace::Query(name) => {
            carrier::parameter(head.query.unwrap_or_default().as_bytes(), name)?.map(Cow::Owned)
        }
        KeyPlace::Form(name) => match body {
            Some(body) => body.field(name)?.map(Cow::Owned),
            None => None,
        },
        KeyPlace::Json(pointer) => match body {
            Some(body) => body
                .string(pointer)?
                .map(|text| Cow::Owned(text.into_bytes())),
            None => None,
        },
    };
    value.map_or(Ok(KeyFound::Absent), |value| read(policy, &value))
}

/// Whether a request with these headers needs a key: `key = "required"`, or any entry of `key_required_if` fits.
#[must_use]
pub fn required(policy: &Policy, headers: &HeaderMap) -> bool {
    match policy.key {
        KeyRule::Required | KeyRule::Derived => true,
        KeyRule::Optional => policy
            .key_required_if
            .iter()
            .any(|entry| fits(entry, headers)),
        KeyRule::Off => false,
    }
}

/// A value that is not UTF-8 is searched with its stray bytes replaced: they cannot hide the rest from the pattern.
fn fits(entry: &RequiredIf, headers: &HeaderMap) -> bool {
    headers.get_all(&entry.header).iter().any(|value| {
        entry
            .matches
            .is_match(&String::from_utf8_lossy(value.as_bytes()))
    })
}

/// The value of the one line that this header has, without white space around it.
fn only_line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, KeyFault> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next();
    if lines.next().is_some() {
        return Err(KeyFault::Repeated);
    }
    // White space around a value is no part of it (RFC 9110, section 5.5), in `raw` neither.
    Ok(first.map(|value| value.as_bytes().trim_ascii()))
}

fn read(policy: &Policy, value: &[u8]) -> Result<KeyFound, KeyFault> {
    if value.is_empty() {
        return empty(policy);
    }
    match (policy.key_syntax, value.first()) {
        (KeySyntax::Structured, _) => match string_item(value) {
            Some(content) => accept(policy, content.as_bytes()),
            None => Err(KeyFault::NotAString),
        },
        (KeySyntax::Either, Some(b'"')) => match string_item(value) {
            Some(content) => accept(policy, content.as_bytes()),
            None => Err(KeyFault::NotAKey),
        },
        (KeySyntax::Either, _) if !is_bare(value) => Err(KeyFault::NotAKey),
        (KeySyntax::Either | KeySyntax::Raw, _) => accept(policy, value),
    }
}

/// Whether all bytes are visible ASCII, and none a comma. All are looked at, many at a time: hardly any key fails.
fn is_bare(value: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_graphic() && *byte != b',';
    value.iter().fold(true, |all, byte| all & fits(byte))
}

fn empty(policy: &Policy) -> Result<KeyFound, KeyFault> {
    match policy.empty_key {
        EmptyKey::Reject => Err(KeyFault::Empty),
        EmptyKey::Bypass => Ok(KeyFound::Bypassed),
    }
}

/// The content of a structured-field string (RFC 9651, section 3.3.3). Parameters are tolerated and ignored.
fn string_item(value: &[u8]) -> Option<String> {
    match Parser::new(value).parse::<Item>().ok()?.bare_item {
        BareItem::String(content) => Some(content.into()),
        _ => None,
    }
}

/// Length and format: what every syntax asks of the content. The content is copied, so that a key does not pin
/// the buffer that its request was read into.
fn accept(policy: &Policy, content: &[u8]) -> Result<KeyFound, KeyFault> {
    if content.is_empty() {
        return empty(policy);
    }
    if content.len() > policy.key_max_length {
        return Err(KeyFault::TooLong);
    }
    let key = match &policy.key_format {
        KeyFormat::Any => Bytes::copy_from_slice(content),
        KeyFormat::Uuid if is_uuid(content) => content.to_ascii_lowercase().into(),
        KeyFormat::Pattern(pattern)
            if std::str::from_utf8(content).is_ok_and(|text| pattern.is_match(text)) =>
        {
            Bytes::copy_from_slice(content)
        }
        KeyFormat::Uuid | KeyFormat::Pattern(_) => return Err(KeyFault::Format),
    };
    Ok(KeyFound::Key(Key(key)))
}

/// 8-4-4-4-12 hexadecimal digits (RFC 9562, section 4) of any version.
fn is_uuid(content: &[u8]) -> bool {
    content.len() == 36
        && content.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests;
