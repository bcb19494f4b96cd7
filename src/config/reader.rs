//! The reader: each call names a key, its kind, its default and its bounds, and so the schema stands in the calls alone.
//!
//! A [`Section`] remembers which keys it was asked for: what is left over when it is finished is unknown. It records
//! every effective value for `--print-config`. A wrong value is reported and read as `None`, so that reading goes on
//! and every problem is found; where nothing is reported, nothing is `None`.

use std::{cell::RefCell, ops::RangeInclusive, time::Duration};

use super::{
    dialect::{self, Dialect},
    printed::Printed,
    problem::{Problem, Refusal},
    secret,
    source::{self, Node, Origin, Table, Value},
    units,
};

/// What reading found: problems, warnings and the effective values.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: RefCell<Vec<Problem>>,
    pub(super) warnings: RefCell<Vec<String>>,
    pub(super) advice: RefCell<Vec<String>>,
    pub(super) printed: RefCell<Printed>,
}

impl Report {
    /// Notes a problem, once: a value of `[policy]` is read again for every route.
    pub(super) fn refuse(&self, problem: Problem) {
        push_new(&self.problems, problem);
    }

    /// Notes what an operator should know at every start.
    pub(super) fn warn(&self, text: String) {
        push_new(&self.warnings, text);
    }

    /// Notes what an operator should know who checks a configuration.
    pub(super) fn advise(&self, text: String) {
        push_new(&self.advice, text);
    }
}

fn push_new<T: PartialEq>(list: &RefCell<Vec<T>>, item: T) {
    let mut list = list.borrow_mut();
    if !list.contains(&item) {
        list.push(item);
    }
}

/// One source of a section's values. Earlier layers win over later ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    /// Where it stands, as messages say it: `policy`, `route[orders]`.
    pub(super) path: String,
    /// Its values.
    pub(super) table: Table,
    /// Keys that have their default if the layer does not name them, whatever later layers say.
    pub(super) resets: &'static [&'static str],
}

/// Which keys of a section `--print-config` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// All of them.
    All,
    /// Those that are given: the section is not in effect.
    Given,
}

/// What a value must be before it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Whole,
    Ratio,
    Flag,
    List,
    TextOrList,
    Table,
}

/// A section that is being read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub(super) report: &'a Report,
    /// Where the section itself stands.
    origin: Origin,
    layers: Vec<Layer>,
    known: Vec<&'static str>,
    header: String,
    place: Option<usize>,
    show: Show,
}

impl<'a> Section<'a> {
    /// A section whose values come from `layers`; the first is its own. `header` is its place in the printed
    /// configuration, empty for a table that its parent prints.
    pub(super) fn open(
        report: &'a Report,
        origin: Origin,
        header: &str,
        show: Show,
        layers: Vec<Layer>,
    ) -> Self {
        let place = (!header.is_empty()).then(|| report.printed.borrow_mut().open(header));
        Self {
            report,
            origin,
            layers,
            known: Vec::new(),
            header: header.to_owned(),
            place,
            show,
        }
    }

    /// Where the section stands, as messages say it.
    pub(super) fn path(&self) -> &str {
        self.layers.first().map_or("", |layer| &layer.path)
    }

    /// Reports a problem that no single value shows, at the key that it concerns.
    pub(super) fn object(&self, key: &str, why: impl Into<String>) {
        let found = self
            .layers
            .iter()
            .find_map(|layer| Some((layer, layer.table.get(key)?)));
        let (origin, path) = match found {
            Some((layer, node)) => (&node.origin, &*layer.path),
            None => (&self.origin, self.path()),
        };
        let path = join(path, key);
        self.report.refuse(Problem::new(
            origin.clone(),
            &path,
            None,
            Refusal::wrong(why),
        ));
    }

    /// The section's layers, for sections that are read over it.
    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The section's own string under `key`, if it has one; this does not count as reading it.
    pub(super) fn own_text(&self, key: &str) -> Option<&str> {
        self.own(key).and_then(|node| node.value.as_text())
    }

    /// The same section under another path, printed under `header`, over more layers.
    pub(super) fn renamed(self, path: String, header: &str, under: Vec<Layer>) -> Self {
        let mut layers = self.layers;
        if let Some(own) = layers.first_mut() {
            own.path = path;
        }
        layers.extend(under);
        Self::open(self.report, self.origin, header, Show::All, layers)
    }

    /// The section's tables, each as a section under its name; all names are allowed.
    pub(super) fn named(self) -> Vec<(String, Section<'a>)> {
        let mut sections = Vec::new();
        for Layer { path, table, .. } in self.layers {
            for (name, node) in table {
                let bare = source::Name(&name).to_string();
                let path = join(&path, &bare);
                let Value::Table(table) = Kind::Table.settle(node.value, &node.origin) else {
                    let refusal = Refusal::wrong("it is not a table");
                    self.report
                        .refuse(Problem::new(node.origin, &path, None, refusal));
                    continue;
                };
                let header = format!("[{path}]");
                let layer = Layer {
                    path,
                    table,
                    resets: &[],
                };
                let section =
                    Section::open(self.report, node.origin, &header, Show::All, vec![layer]);
                sections.push((name, section));
            }
        }
        sections
    }

