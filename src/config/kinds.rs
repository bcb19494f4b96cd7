//! The kinds of settings: what a value must be, and the calls that read one of each kind from a section.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    problem::Refusal,
    reader::Section,
    source::{self, Node, Origin, Value},
    units,
};

/// What a value must be before it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Whole,
    Ratio,
    Flag,
    List,
    TextOrList,
    Table,
}

impl Kind {
    /// Text of the environment as a value of this kind, if it is one; every other value as it is.
    pub(super) fn settle(self, value: Value, origin: &Origin) -> Value {
        let text = match value {
            Value::Raw(text) => text,
            Value::Whole(number) if self == Self::Ratio => {
                return i32::try_from(number).map_or(value, |small| Value::Ratio(small.into()));
            }
            _ => return value,
        };
        if self == Self::Text {
            return Value::Text(text);
        }
        match source::value(&text, origin) {
            Some(parsed) if self.fits(&parsed) && !matches!(parsed, Value::Text(_)) => parsed,
            _ => Value::Text(text),
        }
    }

    pub(super) fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => matches!(value, Value::Text(_)),
            Self::Whole => matches!(value, Value::Whole(_)),
            Self::Ratio => matches!(value, Value::Ratio(_)),
            Self::Flag => matches!(value, Value::Flag(_)),
            Self::List => matches!(value, Value::List(_)),
            Self::TextOrList => matches!(value, Value::Text(_) | Value::List(_)),
            Self::Table => matches!(value, Value::Table(_)),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Whole => "a whole number",
            Self::Ratio => "a number such as 1.0",
            Self::Flag => "true or false",
            Self::List => "a list",
            Self::TextOrList => "a string or a list of strings",
            Self::Table => "a table",
        }
    }
}

impl Value {
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_whole(&self) -> Option<i64> {
        match self {
            Self::Whole(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn as_flag(&self) -> Option<bool> {
        match self {
            Self::Flag(flag) => Some(*flag),
            _ => None,
        }
    }
}

impl Section<'_> {
    fn read<T>(
        &mut self,
        key: &'static str,
        kind: Kind,
        default: Option<Value>,
        convert: impl FnOnce(&Value) -> Option<Result<T, Refusal>>,
    ) -> Option<T> {
        self.read_of(key, kind, default, None, convert)
    }

    fn read_of<T>(
        &mut self,
        key: &'static str,
        kind: Kind,
        default: Option<Value>,
        allowed: Option<&str>,
        convert: impl FnOnce(&Value) -> Option<Result<T, Refusal>>,
    ) -> Option<T> {
        let (node, path) = self.take_of(key, kind, default, allowed)?;
        match convert(&node.value)? {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.refuse(key, &node, &path, refusal);
                None
            }
        }
    }

    /// A string, parsed.
    pub(super) fn text<T>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        self.read(key, Kind::Text, Some(Value::text(default)), |value| {
            value.as_text().map(parse)
        })
    }

    /// A string of a form, parsed; what is no string is told the form too.
    pub(super) fn text_of<T>(
        &mut self,
        key: &'static str,
        default: &str,
        form: &str,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        let default = Some(Value::text(default));
        self.read_of(key, Kind::Text, default, Some(form), |value| {
            value.as_text().map(parse)
        })
    }

