//! The queue of lines, and the thread that writes them.
//!
//! States of the queue: open → closing (its guard was dropped) → closed (everything is written). Lines are taken
//! while it is open. It holds [`QUEUE_BYTES`] at most, and the thread has as much again in its hands.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// What the queue holds at most.
pub(super) const QUEUE_BYTES: usize = 1 << 20;

/// What access lines leave free in it, so that a flood of requests does not push out what the proxy has to say.
const KEPT_FOR_EVENTS: usize = 64 << 10;

/// From this on lines are written at once.
const SOON_BYTES: usize = QUEUE_BYTES / 4;

/// How long access lines are gathered, for one write and two wake-ups of the thread. Each of these may keep a request of a busy core waiting.
const GATHER_ACCESS: Duration = Duration::from_millis(100);

/// How long what the proxy has to say is gathered, and with it whatever else there is.
const GATHER_EVENTS: Duration = Duration::from_millis(20);

/// How long the end waits for what is queued.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How soon a sink that takes nothing now is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::telemetry) enum LineKind {
    /// Something that the proxy has to say.
    Event,
    /// A request.
    Access,
}

/// Takes lines to the one thread that writes them. Cheap to clone.
#[derive(Clone)]
pub struct LineWriter(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes who waits for the end.
    closed: Condvar,
    dropped: AtomicU64,
}

struct Queue {
    /// Whole lines.
    pending: Vec<u8>,
    /// Whether there is an event among them.
    event: bool,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Closing,
    Closed,
}

impl LineWriter {
    /// Starts the thread that writes to `sink`.
    pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                pending: Vec::new(),
                event: false,
                phase: Phase::Open,
            }),
            work: Condvar::new(),
            closed: Condvar::new(),
            dropped: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        thread::Builder::new()
            .name("log".into())
            .spawn(move || own.write_lines(sink))?;
        Ok(Self(shared))
    }

    /// Queues one whole line, its end included, or drops and counts it. Never waits for the sink.
    pub(in crate::telemetry) fn push(&self, line: &[u8], kind: LineKind) {
        let room = match kind {
            LineKind::Event => QUEUE_BYTES,
            LineKind::Access => QUEUE_BYTES - KEPT_FOR_EVENTS,
        };
        let mut queue = self.0.queue.lock();
        let before = queue.pending.len();
        let after = before.saturating_add(line.len());
        if queue.phase != Phase::Open || after > room {
            drop(queue);
            self.0.dropped.fetch_add(1, Relaxed);
            return;
        }
        queue.pending.extend_from_slice(line);
        let first_event = kind == LineKind::Event && !mem::replace(&mut queue.event, true);
        drop(queue);
        // One wake-up when there is something, one when an event is with it, and one when it is much; the lines in between cost none.
        if before == 0 || first_event || (before < SOON_BYTES && after >= SOON_BYTES) {
            self.0.work.notify_one();
        }
    }

    /// How many lines were dropped, ever: the queue was full or closed, or the sink failed.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// Takes no more lines, and waits until those that are queued are written, for [`CLOSE_TIMEOUT`] at most.
    pub(super) fn close(&self) {
        let until = Instant::now() + CLOSE_TIMEOUT;
        let mut queue = self.0.queue.lock();
        if queue.phase == Phase::Open {
            queue.phase = Phase::Closing;
        }
        self.0.work.notify_one();
        while queue.phase != Phase::Closed {
            if self.0.closed.wait_until(&mut queue, until).timed_out() {
                return;
            }
        }
    }
}

impl fmt::Debug for LineWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineWriter")
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// The thread: two buffers change hands, so that neither side allocates once they have grown.
    fn write_lines(&self, mut sink: impl Write) {
        let mut batch = Vec::new();
        loop {
            let phase = self.take(&mut batch);
            let lost = write_batch(&mut sink, &batch);
            self.dropped.fetch_add(lost, Relaxed);
            batch.clear();
            if phase != Phase::Open {
                // Nothing was queued after it began to close.
                self.queue.lock().phase = Phase::Closed;
                self.closed.notify_all();
                return;
            }
        }
    }

    /// Waits for lines and takes them all.
    fn take(&self, batch: &mut Vec<u8>) -> Phase {
        let mut queue = self.queue.lock();
        while queue.phase == Phase::Open && queue.pending.is_empty() {
            self.work.wait(&mut queue);
        }
        let mut until = Instant::now() + GATHER_ACCESS;
        let mut hurries = false;
        while queue.phase == Phase::Open && queue.pending.len() < SOON_BYTES {
            if queue.event && !mem::replace(&mut hurries, true) {
                until = until.min(Instant::now() + GATHER_EVENTS);
            }
            if self.work.wait_until(&mut queue, until).timed_out() {
                break;
            }
        }
        queue.event = false;
        mem::swap(&mut queue.pending, batch);
        queue.phase
    }
}

/// Writes all of it; how many lines were lost because the sink failed. A sink that would block (standard error can
/// be made so by whoever shares it) is waited for: that is what the queue is for.
fn write_batch(sink: &mut impl Write, batch: &[u8]) -> u64 {
    let mut rest = batch;
    while !rest.is_empty() {
        match sink.write(rest) {
            Ok(0) => return lines(rest),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock => thread::sleep(RETRY),
                _ => return lines(rest),
            },
        }
    }
    match sink.flush() {
        Ok(()) => 0,
        Err(_) => lines(batch),
    }
}

fn lines(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |count, byte| count + u64::from(*byte == b'\n'))
}
