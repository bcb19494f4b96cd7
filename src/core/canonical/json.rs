//! Canonical JSON, by a strict scanner of its own (RFC 8259).
//!
//! A parser that builds values would lose what counts here: exact numbers and duplicate members. The scanner keeps an
//! explicit stack of at most [`MAX_DEPTH`] open arrays and objects, reads the text once, and writes every value as
//! self-delimiting bytes into one buffer:
//!
//! | value | bytes |
//! |---|---|
//! | `null`, `true`, `false` | `n`, `t`, `f` |
//! | number | `d`, its exact decimal value, END |
//! | string | `s`, its text after unescaping, END |
//! | array | `[`, its elements, `]` |
//! | object | `{`, its members (name as a string, then value) sorted by name, `}` |
//! | object with over [`LARGE`] bytes of members | `#`, SHA-256 over its members |
//!
//! END is 0xFF, which no UTF-8 text has. Objects are sorted when they end; a large one is hashed there and then
//! instead of being moved, so that no byte is moved more often than small objects nest: time is O(n log n).

use sha2::{Digest as _, Sha256};

use super::{
    form::hex,
    number::{Number, write_decimal},
    wanted::{Step, Wanted},
};
use crate::core::policy::JsonPointer;

/// How deep arrays and objects may nest.
const MAX_DEPTH: usize = 128;
/// An object with more bytes of members than this is replaced by their digest.
const LARGE: usize = 1024;
/// The end of a string or number: no UTF-8 text has this byte.
const END: u8 = 0xff;

/// The canonical form of a JSON document. Two documents have the same form exactly if they are equal: the order of
/// members and white space do not count, strings are compared after unescaping (and not normalised), numbers by
/// exact decimal value.
///
/// What `ignore` points to does not count; where `only` is not empty, nothing but what it points to does. An element
/// that is left out keeps its place in the array: the others do not move up. If nothing counts, the form is empty.
///
/// `None`: it is no JSON (a byte-order mark, bytes after the end, invalid UTF-8 and lone surrogates included), has a
/// member twice after unescaping, or nests deeper than 128. This holds for parts that do not count, too.
#[must_use]
pub fn json(body: &[u8], ignore: &[JsonPointer], only: &[JsonPointer]) -> Option<Vec<u8>> {
    let form = Scanner::new(body, body.len()).document(Wanted::of_document(ignore, only))?;
    is_text(body).then_some(form)
}

/// Whether [`json`] takes this for JSON.
#[must_use]
pub fn is_json(body: &[u8]) -> bool {
    Scanner::new(body, 0).document(Wanted::Nothing).is_some() && is_text(body)
}

/// Whether this is JSON (RFC 8259), however deep and whatever its objects have twice.
#[must_use]
pub fn is_well_formed(body: &[u8]) -> bool {
    serde_json::from_slice::<&serde_json::value::RawValue>(body).is_ok()
}

/// Asked last: what is no JSON has most often shown that in its first bytes, where all of a body is read for this.
fn is_text(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok()
}

struct Scanner<'t, 'r> {
    /// What is not read yet. A form of what is no UTF-8 means nothing.
    rest: &'t [u8],
    out: Vec<u8>,
    /// The arrays and objects that the scanner is in, outermost first.
    open: Vec<Container<'r>>,
    /// The members of all open objects, innermost last.
    members: Vec<Member>,
    /// Room for sorting small objects.
    sorted: Vec<u8>,
}

struct Container<'r> {
    wanted: Wanted<'r>,
    /// Whether any child is in `out`.
    kept: Kept,
    inside: Inside,
}

enum Inside {
    Array {
        /// Of the element that is being read.
        index: usize,
        /// Where that begins in `out`.
        start: usize,
    },
    Object {
        /// Its first one in `members`.
        first: usize,
        /// Where its members begin in `out`.
        start: usize,
    },
}

/// Where a member stands in `out`. One that does not count has no value: it ends with its name.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}

/// What comes next in the text.
enum Next<'r> {
    /// A value, of which this counts.
    Value(Wanted<'r>),
    /// Whatever follows a value.
    AfterValue,
}

impl<'t, 'r> Scanner<'t, 'r> {
    /// At the start of `text`, with room for a form of this length.
    fn new(text: &'t [u8], length: usize) -> Self {
        Self {
            rest: text,
            out: Vec::with_capacity(length),
            open: Vec::new(),
            members: Vec::new(),
            sorted: Vec::new(),
        }
    }

    fn document(mut self, wanted: Wanted<'r>) -> Option<Vec<u8>> {
        let mut next = Next::Value(wanted);
        loop {
            next = match next {
                Next::Value(wanted) => self.value(wanted)?,
                Next::AfterValue if self.open.is_empty() => break,
                Next::AfterValue => self.after_value()?,
            };
        }
        self.skip_white();
        self.rest.is_empty().then_some(self.out)
    }

