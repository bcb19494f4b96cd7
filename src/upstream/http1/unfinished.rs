//! Why a request or its answer came to no end.

use std::io;

use crate::upstream::{Incomplete, heads::BadHead};

/// Why a request that may have been sent has no answer, or an answer no end.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    /// Not one byte of the request was taken: meanwhile the connection broke, or the upstream closed it (0) or spoke (so many bytes).
    #[error("the connection ended before the request was begun")]
    NotBegun(io::Result<usize>),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The upstream closed it.
    #[error("the connection was closed before the answer's end")]
    Closed,
    /// The request's own body did not come whole.
    #[error("the request's body did not come whole: {0}")]
    Upload(#[source] Box<Incomplete>),
    /// The request's own body is shorter than its head says.
    #[error("the request's body is shorter than announced")]
    Short,
    /// What came cannot be an answer.
    #[error("the answer is not to be believed: {0}")]
    Malformed(&'static str),
}

impl From<BadHead> for Unfinished {
    fn from(why: BadHead) -> Self {
        Self::Malformed(why.as_str())
    }
}
