//! A client of HTTP/2 that sends any frames it likes.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::common::PATIENCE;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;

/// The bytes of one frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = u32::try_from(payload.len()).expect("a length");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Fields as literals that are not indexed (RFC 7541, section 6.2.2); names and values are shorter than 127 bytes.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).expect("a short text"));
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// The pseudo-headers of a request.
pub(super) fn pseudo<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "shop.test"),
    ]
}

/// A whole GET.
pub(super) fn get(stream: u32, path: &str) -> Vec<u8> {
    let fields = pseudo("GET", path);
    frame(HEADERS, END_STREAM | END_HEADERS, stream, block(&fields))
}

/// A frame as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// The error code of a `RST_STREAM` or GOAWAY.
    pub(super) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let code = self.payload[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(code)
    }
}

/// One connection.
pub(super) struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    /// A connection that has said nothing.
    pub(super) fn silent(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("it listens");
        stream.set_nodelay(true).expect("an option");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option");
        Self {
            stream,
            read: Vec::new(),
        }
    }

    /// A connection whose client has introduced itself.
    pub(super) fn connect(to: SocketAddr) -> Self {
        let mut raw = Self::silent(to);
        raw.say(PREFACE);
        raw.say(frame(SETTINGS, 0, 0, []));
        raw
    }

    pub(super) fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_say(bytes).expect("it reads");
    }

    /// Sends these bytes, if the proxy still takes any.
    pub(super) fn try_say(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// The next frame; `None`: the connection is over.
    pub(super) fn next(&mut self) -> Option<Frame> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(frame) = self.whole() {
                return Some(frame);
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing comes, and no end");
            let left = left.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).expect("an option");
            let mut space = vec![0; 64 * 1024];
            match self.stream.read(&mut space) {
                Ok(0) => return None,
                Ok(count) => self.read.extend_from_slice(&space[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return None,
                },
            }
        }
    }

    fn whole(&mut self) -> Option<Frame> {
        let header = self.read.get(..9)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let stream = u32::from_be_bytes(header[5..9].try_into().expect("four bytes"));
        let (kind, flags) = (header[3], header[4]);
        let payload = self.read.get(9..9 + length)?.to_vec();
        self.read.drain(..9 + length);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// The next frame that `is` the one looked for; `None`: the connection ended first.
    pub(super) fn until(&mut self, is: impl Fn(&Frame) -> bool) -> Option<Frame> {
        loop {
            match self.next() {
                Some(frame) if is(&frame) => return Some(frame),
                Some(_) => {}
                None => return None,
            }
        }
    }

    /// Reads to the end; the code of the GOAWAY with an error, where one came.
    pub(super) fn end(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next() {
            if frame.kind == GOAWAY {
                code = Some(frame.code());
            }
        }
        code
    }

    /// Whether a request is answered on this connection: with 200.
    pub(super) fn is_served(&mut self, stream: u32) -> bool {
        self.say(get(stream, "/free"));
        let head = self.until(|frame| frame.kind == HEADERS && frame.stream == stream);
        head.is_some_and(|head| head.payload.first() == Some(&0x88))
    }
}
