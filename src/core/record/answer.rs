//! Answers as they are kept.

use std::{fmt, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::core::trace::SpanRef;

/// An answer as it is replayed: status, kept headers in order, raw body, and trailers if there were any. Cheap to clone: head and body are
/// shared.
#[derive(Clone)]
pub struct StoredAnswer {
    pub(super) status: StatusCode,
    /// So many of the lines are trailers, the last ones. In a field of their own they would make every record larger.
    pub(super) trailers: u32,
    pub(super) lines: Arc<[(HeaderName, HeaderValue)]>,
    pub(super) body: Bytes,
    /// The span of the execution that brought it, where that was traced: what replays link to.
    pub(super) execution: Option<Arc<SpanRef>>,
}

impl StoredAnswer {
    /// What an entry costs a store beside its header lines and body: record, digests, place in the index and in the
    /// order of uses. Measured with the store's memory bench.
    pub const OVERHEAD: usize = 400;

    /// What a header line costs beside name and value.
    pub const HEADER_OVERHEAD: usize = size_of::<(HeaderName, HeaderValue)>();

    /// What the span of its execution costs, where that was traced: both ids, and two counters of who shares them.
    const EXECUTION: usize = size_of::<SpanRef>() + 16;

    /// Takes an answer over for keeping. All values and the body are copied out of the buffers that they
    /// arrived in, into one, so that a small answer does not pin a large read buffer.
    #[must_use]
    pub fn capture(status: StatusCode, kept: &HeaderMap, body: &[u8]) -> Self {
        let (lines, body) = copied(kept, |_| true, body);
        Self {
            status,
            trailers: 0,
            lines,
            body,
            execution: None,
        }
    }

    /// The same with those header fields alone that `keeps` says, and with a body that may have a buffer of its own already.
    #[must_use]
    pub fn capture_some(
        status: StatusCode,
        headers: &HeaderMap,
        keeps: impl Fn(&HeaderName) -> bool,
        body: Gathered,
    ) -> Self {
        let (lines, body) = match body {
            Gathered::Shared(body) => copied(headers, keeps, &body),
            Gathered::Own(body) => (copied(headers, keeps, &[]).0, body),
        };
        Self {
            status,
            trailers: 0,
            lines,
            body,
            execution: None,
        }
    }

    /// The same with a body that has a buffer of its own already.
    #[must_use]
    pub fn with_body(status: StatusCode, kept: &HeaderMap, body: Bytes) -> Self {
        Self::capture_some(status, kept, |_| true, Gathered::Own(body))
    }

    /// The same with these fields behind its body, copied as the rest was. Those it had before go.
    #[must_use]
    pub fn with_trailers(self, trailers: &HeaderMap) -> Self {
        if trailers.is_empty() {
            return self;
        }
        let (copied, _) = copied(trailers, |_| true, &[]);
        // There are no more lines than a message has bytes.
        let count = u32::try_from(copied.len()).unwrap_or(u32::MAX);
        Self {
            trailers: count,
            lines: self
                .headers()
                .iter()
                .chain(copied.iter())
                .cloned()
                .collect(),
            status: self.status,
            body: self.body,
            execution: self.execution,
        }
    }

    /// The same, brought by the execution with this span.
    #[must_use]
    pub fn executed_in(self, span: SpanRef) -> Self {
        Self {
            execution: Some(Arc::new(span)),
            ..self
        }
    }

    /// The span of the execution that brought it, if it was traced.
    #[must_use]
    pub const fn execution(&self) -> Option<&Arc<SpanRef>> {
        self.execution.as_ref()
    }

    /// The status that the upstream answered with.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The kept headers, line by line in the order they came.
    #[must_use]
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        self.split().0
    }

    /// The fields behind the body, line by line in the order they came; mostly none.
    #[must_use]
    pub fn trailers(&self) -> &[(HeaderName, HeaderValue)] {
        self.split().1
    }

    fn split(&self) -> Lines<'_> {
        let trailers = usize::try_from(self.trailers).unwrap_or(usize::MAX);
        let headers = self.lines.len().saturating_sub(trailers);
        self.lines
            .split_at_checked(headers)
            .unwrap_or((&self.lines, &[]))
    }

    /// The raw body, shared and never copied.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// What it weighs in a store, in bytes: body, names and values of headers and trailers, [`Self::HEADER_OVERHEAD`] for each line,
    /// and [`Self::OVERHEAD`].
    #[must_use]
    pub fn weight(&self) -> usize {
        let head: usize = self
            .lines
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + Self::HEADER_OVERHEAD)
            .sum();
        let execution = self.execution.as_ref().map_or(0, |_| Self::EXECUTION);
        Self::OVERHEAD + head + self.body.len() + execution
    }
}

