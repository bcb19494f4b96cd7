//! A client: one connection that says exactly the bytes it is told, leaves in every way a client can leave, and
//! reads answers strictly.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{ClientConfig, ClientConnection};

use super::{
    PATIENCE,
    wire::{Fields, Framing, Head, Trouble, Wire, chunk},
};

/// A request to be sent. Its bytes are what was put in, in that order, and nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: String,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
    chunked: bool,
}

impl Request {
    /// A request without anything but a Host.
    pub(crate) fn new(method: &str, target: &str) -> Self {
        let fields = vec![("Host".to_owned(), b"shop.test".to_vec())];
        Self {
            method: method.into(),
            target: target.into(),
            fields,
            body: None,
            chunked: false,
        }
    }

    /// A GET without anything but a Host.
    pub(crate) fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A write as an API's client makes it: a credential, a JSON body, no key yet.
    pub(crate) fn write(method: &str, target: &str) -> Self {
        Self::new(method, target)
            .caller("Bearer alice")
            .header("Content-Type", "application/json")
            .body(r#"{"item":"lamp","quantity":2}"#)
    }

    /// The POST most tests use.
    pub(crate) fn order(key: &str) -> Self {
        Self::write("POST", "/orders").key(key)
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("Idempotency-Key", key)
    }

    /// The credential, in place of any other.
    pub(crate) fn caller(self, authorization: &str) -> Self {
        self.without("Authorization")
            .header("Authorization", authorization)
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// Takes every line of `name` away.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn media_type(self, value: &str) -> Self {
        self.without("Content-Type").header("Content-Type", value)
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    pub(crate) fn without_body(mut self) -> Self {
        self.body = None;
        self
    }

    /// The body goes out chunked, in pieces of at most 1000 bytes.
    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// The request line and header lines, with the body's framing.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        let mut line = |name: &str, value: &[u8]| {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        };
        for (name, value) in &self.fields {
            line(name, value);
        }
        match &self.body {
            Some(_) if self.chunked => line("Transfer-Encoding", b"chunked"),
            Some(body) => line("Content-Length", body.len().to_string().as_bytes()),
            None => {}
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    /// The body as it is framed on the wire.
    pub(crate) fn framed_body(&self) -> Vec<u8> {
        let body = self.body.as_deref().unwrap_or_default();
        if self.body.is_some() && self.chunked {
            let mut out: Vec<u8> = body.chunks(1000).flat_map(chunk).collect();
            out.extend_from_slice(b"0\r\n\r\n");
            return out;
        }
        body.to_vec()
    }

    /// The whole request.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.head(), self.framed_body()].concat()
    }
}

/// An answer as it came.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) framing: Framing,
    pub(crate) trailers: Fields,
    /// The statuses of the 1xx answers before it.
    pub(crate) interim: Vec<u16>,
}

impl Answer {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.head.fields.all(name)
    }

    /// The value of `name`, which stands on one line at most.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        self.head.fields.one(name)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let parsed = serde_json::from_slice(&self.body);
        parsed.unwrap_or_else(|_| panic!("the body is no JSON: {self}"))
    }

    /// The number of the upstream's execution that made this answer.
    pub(crate) fn execution(&self) -> u64 {
        let number = self.json()["execution"].as_u64();
        number.unwrap_or_else(|| panic!("the answer names no execution: {self}"))
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = &self.body[..self.body.len().min(600)];
        write!(
            f,
            "{}{}",
            super::wire::text(&self.head.raw),
            String::from_utf8_lossy(start)
        )
    }
}

/// One connection to the proxy.
#[derive(Debug)]
pub(crate) struct Client {
    wire: Wire,
    /// Whether the answers still to come are answers to HEAD.
    asked: VecDeque<bool>,
}

