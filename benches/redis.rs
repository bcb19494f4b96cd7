//! What the Redis store costs: `cargo bench --bench redis` starts a `redis-server`, two proxies on it and an upstream, and prints
//! requests a second, round trips a request, the CPU time of the proxy and of Redis, and how long a waiter on the other proxy takes to wake;
//! beside that, the same scripts sent to the same server by as many connections without a proxy. `IDEM_PROXY_BINARY` names a binary that is
//! built already.
//!
//! Everything is in one run, on loopback, and bounded; load and upstream share one thread of this process. What is compared takes turns, and
//! a ratio is the median of those of the rounds. On a machine that does other things only ratios within a run mean anything.

#[path = "redis/bare.rs"]
mod bare;
#[path = "redis/house.rs"]
mod house;

use std::{
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::bail;
use tokio::task::JoinSet;

use self::house::{Client, House, Proxy};

const CONNECTIONS: u32 = 64;
const ROUNDS: u32 = 5;
const SPAN: Duration = Duration::from_secs(2);
const HOT_KEYS: u32 = 256;
const WAKES: usize = 500;

type Result<T> = anyhow::Result<T>;

/// A line of the report.
macro_rules! say {
    ($($what:tt)*) => {{
        let line = format!($($what)*);
        writeln!(std::io::stdout().lock(), "{line}")?;
    }};
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run())
}

async fn run() -> Result<()> {
    let house = House::start().await?;
    let [one, other] = &house.proxies;
    let scripts = bare::record(&house).await?;
    let mut client = Client::connect(one.address).await?;
    for key in 0..HOT_KEYS {
        client.send("orders", &format!("hot-{key}"), "miss").await?;
    }

    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let misses = measure(&house, one, Keys::Fresh { round }, "miss").await?;
        let hits = measure(&house, one, Keys::Hot, "hit").await?;
        let elsewhere = hits_elsewhere(&house, other, round, &misses.requests).await?;
        let (pairs, finds) = bare::load(&house, round, &scripts).await?;
        rounds.push([misses, hits, elsewhere, pairs, finds]);
    }
    say!("{CONNECTIONS} connections, {SPAN:?} each, {ROUNDS} rounds, medians; bodies of 300 B\n");
    say!(
        "| what | a second | of what Redis alone does | round trips to Redis | CPU µs of the proxy | CPU µs of Redis |"
    );
    say!("|---|---|---|---|---|---|");
    for (row, (what, bare)) in ROWS.iter().enumerate() {
        let column = |of: fn(&Measured) -> f64| {
            let all: Vec<f64> = rounds
                .iter()
                .filter_map(|round| round.get(row).map(of))
                .collect();
            median(&all)
        };
        let shares: Vec<f64> = rounds
            .iter()
            .filter_map(|round| Some(round.get(row)?.per_second / round.get((*bare)?)?.per_second))
            .collect();
        let share = match bare {
            Some(_) => format!("{:.2}", median(&shares)),
            None => "–".to_owned(),
        };
        say!(
            "| {what} | {:.0} | {share} | {:.2} | {:.1} | {:.1} |",
            column(|one| one.per_second),
            column(|one| one.trips),
            column(|one| one.proxy_us),
            column(|one| one.redis_us)
        );
    }
    wakes(&house).await
}

/// What is measured, and the row of what Redis does for it without a proxy.
const ROWS: [(&str, Option<usize>); 5] = [
    ("a miss: claimed, executed, stored", Some(3)),
    ("a hit on a proxy that has it in memory", None),
    ("a hit on a proxy that has not seen it", Some(4)),
    (
        "Redis alone: the scripts of a miss, one after the other",
        None,
    ),
    ("Redis alone: the script that finds a record", None),
];

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Which keys a load has.
#[derive(Clone, Copy)]
enum Keys {
    /// Each its own.
    Fresh { round: u32 },
    /// A few, stored before.
    Hot,
}

