//! A cluster: one keeper a master, and which slots are whose.
//!
//! Every node is asked what it sees; what most of them see is the map. A node that sees something else is not believed about what is
//! cached, and the map is made anew, until they agree. Requests do not wait for that: a node that does not have a key says who has it.
//! A node that nobody names any more is kept for a minute, since views differ while something changes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, mpsc::SyncSender},
    time::Duration,
};

use ::redis::{RedisError, Value, aio::MultiplexedConnection, from_redis_value, pipe};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    keeper::{First, Keeper, Source},
    node::{Live, Node},
    place::{Place, address},
    routes::Slots,
    slots::Map,
};
use crate::{config::RedisStore as Settings, tasks::Tasks};

/// One of it a store.
pub(super) struct Cluster {
    inner: Arc<Inner>,
    settings: Settings,
    tasks: Tasks,
    stopped: CancellationToken,
    /// The nodes that are configured. Every node is called as the first of them is.
    seeds: Vec<Place>,
    kept: HashMap<String, Member>,
    map: Map,
    said: Option<String>,
}

/// A node that is kept.
struct Member {
    node: Arc<Node>,
    place: Place,
    ends: CancellationToken,
    /// When it was last named.
    named: Instant,
}

/// What a node sees.
#[derive(Debug)]
pub(super) struct View {
    /// Whether it finds that the cluster works.
    pub(super) whole: bool,
    pub(super) map: Map,
}

impl View {
    /// Asks a node.
    ///
    /// # Errors
    /// It does not answer, or is none of a cluster.
    pub(super) async fn ask(
        connection: &mut MultiplexedConnection,
        host: &str,
    ) -> Result<Self, RedisError> {
        let mut both = pipe();
        both.cmd("CLUSTER").arg("INFO");
        both.cmd("CLUSTER").arg("SLOTS");
        let (info, slots): (Value, Value) = both.query_async(connection).await?;
        let info: String = from_redis_value(info)?;
        let odd = (
            ::redis::ErrorKind::UnexpectedReturnType,
            "no answer of a cluster's node",
        );
        Ok(Self {
            whole: info.lines().any(|line| line.trim() == "cluster_state:ok"),
            map: Map::read(&slots, host).ok_or(odd)?,
        })
    }
}

impl Cluster {
    pub(super) fn new(
        inner: Arc<Inner>,
        settings: Settings,
        tasks: Tasks,
        stopped: CancellationToken,
        seeds: Vec<Place>,
    ) -> Self {
        Self {
            inner,
            settings,
            tasks,
            stopped,
            seeds,
            kept: HashMap::new(),
            map: Map::default(),
            said: None,
        }
    }

    /// Until it is stopped. What comes of the first try is told to `first`: of each node that the first map names.
    pub(super) async fn run(mut self, first: SyncSender<First>) {
        let stopped = self.stopped.clone();
        tokio::select! {
            () = stopped.cancelled() => {}
            () = self.work(first) => {}
        }
    }

