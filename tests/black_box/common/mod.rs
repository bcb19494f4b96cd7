//! The black-box harness: an upstream that does what it is told, the proxy as a process, clients made of bytes.
//!
//! Nothing is shared between tests: each has its own upstream, proxy, ports and folder, and all of it ends with the
//! test. No test judges by a short time: what must happen has [`PATIENCE`], what must not is shown by counting.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

pub(crate) mod authority;
mod client;
mod expect;
mod performing;
mod proxy;
mod redis;
mod script;
mod several;
pub(crate) mod signer;
mod upstream;
mod wire;

pub(crate) use client::{Answer, Client, Request};
pub(crate) use expect::{executed, marker, problem, replayed, retry_after, unprotected};
pub(crate) use proxy::Proxy;
pub(crate) use redis::Redis;
pub(crate) use script::{Gate, Reply, Step, events, reply};
pub(crate) use several::{Cluster, Watched};
pub(crate) use upstream::{Seen, Upstream};
pub(crate) use wire::{Framing, Head, Trouble, chunk};

/// How long anything may take that is to happen at all: long enough for a machine that does other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A key that no one else uses.
pub(crate) fn key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!(
        "key-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Waits until `happened`; `what` names it when it does not.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sleeps for so many milliseconds: for what is told by the clock alone, as the end of a retention.
pub(crate) fn sleep_ms(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
