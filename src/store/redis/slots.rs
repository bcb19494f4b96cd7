//! Which node of a cluster has a key: a key's slot, and what a node says of who has which slots.

use ::redis::Value;

use super::place::address;
use crate::core::record::RecordId;

/// A cluster has so many slots.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key. None of ours has braces, so that the whole key counts.
pub(super) fn slot(key: &[u8]) -> u16 {
    key.iter().copied().fold(0, crc) % SLOTS
}

/// The slot of a record's key: of `prefix` and the id's digits.
pub(super) fn slot_of(prefix: &str, id: &RecordId) -> u16 {
    let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    let digits = id
        .as_bytes()
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]);
    prefix.bytes().chain(digits).fold(0, crc) % SLOTS
}

/// CRC-16/XMODEM, as the cluster specification has it.
fn crc(crc: u16, byte: u8) -> u16 {
    let [high, low] = crc.to_be_bytes();
    let entry = TABLE.get(usize::from(high ^ byte)).copied();
    (u16::from(low) << 8) ^ entry.unwrap_or(0)
}

const TABLE: [u16; 256] = table();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated by the compiler, in bounds"
)]
const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// Who has which slots, as one node sees it. Two nodes that agree give equal ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Map {
    /// In order, none overlapping: first and last slot, and the master's place among `masters`.
    ranges: Vec<(u16, u16, usize)>,
    masters: Vec<(String, u16)>,
}

