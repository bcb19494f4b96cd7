//! A cluster of a test's own, and the store on it.

use super::{super::slots, *};

/// Three masters; it ends with the test.
pub(super) struct Cluster(Vec<Server>);

const NODES: u16 = 3;

impl Cluster {
    pub(super) fn start() -> Self {
        let start = |_| {
            Server::start(&[
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "2000",
                "--cluster-require-full-coverage",
                "no",
            ])
        };
        let cluster = Self((0..NODES).map(start).collect());
        let known = cluster.0[0].port().to_string();
        for (at, node) in (0..).zip(&cluster.0) {
            let (first, last) = range(at);
            let slots: Vec<_> = (first..=last).map(|slot| slot.to_string()).collect();
            let slots = slots.iter().map(String::as_str);
            let add: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
            node.ask(&add);
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            node.ask(&["CLUSTER", "MEET", "127.0.0.1", &known]);
        }
        cluster.agree();
        cluster
    }

    /// Waits until every node sees the same of a cluster that works.
    pub(super) fn agree(&self) {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let whole = self.0.iter().all(|node| {
                let info = node.ask(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
            });
            let mut maps: Vec<_> = self
                .0
                .iter()
                .map(|node| node.ask(&["CLUSTER", "SLOTS"]))
                .collect();
            maps.dedup();
            if whole && maps.len() == 1 {
                return;
            }
            assert!(std::time::Instant::now() < end, "no cluster");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn nodes(&mut self) -> &mut [Server] {
        &mut self.0
    }

    pub(super) fn servers(&self) -> RedisServers {
        let url = |node: &Server| node.url().parse().expect("a URL");
        RedisServers::Cluster(self.0.iter().map(url).collect())
    }

    /// Asks each node something of its clock.
    pub(super) fn clocks(&self, command: &str, value: &str) {
        for (at, node) in (0..).zip(&self.0) {
            node.ask(&[command, &clock(at), value]);
        }
    }

    /// Sets the clocks of this node and those after it.
    pub(super) fn clocks_from(&self, first: u16, value: &str) {
        for (at, node) in (0..).zip(&self.0).filter(|(at, _)| *at >= first) {
            node.ask(&["SET", &clock(at), value]);
        }
    }

    /// Forgets everything.
    pub(super) fn flush(&self) {
        for node in &self.0 {
            node.ask(&["FLUSHALL"]);
        }
    }
}

/// The key of a node's clock.
fn clock(node: u16) -> String {
    let (first, last) = range(node);
    let mut names = (0..16).map(|n| format!("clock:{n}"));
    let name = names.find(|name| (first..=last).contains(&slots::slot(name.as_bytes())));
    name.expect("a name for each")
}

/// First and last slot of a node.
pub(super) fn range(node: u16) -> (u16, u16) {
    let bound = |node| u16::try_from(u32::from(slots::SLOTS) * node / 3).expect("a slot");
    let node = u32::from(node);
    (bound(node), bound(node + 1) - 1)
}

/// The node that has a record at first.
pub(super) fn owner(store: &RedisStore, n: u64) -> usize {
    let slot = slots::slot(store.inner.key(&id(n)).as_bytes());
    let has = |node: &u16| (range(*node).0..=range(*node).1).contains(&slot);
    usize::from((0..NODES).find(has).expect("one of them"))
}

/// Records of which each node has one.
pub(super) fn one_each(store: &RedisStore) -> [u64; 3] {
    [0, 1, 2].map(|node| {
        let mut numbers = 1..;
        numbers.find(|n| owner(store, *n) == node).expect("one")
    })
}
