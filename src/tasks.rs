//! The only place that spawns. What is spawned here is tracked, so that a drain can wait for it.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::task::TaskTracker;

/// Spawns on one runtime and keeps count.
#[derive(Clone, Debug)]
pub struct Tasks {
    runtime: Handle,
    tracker: TaskTracker,
}

impl Tasks {
    /// Spawns on `runtime`; `tracker` may be shared with others.
    #[must_use]
    pub fn new(runtime: Handle, tracker: TaskTracker) -> Self {
        Self { runtime, tracker }
    }

    /// Starts `task` on its own. It runs to its end whatever becomes of the handle, and counts as running until then.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tracker.spawn_on(task, &self.runtime)
    }

    /// Starts `task` untracked: for what lives as long as a connection or the process, and needs no waiting for.
    pub fn detach<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(task)
    }

    /// Waits until everything that was spawned has ended, but no longer than `patience`. Nothing is to be spawned any more.
    pub async fn finished_within(&self, patience: Duration) {
        self.tracker.close();
        // What has not ended by then is the process's to end.
        let _ = tokio::time::timeout(patience, self.tracker.wait()).await;
    }

    /// Runs `work` where blocking is allowed.
    pub fn block<F, T>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.runtime.spawn_blocking(work)
    }
}

/// For hyper, whose HTTP/2 has tasks of its own; each ends with its connection.
impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.detach(task);
    }
}

/// Runs `work` where blocking is allowed, and waits for it; `None` if it panicked, or if the runtime ends. Belongs into a
/// runtime.
///
/// Dropping the future does not end the work.
pub async fn elsewhere<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Starts a thread of its own, for work that blocks for as long as the process lives.
///
/// # Errors
/// The system gives no thread.
pub fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinThread> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

/// The end of a [`thread`].
pub type JoinThread = std::thread::JoinHandle<()>;

/// Runs `future` to its end; `None` if it panicked on the way. The panic has been reported by the panic hook.
pub async fn caught<F: Future>(future: F) -> Option<F::Output> {
    Caught(Box::pin(future)).await
}

struct Caught<F>(Pin<Box<F>>);

impl<F: Future> Future for Caught<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // After a panic the future is dropped and never polled again, so no broken state is seen.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Err(_) => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_outcome() {
        assert_eq!(caught(async { 7 }).await, Some(7));
        let boom = caught(async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "this panic is the test's own");
        });
        assert_eq!(boom.await, None);
    }
}
