//! Logs: one line an event, on one bounded queue to one thread that writes.
//!
//! Whoever logs formats the line in a buffer of its own thread, appends it to the queue under a short lock, and
//! goes on: nobody but the writer thread ever waits for the sink. A line that finds the queue full is dropped and
//! counted. Where the sink keeps up, what the proxy has to say shows within 20 ms, and access lines within 100 ms.
//!
//! Text: `2026-11-30T18:57:33.123Z  INFO idem_proxy::server: listening address=127.0.0.1:8080`.
//! JSON: `{"time":"…","level":"info","target":"…","msg":"…", fields…}`. Control characters are escaped in both, so
//! that no value makes a line of its own.

mod layer;
pub(super) mod line;
#[cfg(test)]
pub(super) mod tests;
mod writer;

use std::io::{self, IsTerminal, Write};

use tracing::{Dispatch, Level, dispatcher, level_filters::LevelFilter};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _};

use self::layer::LineLayer;
pub use self::line::rfc3339;
pub(super) use self::writer::LineKind;
pub use self::writer::LineWriter;
use crate::config::LogFormat;

/// The target of access lines: `log_level = "info,idem_proxy::access=off"` silences them.
pub const ACCESS_TARGET: &str = "idem_proxy::access";

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LineFormat {
    /// What `log_format` means for this sink.
    #[must_use]
    pub fn new(format: LogFormat, sink: &impl IsTerminal) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Auto if sink.is_terminal() => Self::Text,
            LogFormat::Json | LogFormat::Auto => Self::Json,
        }
    }
}

/// Whether access lines pass the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessLines {
    Pass,
    Filtered,
}

/// The logs of this process while it lives. Dropping it writes out what is queued, for 2 s at most; what is logged
/// afterwards is dropped and counted. `main` holds it to its end, for `std::process::exit` drops nothing.
#[derive(Debug)]
#[must_use = "dropping it ends the logs"]
pub struct LogGuard {
    writer: LineWriter,
    format: LineFormat,
    access: AccessLines,
}

impl LogGuard {
    /// The queue, for those who count what it drops.
    #[must_use]
    pub fn writer(&self) -> LineWriter {
        self.writer.clone()
    }

    pub(super) fn format(&self) -> LineFormat {
        self.format
    }

    pub(super) fn access(&self) -> AccessLines {
        self.access
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.writer.close();
    }
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `telemetry.log_level` or `RUST_LOG` cannot be read.
    #[error("{origin}: {error}")]
    Filter {
        /// Which of the two.
        origin: &'static str,
        /// What is wrong with it.
        error: FilterError,
    },
    /// The writer thread could not be started.
    #[error("the log thread could not be started: {0}")]
    Thread(#[from] io::Error),
    /// Logs are set up once in a process.
    #[error("logs are set up already")]
    SetUpAlready,
}

/// A filter that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no log filter: {reason}; allowed: off, error, warn, info, debug, trace, and target=level, joined by commas without spaces"
)]
pub struct FilterError {
    text: String,
    reason: String,
}

/// Whether `log_level` could be used: a level, and levels by target (`warn,hyper=debug`). Filters by span are
/// refused, for lines do not show spans.
///
/// `tracing` would take a word that is no level for a target whose every event is wanted, so that a misspelt level
/// would silence everything else. Here a target needs its level.
pub fn check_filter(text: &str) -> Result<(), FilterError> {
    filter(text).map(drop)
}

fn filter(text: &str) -> Result<EnvFilter, FilterError> {
    let refused = |reason: String| FilterError {
        text: text.to_owned(),
        reason,
    };
    for directive in text.split(',') {
        let level = match directive.split_once('=') {
            None => directive,
            Some((target, level)) if is_target(target) => level,
            Some((target, _)) => return Err(refused(format!("`{target}` is no target"))),
        };
        // An empty one would be read as `error`.
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(refused(format!("`{level}` is no level")));
        }
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| refused(error.to_string()))
}

/// Whether this can be the path of a module.
fn is_target(text: &str) -> bool {
    let of_a_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':');
    !text.is_empty() && text.chars().all(of_a_path)
}

/// Sets up this process's logs: once, before anything is logged. They go to `sink`, filtered by `rust_log` (the
/// environment's `RUST_LOG`; unset and empty are the same), else by `level`.
pub fn init<W>(
    format: LogFormat,
    level: &str,
    rust_log: Option<&str>,
    sink: W,
) -> Result<LogGuard, LogError>
where
    W: Write + IsTerminal + Send + 'static,
{
    let format = LineFormat::new(format, &sink);
    let (dispatch, guard) = start(format, level, rust_log, sink)?;
    dispatcher::set_global_default(dispatch).map_err(|_| LogError::SetUpAlready)?;
    Ok(guard)
}

/// [`init`] without making it the process's.
pub(super) fn start<W>(
    format: LineFormat,
    level: &str,
    rust_log: Option<&str>,
    sink: W,
) -> Result<(Dispatch, LogGuard), LogError>
where
    W: Write + Send + 'static,
{
    let (origin, text) = match rust_log {
        Some(text) if !text.is_empty() => ("RUST_LOG", text),
        _ => ("telemetry.log_level", level),
    };
    let filter = filter(text).map_err(|error| LogError::Filter { origin, error })?;
    let writer = LineWriter::start(sink)?;
    let layer = LineLayer::new(format, writer.clone());
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(filter).with(layer));
    let access = dispatcher::with_default(&dispatch, || {
        if tracing::enabled!(target: ACCESS_TARGET, Level::INFO) {
            AccessLines::Pass
        } else {
            AccessLines::Filtered
        }
    });
    let guard = LogGuard {
        writer,
        format,
        access,
    };
    Ok((dispatch, guard))
}
