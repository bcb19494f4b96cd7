//! The only place that spawns. What is spawned here, and work that is attended, is tracked, so that a drain can wait for it.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

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

    /// Work of the proxy's own that somebody waits for: it is run by whoever polls it, at no cost for a task of its own, and goes on as a
    /// task from the moment it is dropped. It runs to its end either way, and counts as running from now until then.
    pub fn attend<F>(&self, work: F) -> Attended<'_, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Attended {
            work: Some(Box::pin(work)),
            counted: self.tracker.token(),
            runtime: &self.runtime,
        }
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

/// Work that ends whether or not somebody waits for it: [`Tasks::attend`].
///
/// A panic ends the work, as it would end a task, and is reported by the panic hook; whoever waits goes on.
#[must_use = "what nobody waits for becomes a task at once"]
pub struct Attended<'a, F: Future<Output = ()> + Send + 'static> {
    /// `None`: it has ended.
    work: Option<Pin<Box<F>>>,
    counted: TaskTrackerToken,
    runtime: &'a Handle,
}

impl<F: Future<Output = ()> + Send + 'static> Future for Attended<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Taken out for as long as it runs: after a panic it is dropped, and never polled again.
        let Some(mut work) = self.work.take() else {
            return Poll::Ready(());
        };
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => {
                self.work = Some(work);
                Poll::Pending
            }
            Ok(Poll::Ready(())) | Err(_) => Poll::Ready(()),
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Drop for Attended<'_, F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let counted = self.counted.clone();
            self.runtime.spawn(async move {
                work.await;
                drop(counted);
            });
        }
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
    let mut future = pin!(future);
    // After a panic the future is never polled again, so no broken state is seen.
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Err(_) => Poll::Ready(None),
        },
    )
    .await
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

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

    /// Work that takes one more poll after it was told to go on, and says when it has ended.
    fn work() -> (
        impl Future<Output = ()> + Send + 'static,
        oneshot::Sender<()>,
        oneshot::Receiver<()>,
    ) {
        let (go_on, told) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let work = async move {
            let _ = told.await;
            tokio::task::yield_now().await;
            ended.send(()).expect("somebody listens");
        };
        (work, go_on, end)
    }

    fn tasks() -> (Tasks, TaskTracker) {
        let tracker = TaskTracker::new();
        (Tasks::new(Handle::current(), tracker.clone()), tracker)
    }

    #[tokio::test]
    async fn attended_work_runs_with_who_waits_for_it() {
        let (tasks, tracker) = tasks();
        let (work, go_on, mut end) = work();
        let attended = tasks.attend(work);
        assert_eq!(tracker.len(), 1, "it counts before it is polled");
        go_on.send(()).expect("it listens");
        attended.await;
        assert_eq!(end.try_recv(), Ok(()));
        assert!(tracker.is_empty());
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }

    #[tokio::test]
    async fn attended_work_goes_on_alone_when_nobody_waits_any_more() {
        for polled_before in [false, true] {
            let (tasks, tracker) = tasks();
            let (work, go_on, mut end) = work();
            let mut attended = tasks.attend(work);
            if polled_before {
                let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut attended).poll(cx)));
                assert_eq!(polled.await, Poll::Pending);
            }
            drop(attended);
            assert_eq!(tracker.len(), 1);
            assert!(end.try_recv().is_err(), "it waits to be told");
            go_on.send(()).expect("it listens");
            assert_eq!(end.await, Ok(()));
            tracker.close();
            tracker.wait().await;
        }
    }

    #[tokio::test]
    async fn attended_work_that_panics_has_ended() {
        let (tasks, tracker) = tasks();
        let mut attended = tasks.attend(async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "this panic is the test's own");
        });
        Pin::new(&mut attended).await;
        drop(attended);
        assert!(tracker.is_empty());
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }
}
