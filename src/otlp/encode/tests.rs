//! What is written, read by the messages that the authors of OTLP generate.

use std::sync::Arc;

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    },
    common::v1::{KeyValue, any_value},
    trace::v1::{self, span::SpanKind, status::StatusCode as SpanStatus},
};
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::{
    core::{policy::RouteName, record::ShortId, trace::SpanId},
    telemetry::{
        metrics::{Outcome, StoreOp},
        spans::{Answered, SpanRoute},
    },
};

fn at(n: u8) -> SpanRef {
    SpanRef::from_bytes(&[n; 24]).expect("ids")
}

fn anchor() -> Anchor {
    Anchor {
        instant: Instant::now(),
        wall: Duration::from_hours(500_000),
    }
}

/// A span that began two seconds before the anchor and ended one after it.
fn span(anchor: Anchor, parent: Option<SpanId>, work: Work) -> Span {
    Span {
        at: at(1),
        parent,
        begun: anchor.instant - Duration::from_secs(2),
        ended: anchor.instant + Duration::from_secs(1),
        work,
    }
}

fn asked(answered: Option<Answered>) -> Work {
    Work::Request {
        method: "POST",
        route: Arc::new(SpanRoute {
            name: RouteName::new("submit"),
            template: "/jobs/{id}".to_owned(),
        }),
        answered,
    }
}

fn answered(status: StatusCode) -> Answered {
    Answered {
        outcome: Outcome::Hit,
        status,
        record: ShortId::parse("0123456789abcdef"),
        link: Some(Arc::new(at(9))),
    }
}

fn store(result: StoreResult) -> Work {
    Work::Store {
        store: "disk",
        operation: StoreOp::Settle,
        result,
    }
}

fn read(spans: &[Span], anchor: Anchor) -> Vec<v1::Span> {
    let bytes = request("7", spans, anchor);
    let mut whole = ExportTraceServiceRequest::decode(&bytes[..]).expect("a message");
    assert_eq!(whole.resource_spans.len(), 1);
    let mut of = whole.resource_spans.remove(0);
    let resource = of.resource.take().expect("a resource");
    let expected = [
        "service.name=idem-proxy".to_owned(),
        concat!("service.version=", env!("CARGO_PKG_VERSION")).to_owned(),
        "service.instance.id=7".to_owned(),
    ];
    assert_eq!(said(&resource.attributes), expected);
    let scope = of.scope_spans.remove(0);
    assert_eq!(scope.scope.expect("a scope").name, "idem-proxy");
    scope.spans
}

fn said(attributes: &[KeyValue]) -> Vec<String> {
    let value = |pair: &KeyValue| match pair.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => format!("{}={text}", pair.key),
        Some(any_value::Value::IntValue(number)) => format!("{}={number}", pair.key),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(value).collect()
}

#[test]
fn a_request_is_a_server_span_with_its_link() {
    let anchor = anchor();
    let parent = Some(SpanId::from_random(5));
    let spans = read(
        &[
            span(anchor, parent, asked(Some(answered(StatusCode::CREATED)))),
            span(anchor, None, asked(Some(answered(StatusCode::BAD_GATEWAY)))),
            span(anchor, None, asked(None)),
        ],
        anchor,
    );
    let [first, failed, gone] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(first.name, "POST /jobs/{id}");
    assert_eq!(first.kind(), SpanKind::Server);
    assert_eq!(first.trace_id, [1; 16]);
    assert_eq!(first.span_id, [1; 8]);
    assert_eq!(first.parent_span_id, 5_u64.to_be_bytes());
    assert_eq!(first.start_time_unix_nano, 1_799_999_998_000_000_000);
    assert_eq!(first.end_time_unix_nano, 1_800_000_001_000_000_000);
    assert_eq!(first.flags, 0x301);
    assert_eq!(first.status, None);
    let mut attributes = said(&first.attributes);
    attributes.sort();
    assert_eq!(
        attributes,
        [
            "http.request.method=POST",
            "http.response.status_code=201",
            "http.route=/jobs/{id}",
            "idem.outcome=hit",
            "idem.record=0123456789abcdef",
            "idem.route=submit",
        ]
    );
    assert_eq!(first.links.len(), 1);
    assert_eq!(first.links[0].trace_id, [9; 16]);
    assert_eq!(first.links[0].span_id, [9; 8]);
    assert!(failed.parent_span_id.is_empty());
    assert_eq!(failed.flags, 0x101);
    let status = failed.status.as_ref().expect("a status");
    assert_eq!(status.code(), SpanStatus::Error);
    assert!(said(&gone.attributes).contains(&"error.type=client_gone".to_owned()));
}

