//! docs/keys.md: each place that it names is read as it says.

use std::sync::Arc;

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

use crate::markdown::{blocks, file, table, word};

/// The policy of the configuration that the document shows.
fn policy() -> Arc<Policy> {
    let document = file("docs/keys.md");
    let blocks = blocks(&document, "toml");
    assert_eq!(blocks.len(), 1);
    let loaded = config::parse("docs/keys.md", blocks[0], []).loaded();
    let config = loaded
        .unwrap_or_else(|problems| panic!("{problems}"))
        .config;
    Arc::clone(&config.routes[0].policy)
}

/// What a request says of its key: `true` where it is `k`, `None` where it is refused.
fn has_key(query: &str, media_type: &str, body: &str) -> Option<bool> {
    let policy = policy();
    let mut headers = HeaderMap::new();
    if !media_type.is_empty() {
        headers.insert(
            "content-type",
            HeaderValue::from_str(media_type).expect("a type"),
        );
    }
    let kind = BodyKind::of(&policy.key_sources, &headers);
    let document = Document::new(kind, Bytes::copy_from_slice(body.as_bytes()));
    let head = Head {
        headers: &headers,
        query: Some(query),
    };
    match key::find(&policy, head, &document) {
        Ok(KeyFound::Key(key)) => Some(key.as_bytes() == b"k"),
        Ok(KeyFound::Absent | KeyFound::Bypassed) => Some(false),
        Err(_) => None,
    }
}

#[test]
fn its_table_has_every_source_that_a_configuration_takes() {
    let document = file("docs/keys.md");
    let rows = table(&document, "source");
    assert_eq!(rows.len(), policy().key_sources.len());
    for row in rows {
        let source = word(row[0]);
        let text = format!("[policy]\nkey_sources = [\"{source}\"]\n");
        assert!(config::parse("it", &text, []).loaded().is_ok(), "{source}");
    }
}

#[test]
fn places_are_read_as_it_says() {
    const FORM: &str = "application/x-www-form-urlencoded";
    for (query, media_type, body, wanted) in [
        ("token=k", "", "", Some(true)),
        ("token=%6b", "", "", Some(true)),
        ("token=k&token=k", "", "", None),
        ("token=%6", "", "", None),
        ("token=a+b", "", "", None),
        ("Token=k", "", "", Some(false)),
        ("", FORM, "token=k", Some(true)),
        ("", FORM, "token=k&token=k", None),
        ("", "text/plain", "token=k", Some(false)),
        (
            "",
            "application/json",
            r#"{"meta":{"token":"k"}}"#,
            Some(true),
        ),
        ("", "text/x+json", r#"{"meta":{"token":"k"}}"#, Some(true)),
        (
            "",
            "application/x-amz-json-1.0",
            r#"{"meta":{"token":"k"}}"#,
            Some(true),
        ),
        ("", "", r#"{"meta":{"token":"k"}}"#, Some(true)),
        ("", "", r#"{"meta":{"token":null}}"#, Some(false)),
        ("", "", r#"{"meta":{"token":1}}"#, None),
        ("", "", r#"{"meta":{"token":"k"},"a":1,"a":1}"#, Some(true)),
        ("", "", r#"{"meta":{"token":"k"},"meta":{}}"#, None),
        ("", "", "{", Some(false)),
        ("token=k", "", r#"{"meta":{"token":1}}"#, Some(true)),
    ] {
        assert_eq!(
            has_key(query, media_type, body),
            wanted,
            "{query} {media_type} {body}"
        );
    }
}
