//! The way to a record: which node has its key, one script there, and where that node says another has it, there.
//!
//! Each connection speaks RESP3, so that what is published comes over it too, in the order in which the server wrote it: an answer proves
//! that everything which that server published before it has come. In a cluster the node that has a record publishes its changes (to
//! all nodes, for `PUBLISH` goes to each), and every node is listened to. So a node's own word is what proves something of its own
//! slots: what is cached of a slot may be believed for a while after its node has answered, and has said in that answer that the slots
//! are distributed as they are thought to be and that the cluster is whole as it sees it (`cluster`). A slot that has moved is thus
//! either judged by who has it now, or not believed. One that is moving is still its old node's by every word, although what is purged of
//! it may be published by the new one: who reaches the old node but neither the new one nor any that is told by it may believe what is
//! purged, until the slot has moved.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, cmd, pipe};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    abandoned::Abandoned,
    node::{Live, Node},
    place::address,
    routes::{Routes, Slots},
    scripts::{Script, Scripts},
    slots::{self, Map},
    told_millis,
};
use crate::{core::record::RecordId, store::StoreError, telemetry::metrics::StoreMetrics};

/// One of it a store.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) scripts: &'static Scripts,
    pub(super) metrics: StoreMetrics,
    /// How many replicas a claim waits for; mostly none.
    pub(super) wait_replicas: u32,
    routes: ArcSwap<Routes>,
    /// Somebody found that the slots are not where they were thought to be.
    pub(super) astray: Notify,
    /// Nodes that others pointed to and that are not known, and when.
    wanted: Mutex<HashMap<(String, u16), Instant>>,
    pub(super) purged: AtomicU64,
    /// Claims that may have been made although nobody was told: to be let go.
    pub(super) abandoned: Abandoned,
    complained: Mutex<Option<Instant>>,
}

/// A script that is to run on one key.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) key: &'a str,
    pub(super) arguments: &'a [&'a [u8]],
    /// The argument at this place is the latest time at which it may still take effect, so far from now, by the clock of the node
    /// that it is sent to.
    pub(super) deadline: Option<(usize, Duration)>,
    /// The place of the time in the answer, which is learnt.
    pub(super) at: usize,
}

/// Whether a node is asked for a key that is on its way to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    Yes,
    No,
}

/// Why a script gave no answer.
enum Failed {
    /// Another node has the key, or has it already although its slot is still this one's.
    Elsewhere(Asking, RedisError),
    Other(StoreError),
}

impl Link {
    pub(super) fn new(
        scripts: &'static Scripts,
        metrics: StoreMetrics,
        routes: Routes,
        wait_replicas: u32,
    ) -> Self {
        Self {
            scripts,
            metrics,
            wait_replicas,
            routes: ArcSwap::from_pointee(routes),
            astray: Notify::new(),
            wanted: Mutex::default(),
            purged: AtomicU64::new(0),
            abandoned: Abandoned::default(),
            complained: Mutex::default(),
        }
    }

    /// From now on these are the nodes.
    pub(super) fn route(&self, slots: Slots) {
        self.routes.store(Arc::new(Routes::Slots(slots)));
    }

    /// The node that has this key, as far as is known.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: nobody has its slot.
    pub(super) fn node(&self, key: &str) -> Result<Arc<Node>, StoreError> {
        match &**self.routes.load() {
            Routes::One(node) => Ok(Arc::clone(node)),
            Routes::Slots(slots) => {
                let node = slots.owner(slots::slot(key.as_bytes()));
                node.cloned().ok_or(StoreError::Unavailable)
            }
        }
    }

    /// Whether a claim can be made under this key, as far as is known.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: nobody has its slot; its node has no connection, or fewer replicas than claims wait for.
    pub(super) fn ready(&self, key: &str) -> Result<(), StoreError> {
        let node = self.node(key)?;
        node.live().inspect_err(|_| self.astray.notify_one())?;
        match node.lacks(self.wait_replicas) {
            None => Ok(()),
            Some(_) => Err(StoreError::Unavailable),
        }
    }

    /// Shows `look` the node that has the record, without a key's being made.
    pub(super) fn with_node<T>(
        &self,
        prefix: &str,
        id: &RecordId,
        look: impl FnOnce(&Node) -> T,
    ) -> Option<T> {
        match &**self.routes.load() {
            Routes::One(node) => Some(look(node)),
            Routes::Slots(slots) => {
                let node = slots.owner(slots::slot_of(prefix, id));
                node.map(|node| look(node))
            }
        }
    }

