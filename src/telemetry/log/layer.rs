//! Events of `tracing` as lines. Spans are not shown: the house logs events that say everything themselves.

use std::fmt::{self, Write as _};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use super::{
    LineFormat,
    line::{now, push_json, push_message, push_time, push_word, with_buffer},
    writer::{LineKind, LineWriter},
};

/// Writes every event that reaches it as a line.
#[derive(Debug)]
pub(super) struct LineLayer {
    format: LineFormat,
    writer: LineWriter,
}

impl LineLayer {
    pub(super) fn new(format: LineFormat, writer: LineWriter) -> Self {
        Self { format, writer }
    }
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        with_buffer(|line| {
            match self.format {
                LineFormat::Text => text(line, event),
                LineFormat::Json => json(line, event),
            }
            self.writer.push(line, LineKind::Event);
        });
    }
}

fn text(line: &mut Vec<u8>, event: &Event<'_>) {
    let metadata = event.metadata();
    push_time(line, now());
    line.extend_from_slice(match *metadata.level() {
        Level::ERROR => b" ERROR ".as_slice(),
        Level::WARN => b"  WARN ",
        Level::INFO => b"  INFO ",
        Level::DEBUG => b" DEBUG ",
        Level::TRACE => b" TRACE ",
    });
    push_message(line, metadata.target());
    line.push(b':');
    event.record(&mut Fields::new(line, Part::TextMessage));
    event.record(&mut Fields::new(line, Part::TextFields));
    line.push(b'\n');
}

fn json(line: &mut Vec<u8>, event: &Event<'_>) {
    let metadata = event.metadata();
    line.extend_from_slice(b"{\"time\":\"");
    push_time(line, now());
    line.extend_from_slice(b"\",\"level\":\"");
    line.extend_from_slice(match *metadata.level() {
        Level::ERROR => b"error".as_slice(),
        Level::WARN => b"warn",
        Level::INFO => b"info",
        Level::DEBUG => b"debug",
        Level::TRACE => b"trace",
    });
    line.extend_from_slice(b"\",\"target\":");
    push_json(line, metadata.target());
    event.record(&mut Fields::new(line, Part::Json));
    line.extend_from_slice(b"}\n");
}

/// What of an event's fields is appended.
#[derive(Clone, Copy)]
enum Part {
    TextMessage,
    TextFields,
    Json,
}

struct Fields<'a> {
    line: &'a mut Vec<u8>,
    part: Part,
    /// What a value prints, before it is escaped.
    printed: String,
}

impl<'a> Fields<'a> {
    fn new(line: &'a mut Vec<u8>, part: Part) -> Self {
        Self {
            line,
            part,
            printed: String::new(),
        }
    }

    fn text(&mut self, field: &Field, value: &str) {
        match (self.part, field.name()) {
            (Part::TextMessage, "message") => {
                self.line.push(b' ');
                push_message(self.line, value);
            }
            (Part::TextMessage, _) | (Part::TextFields, "message") => {}
            (Part::TextFields, name) => {
                self.line.push(b' ');
                push_word(self.line, name);
                self.line.push(b'=');
                push_word(self.line, value);
            }
            (Part::Json, name) => {
                self.json_name(name);
                push_json(self.line, value);
            }
        }
    }

    /// A value that JSON has a spelling for without quotes.
    fn bare(&mut self, field: &Field, value: impl fmt::Display) {
        let mut printed = std::mem::take(&mut self.printed);
        printed.clear();
        if write!(printed, "{value}").is_ok() {
            match self.part {
                Part::Json => {
                    self.json_name(field.name());
                    self.line.extend_from_slice(printed.as_bytes());
                }
                Part::TextMessage | Part::TextFields => self.text(field, &printed),
            }
        }
        self.printed = printed;
    }

    /// A name that the line itself uses is set apart, so that no member stands twice.
    fn json_name(&mut self, name: &str) {
        let name = match name {
            "message" => "msg",
            "time" => "field.time",
            "level" => "field.level",
            "target" => "field.target",
            "msg" => "field.msg",
            other => other,
        };
        self.line.push(b',');
        push_json(self.line, name);
        self.line.push(b':');
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut printed = std::mem::take(&mut self.printed);
        printed.clear();
        if write!(printed, "{value:?}").is_err() {
            printed.push('…'); // its own Debug failed in the middle
        }
        self.text(field, &printed);
        self.printed = printed;
    }
}
