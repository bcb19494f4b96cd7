//! `idem-proxy drain`: asks a running proxy to drain, and returns when that is done.
//!
//! The proxy is asked by `POST /api/v1/drain` on its admin listener. It answers when what runs has finished, or when `drain_timeout` has
//! passed; that is waited for without a limit, for whoever runs the command has one.

use std::io::{self, Write as _};

use anyhow::{Context as _, bail};
use http::{Method, StatusCode};

use super::{
    Admin, Exit,
    client::{Client, Question},
    refuse,
};

/// Asks the proxy at `admin` to drain. What there is to say goes to the standard streams.
#[must_use]
pub fn run(admin: &Admin) -> Exit {
    let client = match Client::of(admin) {
        Ok(client) => client,
        Err(why) => return refuse(why),
    };
    // Where nobody can be told, the exit status still says it.
    match ask(client) {
        Ok(()) => {
            let _ = writeln!(io::stdout().lock(), "drained");
            Exit::Done
        }
        Err(why) => {
            let _ = writeln!(io::stderr().lock(), "idem-proxy drain: {why:#}");
            Exit::Failed
        }
    }
}

fn ask(client: Client) -> anyhow::Result<()> {
    let question = Question::new(Method::POST, "/api/v1/drain");
    let told = client.ask(&question);
    let answer = told.context("the proxy was not drained")?;
    if answer.status == StatusCode::OK {
        return Ok(());
    }
    bail!("{}", refusal(answer.status, &answer.body))
}

/// What an answer that is no success says.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let document: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = document.get("detail").and_then(|detail| detail.as_str());
    let detail = detail.unwrap_or("the proxy does not drain");
    let mut said = vec![format!("{detail} ({status})")];
    if let Some(connections) = document.get("connections") {
        said.push(format!("  connections that are left: {connections}"));
    }
    if let Some(tasks) = document.get("tasks") {
        said.push(format!("  tasks behind them that are left: {tasks}"));
    }
    for (list, what) in [
        ("executions", "still runs"),
        ("unsaved", "is not saved yet"),
    ] {
        let records = document.get(list).and_then(|list| list.as_array());
        for record in records.into_iter().flatten() {
            said.push(format!("  {what}: {record}"));
        }
    }
    said.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_left() {
        let body = br#"{"detail":"Late.","executions":["00ff"],"unsaved":["00fe"],"connections":2,"tasks":1}"#;
        let said = refusal(StatusCode::SERVICE_UNAVAILABLE, body);
        assert_eq!(
            said,
            "Late. (503 Service Unavailable)\n  connections that are left: 2\n  tasks behind them that are left: 1\n  still runs: \"00ff\"\n  is not saved yet: \"00fe\""
        );
        let said = refusal(StatusCode::NOT_FOUND, b"what?");
        assert_eq!(said, "the proxy does not drain (404 Not Found)");
    }
}
