//! Where settings come from: the file and the environment, read into one tree that knows each value's origin.
//!
//! Nothing here knows a setting's name or kind. A value from the environment stays text until the reader asks for it
//! as a kind, so that a password of digits never becomes a number.

use std::{collections::BTreeMap, fmt, ops::Range};

use toml::de::{DeTable, DeValue};

use super::problem::{Problem, Refusal};

/// A table of settings by name.
pub(super) type Table = BTreeMap<String, Node>;

/// One value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// What it is.
    pub(super) value: Value,
    /// Where it was written.
    pub(super) origin: Origin,
}

/// Where a value was written. The order is the order in which problems are listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The file as a whole.
    File,
    /// A line of the file, counted from 1.
    Line(usize),
    /// A variable of the environment, by its name.
    Variable(String),
    /// A dialect's preset, and where the dialect was chosen.
    Preset(&'static str, Box<Origin>),
    /// Nowhere: a default.
    Default,
}

/// A value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Text of the environment, whose kind its reader decides.
    Raw(String),
    /// A string.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number with a fraction.
    Ratio(f64),
    /// `true` or `false`.
    Flag(bool),
    /// What no setting is: a date, a number out of range. Kept as it was written, for the message.
    Odd(String),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(Table),
}

impl Value {
    /// A string.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// A list of strings that stand nowhere: a default.
    pub(super) fn texts(texts: &[&str]) -> Self {
        let node = |text: &&str| Node {
            value: Self::text(text),
            origin: Origin::Default,
        };
        Self::List(texts.iter().map(node).collect())
    }
}

/// The value as TOML spells it, on one line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(text) | Self::Text(text) => quoted(text, f),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Ratio(number) => write!(f, "{number:?}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Odd(text) => f.write_str(text),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { "" } else { ", " }, item.value)?;
                }
                f.write_str("]")
            }
            Self::Table(table) => {
                f.write_str("{")?;
                for (at, (name, node)) in table.iter().enumerate() {
                    let comma = if at == 0 { " " } else { ", " };
                    write!(f, "{comma}{} = {}", Name(name), node.value)?;
                }
                f.write_str(if table.is_empty() { "}" } else { " }" })
            }
        }
    }
}

/// A name as TOML spells it: bare where it may be.
pub(super) struct Name<'a>(pub(super) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if !self.0.is_empty() && self.0.chars().all(bare) {
            f.write_str(self.0)
        } else {
            quoted(self.0, f)
        }
    }
}

/// A TOML basic string: no control character of the value reaches a terminal.
fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{:04X}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// Reads a whole TOML document; every syntax error is found, and then there is no table.
pub(super) fn document(text: &str) -> Result<Table, Vec<Problem>> {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(convert_table(table.get_ref(), &|span| lines.origin(span)));
    }
    // The error's own text would quote the line, and the line may hold a secret.
    let problem = |error: &toml::de::Error| {
        let origin = error
            .span()
            .map_or(Origin::File, |span| lines.origin(&span));
        let why = format!("this is not valid TOML: {}", error.message());
        Problem::new(origin, "", None, Refusal::wrong(why))
    };
    Err(errors.iter().map(problem).collect())
}

/// Reads a preset, whose every value then stands where `origin` says.
pub(super) fn preset(text: &str, origin: &Origin) -> Table {
    let (table, _) = DeTable::parse_recoverable(text);
    convert_table(table.get_ref(), &|_| origin.clone())
}

/// Reads one TOML value, as lists, numbers and tables are written in the environment.
pub(super) fn value(text: &str, origin: &Origin) -> Option<Value> {
    let parsed = DeValue::parse(text.trim()).ok()?;
    Some(convert(parsed.get_ref(), &|_| origin.clone()))
}

type Locate<'a> = &'a dyn Fn(&Range<usize>) -> Origin;

fn convert_table(table: &DeTable<'_>, locate: Locate<'_>) -> Table {
    let entry = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let name: &toml::Spanned<std::borrow::Cow<'_, str>> = name;
        let node = Node {
            value: convert(value.get_ref(), locate),
            origin: locate(&name.span()),
        };
        (name.get_ref().to_string(), node)
    };
    table.iter().map(entry).collect()
}

fn convert(value: &DeValue<'_>, locate: Locate<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(whole) => Value::Whole(whole),
            Err(_) => Value::Odd(number.to_string()),
        },
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(ratio) => Value::Ratio(ratio),
            Err(_) => Value::Odd(number.to_string()),
        },
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(time) => Value::Odd(time.to_string()),
        DeValue::Array(items) => Value::List(
            items
                .iter()
                .map(|item| Node {
                    value: convert(item.get_ref(), locate),
                    origin: locate(&item.span()),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(table, locate)),
    }
}

/// Where the lines of a text end.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::Line(self.0.partition_point(|end| *end < span.start) + 1)
    }
}
