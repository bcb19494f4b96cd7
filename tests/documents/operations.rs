//! docs/operations.md: every problem, label, log field and event is spelt as the code spells it.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use http::{HeaderMap, Method, StatusCode};
use idem_proxy::{
    config::{self, LogFormat},
    core::{
        claims::TokenFault,
        policy::{Carrier, ErrorShape, Errors, RouteName},
        problem::{KeyFault, KeyRefused, Problem},
        record::RecordId,
        trace::Trace,
        transition::HoldLeft,
    },
    telemetry::{
        access::{AccessLog, Line},
        log,
        metrics::{
            ConnectFailure, EvictionCause, Flood, Handshake, Limit, Outcome, Reload, SettledAs,
            Side, SpanEnd, StatusClass, StoreOp, StoreResult,
        },
    },
};

use crate::markdown::{file, table, word, words};

/// One of each. A new kind of problem does not compile here until it is listed.
fn problems() -> Vec<Problem> {
    use Problem as P;
    let listed = |problem: &Problem| match problem {
        P::KeyMissing { .. }
        | P::KeyInvalid(_)
        | P::CallerMissing
        | P::InFlight { .. }
        | P::OutcomeUnknown { .. }
        | P::ResponseNotRetained { .. }
        | P::KeyExpired
        | P::BodyTooLarge { .. }
        | P::KeyReused
        | P::NoStore
        | P::UpstreamUnreachable
        | P::UpstreamFailed
        | P::UpstreamTimeout
        | P::Unprotected(_)
        | P::StoreUnavailable
        | P::StoreFull
        | P::Overloaded
        | P::BadRequest(_)
        | P::MethodNotAllowed
        | P::RequestTimeout
        | P::TargetTooLong
        | P::HeadTooLarge
        | P::ExpectationFailed
        | P::LoopDetected => 23,
    };
    let second = Duration::from_secs(1);
    let carrier = Carrier::new("Idempotency-Key");
    let all = vec![
        P::KeyMissing {
            carrier: Some(carrier.clone()),
        },
        P::KeyInvalid(KeyRefused {
            fault: KeyFault::Empty,
            carrier,
        }),
        P::CallerMissing,
        P::InFlight {
            retry_after: second,
        },
        P::OutcomeUnknown {
            left: HoldLeft::For(second),
            retry_after: second,
        },
        P::ResponseNotRetained {
            original_status: StatusCode::CREATED,
        },
        P::KeyExpired,
        P::BodyTooLarge { limit: 1 },
        P::KeyReused,
        P::NoStore,
        P::UpstreamUnreachable,
        P::UpstreamFailed,
        P::UpstreamTimeout,
        P::StoreUnavailable,
        P::StoreFull,
        P::Overloaded,
        P::BadRequest("why"),
        P::MethodNotAllowed,
        P::RequestTimeout,
        P::TargetTooLong,
        P::HeadTooLarge,
        P::ExpectationFailed,
        P::LoopDetected,
    ];
    let slugs: BTreeSet<&str> = all.iter().map(Problem::slug).collect();
    assert_eq!(slugs.len(), listed(&P::KeyReused), "one of each");
    all
}

/// How errors are said by default.
fn errors() -> Errors {
    let loaded = config::parse("none", "", []).loaded().expect("defaults");
    loaded.config.defaults.errors.clone()
}

#[test]
fn every_problem_is_listed_as_it_is_told() {
    let operations = file("docs/operations.md");
    let rows = table(&operations, "slug");
    let errors = errors();
    let problems = problems();
    assert_eq!(rows.len(), problems.len());
    for problem in problems {
        let row = rows.iter().find(|row| word(row[0]) == problem.slug());
        let row = row.unwrap_or_else(|| panic!("{} is not listed", problem.slug()));
        let (_, body) = problem.body(&errors, None);
        let told: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(row[1], problem.status(&errors).as_str(), "{row:?}");
        assert_eq!(told["code"], word(row[2]), "{row:?}");
        let retryable = match row[3] {
            "true" | "true if the hold ends" => true,
            "false" => false,
            other => panic!("{other}"),
        };
        assert_eq!(told["retryable"], retryable, "{row:?}");
        let reuse = told
            .get("reuse_key")
            .map_or("–".to_owned(), ToString::to_string);
        assert_eq!(reuse, row[4], "{row:?}");
    }
}

/// What a table's cell says: its codes, and the status behind them.
fn cell(cell: &str) -> (Vec<&str>, u16) {
    let (codes, status) = cell.rsplit_once(' ').expect("codes and a status");
    let codes = codes.split(", ").map(word).collect();
    (codes, status.parse().expect("a status"))
}

