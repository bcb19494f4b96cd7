//! Reading the documents: files, tables, fenced blocks, words in backticks.

use std::{collections::BTreeSet, fs, path::Path};

/// A file of the repository.
pub(crate) fn file(path: &str) -> String {
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&whole).unwrap_or_else(|error| panic!("{}: {error}", whole.display()))
}

/// The rows of the table whose head begins with this cell: each row's cells, without the head.
pub(crate) fn table<'a>(text: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let head = format!("| {first} |");
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with(&head))
        .skip(2);
    let rows: Vec<Vec<&str>> = lines
        .by_ref()
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect();
    assert!(
        !rows.is_empty(),
        "there is no table that begins with {first:?}"
    );
    assert!(
        !lines.any(|line| line.starts_with(&head)),
        "there is more than one table that begins with {first:?}"
    );
    rows
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split(" | ").map(str::trim).collect()
}

/// The one word in backticks that a cell is.
pub(crate) fn word(cell: &str) -> &str {
    let word = cell
        .strip_prefix('`')
        .and_then(|rest| rest.strip_suffix('`'));
    word.filter(|word| !word.contains('`'))
        .unwrap_or_else(|| panic!("{cell:?} is not one word in backticks"))
}

/// Everything in backticks, fenced blocks left out.
pub(crate) fn words(text: &str) -> BTreeSet<&str> {
    let mut fenced = false;
    let prose = text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    prose
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

/// The fenced blocks of this language.
pub(crate) fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let parts = text.split(&fence).skip(1);
    parts
        .map(|part| part.split_once("```").expect("a block that ends").0)
        .collect()
}
