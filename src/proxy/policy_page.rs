//! The published policy, at `policy_path`: what clients may read of the routes, as JSON.
//!
//! GET and HEAD alone; a path that is taken by it is taken from every route. The document changes only with the
//! configuration, so that its tag (RFC 9110, section 8.8.3) is a digest of it.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, DATE, ETAG, IF_NONE_MATCH, InvalidHeaderValue},
};
use sha2::{Digest as _, Sha256};

use super::{
    answer::{Answer, http_date},
    body::AnswerBody,
};
use crate::{
    config::Config,
    core::{policy::Errors, problem::Problem, time::Timestamp},
    telemetry::metrics::Outcome,
};

/// The page, ready to be sent.
#[derive(Debug)]
pub struct PolicyPage {
    path: String,
    document: Bytes,
    tag: HeaderValue,
}

impl PolicyPage {
    /// The page that `policy_path` asks for, if it does.
    ///
    /// # Errors
    /// None in practice: a digest in hexadecimal digits is a header's value.
    pub fn of(config: &Config) -> Result<Option<Self>, InvalidHeaderValue> {
        let Some(path) = config.server.policy_path.clone() else {
            return Ok(None);
        };
        let document = Bytes::clone(config.published.json());
        let digest = Sha256::digest(&document);
        let start = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
        let tag = HeaderValue::try_from(format!("\"{start:032x}\""))?;
        Ok(Some(Self {
            path,
            document,
            tag,
        }))
    }

    /// Whether it is at this normalised path.
    pub(super) fn is_at(&self, path: &str) -> bool {
        self.path == path
    }

    /// What a request for it is answered with; `errors` says how a method that it does not take is refused.
    pub(super) fn answer(
        &self,
        method: &Method,
        headers: &HeaderMap,
        errors: &Errors,
        now: Timestamp,
    ) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let problem = Problem::MethodNotAllowed;
            let mut refused = Answer::problem(&problem, Outcome::BadRequest, errors, None, now);
            let methods = HeaderValue::from_static("GET, HEAD");
            refused.response.headers_mut().insert(ALLOW, methods);
            return refused;
        }
        let known = self.is_known_to(headers);
        let mut response = if known {
            let mut response = Response::new(AnswerBody::whole(Bytes::new()));
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            Response::new(AnswerBody::whole(Bytes::clone(&self.document)))
        };
        let answer = response.headers_mut();
        if !known {
            answer.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        answer.insert(
            CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=60"),
        );
        answer.insert(ETAG, self.tag.clone());
        if let Some(date) = http_date(now) {
            answer.insert(DATE, date);
        }
        Answer::new(response, Outcome::Passthrough)
    }

    /// Whether the client has this document already (RFC 9110, section 13.1.2: tags are compared weakly).
    fn is_known_to(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(IF_NONE_MATCH).iter();
        lines
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .map(|tag| tag.strip_prefix(b"W/").unwrap_or(tag))
            .any(|tag| tag == b"*" || tag == self.tag.as_bytes())
    }
}
