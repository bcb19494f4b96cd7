//! Access lines: one a request, on the queue of the logs.
//!
//! A line has `time`, `level` (info), `msg` ("request"), `method`, `route` (`""`: none), `outcome`, and, where they are
//! known, `status`, `record` (16 hexadecimal digits), `trace` (32), `took_ms`, `upstream_ms`, `request_bytes`, `response_bytes`. There is no
//! path, no query, no address, no key, no credential: nothing that a client chooses but a method from a closed list, and the digits of a trace.
//! It costs well under a microsecond and, once its thread's buffer has grown, no allocation.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};

use super::{
    log::{
        AccessLines, LineFormat, LineKind, LineWriter, LogGuard,
        line::{now, push_json, push_ms, push_padded, push_time, push_word, with_buffer},
    },
    metrics::Outcome,
};
use crate::core::{policy::RouteName, record::ShortId, time::Timestamp, trace::TraceId};

/// Writes access lines, or does nothing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AccessLog(Option<Arc<Target>>);

#[derive(Debug)]
struct Target {
    writer: LineWriter,
    format: LineFormat,
    /// Route names as lines have them, by index.
    routes: Vec<Box<[u8]>>,
    /// The name of no route.
    unrouted: Box<[u8]>,
}

/// What is said of one request.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Its method; one that HTTP does not name is written as `other`.
    pub method: &'a Method,
    /// Its route's index in the configuration; `None`: no route.
    pub route: Option<usize>,
    /// How it ended.
    pub outcome: Outcome,
    /// What it was answered with; `None` where the client went away before.
    pub status: Option<StatusCode>,
    /// The record that it met.
    pub record: Option<ShortId>,
    /// The trace that it belongs to: the client's, or the one that was started for it.
    pub trace: Option<TraceId>,
    /// From its head until its answer can start.
    pub took: Duration,
    /// How long its upstream call took, where it waited for one.
    pub upstream: Option<Duration>,
    /// Bytes of its body, where they were counted.
    pub request_bytes: Option<u64>,
    /// Bytes of the answer's body, where they were counted.
    pub response_bytes: Option<u64>,
}

impl AccessLog {
    /// Access lines into these logs, for these routes in the order of the configuration. It does nothing where the
    /// logs' filter does not let [`super::log::ACCESS_TARGET`] through at info.
    #[must_use]
    pub fn new(log: &LogGuard, routes: &[RouteName]) -> Self {
        match log.access() {
            AccessLines::Filtered => Self::off(),
            AccessLines::Pass => Self(Some(Arc::new(Target::new(
                log.writer(),
                log.format(),
                routes,
            )))),
        }
    }

    /// The same lines for the routes of another configuration.
    #[must_use]
    pub fn for_routes(&self, routes: &[RouteName]) -> Self {
        let target = self.0.as_ref();
        Self(
            target
                .map(|target| Arc::new(Target::new(target.writer.clone(), target.format, routes))),
        )
    }

    /// No access lines: `access_log = false`.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Whether [`AccessLog::line`] does anything, for those who would only count bytes for it.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Writes the line of a request that has ended. Never waits; a line for which there is no room is counted as
    /// dropped.
    pub fn line(&self, line: &Line<'_>) {
        let Some(target) = &self.0 else {
            return;
        };
        with_buffer(|buffer| {
            target.format(buffer, line, now());
            target.writer.push(buffer, LineKind::Access);
        });
    }
}

impl Target {
    fn new(writer: LineWriter, format: LineFormat, routes: &[RouteName]) -> Self {
        let escaped = |name: &str| {
            let mut bytes = Vec::new();
            match format {
                LineFormat::Text => push_word(&mut bytes, name),
                LineFormat::Json => push_json(&mut bytes, name),
            }
            bytes.into_boxed_slice()
        };
        Self {
            writer,
            format,
            routes: routes.iter().map(|route| escaped(route.as_str())).collect(),
            unrouted: escaped(""),
        }
    }

