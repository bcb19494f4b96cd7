//! The processes that are measured, and those that they need: Redis, the proxies, their upstream.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};

use super::Result;

/// Two proxies on one Redis, in front of one upstream.
pub(crate) struct House {
    pub(crate) proxies: [Proxy; 2],
    pub(crate) redis: SocketAddr,
    pub(crate) gate: Arc<Gate>,
    upstream: SocketAddr,
    folder: TempDir,
    server: Process,
    _tasks: JoinSet<()>,
}

/// Where requests to `/v1/held` wait.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) arrived: Notify,
    pub(crate) open: Notify,
}

/// A child that ends with the value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A proxy.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    process: Process,
}

/// CPU seconds that were used so far.
pub(crate) struct Cpu {
    pub(crate) proxies: f64,
    pub(crate) redis: f64,
}

impl Cpu {
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            proxies: self.proxies - before.proxies,
            redis: self.redis - before.redis,
        }
    }
}

impl Process {
    /// User and system time of all its threads, which Linux counts in steps of 10 ms.
    fn cpu(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let (_, fields) = text.rsplit_once(')').context("/proc/PID/stat")?;
        let mut ticks = 0.0;
        for field in fields.split_whitespace().skip(11).take(2) {
            ticks += field.parse::<f64>()?;
        }
        Ok(ticks / 100.0)
    }
}

impl House {
    /// What the two proxies and Redis have used.
    pub(crate) fn cpu(&self) -> Result<Cpu> {
        let [one, other] = &self.proxies;
        Ok(Cpu {
            proxies: one.process.cpu()? + other.process.cpu()?,
            redis: self.server.cpu()?,
        })
    }

    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let redis = free()?;
        let server = std::env::var_os("IDEM_PROXY_TEST_REDIS_SERVER");
        let process = Command::new(server.unwrap_or_else(|| "redis-server".into()))
            .args(["--port", &redis.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("redis-server does not start; is it installed?")?;
        let process = Process(process);
        until("Redis listens", async || {
            TcpStream::connect(redis).await.is_ok()
        })
        .await?;
        let mut tasks = JoinSet::new();
        let gate = Arc::<Gate>::default();
        let upstream = upstream(Arc::clone(&gate), &mut tasks).await?;
        let proxies = [
            Proxy::start(folder.path(), "one", redis, upstream).await?,
            Proxy::start(folder.path(), "other", redis, upstream).await?,
        ];
        Ok(Self {
            proxies,
            redis,
            gate,
            upstream,
            folder,
            server: process,
            _tasks: tasks,
        })
    }

    /// One more proxy, whose Redis is said to be there.
    pub(crate) async fn proxy(&self, redis: SocketAddr) -> Result<Proxy> {
        Proxy::start(self.folder.path(), "more", redis, self.upstream).await
    }
}

impl Proxy {
    async fn start(
        folder: &Path,
        name: &str,
        redis: SocketAddr,
        upstream: SocketAddr,
    ) -> Result<Self> {
        let (address, admin) = (free()?, free()?);
        let file = folder.join(format!("{name}.toml"));
        let text = format!(
            "server.listen = \"{address}\"\nadmin.listen = \"{admin}\"\nupstream.url = \"http://{upstream}\"\n\
             telemetry.access_log = false\n[store]\nkind = \"redis\"\nredis.url = \"redis://{redis}\"\n\
             [[route]]\nname = \"all\"\nmethods = [\"POST\"]\npath = \"/v1/{{*rest}}\"\n"
        );
        std::fs::write(&file, text)?;
        let process = Command::new(binary())
            .arg("--config")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("the proxy does not start")?;
        let proxy = Self {
            address,
            admin,
            process: Process(process),
        };
        until("the proxy is ready", async || {
            matches!(proxy.get("/readyz").await, Ok(text) if text.starts_with("HTTP/1.1 200"))
        })
        .await?;
        Ok(proxy)
    }

    async fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.admin).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    async fn metric(&self, name: &str) -> Result<f64> {
        let text = self.get("/metrics").await?;
        let series = text.lines().filter(|line| line.starts_with(name));
        let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// How often it has asked Redis for something.
    pub(crate) async fn round_trips(&self) -> Result<f64> {
        self.metric("idem_proxy_store_round_trips_total").await
    }

    /// Until a copy waits here.
    pub(crate) async fn await_waiter(&self) -> Result<()> {
        until("a copy waits", async || {
            matches!(self.metric("idem_proxy_waiters").await, Ok(waiters) if waiters > 0.5)
        })
        .await
    }
}

fn binary() -> PathBuf {
    std::env::var_os("IDEM_PROXY_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_idem-proxy").into(), PathBuf::from)
}

fn free() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        if Instant::now() > end {
            bail!("{what}: not within 20 s");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Answers everything with 201 and 300 B; what is held, once the gate opens.
async fn upstream(gate: Arc<Gate>, tasks: &mut JoinSet<()>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let gate = Arc::clone(&gate);
            connections.spawn(async move { drop(answer_all(stream, &gate).await) });
        }
    });
    Ok(address)
}

async fn answer_all(mut stream: TcpStream, gate: &Gate) -> Result<()> {
    stream.set_nodelay(true)?;
    let body = "x".repeat(300);
    let answer = format!(
        "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut buffer = Vec::new();
    loop {
        let whole = read_message(&mut stream, &mut buffer).await?;
        let held = buffer.starts_with(b"POST /v1/held ");
        buffer.drain(..whole);
        if held {
            gate.arrived.notify_one();
            gate.open.notified().await;
        }
        stream.write_all(answer.as_bytes()).await?;
    }
}

/// A client's connection.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// One request and its answer, which has to be a 201 of 300 B with this marker.
    pub(crate) async fn send(&mut self, path: &str, key: &str, marker: &str) -> Result<()> {
        let request = format!(
            "POST /v1/{path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\n\
             Content-Length: 300\r\nIdempotency-Key: {key}\r\n\r\n{}",
            "y".repeat(300)
        );
        self.stream.write_all(request.as_bytes()).await?;
        let whole = read_message(&mut self.stream, &mut self.received).await?;
        let answer = self.received.get(..whole).unwrap_or_default();
        let head = String::from_utf8_lossy(answer);
        let fits = field(&head, "idempotency-key-reply") == Some(marker);
        if !head.starts_with("HTTP/1.1 201") || !fits || !answer.ends_with(b"xxx") {
            bail!("another answer than was measured for: {head}");
        }
        self.received.drain(..whole);
        Ok(())
    }
}

/// Reads on until the buffer starts with a whole message, whose length is told by Content-Length.
async fn read_message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<usize> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = std::str::from_utf8(buffer.get(..end).unwrap_or_default())?;
            let body: usize = field(head, "content-length")
                .context("no length")?
                .parse()?;
            if buffer.len() >= end + 4 + body {
                return Ok(end + 4 + body);
            }
        }
        if stream.read_buf(buffer).await? == 0 {
            bail!("the connection ended");
        }
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n")
        .filter_map(|line| line.split_once(": "))
        .find(|(own, _)| own.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}
