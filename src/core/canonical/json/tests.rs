use std::{collections::BTreeMap, fmt::Write as _};

use proptest::prelude::*;

use super::*;

fn canonical(text: &str) -> Option<Vec<u8>> {
    json(text.as_bytes(), &[], &[])
}

fn same(first: &str, second: &str) -> bool {
    let form = |text: &str| canonical(text).unwrap_or_else(|| panic!("JSON: {text}"));
    form(first) == form(second)
}

fn pointers(texts: &[&str]) -> Vec<JsonPointer> {
    texts
        .iter()
        .map(|text| JsonPointer::parse(text).expect("a pointer"))
        .collect()
}

#[test]
fn spelling_does_not_count() {
    for (first, second) in [
        (
            r#"{"a":1,"b":{"c":"é","d":[{"x":1,"y":2}]}}"#,
            r#"{"b":{"d":[{"y":2,"x":1}],"c":"é"},"a":1}"#,
        ),
        (r#"{"a":[1,2]}"#, "\t{ \"a\" :\r\n[ 1 , 2 ] } "),
        (
            r#""é\/\u0041\b\f\n\r\t""#,
            r#""\u00e9/A\u0008\u000C\u000a\u000d\u0009""#,
        ),
        (r#""\ud83d\uDE00""#, "\"\u{1f600}\""),
        (r#"{"\u0061":1,"b":2}"#, r#"{"b":2,"a":1}"#),
        ("[1,-0,1e2]", "[1.0,0,100]"),
        ("10e99999999999999999998", "1e99999999999999999999"),
        (r#"{"":{},"a":[]}"#, r#"{"a":[ ],"":{ }}"#),
    ] {
        assert!(same(first, second), "{first} {second}");
    }
}

#[test]
fn meaning_counts() {
    for (first, second) in [
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[[1,2]]"),
        ("[[],[]]", "[[[]]]"),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":null}"#, "{}"),
        ("[]", "{}"),
        ("null", "false"),
        ("null", "\"null\""),
        ("9007199254740993", "9007199254740992"),
        ("12345678901234567890123", "12345678901234567890124"),
        ("0.1", "0.10000000000000000001"),
        ("1e99999999999999999999", "1e99999999999999999998"),
        ("1", "-1"),
        (r#""a""#, r#""A""#),
        ("\"\u{e9}\"", "\"e\u{301}\""), // composed and decomposed: strings are not normalised
        (r#""1\u0000""#, r#""1""#),
        (r#"{"a":"b"}"#, r#"["a","b"]"#),
        (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#),
        // What a parser with arbitrary precision takes for a number.
        (r#"{"$serde_json::private::Number":"1"}"#, "1"),
    ] {
        assert!(!same(first, second), "{first} {second}");
    }
}

#[test]
fn what_is_no_json_is_raw() {
    for bad in [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{'a':1}",
        "{\"a\" 1}",
        "{\"a\":1]",
        "[1}",
        "[1 2]",
        "1 2",
        "{}x",
        "[]]",
        "01",
        "1.",
        ".1",
        "+1",
        "- 1",
        "1e",
        "nul",
        "True",
        "NaN",
        "Infinity",
        "nullx",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\ud800\"",
        "\"\\ud800x\"",
        "\"\\ud800\\n\"",
        "\"\t\"",
        "\"\n\"",
        "\"\u{0}\"",
        "\u{feff}{}",
        "/**/1",
        "\u{a0}1",
        "1\u{c}",
    ] {
        assert_eq!(canonical(bad), None, "{bad:?}");
    }
    for bad in [
        &b"\"\xff\""[..],
        b"\"\xc3\"",
        b"\xef\xbb\xbf{}",
        b"\"\xed\xa0\x80\"",
        b"[1]\0",
    ] {
        assert_eq!(json(bad, &[], &[]), None, "{}", bad.escape_ascii());
    }
}

#[test]
fn a_member_that_comes_twice_is_not_normalised_away() {
    for bad in [
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"b":1,"a":2,"b":3}"#,
        r#"[{"x":{"":1,"y":2,"":3}}]"#,
    ] {
        assert_eq!(canonical(bad), None, "{bad}");
    }
    // Where it does not count either.
    assert_eq!(
        json(br#"{"a":1,"a":2,"b":3}"#, &pointers(&["/a"]), &[]),
        None
    );
    assert_eq!(
        json(br#"{"x":{"a":1,"a":2},"b":3}"#, &[], &pointers(&["/b"])),
        None
    );
    assert!(canonical(r#"{"a":{"a":1},"b":{"a":1}}"#).is_some());
}

#[test]
fn nesting_ends_at_128() {
    let arrays = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let objects = |depth: usize| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
    let mixed = |pairs: usize| "[{\"a\":".repeat(pairs) + "1" + &"}]".repeat(pairs);
    assert!(canonical(&arrays(128)).is_some());
    assert!(canonical(&objects(128)).is_some());
    assert!(canonical(&mixed(64)).is_some());
    assert_eq!(canonical(&arrays(129)), None);
    assert_eq!(canonical(&objects(129)), None);
    assert_eq!(canonical(&format!("[{}]", mixed(64))), None);
    assert_eq!(canonical(&"[".repeat(1_000_000)), None);
    assert!(
        canonical(&format!("[{}1]", "[],".repeat(100_000))).is_some(),
        "depth, not count"
    );
}

#[test]
fn large_objects_are_compared_whole() {
    let object = |first: usize, last: &str| {
        let mut members: Vec<_> = (0..500).map(|at| format!("\"k{at}\":{at}")).collect();
        members.rotate_left(first);
        format!("{{\"z\":{{{},\"k\":{last}}},\"a\":1}}", members.join(","))
    };
    assert!(same(&object(0, "1"), &object(77, "1.0")));
    assert!(!same(&object(0, "1"), &object(0, "2")));
    assert_eq!(
        canonical(&object(0, "1,\"k499\":1")),
        None,
        "a member twice"
    );
    // A digest cannot be put in the place of what it stands for.
    let digest = canonical(&object(0, "1")).expect("JSON");
    assert!(digest.len() < 100);
}

#[test]
fn what_is_ignored_does_not_count() {
    let form = |text: &str| {
        json(
            text.as_bytes(),
            &pointers(&["/sentAt", "/items/1/n", "/nothing/here", "/x~1y", "/tags/0"]),
            &[],
        )
        .expect("JSON")
    };
    for (first, second) in [
        (
            r#"{"id":1,"sentAt":"x"}"#,
            r#"{"sentAt":{"deep":[1]},"id":1}"#,
        ),
        (r#"{"id":1,"sentAt":"x"}"#, r#"{"id":1}"#),
        (
            r#"{"items":[{"n":1},{"n":2,"m":3}]}"#,
            r#"{"items":[{"n":1},{"m":3}]}"#,
        ),
        (r#"{"x/y":1}"#, "{}"),
        (r#"{"tags":["a","b"]}"#, r#"{"tags":["c","b"]}"#),
        (r#"{"\u0073entAt":1}"#, "{}"),
    ] {
        assert_eq!(form(first), form(second), "{first} {second}");
    }
    for (first, second) in [
        (r#"{"id":1,"sentAt":"x"}"#, r#"{"id":2,"sentAt":"x"}"#),
        (
            r#"{"items":[{"n":1},{"n":2}]}"#,
            r#"{"items":[{"n":2},{"n":2}]}"#,
        ),
        (r#"{"items":[{"n":1},{}]}"#, r#"{"items":[{"n":1}]}"#),
        (r#"{"items":{"01":{"n":1}}}"#, r#"{"items":{"01":{"n":2}}}"#),
        (r#"{"a":{"sentAt":1}}"#, r#"{"a":{"sentAt":2}}"#),
        (r#"{"tags":["a","b"]}"#, r#"{"tags":["a","c"]}"#),
        (r#"{"tags":["a","b"]}"#, r#"{"tags":["b"]}"#),
        (r#"[{"sentAt":1}]"#, r#"[{"sentAt":2}]"#),
    ] {
        assert_ne!(form(first), form(second), "{first} {second}");
    }
    let all = pointers(&[""]);
    assert_eq!(json(b"1", &all, &[]), json(b"[2]", &all, &[]));
    assert_eq!(json(b"1", &all, &[]), Some(vec![]));
    assert_eq!(json(b"[", &all, &[]), None);
}

#[test]
fn only_what_is_chosen_counts() {
    let form = |text: &str| {
        json(
            text.as_bytes(),
            &pointers(&["/order/draft"]),
            &pointers(&["/id", "/order", "/items/0/n", "/items/1/n"]),
        )
        .expect("JSON")
    };
    for (first, second) in [
        (
            r#"{"id":1,"note":"x"}"#,
            r#"{"id":1,"note":"y","more":[{}]}"#,
        ),
        (
            r#"{"order":{"a":1,"draft":1}}"#,
            r#"{"order":{"draft":2,"a":1.0}}"#,
        ),
        (
            r#"{"items":[{"n":1,"m":1},5,7]}"#,
            r#"{"items":[{"n":1},{"x":2}]}"#,
        ),
        (r#"{"items":5}"#, "{}"),
        (r#"{"items":[]}"#, "{}"),
        (r#"{"items":{"0":{"m":1}}}"#, "{}"),
        ("[1]", "2"),
    ] {
        assert_eq!(form(first), form(second), "{first} {second}");
    }
    for (first, second) in [
        (r#"{"id":1}"#, r#"{"id":2}"#),
        (r#"{"id":1}"#, "{}"),
        (r#"{"order":{"a":1}}"#, r#"{"order":{"b":1}}"#),
        (r#"{"order":{}}"#, "{}"),
        (r#"{"items":[{"n":1},{}]}"#, r#"{"items":[{},{"n":1}]}"#),
        (r#"{"items":[{"n":1}]}"#, r#"{"items":[{"n":2}]}"#),
    ] {
        assert_ne!(form(first), form(second), "{first} {second}");
    }
    let whole = pointers(&["", "/a"]);
    assert_eq!(json(br#"{"b":1}"#, &[], &whole), canonical(r#"{"b":1}"#));
}

/// A JSON value as this test sees it: numbers are digits and a power of ten.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Null,
    Bool(bool),
    Number(i64, i32),
    String(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Value {
    /// The same value, every number in one form: no factor of ten in the digits.
    fn normal(&self) -> Self {
        match self {
            Self::Number(0, _) => Self::Number(0, 0),
            Self::Number(digits, power) if digits % 10 == 0 => {
                Self::Number(digits / 10, power + 1).normal()
            }
            Self::Array(elements) => Self::Array(elements.iter().map(Self::normal).collect()),
            Self::Object(members) => Self::Object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), value.normal()))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn strategy() -> impl Strategy<Value = Self> {
        let text = "([ab\"\\\\/\n\u{e9}\u{1f600}\u{0}]){0,4}";
        let leaf = prop_oneof![
            Just(Self::Null),
            any::<bool>().prop_map(Self::Bool),
            (-1000i64..1000, -3i32..4).prop_map(|(digits, power)| Self::Number(digits, power)),
            text.prop_map(Self::String),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Self::Array),
                proptest::collection::btree_map(text, inner, 0..6).prop_map(Self::Object),
            ]
        })
    }

    /// Writes the value in a spelling that `dice` chooses.
    fn spell(&self, dice: &mut Dice, out: &mut String) {
        dice.white(out);
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => write!(out, "{value}").expect("a string takes all"),
            Self::Number(digits, power) => spell_number(*digits, *power, dice, out),
            Self::String(text) => spell_string(text, dice, out),
            Self::Array(elements) => {
                out.push('[');
                for (at, element) in elements.iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    element.spell(dice, out);
                }
                dice.white(out);
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                let mut members: Vec<_> = members.iter().collect();
                for at in (1..members.len()).rev() {
                    members.swap(at, dice.roll(at as u64 + 1) as usize);
                }
                for (at, (name, value)) in members.into_iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    dice.white(out);
                    spell_string(name, dice, out);
                    dice.white(out);
                    out.push(':');
                    value.spell(dice, out);
                }
                dice.white(out);
                out.push('}');
            }
        }
        dice.white(out);
    }

    fn spelt(&self, seed: u64) -> String {
        let mut out = String::new();
        self.spell(&mut Dice(seed | 1), &mut out);
        out
    }
}

fn spell_number(digits: i64, power: i32, dice: &mut Dice, out: &mut String) {
    let (more, places) = (dice.roll(3) as i32, dice.roll(5) as usize);
    let digits = format!("{digits}{}", "0".repeat(more as usize));
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", &digits[..]), |rest| ("-", rest));
    let sign = if digits.bytes().all(|b| b == b'0') && dice.roll(2) == 0 {
        "-"
    } else {
        sign
    };
    let padded = format!("{digits:0>width$}", width = places + 1);
    let (integer, fraction) = padded.split_at(padded.len() - places);
    let integer = match integer.trim_start_matches('0') {
        "" => "0",
        trimmed => trimmed,
    };
    write!(out, "{sign}{integer}").expect("a string takes all");
    if places > 0 {
        write!(out, ".{fraction}").expect("a string takes all");
    }
    let power = power - more + places as i32;
    if power != 0 || dice.roll(2) == 0 {
        let mark = if dice.roll(2) == 0 { 'e' } else { 'E' };
        let plus = if power >= 0 && dice.roll(2) == 0 {
            "+"
        } else {
            ""
        };
        write!(out, "{mark}{plus}{power}").expect("a string takes all");
    }
}

fn spell_string(text: &str, dice: &mut Dice, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' if dice.roll(2) == 0 => out.extend(['\\', char]),
            '/' if dice.roll(2) == 0 => out.push_str("\\/"),
            '\n' if dice.roll(2) == 0 => out.push_str("\\n"),
            '"' | '\\' | '\0'..' ' => {
                write!(out, "\\u{:04x}", char as u32).expect("a string takes all")
            }
            _ if dice.roll(2) == 0 => out.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04X}").expect("a string takes all");
                }
            }
        }
    }
    out.push('"');
}

/// Choices that depend on a seed alone.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % sides
    }

    fn white(&mut self, out: &mut String) {
        while self.roll(4) == 0 {
            out.push([' ', '\t', '\n', '\r'][self.roll(4) as usize]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_value_has_one_form_in_every_spelling(value in Value::strategy(), first: u64, second: u64) {
        let (first, second) = (value.spelt(first), value.spelt(second));
        prop_assert!(serde_json::from_str::<serde_json::Value>(&first).is_ok(), "{first}");
        let form = canonical(&first);
        prop_assert!(form.is_some(), "{first}");
        prop_assert_eq!(form, canonical(&second), "{} {}", first, second);
    }

    #[test]
    fn different_values_have_different_forms(first in Value::strategy(), second in Value::strategy(), seed: u64) {
        let equal = first.normal() == second.normal();
        prop_assert_eq!(equal, canonical(&first.spelt(seed)) == canonical(&second.spelt(!seed)));
    }

    /// One leaf or member changed somewhere: near misses, which two values at random seldom are.
    #[test]
    fn a_small_change_is_another_form(value in Value::strategy(), seed: u64) {
        let mut changed = value.clone();
        change(&mut changed, &mut Dice(seed | 1));
        let equal = value.normal() == changed.normal();
        prop_assert_eq!(equal, canonical(&value.spelt(seed)) == canonical(&changed.spelt(!seed)));
    }

    /// Integers and strings are what serde_json reads exactly, so there it is the judge.
    #[test]
    fn serde_json_agrees(first in "[\\[\\]{}:,\"a12 ]{0,10}", second in "[\\[\\]{}:,\"a12 ]{0,10}") {
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        for text in [&first, &second] {
            if canonical(text).is_some() {
                prop_assert!(read(text).is_some(), "{text}");
            }
        }
        if let (Some(one), Some(other)) = (canonical(&first), canonical(&second)) {
            prop_assert_eq!(read(&first) == read(&second), one == other, "{} {}", first, second);
        }
    }

    #[test]
    fn no_bytes_are_a_surprise(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60),
            "([\\[\\]{}:,\"\\\\ue0-9.+-]|null|true|false|\\\\ud8|\u{e9}){0,40}".prop_map(String::into_bytes),
        ],
    ) {
        let (ignore, only) = (pointers(&["/e", "/0/0"]), pointers(&["/0", "/u"]));
        let whole = json(&bytes, &[], &[]);
        prop_assert_eq!(whole.is_some(), json(&bytes, &ignore, &only).is_some());
        if whole.is_some() {
            let read = serde_json::from_slice::<serde_json::Value>(&bytes).map_err(|error| error.to_string());
            // Exponents that do not fit a float are numbers all the same.
            prop_assert!(read.is_ok() || read.is_err_and(|error| error.contains("number out of range")));
        }
    }
}

fn change(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Array(elements) if !elements.is_empty() => {
            let at = dice.roll(elements.len() as u64) as usize;
            if dice.roll(3) == 0 {
                elements.swap(at, 0);
            } else {
                change(&mut elements[at], dice);
            }
        }
        Value::Object(members) if !members.is_empty() => {
            let at = dice.roll(members.len() as u64) as usize;
            if dice.roll(3) == 0 {
                members.pop_first();
            } else {
                change(members.values_mut().nth(at).expect("a member"), dice);
            }
        }
        Value::Number(digits, power) => {
            *digits += 1;
            *power -= dice.roll(2) as i32;
        }
        Value::String(text) => text.push('a'),
        Value::Bool(value) => *value = !*value,
        Value::Null => *value = Value::String("null".into()),
        Value::Array(_) => *value = Value::Object(BTreeMap::new()),
        Value::Object(_) => *value = Value::Array(vec![]),
    }
}

#[test]
fn hostile_documents_cost_no_more_than_their_size() {
    let members = |count: usize| {
        (0..count)
            .rev()
            .map(|at| format!("\"{at}\":{at}"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let nested =
        "{\"b\":".repeat(127) + &format!("{{{}}}", members(40_000)) + &",\"a\":1}".repeat(127);
    for text in [
        format!("{{{}}}", members(60_000)),
        nested,
        format!(
            "[{}1]",
            "{\"b\":{\"b\":{\"b\":1,\"a\":1},\"a\":1},\"a\":1},".repeat(20_000)
        ),
        format!("\"{}\"", "\\u0041".repeat(170_000)),
        format!("\"{}\"", "\\\\".repeat(500_000)),
        format!(
            "[{}1]",
            "1e-99999999999999999999999999999999999999999,".repeat(20_000)
        ),
        format!("1{}e-{}", "0".repeat(500_000), "9".repeat(500_000)),
        format!("[{}[]]", "[],".repeat(300_000)),
    ] {
        assert!(canonical(&text).is_some());
        // The form is not larger than a small multiple of the text.
        assert!(canonical(&text).expect("JSON").len() <= text.len() + text.len() / 2 + 64);
    }
}