impl Map {
    /// Reads the answer of `CLUSTER SLOTS`; `asked` is the host that gave it. `None`: it is no such answer.
    pub(super) fn read(told: &Value, asked: &str) -> Option<Self> {
        let Value::Array(told) = told else {
            return None;
        };
        let mut ranges = Vec::with_capacity(told.len());
        for range in told {
            let Value::Array(range) = range else {
                return None;
            };
            let [first, last, master, ..] = &range[..] else {
                return None;
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last >= SLOTS {
                return None;
            }
            ranges.push((first, last, endpoint(master, asked)?));
        }
        ranges.sort();
        let mut map = Self::default();
        let mut masters: Vec<_> = ranges.iter().map(|(.., master)| master.clone()).collect();
        masters.sort();
        masters.dedup();
        for (first, last, master) in ranges {
            let at = masters.binary_search(&master).ok()?;
            match map.ranges.last_mut() {
                Some((_, end, _)) if *end >= first => return None,
                Some((_, end, same)) if *end + 1 == first && *same == at => *end = last,
                _ => map.ranges.push((first, last, at)),
            }
        }
        map.masters = masters;
        Some(map)
    }

    /// Host and port of every master that has slots.
    pub(super) fn masters(&self) -> &[(String, u16)] {
        &self.masters
    }

    /// The place among `masters` of each slot's; [`NOBODY`] where none has it.
    pub(super) fn owners(&self) -> Box<[u16]> {
        let mut owners = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        for (first, last, at) in &self.ranges {
            let at = u16::try_from(*at).unwrap_or(NOBODY);
            if let Some(owned) = owners.get_mut(usize::from(*first)..=usize::from(*last)) {
                owned.fill(at);
            }
        }
        owners
    }

    /// The first slots that nobody has; `None`: somebody has each.
    pub(super) fn gap(&self) -> Option<(u16, u16)> {
        let mut next = 0;
        for (first, last, _) in &self.ranges {
            if *first > next {
                return Some((next, first - 1));
            }
            next = last + 1;
        }
        (next < SLOTS).then_some((next, SLOTS - 1))
    }

    /// The slots of one master, as people write them.
    pub(super) fn slots_of(&self, address_of: &str) -> String {
        let mut told = Vec::new();
        for (first, last, at) in &self.ranges {
            let master = self.masters.get(*at);
            if master.is_some_and(|(host, port)| address(host, *port) == address_of) {
                told.push(if first == last {
                    first.to_string()
                } else {
                    format!("{first}-{last}")
                });
            }
        }
        if told.len() > SHOWN {
            let more = told.len() - SHOWN;
            told.truncate(SHOWN);
            told.push(format!("and {more} more"));
        }
        told.join(", ")
    }
}

/// Stands for a slot that no master has.
pub(super) const NOBODY: u16 = u16::MAX;

/// So many ranges of one master are told.
const SHOWN: usize = 4;

/// Where a redirection leads: host and port. An empty host is the one that said so.
pub(super) fn redirected(to: &str, asked: &str) -> Option<(String, u16)> {
    let (host, port) = to.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    let host = host.strip_prefix('[').unwrap_or(host);
    let host = host.strip_suffix(']').unwrap_or(host);
    Some((host.to_owned(), port.parse().ok()?))
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Host, port, id and, from Redis 7 on, other names: of a node whose name is not known the address counts, and the host that was asked
/// where none is told.
fn endpoint(node: &Value, asked: &str) -> Option<(String, u16)> {
    let Value::Array(node) = node else {
        return None;
    };
    let (host, port) = (text(node.first()?), number(node.get(1)?)?);
    let host = match host {
        None | Some("") => asked,
        Some("?") => node
            .get(3)
            .and_then(|more| named(more, "ip"))
            .unwrap_or(asked),
        Some(host) => host,
    };
    Some((host.to_owned(), port))
}

/// A value among names and values.
fn named<'a>(list: &'a Value, name: &str) -> Option<&'a str> {
    match list {
        Value::Array(list) => {
            let mut pairs = list.chunks_exact(2);
            pairs.find_map(|pair| match pair {
                [key, value] if text(key) == Some(name) => text(value),
                _ => None,
            })
        }
        Value::Map(map) => {
            let found = map.iter().find(|(key, _)| text(key) == Some(name));
            found.and_then(|(_, value)| text(value))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), bulk("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn a_key_has_the_slot_that_the_specification_gives_it() {
        // CRC-16/XMODEM of its check string is 0x31c3.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        let id = RecordId::from_bytes([0xa7; 32]);
        let key = format!("idem:0123:{}", "a7".repeat(32));
        assert_eq!(slot_of("idem:0123:", &id), slot(key.as_bytes()));
    }

    #[test]
    fn views_that_say_the_same_are_equal_however_they_are_cut() {
        let one = Value::Array(vec![
            range(8192, 16383, bulk("b"), 2),
            range(0, 8191, bulk("a"), 1),
        ]);
        let cut = Value::Array(vec![
            range(0, 99, Value::Nil, 1),
            range(100, 8191, bulk(""), 1),
            range(8192, 16383, bulk("b"), 2),
        ]);
        let one = Map::read(&one, "x").expect("a map");
        assert_eq!(Map::read(&cut, "a"), Some(one.clone()));
        assert_ne!(Map::read(&cut, "c"), Some(one.clone()));
        assert_eq!(one.masters(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let owners = one.owners();
        assert_eq!((owners[8191], owners[8192]), (0, 1));
        assert_eq!(one.gap(), None);
        assert_eq!(one.slots_of("b:2"), "8192-16383");
    }

    #[test]
    fn slots_that_nobody_has_are_found() {
        let gap = |ranges: &[(i64, i64)]| {
            let ranges = ranges
                .iter()
                .map(|(first, last)| range(*first, *last, bulk("a"), 1));
            Map::read(&Value::Array(ranges.collect()), "a")
                .expect("a map")
                .gap()
        };
        assert_eq!(gap(&[]), Some((0, 16383)));
        assert_eq!(gap(&[(1, 16383)]), Some((0, 0)));
        assert_eq!(gap(&[(0, 5), (7, 16383)]), Some((6, 6)));
        assert_eq!(gap(&[(0, 16382)]), Some((16383, 16383)));
    }

    #[test]
    fn what_is_no_map_is_none() {
        for told in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 4, bulk("a"), 1)]),
            Value::Array(vec![range(0, 16384, bulk("a"), 1)]),
            Value::Array(vec![range(-1, 4, bulk("a"), 1)]),
            Value::Array(vec![range(0, 1, bulk("a"), 65536)]),
            Value::Array(vec![range(0, 9, bulk("a"), 1), range(9, 11, bulk("b"), 1)]),
        ] {
            assert_eq!(Map::read(&told, "a"), None, "{told:?}");
        }
    }

    #[test]
    fn a_node_without_a_name_is_known_by_its_address() {
        let other = Value::Array(vec![bulk("ip"), bulk("10.0.0.9")]);
        let node = Value::Array(vec![bulk("?"), Value::Int(7), bulk("id"), other]);
        let told = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(1), node])]);
        let map = Map::read(&told, "asked").expect("a map");
        assert_eq!(map.masters(), [("10.0.0.9".to_owned(), 7)]);
    }

    #[test]
    fn redirections_lead_to_hosts_of_every_kind() {
        for (to, host, port) in [
            ("127.0.0.1:7000", "127.0.0.1", 7000),
            (":7000", "asked", 7000),
            ("::1:7000", "::1", 7000),
            ("[::1]:7000", "::1", 7000),
            ("redis-1.example:1", "redis-1.example", 1),
        ] {
            assert_eq!(redirected(to, "asked"), Some((host.to_owned(), port)));
        }
        for bad in ["", "host", "host:", "host:65536"] {
            assert_eq!(redirected(bad, "asked"), None, "{bad}");
        }
    }
}
