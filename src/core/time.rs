//! Points in time as records hold them: explicit, in milliseconds, of one store's clock.

use std::time::{Duration, SystemTime};

/// A point in time of a store's clock: milliseconds since the Unix epoch.
///
/// Times of different stores are never compared: a shared store judges by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The point `ms` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This point moved by `span`; the end of time where that cannot be told.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// How long it is from `now` to this point; zero when it has come.
    #[must_use]
    pub fn left(self, now: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }

    /// Whether this point has come. At exactly this point it has (contract, section 4).
    #[must_use]
    pub fn reached(self, now: Timestamp) -> bool {
        now.0 >= self.0
    }

    /// The same point for the standard library, as HTTP dates need it.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        // An HTTP date has four digits for the year (RFC 9110, section 5.6.7): this is the last second of 9999.
        const MAX_MS: u64 = 253_402_300_799_000;
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.min(MAX_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_has_come() {
        let limit = Timestamp::from_millis(50_000);
        assert!(!limit.reached(Timestamp::from_millis(49_999)));
        assert!(limit.reached(Timestamp::from_millis(50_000)));
        assert_eq!(limit.left(Timestamp::from_millis(50_000)), Duration::ZERO);
    }

    #[test]
    fn far_futures_do_not_wrap() {
        let end = Timestamp::from_millis(u64::MAX).after(Duration::from_secs(1));
        assert_eq!(end.as_millis(), u64::MAX);
        let last = httpdate::fmt_http_date(end.to_system_time());
        assert_eq!(last, "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
