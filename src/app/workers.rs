//! The workers' part of a configuration: pools of connections to the upstreams, kept where nothing has changed.

use std::{
    hint::black_box,
    sync::{Arc, Weak},
};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::over;
use crate::{
    config::Upstream,
    proxy::{Proxy, TraceIds, Worker},
    tasks::Tasks,
    telemetry::metrics::Metrics,
    tls::Unusable,
    upstream::{Origin, Pool, SWEEP_EVERY},
};

/// The upstreams of a configuration. One that is as it was before is the same one still. Blocks for as long as the file system does.
///
/// # Errors
/// A file that TLS to a new one needs cannot be used.
pub(super) fn origins(
    upstreams: &[Upstream],
    before: &[Arc<Origin>],
    metrics: &Metrics,
) -> Result<Vec<Arc<Origin>>, Unusable> {
    let one = |upstream: &Upstream| {
        let same = before.iter().find(|origin| origin.upstream() == upstream);
        match same {
            Some(origin) => Ok(Arc::clone(origin)),
            None => Origin::new(upstream.clone(), metrics.clone()),
        }
    };
    upstreams.iter().map(one).collect()
}

/// A core's first worker.
///
/// # Errors
/// The system gives no random bytes.
pub(super) fn first(
    proxy: &Arc<Proxy>,
    origins: &[Arc<Origin>],
    executions: Tasks,
) -> anyhow::Result<Worker> {
    let pools = origins
        .iter()
        .map(|origin| Pool::new(Arc::clone(origin), executions.clone()))
        .collect();
    Ok(Worker {
        proxy: Arc::clone(proxy),
        pools,
        executions,
        times: Arc::default(),
        joins: Arc::default(),
        renewals: Arc::default(),
        traces: Arc::new(TraceIds::new()?),
    })
}

/// The same core's worker under another configuration. Connections to an upstream that has not changed stay; those to another one
/// are closed when the last request of `before` has ended.
pub(super) fn next(before: &Worker, proxy: &Arc<Proxy>, origins: &[Arc<Origin>]) -> Worker {
    let pool = |origin: &Arc<Origin>| {
        let same = before
            .pools
            .iter()
            .find(|pool| pool.upstream() == origin.upstream());
        same.cloned()
            .unwrap_or_else(|| Pool::new(Arc::clone(origin), before.executions.clone()))
    };
    Worker {
        proxy: Arc::clone(proxy),
        pools: origins.iter().map(pool).collect(),
        executions: before.executions.clone(),
        times: Arc::clone(&before.times),
        joins: Arc::clone(&before.joins),
        renewals: Arc::clone(&before.renewals),
        traces: Arc::clone(&before.traces),
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
        give_memory_back();
    }
}

/// Has the allocator look whether it holds memory that has been free for long enough to be given back. It looks when it takes a large piece and
/// when it gets one back; a proxy that has gone quiet does neither, and would keep what a burst has left: of connections that rest,
/// twice what they take.
fn give_memory_back() {
    // More than the allocator's largest pages hold. Nothing is written to it, so that it costs no memory.
    drop(black_box(Vec::<u8>::with_capacity(1 << 20)));
}
