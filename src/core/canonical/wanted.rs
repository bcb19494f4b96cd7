//! Which parts of a JSON document count: the pointers of `fingerprint.ignore` and `fingerprint.only`, followed down
//! from the root.

use crate::core::policy::JsonPointer;

/// What of a value counts. The lists hold what is left of the pointers that lead into it, never an empty one.
#[derive(Clone, Debug)]
pub(super) enum Wanted<'r> {
    /// Nothing of it.
    Nothing,
    /// All of it but what these lead to.
    All { except: Vec<&'r [String]> },
    /// Only what `only` leads to, but not what `except` leads to.
    Parts {
        only: Vec<&'r [String]>,
        except: Vec<&'r [String]>,
    },
}

/// The last step that led to a value.
#[derive(Clone, Copy)]
pub(super) enum Step<'k> {
    /// An object's member: its name, unescaped.
    Name(&'k [u8]),
    /// An array's element.
    Index(usize),
}

impl<'r> Wanted<'r> {
    /// What of the whole document counts. `ignore` wins over `only`; without `only` everything else counts.
    pub(super) fn of_document(ignore: &'r [JsonPointer], only: &'r [JsonPointer]) -> Self {
        let tokens = |pointers: &'r [JsonPointer]| {
            pointers.iter().map(JsonPointer::tokens).collect::<Vec<_>>()
        };
        Self::new(tokens(ignore), (!only.is_empty()).then(|| tokens(only)))
    }

    /// An empty pointer has arrived: it means the value itself.
    fn new(except: Vec<&'r [String]>, only: Option<Vec<&'r [String]>>) -> Self {
        if except.iter().any(|tokens| tokens.is_empty()) {
            return Self::Nothing;
        }
        match only {
            Some(only) if only.is_empty() => Self::Nothing,
            Some(only) if !only.iter().any(|tokens| tokens.is_empty()) => {
                Self::Parts { only, except }
            }
            _ => Self::All { except },
        }
    }

    /// What counts of the value that one more step leads to.
    pub(super) fn child(&self, step: Step<'_>) -> Self {
        if self.is_whole() {
            return Self::All { except: Vec::new() };
        }
        let follow = |pointers: &[&'r [String]]| {
            let left = |tokens: &&'r [String]| match tokens.split_first() {
                Some((first, rest)) if step.is(first) => Some(rest),
                _ => None,
            };
            pointers.iter().filter_map(left).collect::<Vec<_>>()
        };
        match self {
            Self::Nothing => Self::Nothing,
            Self::All { except } => Self::new(follow(except), None),
            Self::Parts { only, except } => Self::new(follow(except), Some(follow(only))),
        }
    }

    /// Whether every child counts whole, so that nothing needs to be said about which are there.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::All { except } if except.is_empty())
    }
}

impl Step<'_> {
    /// RFC 6901, section 4: names are compared as they are, indices are digits without leading zeros.
    pub(super) fn is(self, token: &str) -> bool {
        match self {
            Self::Name(name) => name == token.as_bytes(),
            Self::Index(index) => {
                let plain = token == "0"
                    || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
                plain && token.parse() == Ok(index)
            }
        }
    }
}
