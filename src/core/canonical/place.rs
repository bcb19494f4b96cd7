//! Where a JSON pointer leads: the value that stands there, and the document without it.
//!
//! The text is one that [`is_json`](super::is_json) takes: what is asked here is where things stand, not whether they may.
//! In any other text nothing is found, or something that means nothing; nothing goes wrong.

use std::ops::Range;

use super::wanted::Step;
use crate::core::policy::JsonPointer;

/// The text of the value that `pointer` leads to, without white space around it.
#[must_use]
pub fn value_at<'t>(document: &'t [u8], pointer: &JsonPointer) -> Option<&'t [u8]> {
    document.get(find(document, pointer)?.value)
}

/// The document without what `pointer` leads to, every byte beside it as it was: a member goes with its name, its comma and
/// the white space behind that; an element keeps its place, and is `null`. `None`: it leads nowhere.
#[must_use]
pub fn without_value(document: &[u8], pointer: &JsonPointer) -> Option<Vec<u8>> {
    let place = find(document, pointer)?;
    let (cut, instead) = match place.inside {
        Inside::Object { member } => (member, &b""[..]),
        Inside::Array | Inside::Nothing => (place.value, &b"null"[..]),
    };
    let (before, after) = (document.get(..cut.start)?, document.get(cut.end..)?);
    Some([before, instead, after].concat())
}

/// Whether a name on the way to where `pointer` leads is that of several members of its object: nobody can tell which one is meant.
#[must_use]
pub fn is_ambiguous(document: &[u8], pointer: &JsonPointer) -> bool {
    let mut reader = Reader {
        text: document,
        at: 0,
    };
    reader.white();
    for token in pointer.tokens() {
        let found = match reader.peek() {
            Some(b'{') => reader.member(token),
            Some(b'[') => reader.element(token),
            _ => None,
        };
        let Some(found) = found else { return false };
        if matches!(found.inside, Inside::Object { .. }) {
            reader.at = found.value.end;
            reader.white();
            if reader.is_followed_by(token) {
                return true;
            }
        }
        reader.at = found.value.start;
    }
    false
}

/// Where a value stands in its document.
struct Place {
    value: Range<usize>,
    inside: Inside,
}

enum Inside {
    /// It is the document.
    Nothing,
    Array,
    Object {
        /// The member, with one comma.
        member: Range<usize>,
    },
}

fn find(document: &[u8], pointer: &JsonPointer) -> Option<Place> {
    let mut reader = Reader {
        text: document,
        at: 0,
    };
    reader.white();
    let mut place = None;
    for token in pointer.tokens() {
        let found = match reader.peek()? {
            b'{' => reader.member(token)?,
            b'[' => reader.element(token)?,
            _ => return None,
        };
        reader.at = found.value.start;
        place = Some(found);
    }
    match place {
        Some(place) => Some(place),
        None => Some(Place {
            value: reader.value()?,
            inside: Inside::Nothing,
        }),
    }
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn white(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Passes this byte and the white space behind it.
    fn pass(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| {
            self.at += 1;
            self.white();
        })
    }

    /// From the opening brace on, the member of this name.
    fn member(&mut self, name: &str) -> Option<Place> {
        self.pass(b'{')?;
        let mut comma = None; // the one before this member
        loop {
            let start = self.at;
            let own = self.string()?;
            self.white();
            self.pass(b':')?;
            let value = self.value()?;
            self.white();
            let end = self.at;
            let last = self.pass(b',').is_none();
            if is_text(self.text.get(own)?, name) {
                let member = match comma {
                    Some(comma) if last => comma..value.end,
                    None if last => start..value.end,
                    _ => start..self.at,
                };
                let inside = Inside::Object { member };
                return Some(Place { value, inside });
            }
            if last {
                return None;
            }
            comma = Some(end);
        }
    }

    /// Behind a member, whether there is one of this name.
    fn is_followed_by(&mut self, name: &str) -> bool {
        while self.pass(b',').is_some() {
            let Some(own) = self.string() else {
                return false;
            };
            if self.text.get(own).is_some_and(|own| is_text(own, name)) {
                return true;
            }
            self.white();
            if self.pass(b':').is_none() || self.value().is_none() {
                return false;
            }
            self.white();
        }
        false
    }

    /// From the opening bracket on, the element that the token numbers.
    fn element(&mut self, token: &str) -> Option<Place> {
        self.pass(b'[')?;
        let mut index = 0;
        loop {
            let value = self.value()?;
            if Step::Index(index).is(token) {
                let inside = Inside::Array;
                return Some(Place { value, inside });
            }
            self.white();
            self.pass(b',')?;
            index += 1;
        }
    }

    /// Passes a whole value, whatever it holds.
    fn value(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                _ if depth == 0 => self.scalar()?,
                _ => self.at += 1,
            }
            if depth == 0 {
                return Some(start..self.at);
            }
        }
    }

    /// Passes a number or a word.
    fn scalar(&mut self) -> Option<()> {
        let rest = self.text.get(self.at..)?;
        let ends = |byte: &u8| b",]} \t\n\r".contains(byte);
        let length = rest.iter().position(ends).unwrap_or(rest.len());
        self.at += length;
        (length > 0).then_some(())
    }

    /// Passes a string; where it stands, with its quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(start..self.at)
    }
}