    /// Puts a dialect's preset right under the layer that names the dialect; where none does, there is none.
    pub(super) fn choose_preset(&mut self, dialect: Dialect) {
        let naming = |layer: &Layer| layer.table.get("dialect").map(|node| node.origin.clone());
        let found = self
            .layers
            .iter()
            .enumerate()
            .find_map(|(at, layer)| Some((at, naming(layer)?, layer.path.clone())));
        if let Some((at, chosen, path)) = found {
            self.layers.insert(at + 1, dialect.layer(&path, chosen));
        }
    }

    fn own(&self, key: &str) -> Option<&Node> {
        self.layers.first().and_then(|layer| layer.table.get(key))
    }

    /// The value of `key` in the first layer that has one, and its path.
    fn find(&self, key: &str) -> Option<(Node, String)> {
        for layer in &self.layers {
            if let Some(node) = layer.table.get(key) {
                return Some((node.clone(), join(&layer.path, key)));
            }
            if layer.resets.contains(&key) {
                return None;
            }
        }
        None
    }

    /// The value of `key`, of the right kind, recorded; `None`: it is refused, or there is none.
    fn take(
        &mut self,
        key: &'static str,
        kind: Kind,
        default: Option<Value>,
    ) -> Option<(Node, String)> {
        self.known.push(key);
        let found = self.find(key);
        let shown = found.is_some() || self.show == Show::All;
        let (mut node, path) = match (found, default) {
            (Some(found), _) => found,
            (None, Some(value)) => {
                let origin = Origin::Default;
                (Node { value, origin }, join(self.path(), key))
            }
            (None, None) => return None,
        };
        node.value = kind.settle(node.value, &node.origin);
        if let Some(place) = self.place.filter(|_| shown) {
            let value = secret::shown(key, &node.value);
            self.report.printed.borrow_mut().add(place, key, value);
        }
        if kind.fits(&node.value) {
            return Some((node, path));
        }
        let refusal = Refusal::wrong(format!("it is not {}", kind.name()));
        self.refuse(key, &node, &path, refusal);
        None
    }

    fn refuse(&self, key: &str, node: &Node, path: &str, refusal: Refusal) {
        let shown = secret::shown(key, &node.value);
        self.report.refuse(Problem::new(
            node.origin.clone(),
            path,
            Some(shown),
            refusal,
        ));
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        kind: Kind,
        default: Option<Value>,
        convert: impl FnOnce(&Value) -> Option<Result<T, Refusal>>,
    ) -> Option<T> {
        let (node, path) = self.take(key, kind, default)?;
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

    /// A string that may be absent, parsed.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<Option<T>> {
        if self.find(key).is_none() {
            self.known.push(key);
            return Some(None);
        }
        self.read(key, Kind::Text, None, |value| value.as_text().map(parse))
            .map(Some)
    }