/// A whole body, and whose its buffer is.
#[derive(Debug)]
pub enum Gathered {
    /// It is a part of a buffer that holds other things too, or has room for much more.
    Shared(Bytes),
    /// It has a buffer of its own, of about its size.
    Own(Bytes),
}

/// Header lines, then trailer lines.
type Lines<'a> = (
    &'a [(HeaderName, HeaderValue)],
    &'a [(HeaderName, HeaderValue)],
);

/// Those header lines that `keeps` says, and the body, in one buffer of their own.
fn copied(
    headers: &HeaderMap,
    keeps: impl Fn(&HeaderName) -> bool,
    body: &[u8],
) -> (Arc<[(HeaderName, HeaderValue)]>, Bytes) {
    let kept = || headers.iter().filter(|(name, _)| keeps(name));
    let (count, size) = kept().fold((0, body.len()), |(count, size), (_, value)| {
        (count + 1, size + value.len())
    });
    let mut all = BytesMut::with_capacity(size);
    kept().for_each(|(_, value)| all.extend_from_slice(value.as_bytes()));
    all.extend_from_slice(body);
    let mut all = all.freeze();
    let mut lines = Vec::with_capacity(count);
    lines.extend(kept().filter_map(|(name, value)| {
        let bytes = all.split_to(value.len());
        // The bytes were a header value a moment ago; if they were not, the header is left out.
        let mut copied = HeaderValue::from_maybe_shared(bytes).ok()?;
        copied.set_sensitive(value.is_sensitive());
        Some((name.clone(), copied))
    }));
    (lines.into(), all)
}

impl fmt::Debug for StoredAnswer {
    /// Status and sizes alone: an answer's content is not for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredAnswer")
            .field("status", &self.status.as_u16())
            .field("lines", &self.lines.len())
            .field("trailers", &self.trailers)
            .field("body", &self.body.len())
            .field("traced", &self.execution.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn trailers_stand_behind_the_head_and_weigh_as_it_does() {
        let head = lines(&[("a", "1"), ("b", "2")]);
        let plain = StoredAnswer::capture(StatusCode::OK, &head, b"body");
        assert_eq!((plain.headers().len(), plain.trailers().len()), (2, 0));
        let none = plain.clone().with_trailers(&HeaderMap::new());
        assert_eq!(none.weight(), plain.weight());
        let trailers = lines(&[("c", "3"), ("c", "4")]);
        let answer = plain.clone().with_trailers(&trailers);
        let twice = answer.clone().with_trailers(&trailers);
        for answer in [&answer, &twice] {
            assert_eq!(answer.headers(), plain.headers());
            let c = HeaderName::from_static("c");
            let expected = ["3", "4"].map(|v| (c.clone(), HeaderValue::from_static(v)));
            assert_eq!(answer.trailers(), expected);
            assert_eq!(&answer.body()[..], b"body");
            let added = 2 * (2 + StoredAnswer::HEADER_OVERHEAD);
            assert_eq!(answer.weight(), plain.weight() + added);
        }
    }

    #[test]
    fn a_body_is_copied_out_of_a_shared_buffer_and_not_out_of_its_own() {
        let head = lines(&[("a", "1"), ("b", "2")]);
        let capture = |body| {
            StoredAnswer::capture_some(StatusCode::OK, &head, |name| name.as_str() == "b", body)
        };
        let body = Bytes::from(b"body".to_vec());
        let own = capture(Gathered::Own(body.clone()));
        let copied = capture(Gathered::Shared(body.clone()));
        for answer in [&own, &copied] {
            let b = HeaderName::from_static("b");
            assert_eq!(answer.headers(), [(b, HeaderValue::from_static("2"))]);
            assert_eq!(answer.body(), &body);
        }
        assert_eq!(own.body().as_ptr(), body.as_ptr());
        assert_ne!(copied.body().as_ptr(), body.as_ptr());
        assert_eq!(own.weight(), copied.weight());
    }

    #[test]
    fn trailers_make_no_record_larger_that_has_none() {
        type Parts = (
            StatusCode,
            Arc<[(HeaderName, HeaderValue)]>,
            Bytes,
            Option<Arc<SpanRef>>,
        );
        let without = size_of::<Parts>();
        assert_eq!(size_of::<StoredAnswer>(), without);
    }
}