    fn format(&self, buffer: &mut Vec<u8>, line: &Line<'_>, at: Timestamp) {
        let names = match self.format {
            LineFormat::Text => &TEXT,
            LineFormat::Json => &JSON,
        };
        buffer.extend_from_slice(names.start.as_bytes());
        push_time(buffer, at);
        word(
            buffer,
            names,
            names.method,
            method_name(line.method).as_bytes(),
        );
        buffer.extend_from_slice(names.route.as_bytes());
        let route = line.route.and_then(|index| self.routes.get(index));
        buffer.extend_from_slice(route.unwrap_or(&self.unrouted));
        word(
            buffer,
            names,
            names.outcome,
            line.outcome.as_str().as_bytes(),
        );
        if let Some(status) = line.status {
            decimal(buffer, names.status, u64::from(status.as_u16()));
        }
        if let Some(record) = line.record {
            word(buffer, names, names.record, &record.digits());
        }
        if let Some(trace) = line.trace {
            word(buffer, names, names.trace, trace.digits());
        }
        buffer.extend_from_slice(names.took.as_bytes());
        push_ms(buffer, line.took);
        if let Some(upstream) = line.upstream {
            buffer.extend_from_slice(names.upstream.as_bytes());
            push_ms(buffer, upstream);
        }
        if let Some(bytes) = line.request_bytes {
            decimal(buffer, names.request_bytes, bytes);
        }
        if let Some(bytes) = line.response_bytes {
            decimal(buffer, names.response_bytes, bytes);
        }
        buffer.extend_from_slice(names.end.as_bytes());
    }
}

/// What stands between the values of a line. Names of words end with the quote that opens their value.
struct Names {
    start: &'static str,
    method: &'static str,
    route: &'static str,
    outcome: &'static str,
    status: &'static str,
    record: &'static str,
    trace: &'static str,
    took: &'static str,
    upstream: &'static str,
    request_bytes: &'static str,
    response_bytes: &'static str,
    end: &'static str,
    /// Behind a word, where there is one before it.
    quote: Option<u8>,
}

const TEXT: Names = Names {
    start: "",
    method: "  INFO idem_proxy::access: request method=",
    route: " route=",
    outcome: " outcome=",
    status: " status=",
    record: " record=",
    trace: " trace=",
    took: " took_ms=",
    upstream: " upstream_ms=",
    request_bytes: " request_bytes=",
    response_bytes: " response_bytes=",
    end: "\n",
    quote: None,
};

const JSON: Names = Names {
    start: r#"{"time":""#,
    method: r#"","level":"info","target":"idem_proxy::access","msg":"request","method":""#,
    route: r#","route":"#,
    outcome: r#","outcome":""#,
    status: r#","status":"#,
    record: r#","record":""#,
    trace: r#","trace":""#,
    took: r#","took_ms":"#,
    upstream: r#","upstream_ms":"#,
    request_bytes: r#","request_bytes":"#,
    response_bytes: r#","response_bytes":"#,
    end: "}\n",
    quote: Some(b'"'),
};

fn word(buffer: &mut Vec<u8>, names: &Names, before: &str, value: &[u8]) {
    buffer.extend_from_slice(before.as_bytes());
    buffer.extend_from_slice(value);
    buffer.extend(names.quote);
}

fn decimal(buffer: &mut Vec<u8>, before: &str, value: u64) {
    buffer.extend_from_slice(before.as_bytes());
    push_padded(buffer, value, 1);
}

