//! The environment's part of the configuration: `IDEM_PROXY_SECTION__KEY`, laid over the file.
//!
//! Only a name with `__` after the prefix is a setting: Kubernetes injects `IDEM_PROXY_PORT` and the like for a
//! Service of that name. Deeper tables join more parts. Routes come from the file only.

use super::{
    problem::{Problem, Refusal},
    source::{self, Node, Origin, Table, Value},
};

const PREFIX: &str = "IDEM_PROXY_";

/// This process's variables that may be settings. What is no Unicode in a value becomes U+FFFD, which is refused later.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let value = value.to_string_lossy().into_owned();
        name.starts_with(PREFIX).then_some((name, value))
    })
}

/// Lays the variables over the file's settings and returns what is wrong with them.
pub(super) fn overlay(
    settings: &mut Table,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    // In order of their names, so that a table comes before the keys in it and these win.
    let sorted: std::collections::BTreeMap<_, _> = variables.into_iter().collect();
    for (variable, text) in sorted {
        let Some(name) = variable.strip_prefix(PREFIX).filter(|n| n.contains("__")) else {
            continue;
        };
        let parts: Vec<String> = name.split("__").map(str::to_ascii_lowercase).collect();
        let origin = Origin::Variable(variable.clone());
        let mut refuse = |why: &str| {
            problems.push(Problem::new(
                origin.clone(),
                &parts.join("."),
                None,
                Refusal::wrong(why),
            ));
        };
        if parts.iter().any(String::is_empty) {
            refuse("this names no setting: sections and keys are joined by `__`");
        } else if parts.first().is_some_and(|section| section == "route") {
            refuse("routes come from the file only");
        } else if text.contains('\u{fffd}') {
            refuse("the value is not valid UTF-8");
        } else if put(settings, &parts, text, &origin).is_none() {
            refuse("a part of this name is no table");
        }
    }
    problems
}

/// Puts the text at the place that the parts name; `None`: there is no such place.
fn put(table: &mut Table, parts: &[String], text: String, origin: &Origin) -> Option<()> {
    let (first, rest) = parts.split_first()?;
    let name = existing(table, first);
    if rest.is_empty() {
        let value = match (table.get(&name), source::value(&text, origin)) {
            // A table lies over the file's table key by key, like everything else.
            (Some(old), Some(Value::Table(new))) => match &old.value {
                Value::Table(old) => {
                    let mut merged = old.clone();
                    merged.extend(new);
                    Value::Table(merged)
                }
                _ => Value::Table(new),
            },
            _ => Value::Raw(text),
        };
        let origin = origin.clone();
        table.insert(name, Node { value, origin });
        return Some(());
    }
    let inner = table.entry(name).or_insert_with(|| Node {
        value: Value::Table(Table::new()),
        origin: origin.clone(),
    });
    if let Value::Raw(raw) = &inner.value
        && let Some(parsed @ Value::Table(_)) = source::value(raw, &inner.origin)
    {
        inner.value = parsed;
    }
    match &mut inner.value {
        Value::Table(inner) => put(inner, rest, text, origin),
        _ => None,
    }
}

/// The table's own spelling of a name: variables have no lower case and no `-`.
fn existing(table: &Table, part: &str) -> String {
    let same = |name: &&String| name.to_ascii_lowercase().replace('-', "_") == part;
    table
        .keys()
        .find(same)
        .cloned()
        .unwrap_or_else(|| part.to_owned())
}

/// `RUST_LOG`, which wins over `telemetry.log_level`.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read"
)]
pub fn rust_log() -> Option<String> {
    std::env::var("RUST_LOG").ok()
}
