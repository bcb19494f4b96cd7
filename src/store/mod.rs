//! Stores hold records. They translate the core's transitions, they do not decide.
//!
//! Every operation is atomic for its record. `begin` is the only one that can give the right to execute.

pub mod clock;
pub mod memory;

use std::sync::Arc;

use crate::core::{
    record::{ClaimToken, Record, RecordId},
    transition::{Ask, Found, Settlement},
};

/// The store that the configuration chose.
#[derive(Debug)]
pub enum Stores {
    /// `store.kind = "none"`: keyed requests get 501.
    None,
    /// `store.kind = "memory"`
    Memory(memory::MemoryStore),
}

/// The right to execute one operation, and to settle its record.
///
/// It is consumed by [`Stores::settle`]. Dropping it settles nothing: the lease then runs out and the outcome
/// is unknown; a dropped claim is never released.
#[derive(Debug)]
#[must_use = "a dropped claim leaves its outcome unknown"]
pub struct Claim {
    id: RecordId,
    token: ClaimToken,
}

/// What `begin` answers with.
#[derive(Debug)]
pub enum Begin {
    /// Nothing stood in the way: the caller executes, and nobody else does.
    Claimed(Claim),
    /// A record is there.
    Found(Found),
}

/// Whether the claim was still its holder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Held {
    /// It was.
    Yes,
    /// Its lease had run out and somebody else has the key, or an operator settled it.
    Lost,
}

/// What became of a claim.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The record as it is kept now: complete, a tombstone, or unknown.
    Kept(Arc<Record>),
    /// The key is free again.
    Released,
    /// The claim was lost before: nothing was written.
    Lost,
}

/// Why a store could not answer. Nothing was executed, nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no room for another claim.
    #[error("the store is full")]
    Full,
    /// There is no store.
    #[error("no store is configured")]
    None,
}
