//! The workers' part of a configuration: pools of connections to the upstreams, kept where nothing has changed.

use std::sync::{Arc, Weak, atomic::AtomicUsize};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::over;
use crate::{
    config::Upstream,
    proxy::{Proxy, Worker},
    tasks::Tasks,
    telemetry::metrics::Metrics,
    upstream::{Pool, SWEEP_EVERY},
};

/// One upstream, and what the pools of all workers to it share.
#[derive(Clone, Debug)]
pub(super) struct Behind {
    upstream: Upstream,
    idle_total: Arc<AtomicUsize>,
}

impl Behind {
    /// Those of a configuration. An upstream that is as it was before is the same one still.
    pub(super) fn all(upstreams: &[Upstream], before: &[Self]) -> Vec<Self> {
        let one = |upstream: &Upstream| {
            let same = before.iter().find(|behind| behind.upstream == *upstream);
            same.cloned().unwrap_or_else(|| Self {
                upstream: upstream.clone(),
                idle_total: Arc::default(),
            })
        };
        upstreams.iter().map(one).collect()
    }

    fn pool(&self, executions: &Tasks, metrics: &Metrics) -> Pool {
        Pool::new(
            self.upstream.clone(),
            Arc::clone(&self.idle_total),
            executions.clone(),
            metrics.clone(),
        )
    }
}

/// A core's first worker.
pub(super) fn first(proxy: &Arc<Proxy>, behind: &[Behind], executions: Tasks) -> Worker {
    let pools = behind
        .iter()
        .map(|behind| behind.pool(&executions, &proxy.metrics))
        .collect();
    Worker {
        proxy: Arc::clone(proxy),
        pools,
        executions,
        heads: Arc::default(),
    }
}

/// The same core's worker under another configuration. Connections to an upstream that has not changed stay; those to another one
/// are closed when the last request of `before` has ended.
pub(super) fn next(before: &Worker, proxy: &Arc<Proxy>, behind: &[Behind]) -> Worker {
    let pool = |behind: &Behind| {
        let same = before
            .pools
            .iter()
            .find(|pool| *pool.upstream() == behind.upstream);
        same.cloned()
            .unwrap_or_else(|| behind.pool(&before.executions, &proxy.metrics))
    };
    Worker {
        proxy: Arc::clone(proxy),
        pools: behind.iter().map(pool).collect(),
        executions: before.executions.clone(),
        heads: Arc::clone(&before.heads),
    }
}

/// Drops idle connections that are too old, of the worker in force and of those before it that requests still use.
pub(super) async fn sweep_pools(current: Arc<ArcSwap<Worker>>, stopped: CancellationToken) {
    let mut before: Vec<Weak<Worker>> = Vec::new();
    let mut last = current.load_full();
    while !over(&stopped, SWEEP_EVERY).await {
        let worker = current.load_full();
        if !Arc::ptr_eq(&worker, &last) {
            before.push(Arc::downgrade(&last));
            last = Arc::clone(&worker);
        }
        worker.pools.iter().for_each(Pool::drop_old);
        before.retain(|worker| match worker.upgrade() {
            Some(worker) => {
                worker.pools.iter().for_each(Pool::drop_old);
                true
            }
            None => false,
        });
    }
}
