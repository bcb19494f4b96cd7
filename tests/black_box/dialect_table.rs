//! The tables of `docs/dialects.md`, played: every cell is what the running proxy does.
//!
//! A cell is one answer, or several with `→` between them: a status, then `new` (executed for this request), `again` (the stored
//! answer), `shared` (that of the running call), `open` (executed, and not protected) or `told` (what the upstream said when it
//! was asked before a replay), or else the code of one of the proxy's own errors; then the marker's value, and when to come back.

mod document;
mod play;

use crate::common::{Answer, problem, retry_after};
use document::{Dialect, Expected, Said};
use play::Play;

/// Where any dialect might mark its answers.
const MARKERS: [&str; 2] = ["Idempotency-Key-Reply", "Idempotent-Replayed"];

/// What the upstream's answers carry beside what describes their bodies.
const BESIDE: [&str; 3] = ["Location", "ETag", "X-Execution"];

/// One answer, and how it came to be.
#[derive(Debug)]
struct Told {
    answer: Answer,
    /// How many requests the upstream got for it.
    executed: usize,
}

/// Plays every row of one dialect's column.
fn column(name: &str) {
    let dialect = Dialect::read(name);
    let play = Play::start(&dialect);
    for (case, expected) in &dialect.cells {
        eprintln!("{name}: {case}");
        let (mut first, told) = play.row(case, expected);
        assert_eq!(told.len(), expected.len(), "{name}: {case}");
        // Only an empty key is let through, and that row is sent twice to see it.
        let open = case == "an empty key" && told.iter().any(|told| told.answer.status == 201);
        let said = expected.iter().any(|answer| answer.said == Said::Open);
        assert_eq!(said, open, "{name}: {case}");
        for (told, expected) in told.into_iter().zip(expected) {
            judge(&dialect, &told, expected, first.as_ref());
            first = first.or(Some(told.answer));
        }
    }
}

/// Whether an answer is what its cell says; `first`: the answer that it would repeat.
#[track_caller]
fn judge(dialect: &Dialect, told: &Told, expected: &Expected, first: Option<&Answer>) {
    let answer = &told.answer;
    assert_eq!(answer.status, expected.status, "{expected:?}: {answer}");
    let marker = |name: &str| answer.one(name).map(str::to_owned);
    for name in MARKERS {
        let own = dialect.marker.as_deref() == Some(name);
        let wanted = expected.marker.clone().filter(|_| own);
        assert_eq!(marker(name), wanted, "{expected:?}: {answer}");
    }
    let executions = match expected.said {
        Said::New | Said::Open | Said::Told => 1,
        Said::Again | Said::Shared => 0,
        // What was sent and not answered is an execution all the same; the row knows which it is.
        Said::Code(_) => usize::from(matches!(answer.status, 502 | 504)).min(told.executed),
    };
    assert_eq!(told.executed, executions, "{expected:?}: {answer}");
    match &expected.said {
        Said::New | Said::Open | Said::Told => {
            assert!(answer.one("X-Execution").is_some(), "{answer}");
        }
        Said::Again | Said::Shared => repeats(dialect, answer, first.expect("a first answer")),
        Said::Code(codes) => {
            refuses(dialect, answer, codes, expected.retryable);
            match expected.wait {
                Some(most) if expected.about => {
                    assert!((most / 2..=most).contains(&retry_after(answer)), "{answer}");
                }
                Some(seconds) => assert_eq!(retry_after(answer), seconds, "{answer}"),
                None => assert_eq!(answer.one("Retry-After"), None, "{answer}"),
            }
        }
    }
}

/// The first answer again: its status and body, and as much of its head as the dialect repeats.
#[track_caller]
fn repeats(dialect: &Dialect, answer: &Answer, first: &Answer) {
    assert_eq!(answer.status, first.status, "{answer}");
    assert!(answer.body == first.body, "{answer}\n{first}");
    assert_eq!(answer.all("Content-Type"), first.all("Content-Type"));
    assert_eq!(answer.one("Set-Cookie"), None, "{answer}");
    assert!(first.one("X-Execution").is_some(), "{first}");
    for name in BESIDE {
        let wanted = if dialect.whole_head {
            first.all(name)
        } else {
            vec![]
        };
        assert_eq!(answer.all(name), wanted, "{name}: {answer}");
    }
}

/// An error of the proxy's own with these codes, in the dialect's shape.
#[track_caller]
fn refuses(dialect: &Dialect, answer: &Answer, codes: &[String], retryable: bool) {
    let media_type = Some(dialect.errors.as_str());
    assert_eq!(answer.one("Content-Type"), media_type, "{answer}");
    assert_eq!(answer.one("Cache-Control"), Some("no-store"), "{answer}");
    let told: Vec<String> = match dialect.errors.as_str() {
        "application/problem+json" => {
            problem(answer, &codes[0]);
            return;
        }
        "text/xml" => {
            let body = String::from_utf8_lossy(&answer.body);
            let code = body
                .split_once("<Code>")
                .and_then(|(_, rest)| rest.split_once("</Code>"));
            code.into_iter().map(|(code, _)| code.to_owned()).collect()
        }
        _ => {
            let document = answer.json();
            let error = &document["error"];
            let members = if error.is_object() {
                vec![error["type"].clone(), error["code"].clone()]
            } else {
                assert_eq!(document["retryable"], retryable, "{answer}");
                vec![document["code"].clone()]
            };
            let text = |member: &serde_json::Value| member.as_str().map(str::to_owned);
            members.iter().filter_map(text).collect()
        }
    };
    assert_eq!(told, codes, "{answer}");
}

#[test]
fn standard_does_what_its_column_says() {
    column("standard");
}

#[test]
fn ietf_does_what_its_column_says() {
    column("ietf");
}

#[test]
fn iri_does_what_its_column_says() {
    column("iri");
}

#[test]
fn single_flight_does_what_its_column_says() {
    column("single-flight");
}

#[test]
fn platform_does_what_its_column_says() {
    column("platform");
}

#[test]
fn stripe_v1_does_what_its_column_says() {
    column("stripe-v1");
}

#[test]
fn stripe_v2_does_what_its_column_says() {
    column("stripe-v2");
}

#[test]
fn aws_does_what_its_column_says() {
    column("aws");
}

#[test]
fn every_dialect_has_a_column_of_its_own() {
    assert_eq!(
        document::columns(),
        [
            "standard",
            "ietf",
            "iri",
            "single-flight",
            "platform",
            "stripe-v1",
            "stripe-v2",
            "aws"
        ]
    );
}