    /// Reads a scalar, an empty container, or the start of a container up to its first value.
    fn value(&mut self, wanted: Wanted<'r>) -> Option<Next<'r>> {
        self.skip_white();
        match self.rest {
            [b'{', ..] => return self.open_object(wanted),
            [b'[', ..] => return self.open_array(wanted),
            [b'"', rest @ ..] => {
                self.rest = rest;
                self.string()?;
            }
            [b'n', b'u', b'l', b'l', rest @ ..] => self.word(b'n', rest),
            [b't', b'r', b'u', b'e', rest @ ..] => self.word(b't', rest),
            [b'f', b'a', b'l', b's', b'e', rest @ ..] => self.word(b'f', rest),
            _ => {
                let (number, rest) = Number::read(self.rest)?;
                self.rest = rest;
                self.out.push(b'd');
                number.write(&mut self.out);
                self.out.push(END);
            }
        }
        // Pointers that lead further down lead nowhere in a scalar.
        self.ended(if matches!(wanted, Wanted::All { .. }) {
            Kept::Yes
        } else {
            Kept::No
        });
        Some(Next::AfterValue)
    }

    fn word(&mut self, tag: u8, rest: &'t [u8]) {
        self.out.push(tag);
        self.rest = rest;
    }

    fn open_object(&mut self, wanted: Wanted<'r>) -> Option<Next<'r>> {
        self.enter(b'{')?;
        self.open.push(Container {
            wanted,
            kept: Kept::No,
            inside: Inside::Object {
                first: self.members.len(),
                start: self.out.len(),
            },
        });
        self.skip_white();
        if let [b'}', ..] = self.rest {
            self.close()
        } else {
            self.member()
        }
    }

    fn open_array(&mut self, wanted: Wanted<'r>) -> Option<Next<'r>> {
        self.enter(b'[')?;
        self.open.push(Container {
            wanted,
            kept: Kept::No,
            inside: Inside::Array {
                index: 0,
                start: self.out.len(),
            },
        });
        self.skip_white();
        if let [b']', ..] = self.rest {
            self.close()
        } else {
            self.element()
        }
    }

    fn enter(&mut self, bracket: u8) -> Option<()> {
        if self.open.len() >= MAX_DEPTH {
            return None;
        }
        self.out.push(bracket);
        self.advance()
    }

    /// Reads a member's name and its colon.
    fn member(&mut self) -> Option<Next<'r>> {
        self.skip_white();
        self.rest = self.rest.strip_prefix(b"\"")?;
        let start = self.out.len();
        self.string()?;
        let name_end = self.out.len();
        self.skip_white();
        self.rest = self.rest.strip_prefix(b":")?;
        self.members.push(Member {
            start,
            name_end,
            end: name_end,
        });
        // Without tag and END.
        let name = self.out.get(start + 1..name_end - 1)?;
        Some(Next::Value(
            self.open.last()?.wanted.child(Step::Name(name)),
        ))
    }

    fn element(&mut self) -> Option<Next<'r>> {
        let container = self.open.last_mut()?;
        let Inside::Array { index, start } = &mut container.inside else {
            return None;
        };
        *start = self.out.len();
        if !container.wanted.is_whole() {
            // Some may be left out: those that stay say where they stand.
            self.out.push(b'i');
            write_decimal(*index as u128, 1, &mut self.out);
            self.out.push(END);
        }
        Some(Next::Value(container.wanted.child(Step::Index(*index))))
    }

    /// Reads the comma or the bracket that follows a value inside a container.
    fn after_value(&mut self) -> Option<Next<'r>> {
        self.skip_white();
        match (self.rest.first()?, &mut self.open.last_mut()?.inside) {
            (b',', Inside::Object { .. }) => {
                self.advance()?;
                self.member()
            }
            (b',', Inside::Array { index, .. }) => {
                *index += 1;
                self.advance()?;
                self.element()
            }
            (b'}', Inside::Object { .. }) | (b']', Inside::Array { .. }) => self.close(),
            _ => None,
        }
    }

