//! Health: where the process stands, for those who send it traffic.
//!
//! States: starting → ready → draining. A process that drains never becomes ready again. One that is ready says that it is not
//! for as long as its store does not answer.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

use crate::telemetry::metrics::{Reached, UpstreamState};

/// Where the process stands. Shared by whoever moves it and the admin listeners.
#[derive(Debug, Default)]
pub struct Health {
    stage: AtomicU8,
    store: OnceLock<Watch>,
}

/// Tells what keeps the store from answering; `None`: it answers.
struct Watch(Box<dyn Fn() -> Option<String> + Send + Sync>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch(…)")
    }
}

const STARTING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;

/// The answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Requests are welcome.
    Ready,
    /// They are not, for these reasons; never empty.
    NotReady(Vec<Reason>),
}

/// Why a process is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its listeners are not bound yet.
    Starting,
    /// It was told to end.
    Draining,
    /// The store does not answer.
    Store,
}

impl Reason {
    /// How answers and logs spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Draining => "draining",
            Self::Store => "store-unavailable",
        }
    }
}

impl Health {
    /// Of a process that starts.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stage: AtomicU8::new(STARTING),
            store: OnceLock::new(),
        }
    }

    /// From now on `trouble` tells what keeps the store from answering; `None`: it answers, or is not needed. Only the first one told counts.
    pub fn watch_store(&self, trouble: impl Fn() -> Option<String> + Send + Sync + 'static) {
        let _ = self.store.set(Watch(Box::new(trouble)));
    }

    /// What keeps the store from answering; `None`: it answers, or is not needed.
    #[must_use]
    pub fn store_trouble(&self) -> Option<String> {
        self.store.get().and_then(|Watch(trouble)| trouble())
    }

    /// Everything is bound and can serve. Without effect on a process that drains.
    pub fn set_ready(&self) {
        let _ = self
            .stage
            .compare_exchange(STARTING, READY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The process was told to end; for good.
    pub fn set_draining(&self) {
        self.stage.store(DRAINING, Ordering::Release);
    }

    /// Whether requests are welcome.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let stage = match self.stage.load(Ordering::Acquire) {
            READY => None,
            STARTING => Some(Reason::Starting),
            _ => Some(Reason::Draining),
        };
        let fails = self.store_trouble().is_some();
        let reasons: Vec<Reason> = stage
            .into_iter()
            .chain(fails.then_some(Reason::Store))
            .collect();
        if reasons.is_empty() {
            Readiness::Ready
        } else {
            Readiness::NotReady(reasons)
        }
    }
}

impl Readiness {
    /// `{"status":"not ready","reasons":["draining"],"upstreams":{"billing":{"state":"unreachable","for_s":12,"reason":"connect"}}}`;
    /// without `reasons` where there are none, with `store` where something keeps it from answering. How the upstreams look changes
    /// nothing about the status.
    #[must_use]
    pub fn to_json(&self, upstreams: &[(String, UpstreamState)], store: Option<&str>) -> String {
        let upstreams: serde_json::Map<_, _> = upstreams
            .iter()
            .map(|(name, state)| (name.clone(), upstream_json(*state)))
            .collect();
        let mut document = match self {
            Self::Ready => serde_json::json!({"status": "ready", "upstreams": upstreams}),
            Self::NotReady(reasons) => {
                let reasons: Vec<_> = reasons.iter().map(|reason| reason.as_str()).collect();
                serde_json::json!({
                    "status": "not ready", "reasons": reasons, "upstreams": upstreams
                })
            }
        };
        if let (Some(store), Some(document)) = (store, document.as_object_mut()) {
            document.insert("store".to_owned(), store.into());
        }
        document.to_string()
    }
}

pub(super) fn upstream_json(state: UpstreamState) -> serde_json::Value {
    match state {
        UpstreamState::Untried => serde_json::json!({"state": "untried"}),
        UpstreamState::Tried { reached, lasts } => match reached {
            Reached::Yes => {
                serde_json::json!({"state": "reachable", "for_s": lasts.as_secs()})
            }
            Reached::No(why) => serde_json::json!({
                "state": "unreachable", "for_s": lasts.as_secs(), "reason": why.as_str()
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool};

    use super::*;

    #[test]
    fn a_process_starts_is_ready_and_drains() {
        let health = Health::new();
        assert_eq!(
            health.readiness(),
            Readiness::NotReady(vec![Reason::Starting])
        );
        health.set_ready();
        health.set_ready();
        assert_eq!(health.readiness(), Readiness::Ready);
        health.set_draining();
        assert_eq!(
            health.readiness(),
            Readiness::NotReady(vec![Reason::Draining])
        );
    }

    #[test]
    fn draining_is_for_good() {
        let health = Health::default();
        health.set_draining();
        health.set_ready();
        assert_eq!(
            health.readiness(),
            Readiness::NotReady(vec![Reason::Draining])
        );
    }

    #[test]
    fn a_process_is_ready_only_while_its_store_answers() {
        let (health, answers) = (Health::new(), Arc::new(AtomicBool::new(false)));
        let watched = Arc::clone(&answers);
        health.watch_store(move || {
            let down = !watched.load(Ordering::Relaxed);
            down.then(|| "it is down".to_owned())
        });
        let both = vec![Reason::Starting, Reason::Store];
        assert_eq!(health.readiness(), Readiness::NotReady(both));
        health.set_ready();
        assert_eq!(health.readiness(), Readiness::NotReady(vec![Reason::Store]));
        assert_eq!(health.store_trouble().as_deref(), Some("it is down"));
        answers.store(true, Ordering::Relaxed);
        assert_eq!(health.readiness(), Readiness::Ready);
    }

    #[test]
    fn reasons_are_told() {
        let not_ready = Readiness::NotReady(vec![Reason::Starting, Reason::Draining]);
        for (store, more) in [
            (None, serde_json::json!({})),
            (Some("s"), serde_json::json!({"store": "s"})),
        ] {
            let read = not_ready.to_json(&[], store);
            let read: serde_json::Value = serde_json::from_str(&read).unwrap();
            let mut wanted = serde_json::json!({"status": "not ready", "reasons": ["starting", "draining"], "upstreams": {}});
            wanted
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            assert_eq!(read, wanted);
        }
    }

    #[test]
    fn upstreams_are_told_and_change_no_status() {
        let tried = |reached| UpstreamState::Tried {
            reached,
            lasts: std::time::Duration::from_millis(12_999),
        };
        let upstreams = [
            (String::new(), tried(Reached::Yes)),
            (
                "billing".to_owned(),
                tried(Reached::No(crate::telemetry::metrics::ConnectFailure::Tls)),
            ),
            ("ledger".to_owned(), UpstreamState::Untried),
        ];
        let read: serde_json::Value =
            serde_json::from_str(&Readiness::Ready.to_json(&upstreams, None)).unwrap();
        assert_eq!(
            read,
            serde_json::json!({"status": "ready", "upstreams": {
                "": {"state": "reachable", "for_s": 12},
                "billing": {"state": "unreachable", "for_s": 12, "reason": "tls"},
                "ledger": {"state": "untried"},
            }})
        );
    }
}
