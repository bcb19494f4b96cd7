//! One TCP connection read as HTTP/1.1, strictly: what either end of the proxy puts on the wire is kept byte for
//! byte, and what is not well formed is an error, never repaired.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use rustls::{ClientConnection, Stream};

/// Why a message could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The peer closed before the first byte of a message.
    Closed,
    /// The peer closed in the middle of a message.
    CutOff,
    /// The connection was reset.
    Reset,
    /// Nothing more came in time.
    Late,
    /// It is not HTTP/1.1.
    Malformed(String),
}

/// Header lines in their order; values with one `char` for each byte, so that nothing is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// All values of `name`, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.0.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of `name`, which stands on one line at most.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(
            all.len() < 2,
            "{name} stands on {} lines: {all:?}",
            all.len()
        );
        all.first().copied()
    }

    /// Whether any line names `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        !self.all(name).is_empty()
    }

    /// The names in lower case, in order, with repetitions.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect()
    }
}

/// A start line and header lines.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// Every byte, up to and with the empty line.
    pub(crate) raw: Vec<u8>,
    /// The first line.
    pub(crate) start: String,
    /// The lines after it.
    pub(crate) fields: Fields,
}

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is no body.
    Empty,
    /// `Content-Length`
    Length(usize),
    /// `Transfer-Encoding: chunked`
    Chunked,
    /// The end of the connection.
    Close,
}

/// Latin-1: one `char` a byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// One chunk of a chunked body; an empty one writes nothing, for it would end the body.
pub(crate) fn chunk(data: &[u8]) -> Vec<u8> {
    if data.is_empty() {
        return Vec::new();
    }
    let mut out = format!("{:x}\r\n", data.len()).into_bytes();
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
    out
}

impl Head {
    fn parse(raw: Vec<u8>) -> Result<Self, Trouble> {
        let whole = text(&raw);
        let body = whole.strip_suffix("\r\n\r\n").unwrap_or(&whole);
        let mut lines = body.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let mut fields = Vec::new();
        for line in lines {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| Trouble::Malformed(format!("no colon in {line:?}")))?;
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if name.is_empty() || !name.chars().all(token) {
                return Err(Trouble::Malformed(format!("{name:?} is no field name")));
            }
            if value.contains(['\r', '\n', '\0']) {
                return Err(Trouble::Malformed(format!(
                    "a control character in {line:?}"
                )));
            }
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
        Ok(Self {
            raw,
            start,
            fields: Fields(fields),
        })
    }

    /// How the body after this head ends, when nothing else forbids one. `otherwise`: without any framing header.
    pub(crate) fn framing(&self, otherwise: Framing) -> Result<Framing, Trouble> {
        let lengths = self.fields.all("content-length");
        let codings = self.fields.all("transfer-encoding");
        match (lengths.as_slice(), codings.as_slice()) {
            ([], []) => Ok(otherwise),
            ([], ["chunked"]) => Ok(Framing::Chunked),
            ([length], []) if length.bytes().all(|b| b.is_ascii_digit()) => {
                let length = length.parse().ok();
                length
                    .map(Framing::Length)
                    .ok_or_else(|| Trouble::Malformed("a bad length".into()))
            }
            _ => Err(Trouble::Malformed(format!(
                "framing by {lengths:?} and {codings:?}"
            ))),
        }
    }
}

