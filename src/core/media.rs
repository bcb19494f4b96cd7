//! What a request says of its body's type, as far as bodies are read by it.

use http::{HeaderMap, header};

/// A request's Content-Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stated<'a> {
    /// There is none.
    Never,
    /// The one line that there is.
    Once(&'a [u8]),
    /// It stands on several lines, of which readers choose as they like.
    Again,
}

pub(super) fn stated(headers: &HeaderMap) -> Stated<'_> {
    let mut lines = headers.get_all(header::CONTENT_TYPE).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Stated::Never,
        (Some(only), None) => Stated::Once(only.as_bytes()),
        (Some(_), Some(_)) => Stated::Again,
    }
}

/// Whether the body has a content coding other than `identity` (RFC 9110, section 8.4).
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut codings = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| {
        let coding = coding.trim_ascii();
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    })
}

/// `application/json`, or a type with the suffix `+json` (RFC 6839, section 3.1).
pub(super) fn is_json(media_type: &[u8]) -> bool {
    let suffix = media_type.last_chunk::<5>();
    media_type.eq_ignore_ascii_case(b"application/json")
        || suffix.is_some_and(|end| end.eq_ignore_ascii_case(b"+json"))
}

/// A Content-Type without its parameters.
pub(super) fn media_type(content_type: &[u8]) -> &[u8] {
    content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii()
}
