//! How much a disk store may hold: what is taken, and what is set aside for claims.

use super::database::{Counts, PAGE_BYTES};

/// The room of one transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    max_bytes: u64,
    used: u64,
}

impl Room {
    pub(super) const fn new(max_bytes: u64, used: u64) -> Self {
        Self { max_bytes, used }
    }

    /// So much is taken, by the database's own count.
    pub(super) const fn measured(&mut self, used: u64) {
        self.used = used;
    }

    /// So many bytes were written since.
    pub(super) fn took(&mut self, bytes: usize) {
        self.used = self.used.saturating_add(paged(bytes));
    }

    /// Whether one more claim may be made. Each claim has the room set aside that an answer usually takes here, or 1 KiB:
    /// otherwise a store whose answers are large would go on having operations executed whose answers it cannot keep.
    pub(super) fn admits(&self, counts: &Counts) -> bool {
        let [in_flight, ..] = *counts;
        let records: u64 = counts.iter().sum();
        let kept = self.used.saturating_sub(EMPTY);
        let usual = kept.checked_div(records).unwrap_or(0).max(CLAIM_BYTES);
        let wanted = usual.saturating_mul(in_flight.saturating_add(1));
        self.used.saturating_add(wanted) <= self.max_bytes - self.max_bytes / 16
    }

    /// Whether an answer of so many bytes fits. A part stays free for what has none: unknown outcomes and tombstones always
    /// have a place, for their claims had one.
    pub(super) fn holds(&self, answer: usize) -> bool {
        self.used.saturating_add(paged(answer)) <= self.max_bytes - self.max_bytes / 32
    }
}

/// What so many bytes take in the file, roughly: whole pages, and something for the indexes.
fn paged(bytes: usize) -> u64 {
    let bytes = bytes as u64;
    if bytes < PAGE_BYTES / 2 {
        return bytes + ROW_BYTES;
    }
    bytes.div_ceil(PAGE_BYTES - 4) * PAGE_BYTES + ROW_BYTES
}

/// What an empty database takes.
const EMPTY: u64 = 16 * PAGE_BYTES;

/// What a claim counts with at least.
const CLAIM_BYTES: u64 = 1024;

/// What a row costs beside head and answer: its place in four indexes.
const ROW_BYTES: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn claims_have_the_room_of_a_usual_answer_set_aside() {
        let half = Room::new(MIB, MIB / 2);
        assert!(half.admits(&[0, 0, 4, 0, 0]));
        // Four records take 448 KiB; three claims more would take 336 KiB, and four do not fit.
        assert!(half.admits(&[2, 0, 2, 0, 0]));
        assert!(!half.admits(&[4, 0, 0, 0, 0]));
        assert!(Room::new(MIB, 0).admits(&[0; 5]));
        assert!(!Room::new(MIB, MIB).admits(&[0; 5]));
        assert!(!Room::new(MIB, u64::MAX).admits(&[u64::MAX, 0, 0, 0, 0]));
    }

    #[test]
    fn what_is_written_counts_at_once() {
        let mut room = Room::new(MIB, MIB / 2);
        assert!(room.holds(400_000));
        room.took(400_000);
        assert!(!room.holds(400_000));
        assert!(room.holds(10_000));
        room.measured(MIB / 4);
        assert!(room.holds(400_000));
    }
}
