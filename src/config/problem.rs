//! What is wrong with a configuration: every problem at once, each with its place, its key and what is allowed.

use std::fmt;

use super::source::{Origin, Value};

/// Everything that is wrong with one configuration, in the order of the file.
///
/// It displays as one line for each problem:
/// `file:line: key.path = value: what is wrong; allowed: …; did you mean …?`
#[derive(Debug, Clone, PartialEq)]
pub struct Problems {
    file: String,
    list: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by(|a, b| (&a.origin, &a.path).cmp(&(&b.origin, &b.path)));
        let file = file.to_owned();
        Self { file, list }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many things are wrong.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether all that is wrong is that this version does not have what is asked for.
    #[must_use]
    pub fn only_unavailable(&self) -> bool {
        self.list
            .iter()
            .all(|p| p.refusal.fault == Fault::Unavailable)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.list.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            problem.write(&self.file, f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem {
    origin: Origin,
    path: String,
    value: Option<Value>,
    refusal: Refusal,
}

impl Problem {
    /// A problem with the setting at `path`; `value` is shown, so it must be no secret.
    pub(super) fn new(origin: Origin, path: &str, value: Option<Value>, refusal: Refusal) -> Self {
        let path = path.to_owned();
        Self {
            origin,
            path,
            value,
            refusal,
        }
    }

    fn write(&self, file: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.origin.write(file, f)?;
        f.write_str(": ")?;
        if !self.path.is_empty() {
            f.write_str(&self.path)?;
            if let Some(value) = &self.value {
                write!(f, " = {}", Short(&value.to_string()))?;
            }
            f.write_str(": ")?;
        }
        if let Origin::Preset(dialect, _) = self.origin {
            write!(f, "dialect \"{dialect}\" sets this: ")?;
        }
        f.write_str(&self.refusal.why)?;
        if let Some(allowed) = &self.refusal.allowed {
            write!(f, "; allowed: {allowed}")?;
        }
        if let Some(meant) = &self.refusal.meant {
            write!(f, "; {meant}")?;
        }
        Ok(())
    }
}

impl Origin {
    fn write(&self, file: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File | Self::Default => f.write_str(file),
            Self::Line(line) => write!(f, "{file}:{line}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Preset(_, chosen) => chosen.write(file, f),
        }
    }
}

/// A value in a message: its first 120 characters.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(120) {
            Some((end, _)) => write!(f, "{}…", self.0.get(..end).unwrap_or_default()),
            None => f.write_str(self.0),
        }
    }
}

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    fault: Fault,
    why: String,
    allowed: Option<String>,
    meant: Option<String>,
}

/// What kind of fault a refused value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is wrong in every version.
    Wrong,
    /// It is documented, and this version does not have it.
    Unavailable,
}

impl Refusal {
    /// The value is wrong; why.
    pub(super) fn wrong(why: impl Into<String>) -> Self {
        Self {
            fault: Fault::Wrong,
            why: why.into(),
            allowed: None,
            meant: None,
        }
    }

    /// This version does not have it.
    pub(super) fn unavailable() -> Self {
        Self {
            fault: Fault::Unavailable,
            ..Self::wrong("not available in this version")
        }
    }

    /// The same, with what is allowed.
    #[must_use]
    pub(super) fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = Some(allowed.into());
        self
    }

    /// The same, with the known name that is nearest to what was written, if one is near.
    #[must_use]
    pub(super) fn near(mut self, written: &str, known: &[&str]) -> Self {
        if let Some((name, Nearness::Near)) = nearest(written, known) {
            self.meant = Some(format!("did you mean {name}?"));
        }
        self
    }

    /// The same, with the value that was meant.
    #[must_use]
    pub(super) fn meant(mut self, value: &str) -> Self {
        self.meant = Some(format!("did you mean \"{value}\"?"));
        self
    }

    /// A name that no setting has, with the nearest that one has; where none is near, with all.
    pub(super) fn unknown(written: &str, known: &[&str]) -> Self {
        let meant = nearest(written, known).map(|(name, nearness)| match nearness {
            Nearness::Near => format!("did you mean {name}?"),
            Nearness::Far => format!("the keys here: {}", known.join(", ")),
        });
        Self {
            meant,
            ..Self::wrong("unknown key")
        }
    }
}

/// Whether a name can be meant by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nearness {
    /// It is likely a slip.
    Near,
    /// They have little in common.
    Far,
}

/// The known name with the least edit distance to `written`; the first of equals.
fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<(&'a str, Nearness)> {
    // A long text is no slip of a name; its distance would be costly and means nothing.
    let written: Vec<char> = written.to_lowercase().chars().take(64).collect();
    let (distance, name) = known
        .iter()
        .map(|name| (distance(&written, name), *name))
        .min_by_key(|(distance, _)| *distance)?;
    let near = distance * 2 <= written.len().max(name.len());
    Some((name, if near { Nearness::Near } else { Nearness::Far }))
}

/// Edit distance: insertions, deletions, replacements and swaps of neighbours, each 1.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut above: Vec<usize> = (0..=b.len()).collect(); // the row for one character less of `a`
    let mut before: Vec<usize> = Vec::new(); // the row above that
    let mut earlier = None; // the character of `a` before this one
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX - 1);
            let replaced = cell(&above, j) + usize::from(x != y);
            let mut least = replaced.min(cell(&above, j + 1) + 1).min(cell(&row, j) + 1);
            let left = j.checked_sub(1).and_then(|at| Some((at, b.get(at)?)));
            if let Some((at, left)) = left
                && left == x
                && earlier == Some(y)
            {
                least = least.min(cell(&before, at) + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
        earlier = Some(x);
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("retenton", "retention", 1),
            ("kitten", "sitting", 3),
            ("strype", "stripe-v1", 4),
            ("abc", "abc", 0),
            ("ulr", "url", 1),
            ("lsiten", "listen", 1),
            ("ab", "ba", 1),
        ] {
            let a: Vec<char> = a.chars().collect();
            assert_eq!(distance(&a, b), wanted, "{a:?} {b}");
        }
    }

    #[test]
    fn a_slip_is_told_from_another_word() {
        let known = ["standard", "iri", "stripe-v1", "stripe-v2"];
        assert_eq!(
            nearest("strype", &known),
            Some(("stripe-v1", Nearness::Near))
        );
        assert_eq!(
            nearest("nonsense", &known).map(|n| n.1),
            Some(Nearness::Far)
        );
        assert_eq!(nearest("x", &[]), None);
    }
}
