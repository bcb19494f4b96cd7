//! Redis without a proxy: the scripts that a proxy sent, recorded on its way and sent again under other keys.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    CONNECTIONS, Measured, Result, SPAN,
    house::{Client, Cpu, House},
};

/// A command's words.
type Words = Vec<Vec<u8>>;

/// What a miss sends.
#[derive(Clone)]
pub(crate) struct Scripts {
    begin: Words,
    settle: Words,
}

/// The place of the record's name in a call of a script.
const NAME: usize = 3;

/// And, in a claim, of the time after which it counts for nothing.
const TOO_LATE: usize = 9;

/// Records what a proxy sends for one request.
pub(crate) async fn record(house: &House) -> Result<Scripts> {
    let sent = Arc::<Mutex<Vec<u8>>>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (relay, redis, seen) = (listener.local_addr()?, house.redis, Arc::clone(&sent));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            connections.spawn(async move { drop(relayed(client, redis, &seen).await) });
        }
    });
    let proxy = house.proxy(relay).await?;
    let mut client = Client::connect(proxy.address).await?;
    client.send("orders", "recorded", "miss").await?;
    let sent = std::mem::take(&mut *sent.lock());
    let mut commands = Vec::new();
    let mut rest = sent.as_slice();
    while let Some((words, length)) = command(rest) {
        commands.push(words);
        rest = rest.get(length..).unwrap_or_default();
    }
    // A claim has nine arguments behind its key, a settlement eleven.
    let with = |words: usize| {
        let script = |command: &Words| {
            command.first().is_some_and(|name| name == b"EVALSHA") && command.len() == words
        };
        commands.iter().find(|one| script(one)).cloned()
    };
    let mut begin = with(NAME + 10).context("no claim was sent")?;
    *begin.get_mut(TOO_LATE).context("a time")? = b"99999999999999".to_vec();
    let settle = with(NAME + 12).context("no settlement was sent")?;
    Ok(Scripts { begin, settle })
}

async fn relayed(client: TcpStream, redis: SocketAddr, seen: &Mutex<Vec<u8>>) -> Result<()> {
    let server = TcpStream::connect(redis).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asked = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from_client.read(&mut buffer).await?;
            let bytes = buffer.get(..length).unwrap_or_default();
            if bytes.is_empty() {
                return Result::Ok(());
            }
            seen.lock().extend_from_slice(bytes);
            to_server.write_all(bytes).await?;
        }
    };
    tokio::select! {
        ended = asked => ended,
        ended = tokio::io::copy(&mut from_server, &mut to_client) => {
            ended?;
            Ok(())
        }
    }
}

/// A whole command at the start of these bytes, and how long it is.
fn command(bytes: &[u8]) -> Option<(Words, usize)> {
    let (count, mut at) = number(bytes, b'*', 0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, from) = number(bytes, b'$', at)?;
        words.push(bytes.get(from..from + length)?.to_vec());
        at = from + length + 2;
    }
    Some((words, at))
}

/// The number on the line that starts at `at` with `kind`, and where the next line starts.
fn number(bytes: &[u8], kind: u8, at: usize) -> Option<(usize, usize)> {
    let line = bytes.get(at..)?;
    let end = line.windows(2).position(|two| two == b"\r\n")?;
    let (first, digits) = line.get(..end)?.split_first()?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (*first == kind).then_some((number, at + end + 2))
}

/// How many claims with their settlements the server does in a second, and how many looks at what is there.
pub(crate) async fn load(
    house: &House,
    round: u32,
    scripts: &Scripts,
) -> Result<(Measured, Measured)> {
    let used = house.cpu()?;
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let (mut redis, scripts) = (Bare::connect(house.redis).await?, scripts.clone());
        clients.spawn(async move {
            let mut done = 0_u32;
            while started.elapsed() < SPAN {
                let name = name(round, connection, done);
                redis.run(&scripts.begin, &name, 1).await?;
                redis.run(&scripts.settle, &name, 1).await?;
                done += 1;
            }
            Result::Ok((connection, done))
        });
    }
    let mut made = Vec::new();
    while let Some(done) = clients.join_next().await {
        made.push(done??);
    }
    let pairs: u32 = made.iter().map(|(_, done)| done).sum();
    let pairs = measured(house, &used, started, pairs, 2.0)?;

    let used = house.cpu()?;
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for (connection, made) in made {
        let (mut redis, scripts) = (Bare::connect(house.redis).await?, scripts.clone());
        clients.spawn(async move {
            let mut done = 0_u32;
            while started.elapsed() < SPAN {
                let name = name(round, connection, done % made.max(1));
                redis.run(&scripts.begin, &name, 0).await?;
                done += 1;
            }
            Result::Ok(done)
        });
    }
    let mut finds = 0_u32;
    while let Some(done) = clients.join_next().await {
        finds += done??;
    }
    Ok((pairs, measured(house, &used, started, finds, 1.0)?))
}

fn measured(
    house: &House,
    used: &Cpu,
    started: Instant,
    done: u32,
    trips: f64,
) -> Result<Measured> {
    let (seconds, done) = (started.elapsed().as_secs_f64(), f64::from(done));
    let used = house.cpu()?.since(used);
    Ok(Measured {
        per_second: done / seconds,
        trips,
        proxy_us: used.proxies * 1e6 / done,
        redis_us: used.redis * 1e6 / done,
        requests: Vec::new(),
    })
}

fn name(round: u32, connection: u32, number: u32) -> Vec<u8> {
    format!("idem:bare:{round:016}{connection:016}{number:032}").into_bytes()
}

/// A connection to Redis.
struct Bare {
    stream: TcpStream,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Bare {
    async fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            sent: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Runs a script under this name; the first thing that it answers has to be this number.
    async fn run(&mut self, script: &Words, name: &[u8], wanted: usize) -> Result<()> {
        self.sent.clear();
        self.sent.extend(format!("*{}\r\n", script.len()).bytes());
        for (at, word) in script.iter().enumerate() {
            let word = if at == NAME { name } else { word };
            self.sent.extend(format!("${}\r\n", word.len()).bytes());
            self.sent.extend_from_slice(word);
            self.sent.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&self.sent).await?;
        self.received.clear();
        while reply(&self.received, 0).is_none() {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                bail!("Redis closed the connection");
            }
        }
        let first =
            number(&self.received, b'*', 0).and_then(|(_, at)| number(&self.received, b':', at));
        if first.map(|(number, _)| number) != Some(wanted) {
            bail!(
                "another answer: {}",
                String::from_utf8_lossy(&self.received)
            );
        }
        Ok(())
    }
}

/// Where the answer that starts at `at` ends, if it is whole.
fn reply(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'*' => {
            let (count, mut at) = number(bytes, b'*', at)?;
            for _ in 0..count {
                at = reply(bytes, at)?;
            }
            Some(at)
        }
        b'$' => match number(bytes, b'$', at) {
            Some((length, from)) => (bytes.len() >= from + length + 2).then_some(from + length + 2),
            // Nothing: `$-1`.
            None => line(bytes, at),
        },
        _ => line(bytes, at),
    }
}

fn line(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    Some(at + end + 2)
}