    /// A duration from `least` to ten years.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: &str,
        least: Duration,
    ) -> Option<Duration> {
        self.text(key, default, |text| duration(text, least))
    }

    /// A size in bytes, at least 1 B.
    pub(super) fn size<T: TryFrom<u64>>(&mut self, key: &'static str, default: &str) -> Option<T> {
        self.text(key, default, |text| {
            let bytes = units::size(text).and_then(|bytes| match bytes {
                0 => Err("it is nothing"),
                bytes => T::try_from(bytes).map_err(|_| "it is too large"),
            });
            bytes.map_err(|why| {
                Refusal::wrong(why)
                    .allowed("a size such as \"512B\", \"64KiB\", \"1MiB\", \"4GiB\"")
            })
        })
    }

    /// A whole number within `range`.
    pub(super) fn count<T: TryFrom<i64>>(
        &mut self,
        key: &'static str,
        default: i64,
        range: RangeInclusive<i64>,
    ) -> Option<T> {
        self.read(key, Kind::Whole, Some(Value::Whole(default)), |value| {
            let number = value.as_whole()?;
            let within = range
                .contains(&number)
                .then(|| T::try_from(number).ok())
                .flatten();
            let allowed = format!("a whole number from {} to {}", range.start(), range.end());
            Some(within.ok_or_else(|| Refusal::wrong("it makes no sense here").allowed(allowed)))
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

    /// A list of tables, each as a section of its own.
    pub(super) fn tables(&mut self, key: &'static str) -> Option<Vec<Section<'a>>> {
        let (node, path) = self.take(key, Kind::List, Some(Value::List(Vec::new())))?;
        let Value::List(items) = node.value else {
            return None;
        };
        let section = |(at, item): (usize, Node)| {
            let path = format!("{path}[{at}]");
            let Value::Table(table) = item.value else {
                self.refuse(key, &item, &path, Refusal::wrong("it is not a table"));
                return None;
            };
            let layer = Layer {
                path,
                table,
                resets: &[],
            };
            Some(Section::open(
                self.report,
                item.origin,
                "",
                Show::Given,
                vec![layer],
            ))
        };
        let sections: Vec<Option<Self>> = items.into_iter().enumerate().map(section).collect();
        sections.into_iter().collect()
    }

    /// A key that this version does not have; only its value `off`, which asks for nothing, is taken.
    pub(super) fn unavailable(&mut self, key: &'static str, off: Option<Value>) {
        let kind = match off {
            Some(Value::Flag(_)) => Kind::Flag,
            Some(Value::Ratio(_)) => Kind::Ratio,
            _ => Kind::Text,
        };
        if self.find(key).is_none() {
            self.known.push(key);
        } else if let Some((node, path)) = self.take(key, kind, None)
            && off.as_ref() != Some(&node.value)
        {
            let allowed = off.map_or_else(|| "to leave it out".into(), |off| off.to_string());
            self.refuse(key, &node, &path, Refusal::unavailable().allowed(allowed));
        }
    }

    /// A key whose value is known by name only.
    pub(super) fn skip(&mut self, key: &'static str) {
        if self.find(key).is_some() {
            self.take(key, Kind::Text, None);
        } else {
            self.known.push(key);
        }
    }

    /// A table of strings that this version does not have.
    pub(super) fn unavailable_table(&mut self, key: &'static str, keys: &[&'static str]) {
        for layer in &self.layers {
            if let Some(node) = layer.table.get(key) {
                let path = join(&layer.path, key);
                self.report.refuse(Problem::new(
                    node.origin.clone(),
                    &path,
                    None,
                    Refusal::unavailable(),
                ));
            }
        }
        let mut table = self.child(key, Show::Given);
        keys.iter().for_each(|key| table.skip(key));
        table.finish();
    }

    /// The table under `key`, layer by layer.
    pub(super) fn child(&mut self, key: &'static str, show: Show) -> Section<'a> {
        self.child_over(key, show, Vec::new())
    }

    /// The same, with more layers under it.
    pub(super) fn child_over(
        &mut self,
        key: &'static str,
        show: Show,
        under: Vec<Layer>,
    ) -> Section<'a> {
        self.known.push(key);
        let mut origin = self.origin.clone();
        let mut layers = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let path = join(&layer.path, key);
            let mut inner = Layer {
                path,
                table: Table::new(),
                resets: if layer.resets.contains(&key) {
                    dialect::FINGERPRINT_ROWS
                } else {
                    &[]
                },
            };
            if let Some(node) = layer.table.get(key) {
                if at == 0 {
                    origin = node.origin.clone();
                }
                match Kind::Table.settle(node.value.clone(), &node.origin) {
                    Value::Table(table) => inner.table = table,
                    value => {
                        let node = Node {
                            value,
                            origin: node.origin.clone(),
                        };
                        self.refuse(key, &node, &inner.path, Refusal::wrong("it is not a table"));
                    }
                }
            }
            layers.push(inner);
        }
        layers.extend(under);
        let header = self.header.trim_matches(['[', ']']);
        let header = if header.is_empty() {
            format!("[{key}]")
        } else {
            format!("[{header}.{key}]")
        };
        Section::open(self.report, origin, &header, show, layers)
    }

    /// Ends the section: keys that nobody asked for are unknown. Their values are not shown, for they may be secrets.
    pub(super) fn finish(self) {
        let Some(own) = self.layers.first() else {
            return;
        };
        for (name, node) in &own.table {
            if !self.known.contains(&name.as_str()) {
                let path = join(&own.path, &source::Name(name).to_string());
                let refusal = Refusal::unknown(name, &self.known);
                self.report
                    .refuse(Problem::new(node.origin.clone(), &path, None, refusal));
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
    let (least, most) = (units::spelled(least), units::spelled(units::LONGEST));
    let allowed = format!(
        "a duration such as \"250ms\", \"30s\", \"2m\", \"24h\", \"7d\", from {least} to {most}"
    );
    read.map_err(|why| Refusal::wrong(why).allowed(allowed))
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

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

impl Kind {
    /// Text of the environment as a value of this kind, if it is one; every other value as it is.
    fn settle(self, value: Value, origin: &Origin) -> Value {
        let Value::Raw(text) = value else {
            return value;
        };
        if self == Self::Text {
            return Value::Text(text);
        }
        match source::value(&text, origin) {
            Some(parsed) if self.fits(&parsed) && !matches!(parsed, Value::Text(_)) => parsed,
            _ => Value::Text(text),
        }
    }

    fn fits(self, value: &Value) -> bool {
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

    const fn name(self) -> &'static str {
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
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn as_whole(&self) -> Option<i64> {
        match self {
            Self::Whole(number) => Some(*number),
            _ => None,
        }
    }

    fn as_flag(&self) -> Option<bool> {
        match self {
            Self::Flag(flag) => Some(*flag),
            _ => None,
        }
    }
}
