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

/// Whose files are followed, asked anew each time; `None`: there are none now.
pub type Followed = dyn Fn() -> Option<Arc<dyn Follow>> + Send + Sync;

/// Looks at the files of `which` (a section of the configuration, such as `server`) every few seconds until `stopped`, and tells their
/// certificate's expiry.
///
/// Files are read where blocking is allowed. Dropping the future ends it; what is in use stays.
pub async fn follow(
    which: String,
    followed: Arc<Followed>,
    tasks: Tasks,
    metrics: Metrics,
    stopped: CancellationToken,
) {
    let expiry = Arc::clone(&followed);
    metrics.watch_certificate(which.clone(), Arc::new(move || Some(expiry()?.expiry()?.0)));
    let which: Arc<str> = which.into();
    loop {
        tokio::select! {
            () = stopped.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let Some(files) = followed() else {
            continue;
        };
        let (which, metrics) = (Arc::clone(&which), metrics.clone());
        // A look that panics is reported by the panic hook; the next one tries again.
        let _ = tasks
            .block(move || look(&which, files.as_ref(), &metrics))
            .await;
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
