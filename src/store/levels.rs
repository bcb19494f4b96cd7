//! How full a store is, what bounds it, and what it has let go.

/// What a store holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Records of every kind, claims among them.
    pub records: u64,
    /// In memory what complete records and the markers of expired ones weigh, and with `on_full = "reject"` what is set aside for
    /// claims; on the disk what the database takes; in bytes.
    pub bytes: u64,
    /// In memory claims, unknown records and tombstones, and the markers of such as have expired: what `max_claims` bounds. On the
    /// disk the claims alone.
    pub claims: u64,
}

/// What bounds a store, so that it refuses new keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `store.memory.max_claims`, and with `on_full = "reject"` the others of that table.
    Claims,
    /// `store.disk.max_bytes`, or the `maxmemory` of the Redis server.
    Bytes,
}

/// Why a record was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// There was no room for all complete records: its key is no longer protected.
    Size,
    /// It counted for nothing any more.
    Expired,
    /// An operator purged it.
    Purged,
}

impl Eviction {
    /// Every cause.
    pub const ALL: [Self; 3] = [Self::Size, Self::Expired, Self::Purged];

    /// How metrics spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Expired => "expired",
            Self::Purged => "purged",
        }
    }
}
