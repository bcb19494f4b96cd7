//! The load: so many clients, as fast as the answers come or at a fixed rate, and what it took.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    Result,
    machine::{Used, real},
    proxies::Proxy,
    wire::{Client, Upstream},
};

/// What others may use of the machine, in cores, before a figure counts as disturbed.
pub(crate) const QUIET: f64 = 0.15;

/// The keys of the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    None,
    /// Each has one that nobody had.
    Fresh,
    /// One of so many that are stored before.
    Stored(usize),
}

impl Keys {
    /// The key of the request of this number, of all that this process makes.
    fn key(self, number: usize) -> String {
        match self {
            Self::None => String::new(),
            Self::Fresh => format!("fresh-{number}"),
            // In no order that memory could be read ahead in.
            Self::Stored(count) => format!("hot-{}", number.wrapping_mul(7_368_787) % count),
        }
    }
}

/// How fast.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// As fast as the answers come.
    Closed,
    /// So many requests a second, whatever the answers do.
    Open(f64),
}

/// What is asked of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) keys: Keys,
    pub(crate) connections: usize,
    pub(crate) span: Duration,
    pub(crate) pace: Pace,
    /// The bytes of a request's body.
    pub(crate) sent: usize,
    /// The bytes of an answer's body.
    pub(crate) answer: usize,
    /// No more requests than that.
    pub(crate) most: usize,
}

impl Load {
    /// 64 connections, bodies of 300 bytes, as fast as the answers come.
    pub(crate) fn new(keys: Keys, span: Duration) -> Self {
        Self {
            keys,
            connections: 64,
            span,
            pace: Pace::Closed,
            sent: 300,
            answer: 300,
            most: usize::MAX,
        }
    }
}

/// What it took.
#[derive(Clone)]
pub(crate) struct Outcome {
    pub(crate) requests_per_s: f64,
    /// CPU time of the proxy, in microseconds a request.
    pub(crate) cpu_us: f64,
    /// Cores that others used meanwhile.
    pub(crate) foreign: f64,
    /// Executions of each key that was executed, those of stored keys' first requests included.
    pub(crate) executions: Option<f64>,
    pub(crate) latency: Latency,
}

impl Outcome {
    pub(crate) fn is_quiet(&self) -> bool {
        self.foreign <= QUIET
    }
}

/// How long requests took, in microseconds.
#[derive(Clone)]
pub(crate) struct Latency(Vec<f64>);

impl Latency {
    pub(crate) fn new(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all.iter().map(|one| one.as_secs_f64() * 1e6).collect())
    }

    /// What so many of a thousand did not exceed.
    pub(crate) fn per_mille(&self, share: usize) -> f64 {
        let index = self.0.len().saturating_sub(1) * share / 1000;
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }
}

/// Numbers requests, so that a fresh key is fresh for all proxies.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// Asks of the proxy what [`Load`] says, after a short time of the same to warm up.
pub(crate) async fn run(proxy: &Proxy, upstream: &Upstream, load: Load) -> Result<Outcome> {
    upstream.answers(load.answer, Duration::ZERO);
    upstream.forget();
    if let Keys::Stored(count) = load.keys {
        store(proxy, 0..count, load).await?;
    }
    measure(proxy, upstream, load).await
}

/// As [`run`], when the keys are stored already.
pub(crate) async fn measure(proxy: &Proxy, upstream: &Upstream, load: Load) -> Result<Outcome> {
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        clients.push(Client::connect(proxy.address, load.sent, load.answer).await?);
    }
    let warm = Load {
        span: load.span.min(Duration::from_millis(500)),
        pace: Pace::Closed,
        most: load.most / 8,
        ..load
    };
    let (clients, _) = drive(clients, warm).await?;
    let before = Used::now(proxy.id())?;
    let (_clients, took) = drive(clients, load).await?;
    let spent = before.until(&Used::now(proxy.id())?);
    proxy.forget_logs()?;
    let requests = real(took.len());
    Ok(Outcome {
        requests_per_s: requests / spent.seconds,
        cpu_us: spent.proxy * 1e6 / requests,
        foreign: spent.foreign,
        executions: upstream.executions_per_key(),
        latency: Latency::new(took),
    })
}

/// Stores the keys of these numbers, as [`Keys::Stored`] will ask for them.
pub(crate) async fn store(
    proxy: &Proxy,
    numbers: std::ops::Range<usize>,
    load: Load,
) -> Result<()> {
    let numbers = Arc::new(Mutex::new(numbers));
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let mut client = Client::connect(proxy.address, load.sent, load.answer).await?;
        let numbers = Arc::clone(&numbers);
        tasks.spawn(async move {
            loop {
                let Some(number) = numbers.lock().next() else {
                    return Result::Ok(());
                };
                client.send(&format!("hot-{number}")).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    proxy.forget_logs()
}

/// All of it by these clients; how long each request took, at a fixed rate from when it was due.
async fn drive(clients: Vec<Client>, load: Load) -> Result<(Vec<Client>, Vec<Duration>)> {
    let tickets = Arc::new(AtomicUsize::new(0));
    let due = Arc::<Due>::default();
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let tickets = Arc::clone(&tickets);
        let due = Arc::clone(&due);
        tasks.spawn(async move {
            let mut took = Vec::new();
            loop {
                let from = match load.pace {
                    Pace::Closed if started.elapsed() >= load.span => break,
                    Pace::Closed if tickets.fetch_add(1, Ordering::Relaxed) >= load.most => break,
                    Pace::Closed => None,
                    Pace::Open(_) => match due.next().await {
                        Some(from) => Some(from),
                        None => break,
                    },
                };
                let key = load.keys.key(NUMBER.fetch_add(1, Ordering::Relaxed));
                let from = from.unwrap_or_else(Instant::now);
                client.send(&key).await?;
                took.push(from.elapsed());
            }
            Result::Ok((client, took))
        });
    }
    if let Pace::Open(rate) = load.pace {
        due.fill(started, load.span, rate).await;
    }
    let mut clients = Vec::new();
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let (client, took) = ended??;
        clients.push(client);
        all.extend(took);
    }
    Ok((clients, all))
}

/// The moments at which requests are due, for whichever client is free.
struct Due {
    moments: Mutex<VecDeque<Instant>>,
    filled: Semaphore,
}

impl Default for Due {
    fn default() -> Self {
        Self {
            moments: Mutex::default(),
            filled: Semaphore::new(0),
        }
    }
}

impl Due {
    async fn next(&self) -> Option<Instant> {
        // Closed, it is the end; but not before what is left has been taken.
        if let Ok(permit) = self.filled.acquire().await {
            permit.forget();
        }
        self.moments.lock().pop_front()
    }

    /// Lets a request be due at equal distances. It looks at the clock all the time, for timers are too coarse, and this core is the load's.
    async fn fill(&self, started: Instant, span: Duration, rate: f64) {
        let distance = Duration::from_secs_f64(1.0 / rate);
        let mut next = started;
        while next < started + span {
            while next <= Instant::now() {
                self.moments.lock().push_back(next);
                self.filled.add_permits(1);
                next += distance;
            }
            tokio::task::yield_now().await;
        }
        self.filled.close();
    }
}

/// The median of what is there.
pub(crate) fn median(of: impl IntoIterator<Item = f64>) -> Result<f64> {
    let mut sorted: Vec<f64> = of.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().context("nothing was measured");
    let last = sorted.len().saturating_sub(1);
    Ok(f64::midpoint(at(last / 2)?, at(last.div_ceil(2))?))
}
