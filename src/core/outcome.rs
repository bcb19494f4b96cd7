//! What the upstream did, and what becomes of the record (contract, section 4, second table).
//!
//! [`judge`] reads the head of an answer, [`judge_end`] what stands behind its body, [`Failure`] is everything that is not an answer. A body that turns out
//! larger than `max_response_body` makes a tombstone of what was to be kept; one that is cut off before its end is
//! [`Failure::MaybeSent`], unless its record was a tombstone from the head on.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE};

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
    /// No byte of the request was written: the lease of its claim could have ended by then, and the key be another's.
    WithoutLeave,
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
            Self::NotSent | Self::WithoutLeave => Settlement::Release,
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

/// Judges an answer that is whole, whose head made `verdict` of it: gRPC says behind the body whether the call succeeded, and its HTTP
/// status is 200 either way. A failure counts with the HTTP status that stands for its code, so that it is kept where that one is.
#[must_use]
pub fn judge_end(
    policy: &Policy,
    verdict: Verdict,
    headers: &HeaderMap,
    trailers: &HeaderMap,
) -> Verdict {
    if verdict != Verdict::Keep || !is_grpc(headers) {
        return verdict;
    }
    // An answer without a body has it in its head.
    let said = trailers
        .get(GRPC_STATUS)
        .or_else(|| headers.get(GRPC_STATUS));
    match said.map(HeaderValue::as_bytes) {
        None | Some(b"0") => verdict,
        Some(code) => judge(policy, http_status(code), headers),
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Whether its media type is `application/grpc`, with whatever suffix.
fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    value
        .and_then(|value| value.split_at_checked(GRPC.len()))
        .is_some_and(|(media_type, rest)| {
            media_type.eq_ignore_ascii_case(GRPC)
                && matches!(rest, [] | [b'+' | b';' | b' ' | b'-', ..])
        })
}

/// The HTTP status for a code of gRPC, as the table of `google.rpc.Code` has it. A code that is none is a failure that nobody knows.
fn http_status(code: &[u8]) -> StatusCode {
    let status = match code {
        b"1" => 499,
        b"3" | b"9" | b"11" => 400,
        b"4" => 504,
        b"5" => 404,
        b"6" | b"10" => 409,
        b"7" => 403,
        b"8" => 429,
        b"12" => 501,
        b"14" => 503,
        b"16" => 401,
        _ => 500,
    };
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
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
    fn a_grpc_failure_counts_with_the_status_that_stands_for_it() {
        let field = |name: &'static str, value: &'static str| {
            let value = HeaderValue::from_static(value);
            HeaderMap::from_iter([(HeaderName::from_static(name), value)])
        };
        let mut policy = fixtures::policy();
        let end = |policy: &Policy, media_type, trailers: &HeaderMap| {
            let headers = field("content-type", media_type);
            judge_end(policy, Verdict::Keep, &headers, trailers)
        };
        for (media_type, code, verdict) in [
            ("application/grpc", "0", Verdict::Keep),
            ("application/grpc+proto", "5", Verdict::Release),
            ("Application/gRPC; x=y", "14", Verdict::Release),
            ("application/grpc", "seven", Verdict::Release),
            ("application/grpcx", "5", Verdict::Keep),
            ("application/json", "5", Verdict::Keep),
        ] {
            let trailers = field("grpc-status", code);
            assert_eq!(
                end(&policy, media_type, &trailers),
                verdict,
                "{media_type} {code}"
            );
        }
        assert_eq!(
            end(&policy, "application/grpc", &HeaderMap::new()),
            Verdict::Keep
        );
        policy.unknown_responses = StatusSet::parse(&["504"]).expect("codes");
        let deadline = field("grpc-status", "4");
        assert_eq!(
            end(&policy, "application/grpc", &deadline),
            Verdict::Unknown
        );
        let mut head = field("content-type", "application/grpc");
        head.extend(field("grpc-status", "3"));
        let alone = judge_end(&policy, Verdict::Keep, &head, &HeaderMap::new());
        assert_eq!(alone, Verdict::Release);
        let released = judge_end(&policy, Verdict::Release, &head, &HeaderMap::new());
        assert_eq!(released, Verdict::Release);
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
        assert!(matches!(
            Failure::WithoutLeave.settlement(),
            Settlement::Release
        ));
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
