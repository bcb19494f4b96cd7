//! Test vectors of structured fields, run through the reading of keys: those of the HTTP working group
//! (`httpwg/`), and our own (`keys.json`) for what theirs leave out: parameters behind a string, and bare keys.

use std::{fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use idem_proxy::{
    config,
    core::{
        carrier::{BodyKind, Document},
        key::{self, Head, KeyFound},
        policy::Policy,
    },
};
use serde_json::Value;

fn file(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let text = fs::read(path.join(name)).expect(name);
    serde_json::from_slice(&text).expect(name)
}

fn policy(syntax: &str) -> Arc<Policy> {
    let text = format!(
        "[policy]\nkey_syntax = \"{syntax}\"\nkey_max_length = 1024\n\
         [[route]]\nname = \"r\"\nmethods = [\"POST\"]\npath = \"/\"\n"
    );
    let loaded = config::parse("vectors", &text, []).loaded();
    let config = loaded.unwrap_or_else(|said| panic!("{said}")).config;
    Arc::clone(&config.routes[0].policy)
}

/// The key of a request with these lines; `None`: it is refused, here or because no header can have such a value.
fn key(policy: &Policy, lines: &[&str]) -> Option<String> {
    let mut headers = HeaderMap::new();
    for line in lines {
        // As on the wire: the white space around a value is no part of it (RFC 9110, section 5.5).
        let value = HeaderValue::from_bytes(line.trim_matches([' ', '\t']).as_bytes()).ok()?;
        headers.append("idempotency-key", value);
    }
    let head = Head {
        headers: &headers,
        query: None,
    };
    let document = Document::new(BodyKind::Opaque, Bytes::new());
    match key::find(policy, head, &document) {
        Ok(KeyFound::Key(key)) => Some(String::from_utf8(key.as_bytes().to_vec()).expect("ASCII")),
        Ok(other) => panic!("{lines:?}: {other:?}"),
        Err(_) => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

/// What a bare value is as a key (visible ASCII without comma and space), told apart from the product's own words.
fn bare(value: &str) -> Option<String> {
    let visible = |c: char| ('!'..='~').contains(&c) && c != ',';
    (!value.is_empty() && value.chars().all(visible)).then(|| value.to_owned())
}

#[test]
fn the_working_groups_strings_are_keys_and_nothing_else_is() {
    let (structured, either) = (policy("structured"), policy("either"));
    let (mut keys, mut refused) = (0, 0);
    for name in [
        "string",
        "string-generated",
        "item",
        "token",
        "number",
        "boolean",
        "binary",
        "date",
        "display-string",
    ] {
        let vectors = file(&format!("httpwg/{name}.json"));
        for vector in vectors.as_array().expect("a list") {
            let about = &vector["name"];
            let raw: Vec<&str> = vector["raw"]
                .as_array()
                .expect("lines")
                .iter()
                .filter_map(text)
                .collect();
            // A list's members may be items that stand alone; here each is one item too many, or the same item.
            if vector["header_type"] != "item" {
                continue;
            }
            let string = text(&vector["expected"][0]).filter(|content| !content.is_empty());
            let wanted = string.map(str::to_owned);
            assert_eq!(key(&structured, &raw), wanted, "{name}: {about}");
            let [line] = raw[..] else { panic!("{about}") };
            let line = line.trim_matches([' ', '\t']);
            let quoted = line.starts_with('"');
            let wanted = if quoted { wanted } else { bare(line) };
            assert_eq!(key(&either, &raw), wanted, "{name}: {about}");
            keys += usize::from(string.is_some());
            refused += usize::from(string.is_none());
        }
    }
    assert!(keys > 90 && refused > 200, "{keys} keys, {refused} refused");
}

#[test]
fn our_own_values_are_read_as_they_say() {
    let vectors = file("keys.json");
    let vectors = vectors["values"].as_array().expect("a list");
    assert!(vectors.len() > 50);
    for syntax in ["structured", "either"] {
        let policy = policy(syntax);
        for vector in vectors {
            let raw = text(&vector["raw"]).expect("a value");
            assert_eq!(
                key(&policy, &[raw]).as_deref(),
                text(&vector[syntax]),
                "{syntax}: {raw}"
            );
        }
    }
}

#[test]
fn two_lines_are_never_one_value() {
    for syntax in ["structured", "either", "raw"] {
        let policy = policy(syntax);
        for lines in [["\"a", "b\""], ["\"a\"", "\"a\""], ["\"a\";x", "y"]] {
            assert_eq!(key(&policy, &lines), None, "{syntax}: {lines:?}");
        }
    }
}