    async fn work(&mut self, first: SyncSender<First>) {
        let (tell, mut told) = mpsc::unbounded_channel();
        self.look(Some(&tell)).await;
        drop(tell);
        let mut worst = if self.kept.is_empty() {
            First::Down
        } else {
            First::Up
        };
        while let Some(one) = told.recv().await {
            match one {
                First::Down if matches!(worst, First::Up) => worst = First::Down,
                First::Up | First::Down => {}
                unfit @ First::Unfit { .. } => worst = unfit,
            }
        }
        // Nobody may wait for it any more.
        let _ = first.try_send(worst);
        let inner = Arc::clone(&self.inner);
        let mut pause = LEAST_PAUSE;
        loop {
            tokio::select! {
                () = inner.link.astray.notified() => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(BEAT);
                    self.look(None).await;
                }
                () = tokio::time::sleep(BEAT) => {
                    pause = LEAST_PAUSE;
                    // Where all is well, each node's keeper sees what changes.
                    if inner.link.trouble().is_some() {
                        self.look(None).await;
                    } else {
                        self.tidy();
                    }
                }
            }
            inner.let_go().await;
        }
    }

    /// Makes the map anew.
    async fn look(&mut self, tell: Option<&mpsc::UnboundedSender<First>>) {
        let mut views = self.ask_nodes().await;
        let mut why = None;
        if views.is_empty() {
            (views, why) = self.ask_seeds().await;
        }
        let Some(map) = chosen(views, &self.map) else {
            let why = why.map_or_else(|| "no node answers".to_owned(), |why| why.to_string());
            if self.said.as_ref() != Some(&why) {
                let server = &self.inner.server;
                tracing::error!(%server, error = %why, "the slots of the Redis cluster are not known");
                self.said = Some(why);
            }
            self.tidy();
            return;
        };
        self.said = None;
        if map != self.map {
            let masters = map.masters().len();
            tracing::info!(masters, "the slots of the Redis cluster are known");
        }
        self.map = map;
        self.keep(tell);
    }

    /// What the nodes that are connected see.
    async fn ask_nodes(&self) -> Vec<Map> {
        let mut asked = Vec::new();
        for member in self.kept.values() {
            let Ok(live) = member.node.live() else {
                continue;
            };
            self.inner.link.metrics.round_trip();
            let node = Arc::clone(&member.node);
            asked.push(
                self.tasks
                    .detach(async move { (ask(&live).await, node, live) }),
            );
        }
        let mut views = Vec::new();
        for asked in asked {
            match asked.await {
                Ok((Ok(view), ..)) => views.push(view.map),
                Ok((Err(error), node, live)) => {
                    self.inner.link.failed(&node, &live, &error);
                }
                // It panicked, and that was reported.
                Err(_) => {}
            }
        }
        views
    }

    /// What the nodes see that are configured, and those that were known last.
    async fn ask_seeds(&self) -> (Vec<Map>, Option<RedisError>) {
        let mut places: BTreeMap<&str, &Place> = BTreeMap::new();
        let known = self.kept.values().map(|member| &member.place);
        for place in self.seeds.iter().chain(known) {
            places.insert(place.address(), place);
        }
        let timeout = self.settings.timeout;
        let ask = |place: &Place| {
            let place = place.clone();
            self.tasks.detach(async move {
                let mut connection = place.connect_plain(timeout).await?;
                View::ask(&mut connection, place.host()).await
            })
        };
        let asked: Vec<_> = places.into_values().map(ask).collect();
        let (mut views, mut why) = (Vec::new(), None);
        for asked in asked {
            match asked.await {
                Ok(Ok(view)) => views.push(view.map),
                Ok(Err(error)) => why = Some(error),
                // It panicked, and that was reported.
                Err(_) => {}
            }
        }
        (views, why)
    }

    /// Keeps the map's nodes, and those that were pointed to.
    fn keep(&mut self, tell: Option<&mpsc::UnboundedSender<First>>) {
        let masters = self.map.masters().to_vec();
        for (host, port) in masters.into_iter().chain(self.inner.link.wanted()) {
            let address = address(&host, port);
            if let Some(member) = self.kept.get_mut(&address) {
                member.named = Instant::now();
            } else if let Some(member) = self.start(&host, port, tell) {
                self.kept.insert(address, member);
            }
        }
        self.tidy();
        self.route();
    }

    /// Tells requests who there is: the map's masters in its order, then the others.
    fn route(&self) {
        let masters = self.masters();
        let others = self.kept.keys();
        let others = others.filter(|address| !masters.contains(address));
        let nodes = masters.iter().chain(others);
        let nodes = nodes.filter_map(|address| self.kept.get(address));
        let nodes = nodes.map(|member| Arc::clone(&member.node)).collect();
        self.inner.link.route(Slots::new(self.map.clone(), nodes));
    }

    fn masters(&self) -> Vec<String> {
        let masters = self.map.masters().iter();
        masters.map(|(host, port)| address(host, *port)).collect()
    }

    fn start(
        &self,
        host: &str,
        port: u16,
        tell: Option<&mpsc::UnboundedSender<First>>,
    ) -> Option<Member> {
        let place = self.seeds.first()?.at(host, port);
        let node = Arc::new(Node::new(address(host, port)));
        let ends = self.stopped.child_token();
        let tell = tell.cloned();
        let keeper = Keeper::new(
            Arc::clone(&self.inner),
            Arc::clone(&node),
            Source::Member(place.clone()),
            &self.settings,
            self.tasks.clone(),
            ends.clone(),
        );
        self.tasks.detach(keeper.run(move |first| {
            if let Some(tell) = tell {
                // Nobody may listen any more.
                let _ = tell.send(first);
            }
        }));
        Some(Member {
            node,
            place,
            ends,
            named: Instant::now(),
        })
    }

    /// Lets nodes go that nobody has named for a while.
    fn tidy(&mut self) {
        let (masters, before) = (self.masters(), self.kept.len());
        self.kept.retain(|address, member| {
            let stays = masters.contains(address) || member.named.elapsed() < KEPT_FOR;
            if !stays {
                member.ends.cancel();
            }
            stays
        });
        if self.kept.len() < before {
            self.route();
        }
    }
}

async fn ask(live: &Live) -> Result<View, RedisError> {
    View::ask(&mut live.connection.clone(), live.place.host()).await
}

/// What most of them see; of two that as many see, the one that is new.
fn chosen(views: Vec<Map>, last: &Map) -> Option<Map> {
    let mut votes: BTreeMap<Map, usize> = BTreeMap::new();
    for view in views {
        // A node that was reset, or joins only now, knows nothing.
        if !view.masters().is_empty() {
            *votes.entry(view).or_default() += 1;
        }
    }
    let best = votes
        .into_iter()
        .max_by_key(|(map, votes)| (*votes, map != last));
    best.map(|(map, _)| map)
}

/// How long after something went astray the nodes are asked, at first.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// So often they are asked, at most, while something goes astray again and again, and while anything is wrong.
const BEAT: Duration = Duration::from_secs(1);

/// A node that nobody names is kept for so long.
const KEPT_FOR: Duration = Duration::from_mins(1);
