//! Follows certificates' files: what changes in them is in use within seconds, and no connection ends for it.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    tasks::Tasks,
    telemetry::metrics::{Metrics, Reload},
    tls::{Follow, Look},
};

/// How often files are read. A change is in use after at most twice that and what it takes to read them: within ten seconds.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Whose files are followed now, and by which section of the configuration, such as `server`; asked anew each time.
pub type Followed = dyn Fn() -> Vec<(String, Arc<dyn Follow>)> + Send + Sync;

/// Looks at all the files every few seconds until `stopped`, and tells when their certificates expire.
///
/// Files are read where blocking is allowed. Dropping the future ends it; what is in use stays.
pub async fn follow(
    followed: Arc<Followed>,
    tasks: Tasks,
    metrics: Metrics,
    stopped: CancellationToken,
) {
    let told = Arc::clone(&followed);
    let expiry = |(which, files): (String, Arc<dyn Follow>)| Some((which, files.expiry()?.0));
    metrics.watch_certificates(Arc::new(move || {
        told().into_iter().filter_map(expiry).collect()
    }));
    loop {
        tokio::select! {
            () = stopped.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        for (which, files) in followed() {
            let metrics = metrics.clone();
            // A look that panics is reported by the panic hook; the next one tries again.
            let _ = tasks
                .block(move || look(&which, files.as_ref(), &metrics))
                .await;
        }
    }
}

fn look(which: &str, files: &dyn Follow, metrics: &Metrics) {
    match files.look() {
        Look::Same => {}
        Look::Applied => {
            metrics.certificate_reload(Reload::Applied);
            tracing::info!(which, "certificates were replaced");
        }
        Look::Refused(error) => {
            metrics.certificate_reload(Reload::Refused);
            tracing::warn!(
                which,
                %error,
                "changed certificates cannot be used; those in use stay in use"
            );
        }
    }
}
