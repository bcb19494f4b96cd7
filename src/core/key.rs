//! Idempotency keys: where they stand, how they are written, what is refused (contract, section 5).
//!
//! A [`Key`] exists only in a valid form: not empty, not too long, written as the route's `key_syntax` and
//! `key_format` say. Nothing here shows one: its `Debug` is empty, and faults name the rule, not the value.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use sfv::{BareItem, Item, Parser};

use super::{
    policy::{EmptyKey, KeyFormat, KeyPlace, KeyRule, KeySource, KeySyntax, Policy, RequiredIf},
    problem::{KeyFault, KeyRefused},
};

/// A valid idempotency key: its content, unquoted. It is never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Bytes);

impl Key {
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

/// Looks for the key in the sources of `policy`, in their order.
///
/// All sources are looked at: two that carry the same key are one key, and an empty one does not count beside a
/// full one where `empty_key = "bypass"`.
///
/// # Errors
/// The rule that is broken, and where: more than one line of a key header, equal or not; two sources with two different
/// keys, of which the later one is named; a value that is no key as the policy writes them.
pub fn find(policy: &Policy, headers: &HeaderMap) -> Result<KeyFound, KeyRefused> {
    if policy.key == KeyRule::Off {
        return Ok(KeyFound::Absent);
    }
    let mut found = KeyFound::Absent;
    for source in &policy.key_sources {
        let refused = |fault| KeyRefused {
            fault,
            carrier: source.carrier.clone(),
        };
        let here = at(policy, source, headers).map_err(refused)?;
        found = match (found, here) {
            (KeyFound::Key(first), KeyFound::Key(second)) if first != second => {
                return Err(refused(KeyFault::Repeated));
            }
            (KeyFound::Key(key), _) | (_, KeyFound::Key(key)) => KeyFound::Key(key),
            (KeyFound::Bypassed, _) | (_, KeyFound::Bypassed) => KeyFound::Bypassed,
            (KeyFound::Absent, KeyFound::Absent) => KeyFound::Absent,
        };
    }
    Ok(found)
}

/// What one source says.
fn at(policy: &Policy, source: &KeySource, headers: &HeaderMap) -> Result<KeyFound, KeyFault> {
    let value = match &source.place {
        KeyPlace::Header(name) => only_line(headers, name)?,
    };
    value.map_or(Ok(KeyFound::Absent), |value| read(policy, value))
}

/// Whether a request with these headers needs a key: `key = "required"`, or any entry of `key_required_if` fits.
#[must_use]
pub fn required(policy: &Policy, headers: &HeaderMap) -> bool {
    match policy.key {
        KeyRule::Required => true,
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
        (KeySyntax::Either, _)
            if !value
                .iter()
                .all(|byte| byte.is_ascii_graphic() && *byte != b',') =>
        {
            Err(KeyFault::NotAKey)
        }
        (KeySyntax::Either | KeySyntax::Raw, _) => accept(policy, value),
    }
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
