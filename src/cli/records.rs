//! `idem-proxy records`: what a running proxy remembers, seen and settled by hand, through its admin API.
//!
//! Exit statuses: 0 done; 1 nobody answers, or the proxy refuses; 2 the command line or the configuration is wrong; 3 nothing fits: no
//! record has this id, or is on the list. What was asked for goes to the standard output stream, everything else to the other one.

mod table;
mod words;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use http::{Method, StatusCode};
use serde_json::{Value, json};

pub(super) use self::words::Words;
use super::{
    Admin, Exit,
    client::{Answer, Client, Question},
    refuse,
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `list`
    List {
        /// `--state`: as the API spells it.
        state: Option<String>,
        /// `--route`
        route: Option<String>,
        /// `--limit`
        limit: Option<u16>,
        /// `--after`: where the page begins, as the page before said.
        after: Option<String>,
        /// `--json`
        format: Format,
    },
    /// `show ID`
    Show {
        /// All of its digits, or the first 16 or more.
        id: String,
        /// `--json`
        format: Format,
    },
    /// `purge ID`
    Purge {
        /// As for [`Action::Show`].
        id: String,
    },
    /// `resolve ID`
    Resolve {
        /// As for [`Action::Show`].
        id: String,
        /// What the outcome is.
        resolution: Resolution,
    },
}

/// How records are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// As the API has it.
    Json,
}

/// What an unknown outcome is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// `--outcome release`: nothing was executed.
    Release,
    /// `--outcome complete`: this is the answer.
    Complete {
        /// `--status`
        status: u16,
        /// `--header`: names and values.
        headers: Vec<(String, String)>,
        /// What is in the file of `--body-file`.
        body: String,
    },
}

/// Asks the proxy at `admin`. What there is to say goes to the standard streams.
#[must_use]
pub fn run(admin: &Admin, action: &Action) -> Exit {
    let client = match Client::of(admin) {
        Ok(client) => client,
        Err(why) => return refuse(why),
    };
    let said = match client.ask(&question(action).within(PATIENCE)) {
        Ok(answer) => say(action, &answer),
        Err(why) => Said::failed(format!("{why:#}")),
    };
    // Where nobody can be told, the exit status still says it.
    if !said.out.is_empty() {
        let _ = io::stdout().lock().write_all(said.out.as_bytes());
    }
    if !said.err.is_empty() {
        let _ = writeln!(io::stderr().lock(), "idem-proxy records: {}", said.err);
    }
    said.exit
}

/// The API's words for an action.
fn question(action: &Action) -> Question {
    let path = "/api/v1/records";
    match action {
        Action::List {
            state,
            route,
            limit,
            after,
            ..
        } => {
            let limit = limit.map(|limit| limit.to_string());
            let pairs = [
                ("state", state.as_ref()),
                ("route", route.as_ref()),
                ("limit", limit.as_ref()),
                ("after", after.as_ref()),
            ];
            let pairs: Vec<String> = pairs
                .into_iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", encoded(value?))))
                .collect();
            let question = if pairs.is_empty() { "" } else { "?" };
            Question::new(Method::GET, format!("{path}{question}{}", pairs.join("&")))
        }
        Action::Show { id, .. } => Question::new(Method::GET, format!("{path}/{id}")),
        Action::Purge { id } => Question::new(Method::DELETE, format!("{path}/{id}")),
        Action::Resolve { id, resolution } => {
            Question::new(Method::POST, format!("{path}/{id}/resolve"))
                .with_json(document(resolution))
        }
    }
}

/// Percent-encoded, but for what needs it nowhere (RFC 3986, section 2.3).
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            all.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(all, "%{byte:02X}");
        }
        all
    })
}

fn document(resolution: &Resolution) -> String {
    match resolution {
        Resolution::Release => json!({"outcome": "release"}).to_string(),
        Resolution::Complete {
            status,
            headers,
            body,
        } => {
            let mut lines = serde_json::Map::new();
            for (name, value) in headers {
                let own = lines.entry(name.clone()).or_insert_with(|| json!([]));
                if let Some(values) = own.as_array_mut() {
                    values.push(value.as_str().into());
                }
            }
            json!({"outcome": "complete", "status": status, "headers": lines, "body": body})
                .to_string()
        }
    }
}

/// What is said, and how the process ends.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    out: String,
    err: String,
    exit: Exit,
}

impl Said {
    fn done(out: String) -> Self {
        Self {
            out,
            err: String::new(),
            exit: Exit::Done,
        }
    }

    fn failed(err: String) -> Self {
        Self {
            out: String::new(),
            err,
            exit: Exit::Failed,
        }
    }
}

/// Says what the proxy answered.
fn say(action: &Action, answer: &Answer) -> Said {
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if answer.status == StatusCode::NO_CONTENT
        && let Action::Purge { id } = action
    {
        return Said::done(format!(
            "purged {id}: the next request with its key is executed\n"
        ));
    }
    if answer.status != StatusCode::OK {
        return refusal(answer.status, &document);
    }
    match action {
        Action::List { format, .. } => list(&document, answer, *format),
        Action::Show {
            format: Format::Json,
            ..
        } => Said::done(line(answer)),
        Action::Show {
            format: Format::Text,
            ..
        } => Said::done(table::record(&document)),
        Action::Resolve { id, resolution } => Said::done(match resolution {
            Resolution::Release => {
                format!("released {id}: the next request with its key is executed\n")
            }
            Resolution::Complete { status, .. } => {
                format!("completed {id}: its retries get this answer, {status}\n")
            }
        }),
        // It is answered by 204 alone.
        Action::Purge { .. } => refusal(answer.status, &document),
    }
}

fn list(document: &Value, answer: &Answer, format: Format) -> Said {
    let rows = document.get("records").and_then(Value::as_array);
    let Some(rows) = rows else {
        return Said::failed("what answers is no admin API of idem-proxy".into());
    };
    let out = match format {
        Format::Json => line(answer),
        Format::Text if rows.is_empty() => String::new(),
        Format::Text => table::list(rows),
    };
    let next = document.get("next").and_then(Value::as_str);
    let err = match (next, format) {
        _ if rows.is_empty() => "no record fits".to_owned(),
        (Some(next), Format::Text) => format!("there are more: --after {next}"),
        _ => String::new(),
    };
    let exit = if rows.is_empty() {
        Exit::Nothing
    } else {
        Exit::Done
    };
    Said { out, err, exit }
}

/// The API's own document, as it came.
fn line(answer: &Answer) -> String {
    format!("{}\n", String::from_utf8_lossy(&answer.body))
}

fn refusal(status: StatusCode, document: &Value) -> Said {
    let detail = document.get("detail").and_then(Value::as_str);
    let said = detail.unwrap_or("the proxy does not serve this");
    let mut said = Said::failed(format!("{said} ({status})"));
    // Without a sentence of its own it is the path that was not found.
    if status == StatusCode::NOT_FOUND && detail.is_some() {
        said.exit = Exit::Nothing;
    }
    said
}

#[cfg(test)]
mod tests;
