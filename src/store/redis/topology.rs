//! Which servers there are: what a store starts with, and who keeps the connections to them.

use std::sync::{Arc, mpsc::SyncSender};

use ::redis::RedisError;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Inner, SLACK,
    cluster::Cluster,
    keeper::{First, Keeper, Source},
    node::Node,
    place::Place,
    routes::{Routes, Slots},
    sentinel::Sentinels,
};
use crate::{
    config::{RedisServers, RedisStore as Settings},
    tasks::Tasks,
};

/// What is known of the nodes before one was asked.
pub(super) fn routes(servers: &RedisServers) -> Routes {
    match servers {
        RedisServers::Single(_) => Routes::One(Arc::new(Node::new(servers.shown()))),
        RedisServers::Sentinel { master, .. } => {
            Routes::One(Arc::new(Node::new(format!("the master {master}"))))
        }
        RedisServers::Cluster(_) => Routes::Slots(Slots::default()),
    }
}

/// Keeps all connections until it is `ending`, and nobody waits for a claim that it left. What comes of the first try is told to `first`.
pub(super) async fn run(
    inner: Arc<Inner>,
    settings: Settings,
    ending: CancellationToken,
    first: SyncSender<First>,
) {
    let stopped = CancellationToken::new();
    let last_words = async {
        ending.cancelled().await;
        inner.let_go_at_last(settings.timeout + SLACK * 4).await;
        stopped.cancel();
    };
    let keep = async {
        let (inner, settings) = (Arc::clone(&inner), settings.clone());
        if let Err(error) = keep(inner.clone(), settings, stopped.clone(), first).await {
            tracing::error!(server = %inner.server, %error, "Redis cannot be used; keyed requests get what on_store_failure says until it can");
        }
    };
    tokio::join!(keep, last_words);
}

async fn keep(
    inner: Arc<Inner>,
    settings: Settings,
    stopped: CancellationToken,
    first: SyncSender<First>,
) -> Result<(), RedisError> {
    // They end with the thread's runtime.
    let tasks = Tasks::new(tokio::runtime::Handle::current(), TaskTracker::new());
    let source = match &settings.servers {
        RedisServers::Single(url) => Source::Fixed(Place::of(url)?),
        RedisServers::Sentinel { sentinels, master } => Source::Sentinels(Sentinels::new(
            sentinels,
            master,
            settings.timeout,
            tasks.clone(),
        )?),
        RedisServers::Cluster(urls) => {
            let seeds = urls.iter().map(Place::of).collect::<Result<Vec<_>, _>>()?;
            Cluster::new(inner, settings, tasks, stopped, seeds)
                .run(first)
                .await;
            return Ok(());
        }
    };
    if let Some(node) = inner.link.nodes().into_iter().next() {
        let keeper = Keeper::new(inner, node, source, &settings, tasks, stopped);
        // Nobody may wait for it any more.
        keeper.run(|what| _ = first.try_send(what)).await;
    }
    Ok(())
}
