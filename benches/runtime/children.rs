//! The processes that are measured, and those that they need: the proxy, its upstream, its clients.

use std::{
    fmt,
    io::{Read as _, Write as _},
    time::Instant,
};

use anyhow::{Context as _, anyhow, bail};
use idem_proxy::{
    app::App,
    config,
    server::worker::Cores,
    tasks::Tasks,
    telemetry::{access::AccessLog, log, metrics::Metrics},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{self, Handle},
    sync::oneshot,
};
use tokio_util::task::TaskTracker;

use super::{CONNECTIONS, HOT_KEYS, Result, SPAN, Scenario};

pub(super) fn current_thread() -> std::io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// Tells the parent one thing.
fn tell(what: impl fmt::Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()
}

/// Completes when the parent closes our standard input, or is gone.
fn end() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        ended.send(())
    });
    end
}

pub(super) fn proxy(mode: &str, cores: usize, upstream: &str) -> Result<()> {
    let text = format!(
        r#"
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[upstream]
url = "http://{upstream}"
[[route]]
name = "orders"
methods = ["POST"]
path = "/v1/orders"
"#
    );
    let config = config::parse("bench", &text, [])
        .loaded()
        .map_err(|problems| anyhow!("{problems}"))?
        .config;
    let telemetry = &config.telemetry;
    let logs = log::init(
        telemetry.log_format,
        &telemetry.log_level,
        None,
        std::io::stderr(),
    )?;
    let routes: Vec<_> = config
        .routes
        .iter()
        .map(|route| route.name.clone())
        .collect();
    let access = AccessLog::new(&logs, &routes);
    // It has to outlive the application.
    let shared;
    let cores = if mode == "shared" {
        shared = runtime::Builder::new_multi_thread()
            .worker_threads(cores)
            .enable_all()
            .build()?;
        Cores::shared(shared.handle().clone())
    } else {
        Cores::start(cores)?
    };
    current_thread()?.block_on(async {
        let app = App::start_on(cores, config, Metrics::new(&routes), access).await?;
        tell(app.client_addresses().next().context("no address")?)?;
        let _ = app
            .serve(async { drop(end().await) }, std::future::pending())
            .await;
        Ok(())
    })
}

pub(super) async fn upstream() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    tell(listener.local_addr()?)?;
    let tasks = Tasks::new(Handle::current(), TaskTracker::new());
    let served = async {
        loop {
            let (stream, _) = listener.accept().await?;
            tasks.detach(async move { drop(answer_all(stream).await) });
        }
    };
    tokio::select! {
        broken = served => broken,
        _ = end() => Ok(()),
    }
}

async fn answer_all(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let body = "x".repeat(300);
    let answer = format!(
        "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut buffer = Vec::new();
    loop {
        let request = read_message(&mut stream, &mut buffer).await?;
        buffer.drain(..request.length);
        stream.write_all(answer.as_bytes()).await?;
    }
}

/// Sends as fast as the answers come, for [`SPAN`], and tells how many they were and how long it took.
pub(super) async fn load(target: &str, scenario: Scenario, round: &str) -> Result<()> {
    let tasks = Tasks::new(Handle::current(), TaskTracker::new());
    if scenario == Scenario::Hit {
        // The first pass stores what the others replay.
        let mut client = Client::connect(target, Scenario::Miss).await?;
        for key in 0..HOT_KEYS {
            client.send(&format!("hot-{key}"), None).await?;
        }
    }
    let started = Instant::now();
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let mut client = Client::connect(target, scenario).await?;
        let round = round.to_owned();
        clients.push(tasks.detach(async move {
            let mut sent = 0;
            while started.elapsed() < SPAN {
                let key = (number + sent) % HOT_KEYS;
                match scenario {
                    Scenario::PassThrough => client.send("", None).await?,
                    Scenario::Hit => client.send(&format!("hot-{key}"), Some("hit")).await?,
                    Scenario::Miss => {
                        let key = format!("cold-{round}-{number}-{sent}");
                        client.send(&key, Some("miss")).await?;
                    }
                }
                sent += 1;
            }
            Result::Ok(sent)
        }));
    }
    let mut requests = 0;
    for client in clients {
        requests += client.await??;
    }
    let seconds = started.elapsed().as_secs_f64();
    tell(format_args!("{requests} {seconds}"))?;
    // The parent reads how much CPU this process took.
    let _ = end().await;
    Ok(())
}

/// One connection, and the parts of its requests around the key.
struct Client {
    stream: TcpStream,
    before: String,
    after: String,
    request: Vec<u8>,
    received: Vec<u8>,
}

impl Client {
    async fn connect(target: &str, scenario: Scenario) -> Result<Self> {
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        let (path, key, size) = match scenario {
            Scenario::PassThrough => ("free", "X-Key", 1024),
            Scenario::Hit | Scenario::Miss => ("orders", "Idempotency-Key", 300),
        };
        Ok(Self {
            stream,
            before: format!(
                "POST /v1/{path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n{key}: "
            ),
            after: format!("\r\n\r\n{}", "y".repeat(size)),
            request: Vec::new(),
            received: Vec::new(),
        })
    }

    /// One request and its answer, which has to be a 201 with this marker.
    async fn send(&mut self, key: &str, marker: Option<&str>) -> Result<()> {
        self.request.clear();
        write!(self.request, "{}{key}{}", self.before, self.after)?;
        self.stream.write_all(&self.request).await?;
        let whole = read_message(&mut self.stream, &mut self.received).await?;
        let head = std::str::from_utf8(self.received.get(..whole.head).unwrap_or_default())?;
        let fits = marker.is_none_or(|marker| field(head, "idempotency-key-reply") == Some(marker));
        if !head.starts_with("HTTP/1.1 201") || !fits {
            bail!("another answer than was measured for: {head}");
        }
        self.received.drain(..whole.length);
        Ok(())
    }
}

/// A message that was read whole: the length of its head and of all of it.
struct Whole {
    head: usize,
    length: usize,
}

/// Reads on until the buffer starts with a whole message, whose length is told by Content-Length.
async fn read_message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Whole> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = std::str::from_utf8(buffer.get(..end).unwrap_or_default())?;
            let body: usize = field(head, "content-length")
                .context("no length")?
                .parse()?;
            let length = end + 4 + body;
            if buffer.len() >= length {
                return Ok(Whole { head: end, length });
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
