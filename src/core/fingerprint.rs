//! Fingerprints: what must be the same in a retry (contract, section 6). Exact bytes first.
//!
//! The exact digest is SHA-256 over the request's parts, each with a tag and its length, and the body byte for byte;
//! it is taken while the body arrives. The canonical digest is the exact digest of the same request in its normal
//! form: the query sorted, the body as [`canonical`] reads it. It is computed when first asked for, at most once, and
//! where the normal form is the request itself it *is* the exact digest, so that no body is hashed twice for nothing.
//!
//! Equal exact digests always mean the same request; canonical ones are looked at only where those differ.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, header};

use super::{
    canonical,
    digest::{self, Hasher},
    media::{self, Stated, is_encoded, is_json, media_type},
    policy::{BodyMode, FingerprintRule, JsonPointer, QueryMode},
    present::{Kind, Present},
};

pub use super::digest::Digest;

/// What is kept of a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Over the request's parts with its body byte for byte.
    pub exact: Digest,
    /// Over the parts as the rule reads them: canonical JSON, sorted forms, multipart without its boundary.
    pub canonical: Digest,
}

/// The fingerprint of a request that is at hand: the exact digest, and the canonical one when it is asked for.
///
/// It holds on to the body as long as the canonical digest may still be needed.
pub struct Fingerprint {
    exact: Digest,
    canonical: OnceLock<Digest>,
    /// `None`: the request is in its normal form already.
    unread: Option<Unread>,
}

impl Fingerprint {
    /// The fingerprint of a request whose body is here whole; see [`Builder`] for one that arrives in pieces.
    #[must_use]
    pub fn new(
        rule: &Arc<FingerprintRule>,
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Self {
        let present = Present::of(headers);
        Builder::new(rule, method, path, query, headers, present).finish(body)
    }

    /// Whether `other` is the same request.
    #[must_use]
    pub fn same_as(&self, other: &Fingerprint) -> bool {
        self.exact == other.exact || self.canonical() == other.canonical()
    }

    /// Whether this is the request that `kept` was taken of.
    #[must_use]
    pub fn matches(&self, kept: &Digests) -> bool {
        self.exact == kept.exact || self.canonical() == kept.canonical
    }

    /// How many bytes of body would have to be read for [`Self::digests`]; 0 where that was done, or needs none.
    #[must_use]
    pub fn unread(&self) -> usize {
        match &self.unread {
            Some(unread) if self.canonical.get().is_none() => unread.body.len(),
            Some(_) | None => 0,
        }
    }

    /// Both digests; computes the canonical one where that was not done yet.
    #[must_use]
    pub fn digests(&self) -> Digests {
        Digests {
            exact: self.exact,
            canonical: self.canonical(),
        }
    }

    fn canonical(&self) -> Digest {
        match &self.unread {
            None => self.exact,
            Some(unread) => *self.canonical.get_or_init(|| unread.digest(self.exact)),
        }
    }
}

impl fmt::Debug for Fingerprint {
    /// A digest of a short body tells the body to who can guess it, so that none is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(…)")
    }
}

/// A fingerprint in the making, while the body arrives.
pub struct Builder {
    /// The parts before the body.
    parts: Frames,
    /// The same in normal form; `None`: as they are in `parts`.
    sorted: Option<Box<Frames>>,
    /// The parts and so much of the body. A body that is there whole when it is asked for is hashed in one go with what stands before it.
    begun: Option<Box<Begun>>,
    reading: Reading,
    rule: Arc<FingerprintRule>,
}

/// The exact digest of a body that comes in pieces.
struct Begun {
    exact: Hasher,
    /// How many bytes of the body are in `exact`.
    hashed: usize,
}

/// The parts of a request before its body, each behind its tag.
///
/// What is hashed is these and then, behind the tag of its kind, the body in one of its forms, which nothing follows.
type Frames = digest::Frames<112>;

impl Builder {
    /// The version of the frames; another version never meets this one's digests.
    const FORMAT: &'static [u8] = b"f2";

