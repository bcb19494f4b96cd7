//! What runs, and how it ends: the drain.

use std::{pin::pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Drained, Left, workers};
use crate::{
    flight::{Flights, Outstanding},
    otlp::Exporter,
    proxy::Proxy,
    server::{
        accept::Serving,
        drain::Drain,
        worker::{Core, Cores},
    },
    store::Stores,
    tasks::Tasks,
    upstream::Origin,
};

/// What has to end before the process may.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) drain: Drain,
    /// What goes on beside the requests ends.
    pub(super) stopped: CancellationToken,
    pub(super) connections: TaskTracker,
    pub(super) executions: TaskTracker,
    pub(super) flights: Arc<Flights>,
    pub(super) store: Arc<Stores>,
    pub(super) cores: Cores,
    pub(super) exporter: Option<Exporter>,
}

impl Running {
    /// A worker for each core.
    pub(super) fn start_workers(
        &mut self,
        proxy: &Arc<Proxy>,
        origins: &[Arc<Origin>],
    ) -> anyhow::Result<Vec<Serving>> {
        let cores = self.cores.take().into_iter();
        let start = |core: Core| {
            let executions = Tasks::new(core.runtime().clone(), self.executions.clone());
            let connections = Tasks::new(core.runtime().clone(), self.connections.clone());
            let worker = workers::first(proxy, origins, executions)?;
            let worker = Arc::new(ArcSwap::from_pointee(worker));
            let sweeping = workers::sweep_pools(Arc::clone(&worker), self.stopped.clone());
            connections.detach(sweeping);
            Ok(Serving {
                core,
                worker,
                connections,
            })
        };
        cores.map(start).collect()
    }

    /// Takes nothing new after `delay`, and waits for what runs, for `patience`; all of it until `now` at the latest.
    pub(super) async fn drain(
        &self,
        delay: Duration,
        patience: Duration,
        now: impl Future<Output = ()>,
    ) {
        let mut now = pin!(now);
        let over = tokio::select! {
            biased;
            () = now.as_mut() => true,
            () = tokio::time::sleep(delay) => false,
        };
        self.drain.begin();
        self.connections.close();
        if over {
            return;
        }
        tokio::select! {
            biased;
            () = self.finished() => {}
            () = now => {}
            () = tokio::time::sleep(patience) => {}
        }
    }

    /// Completes when nothing runs any more; only once the drain has begun.
    pub(super) async fn finished(&self) {
        // A connection can still start an execution, so that the executions are counted after the connections.
        self.connections.wait().await;
        self.executions.close();
        self.executions.wait().await;
    }

    /// What still runs.
    pub(super) fn left(&self) -> Drained {
        let (connections, tasks) = (self.connections.len(), self.executions.len());
        if connections == 0 && tasks == 0 {
            return Drained::Whole;
        }
        let Outstanding { running, unsaved } = self.flights.unsaved().outstanding();
        let mut executions = self.flights.records();
        executions.extend(running);
        // Each of these has a task.
        let named = executions.len() + unsaved.len();
        Drained::CutOff(Left {
            executions,
            unsaved,
            connections,
            tasks: tasks.saturating_sub(named),
        })
    }

    /// Ends everything at once; operators get the answers that are ready.
    pub(super) async fn end(self, operators: &Tasks) -> Drained {
        let drained = self.left();
        self.stopped.cancel();
        operators.finished_within(LAST_WORDS).await;
        if let Some(exporter) = self.exporter {
            // What runs has ended, or is cut off: no span comes after these.
            exporter.finish().await;
        }
        self.cores.end();
        // What the last of them gave up has come to it.
        if tokio::time::timeout(STORE_ENDS, self.store.end())
            .await
            .is_err()
        {
            tracing::warn!("the store did not finish in time");
        }
        drained
    }
}

/// How long operators' connections may take when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long the store may take then. A disk that hangs does not keep the process.
const STORE_ENDS: Duration = Duration::from_secs(4);