#[test]
fn the_other_shapes_say_each_problem_as_it_is_listed() {
    let operations = file("docs/operations.md");
    let rows = table(&operations, "problem");
    let problems = problems();
    assert_eq!(rows.len(), problems.len());
    for problem in problems {
        let row = rows.iter().find(|row| word(row[0]) == problem.slug());
        let row = row.unwrap_or_else(|| panic!("{} is not listed", problem.slug()));
        for (shape, column) in [
            (ErrorShape::Platform, 1),
            (ErrorShape::Stripe, 3),
            (ErrorShape::AwsXml, 4),
        ] {
            let errors = Errors { shape, ..errors() };
            let (_, body) = problem.body(&errors, None);
            let (codes, status) = cell(row[column]);
            assert_eq!(problem.status(&errors), status, "{row:?}");
            let body = String::from_utf8(body.to_vec()).expect("UTF-8");
            let json = || serde_json::from_str::<serde_json::Value>(&body).expect("JSON");
            match shape {
                ErrorShape::Platform => {
                    assert_eq!([json()["code"].clone()], codes[..], "{row:?}");
                    assert_eq!(json()["retryable"].to_string(), row[2], "{row:?}");
                }
                ErrorShape::Stripe => {
                    let error = &json()["error"];
                    let told = [error["type"].clone(), error["code"].clone()];
                    assert_eq!(told, codes[..], "{row:?}");
                }
                ErrorShape::AwsXml => {
                    let told = body.split(['<', '>']).skip_while(|part| *part != "Code");
                    assert_eq!(told.skip(1).take(1).collect::<Vec<_>>(), codes, "{row:?}");
                }
                ErrorShape::Problem => unreachable!("it has the table above"),
            }
        }
    }
}

#[test]
fn a_hold_without_an_end_is_not_retryable() {
    let errors = errors();
    let forever = Problem::OutcomeUnknown {
        left: HoldLeft::Forever,
        retry_after: Duration::from_secs(1),
    };
    let told: serde_json::Value =
        serde_json::from_slice(&forever.body(&errors, None).1).expect("JSON");
    assert_eq!(told["retryable"], false);
}

#[test]
fn slugs_in_any_document_are_slugs() {
    let slugs: BTreeSet<String> = problems()
        .iter()
        .map(|problem| problem.slug().to_owned())
        .collect();
    for path in [
        "README.md",
        "docs/lifecycle.md",
        "docs/migrating.md",
        "docs/operations.md",
    ] {
        let text = file(path);
        // `409 in-flight` in prose: the status before a word in backticks.
        let mut seen = 0;
        for (before, after) in text.match_indices(" `").map(|(at, _)| text.split_at(at)) {
            let status = before.rsplit([' ', '(', '\n']).next().unwrap_or_default();
            let slug = after
                .trim_start_matches(" `")
                .split('`')
                .next()
                .unwrap_or_default();
            if status.len() == 3 && status.parse::<u16>().is_ok() {
                assert!(slugs.contains(slug), "{path}: {status} {slug}");
                seen += 1;
            }
        }
        assert!(seen > 5, "{path}: {seen}");
    }
}

#[test]
fn every_outcome_is_listed() {
    let operations = file("docs/operations.md");
    let listed: Vec<&str> = table(&operations, "outcome")
        .iter()
        .map(|row| word(row[0]))
        .collect();
    let own: BTreeSet<&str> = Outcome::ALL
        .iter()
        .map(|outcome| outcome.as_str())
        .collect();
    assert_eq!(listed.len(), own.len());
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), own);
}

#[test]
fn every_reason_to_refuse_a_token_is_listed() {
    let operations = file("docs/operations.md");
    let listed: Vec<&str> = table(&operations, "reason")
        .iter()
        .map(|row| word(row[0]))
        .collect();
    let own: Vec<&str> = TokenFault::ALL.iter().map(|fault| fault.as_str()).collect();
    assert_eq!(listed, own);
}

#[test]
fn every_reason_that_a_handshake_fails_for_is_explained() {
    let operations = file("docs/operations.md");
    let rows = table(&operations, "handshake");
    let listed: Vec<&str> = rows.iter().map(|row| word(row[0])).collect();
    let own: Vec<&str> = Handshake::ALL.iter().map(|value| value.as_str()).collect();
    assert_eq!(listed, own);
}

