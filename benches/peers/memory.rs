//! Resident memory: of connections that do nothing, and of a proxy that has much to do for long.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    Result, Setting,
    compare::{ROOM, Scenario},
    load::{self, median},
    machine::{real, resident},
    proxies::{Peer, Proxy},
    table::{Table, progress},
    wire::{Client, Upstream},
};

/// Connections that are kept, where the limit of open files has room: a proxy may need two for each, and some for itself.
const IDLE: usize = 10_000;
const ITS_OWN_FILES: usize = 1_000;

/// Long enough for connections to come to rest, and for the allocator to give back what they no longer take.
const RESTED: Duration = Duration::from_secs(10);

/// What records may take in the long run: soon full, so that what grows on is not records.
const SMALL_ROOM: u64 = 64 << 20;

/// How long the long run is where nobody says.
pub(crate) const LONG: u32 = 180;

const MIB: f64 = 1_048_576.0;

pub(crate) async fn run(setting: &Setting, upstream: &Upstream) -> Result<()> {
    idle(setting, upstream).await?;
    busy(setting, upstream).await
}

async fn idle(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let count = IDLE.min(setting.files.saturating_sub(ITS_OWN_FILES) / 2);
    let mut table = Table::new(
        format!("Memory of {count} idle connections, each of which had one request"),
        &[
            "proxy",
            "MiB without",
            "MiB with them",
            "KiB a connection",
            "after 10 s",
        ],
    );
    for peer in &setting.peers {
        // It reserves two descriptors for each connection that it may ever have, and is configured for fewer.
        if *peer == Peer::Haproxy {
            continue;
        }
        progress(&format!("memory: idle connections, {peer}"))?;
        let proxy = Proxy::start(*peer, upstream, ROOM).await?;
        upstream.answers(300, Duration::ZERO);
        // What the first request makes is no connection's.
        Client::connect(proxy.address, 300, 300)
            .await?
            .send("")
            .await?;
        let before = resident(proxy.id())?;
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = Client::connect(proxy.address, 300, 300).await?;
            client.send("").await?;
            clients.push(client);
        }
        let with = resident(proxy.id())?;
        tokio::time::sleep(RESTED).await;
        let rested = resident(proxy.id())?;
        let each = |bytes: f64| format!("{:.1}", (bytes - before) / 1024.0 / real(clients.len()));
        table.row([
            peer.to_string(),
            format!("{:.1}", before / MIB),
            format!("{:.1}", with / MIB),
            each(with),
            each(rested),
        ]);
    }
    table.print(setting.form)
}

async fn busy(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let seconds = setting.long;
    let window = usize::try_from((seconds / 3).clamp(1, 60))?;
    let mut table = Table::new(
        format!(
            "Memory under full load for {seconds} s, room for {} MiB of records; medians of the first and the last {window} s",
            SMALL_ROOM >> 20
        ),
        &["what", "MiB at first", "MiB at last", "ratio", "requests/s"],
    );
    for scenario in Scenario::ALL {
        progress(&format!("memory: {} for {seconds} s", scenario.name()))?;
        let proxy = Proxy::start(Peer::Idem, upstream, SMALL_ROOM).await?;
        let load = load::Load {
            span: Duration::from_secs(seconds.into()),
            ..scenario.load(setting)
        };
        let samples = Arc::<Mutex<Vec<f64>>>::default();
        let (id, taken) = (proxy.id(), Arc::clone(&samples));
        let mut watcher = JoinSet::new();
        watcher.spawn(async move {
            let mut every = tokio::time::interval(Duration::from_secs(1));
            loop {
                every.tick().await;
                // An error is that of a proxy that ended, which the load tells better.
                if let Ok(bytes) = resident(id) {
                    taken.lock().push(bytes);
                }
            }
        });
        let outcome = load::run(&proxy, upstream, load).await?;
        drop(watcher);
        let samples = samples.lock().clone();
        let first = median(samples.iter().take(window).copied())?;
        let last = median(samples.iter().rev().take(window).copied())?;
        table.row([
            scenario.name().to_owned(),
            format!("{:.1}", first / MIB),
            format!("{:.1}", last / MIB),
            format!("{:.2}", last / first),
            format!("{:.0}", outcome.requests_per_s),
        ]);
    }
    table.print(setting.form)
}