/// A connection with what was read ahead.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    /// The session that it is read and written through, where there is one.
    tls: Option<Box<ClientConnection>>,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Small pieces are to leave at once; a socket that is gone already says so at its first use.
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            tls: None,
            buffer: Vec::new(),
        }
    }

    /// The same through this session, whose handshake comes with the first byte.
    pub(crate) fn over_tls(stream: TcpStream, session: ClientConnection) -> Self {
        Self {
            tls: Some(Box::new(session)),
            ..Self::new(stream)
        }
    }

    pub(crate) fn session(&mut self) -> Option<&mut ClientConnection> {
        self.tls.as_deref_mut()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Writes all of `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(session) => {
                let mut stream = Stream::new(session.as_mut(), &mut self.stream);
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    /// No more bytes from this side; the other may go on.
    pub(crate) fn finish_writing(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes with RST instead of FIN.
    pub(crate) fn reset(self) {
        let socket = socket2::Socket::from(self.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
        drop(socket);
    }

    /// Reads what there is into the buffer; 0 at the peer's end of stream.
    fn fill(&mut self, until: Instant) -> Result<usize, Trouble> {
        let left = until.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        self.stream
            .set_read_timeout(Some(left))
            .map_err(|_| Trouble::Reset)?;
        let mut space = vec![0; 64 * 1024];
        loop {
            let read = match &mut self.tls {
                None => self.stream.read(&mut space),
                Some(session) => Stream::new(session.as_mut(), &mut self.stream).read(&mut space),
            };
            match read {
                Ok(count) => {
                    self.buffer.extend_from_slice(&space[..count]);
                    return Ok(count);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(Trouble::Late),
                    _ => return Err(Trouble::Reset),
                },
            }
        }
    }

    /// Whether a byte, an end or a reset is there within `time`.
    pub(crate) fn stirs_within(&mut self, time: Duration) -> bool {
        !self.buffer.is_empty() || self.fill(Instant::now() + time) != Err(Trouble::Late)
    }

    /// The head of the next message.
    pub(crate) fn head(&mut self, until: Instant) -> Result<Head, Trouble> {
        loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.buffer.split_off(at + 4);
                return Head::parse(std::mem::replace(&mut self.buffer, rest));
            }
            if self.fill(until)? == 0 {
                return Err(if self.buffer.is_empty() {
                    Trouble::Closed
                } else {
                    Trouble::CutOff
                });
            }
        }
    }

    fn line(&mut self, until: Instant) -> Result<String, Trouble> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = text(&self.buffer[..at]);
                self.buffer.drain(..at + 2);
                return Ok(line);
            }
            if self.fill(until)? == 0 {
                return Err(Trouble::CutOff);
            }
        }
    }

    fn exactly(&mut self, mut size: usize, until: Instant, sink: Sink<'_>) -> Result<(), Trouble> {
        while size > 0 {
            if self.buffer.is_empty() && self.fill(until)? == 0 {
                return Err(Trouble::CutOff);
            }
            let count = size.min(self.buffer.len());
            sink(&self.buffer[..count]);
            self.buffer.drain(..count);
            size -= count;
        }
        Ok(())
    }

    /// The body that `framing` announces, piece by piece into `sink`; its trailers.
    pub(crate) fn body(
        &mut self,
        framing: Framing,
        until: Instant,
        sink: Sink<'_>,
    ) -> Result<Fields, Trouble> {
        match framing {
            Framing::Empty => {}
            Framing::Length(size) => self.exactly(size, until, sink)?,
            Framing::Close => loop {
                sink(&self.buffer);
                self.buffer.clear();
                if self.fill(until)? == 0 {
                    break;
                }
            },
            Framing::Chunked => loop {
                let line = self.line(until)?;
                let size = line.split(';').next().unwrap_or_default();
                let size = usize::from_str_radix(size, 16)
                    .map_err(|_| Trouble::Malformed(format!("{line:?} is no chunk size")))?;
                if size == 0 {
                    return self.trailers(until);
                }
                self.exactly(size, until, sink)?;
                if !self.line(until)?.is_empty() {
                    return Err(Trouble::Malformed("a chunk is longer than it says".into()));
                }
            },
        }
        Ok(Fields::default())
    }

    fn trailers(&mut self, until: Instant) -> Result<Fields, Trouble> {
        let mut raw = b"trailers\r\n".to_vec();
        loop {
            let line = self.line(until)?;
            raw.extend(line.chars().map(|c| c as u8));
            raw.extend_from_slice(b"\r\n");
            if line.is_empty() {
                return Head::parse(raw).map(|head| head.fields);
            }
        }
    }
}

/// Where the pieces of a body go.
type Sink<'a> = &'a mut dyn FnMut(&[u8]);
