//! To be written.

/// The memory store.
#[derive(Debug)]
pub struct MemoryStore;
