//! What is written is read again; what is not as it was written is refused.

use http::HeaderMap;
use proptest::prelude::*;

use super::*;
use crate::core::fixtures::{self, request, route, token};

fn record(state: State) -> Record {
    Record {
        print: Print::Settled(request("{\"b\":1, \"a\":2}").digests()),
        state,
        started_at: Timestamp::from_millis(1_800_000_000_000),
        expires_at: Timestamp::from_millis(1_800_000_100_000),
        after_expiry: AfterExpiry::RefuseFor(Duration::from_secs(7)),
        route: route(),
    }
}

fn states() -> Vec<State> {
    let at = Timestamp::from_millis(1_800_000_000_500);
    let tombstone = |why| State::Tombstone {
        status: StatusCode::ACCEPTED,
        why,
    };
    vec![
        State::InFlight {
            token: token(7),
            lease_until: at,
        },
        State::Unknown { since: at },
        State::Complete(fixtures::answer(b"body")),
        tombstone(NotRetained::TooLarge),
        tombstone(NotRetained::Stream),
        tombstone(NotRetained::NoRoom),
        State::Expired,
    ]
}

fn same(a: &Record, b: &Record) {
    assert_eq!(format!("{a:?}"), format!("{b:?}"));
    assert_eq!(a.print.digests(), b.print.digests());
    if let (State::InFlight { token: a, .. }, State::InFlight { token: b, .. }) =
        (&a.state, &b.state)
    {
        assert!(a == b);
    }
}

fn odd_answer() -> StoredAnswer {
    let mut headers = HeaderMap::new();
    let mut secret = HeaderValue::from_bytes(b"caf\xe9").expect("a value");
    secret.set_sensitive(true);
    headers.append("set-cookie", HeaderValue::from_static("a=1"));
    headers.append("set-cookie", secret);
    headers.append("x-empty", HeaderValue::from_static(""));
    let mut trailers = HeaderMap::new();
    trailers.append("grpc-status", HeaderValue::from_static("0"));
    trailers.append("x-sum", HeaderValue::from_static(""));
    StoredAnswer::capture(StatusCode::NO_CONTENT, &headers, &[0, 255, 128]).with_trailers(&trailers)
}

#[test]
fn every_state_comes_back_as_it_was_written() {
    for state in states() {
        let record = record(state);
        let read = read_head(&head(&record)).expect("a head");
        let answer = match &record.state {
            State::Complete(own) => {
                let frame = Bytes::from(answer(own));
                Some(read_answer(&frame).expect("an answer"))
            }
            _ => None,
        };
        same(&whole(read, answer).expect("whole"), &record);
    }
}

#[test]
fn an_answer_comes_back_byte_for_byte() {
    let own = odd_answer();
    let read = read_answer(&Bytes::from(answer(&own))).expect("an answer");
    assert_eq!(read.status(), own.status());
    assert_eq!(read.headers(), own.headers());
    assert_eq!(
        (read.trailers(), read.trailers().len()),
        (own.trailers(), 2)
    );
    assert_eq!(read.body(), own.body());
    let sensitive = |answer: &StoredAnswer| {
        let values = answer.headers().iter();
        values
            .map(|(_, value)| value.is_sensitive())
            .collect::<Vec<_>>()
    };
    assert_eq!(sensitive(&read), sensitive(&own));
}

#[test]
fn a_complete_record_without_its_answer_is_damaged() {
    let complete = record(State::Complete(fixtures::answer(b"body")));
    let read = || read_head(&head(&complete)).expect("a head");
    assert_eq!(whole(read(), None).err(), Some(Damage::Field("answer")));
    let another = odd_answer();
    assert_eq!(
        whole(read(), Some(another)).err(),
        Some(Damage::Field("answer"))
    );
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let complete = record(State::Complete(fixtures::answer(b"body")));
    let frame = head(&complete);
    let reply = answer(&fixtures::answer(b"body"));
    for bit in 0..frame.len() * 8 {
        let mut frame = frame.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        assert!(read_head(&frame).is_err(), "bit {bit}");
    }
    for bit in 0..reply.len() * 8 {
        let mut reply = reply.clone();
        reply[bit / 8] ^= 1 << (bit % 8);
        assert!(read_answer(&Bytes::from(reply)).is_err(), "bit {bit}");
    }
    for length in 0..frame.len() {
        assert!(read_head(&frame[..length]).is_err(), "{length} bytes");
    }
    let mut longer = frame.clone();
    longer.push(0);
    assert_eq!(read_head(&longer).err(), Some(Damage::Checksum));
    assert_eq!(read_head(&reply).err(), Some(Damage::NoFrame));
}

/// A frame of a head with other fields behind its own.
fn with_fields(record: &Record, more: &[(u8, &[u8])]) -> Vec<u8> {
    let mut frame = Frame(head(record));
    for (number, value) in more {
        frame.field(*number, value);
    }
    frame.finish()
}

#[test]
fn an_unknown_field_is_skipped_and_an_unknown_version_is_not() {
    let expired = record(State::Expired);
    let frame = with_fields(&expired, &[(77, b"later"), (78, &[0; 300])]);
    same(&read_head(&frame).expect("a head"), &expired);
    let mut frame = head(&expired);
    frame[3] = VERSION + 1;
    assert_eq!(read_head(&frame).err(), Some(Damage::Version(VERSION + 1)));
}

#[test]
fn a_field_that_makes_no_sense_is_named() {
    let expired = record(State::Expired);
    for (number, value, what) in [
        (head::STATE, &[9][..], "state"),
        (head::STATE, &[], "state"),
        (head::STARTED_AT, &[1], "start"),
        (head::EXPIRES_AT, &[0; 8], "expiry"),
        (head::ROUTE, &[0xff], "route"),
        (head::EXACT, &[0; 31], "fingerprint"),
        (head::STATUS, &[0, 0], "status"),
        (head::WHY, &[9], "reason"),
        (head::STATE, &[0], "token"),
        (head::STATE, &[3], "status"),
    ] {
        let read = read_head(&with_fields(&expired, &[(number, value)]));
        assert_eq!(read.err(), Some(Damage::Field(what)), "{number}");
    }
}

proptest! {
    #[test]
    fn no_bytes_are_read_as_more_than_they_are(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut frame = Frame(Vec::new());
        frame.0.extend_from_slice(&[b'i', b'd', b'h', VERSION, 0, 0, 0, 0, 0, 0, 0, 0]);
        frame.0.extend_from_slice(&bytes);
        let frame = frame.finish();
        // Whatever the fields say, reading ends, and does not panic.
        if let Ok(record) = read_head(&frame) {
            crate::core::transition::check_invariants(&record);
        }
        let _ = read_answer(&Bytes::from(bytes));
    }
}

#[test]
fn the_span_of_an_execution_is_kept_where_there_is_one() {
    let span = SpanRef::from_bytes(&[7; 24]).expect("ids");
    let plain = fixtures::answer(b"body");
    let traced = plain.clone().executed_in(span);
    assert!(traced.weight() > plain.weight());
    for (answer_is, expected) in [(plain, None), (traced, Some(span))] {
        let frame = Bytes::from(answer(&answer_is));
        let read = read_answer(&frame).expect("what was written");
        assert_eq!(read.execution().map(|span| **span), expected);
        assert_eq!(read.body(), answer_is.body());
    }
}
