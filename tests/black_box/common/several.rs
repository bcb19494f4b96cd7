//! Redis servers of a test's own that belong together: a cluster, or a master and its replica with sentinels.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::{Redis, eventually};

impl Redis {
    /// A value of what `INFO` says; empty while it says nothing.
    pub(crate) fn info(&self, name: &str) -> String {
        let info = self.try_ask(&["INFO"]).unwrap_or_default();
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }
}

/// Three masters with one replica each; it ends with the test.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let start = |_| {
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "2000",
                "--cluster-require-full-coverage",
                "no",
                "--repl-diskless-sync-delay",
                "0",
            ];
            Redis::at(cluster_port(), &arguments)
        };
        let cluster = Self {
            nodes: (0..6).map(start).collect(),
        };
        let addresses = cluster.nodes.iter().map(Redis::port);
        let addresses: Vec<_> = addresses.map(|port| format!("127.0.0.1:{port}")).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        run(&create);
        cluster.agree();
        cluster
    }

    /// Waits until all who live see the same of a cluster that works.
    pub(crate) fn agree(&self) {
        eventually("the cluster works", || {
            let mut maps: Vec<_> = self
                .nodes
                .iter()
                .map(|node| {
                    let ask = |what| node.try_ask(&["CLUSTER", what]).unwrap_or_default();
                    let info = ask("INFO");
                    let whole = info.contains("cluster_state:ok")
                        && info.contains("cluster_slots_assigned:16384");
                    let slots = ask("SLOTS");
                    let mut map: Vec<_> = slots.lines().map(str::to_owned).collect();
                    map.sort();
                    (whole, map)
                })
                .collect();
            let whole = maps.iter().all(|(whole, _)| *whole);
            maps.dedup();
            let linked = |node: &Redis| {
                node.info("role") == "master" || node.info("master_link_status") == "up"
            };
            whole && maps.len() == 1 && self.nodes.iter().all(linked)
        });
    }

    /// The settings of a proxy that knows two of its nodes.
    pub(crate) fn settings(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().take(2).map(Redis::url).collect();
        format!(
            "store.kind = 'redis'\nstore.redis.topology = 'cluster'\nstore.redis.url = {urls:?}\nstore.redis.timeout = '2s'\n"
        )
    }

    /// The places of the masters among the nodes.
    pub(crate) fn masters(&self) -> Vec<usize> {
        let masters = (0..self.nodes.len()).filter(|at| self.nodes[*at].info("role") == "master");
        masters.collect()
    }

    /// The place of this master's replica.
    pub(crate) fn replica_of(&self, master: usize) -> usize {
        let port = self.nodes[master].port().to_string();
        let found = (0..self.nodes.len()).find(|at| {
            let node = &self.nodes[*at];
            node.info("role") == "slave" && node.info("master_port") == port
        });
        found.expect("a replica")
    }

    /// Moves so many slots from one master to another, as an operator does.
    pub(crate) fn reshard(&self, from: usize, to: usize, slots: u32) {
        let id = |at: usize| self.nodes[at].ask(&["CLUSTER", "MYID"]);
        let address = format!("127.0.0.1:{}", self.nodes[from].port());
        run(&[
            "--cluster",
            "reshard",
            &address,
            "--cluster-from",
            &id(from),
            "--cluster-to",
            &id(to),
            "--cluster-slots",
            &slots.to_string(),
            "--cluster-yes",
        ]);
    }
}

/// A master, a replica, and three sentinels who call them `orders`; all end with the test.
pub(crate) struct Watched {
    pub(crate) servers: [Redis; 2],
    sentinels: Vec<Sentinel>,
}

pub(crate) struct Sentinel {
    child: Child,
    port: String,
    _folder: TempDir,
}

impl Watched {
    /// `wanted`: the password that the servers want, and, if it is so, the sentinels too; nothing: none.
    pub(crate) fn start(password: &str) -> Self {
        let secret = ["--requirepass", password, "--masterauth", password];
        let more: &[&str] = if password.is_empty() { &[] } else { &secret };
        let master = Redis::with(&[&["--repl-diskless-sync-delay", "0"], more].concat());
        let port = master.port().to_string();
        let of = ["--replicaof", "127.0.0.1", &port];
        let replica = if more.is_empty() {
            master.replica()
        } else {
            Redis::with(&[&of, more].concat())
        };
        let servers = [master, replica];
        let said =
            |name: &str| cli(&servers[1].port().to_string(), password, &["INFO"]).contains(name);
        eventually("the replica follows", || said("master_link_status:up"));
        let sentinels = (0..3).map(|_| Sentinel::start(&port, password)).collect();
        let watched = Self { servers, sentinels };
        eventually("the sentinels know each other", || {
            watched.sentinels.iter().all(|sentinel| {
                let said = sentinel.ask(password, &["SENTINEL", "MASTER", "orders"]);
                let lines: Vec<_> = said.lines().collect();
                let is = |name: &str, wanted: &str| {
                    let mut pairs = lines.windows(2);
                    pairs.any(|pair| pair[0] == name && pair[1] == wanted)
                };
                is("num-other-sentinels", "2") && is("num-slaves", "1") && is("flags", "master")
            })
        });
        watched
    }

    /// The settings of a proxy that knows all of the sentinels.
    pub(crate) fn settings(&self, password: &str) -> String {
        let secret = match password {
            "" => String::new(),
            password => format!(":{password}@"),
        };
        let url = |one: &Sentinel| format!("redis://{secret}127.0.0.1:{}?master=orders", one.port);
        let urls: Vec<_> = self.sentinels.iter().map(url).collect();
        format!(
            "store.kind = 'redis'\nstore.redis.topology = 'sentinel'\nstore.redis.url = {urls:?}\nstore.redis.timeout = '1s'\n"
        )
    }

    /// Lets the sentinels make the replica the master, while the master is well.
    pub(crate) fn fail_over(&self) {
        let said = self.sentinels[0].ask("", &["SENTINEL", "FAILOVER", "orders"]);
        assert_eq!(said.trim(), "OK");
    }

    pub(crate) fn freeze_a_sentinel(&self) {
        let pid = self.sentinels[2].child.id().to_string();
        let done = Command::new("kill").args(["-STOP", &pid]).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
}

impl Sentinel {
    fn start(master: &str, password: &str) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
        let mut config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor orders 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds orders 1000\nsentinel failover-timeout orders 6000\n",
            folder.path().display()
        );
        if !password.is_empty() {
            for line in [
                "sentinel auth-pass orders",
                "requirepass",
                "sentinel sentinel-pass",
            ] {
                config.extend([line, " ", password, "\n"]);
            }
        }
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, config).expect("a file");
        let child = super::redis::command()
            .arg(file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed: scripts/install-test-tools");
        Self {
            child,
            port,
            _folder: folder,
        }
    }

    fn ask(&self, password: &str, words: &[&str]) -> String {
        cli(&self.port, password, words)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // A frozen one too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `redis-cli` says.
fn cli(port: &str, password: &str, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", port]);
    if !password.is_empty() {
        command.args(["--no-auth-warning", "-a", password]);
    }
    let output = command
        .args(words)
        .output()
        .expect("redis-cli is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(words: &[&str]) {
    let output = Command::new("redis-cli").args(words).output();
    let output = output.expect("redis-cli is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}{failed}");
}

fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("an address").port().to_string()
}

/// A port that is free, and is so 10,000 further up too, where nodes of a cluster talk with each other.
fn cluster_port() -> u16 {
    loop {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        let bus = port.checked_add(10_000);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
}
