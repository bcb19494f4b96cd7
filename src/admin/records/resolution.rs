//! The document that settles an unknown outcome: `{"outcome":"release"}`, or `{"outcome":"complete","status":201,"headers":{…},"body":"…"}`.
//!
//! Nothing is passed over: what is not understood, or could not be replayed, is refused.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{CONTENT_LENGTH, SET_COOKIE, TRAILER},
};
use serde_json::{Map, Value};

use crate::core::{
    canonical::is_json,
    headers::{is_bodyless, is_hop_by_hop},
    record::StoredAnswer,
};

/// As many header lines as an answer of the upstream may have.
const MAX_LINES: usize = 100;

/// And as many bytes of names and values.
const MAX_HEAD: usize = 64 << 10;

/// What an operator says of an unknown outcome.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Nothing was executed.
    Release,
    /// This is the answer.
    Complete(Given),
}

/// An answer that an operator gives.
pub(super) struct Given {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl std::fmt::Debug for Given {
    /// Status and sizes alone: an answer's content is not for logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Given")
            .field("status", &self.status.as_u16())
            .field("headers", &self.headers.len())
            .field("body", &self.body.len())
            .finish()
    }
}

impl Given {
    pub(super) fn has_cookies(&self) -> bool {
        self.headers.contains_key(SET_COOKIE)
    }

    pub(super) fn body_len(&self) -> usize {
        self.body.len()
    }

    pub(super) fn into_stored(self) -> StoredAnswer {
        StoredAnswer::capture(self.status, &self.headers, &self.body)
    }
}

impl Wanted {
    /// Reads the document.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        // It refuses a member that stands twice, too, which a map would hide.
        let document = Some(text).filter(|text| is_json(text));
        let document = document.and_then(|text| serde_json::from_slice(text).ok());
        let Some(Value::Object(mut members)) = document else {
            return Err("The body is no JSON object without duplicate members.".into());
        };
        let outcome = members.remove("outcome");
        let wanted = match outcome.as_ref().and_then(Value::as_str) {
            Some("release") => Self::Release,
            Some("complete") => Self::Complete(complete(&mut members)?),
            _ => return Err("outcome is \"release\" or \"complete\".".into()),
        };
        match members.keys().next() {
            None => Ok(wanted),
            Some(name) => Err(format!(
                "{} is no member of this document: with \"release\" there is outcome alone, with \"complete\" there are outcome, status, \
                 headers and body.",
                quoted(name)
            )),
        }
    }
}

/// Takes status, headers and body.
fn complete(members: &mut Map<String, Value>) -> Result<Given, String> {
    let status = members.remove("status");
    let status = status.as_ref().and_then(Value::as_u64);
    let status = status
        .and_then(|status| u16::try_from(status).ok())
        .filter(|status| (200..600).contains(status))
        .and_then(|status| StatusCode::from_u16(status).ok())
        .ok_or("status is a number from 200 to 599.")?;
    let body = match members.remove("body") {
        None => Bytes::new(),
        Some(Value::String(text)) => text.into(),
        Some(_) => return Err("body is a string.".into()),
    };
    if !body.is_empty()
        && (is_bodyless(&Method::POST, status) || status == StatusCode::RESET_CONTENT)
    {
        return Err(format!(
            "An answer of status {} has no body.",
            status.as_u16()
        ));
    }
    let headers = match members.remove("headers") {
        None => HeaderMap::new(),
        Some(Value::Object(lines)) => headers(lines)?,
        Some(_) => return Err("headers is an object.".into()),
    };
    Ok(Given {
        status,
        headers,
        body,
    })
}

fn headers(lines: Map<String, Value>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut size = 0;
    for (name, value) in lines {
        let own = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{} is no name of a header.", quoted(&name)))?;
        if is_hop_by_hop(&own) || own == CONTENT_LENGTH || own == TRAILER {
            return Err(format!(
                "{own} is not kept with an answer: it is made anew for each connection."
            ));
        }
        let values = match value {
            Value::Array(values) => values,
            one => vec![one],
        };
        for value in values {
            let Value::String(text) = value else {
                return Err(format!("{own} is a string, or a list of strings."));
            };
            let value = HeaderValue::from_bytes(text.trim_matches([' ', '\t']).as_bytes())
                .map_err(|_| {
                    format!("The value of {own} has a character that a header cannot have.")
                })?;
            size += own.as_str().len() + value.len();
            // Before it is put in: a map takes only so many.
            if headers.len() >= MAX_LINES || size > MAX_HEAD {
                return Err(format!(
                    "An answer has at most {MAX_LINES} header lines, and {MAX_HEAD} bytes of them."
                ));
            }
            headers.append(own.clone(), value);
        }
    }
    Ok(headers)
}