/// Whether a quoted string is this text after unescaping.
fn is_text(quoted: &[u8], text: &str) -> bool {
    match quoted {
        [b'"', plain @ .., b'"'] if !plain.contains(&b'\\') => plain == text.as_bytes(),
        quoted => serde_json::from_slice::<String>(quoted).is_ok_and(|own| own == text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn pointer(text: &str) -> JsonPointer {
        JsonPointer::parse(text).expect("a pointer")
    }

    #[test]
    fn values_are_found_and_taken_out() {
        for (document, path, value, left) in [
            (r#"{"k":"a"}"#, "/k", r#""a""#, "{}"),
            (r#"{ "k" : 1 }"#, "/k", "1", "{  }"),
            (r#"{"k":"a", "x":1}"#, "/k", r#""a""#, r#"{"x":1}"#),
            (r#"{"x":1, "k":[1,{}]}"#, "/k", "[1,{}]", r#"{"x":1}"#),
            (
                r#"{"x":1 ,"k":null , "y":2}"#,
                "/k",
                "null",
                r#"{"x":1 ,"y":2}"#,
            ),
            (r#"{"\u006b":"a","x":"}"}"#, "/k", r#""a""#, r#"{"x":"}"}"#),
            (
                r#"{"x":{"k":"o"},"k":"i"}"#,
                "/x/k",
                r#""o""#,
                r#"{"x":{},"k":"i"}"#,
            ),
            (r#"{"x":"\\","k":"\"}"}"#, "/k", r#""\"}""#, r#"{"x":"\\"}"#),
            ("[1,\"a\",2]", "/1", "\"a\"", "[1,null,2]"),
            (r#"[[],[{"k":"a"}]]"#, "/1/0/k", r#""a""#, "[[],[{}]]"),
            (r#"{"":"a"}"#, "/", r#""a""#, "{}"),
            (r#"{"a/b":"c"}"#, "/a~1b", r#""c""#, "{}"),
            (" 12 ", "", "12", " null "),
        ] {
            let (text, path) = (document.as_bytes(), pointer(path));
            let said = |found: Option<&[u8]>| found.map(|text| text.escape_ascii().to_string());
            let wanted = |text: &str| Some(text.as_bytes().escape_ascii().to_string());
            assert_eq!(said(value_at(text, &path)), wanted(value), "{document}");
            let cut = without_value(text, &path);
            assert_eq!(said(cut.as_deref()), wanted(left), "{document}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for (document, path) in [
            ("{}", "/k"),
            ("[]", "/0"),
            (r#"{"x":{"k":1}}"#, "/k"),
            (r#"{"k":"a"}"#, "/k/x"),
            (r#"{"K":"a","x":"k"}"#, "/k"),
            ("[1]", "/1"),
            ("[1,2]", "/01"),
            ("[1]", "/-"),
            ("\"k\"", "/k"),
            ("", "/k"),
            ("{\"k", "/k"),
            ("{\"k\":", "/k"),
        ] {
            let (text, path) = (document.as_bytes(), pointer(path));
            assert_eq!(value_at(text, &path), None, "{document}");
            assert_eq!(without_value(text, &path), None, "{document}");
        }
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ak\"\\\\{}\\[\\],:é]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("[ak\"/~]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Against the reader that everybody uses.
        #[test]
        fn pointers_lead_where_they_lead_elsewhere(
            document in documents(),
            path in "(/(a|k|0|1|ak|~0|~1|)){1,3}",
            pretty in any::<bool>(),
        ) {
            let text = if pretty { serde_json::to_vec_pretty(&document) } else { serde_json::to_vec(&document) };
            let text = text.expect("JSON");
            let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).expect("JSON");
            let found = value_at(&text, &pointer(&path)).map(parse);
            prop_assert_eq!(found.as_ref(), document.pointer(&path));
            let mut left = document.clone();
            let (parent, last) = path.rsplit_once('/').expect("a slash");
            match left.pointer_mut(parent) {
                Some(Value::Object(members)) if found.is_some() => {
                    members.remove(&last.replace("~1", "/").replace("~0", "~"));
                }
                Some(Value::Array(elements)) if found.is_some() => {
                    elements[last.parse::<usize>().expect("an index")] = Value::Null;
                }
                _ => {}
            }
            let cut = without_value(&text, &pointer(&path));
            prop_assert_eq!(cut.is_some(), found.is_some());
            prop_assert_eq!(cut.map_or(document, |cut| parse(&cut)), left);
        }

        #[test]
        fn no_text_is_a_surprise(text in proptest::collection::vec(any::<u8>(), 0..40), near in "[{}\\[\\]\":,\\\\k 0n]{0,24}", path in "(/(k|0|)){0,3}") {
            for text in [&text[..], near.as_bytes()] {
                let found = value_at(text, &pointer(&path));
                prop_assert_eq!(found.is_some(), without_value(text, &pointer(&path)).is_some());
            }
        }
    }
}