    /// Starts with everything but the body. `path` is the normalised one; `present` is what the head has.
    ///
    /// A request without a query is another one than a request with an empty one (`/orders` and `/orders?`). Of
    /// `content-type` the media type alone counts, in lower case; of other headers every line, byte for byte.
    /// `authorization`, `content-length` and `transfer-encoding` never count, even if they are listed.
    #[must_use]
    pub fn new(
        rule: &Arc<FingerprintRule>,
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &HeaderMap,
        present: Present,
    ) -> Self {
        let mut parts = Frames::new(Self::FORMAT);
        if rule.method {
            tagged(&mut parts, b'm', method.as_str().as_bytes());
        }
        if rule.path {
            tagged(&mut parts, b'p', path.as_bytes());
        }
        frame_headers(&mut parts, &rule.headers, headers);
        let mut sorted = None;
        if let Some(query) = query {
            if rule.query == QueryMode::Sorted {
                let normal = canonical::query(query);
                if normal != query {
                    let mut parts = Box::new(parts.clone());
                    tagged(&mut parts, b'q', normal.as_bytes());
                    sorted = Some(parts);
                }
            }
            if rule.query != QueryMode::Off {
                tagged(&mut parts, b'q', query.as_bytes());
            }
        }
        Self {
            parts,
            sorted,
            begun: None,
            reading: Reading::of(rule, headers, present),
            rule: Arc::clone(rule),
        }
    }

    /// Takes the next piece of the body, while more of it is waited for.
    pub fn update(&mut self, piece: &[u8]) {
        let begun = self.begun.get_or_insert_with(|| {
            let mut exact = Hasher::new();
            exact.update(self.parts.as_bytes());
            exact.update(self.reading.before_exact().as_bytes());
            Box::new(Begun { exact, hashed: 0 })
        });
        if self.reading != Reading::Off {
            begun.exact.update(piece);
        }
        begun.hashed = begun.hashed.saturating_add(piece.len());
    }

    /// Ends with the whole body: the pieces that were given to [`Self::update`], and any that were not yet.
    /// No body is an empty body.
    #[must_use]
    pub fn finish(mut self, body: Bytes) -> Fingerprint {
        let exact = match self.begun.take() {
            None => exact(&self.parts, &self.reading, &body),
            Some(mut begun) => {
                debug_assert!(begun.hashed <= body.len(), "the pieces are the body's");
                if let Some(rest) = body.get(begun.hashed..)
                    && self.reading != Reading::Off
                {
                    begun.exact.update(rest);
                }
                begun.exact.finish()
            }
        };
        let plain = matches!(self.reading, Reading::Off | Reading::Raw) && self.sorted.is_none();
        let unread = (!plain).then(|| {
            let (query, parts) = match self.sorted {
                Some(sorted) => (Query::Sorted, *sorted),
                None => (Query::AsItCame, self.parts),
            };
            Unread {
                parts,
                query,
                reading: self.reading,
                rule: self.rule,
                body,
            }
        });
        Fingerprint {
            exact,
            canonical: OnceLock::new(),
            unread,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hashed = self.begun.as_ref().map_or(0, |begun| begun.hashed);
        f.debug_struct("Builder")
            .field("hashed", &hashed)
            .finish_non_exhaustive()
    }
}

/// The digest of these parts and of the body byte for byte, as far as it counts.
fn exact(parts: &Frames, reading: &Reading, body: &[u8]) -> Digest {
    let mut before = parts.clone();
    before.raw(reading.before_exact().as_bytes());
    let body = if *reading == Reading::Off { &[] } else { body };
    before.digest_before(body)
}

/// What the canonical digest is computed from.
struct Unread {
    parts: Frames,
    query: Query,
    reading: Reading,
    rule: Arc<FingerprintRule>,
    body: Bytes,
}

/// Whether the parts of an [`Unread`] differ from those of the exact digest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Query {
    AsItCame,
    Sorted,
}

impl Unread {
    /// The canonical digest of a request with this exact one.
    fn digest(&self, as_it_came: Digest) -> Digest {
        match self.body_form() {
            Some(digest) => digest,
            None if self.query == Query::AsItCame => as_it_came,
            None => exact(&self.parts, &self.reading, &self.body),
        }
    }

