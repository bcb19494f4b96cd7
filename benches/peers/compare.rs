//! idem-proxy beside nginx and haproxy, interleaved: requests a second and CPU time a request, of one core.

use super::{
    Result, Setting,
    load::{self, Keys, Load, Outcome, median},
    machine::real,
    proxies::{Peer, Proxy},
    table::{Table, legend, mark, progress},
    wire::Upstream,
};

/// Room for all that is stored.
pub(crate) const ROOM: u64 = 4 << 30;

/// Keys that are asked for again and again.
pub(crate) const HOT_KEYS: usize = 256;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    PassThrough,
    FreshKey,
    Hit,
}

impl Scenario {
    pub(crate) const ALL: [Self; 3] = [Self::PassThrough, Self::FreshKey, Self::Hit];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PassThrough => "pass-through of 1 KiB",
            Self::FreshKey => "a new key each",
            Self::Hit => "replay of 256 keys, 300 B",
        }
    }

    pub(crate) fn load(self, setting: &Setting) -> Load {
        match self {
            Self::PassThrough => Load {
                sent: 1024,
                ..Load::new(Keys::None, setting.span())
            },
            Self::FreshKey => Load::new(Keys::Fresh, setting.span()),
            Self::Hit => Load::new(Keys::Stored(HOT_KEYS), setting.span()),
        }
    }

    /// haproxy keeps no answers to a POST.
    pub(crate) fn is_fair_to(self, peer: Peer) -> bool {
        self == Self::PassThrough || peer != Peer::Haproxy
    }
}

pub(crate) async fn run(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut table = Table::new(
        format!(
            "Peers: 64 connections, {} s, {} rounds, medians; the proxy alone on a core; {}",
            setting.seconds,
            setting.rounds,
            legend()
        ),
        &[
            "what",
            "proxy",
            "requests/s",
            "CPU µs a request",
            "requests/s to nginx's",
            "CPU to nginx's",
            "executions a key",
        ],
    );
    for scenario in Scenario::ALL {
        let peers: Vec<Peer> = setting
            .peers
            .iter()
            .copied()
            .filter(|peer| scenario.is_fair_to(*peer))
            .collect();
        let mut rounds = Vec::new();
        for round in 0..setting.rounds {
            let mut order = peers.clone();
            // Nobody is always the first.
            if round % 2 == 1 {
                order.reverse();
            }
            let mut outcomes = Vec::new();
            for peer in order {
                let of = round + 1;
                progress(&format!("peers: {}, {peer}, round {of}", scenario.name()))?;
                let proxy = Proxy::start(peer, upstream, ROOM).await?;
                outcomes.push((
                    peer,
                    load::run(&proxy, upstream, scenario.load(setting)).await?,
                ));
            }
            rounds.push(outcomes);
        }
        for peer in peers {
            let all: Vec<&Outcome> = rounds.iter().filter_map(|round| of(round, peer)).collect();
            let pairs: Vec<(&Outcome, &Outcome)> = rounds
                .iter()
                .filter_map(|round| Some((of(round, peer)?, of(round, Peer::Nginx)?)))
                .collect();
            let (all, is_quiet) = quiet(all, |outcome| outcome.is_quiet());
            let (pairs, pairs_are) = quiet(pairs, |(own, base)| own.is_quiet() && base.is_quiet());
            let mark = mark(is_quiet);
            let ratio = |column: fn(&Outcome) -> f64| match median(
                pairs.iter().map(|(own, base)| column(own) / column(base)),
            ) {
                Ok(ratio) => format!("{ratio:.2}{}", super::table::mark(pairs_are)),
                Err(_) => "-".to_owned(),
            };
            table.row([
                scenario.name().to_owned(),
                peer.to_string(),
                format!(
                    "{:.0}{mark}",
                    median(all.iter().map(|one| one.requests_per_s))?
                ),
                format!("{:.1}{mark}", median(all.iter().map(|one| one.cpu_us))?),
                ratio(|outcome| outcome.requests_per_s),
                ratio(|outcome| outcome.cpu_us),
                executions(&all),
            ]);
        }
    }
    table.print(setting.form)
}

fn of(round: &[(Peer, Outcome)], peer: Peer) -> Option<&Outcome> {
    let mut found = round.iter().filter(|(own, _)| *own == peer);
    found.next().map(|(_, outcome)| outcome)
}

/// Those that nothing disturbed, or all where there are none, and whether they are quiet.
pub(crate) fn quiet<T>(all: Vec<T>, is_quiet: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
    if all.iter().any(&is_quiet) {
        (all.into_iter().filter(is_quiet).collect(), true)
    } else {
        (all, false)
    }
}

/// The mean of the executions a key, where there are keys.
pub(crate) fn executions(all: &[&Outcome]) -> String {
    let counts: Vec<f64> = all.iter().filter_map(|one| one.executions).collect();
    if counts.is_empty() {
        "-".to_owned()
    } else {
        format!("{:.3}", counts.iter().sum::<f64>() / real(counts.len()))
    }
}
