//! What the upstream does with a request: the script's words.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use super::PATIENCE;

/// One answer. Without more, the upstream's own: the execution's number as JSON, and headers that name it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub(super) status: Option<u16>,
    pub(super) fields: Vec<(String, Vec<u8>)>,
    pub(super) only_these_fields: bool,
    pub(super) body: Option<Vec<u8>>,
    pub(super) framing: How,
    pub(super) interim: Vec<Vec<u8>>,
    pub(super) trailers: Vec<(String, String)>,
    pub(super) cut_after: Option<usize>,
    pub(super) then_close: bool,
}

/// How a reply's body is framed.
#[derive(Debug, Clone, Default)]
pub(super) enum How {
    #[default]
    Length,
    Chunked,
    /// Chunks with a pause, or a gate, before each.
    Pieces(Vec<(Pause, Vec<u8>)>),
    /// So many bytes, made as they go.
    Endless(u64),
    /// Until the connection ends.
    Close,
}

/// What comes before a piece.
#[derive(Debug, Clone)]
pub(super) enum Pause {
    Time(Duration),
    Gate(Gate),
}

/// An answer of this status with the upstream's usual headers and body.
pub(crate) fn reply(status: u16) -> Reply {
    Reply {
        status: Some(status),
        ..Reply::default()
    }
}

/// Server-sent events, each after its gate.
pub(crate) fn events(pieces: &[(&Gate, &str)]) -> Reply {
    let piece = |(gate, data): &(&Gate, &str)| {
        let event = format!("data: {data}\n\n").into_bytes();
        (Pause::Gate((*gate).clone()), event)
    };
    let mut out = reply(200)
        .bare()
        .header("Content-Type", "text/event-stream");
    out.framing = How::Pieces(pieces.iter().map(piece).collect());
    out
}

impl Reply {
    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// None of the usual headers, only those given and the framing.
    pub(crate) fn bare(mut self) -> Self {
        self.only_these_fields = true;
        self
    }

    pub(crate) fn chunked(mut self) -> Self {
        self.framing = How::Chunked;
        self
    }

    /// The body ends with the connection.
    pub(crate) fn until_close(mut self) -> Self {
        self.framing = How::Close;
        self
    }

    /// Chunks with a pause before each.
    pub(crate) fn dripping(mut self, gap: Duration, pieces: &[&str]) -> Self {
        let piece = |piece: &&str| (Pause::Time(gap), piece.as_bytes().to_vec());
        self.framing = How::Pieces(pieces.iter().map(piece).collect());
        self
    }

    /// A chunked body in two pieces; the second waits for the gate.
    pub(crate) fn halted(mut self, first: &str, gate: &Gate, second: &str) -> Self {
        let now = Pause::Time(Duration::ZERO);
        let first = (now, first.as_bytes().to_vec());
        let second = (Pause::Gate(gate.clone()), second.as_bytes().to_vec());
        self.framing = How::Pieces(vec![first, second]);
        self
    }

    /// A body of so many bytes, by Content-Length.
    pub(crate) fn endless(mut self, size: u64) -> Self {
        self.framing = How::Endless(size);
        self
    }

    /// A 1xx head before it.
    pub(crate) fn after_interim(mut self, head: &str) -> Self {
        self.interim.push(head.as_bytes().to_vec());
        self
    }

    /// A trailer; the body is chunked then.
    pub(crate) fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.into(), value.into()));
        self.chunked()
    }

    /// The connection ends after so many bytes of the body.
    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }

    /// The connection is closed behind the answer, which does not say so.
    pub(crate) fn then_close(mut self) -> Self {
        self.then_close = true;
        self
    }
}

/// What is done with one request.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(super) delay: Duration,
    pub(super) gate: Option<Gate>,
    pub(super) early: bool,
    pub(super) act: Act,
}

#[derive(Debug, Clone)]
pub(super) enum Act {
    Answer(Box<Reply>),
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    Reset,
    Hang,
}

impl From<Reply> for Step {
    fn from(reply: Reply) -> Self {
        Self {
            delay: Duration::ZERO,
            gate: None,
            early: false,
            act: Act::Answer(Box::new(reply)),
        }
    }
}

impl Default for Step {
    fn default() -> Self {
        Reply::default().into()
    }
}

impl Step {
    fn doing(act: Act) -> Self {
        Self {
            act,
            ..Self::default()
        }
    }

    /// Reads the request, then closes without a byte.
    pub(crate) fn drop() -> Self {
        Self::bytes("")
    }

    /// Reads the request, writes these bytes, then closes.
    pub(crate) fn bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self::doing(Act::Bytes(bytes.as_ref().to_vec()))
    }

    /// Reads the request, then resets the connection.
    pub(crate) fn reset() -> Self {
        Self::doing(Act::Reset)
    }

    /// Reads the request and never answers.
    pub(crate) fn hang() -> Self {
        Self::doing(Act::Hang)
    }

    /// So long after the request was read.
    pub(crate) fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Not before the gate opens.
    pub(crate) fn behind(self, gate: &Gate) -> Self {
        Self {
            gate: Some(gate.clone()),
            ..self
        }
    }

    /// At the request's head, without reading its body.
    pub(crate) fn early(self) -> Self {
        Self {
            early: true,
            ..self
        }
    }
}

/// Holds something back until the test opens it, and tells the test that it has come so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Passage>, Condvar)>);

#[derive(Debug, Default)]
struct Passage {
    arrived: usize,
    open: bool,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Lets everything pass, now and later.
    pub(crate) fn open(&self) {
        self.0.0.lock().expect("no one panics inside").open = true;
        self.0.1.notify_all();
    }

    /// Waits until something stands at the gate.
    pub(crate) fn arrived(&self) {
        self.arrivals(1);
    }

    /// Waits until `count` have come to the gate.
    pub(crate) fn arrivals(&self, count: usize) {
        let inside = self.0.0.lock().expect("no one panics inside");
        let fewer = |passage: &mut Passage| passage.arrived < count;
        let (passage, timeout) = self
            .0
            .1
            .wait_timeout_while(inside, PATIENCE, fewer)
            .expect("no one panics inside");
        assert!(
            !timeout.timed_out(),
            "{} of {count} came to the gate",
            passage.arrived
        );
    }

    /// Passes when it is open; `false`: it stayed shut for as long as a test can last.
    pub(super) fn pass(&self) -> bool {
        let mut inside = self.0.0.lock().expect("no one panics inside");
        inside.arrived += 1;
        self.0.1.notify_all();
        let shut = |passage: &mut Passage| !passage.open;
        let (inside, timeout) = self
            .0
            .1
            .wait_timeout_while(inside, PATIENCE * 4, shut)
            .expect("no one panics inside");
        drop(inside);
        !timeout.timed_out()
    }
}
