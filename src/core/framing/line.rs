//! The lines of a head: the request line, and fields.

use super::{
    fault::Fault,
    scan::{all_token, is_path_and_query, is_token},
};

/// The versions that are read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// More than this is no target to the parser behind, whatever the limit.
const LONGEST_TARGET: usize = 65_534;

/// Judges a request line without its CRLF.
pub(super) fn request_line(line: &[u8], max_target: usize) -> Result<Version, Fault> {
    let (method, rest) = word(line).ok_or(Fault::RequestLine)?;
    if !all_token(method) {
        return Err(Fault::Method);
    }
    let (target, version) = word(rest).unwrap_or((rest, b""));
    is_short(target, max_target)?;
    if target.len() == rest.len() {
        return Err(Fault::RequestLine);
    }
    if !target.is_ascii() {
        return Err(Fault::TargetNotAscii);
    }
    if !is_target(method, target) {
        return Err(Fault::Target);
    }
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        _ if version.contains(&b' ') => Err(Fault::RequestLine),
        _ => Err(Fault::Version),
    }
}

/// Judges what there is of a request line: its target may be too long already.
pub(super) fn unfinished_request_line(line: &[u8], max_target: usize) -> Result<(), Fault> {
    let Some((method, rest)) = word(line) else {
        return Ok(());
    };
    if !all_token(method) {
        return Err(Fault::Method);
    }
    is_short(word(rest).map_or(rest, |(target, _)| target), max_target)
}

fn is_short(target: &[u8], max: usize) -> Result<(), Fault> {
    if target.len() > LONGEST_TARGET || path_of(target).len() > max {
        return Err(Fault::TargetTooLong);
    }
    Ok(())
}

/// A target's path and what follows it, which alone count for the limit; of one that has no path yet, nothing.
fn path_of(target: &[u8]) -> &[u8] {
    if target.first().is_none_or(|byte| *byte == b'/') {
        return target;
    }
    let after_scheme = target.windows(3).position(|three| three == b"://");
    let authority = after_scheme.and_then(|at| target.get(at + 3..));
    let authority = authority.unwrap_or_default();
    let path = authority
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?'));
    path.and_then(|at| authority.get(at..)).unwrap_or_default()
}

/// Whether the target has the form that the method takes (RFC 9112, section 3.2).
fn is_target(method: &[u8], target: &[u8]) -> bool {
    match target {
        [b'/', ..] => is_path_and_query(target),
        b"*" => method == b"OPTIONS",
        // The others are rare: the parser behind says.
        _ => {
            let absolute = target.windows(3).any(|three| three == b"://");
            (absolute || method == b"CONNECT") && http::Uri::try_from(target).is_ok()
        }
    }
}

/// What stands before and behind the first space.
fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b' ')?;
    let (word, rest) = bytes.split_at(at);
    Some((word, rest.get(1..).unwrap_or_default()))
}

/// A name longer than this is none to the parser behind.
const LONGEST_NAME: usize = 32 * 1024;

/// A field's name and value, of its line without CRLF; the value without the white space around it.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let end = line.iter().position(|byte| !is_token(*byte));
    let end = end.ok_or(Fault::Name)?;
    let (name, rest) = line.split_at(end);
    match rest.first() {
        Some(b' ' | b'\t') if name.is_empty() => return Err(Fault::Folded),
        Some(b' ' | b'\t') => return Err(Fault::SpaceInName),
        Some(b':') if name.is_empty() => return Err(Fault::Name),
        Some(b':') => {}
        _ => return Err(Fault::Name),
    }
    if name.len() > LONGEST_NAME {
        return Err(Fault::HeadTooLarge);
    }
    Ok((name, trimmed(rest.get(1..).unwrap_or_default())))
}

/// Without the white space around it: SP and HTAB alone (RFC 9110, section 5.6.3).
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