#[test]
fn the_store_and_the_upstream_are_its_children() {
    let anchor = anchor();
    let parent = Some(SpanId::from_random(1));
    let call = |end| {
        let method = "PUT";
        span(anchor, parent, Work::Call { method, end })
    };
    let spans = read(
        &[
            span(anchor, parent, store(StoreResult::Ok)),
            span(anchor, parent, store(StoreResult::Unavailable)),
            call(CallEnd::Answered(StatusCode::OK)),
            call(CallEnd::Answered(StatusCode::NOT_FOUND)),
            call(CallEnd::Failed("upstream-failed")),
        ],
        anchor,
    );
    let seen: Vec<_> = spans
        .iter()
        .map(|span| {
            assert_eq!(span.parent_span_id, 1_u64.to_be_bytes());
            let failed = span
                .status
                .as_ref()
                .is_some_and(|s| s.code() == SpanStatus::Error);
            (
                span.name.as_str(),
                span.kind(),
                failed,
                said(&span.attributes).join(" "),
            )
        })
        .collect();
    let told =
        |result| format!("idem.store=disk idem.store.operation=settle idem.store.result={result}");
    let put = "http.request.method=PUT";
    assert_eq!(
        seen,
        [
            ("store settle", SpanKind::Internal, false, told("ok")),
            (
                "store settle",
                SpanKind::Internal,
                true,
                told("unavailable")
            ),
            (
                "PUT",
                SpanKind::Client,
                false,
                format!("{put} http.response.status_code=200")
            ),
            (
                "PUT",
                SpanKind::Client,
                true,
                format!("{put} http.response.status_code=404 error.type=404")
            ),
            (
                "PUT",
                SpanKind::Client,
                true,
                format!("{put} error.type=upstream-failed")
            ),
        ]
    );
}

#[test]
fn long_messages_have_long_lengths() {
    let anchor = anchor();
    let many: Vec<Span> = (0..1000)
        .map(|_| span(anchor, None, store(StoreResult::Ok)))
        .collect();
    assert_eq!(read(&many, anchor).len(), 1000);
}

#[test]
fn what_a_collector_did_not_take_is_read() {
    let response = |rejected_spans| ExportTraceServiceResponse {
        partial_success: Some(ExportTracePartialSuccess {
            rejected_spans,
            error_message: "too many".to_owned(),
        }),
    };
    assert_eq!(rejected(&[]), Some(0));
    for count in [0, 1, 300] {
        let bytes = response(count).encode_to_vec();
        assert_eq!(rejected(&bytes), u64::try_from(count).ok());
    }
    assert_eq!(rejected(b"<html>no</html>"), None);
}

proptest! {
    #[test]
    fn any_answer_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = rejected(&bytes);
    }

    #[test]
    fn numbers_are_as_protobuf_has_them(number: u64) {
        let (bytes, length) = varint(number);
        let mut rest = &bytes[..length];
        prop_assert_eq!(read_varint(&mut rest), Some(number));
        prop_assert!(rest.is_empty());
        prop_assert_eq!(length, prost::encoding::encoded_len_varint(number));
    }
}