    /// Reads the closing bracket and finishes the innermost container.
    fn close(&mut self) -> Option<Next<'r>> {
        self.advance()?;
        let container = self.open.pop()?;
        match container.inside {
            Inside::Array { .. } => self.out.push(b']'),
            Inside::Object { first, start } => self.finish_object(first, start)?,
        }
        self.ended(match container.wanted {
            Wanted::Nothing => Kept::No,
            Wanted::All { .. } => Kept::Yes,
            Wanted::Parts { .. } => container.kept,
        });
        Some(Next::AfterValue)
    }

    /// A value has ended: its container, if it has one, keeps it or takes it back.
    fn ended(&mut self, kept: Kept) {
        let end = self.out.len();
        let start = match self.open.last_mut() {
            None => 0,
            Some(container) => {
                if kept == Kept::Yes {
                    container.kept = Kept::Yes;
                }
                match (&container.inside, self.members.last_mut()) {
                    (Inside::Array { start, .. }, _) => *start,
                    (Inside::Object { .. }, Some(member)) if kept == Kept::Yes => {
                        member.end = end;
                        return;
                    }
                    (Inside::Object { .. }, member) => member.map_or(end, |member| member.name_end),
                }
            }
        };
        if kept == Kept::No {
            self.out.truncate(start);
        }
    }

    /// Sorts the members of an object, which stand in `out` from `start` on, and closes it.
    fn finish_object(&mut self, first: usize, start: usize) -> Option<()> {
        let members = self.members.get_mut(first..)?;
        let out = &self.out;
        let name = |member: &Member| out.get(member.start..member.name_end).unwrap_or_default();
        let in_order = members.is_sorted_by(|a, b| name(a) < name(b));
        if !in_order {
            members.sort_unstable_by(|a, b| name(a).cmp(name(b)));
            if members
                .windows(2)
                .any(|pair| matches!(pair, [a, b] if name(a) == name(b)))
            {
                return None;
            }
        }
        let kept = || members.iter().filter(|member| member.end > member.name_end);
        let size: usize = kept().map(|member| member.end - member.start).sum();
        if size > LARGE {
            let mut hash = Sha256::new();
            for member in kept() {
                hash.update(out.get(member.start..member.end)?);
            }
            self.out.truncate(start - 1); // the bracket too
            self.out.push(b'#');
            self.out.extend_from_slice(&hash.finalize());
        } else {
            if !in_order || size < out.len() - start {
                self.sorted.clear();
                self.sorted.reserve(size);
                for member in kept() {
                    self.sorted
                        .extend_from_slice(out.get(member.start..member.end)?);
                }
                self.out.truncate(start);
                self.out.extend_from_slice(&self.sorted);
            }
            self.out.push(b'}');
        }
        self.members.truncate(first);
        Some(())
    }

    /// Reads a string up to its closing quote; the opening one is read.
    fn string(&mut self) -> Option<()> {
        self.out.push(b's');
        loop {
            let (plain, rest) = self.rest.split_at_checked(plain_length(self.rest)?)?;
            self.out.extend_from_slice(plain);
            match rest {
                [b'"', rest @ ..] => {
                    self.rest = rest;
                    self.out.push(END);
                    return Some(());
                }
                [b'\\', escape, rest @ ..] => {
                    self.rest = rest;
                    self.escape(*escape)?;
                }
                _ => return None,
            }
        }
    }

    /// Reads an escape from the letter after the backslash on (RFC 8259, section 7).
    fn escape(&mut self, letter: u8) -> Option<()> {
        let byte = match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let text = self.unicode_escape()?;
                self.out
                    .extend_from_slice(text.encode_utf8(&mut [0; 4]).as_bytes());
                return Some(());
            }
            _ => return None,
        };
        self.out.push(byte);
        Some(())
    }

    /// Reads what follows `\u`, a surrogate pair as one character. A lone surrogate is no text.
    fn unicode_escape(&mut self) -> Option<char> {
        let high = self.code_unit()?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high);
        }
        self.rest = self.rest.strip_prefix(b"\\u")?;
        let low = self.code_unit()?;
        if !(0xdc00..0xe000).contains(&low) {
            return None;
        }
        char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }

    fn code_unit(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        digits
            .iter()
            .try_fold(0, |unit, digit| Some((unit << 4) | u32::from(hex(*digit)?)))
    }

    fn skip_white(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn advance(&mut self) -> Option<()> {
        self.rest = self.rest.get(1..)?;
        Some(())
    }
}

/// How many bytes of a string there are before its next quote, backslash or control character; `None`: there is none of these.
///
/// Eight bytes are looked at together. A byte is less than another, or equal to 0, where subtracting borrows from its highest bit; a byte
/// that borrows from the next can make that look so too, but the lowest that does is one.
fn plain_length(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);
    let less = |word: u64, than: u8| word.wrapping_sub(ONES * u64::from(than)) & !word & HIGHEST;
    let equal = |word: u64, byte: u8| less(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let stops = equal(word, b'"') | equal(word, b'\\') | less(word, 0x20);
        if stops != 0 {
            return Some(8 * at + stops.trailing_zeros() as usize / 8);
        }
    }
    let stops = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    let in_rest = rest.iter().position(stops)?;
    Some(text.len() - rest.len() + in_rest)
}

#[cfg(test)]
mod tests;
