//! A hundred copies of each new key at once, before an upstream that takes its time: how often each is executed, and what waiting for the
//! one execution costs.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{
    Result, Setting,
    compare::{ROOM, quiet},
    load::{Latency, Outcome, median},
    machine::{Used, real},
    proxies::{Peer, Proxy},
    table::{Table, legend, mark, progress},
    wire::{Client, Upstream},
};

const COPIES: usize = 100;

/// How many groups there are at a time.
const SIDE_BY_SIDE: usize = 4;

/// What the upstream takes for one.
const CALL: Duration = Duration::from_millis(50);

pub(crate) async fn run(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut table = Table::new(
        format!(
            "Copies: {COPIES} of each new key at once, {SIDE_BY_SIDE} keys at a time, an upstream of {} ms; {} s, {} rounds, medians; times without the upstream's own; {}",
            CALL.as_millis(),
            setting.seconds,
            setting.rounds,
            legend()
        ),
        &["proxy", "executions a key", "keys/s", "p50 µs", "p99 µs"],
    );
    for peer in &setting.peers {
        // haproxy keeps no answers to a POST.
        if *peer == Peer::Haproxy {
            continue;
        }
        let mut outcomes = Vec::new();
        for round in 0..setting.rounds {
            progress(&format!("copies: {peer}, round {}", round + 1))?;
            let proxy = Proxy::start(*peer, upstream, ROOM).await?;
            outcomes.push(once(&proxy, upstream, round, setting.span()).await?);
        }
        let (outcomes, is_quiet) = quiet(outcomes, Outcome::is_quiet);
        let mark = mark(is_quiet);
        let executions = median(outcomes.iter().filter_map(|one| one.executions))?;
        let at = |share: usize| median(outcomes.iter().map(|one| one.latency.per_mille(share)));
        let per_s = median(outcomes.iter().map(|one| one.requests_per_s))?;
        table.row([
            peer.to_string(),
            format!("{executions:.3}"),
            format!("{:.1}{mark}", per_s / real(COPIES)),
            format!("{:.0}{mark}", at(500)?),
            format!("{:.0}{mark}", at(990)?),
        ]);
    }
    upstream.answers(300, Duration::ZERO);
    table.print(setting.form)
}

async fn once(proxy: &Proxy, upstream: &Upstream, round: usize, span: Duration) -> Result<Outcome> {
    upstream.answers(300, CALL);
    upstream.forget();
    let mut tasks = JoinSet::new();
    let before = Used::now(proxy.id())?;
    let mut clients = Vec::new();
    for _ in 0..COPIES * SIDE_BY_SIDE {
        clients.push(Client::connect(proxy.address, 300, 300).await?);
    }
    let started = Instant::now();
    for group in 0..SIDE_BY_SIDE {
        let mut clients: Vec<Client> = clients.drain(..COPIES).collect();
        tasks.spawn(async move {
            let mut all = Vec::new();
            for number in 0_usize.. {
                if started.elapsed() >= span {
                    break;
                }
                let mut copies = JoinSet::new();
                for mut client in clients.drain(..) {
                    let key = format!("copies-{round}-{group}-{number}");
                    copies.spawn(async move {
                        let from = Instant::now();
                        client.send(&key).await?;
                        Result::Ok((client, from.elapsed()))
                    });
                }
                while let Some(ended) = copies.join_next().await {
                    let (client, took) = ended??;
                    clients.push(client);
                    all.push(took);
                }
            }
            Result::Ok(all)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.extend(ended??);
    }
    let spent = before.until(&Used::now(proxy.id())?);
    let own = median(upstream.took().iter().map(Duration::as_secs_f64))?;
    let own = Duration::from_secs_f64(own);
    let requests = real(all.len());
    Ok(Outcome {
        requests_per_s: requests / spent.seconds,
        cpu_us: spent.proxy * 1e6 / requests,
        foreign: spent.foreign,
        executions: upstream.executions_per_key(),
        latency: Latency::new(all.iter().map(|one| one.saturating_sub(own)).collect()),
    })
}
