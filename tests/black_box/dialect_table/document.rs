//! Reading the tables of `docs/dialects.md`.

use std::path::Path;

/// A dialect as the document describes it.
#[derive(Debug)]
pub(super) struct Dialect {
    pub(super) name: String,
    /// The header that marks its answers.
    pub(super) marker: Option<String>,
    /// The media type of its errors.
    pub(super) errors: String,
    /// Whether a replay has all of the first answer's head but Set-Cookie, or what describes the body alone.
    pub(super) whole_head: bool,
    /// Its column: each case, and the answers of its cell.
    pub(super) cells: Vec<(String, Vec<Expected>)>,
}

/// One answer as a cell writes it.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) status: u16,
    pub(super) said: Said,
    pub(super) marker: Option<String>,
    pub(super) retryable: bool,
    /// The seconds of Retry-After.
    pub(super) wait: Option<u64>,
    /// Whether these are the most, for they are what is left of a time.
    pub(super) about: bool,
}

/// Who speaks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The upstream, for this request.
    New,
    /// The upstream, to the first such request.
    Again,
    /// The upstream, to the request that runs.
    Shared,
    /// The upstream, for this request, without any protection.
    Open,
    /// The upstream, asked whether there may be a replay.
    Told,
    /// The proxy: the codes of its error.
    Code(Vec<String>),
}

impl Dialect {
    pub(super) fn read(name: &str) -> Self {
        let text = text();
        let carries = table(&text, "dialect");
        let row = carries.iter().find(|row| row[0] == quoted(name));
        let row = row.unwrap_or_else(|| panic!("nothing says what {name} carries"));
        let (head, rows) = whole(&text, "case");
        let column = head.iter().position(|cell| *cell == quoted(name));
        let column = column.unwrap_or_else(|| panic!("{name} has no column"));
        Self {
            name: name.to_owned(),
            marker: (row[1] != "–").then(|| word(row[1])),
            errors: word(row[2]),
            whole_head: match row[3] {
                "all headers but cookies" => true,
                "what describes the body" => false,
                other => panic!("{other}"),
            },
            cells: rows
                .iter()
                .map(|row| (row[0].to_owned(), answers(row[column])))
                .collect(),
        }
    }
}

/// The dialects that have a column.
pub(super) fn columns() -> Vec<String> {
    let text = text();
    let (head, _) = whole(&text, "case");
    head.iter().skip(1).map(|cell| word(cell)).collect()
}

fn answers(cell: &str) -> Vec<Expected> {
    cell.split(" → ").map(answer).collect()
}

fn answer(text: &str) -> Expected {
    let mut words = text.split(' ').peekable();
    let mut next = || words.next();
    let status = next().and_then(|word| word.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{text:?} begins with no status"));
    let mut rest: Vec<&str> = words.collect();
    let (mut wait, mut about, mut retryable) = (None, false, false);
    if rest.last() == Some(&"s") {
        rest.pop();
        wait = rest.pop().and_then(|word| word.parse().ok());
        assert!(wait.is_some(), "{text:?}: how many seconds?");
        about = rest.pop_if(|word| *word == "≤").is_some();
    }
    if rest.pop_if(|word| *word == "retryable").is_some() {
        retryable = true;
    }
    let said = match rest.first() {
        Some(&"new") => Said::New,
        Some(&"again") => Said::Again,
        Some(&"shared") => Said::Shared,
        Some(&"open") => Said::Open,
        Some(&"told") => Said::Told,
        _ => Said::Code(rest.iter().map(|cell| word(cell)).collect()),
    };
    let marker = if let Said::Code(codes) = &said {
        assert!((1..=2).contains(&codes.len()), "{text:?}");
        None
    } else {
        assert!(rest.len() <= 2, "{text:?}");
        rest.get(1).map(|cell| word(cell))
    };
    Expected {
        status,
        said,
        marker,
        retryable,
        wait,
        about,
    }
}

fn text() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dialects.md");
    std::fs::read_to_string(path).expect("the document")
}

/// The table whose head begins with this cell: its head, and its rows.
fn whole<'a>(text: &'a str, first: &str) -> (Vec<&'a str>, Vec<Vec<&'a str>>) {
    let start = format!("| {first} |");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    let head = cells(lines.next().unwrap_or_else(|| panic!("no table {first:?}")));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = rows.map(cells).collect();
    assert!(rows.iter().all(|row| row.len() == head.len()), "{rows:?}");
    (head, rows)
}

fn table<'a>(text: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    whole(text, first).1
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split(" | ").map(str::trim).collect()
}

fn quoted(name: &str) -> String {
    format!("`{name}`")
}

/// The one word in backticks that a cell is.
fn word(cell: &str) -> String {
    let inner = cell
        .strip_prefix('`')
        .and_then(|rest| rest.strip_suffix('`'))
        .filter(|word| !word.contains('`'));
    inner
        .unwrap_or_else(|| panic!("{cell:?} is not one word in backticks"))
        .to_owned()
}
