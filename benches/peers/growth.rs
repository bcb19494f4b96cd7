//! How the cost of a request grows: with connections, with records, with bodies.

use std::cmp::min;

use anyhow::bail;

use super::{
    Result, Setting,
    compare::{ROOM, Scenario, quiet},
    load::{self, Keys, Load, Outcome, median},
    proxies::{Peer, Proxy},
    table::{Table, legend, mark, progress},
    wire::Upstream,
};

const CONNECTIONS: [usize; 5] = [1, 8, 64, 512, 4096];
const RECORDS: [usize; 3] = [1_000, 100_000, 1_000_000];
const BODIES: [(usize, &str); 4] = [
    (0, "0"),
    (1 << 10, "1 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
];

/// What the requests of a figure may carry together, so that what is stored of it has room.
const CARRIED: usize = 768 << 20;

const HEAD: [&str; 5] = ["what", "of", "requests/s", "CPU µs a request", "p50 µs"];

pub(crate) async fn run(setting: &Setting, upstream: &Upstream) -> Result<()> {
    connections(setting, upstream).await?;
    records(setting, upstream).await?;
    bodies(setting, upstream).await
}

async fn connections(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut table = table(setting, "Connections");
    for scenario in Scenario::ALL {
        for connections in CONNECTIONS {
            let load = Load {
                connections,
                ..scenario.load(setting)
            };
            let of = connections.to_string();
            figure(&mut table, setting, upstream, scenario.name(), &of, load).await?;
        }
    }
    table.print(setting.form)
}

/// Hits of all records, in no order, and new keys beside them.
async fn records(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut table = table(setting, "Records (new keys: so many and more)");
    for count in RECORDS {
        progress(&format!("growth: {count} records"))?;
        let proxy = Proxy::start(Peer::Idem, upstream, ROOM).await?;
        let hit = Load::new(Keys::Stored(count), setting.span());
        // Stored once, for all rounds.
        let mut hits = vec![load::run(&proxy, upstream, hit).await?];
        for _ in 1..setting.rounds {
            hits.push(load::measure(&proxy, upstream, hit).await?);
        }
        let miss = Load::new(Keys::Fresh, setting.span());
        let mut misses = Vec::new();
        for _ in 0..setting.rounds {
            misses.push(load::measure(&proxy, upstream, miss).await?);
        }
        let evictions = proxy.evictions().await?;
        if evictions > 0.0 {
            bail!("{evictions} of {count} records were evicted");
        }
        row(&mut table, "replay", &count.to_string(), hits)?;
        row(&mut table, "a new key each", &count.to_string(), misses)?;
    }
    table.print(setting.form)
}

async fn bodies(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut table = table(setting, "Bodies");
    for (kind, keys) in [
        ("pass-through, the request's", Keys::None),
        ("a new key, the request's", Keys::Fresh),
        ("a new key, the stored answer's", Keys::Fresh),
        ("replay, the answer's", Keys::Stored(8)),
    ] {
        let is_answer = kind.contains("answer");
        for (size, of) in BODIES {
            let large = size >= 64 << 10;
            let load = Load {
                connections: if large { 8 } else { 64 },
                sent: if is_answer { 300 } else { size },
                answer: if is_answer { size } else { 300 },
                most: min(CARRIED / size.max(1), 1 << 30),
                ..Load::new(keys, setting.span())
            };
            figure(&mut table, setting, upstream, kind, of, load).await?;
        }
    }
    table.print(setting.form)
}

fn table(setting: &Setting, title: &str) -> Table {
    let (seconds, rounds) = (setting.seconds, setting.rounds);
    let legend = legend();
    Table::new(
        format!("{title}: {seconds} s, {rounds} rounds, medians; {legend}"),
        &HEAD,
    )
}

/// Measures and adds a row.
async fn figure(
    table: &mut Table,
    setting: &Setting,
    upstream: &Upstream,
    what: &str,
    of: &str,
    load: Load,
) -> Result<()> {
    progress(&format!("growth: {what}, {of}"))?;
    let mut outcomes = Vec::new();
    for _ in 0..setting.rounds {
        let proxy = Proxy::start(Peer::Idem, upstream, ROOM).await?;
        outcomes.push(load::run(&proxy, upstream, load).await?);
    }
    row(table, what, of, outcomes)
}

fn row(table: &mut Table, what: &str, of: &str, outcomes: Vec<Outcome>) -> Result<()> {
    let (outcomes, is_quiet) = quiet(outcomes, Outcome::is_quiet);
    let mark = mark(is_quiet);
    let column = |of: fn(&Outcome) -> f64| median(outcomes.iter().map(of));
    table.row([
        what.to_owned(),
        of.to_owned(),
        format!("{:.0}{mark}", column(|one| one.requests_per_s)?),
        format!("{:.1}{mark}", column(|one| one.cpu_us)?),
        format!("{:.0}{mark}", column(|one| one.latency.per_mille(500))?),
    ]);
    Ok(())
}
