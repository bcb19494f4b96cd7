//! Carriers of keys: what a query or a body holds of one, and what a request is without them.
//!
//! | source | where the key is | twice |
//! |---|---|---|
//! | `header:NAME` | the value of the one line | refused |
//! | `query:NAME` | the value of the parameter, decoded as a form is: `+` is a space | refused |
//! | `form:NAME` | the value of the field, decoded; `application/x-www-form-urlencoded` only | refused |
//! | `json:/pointer` | the string that the pointer leads to; `null` is no key | no JSON |
//!
//! `json` reads bodies of JSON media types, of `application/x-amz-json-*` (AWS's JSON protocols), and of no stated type. A
//! body is read as strictly as its canonical form is: one that is no JSON, has a member twice or nests too deep holds no
//! key. Neither does a body with a content coding, or with two Content-Types.
//!
//! What carries the key of a request is no part of its fingerprint: a retry that carries the same key elsewhere is the same request.
//! So a fingerprint is taken of what [`query_without`] and [`Document::without`] leave. What stands in the other sources is a part
//! of the request like any other: two requests that differ there are two. The upstream gets all of it as it came.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderMap;

use super::{
    canonical,
    media::{self, Stated},
    policy::{JsonPointer, KeyPlace, KeySource},
    problem::KeyFault,
};

/// How the body of a request is read for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// As a form.
    Form,
    /// As JSON, if it is that.
    Json,
    /// Not at all: no source stands in such a body.
    Opaque,
}

impl BodyKind {
    /// Of a request with these headers and a body.
    #[must_use]
    pub fn of(sources: &[KeySource], headers: &HeaderMap) -> Self {
        let carries = |kind: &Self| {
            sources
                .iter()
                .any(|source| source.place.body() == Some(*kind))
        };
        let kinds = [Self::Form, Self::Json];
        if !kinds.iter().any(carries) || media::is_encoded(headers) {
            return Self::Opaque;
        }
        Some(Self::stated(headers))
            .filter(carries)
            .unwrap_or(Self::Opaque)
    }

    fn stated(headers: &HeaderMap) -> Self {
        let value = match media::stated(headers) {
            Stated::Never => return Self::Json,
            Stated::Again => return Self::Opaque,
            Stated::Once(value) => media::media_type(value),
        };
        let starts_with = |start: &[u8]| {
            value
                .get(..start.len())
                .is_some_and(|own| own.eq_ignore_ascii_case(start))
        };
        if value.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") {
            Self::Form
        } else if media::is_json(value) || starts_with(b"application/x-amz-json-") {
            Self::Json
        } else {
            Self::Opaque
        }
    }
}

impl KeyPlace {
    /// The kind of body that it stands in; `None`: it is part of the head.
    #[must_use]
    pub fn body(&self) -> Option<BodyKind> {
        match self {
            Self::Header(_) | Self::Query(_) => None,
            Self::Form(_) => Some(BodyKind::Form),
            Self::Json(_) => Some(BodyKind::Json),
        }
    }
}

/// A whole body as keys are read from it.
pub struct Document {
    kind: BodyKind,
    /// JSON in which a name may stand twice in an object.
    repeats: bool,
    body: Bytes,
}

impl Document {
    /// Reads a body of this kind. Time is linear in its length, whatever it is.
    #[must_use]
    pub fn new(kind: BodyKind, body: Bytes) -> Self {
        let (kind, repeats) = match kind {
            BodyKind::Json if canonical::is_json(&body) => (kind, false),
            BodyKind::Json if canonical::is_well_formed(&body) => (kind, true),
            BodyKind::Json => (BodyKind::Opaque, false),
            BodyKind::Form | BodyKind::Opaque => (kind, false),
        };
        Self {
            kind,
            repeats,
            body,
        }
    }

    /// The value of the form's field of this name.
    ///
    /// # Errors
    /// It is there twice, or its percent-encoding is broken.
    pub fn field(&self, name: &str) -> Result<Option<Vec<u8>>, KeyFault> {
        match self.kind {
            BodyKind::Form => parameter(&self.body, name),
            BodyKind::Json | BodyKind::Opaque => Ok(None),
        }
    }

    /// The text of the JSON string that the pointer leads to; `null` is none.
    ///
    /// # Errors
    /// It leads to another value, or to several members of one name.
    pub fn string(&self, pointer: &JsonPointer) -> Result<Option<String>, KeyFault> {
        if self.kind != BodyKind::Json {
            return Ok(None);
        }
        if self.repeats && canonical::is_ambiguous(&self.body, pointer) {
            return Err(KeyFault::Repeated);
        }
        match canonical::value_at(&self.body, pointer) {
            None | Some(b"null") => Ok(None),
            Some(value) => serde_json::from_slice(value).map_err(|_| KeyFault::NotText),
        }
    }

    /// The body without what the sources name in it; `None`: it has nothing of that.
    #[must_use]
    pub fn without(&self, sources: &[KeySource]) -> Option<Bytes> {
        let mut left = None;
        match self.kind {
            BodyKind::Opaque => {}
            BodyKind::Form => {
                let fields = names(sources, |place| match place {
                    KeyPlace::Form(name) => Some(name),
                    _ => None,
                });
                left = canonical::without_pairs(&self.body, &fields);
            }
            BodyKind::Json => {
                for source in sources {
                    if let KeyPlace::Json(pointer) = &source.place {
                        let body = left.as_deref().unwrap_or(&self.body);
                        left = canonical::without_value(body, pointer).or(left);
                    }
                }
            }
        }
        left.map(Bytes::from)
    }
}

/// The value of the query's parameter, or of the form's field, of this name.
///
/// # Errors
/// It is there twice, or its percent-encoding is broken.
pub fn parameter(text: &[u8], name: &str) -> Result<Option<Vec<u8>>, KeyFault> {
    let mut values = canonical::values(text, name);
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.map(Some).map_err(|_| KeyFault::NotEncoded),
        (Some(_), Some(_)) => Err(KeyFault::Repeated),
    }
}

/// The query without the parameters that the sources name; one that has no other is none at all.
#[must_use]
pub fn query_without<'q>(sources: &[KeySource], query: Option<&'q str>) -> Option<Cow<'q, str>> {
    let query = query?;
    let parameters = names(sources, |place| match place {
        KeyPlace::Query(name) => Some(name),
        _ => None,
    });
    if parameters.is_empty() {
        return Some(Cow::Borrowed(query));
    }
    match canonical::without_pairs(query.as_bytes(), &parameters) {
        None => Some(Cow::Borrowed(query)),
        Some(left) if left.is_empty() => None,
        // Whole pairs of a text are text, so nothing is replaced here.
        Some(left) => Some(Cow::Owned(String::from_utf8_lossy(&left).into_owned())),
    }
}

fn names(sources: &[KeySource], of: fn(&KeyPlace) -> Option<&String>) -> Vec<&str> {
    let places = sources.iter().map(|source| &source.place);
    places.filter_map(of).map(String::as_str).collect()
}

#[cfg(test)]
mod tests;
