//! Dialects: presets of policy keys (contract, section 8), as data.
//!
//! A policy value comes from the first of these that names it: the route's own key, the key in `[policy]`, the preset of the
//! dialect (the route's own, else `[policy]`'s), the default. So a key that is given explicitly wins over every dialect,
//! wherever it stands: nobody loses `unknown_outcome = "hold"` by choosing a dialect for a route.

use super::{
    reader::Layer,
    source::{self, Origin},
};

/// A preset: its name, and where it differs from the defaults.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect {
    /// What `dialect` calls it.
    pub(super) name: &'static str,
    preset: &'static str,
}

impl Dialect {
    /// Its layer over the section at `path`; `chosen`: where the dialect was named.
    pub(super) fn layer(self, path: &str, chosen: Origin) -> Layer {
        Layer {
            path: path.to_owned(),
            table: source::preset(self.preset, &Origin::Preset(self.name, Box::new(chosen))),
        }
    }
}

/// Every dialect there is.
pub(super) const DIALECTS: [Dialect; 8] = [
    Dialect {
        name: "standard",
        preset: "",
    },
    Dialect {
        name: "ietf",
        preset: r#"
            key_syntax = "structured"
            in_flight = "conflict"
            store_responses = ["2xx", "3xx", "4xx", "5xx", "!401", "!403", "!408", "!425", "!429"]
            marker_header = ""
        "#,
    },
    Dialect {
        name: "iri",
        preset: r#"
            key_syntax = "raw"
            empty_key = "bypass"
            fingerprint = { method = false, path = false, query = "off", headers = [] }
            in_flight = "conflict"
            mismatch_in_flight = "conflict"
            unknown_outcome = "release"
            replay_headers = "none"
        "#,
    },
    Dialect {
        name: "single-flight",
        preset: r#"
            key_syntax = "raw"
            scope = "caller"
            unknown_hold = "2m"
            marker_header = ""
        "#,
    },
    Dialect {
        name: "platform",
        preset: r#"
            scope = "caller"
            fingerprint = { query = "off", headers = [] }
            in_flight = "conflict"
            store_responses = ["2xx", "3xx", "4xx", "!401", "!403", "!408", "!425", "!429"]
            retention_from = "start"
            unknown_hold = "2m"
            replay_headers = "none"
            marker_header = ""
            errors = "platform"
        "#,
    },
    Dialect {
        name: "stripe-v1",
        preset: r#"
            key_syntax = "raw"
            scope = "caller"
            fingerprint = { headers = [] }
            in_flight = "conflict"
            store_responses = ["2xx", "3xx", "4xx", "5xx", "!400", "!401", "!403", "!409", "!429"]
            unknown_hold = "2m"
            marker_header = "Idempotent-Replayed"
            marker_miss = ""
            marker_hit = "true"
            errors = "stripe"
        "#,
    },
    Dialect {
        name: "stripe-v2",
        preset: r#"
            key_syntax = "raw"
            scope = "caller"
            fingerprint = { headers = [] }
            in_flight = "conflict"
            retention = "30d"
            unknown_outcome = "release"
            marker_header = "Idempotent-Replayed"
            marker_miss = ""
            marker_hit = "true"
            errors = "stripe"
        "#,
    },
    Dialect {
        name: "aws",
        preset: r#"
            key_sources = ["form:ClientToken", "query:ClientToken", "json:/clientToken", "json:/ClientToken"]
            key_syntax = "raw"
            key_max_length = 64
            empty_key = "bypass"
            scope = "caller"
            fingerprint = { method = false, path = false, headers = [] }
            unknown_hold = "2m"
            marker_header = ""
            errors = "aws-xml"
        "#,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::Value;

    /// The policy keys that a dialect sets.
    const ROWS: &[&str] = &[
        "key_sources",
        "key_syntax",
        "key_max_length",
        "empty_key",
        "scope",
        "fingerprint",
        "in_flight",
        "mismatch_in_flight",
        "store_responses",
        "retention",
        "retention_from",
        "unknown_outcome",
        "unknown_hold",
        "replay_headers",
        "marker_header",
        "marker_miss",
        "marker_hit",
        "errors",
    ];

    /// The keys of `fingerprint` that a dialect sets; `ignore` and `only` are the API's own.
    const FINGERPRINT_ROWS: &[&str] = &["method", "path", "query", "headers", "body"];

    #[test]
    fn presets_are_valid_and_name_only_their_rows() {
        for dialect in DIALECTS {
            let table = source::document(dialect.preset).expect(dialect.name);
            for (name, node) in &table {
                assert!(ROWS.contains(&name.as_str()), "{}: {name}", dialect.name);
                if let Value::Table(rule) = &node.value {
                    let known = |key: &String| FINGERPRINT_ROWS.contains(&key.as_str());
                    assert!(rule.keys().all(known), "{}", dialect.name);
                }
            }
        }
    }
}