    /// The digest with the body as it is read. `None`: it counts byte for byte.
    fn body_form(&self) -> Option<Digest> {
        let mut before = self.parts.clone();
        match &self.reading {
            Reading::Off | Reading::Raw => None,
            Reading::Json => {
                let form = canonical::json(&self.body, &self.rule.ignore, &self.rule.only)?;
                before.raw(b"j");
                // Under other pointers it is another form, whatever is left of the document.
                frame_pointers(&mut before, &self.rule.ignore);
                frame_pointers(&mut before, &self.rule.only);
                Some(before.digest_before(&form))
            }
            Reading::Form => {
                let form = canonical::form(&self.body)?;
                before.raw(b"f");
                Some(before.digest_before(&form))
            }
            Reading::Multipart { boundary } => {
                let pieces = canonical::multipart(&self.body, boundary)?;
                let mut hasher = Hasher::new();
                before.raw(b"x");
                hasher.update(before.as_bytes());
                for piece in pieces {
                    let mut length = Frames::new(b".");
                    length.number(piece.len());
                    hasher.update(length.as_bytes());
                    hasher.update(piece);
                }
                Some(hasher.finish())
            }
        }
    }
}

/// How the body of one request is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reading {
    Off,
    Raw,
    Json,
    Form,
    Multipart { boundary: Vec<u8> },
}

impl Reading {
    /// By the rule and, for `auto`, by the media type. A body that is compressed, or whose type stands on more than
    /// one line, counts as sent.
    fn of(rule: &FingerprintRule, headers: &HeaderMap, present: Present) -> Self {
        match rule.body {
            BodyMode::Off => return Self::Off,
            BodyMode::Raw => return Self::Raw,
            BodyMode::Auto | BodyMode::Json | BodyMode::Form | BodyMode::Multipart => {}
        }
        if present.has(Kind::Encoded) && is_encoded(headers) {
            return Self::Raw;
        }
        let content_type = match media::stated(headers) {
            Stated::Once(value) => value,
            Stated::Never | Stated::Again => b"",
        };
        let multipart = || match canonical::boundary(content_type) {
            Some(boundary) => Self::Multipart { boundary },
            None => Self::Raw,
        };
        let media_type = media_type(content_type);
        match rule.body {
            BodyMode::Json => Self::Json,
            BodyMode::Form => Self::Form,
            BodyMode::Multipart => multipart(),
            BodyMode::Auto if is_json(media_type) => Self::Json,
            BodyMode::Auto if media_type.eq_ignore_ascii_case(b"multipart/form-data") => {
                multipart()
            }
            BodyMode::Auto | BodyMode::Raw | BodyMode::Off => Self::Raw,
        }
    }

    /// What stands before the body in the exact digest. Bytes that are equal are the same body whatever their type
    /// says, except that under another boundary they are other parts.
    fn before_exact(&self) -> digest::Frames<16> {
        match self {
            Self::Off => digest::Frames::new(b"o"),
            Self::Raw | Self::Json | Self::Form => digest::Frames::new(b"b"),
            Self::Multipart { boundary } => {
                let mut before = digest::Frames::new(b"y");
                before.frame(boundary);
                before.raw(b"b");
                before
            }
        }
    }
}

fn tagged(parts: &mut Frames, tag: u8, part: &[u8]) {
    parts.raw(&[tag]);
    parts.frame(part);
}

/// Every chosen header with all its lines. The order of the configuration does not count.
fn frame_headers(parts: &mut Frames, chosen: &[HeaderName], headers: &HeaderMap) {
    if chosen.is_sorted_by(|a, b| a.as_str() < b.as_str()) {
        for name in chosen {
            frame_header(parts, name, headers);
        }
    } else {
        let mut chosen: Vec<_> = chosen.iter().collect();
        chosen.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        chosen.dedup();
        for name in chosen {
            frame_header(parts, name, headers);
        }
    }
}

fn frame_header(parts: &mut Frames, name: &HeaderName, headers: &HeaderMap) {
    if matches!(
        name.as_str(),
        "authorization" | "content-length" | "transfer-encoding"
    ) {
        return;
    }
    tagged(parts, b'h', name.as_str().as_bytes());
    let lines = headers.get_all(name);
    parts.number(lines.iter().count());
    for line in &lines {
        let line = line.as_bytes().trim_ascii();
        if *name == header::CONTENT_TYPE {
            let counts = media_type(line);
            parts.number(counts.len());
            parts.raw_lower(counts);
        } else {
            parts.frame(line);
        }
    }
}

fn frame_pointers(parts: &mut Frames, pointers: &[JsonPointer]) {
    parts.number(pointers.len());
    for pointer in pointers {
        parts.number(pointer.tokens().len());
        for token in pointer.tokens() {
            parts.frame(token.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
