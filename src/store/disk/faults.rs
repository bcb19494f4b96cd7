//! Faults that tests put into a database: what the next commits do.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

/// What a commit does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It does nothing, and says that it failed.
    BeforeCommit,
    /// It does its work, and says that it failed.
    AfterCommit,
}

/// The faults to come; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults(Arc<Mutex<VecDeque<Fault>>>);

impl Faults {
    pub(super) fn push(&self, fault: Fault) {
        self.0.lock().push_back(fault);
    }

    pub(super) fn next(&self) -> Option<Fault> {
        self.0.lock().pop_front()
    }
}