/// A name that somebody sent, short enough to be shown.
fn quoted(name: &str) -> String {
    let shown: String = name.chars().take(64).collect();
    format!("{shown:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Given {
        match Wanted::parse(text.as_bytes()) {
            Ok(Wanted::Complete(given)) => given,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_outcomes_are_read() {
        assert!(matches!(
            Wanted::parse(br#" {"outcome": "release"} "#),
            Ok(Wanted::Release)
        ));
        let bare = given(r#"{"outcome":"complete","status":204}"#).into_stored();
        assert_eq!(
            (bare.status(), bare.headers().len()),
            (StatusCode::NO_CONTENT, 0)
        );
        let whole = given(
            r#"{"outcome":"complete","status":201,"body":"{\"id\":9}\u00e9",
                "headers":{"Location":" /o/9 ","X-A":["1","2"],"x-a":"3","X-Odd":"caf\u00e9"}}"#,
        );
        assert!(!whole.has_cookies());
        let whole = whole.into_stored();
        assert_eq!(&whole.body()[..], "{\"id\":9}é".as_bytes());
        let lines = |name: &str| -> Vec<&[u8]> {
            let own = whole.headers().iter().filter(|(own, _)| own == name);
            own.map(|(_, value)| value.as_bytes()).collect()
        };
        assert_eq!(lines("location"), [b"/o/9"]);
        assert_eq!(lines("x-a"), [b"1", b"2", b"3"]);
        assert_eq!(lines("x-odd"), ["café".as_bytes()]);
        let cookie = r#"{"outcome":"complete","status":200,"headers":{"Set-Cookie":"a=b"}}"#;
        assert!(given(cookie).has_cookies());
    }

    #[test]
    fn what_is_not_understood_or_could_not_be_replayed_is_refused() {
        let complete = |more: &str| format!(r#"{{"outcome":"complete","status":200,{more}}}"#);
        let many: Vec<_> = (0..101).map(|n| format!(r#""x-{n}":"1""#)).collect();
        let long = "x".repeat(65 << 10);
        for (text, says) in [
            (String::new(), "no JSON object"),
            ("[]".into(), "no JSON object"),
            (r#"{"outcome":"release"} x"#.into(), "no JSON object"),
            (
                r#"{"outcome":"release","outcome":"complete"}"#.into(),
                "no JSON object",
            ),
            ("{}".into(), "outcome is"),
            (r#"{"outcome":"Release"}"#.into(), "outcome is"),
            (
                r#"{"outcome":"release","status":200}"#.into(),
                "\"status\" is no member",
            ),
            (r#"{"outcome":"complete"}"#.into(), "status is"),
            (r#"{"outcome":"complete","status":101}"#.into(), "status is"),
            (r#"{"outcome":"complete","status":600}"#.into(), "status is"),
            (
                r#"{"outcome":"complete","status":"200"}"#.into(),
                "status is",
            ),
            (
                r#"{"outcome":"complete","status":65736}"#.into(),
                "status is",
            ),
            (
                r#"{"outcome":"complete","status":204,"body":"x"}"#.into(),
                "has no body",
            ),
            (
                r#"{"outcome":"complete","status":304,"body":"x"}"#.into(),
                "has no body",
            ),
            (complete(r#""body":{}"#), "body is a string"),
            (complete(r#""body_base64":"""#), "body_base64"),
            (complete(r#""headers":[]"#), "headers is an object"),
            (complete(r#""headers":{"":"1"}"#), "no name of a header"),
            (complete(r#""headers":{"a b":"1"}"#), "no name of a header"),
            (complete(r#""headers":{"a":1}"#), "a string, or a list"),
            (
                complete(r#""headers":{"a":["1",null]}"#),
                "a string, or a list",
            ),
            (complete(r#""headers":{"a":"1\r\nb: 2"}"#), "a character"),
            (
                complete(r#""headers":{"Connection":"close"}"#),
                "connection is not kept",
            ),
            (
                complete(r#""headers":{"Transfer-Encoding":"chunked"}"#),
                "not kept",
            ),
            (complete(r#""headers":{"content-length":"2"}"#), "not kept"),
            (complete(r#""headers":{"Trailer":"x"}"#), "not kept"),
            (
                complete(&format!(r#""headers":{{{}}}"#, many.join(","))),
                "at most 100",
            ),
            (
                complete(&format!(r#""headers":{{"a":"{long}"}}"#)),
                "at most 100",
            ),
        ] {
            let why = Wanted::parse(text.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
            assert!(why.len() < 300, "{why}");
        }
    }
}
