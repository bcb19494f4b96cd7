//! Forms (`application/x-www-form-urlencoded`) and queries, sorted by name; the order within a name counts.

use std::{borrow::Cow, cmp::Ordering};

/// The canonical form of a form body: its pairs, decoded, sorted by name.
///
/// Names and values are compared decoded: `%41` and `A` are equal, and so are `+` and `%20`. A name without `=`
/// is not the same as one with an empty value, and empty pairs count. `None`: a `%` without two hexadecimal digits,
/// which readers disagree about.
#[must_use]
pub fn form(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len().saturating_add(body.len() / 4));
    let mut decoded = Vec::new();
    for (name, value) in sorted(body) {
        let (tag, parts) = match value {
            Some(value) => (b'=', [Some(name), Some(value)]),
            None => (b'&', [Some(name), None]),
        };
        out.push(tag);
        for part in parts.into_iter().flatten() {
            decoded.clear();
            for unit in units(part) {
                decoded.push(unit.valid()?);
            }
            push_length(decoded.len(), &mut out);
            out.extend_from_slice(&decoded);
        }
    }
    Some(out)
}

/// A query with its pairs sorted by name, each as it is spelt.
///
/// Names are compared decoded, so that two spellings of one name keep their order; values and spellings count byte
/// for byte, for servers read `+` in a query in two ways. A query in order is borrowed.
#[must_use]
pub fn query(raw: &str) -> Cow<'_, str> {
    let mut pairs: Vec<&str> = raw.split('&').collect();
    let by_name = |a: &&str, b: &&str| compare(split(a.as_bytes()).0, split(b.as_bytes()).0);
    if pairs.is_sorted_by(|a, b| by_name(a, b).is_le()) {
        return Cow::Borrowed(raw);
    }
    pairs.sort_by(by_name);
    Cow::Owned(pairs.join("&"))
}

/// The values of every pair of this name, decoded; an error in place of one with a `%` that starts no escape, which
/// readers disagree about. Names are compared decoded; a pair without `=` has an empty value.
pub fn values<'a>(
    text: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = Result<Vec<u8>, Stray>> + 'a {
    let own = |pair: &Pair<'_>| is_named(pair, name);
    let pairs = text.split(|byte| *byte == b'&').map(split).filter(own);
    pairs.map(|(_, value)| {
        let value = units(value.unwrap_or_default());
        value.map(|unit| unit.valid().ok_or(Stray)).collect()
    })
}

/// The text without the pairs of these names, every other byte as it was. `None`: there are no such pairs.
#[must_use]
pub fn without_pairs(text: &[u8], names: &[&str]) -> Option<Vec<u8>> {
    let pairs = || text.split(|byte| *byte == b'&');
    let goes = |pair: &[u8]| names.iter().any(|name| is_named(&split(pair), name));
    if !pairs().any(goes) {
        return None;
    }
    let others: Vec<&[u8]> = pairs().filter(|pair| !goes(pair)).collect();
    Some(others.join(&b'&'))
}

/// A `%` in a value that starts no escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray;

fn is_named((own, _): &Pair<'_>, name: &str) -> bool {
    units(own).map(Unit::lenient).eq(name.bytes())
}

/// A pair as it is spelt: its name, and its value where there is an `=`.
type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

/// The pairs of a form, sorted by their decoded names.
fn sorted(body: &[u8]) -> Vec<Pair<'_>> {
    if body.is_empty() {
        return Vec::new();
    }
    let mut pairs: Vec<_> = body.split(|byte| *byte == b'&').map(split).collect();
    pairs.sort_by(|(a, _), (b, _)| compare(a, b));
    pairs
}

/// The order of two names, decoded.
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    units(a).map(Unit::lenient).cmp(units(b).map(Unit::lenient))
}

fn split(pair: &[u8]) -> Pair<'_> {
    match pair.iter().position(|byte| *byte == b'=') {
        Some(at) => (pair.get(..at).unwrap_or_default(), pair.get(at + 1..)),
        None => (pair, None),
    }
}

/// One decoded byte.
enum Unit {
    Byte(u8),
    /// A `%` that starts no escape.
    Stray,
}

impl Unit {
    fn valid(self) -> Option<u8> {
        match self {
            Self::Byte(byte) => Some(byte),
            Self::Stray => None,
        }
    }

    fn lenient(self) -> u8 {
        match self {
            Self::Byte(byte) => byte,
            Self::Stray => b'%',
        }
    }
}

/// What `text` decodes to (WHATWG URL standard, section 5.1), byte by byte and without a buffer.
fn units(text: &[u8]) -> impl Iterator<Item = Unit> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (first, tail) = rest.split_first()?;
        rest = tail;
        Some(match (first, tail) {
            (b'+', _) => Unit::Byte(b' '),
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    Unit::Byte((high << 4) | low)
                }
                _ => Unit::Stray,
            },
            (b'%', _) => Unit::Stray,
            (byte, _) => Unit::Byte(*byte),
        })
    })
}

