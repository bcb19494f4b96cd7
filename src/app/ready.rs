//! What the log says of being ready: that it is, once it is, and what it waits for before.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::over;
use crate::admin::health::{Health, Readiness, Reason};

/// Says when the process is ready for the first time, and, where that takes a while, what it waits for.
pub(super) async fn tell(health: Arc<Health>, stopped: CancellationToken) {
    let started = Instant::now();
    let mut told = false;
    loop {
        match health.readiness() {
            Readiness::Ready => {
                tracing::info!("ready");
                return;
            }
            Readiness::NotReady(reasons) if reasons.contains(&Reason::Draining) => return,
            Readiness::NotReady(_) => {}
        }
        if !told && started.elapsed() >= A_WHILE {
            told = true;
            let error = health.store_trouble().unwrap_or_default();
            tracing::warn!(error, "serving, but not ready: the store does not answer");
        }
        if over(&stopped, LOOK_AGAIN).await {
            return;
        }
    }
}

/// So long a store may take to be reached at the start before that is said.
const A_WHILE: Duration = Duration::from_secs(1);
/// How often it is looked at whether the process is ready, until it is.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
