//! Sets of status codes.

use http::StatusCode;

/// A set of status codes, as `store_responses` and `unknown_responses` spell it: `2xx`, `404`, `!429`.
#[derive(Clone, PartialEq, Eq)]
pub struct StatusSet([u64; 16]);

impl StatusSet {
    /// No status at all.
    pub const EMPTY: Self = Self([0; 16]);

    /// Reads the entries from left to right: a class or a code adds, `!` takes away.
    ///
    /// # Errors
    /// The first entry that is neither `2xx` … `5xx`, `200` … `599`, nor one of these after `!`. What begins with 1 is no
    /// final answer (RFC 9110, section 15.2) and never arrives as one.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self, String> {
        let mut set = Self::EMPTY;
        for entry in entries {
            let entry = entry.as_ref();
            let (adds, what) = match entry.strip_prefix('!') {
                Some(rest) => (false, rest),
                None => (true, entry),
            };
            let class = what
                .strip_suffix("xx")
                .and_then(|digit| digit.parse::<u16>().ok());
            let (first, last) = match (class, what.parse::<u16>()) {
                (Some(class @ 2..=5), _) => (class * 100, class * 100 + 99),
                (None, Ok(code @ 200..=599)) if what.len() == 3 => (code, code),
                _ => return Err(entry.to_owned()),
            };
            (first..=last).for_each(|code| set.put(code, adds));
        }
        Ok(set)
    }

    fn put(&mut self, code: u16, adds: bool) {
        if let Some(word) = self.0.get_mut(usize::from(code / 64)) {
            let bit = 1u64 << (code % 64);
            *word = if adds { *word | bit } else { *word & !bit };
        }
    }

    /// Whether `status` is one of them.
    #[must_use]
    pub fn contains(&self, status: StatusCode) -> bool {
        let code = status.as_u16();
        self.0
            .get(usize::from(code / 64))
            .is_some_and(|word| word & (1 << (code % 64)) != 0)
    }
}

impl std::fmt::Debug for StatusSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let codes = (100u16..600).filter_map(|code| StatusCode::from_u16(code).ok());
        f.debug_set()
            .entries(
                codes
                    .filter(|status| self.contains(*status))
                    .map(|s| s.as_u16()),
            )
            .finish()
    }
}
