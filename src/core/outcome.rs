//! What the upstream did, and what becomes of the record (contract, section 4, second table).
//!
//! [`judge`] reads the head of an answer, [`Failure`] is everything that is not an answer. A body that turns out
//! larger than `max_response_body` makes a tombstone of what was to be kept; one that is cut off before its end is
//! [`Failure::MaybeSent`], unless its record was a tombstone from the head on.

use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};

use super::{policy::Policy, record::NotRetained, transition::Settlement};

/// What the head of an answer makes of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It completes the record once its body is whole and within `max_response_body`; over that it leaves a
    /// tombstone ([`NotRetained::TooLarge`]).
    Keep,
    /// It passes as it comes, and leaves a tombstone at once.
    Stream(NotRetained),
    /// It is not stored, whatever its size; the key is free again.
    Release,
    /// It says that nobody can tell what happened.
    Unknown,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No byte of the request was written: the upstream could not be reached.
    NotSent,
    /// The request was written, wholly or in part, and then the connection was reset, closed, or gave something
    /// that is no whole answer.
    MaybeSent,
    /// `capture_timeout` has passed. (`response_timeout` settles nothing: only the client gives up then.)
    TimedOut,
}

impl Failure {
    /// What becomes of the record: a request that may have been read is never taken for one that was not.
    #[must_use]
    pub const fn settlement(self) -> Settlement {
        match self {
            Self::NotSent => Settlement::Release,
            Self::MaybeSent | Self::TimedOut => Settlement::Unknown,
        }
    }
}

/// Judges an answer by its head. `unknown_responses` win over `store_responses`, and both over `stream_types`.
#[must_use]
pub fn judge(policy: &Policy, status: StatusCode, headers: &HeaderMap) -> Verdict {
    if policy.unknown_responses.contains(status) {
        Verdict::Unknown
    } else if !policy.store_responses.contains(status) {
        Verdict::Release
    } else if is_stream(policy, headers) {
        Verdict::Stream(NotRetained::Stream)
    } else {
        Verdict::Keep
    }
}

/// Whether the media type, without parameters and whatever its letter case, is one of `stream_types`. Of several
/// Content-Type lines any one suffices: holding a stream back for its end could take for ever.
fn is_stream(policy: &Policy, headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_TYPE).iter().any(|value| {
        let mut parts = value.as_bytes().split(|&byte| byte == b';');
        let media_type = parts.next().unwrap_or_default().trim_ascii();
        policy
            .stream_types
            .iter()
            .any(|stream| stream.as_bytes().eq_ignore_ascii_case(media_type))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::core::{fixtures, policy::StatusSet};

    fn verdict(policy: &Policy, status: u16, content_type: &[&str]) -> Verdict {
        let mut headers = HeaderMap::new();
        for line in content_type {
            headers.append(CONTENT_TYPE, HeaderValue::from_str(line).expect("a value"));
        }
        judge(
            policy,
            StatusCode::from_u16(status).expect("a status"),
            &headers,
        )
    }

    #[test]
    fn an_answer_with_a_stored_status_completes_its_record() {
        let policy = fixtures::policy();
        for status in [200, 201, 204, 299] {
            assert_eq!(
                verdict(&policy, status, &["application/json"]),
                Verdict::Keep,
                "{status}"
            );
        }
        assert_eq!(verdict(&policy, 200, &[]), Verdict::Keep);
    }

    #[test]
    fn an_answer_with_another_status_releases_it_even_if_it_streams() {
        let policy = fixtures::policy();
        for status in [302, 400, 401, 404, 409, 429, 500, 502, 503, 504] {
            assert_eq!(
                verdict(&policy, status, &["application/json"]),
                Verdict::Release,
                "{status}"
            );
            assert_eq!(
                verdict(&policy, status, &["text/event-stream"]),
                Verdict::Release,
                "{status}"
            );
        }
    }

    #[test]
    fn a_stored_status_with_a_stream_type_leaves_a_tombstone() {
        let policy = fixtures::policy();
        let stream = Verdict::Stream(NotRetained::Stream);
        for value in [
            "text/event-stream",
            "Text/Event-Stream",
            "text/event-stream ; charset=utf-8",
            "text/event-stream;x",
        ] {
            assert_eq!(verdict(&policy, 200, &[value]), stream, "{value}");
        }
        assert_eq!(
            verdict(&policy, 200, &["application/json", "text/event-stream"]),
            stream
        );
        for value in [
            "text/event-streams",
            "text/plain; x=text/event-stream",
            "",
            ";",
        ] {
            assert_eq!(verdict(&policy, 200, &[value]), Verdict::Keep, "{value}");
        }
    }

    #[test]
    fn a_status_that_leaves_the_outcome_unknown_wins_over_one_that_is_stored() {
        let mut policy = fixtures::policy();
        policy.unknown_responses = StatusSet::parse(&["502", "201"]).expect("statuses");
        assert_eq!(verdict(&policy, 502, &[]), Verdict::Unknown);
        assert_eq!(
            verdict(&policy, 201, &["text/event-stream"]),
            Verdict::Unknown
        );
        assert_eq!(verdict(&policy, 200, &[]), Verdict::Keep);
        assert_eq!(verdict(&policy, 504, &[]), Verdict::Release);
    }

    #[test]
    fn an_unreachable_upstream_releases() {
        assert!(matches!(Failure::NotSent.settlement(), Settlement::Release));
    }

    #[test]
    fn a_request_that_was_written_and_not_answered_is_unknown() {
        assert!(matches!(
            Failure::MaybeSent.settlement(),
            Settlement::Unknown
        ));
    }

    #[test]
    fn no_answer_until_the_capture_ends_is_unknown() {
        assert!(matches!(
            Failure::TimedOut.settlement(),
            Settlement::Unknown
        ));
    }
}