struct Measured {
    per_second: f64,
    /// To Redis, a request.
    trips: f64,
    /// CPU time of the proxies and of Redis, in microseconds a request.
    proxy_us: f64,
    redis_us: f64,
    /// How many there were on each connection.
    requests: Vec<(u32, u32)>,
}

fn fresh(round: u32, connection: u32, number: u32) -> String {
    format!("fresh-{round}-{connection}-{number}")
}

/// Sends as fast as the answers come.
async fn measure(
    house: &House,
    proxy: &Proxy,
    keys: Keys,
    marker: &'static str,
) -> Result<Measured> {
    let loads = (0..CONNECTIONS).map(|connection| (connection, u32::MAX));
    let key = move |connection, number| match keys {
        Keys::Fresh { round } => fresh(round, connection, number),
        Keys::Hot => format!("hot-{}", (connection + number) % HOT_KEYS),
    };
    send(house, proxy, loads.collect(), marker, key).await
}

/// Asks for what the other proxy has stored, each once.
async fn hits_elsewhere(
    house: &House,
    proxy: &Proxy,
    round: u32,
    stored: &[(u32, u32)],
) -> Result<Measured> {
    let key = move |connection, number| fresh(round, connection, number);
    send(house, proxy, stored.to_vec(), "hit", key).await
}

/// One connection for each load, which is its number and how many requests it may make.
async fn send(
    house: &House,
    proxy: &Proxy,
    loads: Vec<(u32, u32)>,
    marker: &'static str,
    key: impl Fn(u32, u32) -> String + Copy + Send + 'static,
) -> Result<Measured> {
    let before = proxy.round_trips().await?;
    let used = house.cpu()?;
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for (connection, most) in loads {
        let mut client = Client::connect(proxy.address).await?;
        clients.spawn(async move {
            let mut sent = 0_u32;
            while sent < most && started.elapsed() < SPAN {
                client
                    .send("orders", &key(connection, sent), marker)
                    .await?;
                sent += 1;
            }
            Result::Ok((connection, sent))
        });
    }
    let mut requests = Vec::new();
    while let Some(done) = clients.join_next().await {
        requests.push(done??);
    }
    let seconds = started.elapsed().as_secs_f64();
    let used = house.cpu()?.since(&used);
    let total = f64::from(requests.iter().map(|(_, sent)| sent).sum::<u32>());
    if total < 1.0 {
        bail!("nothing was answered");
    }
    Ok(Measured {
        per_second: total / seconds,
        trips: (proxy.round_trips().await? - before) / total,
        proxy_us: used.proxies * 1e6 / total,
        redis_us: used.redis * 1e6 / total,
        requests,
    })
}

/// How much later than the first client, on one proxy, a copy on the other is answered.
async fn wakes(house: &House) -> Result<()> {
    let [one, other] = &house.proxies;
    let mut took = Vec::with_capacity(WAKES);
    let mut leader = Client::connect(one.address).await?;
    let mut joiner = Client::connect(other.address).await?;
    for n in 0..WAKES {
        let key = format!("wake-{n}");
        let gate = Arc::clone(&house.gate);
        let first = async {
            leader.send("held", &key, "miss").await?;
            Result::Ok(Instant::now())
        };
        let second = async {
            house.gate.arrived.notified().await;
            joiner.send("held", &key, "hit").await?;
            Result::Ok(Instant::now())
        };
        let open = async {
            other.await_waiter().await?;
            gate.open.notify_one();
            Result::Ok(())
        };
        let (first, second, opened) = tokio::join!(first, second, open);
        opened?;
        took.push(second?.saturating_duration_since(first?));
    }
    took.sort();
    let at = |share: usize| took.get(WAKES * share / 100).copied().unwrap_or_default();
    say!(
        "\na copy on the other proxy is answered after the first client's answer: p50 {:?}, p99 {:?}, most {:?} ({WAKES} times)",
        at(50),
        at(99),
        took.last().copied().unwrap_or_default()
    );
    Ok(())
}
