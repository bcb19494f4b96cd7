//! Tables of results, for people or for Markdown.

use std::io::Write as _;

use super::{Result, load::QUIET};

/// How tables are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Markdown,
}

/// Rows under a head.
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, head: &[&str]) -> Self {
        Self {
            title: title.into(),
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    pub(crate) fn print(&self, form: Form) -> Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or_default()
            })
            .collect();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}\n", self.title)?;
        for (number, row) in self.rows.iter().enumerate() {
            match form {
                Form::Markdown => {
                    writeln!(out, "| {} |", row.join(" | "))?;
                    if number == 0 {
                        writeln!(out, "|{}", "---|".repeat(columns))?;
                    }
                }
                Form::Plain => {
                    let cells: Vec<String> = row
                        .iter()
                        .zip(&widths)
                        .map(|(cell, width)| format!("{cell:<width$}"))
                        .collect();
                    writeln!(out, "{}", cells.join("  ").trim_end())?;
                }
            }
        }
        writeln!(out)?;
        Ok(())
    }
}

/// The mark of a figure during which others used the machine.
pub(crate) fn mark(is_quiet: bool) -> &'static str {
    if is_quiet { "" } else { "~" }
}

/// What [`mark`] means.
pub(crate) fn legend() -> String {
    format!("`~`: others used over {QUIET} cores meanwhile")
}

/// A line about how far it is.
pub(crate) fn progress(what: &str) -> Result<()> {
    writeln!(std::io::stderr().lock(), "{what}")?;
    Ok(())
}
