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
use sha2::{Digest as _, Sha256};

use super::{
    canonical,
    media::{self, Stated, is_encoded, is_json, media_type},
    policy::{BodyMode, FingerprintRule, JsonPointer, QueryMode},
};

/// A SHA-256.
pub type Digest = [u8; 32];

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
        Builder::new(rule, method, path, query, headers).finish(body)
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
    exact: Sha256,
    /// How many bytes of the body are in `exact`.
    hashed: usize,
    /// The parts before the body in normal form; `None`: as they are in `exact`.
    sorted: Option<Sha256>,
    /// The parts before the body, for the canonical digest.
    parts: Sha256,
    reading: Reading,
    rule: Arc<FingerprintRule>,
}

impl Builder {
    /// The version of the frames; another version never meets this one's digests.
    const FORMAT: &'static [u8] = b"idem-proxy fingerprint 1";

    /// Starts with everything but the body. `path` is the normalised one.
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
    ) -> Self {
        let mut parts = Sha256::new();
        frame(&mut parts, b'v', Self::FORMAT);
        if rule.method {
            frame(&mut parts, b'm', method.as_str().as_bytes());
        }
        if rule.path {
            frame(&mut parts, b'p', path.as_bytes());
        }
        frame_headers(&mut parts, &rule.headers, headers);
        let mut sorted = None;
        if let Some(query) = query {
            if rule.query == QueryMode::Sorted {
                let normal = canonical::query(query);
                if normal != query {
                    let mut parts = parts.clone();
                    frame(&mut parts, b'q', normal.as_bytes());
                    sorted = Some(parts);
                }
            }
            if rule.query != QueryMode::Off {
                frame(&mut parts, b'q', query.as_bytes());
            }
        }
        let reading = Reading::of(rule, headers);
        let mut exact = parts.clone();
        reading.start_exact(&mut exact);
        Self {
            exact,
            hashed: 0,
            sorted,
            parts,
            reading,
            rule: Arc::clone(rule),
        }
    }

    /// Takes the next piece of the body.
    pub fn update(&mut self, piece: &[u8]) {
        if self.reading != Reading::Off {
            self.exact.update(piece);
        }
        self.hashed = self.hashed.saturating_add(piece.len());
    }

    /// Ends with the whole body: the pieces that were given to [`Self::update`], and any that were not yet.
    /// No body is an empty body.
    #[must_use]
    pub fn finish(mut self, body: Bytes) -> Fingerprint {
        debug_assert!(self.hashed <= body.len(), "the pieces are the body's");
        if let Some(rest) = body.get(self.hashed..) {
            self.update(rest);
        }
        if self.reading != Reading::Off {
            self.exact.update((self.hashed as u64).to_be_bytes());
        }
        let plain = matches!(self.reading, Reading::Off | Reading::Raw) && self.sorted.is_none();
        let unread = (!plain).then(|| Unread {
            query: if self.sorted.is_some() {
                Query::Sorted
            } else {
                Query::AsItCame
            },
            parts: self.sorted.unwrap_or(self.parts),
            reading: self.reading,
            rule: self.rule,
            body,
        });
        Fingerprint {
            exact: self.exact.finalize().into(),
            canonical: OnceLock::new(),
            unread,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("hashed", &self.hashed)
            .finish_non_exhaustive()
    }
}

/// What the canonical digest is computed from.
struct Unread {
    parts: Sha256,
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
    fn digest(&self, exact: Digest) -> Digest {
        let mut hash = self.parts.clone();
        if self.body_form(&mut hash).is_none() {
            if self.query == Query::AsItCame {
                return exact;
            }
            hash.clone_from(&self.parts);
            self.reading.start_exact(&mut hash);
            if self.reading != Reading::Off {
                hash.update(&self.body);
                hash.update((self.body.len() as u64).to_be_bytes());
            }
        }
        hash.finalize().into()
    }

    /// Hashes the body as it is read. `None`: it counts byte for byte.
    fn body_form(&self, hash: &mut Sha256) -> Option<()> {
        match &self.reading {
            Reading::Off | Reading::Raw => return None,
            Reading::Json => {
                let form = canonical::json(&self.body, &self.rule.ignore, &self.rule.only)?;
                hash.update(b"j");
                // Under other pointers it is another form, whatever is left of the document.
                frame_pointers(hash, &self.rule.ignore);
                frame_pointers(hash, &self.rule.only);
                hash.update(&form);
            }
            Reading::Form => {
                let form = canonical::form(&self.body)?;
                hash.update(b"f");
                hash.update(&form);
            }
            Reading::Multipart { boundary } => {
                let pieces = canonical::multipart(&self.body, boundary)?;
                hash.update(b"x");
                for piece in pieces {
                    frame(hash, b'.', piece);
                }
            }
        }
        Some(())
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
    fn of(rule: &FingerprintRule, headers: &HeaderMap) -> Self {
        match rule.body {
            BodyMode::Off => return Self::Off,
            BodyMode::Raw => return Self::Raw,
            BodyMode::Auto | BodyMode::Json | BodyMode::Form | BodyMode::Multipart => {}
        }
        if is_encoded(headers) {
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
    fn start_exact(&self, hash: &mut Sha256) {
        match self {
            Self::Off => hash.update(b"o"),
            Self::Raw | Self::Json | Self::Form => hash.update(b"b"),
            Self::Multipart { boundary } => {
                frame(hash, b'y', boundary);
                hash.update(b"b");
            }
        }
    }
}

fn frame(hash: &mut Sha256, tag: u8, part: &[u8]) {
    hash.update([tag]);
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

/// Every chosen header with all its lines. The order of the configuration does not count.
fn frame_headers(hash: &mut Sha256, chosen: &[HeaderName], headers: &HeaderMap) {
    if chosen.is_sorted_by(|a, b| a.as_str() < b.as_str()) {
        for name in chosen {
            frame_header(hash, name, headers);
        }
    } else {
        let mut chosen: Vec<_> = chosen.iter().collect();
        chosen.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        chosen.dedup();
        for name in chosen {
            frame_header(hash, name, headers);
        }
    }
}

fn frame_header(hash: &mut Sha256, name: &HeaderName, headers: &HeaderMap) {
    if [
        header::AUTHORIZATION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
    ]
    .contains(name)
    {
        return;
    }
    frame(hash, b'h', name.as_str().as_bytes());
    let lines = || {
        headers
            .get_all(name)
            .iter()
            .map(|line| line.as_bytes().trim_ascii())
    };
    hash.update((lines().count() as u64).to_be_bytes());
    for line in lines() {
        if *name == header::CONTENT_TYPE {
            frame(hash, b'=', &media_type(line).to_ascii_lowercase());
        } else {
            frame(hash, b'=', line);
        }
    }
}

fn frame_pointers(hash: &mut Sha256, pointers: &[JsonPointer]) {
    hash.update((pointers.len() as u64).to_be_bytes());
    for pointer in pointers {
        hash.update((pointer.tokens().len() as u64).to_be_bytes());
        for token in pointer.tokens() {
            frame(hash, b'/', token.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
