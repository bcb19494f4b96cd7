//! The service behind the proxy: it counts and keeps everything that reaches it, and does what it is told.
//!
//! Without a script each request is answered with the number of its execution, so that a replay shows itself:
//! `{"execution": 3}`, 201 for POST and 200 else, with Location, `ETag`, X-Execution and Set-Cookie of that number.

use std::{
    collections::{HashMap, VecDeque},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use super::{
    PATIENCE,
    performing::{Next, perform},
    script::{Gate, Step},
    wire::{Fields, Framing, Head, Trouble, Wire, text},
};

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The how-manieth request it is; 0 for one that did not come whole.
    pub(crate) execution: u64,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) head: Head,
    /// Its body; of a large one the first 2 MiB.
    pub(crate) body: Vec<u8>,
    pub(crate) body_size: u64,
    pub(crate) trailers: Fields,
}

impl Seen {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.head.fields.all(name)
    }

    /// The value of `name`, which stands on one line at most.
    pub(crate) fn one(&self, name: &str) -> Option<&str> {
        self.head.fields.one(name)
    }
}

/// A listening upstream; it ends with its value.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Mutex<Option<Socket>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: Vec<Seen>,
    partial: Vec<Seen>,
    uploading: u64,
    garbled: usize,
    connections: usize,
    lost: usize,
    steps: VecDeque<Step>,
    always: Step,
    open: HashMap<usize, (TcpStream, Mood)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Idle,
    Busy,
}

const KEPT_OF_A_BODY: usize = 2 << 20;

impl Upstream {
    pub(crate) fn start() -> Self {
        let socket = bound(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).expect("a free port");
        let address = socket
            .local_addr()
            .ok()
            .and_then(|a| a.as_socket())
            .expect("an address");
        let upstream = Self {
            address,
            shared: Arc::default(),
            listener: Mutex::new(None),
        };
        upstream.serve(socket);
        upstream
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    // --- the script ---

    /// The next request gets this; more calls queue up.
    pub(crate) fn then(&self, step: impl Into<Step>) -> &Self {
        self.state().steps.push_back(step.into());
        self
    }

    /// What every request gets for which nothing is queued.
    pub(crate) fn always(&self, step: impl Into<Step>) -> &Self {
        self.state().always = step.into();
        self
    }

    /// The next request is read and then held until the gate opens.
    pub(crate) fn hold(&self, step: impl Into<Step>) -> Gate {
        let gate = Gate::new();
        self.then(step.into().behind(&gate));
        gate
    }

    /// Connections are refused from now on, and those that stand are closed.
    pub(crate) fn refuse(&self) {
        let listener = self.listener.lock().expect("no one panics inside").take();
        if let Some(listener) = listener {
            let _ = listener.shutdown(std::net::Shutdown::Both);
            drop(listener);
        }
        self.close(&[Mood::Idle, Mood::Busy]);
        // Bound, so that nobody else gets the port; not listening, so that connections are refused.
        let socket = again(|| bound(self.address)).expect("the port is still ours");
        *self.listener.lock().expect("no one panics inside") = Some(socket);
    }

    /// Connections are taken again.
    pub(crate) fn recover(&self) {
        let socket = self.listener.lock().expect("no one panics inside").take();
        self.serve(socket.expect("the port is held"));
    }

    /// Closes the connections on which nothing runs.
    pub(crate) fn close_idle(&self) {
        self.close(&[Mood::Idle]);
    }

    fn close(&self, moods: &[Mood]) {
        for (stream, mood) in self.state().open.values() {
            if moods.contains(mood) {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    // --- what it saw ---

    /// Every whole request, in the order of their ends.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// The one request that came.
    pub(crate) fn only(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "requests at the upstream: {seen:?}");
        seen.remove(0)
    }

    /// The latest whole request.
    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a request came")
    }

    /// How many whole requests came.
    pub(crate) fn executions(&self) -> usize {
        self.state().seen.len()
    }

    /// How many requests began and did not come whole.
    pub(crate) fn partial(&self) -> usize {
        self.state().partial.len()
    }

    /// How many heads came that are no heads, or not whole.
    pub(crate) fn garbled(&self) -> usize {
        self.state().garbled
    }

    /// How many connections were ever made.
    pub(crate) fn connections(&self) -> usize {
        self.state().connections
    }

    /// How many connections ended while an answer was being made or sent.
    pub(crate) fn lost(&self) -> usize {
        self.state().lost
    }

    /// How many body bytes of unfinished requests came so far.
    pub(crate) fn uploading(&self) -> u64 {
        self.state().uploading
    }

    /// Waits until `count` whole requests came.
    pub(crate) fn await_executions(&self, count: usize) {
        super::eventually(&format!("{count} requests at the upstream"), || {
            self.executions() >= count
        });
    }

    // --- serving ---

    fn serve(&self, socket: Socket) {
        socket.listen(1024).expect("a bound socket listens");
        let listener: TcpListener = socket.try_clone().expect("a socket").into();
        *self.listener.lock().expect("no one panics inside") = Some(socket);
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.connection(stream));
            }
        });
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Ok(mut listener) = self.listener.lock()
            && let Some(listener) = listener.take()
        {
            let _ = listener.shutdown(std::net::Shutdown::Both);
        }
        self.close(&[Mood::Idle, Mood::Busy]);
    }
}