    /// A string that must be there, parsed; `what` says what it is for.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        if self.find(key).is_none() {
            self.object(key, format!("it is missing: {what}"));
        }
        self.read(key, Kind::Text, None, |value| value.as_text().map(parse))
    }

    /// A string, parsed; `absent` where there is none.
    pub(super) fn text_or<T>(
        &mut self,
        key: &'static str,
        absent: T,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        let given = self.find(key).is_some();
        let read = self.read(key, Kind::Text, None, |value| value.as_text().map(parse));
        if given { read } else { Some(absent) }
    }

    /// A duration from `least` to ten years.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: &str,
        least: Duration,
    ) -> Option<Duration> {
        self.text_of(key, default, &durations(least), |text| {
            duration(text, least)
        })
    }

    /// A size in bytes, at least 1 B.
    pub(super) fn size<T: TryFrom<u64>>(&mut self, key: &'static str, default: &str) -> Option<T> {
        let sizes = "a size such as \"512B\", \"64KiB\", \"1MiB\", \"4GiB\"";
        self.text_of(key, default, sizes, |text| {
            let bytes = units::size(text).and_then(|bytes| match bytes {
                0 => Err("it is nothing"),
                bytes => T::try_from(bytes).map_err(|_| "it is too large"),
            });
            bytes.map_err(|why| Refusal::wrong(why).allowed(sizes))
        })
    }

    /// A whole number within `range`.
    pub(super) fn count<T: TryFrom<i64>>(
        &mut self,
        key: &'static str,
        default: i64,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let (kind, default) = (Kind::Whole, Some(Value::Whole(default)));
        self.read_of(key, kind, default, Some(&allowed), |value| {
            let number = value.as_whole()?;
            let within = range
                .contains(&number)
                .then(|| T::try_from(number).ok())
                .flatten();
            let refusal = || Refusal::wrong("it makes no sense here").allowed(allowed.as_str());
            Some(within.ok_or_else(refusal))
        })
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> Option<bool> {
        self.read(key, Kind::Flag, Some(Value::Flag(default)), |value| {
            value.as_flag().map(Ok)
        })
    }

    /// One of the words; `None` beside a word: this version does not have it.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        default: &str,
        words: &[(&'static str, Option<T>)],
    ) -> Option<T> {
        self.text(key, default, |text| choose(text, words))
    }

    /// A list of strings, each parsed.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        default: &[&str],
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Option<Vec<T>> {
        let taken = self.take(key, Kind::List, Some(Value::texts(default)))?;
        self.items(key, taken, parse)
    }

    /// A list of strings that must be there, each parsed; `what` says what it is for.
    pub(super) fn required_list<T>(
        &mut self,
        key: &'static str,
        what: &str,
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Option<Vec<T>> {
        if self.find(key).is_none() {
            self.object(key, format!("it is missing: {what}"));
        }
        let taken = self.take(key, Kind::List, None)?;
        self.items(key, taken, parse)
    }

    /// A string or a list of strings, each parsed.
    pub(super) fn one_or_more<T>(
        &mut self,
        key: &'static str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Option<Vec<T>> {
        let taken = self.take(key, Kind::TextOrList, Some(Value::text(default)))?;
        self.items(key, taken, parse)
    }

    /// A word or a list of strings: `word` reads the one, `parse` each of the other.
    pub(super) fn word_or_list<W, T>(
        &mut self,
        key: &'static str,
        default: &str,
        word: impl FnOnce(&str) -> Result<W, Refusal>,
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Option<Result<W, Vec<T>>> {
        let (node, path) = self.take(key, Kind::TextOrList, Some(Value::text(default)))?;
        let Some(text) = node.value.as_text() else {
            return self.items(key, (node, path), parse).map(Err);
        };
        match word(text) {
            Ok(word) => Some(Ok(word)),
            Err(refusal) => {
                self.refuse(key, &node, &path, refusal);
                None
            }
        }
    }

    fn items<T>(
        &self,
        key: &str,
        (node, path): (Node, String),
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Option<Vec<T>> {
        let Value::List(items) = &node.value else {
            return self.item(key, &node, &path, &parse).map(|item| vec![item]);
        };
        // Every item is read before the first that is refused ends it.
        let parsed: Vec<Option<T>> = (0..)
            .zip(items)
            .map(|(at, item): (usize, _)| self.item(key, item, &format!("{path}[{at}]"), &parse))
            .collect();
        parsed.into_iter().collect()
    }

    fn item<T>(
        &self,
        key: &str,
        node: &Node,
        path: &str,
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        let parsed = node
            .value
            .as_text()
            .map_or_else(|| Err(Refusal::wrong("it is not a string")), parse);
        match parsed {
            Ok(item) => Some(item),
            Err(refusal) => {
                self.refuse(key, node, path, refusal);
                None
            }
        }
    }
}

/// Reads a duration from `least` to ten years.
pub(super) fn duration(text: &str, least: Duration) -> Result<Duration, Refusal> {
    let read = units::duration(text).and_then(|span| match span {
        span if span < least => Err("it is too short"),
        span if span > units::LONGEST => Err("it is too long"),
        span => Ok(span),
    });
    read.map_err(|why| Refusal::wrong(why).allowed(durations(least)))
}

/// What a duration from `least` to ten years looks like.
pub(super) fn durations(least: Duration) -> String {
    let (least, most) = (units::spelled(least), units::spelled(units::LONGEST));
    format!(
        "a duration such as \"250ms\", \"30s\", \"2m\", \"24h\", \"7d\", from {least} to {most}"
    )
}

/// Finds a word; `None` beside it: this version does not have it.
pub(super) fn choose<T: Copy>(
    text: &str,
    words: &[(&'static str, Option<T>)],
) -> Result<T, Refusal> {
    let available = words.iter().filter(|(_, value)| value.is_some());
    let allowed: Vec<&str> = available.map(|(word, _)| *word).collect();
    let allowed = allowed.join(", ");
    match words.iter().find(|(word, _)| *word == text) {
        Some((_, Some(value))) => Ok(*value),
        Some((_, None)) => Err(Refusal::unavailable().allowed(allowed)),
        None => {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            Err(Refusal::wrong("this is no known value")
                .allowed(allowed)
                .near(text, &all))
        }
    }
}
