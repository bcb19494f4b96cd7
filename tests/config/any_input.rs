//! No input makes reading fail in another way than by its problems.

use proptest::prelude::*;

use crate::common::{ROUTE, load_with};

/// Words that make deep readings likely.
const WORDS: &str = "(server|admin|upstream|upstreams|store|redis|memory|identity|policy|route|fingerprint|tls|url|listen|from|key|\
                     dialect|retention|name|methods|path|key_format|key_required_if|errors|jwt)";

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "\"[ -~&&[^\"\\\\]]{0,12}\"",
        "-?[0-9]{1,22}",
        "(true|false|1979-05-27|inf|nan|0x1f|1e400)",
        "\"(stripe-v1|ietf|aws|uuid|forever|24h|0s|1MiB|header:a|unix:/a|/a/\\{id\\}|POST)\"",
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            (WORDS, inner).prop_map(|(name, value)| format!("{{ {name} = {value} }}")),
        ]
    })
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (WORDS, value()).prop_map(|(name, value)| format!("{name} = {value}")),
        2 => WORDS.prop_map(|name| format!("[{name}]")),
        1 => (WORDS, WORDS).prop_map(|(a, b)| format!("[{a}.{b}]")),
        1 => Just("[[route]]".to_owned()),
    ]
}

proptest! {
    #[test]
    fn any_toml_is_read_or_refused(lines in prop::collection::vec(line(), 0..12)) {
        let _ = load_with(&lines.join("\n"), &[]);
    }

    #[test]
    fn any_table_under_any_section_is_read_or_refused(section in WORDS, key in WORDS, value in value()) {
        let _ = load_with(&format!("[{section}]\n{key} = {value}\n"), &[]);
        let _ = load_with(&format!("{ROUTE}{key} = {value}\n"), &[]);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = load_with(&text, &[]);
    }

    #[test]
    fn any_variable_is_read_or_refused(a in WORDS, b in WORDS, c in "(__[A-Z_]{0,5})?", value in "\\PC{0,20}") {
        let name = format!("IDEM_PROXY_{}__{}{c}", a.to_uppercase(), b.to_uppercase());
        let _ = load_with("", &[(&name, &value)]);
    }
}

#[test]
fn deep_nesting_is_refused() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("a{} = 1", ".a".repeat(100_000)),
    ] {
        assert!(load_with(&text, &[]).is_err());
    }
    let deep = "[".repeat(100_000);
    assert!(load_with("", &[("IDEM_PROXY_SERVER__LISTEN", &deep)]).is_err());
}
