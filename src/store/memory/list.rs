//! A doubly linked list of the slots of one table. The links stand in the slots themselves, as their numbers, so that
//! putting a slot in or taking it out allocates nothing and costs the same wherever it stands.

/// Which slots are first and last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    first: u32,
    last: u32,
}

/// The neighbours of one slot. It is in one list at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) before: u32,
    pub(super) after: u32,
}

/// What has a place in a list.
pub(super) trait Linked {
    /// Its neighbours.
    fn links(&mut self) -> &mut Links;
}

/// The number of no slot.
pub(super) const NONE: u32 = u32::MAX;

impl Links {
    /// Those of a slot that is alone, or in no list.
    pub(super) const NONE: Self = Self {
        before: NONE,
        after: NONE,
    };
}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    /// The first slot, or [`NONE`].
    pub(super) const fn first(self) -> u32 {
        self.first
    }

    /// The last slot, or [`NONE`].
    pub(super) const fn last(self) -> u32 {
        self.last
    }

    /// Puts a slot that is in no list at the end.
    pub(super) fn push_last<S: Linked>(&mut self, slots: &mut [S], at: u32) {
        set(
            slots,
            at,
            Links {
                before: self.last,
                after: NONE,
            },
        );
        match links(slots, self.last) {
            Some(last) => last.after = at,
            None => self.first = at,
        }
        self.last = at;
    }

    /// Takes a slot of this list out of it.
    pub(super) fn unlink<S: Linked>(&mut self, slots: &mut [S], at: u32) {
        let Some(own) = links(slots, at).map(|own| std::mem::replace(own, Links::NONE)) else {
            return;
        };
        match links(slots, own.before) {
            Some(before) => before.after = own.after,
            None => self.first = own.after,
        }
        match links(slots, own.after) {
            Some(after) => after.before = own.before,
            None => self.last = own.before,
        }
    }

    /// Puts a slot of this list at its end.
    pub(super) fn move_last<S: Linked>(&mut self, slots: &mut [S], at: u32) {
        if self.last != at {
            self.unlink(slots, at);
            self.push_last(slots, at);
        }
    }

    /// Has the neighbours of a slot of this list know that it stands at `at` now.
    pub(super) fn moved<S: Linked>(&mut self, slots: &mut [S], at: u32) {
        let Some(own) = links(slots, at).copied() else {
            return;
        };
        match links(slots, own.before) {
            Some(before) => before.after = at,
            None => self.first = at,
        }
        match links(slots, own.after) {
            Some(after) => after.before = at,
            None => self.last = at,
        }
    }
}

fn links<S: Linked>(slots: &mut [S], at: u32) -> Option<&mut Links> {
    slots.get_mut(at as usize).map(S::links)
}

fn set<S: Linked>(slots: &mut [S], at: u32, to: Links) {
    if let Some(own) = links(slots, at) {
        *own = to;
    }
}
