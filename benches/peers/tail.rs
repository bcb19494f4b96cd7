//! Latencies at a fixed rate, each from the moment the request was due: a proxy that stands still for a while is charged for all that
//! came meanwhile, not for one request a connection.

use super::{
    Result, Setting,
    compare::{ROOM, Scenario, quiet},
    load::{self, Load, Outcome, Pace, median},
    proxies::{Peer, Proxy},
    table::{Table, legend, mark, progress},
    wire::Upstream,
};

/// Of what the slowest can do in a closed loop.
const SHARE: f64 = 0.7;

pub(crate) async fn run(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut table = Table::new(
        format!(
            "Latencies at a fixed rate: {:.0} % of the lower peak, for both; from when a request was due; 64 connections, {} s, {} rounds, medians; {}",
            SHARE * 100.0,
            setting.seconds,
            setting.rounds,
            legend()
        ),
        &[
            "what",
            "proxy",
            "requests/s",
            "of its peak",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
        ],
    );
    let peers: Vec<Peer> = setting
        .peers
        .iter()
        .copied()
        .filter(|peer| *peer != Peer::Haproxy)
        .collect();
    for scenario in Scenario::ALL {
        let mut peaks = Vec::new();
        for peer in &peers {
            let name = scenario.name();
            progress(&format!("tail: {name}, the peak of {peer}"))?;
            let mut rates = Vec::new();
            for _ in 0..setting.rounds {
                let closed = once(*peer, upstream, scenario.load(setting)).await?;
                rates.push(closed.requests_per_s);
            }
            peaks.push(median(rates)?);
        }
        let rate = peaks.iter().copied().fold(f64::INFINITY, f64::min) * SHARE;
        let mut outcomes = vec![Vec::new(); peers.len()];
        for round in 0..setting.rounds {
            let mut order: Vec<_> = peers.iter().zip(&mut outcomes).collect();
            // Nobody is always the first.
            if round % 2 == 1 {
                order.reverse();
            }
            for (peer, outcomes) in order {
                progress(&format!("tail: {}, {peer} at {rate:.0}/s", scenario.name()))?;
                let load = Load {
                    pace: Pace::Open(rate),
                    ..scenario.load(setting)
                };
                outcomes.push(once(*peer, upstream, load).await?);
            }
        }
        for ((peer, outcomes), peak) in peers.iter().zip(outcomes).zip(peaks) {
            let (outcomes, is_quiet) = quiet(outcomes, Outcome::is_quiet);
            let mark = mark(is_quiet);
            let at = |share: usize| -> Result<String> {
                let all = outcomes.iter().map(|one| one.latency.per_mille(share));
                Ok(format!("{:.0}{mark}", median(all)?))
            };
            let came = median(outcomes.iter().map(|one| one.requests_per_s))?;
            table.row([
                scenario.name().to_owned(),
                peer.to_string(),
                format!("{came:.0}{mark}"),
                format!("{:.0} %", came / peak * 100.0),
                at(500)?,
                at(990)?,
                at(999)?,
            ]);
        }
    }
    table.print(setting.form)
}

async fn once(peer: Peer, upstream: &Upstream, load: Load) -> Result<Outcome> {
    let proxy = Proxy::start(peer, upstream, ROOM).await?;
    load::run(&proxy, upstream, load).await
}