#[test]
fn every_label_has_its_values() {
    let operations = file("docs/operations.md");
    let mut rows = table(&operations, "label");
    let mut check = |label: &str, values: Vec<&'static str>| {
        let at = rows
            .iter()
            .position(|row| row[0] == label)
            .unwrap_or_else(|| panic!("no {label}"));
        let row = rows.remove(at);
        assert_eq!(words(row[1]), values.into_iter().collect(), "{label}");
    };
    check(
        "`as`",
        SettledAs::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`status_class`",
        StatusClass::ALL
            .iter()
            .map(|value| value.as_str())
            .collect(),
    );
    check(
        "`operation`",
        StoreOp::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`result` of a store",
        StoreResult::ALL
            .iter()
            .map(|value| value.as_str())
            .collect(),
    );
    check(
        "`cause`",
        EvictionCause::ALL
            .iter()
            .map(|value| value.as_str())
            .collect(),
    );
    check(
        "`side`",
        Side::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`limit`",
        Limit::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`reason` of a flood",
        Flood::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`result` of a span",
        SpanEnd::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`result` of a reload",
        Reload::ALL.iter().map(|value| value.as_str()).collect(),
    );
    check(
        "`reason` of a failed connection",
        ConnectFailure::ALL
            .iter()
            .map(|value| value.as_str())
            .collect(),
    );
    check(
        "`reason` of a failed handshake",
        Handshake::ALL.iter().map(|value| value.as_str()).collect(),
    );
    assert!(rows.is_empty(), "{rows:?}");
}

#[test]
fn every_field_of_an_access_line_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let sink = fs::File::create(&path).expect("a file");
    let logs = log::init(LogFormat::Json, "info", Some(""), sink).expect("logs");
    let access = AccessLog::new(&logs, &[RouteName::new("orders")]);
    access.line(&Line {
        method: &Method::POST,
        route: Some(0),
        outcome: Outcome::Miss,
        status: Some(StatusCode::CREATED),
        record: Some(RecordId::from_bytes([7; 32]).short()),
        trace: Some(Trace::of(&HeaderMap::new(), || [1, 2, 3]).id()),
        took: Duration::from_millis(2),
        upstream: Some(Duration::from_millis(1)),
        request_bytes: Some(1),
        response_bytes: Some(1),
    });
    drop(logs);
    let text = fs::read_to_string(&path).expect("the log");
    let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let fields: BTreeSet<&str> = line
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    let operations = file("docs/operations.md");
    let listed: BTreeSet<&str> = table(&operations, "field")
        .iter()
        .map(|row| word(row[0]))
        .collect();
    assert_eq!(listed, fields);
    // What a row says of a fixed value is that value.
    for row in table(&operations, "field") {
        if matches!(word(row[0]), "level" | "target" | "msg") {
            assert_eq!(line[word(row[0])], word(row[1]));
        }
    }
}

#[test]
fn the_events_are_those_of_the_sources() {
    let mut told = BTreeSet::new();
    events(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut told,
    );
    let operations = file("docs/operations.md");
    let rows = table(&operations, "event");
    let listed: BTreeSet<(String, String)> = rows
        .iter()
        .map(|row| (word(row[0]).to_owned(), row[1].to_owned()))
        .collect();
    assert_eq!(listed.len(), rows.len(), "an event stands twice");
    assert_eq!(listed, told);
}

/// Message and level of every event over debug in these sources, but those whose message is made up as they happen.
fn events(folder: &Path, told: &mut BTreeSet<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            events(&path, told);
        } else if !path.ends_with("tests.rs") {
            let source = fs::read_to_string(&path).expect("a source");
            for call in source.split("tracing::").skip(1) {
                let Some((level, rest)) = call.split_once("!(") else {
                    continue;
                };
                if !matches!(level, "info" | "warn" | "error") {
                    continue;
                }
                let arguments = rest.split(");").next().unwrap_or_default();
                let message = arguments.rsplit('"').nth(1).expect("a message");
                if !message.contains('{') {
                    told.insert((message.to_owned(), level.to_owned()));
                }
            }
        }
    }
}

#[test]
fn the_problems_that_say_when_to_come_back_are_those_that_are_listed() {
    // `retry-after` is promised for 503 and 504, in-flight and outcome-unknown, and for nothing else.
    let with: BTreeSet<&str> = problems()
        .iter()
        .filter(|problem| problem.retry_after().is_some())
        .map(Problem::slug)
        .collect();
    let expected = [
        "in-flight",
        "outcome-unknown",
        "overloaded",
        "store-full",
        "store-unavailable",
        "upstream-timeout",
    ];
    assert_eq!(with, expected.into());
}