/// The methods of RFC 9110, section 9.3, and RFC 5789; a client can make up any other.
pub(super) fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::{
        core::{record::RecordId, trace::Trace},
        telemetry::log::{start, tests::Sink},
    };

    fn target(format: LineFormat) -> Target {
        let (_, log) = start(format, "info", None, Sink::default()).unwrap();
        let routes = [
            RouteName::new("orders"),
            RouteName::new("a \"b\"\n\u{1b}[31m=c"),
        ];
        Target::new(log.writer(), format, &routes)
    }

    fn formatted(format: LineFormat, line: &Line<'_>) -> String {
        let mut buffer = Vec::new();
        target(format).format(&mut buffer, line, Timestamp::from_millis(1_796_065_053_120));
        String::from_utf8(buffer).unwrap()
    }

    fn full(method: &Method) -> Line<'_> {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&0x0123_4567_89ab_cdef_u64.to_be_bytes());
        Line {
            method,
            route: Some(0),
            outcome: Outcome::Miss,
            status: Some(StatusCode::CREATED),
            record: Some(RecordId::from_bytes(id).short()),
            trace: Some(Trace::of(&HeaderMap::new(), || [0xfeed, 0xbeef, 1]).id()),
            took: Duration::from_micros(12_345),
            upstream: Some(Duration::from_micros(11_001)),
            request_bytes: Some(300),
            response_bytes: Some(0),
        }
    }

    fn scant(method: &Method) -> Line<'_> {
        Line {
            method,
            route: None,
            outcome: Outcome::Passthrough,
            status: None,
            record: None,
            trace: None,
            took: Duration::from_nanos(10),
            upstream: None,
            request_bytes: None,
            response_bytes: None,
        }
    }

    #[test]
    fn text_lines_read_so() {
        assert_eq!(
            formatted(LineFormat::Text, &full(&Method::POST)),
            "2026-11-30T18:57:33.120Z  INFO idem_proxy::access: request method=POST route=orders outcome=miss \
             status=201 record=0123456789abcdef trace=000000000000feed000000000000beef took_ms=12.345 upstream_ms=11.001 request_bytes=300 response_bytes=0\n"
        );
        assert_eq!(
            formatted(LineFormat::Text, &scant(&Method::GET)),
            "2026-11-30T18:57:33.120Z  INFO idem_proxy::access: request method=GET route=\"\" outcome=passthrough \
             took_ms=0.000\n"
        );
    }

    #[test]
    fn json_lines_are_json() {
        let line = formatted(LineFormat::Json, &full(&Method::POST));
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            read,
            serde_json::json!({
                "time": "2026-11-30T18:57:33.120Z", "level": "info", "target": "idem_proxy::access", "msg": "request",
                "method": "POST", "route": "orders", "outcome": "miss", "status": 201, "record": "0123456789abcdef",
                "trace": "000000000000feed000000000000beef",
                "took_ms": 12.345, "upstream_ms": 11.001, "request_bytes": 300, "response_bytes": 0,
            })
        );
        let line = formatted(LineFormat::Json, &scant(&Method::GET));
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["route"], "");
        assert_eq!(read.as_object().unwrap().len(), 8, "{line}");
    }

    #[test]
    fn no_name_breaks_out_of_its_line() {
        for format in [LineFormat::Text, LineFormat::Json] {
            let line = formatted(
                format,
                &Line {
                    route: Some(1),
                    ..full(&Method::POST)
                },
            );
            let inner = line.strip_suffix('\n').unwrap();
            assert!(!inner.chars().any(char::is_control), "{inner:?}");
            if format == LineFormat::Json {
                let read: serde_json::Value = serde_json::from_str(inner).unwrap();
                assert_eq!(read["route"], "a \"b\"\n\u{1b}[31m=c");
            }
        }
    }

    #[test]
    fn a_method_that_a_client_made_up_is_not_shown() {
        let method = Method::from_bytes(b"SECRET-4242").unwrap();
        let line = formatted(LineFormat::Text, &full(&method));
        assert!(line.contains(" method=other "), "{line}");
    }

    #[test]
    fn lines_are_written_where_the_filter_lets_them_through() {
        for (filter, expected) in [
            ("info", 1),
            ("warn,idem_proxy::access=info", 1),
            ("warn", 0),
            ("debug,idem_proxy::access=off", 0),
        ] {
            let sink = Sink::default();
            let (_, log) = start(LineFormat::Json, filter, None, sink.clone()).unwrap();
            let access = AccessLog::new(&log, &[RouteName::new("orders")]);
            assert_eq!(access.is_on(), expected == 1, "{filter}");
            access.line(&full(&Method::POST));
            drop(log);
            assert_eq!(sink.lines().len(), expected, "{filter}");
        }
        AccessLog::off().line(&full(&Method::POST));
    }

    /// `cargo test --lib -- --ignored --nocapture cost_of_a_line`
    #[test]
    #[ignore = "a measurement, not a test"]
    fn cost_of_a_line() {
        let (_, log) = start(LineFormat::Json, "info", None, std::io::sink()).unwrap();
        let access = AccessLog::new(&log, &[RouteName::new("orders")]);
        let line = full(&Method::POST);
        let lines = 1_000_000;
        let start = std::time::Instant::now();
        for _ in 0..lines {
            access.line(&line);
        }
        let took = start.elapsed();
        println!(
            "{:?} a line, {} dropped",
            took / lines,
            log.writer().dropped()
        );
    }
}
