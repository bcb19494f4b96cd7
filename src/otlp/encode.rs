//! Spans as OTLP has them: the protobuf messages of opentelemetry-proto 1.x that traces need, written by hand, for they are few.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use crate::{
    core::trace::SpanRef,
    telemetry::{
        metrics::StoreResult,
        spans::{CallEnd, Span, Work},
    },
};

/// A point that both clocks are read at: spans are timed by the monotonic one and dated by the wall's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    pub(super) instant: Instant,
    /// Since the epoch.
    pub(super) wall: Duration,
}

impl Anchor {
    /// Nanoseconds since the epoch.
    fn nanos(&self, at: Instant) -> u64 {
        let wall = match at.checked_duration_since(self.instant) {
            Some(later) => self.wall.saturating_add(later),
            None => self.wall.saturating_sub(self.instant - at),
        };
        u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// An `ExportTraceServiceRequest` of these spans, from the process with this id.
pub(super) fn request(instance: &str, spans: &[Span], anchor: Anchor) -> Vec<u8> {
    let mut request = Message(Vec::with_capacity(512 + spans.len() * 320));
    request.message(1, |resource_spans| {
        resource_spans.message(1, |resource| {
            resource.text_attribute(1, "service.name", NAME);
            resource.text_attribute(1, "service.version", VERSION);
            resource.text_attribute(1, "service.instance.id", instance);
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.bytes(1, NAME.as_bytes());
                scope.bytes(2, VERSION.as_bytes());
            });
            for span in spans {
                scope_spans.message(2, |message| write(message, span, anchor));
            }
        });
    });
    request.0
}

const NAME: &str = "idem-proxy";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `SpanKind`
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;

/// `StatusCode`: something went wrong.
const ERROR: u64 = 2;

/// `Span.flags`: it is sampled, as all are that come here.
const SAMPLED: u32 = 1;
/// Whether the parent is another process's is known, and it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

fn write(message: &mut Message, span: &Span, anchor: Anchor) {
    let SpanRef { trace, span: id } = span.at;
    message.bytes(1, &trace);
    message.bytes(2, &id.to_bytes());
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.to_bytes());
    }
    message.fixed64(7, anchor.nanos(span.begun));
    message.fixed64(8, anchor.nanos(span.ended));
    let mut flags = SAMPLED | HAS_IS_REMOTE;
    let failed = match &span.work {
        Work::Request {
            method,
            route,
            answered,
        } => {
            if span.parent.is_some() {
                flags |= IS_REMOTE;
            }
            message.bytes(5, format!("{method} {}", route.template).as_bytes());
            message.number(6, SERVER);
            message.text_attribute(ATTRIBUTES, "http.request.method", method);
            message.text_attribute(ATTRIBUTES, "http.route", &route.template);
            message.text_attribute(ATTRIBUTES, "idem.route", route.name.as_str());
            if let Some(answered) = answered {
                message.status(answered.status);
                let outcome = answered.outcome.as_str();
                message.text_attribute(ATTRIBUTES, "idem.outcome", outcome);
                if let Some(record) = answered.record {
                    message.attribute(ATTRIBUTES, "idem.record", |value| {
                        value.bytes(1, &record.digits());
                    });
                }
                if let Some(link) = &answered.link {
                    message.message(13, |to| {
                        to.bytes(1, &link.trace);
                        to.bytes(2, &link.span.to_bytes());
                        to.fixed32(6, SAMPLED);
                    });
                }
                answered.status.is_server_error()
            } else {
                message.text_attribute(ATTRIBUTES, "error.type", "client_gone");
                false
            }
        }
        Work::Store {
            store,
            operation,
            result,
        } => {
            let operation = operation.as_str();
            message.bytes(5, format!("store {operation}").as_bytes());
            message.number(6, INTERNAL);
            message.text_attribute(ATTRIBUTES, "idem.store", store);
            message.text_attribute(ATTRIBUTES, "idem.store.operation", operation);
            message.text_attribute(ATTRIBUTES, "idem.store.result", result.as_str());
            *result != StoreResult::Ok
        }
        Work::Call { method, end } => {
            message.bytes(5, method.as_bytes());
            message.number(6, CLIENT);
            message.text_attribute(ATTRIBUTES, "http.request.method", method);
            call_end(message, *end)
        }
    };
    if failed {
        message.message(15, |status| status.number(3, ERROR));
    }
    message.fixed32(16, flags);
}

