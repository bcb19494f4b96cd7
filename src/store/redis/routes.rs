//! Who has what, as far as is known: one node, or a cluster's by their slots; and what is wrong with them.

use std::sync::Arc;

use super::{
    node::Node,
    slots::{self, Map},
};
use crate::core::record::RecordId;

/// Who has what.
#[derive(Debug)]
pub(super) enum Routes {
    /// One node has everything.
    One(Arc<Node>),
    /// A cluster.
    Slots(Slots),
}

/// The nodes of a cluster. Without a map it is not known yet, and nobody has anything.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) map: Map,
    owners: Box<[u16]>,
    /// Those of the map, in its order; then others that were pointed to.
    pub(super) nodes: Vec<Arc<Node>>,
}

impl Slots {
    /// `nodes` are those of the map's masters in their order, then others.
    pub(super) fn new(map: Map, nodes: Vec<Arc<Node>>) -> Self {
        let owners = map.owners();
        Self { map, owners, nodes }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let at = self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(*at))
    }
}

impl Routes {
    /// An id whose key this node has, and under which there is nothing.
    pub(super) fn nothing_on(&self, node: &Node, prefix: &str) -> Option<RecordId> {
        let Self::Slots(slots) = self else {
            return Some(RecordId::from_bytes([0; 32]));
        };
        (0..MANY_IDS).find_map(|number| {
            let mut id = [0; 32];
            let [.., a, b, c, d] = &mut id;
            [*a, *b, *c, *d] = number.to_be_bytes();
            let id = RecordId::from_bytes(id);
            let owner = slots.owner(slots::slot_of(prefix, &id));
            owner
                .is_some_and(|owner| std::ptr::eq(&raw const **owner, node))
                .then_some(id)
        })
    }

    /// The slots of a node of the cluster; `None`: it has none.
    pub(super) fn shard(&self, address: &str) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Slots(slots) => {
                let told = slots.map.slots_of(address);
                (!told.is_empty()).then_some(told)
            }
        }
    }

    /// Whether the slots are thought to be where this says.
    pub(super) fn is_mapped(&self, map: &Map) -> bool {
        match self {
            Self::One(_) => false,
            Self::Slots(slots) => slots.map == *map,
        }
    }

    /// What keeps records from being had, if anything does: in a cluster the nodes that do not answer, and slots that nobody has.
    pub(super) fn trouble(&self, wait_replicas: u32) -> Option<String> {
        match self {
            Self::One(node) if node.is_up() => node
                .lacks(wait_replicas)
                .map(|lacks| format!("Redis {lacks}")),
            Self::One(_) => Some("Redis does not answer or is not used".to_owned()),
            Self::Slots(slots) => {
                let masters = slots.nodes.iter().take(slots.map.masters().len());
                let troubled = masters.filter_map(|node| {
                    let what = if node.is_up() {
                        node.lacks(wait_replicas)?
                    } else {
                        "does not answer or is not used".to_owned()
                    };
                    let address = node.address();
                    let slots = slots.map.slots_of(address);
                    Some(format!("shard {address} (slots {slots}) {what}"))
                });
                let mut told: Vec<String> = troubled.collect();
                if told.len() > MAX_TOLD {
                    let more = told.len() - MAX_TOLD;
                    told.truncate(MAX_TOLD);
                    told.push(format!("and {more} more"));
                }
                if slots.nodes.is_empty() {
                    told.push("no node tells which slots the cluster has".to_owned());
                } else if let Some((first, last)) = slots.map.gap() {
                    told.push(format!("no node has the slots {first} to {last}"));
                }
                (!told.is_empty()).then(|| told.join("; "))
            }
        }
    }
}

/// So many ids are tried to meet a slot of a given node; that has one of 16,384 at least.
const MANY_IDS: u32 = 1_000_000;

/// So many nodes are named in a reason.
const MAX_TOLD: usize = 3;
