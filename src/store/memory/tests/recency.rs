//! Which record gives way: the least recently used of all, whatever shard it stands in.

use super::*;

#[test]
fn a_use_right_after_the_answer_was_put_in_counts() {
    for used in 0..3 {
        let timed = Timed::new(MemoryLimits {
            max_bytes: MIB,
            ..ROOMY
        });
        for record in 0..3 {
            timed.execute(record, 300 << 10);
            if record == used {
                assert!(matches!(timed.look(used), Met::Complete(..)));
            }
        }
        assert!(matches!(timed.look(used), Met::Complete(..)));
        timed.execute(3, 300 << 10);
        assert!(timed.holds(used), "{used} was used last");
        assert_eq!(timed.complete(4).len(), 3);
    }
}

#[test]
fn the_order_of_uses_is_that_of_the_whole_store() {
    const RECORDS: u64 = 500;
    let timed = Timed::new(MemoryLimits {
        max_records: Some(RECORDS),
        ..ROOMY
    });
    (0..RECORDS).for_each(|record| drop(timed.execute(record, 1)));
    let shards: std::collections::HashSet<usize> = (0..RECORDS)
        .map(|record| timed.store.shard_of(&id(record)))
        .collect();
    assert!(shards.len() > 32, "they stand in {} shards", shards.len());
    // Every record once, in an order of its own (7 and 500 have no divisor in common).
    let order: Vec<u64> = (0..RECORDS).map(|n| n * 7 % RECORDS).collect();
    for record in &order {
        assert!(matches!(timed.look(*record), Met::Complete(..)));
    }
    for (evicted, record) in order.iter().enumerate() {
        assert!(timed.holds(*record), "{evicted} went before {record}");
        timed.execute(RECORDS + evicted as u64, 1);
        assert!(!timed.holds(*record), "{record} is the least recently used");
    }
}

#[test]
fn a_claim_in_the_place_of_a_complete_record_is_out_of_the_order() {
    let timed = Timed::new(MemoryLimits {
        max_records: Some(2),
        ..ROOMY
    });
    timed.execute(0, 1);
    timed.execute(1, 1);
    timed.clock.pass(Duration::from_hours(24));
    let running = timed.claim(0);
    (2..6).for_each(|record| drop(timed.execute(record, 1)));
    assert!(matches!(timed.look(0), Met::InFlight(_)));
    assert!(is_complete(
        &timed.settle(running, Settlement::Complete(answer(b"x")))
    ));
    assert_eq!(timed.complete(6), [0, 5]);
}

/// The complete records as a plain list has them, the least recently used first.
#[derive(Default)]
struct Plain(Vec<(u64, u64)>);

impl Plain {
    fn use_again(&mut self, record: u64) -> bool {
        let at = self.0.iter().position(|(own, _)| *own == record);
        if let Some(at) = at {
            let row = self.0.remove(at);
            self.0.push(row);
        }
        at.is_some()
    }

    fn keep(&mut self, record: u64, weight: u64, limits: &MemoryLimits) {
        self.0.push((record, weight));
        while self.bytes() > limits.max_bytes
            || limits
                .max_records
                .is_some_and(|max| self.0.len() as u64 > max)
        {
            self.0.remove(0);
        }
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, weight)| weight).sum()
    }
}

proptest! {
    /// Looks and answers at random: after every one the store holds what a plain list holds, within its limits.
    #[test]
    fn the_bounds_are_exact_and_so_is_the_order(
        max_records in prop::option::of(1..12u64),
        max_bytes in 20_000..60_000u64,
        steps in prop::collection::vec((0..40u64, 0..12_000usize), 1..150),
    ) {
        let limits = MemoryLimits { max_bytes, max_records, ..ROOMY };
        let (timed, mut plain) = (Timed::new(limits), Plain::default());
        for (record, body) in steps {
            let kept = plain.use_again(record);
            prop_assert_eq!(matches!(timed.look(record), Met::Complete(..)), kept);
            if !kept {
                prop_assert!(is_complete(&timed.execute(record, body)));
                plain.keep(record, (answer(b"").weight() + body) as u64, &limits);
            }
            let mut expected: Vec<u64> = plain.0.iter().map(|(record, _)| *record).collect();
            expected.sort_unstable();
            prop_assert_eq!(timed.complete(40), expected);
            let levels = timed.store.levels();
            prop_assert_eq!((levels.records, levels.bytes), (plain.0.len() as u64, plain.bytes()));
            prop_assert!(levels.bytes <= max_bytes);
            prop_assert!(max_records.is_none_or(|max| levels.records <= max));
        }
    }
}