/// A socket at `address` that does not listen yet.
fn bound(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn again<T>(mut work: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match work() {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no one panics inside")
    }

    fn connection(&self, stream: TcpStream) {
        let Ok(twin) = stream.try_clone() else { return };
        let id = {
            let mut state = self.state();
            state.connections += 1;
            let id = state.connections;
            state.open.insert(id, (twin, Mood::Idle));
            id
        };
        let mut wire = Wire::new(stream);
        while self.one(&mut wire, id) {}
        self.state().open.remove(&id);
    }

    fn mood(&self, id: usize, mood: Mood) {
        if let Some(entry) = self.state().open.get_mut(&id) {
            entry.1 = mood;
        }
    }

    /// One request and its answer; `false`: the connection is over.
    fn one(&self, wire: &mut Wire, id: usize) -> bool {
        let until = Instant::now() + PATIENCE * 10;
        let head = match wire.head(until) {
            Ok(head) if head.framing(Framing::Empty).is_ok() => head,
            Ok(_) | Err(Trouble::Malformed(_) | Trouble::CutOff) => {
                self.state().garbled += 1;
                return false;
            }
            Err(Trouble::Closed | Trouble::Reset | Trouble::Late) => return false,
        };
        self.mood(id, Mood::Busy);
        let mut words = head.start.split(' ');
        let mut seen = Seen {
            execution: 0,
            method: words.next().unwrap_or_default().to_owned(),
            target: words.next().unwrap_or_default().to_owned(),
            body: Vec::new(),
            body_size: 0,
            trailers: Fields::default(),
            head,
        };
        let early = {
            let state = self.state();
            state.steps.front().unwrap_or(&state.always).early
        };
        if !early && !self.take_body(wire, &mut seen, until) {
            self.state().partial.push(seen);
            return false;
        }
        let (step, execution) = {
            let mut state = self.state();
            let step = state
                .steps
                .pop_front()
                .unwrap_or_else(|| state.always.clone());
            seen.execution = state.seen.len() as u64 + 1;
            state.seen.push(seen.clone());
            (step, seen.execution)
        };
        let ok = perform(&step, wire, &seen, execution);
        match ok {
            Some(Next::Keep) => self.mood(id, Mood::Idle),
            Some(Next::Close) => {}
            None => self.state().lost += 1,
        }
        ok == Some(Next::Keep)
    }

    fn take_body(&self, wire: &mut Wire, seen: &mut Seen, until: Instant) -> bool {
        let Ok(framing) = seen.head.framing(Framing::Empty) else {
            return false;
        };
        let (mut body, mut size) = (Vec::new(), 0);
        let mut sink = |piece: &[u8]| {
            let room = KEPT_OF_A_BODY.saturating_sub(body.len());
            body.extend_from_slice(&piece[..piece.len().min(room)]);
            size += piece.len() as u64;
            self.state().uploading += piece.len() as u64;
        };
        let trailers = wire.body(framing, until, &mut sink);
        self.state().uploading -= size;
        (seen.body, seen.body_size) = (body, size);
        trailers.map(|trailers| seen.trailers = trailers).is_ok()
    }
}

/// A request's head as it came, for messages.
impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&text(&self.head.raw))
    }
}
