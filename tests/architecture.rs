//! Who may import whom: the arrows of the house, held against the code.

#![expect(
    clippy::expect_used,
    reason = "a test fails where its files cannot be read"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A room, and the rooms that it may enter. Nothing points up; `core` enters nothing.
const ARROWS: [(&str, &str); 22] = [
    (
        "main",
        "app cli config demo descriptors server tasks telemetry",
    ),
    ("cli", "config telemetry"),
    (
        "app",
        "admin config core descriptors flight identity limit otlp proxy server store tasks telemetry tls upstream",
    ),
    ("demo", "server tasks"),
    (
        "server",
        "bell config core limit net proxy tasks telemetry timers tls",
    ),
    ("admin", "config core store telemetry"),
    (
        "proxy",
        "config core flight identity limit route store tasks telemetry timers tls upstream",
    ),
    ("identity", "core tasks tls"),
    ("otlp", "config core store tasks telemetry tls"),
    ("flight", "core store"),
    ("store", "config core tasks telemetry"),
    (
        "upstream",
        "bell config core net tasks telemetry timers tls",
    ),
    ("route", "config core"),
    ("config", "core identity tls"),
    ("telemetry", "config core"),
    ("bell", ""),
    ("descriptors", ""),
    ("limit", ""),
    ("net", ""),
    ("timers", ""),
    ("tls", ""),
    ("core", ""),
];

#[test]
fn no_room_enters_another_that_it_may_not() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = ARROWS
        .iter()
        .map(|(room, others)| (*room, others.split_whitespace().collect()))
        .collect();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for file in files(&source) {
        let room = room_of(&file, &source);
        if room == "lib" || room == "tasks" {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source file");
        let others = allowed
            .get(room.as_str())
            .unwrap_or_else(|| panic!("{} is in no room that is drawn", file.display()));
        for other in imports(&text) {
            seen += 1;
            assert!(
                other == room || others.contains(other.as_str()),
                "{}: `{room}` must not enter `{other}`",
                file.display()
            );
        }
    }
    assert!(
        seen > 50,
        "only {seen} imports were found: the test looks past them"
    );
}

#[test]
fn the_core_is_pure() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
    for file in files(&source) {
        let text = fs::read_to_string(&file).expect("a source file");
        for banned in [
            "tokio::",
            "hyper::",
            "std::fs",
            "std::io",
            "SystemTime::now",
            "Instant::now",
            "getrandom::",
        ] {
            assert!(
                !text.contains(banned),
                "{}: the core knows no {banned}",
                file.display()
            );
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The first folder or file below `src`.
fn room_of(file: &Path, source: &Path) -> String {
    let inner = file.strip_prefix(source).expect("below src");
    let first = inner.components().next().expect("a name");
    let name = first.as_os_str().to_str().expect("ASCII");
    name.trim_end_matches(".rs").to_owned()
}

/// The rooms that a file names behind `crate::` or `idem_proxy::`, one at a time or in braces.
fn imports(text: &str) -> Vec<String> {
    let code = |line: &&str| !line.trim_start().starts_with("//");
    let text = &text.lines().filter(code).collect::<Vec<_>>().join("\n");
    let mut rooms = Vec::new();
    for prefix in ["crate::", "idem_proxy::"] {
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at + prefix.len()..];
            match rest.strip_prefix('{') {
                None => rooms.push(word(rest)),
                Some(list) => rooms.extend(first_level(list)),
            }
        }
    }
    // Types of the crate's own root, and the names of tracing targets.
    rooms.retain(|room| {
        !room.is_empty() && room.chars().all(|c| c.is_ascii_lowercase()) && room != "access"
    });
    rooms
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect()
}

/// The words that start the elements of a brace list.
fn first_level(list: &str) -> Vec<String> {
    let (mut depth, mut element, mut words) = (1, String::new(), Vec::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            words.push(word(element.trim_start()));
            element.clear();
            if depth == 0 {
                break;
            }
        } else {
            element.push(c);
        }
    }
    words
}

#[test]
fn brace_lists_are_read() {
    let text = "use crate::{\n    core::{path::Template, policy::RouteName},\n    store::Begin,\n};\nuse crate::net::Stream;";
    assert_eq!(imports(text), ["core", "store", "net"]);
}
