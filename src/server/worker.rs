//! Workers: one runtime a core, whose connections never change threads.
//!
//! A client's connection, its pass-through calls, its executions and the pool that they use stay on the core that the connection was
//! given to. Nothing but records and flights is shared.
//!
//! Measured against one runtime that shares its work among as many threads (`benches/runtime.rs`), a pass-through takes less CPU this way,
//! and hits and misses about the same.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use tokio::runtime::{self, Handle};
use tokio_util::sync::CancellationToken;

/// The cores of one proxy. Dropping them ends their threads, with everything that runs there.
#[derive(Debug)]
pub struct Cores {
    each: Vec<Core>,
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

impl Cores {
    /// So many cores, each a thread with a single-threaded runtime.
    ///
    /// # Errors
    /// The system gives no thread or no event queue.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut cores = Self {
            each: Vec::with_capacity(count),
            stop: CancellationToken::new(),
            threads: Vec::with_capacity(count),
        };
        for number in 0..count {
            let (core, thread) = Core::start(number, cores.stop.clone())?;
            cores.each.push(core);
            cores.threads.push(thread);
        }
        Ok(cores)
    }

    /// One core that is somebody else's runtime, of whatever kind, and has to outlive the proxy.
    #[must_use]
    pub fn shared(runtime: Handle) -> Self {
        Self {
            each: vec![Core::on(runtime)],
            stop: CancellationToken::new(),
            threads: Vec::new(),
        }
    }

    /// The cores, for those who put work on them.
    pub(crate) fn take(&mut self) -> Vec<Core> {
        std::mem::take(&mut self.each)
    }

    /// Ends the threads, and waits until they have ended.
    pub(crate) fn end(mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A thread that serves, and how many connections it has.
#[derive(Debug)]
pub struct Core {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// Counts one connection of a core; until it is dropped.
#[derive(Debug)]
pub struct Load(Arc<AtomicUsize>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Core {
    /// A core of its own: a thread with a single-threaded runtime, which lives until `stop`.
    ///
    /// # Errors
    /// The system gives no thread or no event queue.
    fn start(number: usize, stop: CancellationToken) -> io::Result<(Self, JoinHandle<()>)> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let core = Self::on(runtime.handle().clone());
        let thread = thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || runtime.block_on(stop.cancelled()))?;
        Ok((core, thread))
    }

    /// A core that is somebody else's runtime.
    fn on(runtime: Handle) -> Self {
        Self {
            runtime,
            connections: Arc::default(),
        }
    }

    /// Where its tasks run.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// How many connections it has.
    #[must_use]
    pub fn load(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts one more connection.
    #[must_use]
    pub fn take_one(&self) -> Load {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Load(Arc::clone(&self.connections))
    }
}
