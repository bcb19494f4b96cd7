//! The reader: each call names a key, its kind, its default and its bounds, and so the schema stands in the calls alone.
//!
//! A [`Section`] remembers which keys it was asked for: what is left over when it is finished is unknown. It records
//! every effective value for `--print-config`. A wrong value is reported and read as `None`, so that reading goes on
//! and every problem is found; where nothing is reported, nothing is `None`.

use std::cell::RefCell;

use super::{
    dialect::Dialect,
    kinds::Kind,
    printed::Printed,
    problem::{Problem, Refusal},
    secret,
    source::{self, Node, Origin, Table, Value},
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

/// Something is wrong with a section, and has been reported.
#[derive(Debug)]
pub(super) struct Reported;

/// One source of a section's values. Earlier layers win over later ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    /// Where it stands, as messages say it: `policy`, `route[orders]`.
    pub(super) path: String,
    /// Its values.
    pub(super) table: Table,
}

/// Which keys of a section `--print-config` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// All of them.
    All,
    /// Those that are given: the section is not in effect.
    Given,
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
                let layer = Layer { path, table };
                let section =
                    Section::open(self.report, node.origin, &header, Show::All, vec![layer]);
                sections.push((name, section));
            }
        }
        sections
    }

    /// Puts the preset of the dialect that counts under every key that is given explicitly; where no layer names a dialect, there is none.
    pub(super) fn choose_preset(&mut self, dialect: Dialect) {
        let naming = |layer: &Layer| layer.table.get("dialect").map(|node| node.origin.clone());
        let found = self
            .layers
            .iter()
            .find_map(|layer| Some((naming(layer)?, layer.path.clone())));
        if let Some((chosen, path)) = found {
            self.layers.push(dialect.layer(&path, chosen));
        }
    }

    fn own(&self, key: &str) -> Option<&Node> {
        self.layers.first().and_then(|layer| layer.table.get(key))
    }

    /// The value of `key` in the first layer that has one, and its path.
    pub(super) fn find(&self, key: &str) -> Option<(Node, String)> {
        for layer in &self.layers {
            if let Some(node) = layer.table.get(key) {
                return Some((node.clone(), join(&layer.path, key)));
            }
        }
        None
    }

    /// How far down the first layer with `key` lies; `None`: no layer has it.
    pub(super) fn depth(&self, key: &str) -> Option<usize> {
        self.layers
            .iter()
            .position(|layer| layer.table.contains_key(key))
    }

    /// A key that another one overrules: it is known, and not in effect.
    pub(super) fn overruled(&mut self, key: &'static str) {
        self.known.push(key);
    }

    /// The value of `key`, of the right kind, recorded; `None`: it is refused, or there is none.
    pub(super) fn take(
        &mut self,
        key: &'static str,
        kind: Kind,
        default: Option<Value>,
    ) -> Option<(Node, String)> {
        self.take_of(key, kind, default, None)
    }

    /// The same; a value of the wrong kind is told what is allowed.
    pub(super) fn take_of(
        &mut self,
        key: &'static str,
        kind: Kind,
        default: Option<Value>,
        allowed: Option<&str>,
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
            let value = secret::shown(key, &path, &node.value);
            self.report.printed.borrow_mut().add(place, key, value);
        }
        if kind.fits(&node.value) {
            return Some((node, path));
        }
        let refusal = Refusal::wrong(format!("it is not {}", kind.name()));
        let refusal = match allowed {
            Some(allowed) => refusal.allowed(allowed),
            None => refusal,
        };
        self.refuse(key, &node, &path, refusal);
        None
    }

    /// Reports a value.
    pub(super) fn refuse(&self, key: &str, node: &Node, path: &str, refusal: Refusal) {
        let shown = secret::shown(key, path, &node.value);
        self.report.refuse(Problem::new(
            node.origin.clone(),
            path,
            Some(shown),
            refusal,
        ));
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
            let layer = Layer { path, table };
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

    /// A key whose value is known by name only.
    pub(super) fn skip(&mut self, key: &'static str) {
        self.take(key, Kind::Text, None);
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

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
