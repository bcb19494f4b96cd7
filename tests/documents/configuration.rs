//! docs/configuration.md is made of the example configuration and of what the code says of wrong values. Where it differs, either is false:
//! `UPDATE_DOCUMENTS=1` writes it anew.

use std::{fmt::Write as _, path::Path};

use idem_proxy::config;

use crate::markdown::file;

const PATH: &str = "docs/configuration.md";

const HEAD: &str = "# Configuration reference

Every key of this version, its default, and what it takes. Made from [config.example.toml](../config.example.toml) and from the code: do not edit it by hand
(`UPDATE_DOCUMENTS=1 cargo test --test documents configuration`).

- Precedence: environment, file, defaults. The environment variable is the section and the key in upper case, joined by `__`, lists written as in TOML; routes come from the file only. A
  variable without `__` is never a setting.
- Durations: `\"250ms\"`, `\"30s\"`, `\"2m\"`, `\"24h\"`, `\"7d\"`. Sizes: `\"512B\"`, `\"64KiB\"`, `\"1MiB\"`, `\"4GiB\"`.
- A value that is not allowed, an unknown key, a wrong type: nothing starts (exit status 2), a reload is refused, and every such problem is named at once. No value is
  rounded or cut to fit.
- **restart**: a change needs one, and a reload with it is refused whole. Everything else is in effect at a reload, for what begins afterwards.
- What is exceeded, and what happens then: [README](../README.md#bounds). An optional section is marked; where it is left out, the keys of the chosen store have their defaults, and the others no effect.
";

/// One key of the example.
#[derive(Debug)]
struct Key<'a> {
    name: &'a str,
    value: &'a str,
    meaning: &'a str,
    /// It is commented out: there is no default, or its section is not there by default.
    shown: bool,
}

/// The value and the comment of what stands behind `=`.
fn split(text: &str) -> (&str, &str) {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => return (text[..at].trim(), text[at + 1..].trim()),
            _ => {}
        }
    }
    (text.trim(), "")
}

/// The sections of the example in its order: header as written, its comment, whether it is there by default, its keys.
fn sections(example: &str) -> Vec<(&str, &str, bool, Vec<Key<'_>>)> {
    let mut sections = Vec::new();
    for line in example.lines() {
        let (text, shown) = match line.strip_prefix("# ") {
            Some(text) => (text, false),
            None => (line, true),
        };
        if text.starts_with('[') {
            let (header, comment) = split(text);
            sections.push((header, comment, shown, Vec::new()));
        } else if let Some((name, rest)) = text.split_once(" = ")
            && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            && let Some((_, _, _, keys)) = sections.last_mut()
        {
            let (value, meaning) = split(rest);
            keys.push(Key {
                name,
                value,
                meaning,
                shown,
            });
        }
    }
    sections
}

/// What the code says that the key takes: its type, then what is allowed where only some of it is.
fn allowed(header: &str, key: &str) -> String {
    let said = |value: &str| {
        let text = format!("{header}\n{key} = {value}\n");
        let reading = config::parse("probe", &text, []);
        let problems = reading.problems.to_string();
        let line = problems.lines().find(|line| {
            line.split(": ")
                .nth(1)
                .is_some_and(|path| path.contains(key))
        });
        line.map(str::to_owned)
    };
    let wrong = |value: &str| Some(said(value)?.rsplit_once("it is not ")?.1.to_owned());
    // A date is of no type that a key has.
    let kind = wrong("2026-01-01").or_else(|| wrong("{}"));
    let probes = ["\"\\u0001 no\"", "-7", "[\"\\u0001 no\"]", "0"];
    let rule = probes.iter().find_map(|value| {
        let line = said(value)?;
        let (_, rule) = line.split_once("; allowed: ")?;
        let end = rule.find("; did you mean").unwrap_or(rule.len());
        Some(rule[..end].to_owned())
    });
    let kind = kind.map(|kind| kind.split("; ").next().unwrap_or_default().to_owned());
    match (kind, rule) {
        (Some(kind), Some(rule)) if rule.starts_with(&kind) => rule,
        (Some(kind), Some(rule)) => format!("{kind}: {rule}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => panic!("{header} {key}: nothing is refused"),
    }
}

fn restart(line: &str, section: &str, key: &str) -> bool {
    let whole = section.split('.').next().unwrap_or_default();
    line.contains(&format!("[{whole}]")) || line.contains(&format!("{section}.{key}"))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn made() -> String {
    let example = file("config.example.toml");
    let line = example
        .lines()
        .find_map(|line| line.split_once("A restart is needed for: "))
        .expect("what needs a restart")
        .1;
    let mut text = HEAD.to_owned();
    for (header, comment, shown, keys) in sections(&example) {
        let section = header.trim_matches(['[', ']']);
        let optional = if shown { "" } else { " (optional)" };
        let title = header.replace("billing", "NAME");
        write!(text, "\n## {title}{optional}\n\n").expect("written");
        if !comment.is_empty() {
            write!(text, "{}.\n\n", cell(comment)).expect("written");
        }
        text.push_str("| key | default | takes | meaning | environment | change |\n|---|---|---|---|---|---|\n");
        for key in keys {
            let usual = key.meaning_is_default() || (section, key.name) == ("store.redis", "url");
            let default = if let Some(default) = unlike_the_example(section, key.name) {
                default.to_owned()
            } else if key.shown || !shown && usual {
                format!("`{}`", cell(key.value))
            } else {
                format!("none; e.g. `{}`", cell(key.value))
            };
            let variable = if section == "route" {
                "–".to_owned()
            } else {
                let parts = section.replace("billing", "NAME");
                let parts = parts.to_uppercase().replace('.', "__");
                format!("`IDEM_PROXY_{parts}__{}`", key.name.to_uppercase())
            };
            let change = if restart(line, section, key.name) {
                "restart"
            } else {
                "reload"
            };
            writeln!(
                text,
                "| `{}` | {default} | {} | {} | {variable} | {change} |",
                key.name,
                cell(&allowed(header, key.name)),
                cell(key.meaning),
            )
            .expect("written");
        }
    }
    text
}

/// The default where the example shows something else, for a route and a second upstream have to be made up.
fn unlike_the_example(section: &str, key: &str) -> Option<&'static str> {
    match (section, key) {
        ("route", "name" | "methods" | "path") | ("upstreams.billing", "url") => {
            Some("none: required")
        }
        ("route", "key") => Some("that of `[policy]`"),
        _ => None,
    }
}

impl Key<'_> {
    /// Whether the value of a section that is commented out is what the code takes for it, once the section is there.
    fn meaning_is_default(&self) -> bool {
        matches!(
            self.name,
            "client_auth"
                | "topology"
                | "timeout"
                | "allow_eviction"
                | "wait_replicas"
                | "max_bytes"
                | "path"
        )
    }
}

#[test]
fn the_reference_is_what_the_code_and_the_example_make() {
    let made = made();
    if std::env::var_os("UPDATE_DOCUMENTS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PATH);
        std::fs::write(path, &made).expect("written");
    }
    let written = file(PATH);
    for (made, written) in made.lines().zip(written.lines()) {
        assert_eq!(made, written, "see the head of this module");
    }
    assert_eq!(made.len(), written.len());
    assert!(made.lines().count() > 120, "{made}");
}
