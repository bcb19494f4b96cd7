//! What of a value may be shown. Nothing of a URL's credentials ever is: not printed, not in a message.

use super::source::{Node, Value};

/// Keys whose values are URLs that may carry credentials.
const URLS: [&str; 3] = ["url", "jwks_url", "otlp_endpoint"];

/// The value of `key`, which stands at `path`, without its secrets.
pub(super) fn shown(key: &str, path: &str, value: &Value) -> Value {
    if !URLS.contains(&key) {
        return value.clone();
    }
    match value {
        // What should be the URL of a store and is none may be its password alone.
        Value::Raw(text) | Value::Text(text)
            if path.starts_with("store.") && !text.contains("://") =>
        {
            Value::text("***")
        }
        Value::Raw(text) | Value::Text(text) => Value::Text(url(text)),
        Value::List(items) => Value::List(
            items
                .iter()
                .map(|item| Node {
                    value: shown(key, path, &item.value),
                    origin: item.origin.clone(),
                })
                .collect(),
        ),
        Value::Table(_) | Value::Odd(_) | Value::Whole(_) | Value::Ratio(_) => Value::text("***"),
        Value::Flag(_) => value.clone(),
    }
}

/// A URL with `***` for its password, and for its query if it has credentials at all.
pub(super) fn url(text: &str) -> String {
    // The last `@` ends the credentials: a password may hold one that is not escaped.
    let Some((before, after)) = text.rsplit_once('@') else {
        return match text.split_once('?') {
            Some((plain, _)) => format!("{plain}?***"),
            None => text.to_owned(),
        };
    };
    let Some((scheme, credentials)) = before.split_once("://") else {
        return "***".into();
    };
    let host = after.split('?').next().unwrap_or_default();
    let query = if after.contains('?') { "?***" } else { "" };
    match credentials.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{host}{query}"),
        None => format!("{scheme}://***@{host}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credential_of_a_url_is_shown() {
        for (text, wanted) in [
            ("redis://user:hunter2@h:6379", "redis://user:***@h:6379"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("redis://hunter2@h", "redis://***@h"),
            ("redis://u:hun@ter2/x?y@h/0", "redis://u:***@h/0"),
            ("postgres://h/db?password=hunter2", "postgres://h/db?***"),
            (
                "postgres://u:p@h/db?password=hunter2",
                "postgres://u:***@h/db?***",
            ),
            ("user:hunter2@h", "***"),
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("ftp://x", "ftp://x"),
        ] {
            assert_eq!(
                shown("url", "upstream.url", &Value::text(text)),
                Value::text(wanted),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_url_may_be_the_password() {
        let hidden = Value::text("***");
        for value in [Value::text("hunter2"), Value::Whole(123_456)] {
            assert_eq!(shown("url", "store.redis.url", &value), hidden);
        }
        let wrong = Value::text("localhost:3000");
        assert_eq!(shown("url", "upstream.url", &wrong), wrong);
    }

    #[test]
    fn other_keys_are_shown_as_they_are() {
        let text = Value::text("urn:a:b@c?d");
        assert_eq!(shown("problem_base", "policy.problem_base", &text), text);
    }
}