    /// Every node that has records.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match &**self.routes.load() {
            Routes::One(node) => vec![Arc::clone(node)],
            Routes::Slots(slots) => {
                let nodes = slots.nodes.iter().take(slots.map.masters().len());
                nodes.cloned().collect()
            }
        }
    }

    fn node_at(&self, place: (String, u16)) -> Option<Arc<Node>> {
        let known = match &**self.routes.load() {
            Routes::One(_) => None,
            Routes::Slots(slots) => {
                let wanted = address(&place.0, place.1);
                let mut nodes = slots.nodes.iter();
                nodes.find(|node| node.address() == wanted).cloned()
            }
        };
        let mut wanted = self.wanted.lock();
        if wanted.len() < MAX_WANTED || wanted.contains_key(&place) {
            wanted.insert(place, Instant::now());
        }
        known
    }

    /// Nodes that were pointed to of late, whether they are of the map or not.
    pub(super) fn wanted(&self) -> Vec<(String, u16)> {
        let mut wanted = self.wanted.lock();
        wanted.retain(|_, at| at.elapsed() < WANTED_FOR);
        let mut wanted: Vec<_> = wanted.keys().cloned().collect();
        wanted.sort();
        wanted
    }

    /// As [`Routes::nothing_on`].
    pub(super) fn nothing_on(&self, node: &Node, prefix: &str) -> Option<RecordId> {
        self.routes.load().nothing_on(node, prefix)
    }

    /// As [`Routes::shard`].
    pub(super) fn shard(&self, address: &str) -> Option<String> {
        self.routes.load().shard(address)
    }

    /// Whether there are several nodes, between which slots move.
    pub(super) fn is_clustered(&self) -> bool {
        matches!(&**self.routes.load(), Routes::Slots(_))
    }

    /// As [`Routes::is_mapped`].
    pub(super) fn is_mapped(&self, map: &Map) -> bool {
        self.routes.load().is_mapped(map)
    }

    /// As [`Routes::trouble`].
    pub(super) fn trouble(&self) -> Option<String> {
        self.routes.load().trouble(self.wait_replicas)
    }

    /// Runs a script on one key, on the node that has it; what it answers, its time being learnt. `at` is the place of the time in
    /// the answer.
    ///
    /// A script is sent to another node only where the one before refused to run it; so it runs once at most.
    pub(super) async fn run(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&[u8]],
        at: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let ran = self.run_there(Call {
            script,
            key,
            arguments,
            deadline: None,
            at,
        });
        ran.await.map(|(told, _)| told)
    }

    /// The same, and the connection on which it ran.
    pub(super) async fn run_there(
        &self,
        call: Call<'_>,
    ) -> Result<(Vec<Value>, Arc<Live>), StoreError> {
        let mut node = self.node(call.key)?;
        let (mut asking, began) = (Asking::No, Instant::now());
        for _ in 0..REDIRECTIONS {
            let live = node.live().inspect_err(|_| self.astray.notify_one())?;
            let error = match self.try_on(&node, &live, asking, call).await {
                Ok(told) => return Ok((told, live)),
                Err(Failed::Other(error)) => return Err(error),
                Err(Failed::Elsewhere(how, error)) => {
                    asking = how;
                    error
                }
            };
            let to = error
                .redirect_node()
                .and_then(|(to, _)| slots::redirected(to, live.place.host()));
            let next = to.and_then(|to| self.node_at(to));
            if asking == Asking::No || next.is_none() {
                self.astray.notify_one();
            }
            match next {
                Some(next) if began.elapsed() < MOST_REDIRECTED => node = next,
                _ => break,
            }
        }
        Err(StoreError::Unavailable)
    }

    /// The same on a connection of the caller's, whether it was found good or not; where another node has the key, it is not followed.
    pub(super) async fn run_on(
        &self,
        node: &Node,
        live: &Live,
        script: &Script,
        key: &str,
        arguments: &[&[u8]],
        at: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let call = Call {
            script,
            key,
            arguments,
            deadline: None,
            at,
        };
        let tried = self.try_on(node, live, Asking::No, call);
        tried.await.map_err(|failed| match failed {
            Failed::Other(error) => error,
            Failed::Elsewhere(..) => {
                self.astray.notify_one();
                StoreError::Unavailable
            }
        })
    }

    async fn try_on(
        &self,
        node: &Node,
        live: &Live,
        asking: Asking,
        wanted: Call<'_>,
    ) -> Result<Vec<Value>, Failed> {
        let (sent, script) = (node.local(), wanted.script);
        let deadline = wanted.deadline.map(|(place, within)| {
            let latest = node.latest().after(within);
            (place, latest.as_millis().to_string())
        });
        let call = |how: &str, what: &str| {
            let mut call = cmd(how);
            call.arg(what).arg(1).arg(wanted.key);
            for (place, argument) in wanted.arguments.iter().enumerate() {
                match &deadline {
                    Some((due, latest)) if *due == place => call.arg(latest),
                    _ => call.arg(*argument),
                };
            }
            call
        };
        let told = match self
            .ask_as(live, asking, call("EVALSHA", &script.hash))
            .await
        {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                // The server has forgotten its scripts. Told the text, it knows it from then on.
                self.metrics.script_missed();
                self.ask_as(live, asking, call("EVAL", &script.text)).await
            }
            told => told,
        };
        let told = match told {
            Ok(told) => told,
            Err(error) => return Err(self.refused(node, live, error)),
        };
        let Value::Array(told) = told else {
            return Err(Failed::Other(self.odd()));
        };
        match told.get(wanted.at).and_then(told_millis) {
            Some(now) => node.learn(sent, now),
            None => return Err(Failed::Other(self.odd())),
        }
        Ok(told)
    }

    /// One round trip.
    pub(super) async fn ask(&self, live: &Live, command: &Cmd) -> Result<Value, RedisError> {
        self.metrics.round_trip();
        command.query_async(&mut live.connection.clone()).await
    }

    /// One round trip; where the key is on its way to the node, that is said first, and nothing comes between.
    async fn ask_as(&self, live: &Live, asking: Asking, command: Cmd) -> Result<Value, RedisError> {
        if asking == Asking::No {
            return self.ask(live, &command).await;
        }
        self.metrics.round_trip();
        let mut both = pipe();
        both.cmd("ASKING").ignore().add_command(command);
        // The error of a pipeline does not say where a redirection leads; that of one command does.
        both.ignore_errors();
        let told: Vec<Result<Value, RedisError>> =
            both.query_async(&mut live.connection.clone()).await?;
        told.into_iter().next().unwrap_or(Ok(Value::Nil))
    }

    fn refused(&self, node: &Node, live: &Live, error: RedisError) -> Failed {
        if let Routes::Slots(_) = &**self.routes.load() {
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    return Failed::Elsewhere(Asking::No, error);
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    return Failed::Elsewhere(Asking::Yes, error);
                }
                _ => {}
            }
        }
        Failed::Other(self.failed(node, live, &error))
    }

    /// What an error means; where the connection is of no use any more, the node's breaker opens.
    pub(super) fn failed(&self, node: &Node, live: &Live, error: &RedisError) -> StoreError {
        if error
            .to_string()
            .contains("command not allowed when used memory")
        {
            return StoreError::Full;
        }
        let gone = error.is_timeout() || error.is_io_error() || error.is_unrecoverable_error();
        let server = |kinds: &[ServerErrorKind]| matches!(error.kind(), ErrorKind::Server(kind) if kinds.contains(&kind));
        let refused = server(&[
            ServerErrorKind::ReadOnly,
            ServerErrorKind::BusyLoading,
            ServerErrorKind::MasterDown,
        ]);
        // Of one slot or of the whole cluster: who asks what the node sees finds out.
        let clustered = server(&[ServerErrorKind::Moved, ServerErrorKind::ClusterDown]);
        let whole = clustered && matches!(&**self.routes.load(), Routes::One(_));
        if gone || refused || whole {
            node.down_if(live);
            node.broken.notify_one();
        }
        if gone || refused || clustered {
            self.astray.notify_one();
        }
        self.complain(node, error);
        StoreError::Unavailable
    }

    /// The server says what no script says.
    pub(super) fn odd(&self) -> StoreError {
        if self.may_complain() {
            tracing::warn!(
                error = "it answers what no script answers",
                "Redis did not do what it was asked"
            );
        }
        StoreError::Unavailable
    }

    /// Something is not as it should be.
    pub(super) fn complains(&self, node: &Node, error: &dyn std::fmt::Display) -> StoreError {
        self.complain(node, error);
        StoreError::Unavailable
    }

    fn complain(&self, node: &Node, error: &dyn std::fmt::Display) {
        if self.may_complain() {
            let server = node.address();
            tracing::warn!(%server, %error, "Redis did not do what it was asked");
        }
    }

    /// At most once a second.
    pub(super) fn may_complain(&self) -> bool {
        let mut complained = self.complained.lock();
        if complained.is_some_and(|at| at.elapsed() < COMPLAIN_EVERY) {
            return false;
        }
        *complained = Some(Instant::now());
        true
    }

    /// The sum of what the nodes say of themselves: keys and bytes.
    pub(super) fn levels(&self) -> (u64, u64) {
        let each = |node: &Arc<Node>| (node.records.load(Relaxed), node.bytes.load(Relaxed));
        let sum = |(keys, bytes): (u64, u64), (more, grown): (u64, u64)| {
            (keys.saturating_add(more), bytes.saturating_add(grown))
        };
        self.nodes().iter().map(each).fold((0, 0), sum)
    }
}

const COMPLAIN_EVERY: Duration = Duration::from_secs(1);

/// A script follows so many nodes that say that another has the key: two, where a slot moves just then, and as many for its moving on.
const REDIRECTIONS: usize = 4;

/// A redirection that came later than this is not followed: every node may take a whole `timeout`.
const MOST_REDIRECTED: Duration = Duration::from_millis(250);

/// A node that nobody has pointed to for so long, and that the map does not name, is let go.
const WANTED_FOR: Duration = Duration::from_mins(1);
const MAX_WANTED: usize = 64;
