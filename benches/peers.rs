//! What idem-proxy costs, beside proxies that do less: every figure of the README's "Performance" comes from here.
//!
//! `cargo bench --bench peers -- [peers|tail|growth|memory|copies|disk]... [--rounds N] [--seconds N] [--disk FOLDER] [--markdown]`, without a name all of
//! them, which takes half an hour. `IDEM_PROXY_BINARY` names a binary that is built already. `scripts/install-bench-tools` installs the peers.
//!
//! The proxy that is measured is alone on core 0; this process, the load and the upstream, is on core 1. A proxy is started afresh for every
//! figure, with one worker, connections to the upstream that are kept, and an access log to a file. CPU time is the user and
//! system time of all its processes. A figure during which others used the machine is marked; only ratios of one run mean anything.

#[path = "peers/compare.rs"]
mod compare;
#[path = "peers/copies.rs"]
mod copies;
#[path = "peers/disk.rs"]
mod disk;
#[path = "peers/growth.rs"]
mod growth;
#[path = "peers/load.rs"]
mod load;
#[path = "peers/machine.rs"]
mod machine;
#[path = "peers/memory.rs"]
mod memory;
#[path = "peers/proxies.rs"]
mod proxies;
#[path = "peers/table.rs"]
mod table;
#[path = "peers/tail.rs"]
mod tail;
#[path = "peers/wire.rs"]
mod wire;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

use self::{
    proxies::Peer,
    table::{Form, progress},
    wire::Upstream,
};

// The same as the product has: load and upstream share a core, and are to be in nobody's way.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = anyhow::Result<T>;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trial {
    Peers,
    Tail,
    Growth,
    Memory,
    Copies,
    Disk,
}

impl Trial {
    const ALL: [(&'static str, Self); 6] = [
        ("peers", Self::Peers),
        ("tail", Self::Tail),
        ("growth", Self::Growth),
        ("memory", Self::Memory),
        ("copies", Self::Copies),
        ("disk", Self::Disk),
    ];
}

/// How it is measured, and who takes part.
struct Setting {
    rounds: usize,
    /// Of one figure.
    seconds: u32,
    /// Of the runs that show whether memory grows.
    long: u32,
    /// The limit of open files.
    files: usize,
    form: Form,
    peers: Vec<Peer>,
    /// Where the disk is that is measured; the folder for temporary files.
    disk: Option<PathBuf>,
}

impl Setting {
    fn span(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

fn main() -> Result<()> {
    let (trials, mut setting) = asked(std::env::args().skip(1))?;
    setting.files = machine::settle()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(&trials, setting))
}

fn asked(mut args: impl Iterator<Item = String>) -> Result<(Vec<Trial>, Setting)> {
    let mut trials = Vec::new();
    let mut setting = Setting {
        rounds: 3,
        seconds: 3,
        long: memory::LONG,
        files: 0,
        form: Form::Plain,
        peers: Vec::new(),
        disk: None,
    };
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u32> {
            let number = args.next().context("a number is missing")?.parse()?;
            if number == 0 {
                bail!("{arg} is at least 1");
            }
            Ok(number)
        };
        match arg.as_str() {
            "--rounds" => setting.rounds = usize::try_from(number()?)?,
            "--seconds" => {
                setting.seconds = number()?;
                setting.long = setting.seconds;
            }
            "--disk" => setting.disk = Some(args.next().context("a folder is missing")?.into()),
            "--markdown" => setting.form = Form::Markdown,
            // Cargo says that to every benchmark.
            "--bench" => {}
            name => {
                let found = Trial::ALL.iter().find(|(own, _)| *own == name);
                let (_, trial) = found.with_context(|| format!("there is no {name}"))?;
                trials.push(*trial);
            }
        }
    }
    if trials.is_empty() {
        trials = Trial::ALL.map(|(_, trial)| trial).into();
    }
    Ok((trials, setting))
}

async fn run(trials: &[Trial], mut setting: Setting) -> Result<()> {
    for peer in Peer::ALL {
        if peer.is_there() {
            setting.peers.push(peer);
        } else {
            progress(&format!(
                "{peer} is missing here; scripts/install-bench-tools installs the peers"
            ))?;
        }
    }
    if !setting.peers.contains(&Peer::Idem) {
        bail!("there is no idem-proxy to measure");
    }
    let upstream = Upstream::start().await?;
    for trial in trials {
        match trial {
            Trial::Peers => compare::run(&setting, &upstream).await?,
            Trial::Tail => tail::run(&setting, &upstream).await?,
            Trial::Growth => growth::run(&setting, &upstream).await?,
            Trial::Memory => memory::run(&setting, &upstream).await?,
            Trial::Copies => copies::run(&setting, &upstream).await?,
            Trial::Disk => disk::run(&setting, &upstream).await?,
        }
    }
    Ok(())
}
