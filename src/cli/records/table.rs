//! Records for people to read: a table of several, and all that there is of one. Plain text, whatever it is shown on.

use std::fmt::Write as _;

use serde_json::Value;

const COLUMNS: [(&str, &str); 7] = [
    ("RECORD", "id"),
    ("STATE", "state"),
    ("ROUTE", "route"),
    ("STATUS", "status"),
    ("STARTED", "started_at"),
    ("EXPIRES", "expires_at"),
    ("BYTES", "bytes"),
];

/// One line for each, below the names of the columns. A record is named by its first 16 digits, which every command takes.
pub(super) fn list(rows: &[Value]) -> String {
    let head = COLUMNS.map(|(title, _)| title.to_owned());
    let cells = rows.iter().map(|row| {
        COLUMNS.map(|(title, member)| {
            let shown = shown(row, member);
            match title {
                "RECORD" => shown.chars().take(16).collect(),
                _ => shown,
            }
        })
    });
    let lines: Vec<[String; 7]> = std::iter::once(head).chain(cells).collect();
    let mut widths = [0; 7];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let padded = line.iter().zip(widths);
        let padded: Vec<_> = padded
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Every member on a line of its own, the most telling first.
pub(super) fn record(row: &Value) -> String {
    [
        "id",
        "route",
        "state",
        "status",
        "started_at",
        "expires_at",
        "lease_until",
        "bytes",
    ]
    .into_iter()
    .fold(String::new(), |mut text, member| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{member:<12} {}", shown(row, member));
        text
    })
}

/// A member as text; a dash where there is none. Control characters are shown, and not obeyed.
fn shown(row: &Value, member: &str) -> String {
    match row.get(member) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => {
            let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
            text.chars().map(plain).collect()
        }
        Some(other) => other.to_string(),
    }
}