impl Client {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        let stream =
            TcpStream::connect_timeout(&to, PATIENCE).expect("the proxy takes connections");
        Self::on(stream)
    }

    /// A connection from an address of one's own, e.g. 127.0.0.2.
    pub(crate) fn connect_from(from: IpAddr, to: SocketAddr) -> Self {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(to),
            socket2::Type::STREAM,
            None,
        );
        let socket = socket.expect("a socket");
        socket
            .bind(&SocketAddr::new(from, 0).into())
            .expect("a loopback address");
        socket
            .connect(&to.into())
            .expect("the proxy takes connections");
        Self::on(socket.into())
    }

    /// A connection over TLS, to `localhost`, or why the handshake failed.
    pub(crate) fn over_tls(to: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let name = "localhost".try_into().map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name);
        let mut session = session.map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        Ok(Self {
            wire: Wire::over_tls(stream, session),
            asked: VecDeque::new(),
        })
    }

    /// What the TLS session says of itself.
    pub(crate) fn session(&mut self) -> &mut ClientConnection {
        self.wire.session().expect("a connection over TLS")
    }

    fn on(stream: TcpStream) -> Self {
        let _ = stream.set_write_timeout(Some(PATIENCE));
        Self {
            wire: Wire::new(stream),
            asked: VecDeque::new(),
        }
    }

    /// Sends a whole request, or as much of it as the proxy takes: what it answers says the rest.
    pub(crate) fn ask(&mut self, request: &Request) -> &mut Self {
        self.asked.push_back(request.method == "HEAD");
        let _ = self.try_say(request.bytes());
        self
    }

    /// Sends these bytes.
    pub(crate) fn say(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.wire
            .write(bytes.as_ref())
            .expect("the proxy reads what it is sent");
        self
    }

    /// Sends these bytes if the proxy still takes any: it may have refused already.
    pub(crate) fn try_say(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.wire.write(bytes.as_ref())
    }

    /// The next final answer.
    pub(crate) fn answer(&mut self) -> Answer {
        match self.try_answer(PATIENCE) {
            Ok(answer) => answer,
            Err(trouble) => panic!("no answer: {trouble:?}"),
        }
    }

    /// The next final answer, if it is whole within `time`.
    pub(crate) fn try_answer(&mut self, time: Duration) -> Result<Answer, Trouble> {
        let until = Instant::now() + time;
        let to_head = self.asked.pop_front().unwrap_or_default();
        let mut interim = Vec::new();
        let (status, head) = loop {
            let head = self.wire.head(until)?;
            let status = status(&head)?;
            if status >= 200 || status == 101 {
                break (status, head);
            }
            interim.push(status);
        };
        let bodyless = to_head || status == 204 || status == 304 || status == 101;
        let announced = head.framing(Framing::Close)?;
        if status == 204 && announced != Framing::Close {
            return Err(Trouble::Malformed(format!(
                "a 204 that is framed by {announced:?}"
            )));
        }
        let framing = if bodyless { Framing::Empty } else { announced };
        let mut body = Vec::new();
        let mut sink = |piece: &[u8]| body.extend_from_slice(piece);
        let trailers = self.wire.body(framing, until, &mut sink)?;
        Ok(Answer {
            status,
            head,
            body,
            framing,
            trailers,
            interim,
        })
    }

    /// The next `count` bytes, whatever they are.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        let mut sink = |piece: &[u8]| bytes.extend_from_slice(piece);
        let until = Instant::now() + PATIENCE;
        let taken = self.wire.body(Framing::Length(count), until, &mut sink);
        taken.unwrap_or_else(|trouble| panic!("{count} bytes: {trouble:?}"));
        bytes
    }

    /// Every byte until the proxy closes, one `char` each.
    pub(crate) fn everything(&mut self) -> String {
        let mut all = Vec::new();
        let mut sink = |piece: &[u8]| all.extend_from_slice(piece);
        let end = self
            .wire
            .body(Framing::Close, Instant::now() + PATIENCE, &mut sink);
        assert!(
            matches!(end, Ok(_) | Err(Trouble::Reset)),
            "the connection stays open: {end:?}"
        );
        super::wire::text(&all)
    }

    /// The next head alone, interim or final, within `time`.
    pub(crate) fn head(&mut self, time: Duration) -> Result<(u16, Head), Trouble> {
        let head = self.wire.head(Instant::now() + time)?;
        Ok((status(&head)?, head))
    }

    /// Reads the body of the answer whose head was read, and counts its bytes; the body is not kept.
    pub(crate) fn count_body(&mut self, head: &Head, time: Duration) -> Result<u64, Trouble> {
        let mut count = 0;
        let framing = head.framing(Framing::Close)?;
        let mut sink = |piece: &[u8]| count += piece.len() as u64;
        self.wire.body(framing, Instant::now() + time, &mut sink)?;
        Ok(count)
    }

    /// Whether anything (an answer, the end) came within `time`.
    pub(crate) fn stirs_within(&mut self, time: Duration) -> bool {
        self.wire.stirs_within(time)
    }

    /// Whether the proxy ends the connection without another answer.
    pub(crate) fn is_closed(&mut self) -> bool {
        let end = self.wire.head(Instant::now() + PATIENCE);
        matches!(end, Err(Trouble::Closed | Trouble::Reset))
    }

    /// Says that nothing more will be sent (FIN), and goes on reading.
    pub(crate) fn finish_writing(&mut self) -> &mut Self {
        self.wire.finish_writing();
        self
    }

    /// Goes away with a reset.
    pub(crate) fn reset(self) {
        self.wire.reset();
    }
}

fn status(head: &Head) -> Result<u16, Trouble> {
    let code = head
        .start
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let code = code
        .and_then(|code| code.parse().ok())
        .filter(|code| (100..1000).contains(code));
    code.ok_or_else(|| Trouble::Malformed(format!("{:?} is no status line", head.start)))
}