/// `Span.attributes`
const ATTRIBUTES: u32 = 9;

/// Whether the call failed: for a caller, every answer from 400 up is an error (semantic conventions for HTTP).
fn call_end(message: &mut Message, end: CallEnd) -> bool {
    match end {
        CallEnd::Answered(status) => {
            message.status(status);
            let failed = status.as_u16() >= 400;
            if failed {
                message.text_attribute(ATTRIBUTES, "error.type", status.as_str());
            }
            failed
        }
        CallEnd::Failed(why) => {
            message.text_attribute(ATTRIBUTES, "error.type", why);
            true
        }
    }
}

/// A protobuf message in the making.
struct Message(Vec<u8>);

/// Wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

impl Message {
    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn varint(&mut self, number: u64) {
        let (bytes, length) = varint(number);
        self.0.extend(bytes.into_iter().take(length));
    }

    fn number(&mut self, field: u32, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.tag(field, FIXED32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A message in this one. Its length stands before it and is known behind it.
    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.tag(field, LENGTH);
        let begins = self.0.len();
        write(self);
        let (bytes, length) = varint((self.0.len() - begins) as u64);
        self.0
            .splice(begins..begins, bytes.into_iter().take(length));
    }

    /// A `KeyValue`, whose `AnyValue` is written by `value`.
    fn attribute(&mut self, field: u32, key: &str, value: impl FnOnce(&mut Self)) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, value);
        });
    }

    fn text_attribute(&mut self, field: u32, key: &str, text: &str) {
        self.attribute(field, key, |value| value.bytes(1, text.as_bytes()));
    }

    fn status(&mut self, status: StatusCode) {
        let status = u64::from(status.as_u16());
        self.attribute(ATTRIBUTES, "http.response.status_code", |value| {
            value.number(3, status);
        });
    }
}

/// The bytes of a number, seven bits each, and how many there are.
fn varint(mut number: u64) -> ([u8; 10], usize) {
    let (mut bytes, mut length) = ([0; 10], 1);
    for byte in &mut bytes {
        *byte = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            break;
        }
        *byte |= 0x80;
        length += 1;
    }
    (bytes, length)
}

/// How many spans an `ExportTraceServiceResponse` says were not taken; `None`: it is none.
pub(super) fn rejected(response: &[u8]) -> Option<u64> {
    let mut rejected = 0;
    let mut rest = response;
    while !rest.is_empty() {
        let (field, value) = field(&mut rest)?;
        if let (1, Value::Bytes(mut partial)) = (field, value) {
            while !partial.is_empty() {
                if let (1, Value::Number(count)) = self::field(&mut partial)? {
                    rejected = count;
                }
            }
        }
    }
    Some(rejected)
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = read_varint(rest)?;
    let mut take = |length: usize| {
        let (taken, left) = rest.split_at_checked(length)?;
        *rest = left;
        Some(taken)
    };
    let value = match u32::try_from(tag & 7) {
        Ok(FIXED64) => take(8).map(|_| Value::Other),
        Ok(FIXED32) => take(4).map(|_| Value::Other),
        Ok(VARINT) => read_varint(rest).map(Value::Number),
        Ok(LENGTH) => {
            let length = usize::try_from(read_varint(rest)?).ok()?;
            let (bytes, left) = rest.split_at_checked(length)?;
            *rest = left;
            Some(Value::Bytes(bytes))
        }
        _ => None,
    };
    Some((tag >> 3, value?))
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests;