/// The value of a hexadecimal digit.
pub(super) const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// A length in seven-bit groups, the last one without the high bit: one byte for almost every field.
fn push_length(length: usize, out: &mut Vec<u8>) {
    let mut rest = length;
    loop {
        let [group, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            return out.push(group);
        }
        out.push(group | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    fn same(first: &str, second: &str) -> bool {
        let (first, second) = (form(first.as_bytes()), form(second.as_bytes()));
        first.expect("a form") == second.expect("a form")
    }

    #[test]
    fn the_order_of_names_and_the_spelling_do_not_count() {
        for (first, second) in [
            ("a=1&b=%41", "b=A&a=1"),
            ("b=2&a=1&b=1", "a=1&b=2&b=1"),
            ("a%5B%5D=1&a[]=2", "a[]=1&a%5b%5d=2"),
            ("q=a+b", "q=a%20b"),
            ("%61=1", "a=1"),
            ("", ""),
        ] {
            assert!(same(first, second), "{first} {second}");
        }
    }

    #[test]
    fn everything_else_counts() {
        for (first, second) in [
            ("a=1", "a=2"),
            ("a=1&a=2", "a=2&a=1"),
            ("a=1&b=2", "a=1"),
            ("a", "a="),
            ("", "a"),
            ("a=1", "a=1&"),
            ("a=1&&b=2", "a=1&b=2"),
            ("a+b", "a%2Bb"),
            ("a=1%26b=2", "a=1&b=2"),
            ("a%3D1", "a=1"),
            ("a=b=c", "a=b%3Dc&"),
            ("a=%00", "a="),
        ] {
            assert!(!same(first, second), "{first} {second}");
        }
        let (long, longer) = (
            format!("a={}", "x".repeat(127)),
            format!("a={}", "x".repeat(128)),
        );
        assert!(!same(&long, &longer));
    }

    #[test]
    fn what_readers_disagree_about_is_raw() {
        for bad in ["a=%", "a=%4", "a=%zz", "%g1=1"] {
            assert_eq!(form(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn queries_keep_their_spelling() {
        for (raw, sorted) in [
            ("a=1&b=2", "a=1&b=2"),
            ("b=2&a=1", "a=1&b=2"),
            ("b=2&a=2&b=1&a=1", "a=2&a=1&b=2&b=1"),
            ("b=%41&a", "a&b=%41"),
            ("a[]=2&a%5b%5d=1", "a[]=2&a%5b%5d=1"),
            ("%62=2&b=1&a", "a&%62=2&b=1"),
            ("b=%zz&%=1", "%=1&b=%zz"),
            ("", ""),
        ] {
            assert_eq!(query(raw), sorted, "{raw}");
        }
        assert!(matches!(query("a=1&a=0&b"), Cow::Borrowed(_)));
        assert_ne!(
            query("q=a+b"),
            query("q=a%20b"),
            "servers read `+` in two ways"
        );
    }

    #[test]
    fn values_are_found_by_their_decoded_name() {
        let all = |text: &str| values(text.as_bytes(), "key").collect::<Vec<_>>();
        let one = |value: &str| vec![Ok(value.as_bytes().to_vec())];
        for (text, value) in [
            ("key=a", "a"),
            ("x=1&%6bey=a%20b&y", "a b"),
            ("key=a+b%2Bc", "a b+c"),
            ("key=a=b", "a=b"),
            ("key", ""),
            ("&&key=&&", ""),
        ] {
            assert_eq!(all(text), one(value), "{text}");
        }
        assert_eq!(all("Key=a&keys=b&ke%y=c&=key"), []);
        assert_eq!(all("key=a&key=b").len(), 2);
        assert_eq!(all("key=%4"), [Err(Stray)]);
    }

    #[test]
    fn what_is_taken_out_leaves_the_rest_as_it_was() {
        for (text, left) in [
            ("key=a", Some("")),
            ("x=%zz&key=a&y=+", Some("x=%zz&y=+")),
            ("%6bey&x&other=1&key", Some("x")),
            ("&key=a", Some("")),
            ("keys=a", None),
            ("", None),
        ] {
            let cut = without_pairs(text.as_bytes(), &["key", "other"]);
            assert_eq!(cut.as_deref(), left.map(str::as_bytes), "{text}");
        }
    }

    proptest! {
        #[test]
        fn sorting_is_done_once(raw in "([abAB=+&]|%6[12]|%){0,30}") {
            let once = query(&raw).into_owned();
            prop_assert_eq!(query(&once).into_owned(), once);
        }

        /// Against the plain reading of a form: a map from a decoded name to its values in order.
        #[test]
        fn a_form_is_its_names_with_their_values(first in "([ab]|%6[12]|=|&|\\+){0,12}", second in "([ab]|%6[12]|=|&|\\+){0,12}") {
            let model = |text: &str| {
                let mut names: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> = BTreeMap::default();
                for pair in text.split('&').filter(|_| !text.is_empty()) {
                    let decode = |part: &str| units(part.as_bytes()).map(Unit::lenient).collect::<Vec<u8>>();
                    let (name, value) = pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
                    names.entry(decode(name)).or_default().push(value.map(decode));
                }
                names
            };
            prop_assert_eq!(model(&first) == model(&second), form(first.as_bytes()) == form(second.as_bytes()));
        }
    }
}
