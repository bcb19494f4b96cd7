//! HTTP/1.1 as the bench speaks it: the clients, and the upstream that counts what is executed.

use std::{
    collections::HashMap,
    io::Write as _,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{Result, machine::real};

/// The service behind every proxy. It answers 201, with the key of the request at the start of the body.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<Result<()>>,
}

#[derive(Default)]
struct State {
    answer: usize,
    delay: Duration,
    executions: HashMap<Box<str>, usize>,
    /// How long each call with a delay really took.
    took: Vec<Duration>,
}

impl Upstream {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (stream, _) = accepted?;
                        connections.spawn(answer_all(stream, Arc::clone(&shared)));
                    }
                    // Those that have ended; a proxy may end its connections as it likes.
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            address,
            state,
            _tasks: tasks,
        })
    }

    /// From now on answers are that long and take that long.
    pub(crate) fn answers(&self, size: usize, delay: Duration) {
        let mut state = self.state.lock();
        state.answer = size;
        state.delay = delay;
    }

    /// Counts anew.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        state.executions.clear();
        state.took.clear();
    }

    /// Executions for each key that was executed since [`Self::forget`]; none without any.
    pub(crate) fn executions_per_key(&self) -> Option<f64> {
        let state = self.state.lock();
        let executions: usize = state.executions.values().sum();
        (executions > 0).then(|| real(executions) / real(state.executions.len()))
    }

    /// How long the calls took here, since [`Self::forget`].
    pub(crate) fn took(&self) -> Vec<Duration> {
        self.state.lock().took.clone()
    }
}

async fn answer_all(mut stream: TcpStream, state: Arc<Mutex<State>>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    let mut answer = Vec::new();
    loop {
        let request = read_message(&mut stream, &mut buffer).await?;
        let arrived = Instant::now();
        let head = std::str::from_utf8(buffer.get(..request.head).unwrap_or_default())?;
        let key = field(head, "idempotency-key").unwrap_or_default();
        let (size, delay) = {
            let mut state = state.lock();
            if let Some(count) = state.executions.get_mut(key) {
                *count += 1;
            } else if !key.is_empty() {
                state.executions.insert(key.into(), 1);
            }
            (state.answer, state.delay)
        };
        answer.clear();
        write!(
            answer,
            "HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
        )?;
        let length = answer.len() + size;
        answer.extend_from_slice(key.as_bytes());
        answer.resize(length, b'x');
        buffer.drain(..request.length);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
            state.lock().took.push(arrived.elapsed());
        }
        stream.write_all(&answer).await?;
    }
}

/// One connection, and the parts of its requests around the key.
pub(crate) struct Client {
    stream: TcpStream,
    keyed: &'static str,
    plain: String,
    body: String,
    answer: usize,
    request: Vec<u8>,
    received: Vec<u8>,
}

impl Client {
    /// A client whose requests and answers have bodies of so many bytes.
    pub(crate) async fn connect(target: SocketAddr, sent: usize, answer: usize) -> Result<Self> {
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        // A JSON string, where there is room for its quotes.
        let body = match sent.checked_sub(2) {
            Some(letters) => format!("\"{}\"", "y".repeat(letters)),
            None => "1".repeat(sent),
        };
        Ok(Self {
            stream,
            keyed: "Idempotency-Key: ",
            plain: format!(
                "POST /v1/orders HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\nContent-Length: {sent}\r\n"
            ),
            body,
            answer,
            request: Vec::new(),
            received: Vec::new(),
        })
    }

    /// One request, without a key where that is empty, and its answer, which has to be the one to this key.
    pub(crate) async fn send(&mut self, key: &str) -> Result<()> {
        self.request.clear();
        self.request.extend_from_slice(self.plain.as_bytes());
        if !key.is_empty() {
            write!(self.request, "{}{key}\r\n", self.keyed)?;
        }
        write!(self.request, "\r\n{}", self.body)?;
        self.stream.write_all(&self.request).await?;
        let whole = read_message(&mut self.stream, &mut self.received).await?;
        let message = self.received.get(..whole.length).unwrap_or_default();
        let (head, body) = message
            .split_at_checked(whole.head + 4)
            .context("a head that ends")?;
        let start = key.get(..key.len().min(self.answer)).unwrap_or_default();
        if !head.starts_with(b"HTTP/1.1 201")
            || body.len() != self.answer
            || !body.starts_with(start.as_bytes())
        {
            bail!(
                "another answer than was measured for, to the key {key:?}: {}",
                String::from_utf8_lossy(head)
            );
        }
        self.received.drain(..whole.length);
        Ok(())
    }
}

/// What a GET is answered, on a connection of its own.
pub(crate) async fn get(target: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(target).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// A message that was read whole: the length of its head, without the empty line, and of all of it.
struct Whole {
    head: usize,
    length: usize,
}

/// Reads on until the buffer starts with a whole message, whose length is told by Content-Length.
async fn read_message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Whole> {
    let head = loop {
        if let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break end;
        }
        read(stream, buffer, 4096).await?;
    };
    let text = std::str::from_utf8(buffer.get(..head).unwrap_or_default())?;
    let body: usize = field(text, "content-length")
        .unwrap_or("0")
        .parse()
        .context("a Content-Length")?;
    let length = head + 4 + body;
    while let Some(missing) = length
        .checked_sub(buffer.len())
        .filter(|missing| *missing > 0)
    {
        read(stream, buffer, missing).await?;
    }
    Ok(Whole { head, length })
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>, room: usize) -> Result<()> {
    buffer.reserve(room);
    if stream.read_buf(buffer).await? == 0 {
        bail!("the connection ended");
    }
    Ok(())
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n")
        .filter_map(|line| line.split_once(':'))
        .find(|(own, _)| own.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}
