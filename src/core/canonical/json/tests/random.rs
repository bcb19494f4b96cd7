//! Values made at random, in spellings made at random.

use std::{collections::BTreeMap, fmt::Write as _};

use proptest::prelude::*;

use super::{canonical, json, pointers};

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
                    members.swap(at, dice.roll(at + 1));
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
    let (more, places) = (dice.roll(3), dice.roll(5));
    let digits = format!("{digits}{}", "0".repeat(more));
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
    let small = |count| i32::try_from(count).expect("a small count");
    let power = power - small(more) + small(places);
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
                write!(out, "\\u{:04x}", char as u32).expect("a string takes all");
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
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }

    fn white(&mut self, out: &mut String) {
        while self.roll(4) == 0 {
            out.push([' ', '\t', '\n', '\r'][self.roll(4)]);
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
            let at = dice.roll(elements.len());
            if dice.roll(3) == 0 {
                elements.swap(at, 0);
            } else {
                change(&mut elements[at], dice);
            }
        }
        Value::Object(members) if !members.is_empty() => {
            let at = dice.roll(members.len());
            if dice.roll(3) == 0 {
                members.pop_first();
            } else {
                change(members.values_mut().nth(at).expect("a member"), dice);
            }
        }
        Value::Number(digits, power) => {
            *digits += 1;
            *power -= i32::from(dice.roll(2) == 0);
        }
        Value::String(text) => text.push('a'),
        Value::Bool(value) => *value = !*value,
        Value::Null => *value = Value::String("null".into()),
        Value::Array(_) => *value = Value::Object(BTreeMap::new()),
        Value::Object(_) => *value = Value::Array(vec![]),
    }
}
