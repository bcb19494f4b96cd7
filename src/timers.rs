//! Timers that are used again.
//!
//! Nearly no time-out of a request ever passes, but making and unmaking a timer for each takes the event loop's lock twice. A
//! timer that is moved to a later time takes none. So those that were not needed are kept for the next request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// The spare timers for one kind of time-out on one worker.
///
/// Deadlines should come in about their order, as those of one time-out do: a timer that is moved to an earlier time costs as
/// much as a new one.
#[derive(Debug, Default)]
pub struct Timers(Mutex<Vec<Pin<Box<Sleep>>>>);

/// So many timers are kept; what was taken beyond that is dropped.
const MAX_SPARE: usize = 1024;

/// A timer; among the spare ones again on drop.
#[derive(Debug)]
pub struct Timer {
    /// Always there until the drop.
    sleep: Option<Pin<Box<Sleep>>>,
    home: Arc<Timers>,
}

impl Timers {
    /// A timer that completes at `deadline`. To be called on the worker's own runtime.
    #[must_use]
    pub fn at(self: &Arc<Self>, deadline: Instant) -> Timer {
        let spare = self.0.lock().pop();
        let sleep = match spare {
            Some(mut sleep) => {
                sleep.as_mut().reset(deadline);
                sleep
            }
            None => Box::pin(sleep_until(deadline)),
        };
        Timer {
            sleep: Some(sleep),
            home: Arc::clone(self),
        }
    }

    /// Waits for `work` until `deadline`; `None`: it had not ended by then. Work that is done at once needs no timer.
    ///
    /// Dropping the future drops the work.
    pub async fn within<F: Future>(
        self: &Arc<Self>,
        deadline: Instant,
        work: F,
    ) -> Option<F::Output> {
        let mut work = std::pin::pin!(work);
        let mut timer = None;
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            let timer = timer.get_or_insert_with(|| self.at(deadline));
            Pin::new(timer).poll(cx).map(|()| None)
        })
        .await
    }
}

impl Timer {
    /// Whether its deadline has come, and it has not been moved since.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.sleep.as_ref().is_none_or(|sleep| sleep.is_elapsed())
    }

    /// Makes it complete at `deadline` instead.
    pub fn move_to(&mut self, deadline: Instant) {
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(deadline);
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            let mut spare = self.home.0.lock();
            if spare.len() < MAX_SPARE {
                spare.push(sleep);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_spare_timer_goes_by_its_new_deadline() {
        let timers = Arc::new(Timers::default());
        let start = Instant::now();
        drop(timers.at(start + 5 * SECOND));
        timers.at(start + 2 * SECOND).await;
        assert_eq!(start.elapsed(), 2 * SECOND, "earlier than before");
        timers.at(start + 9 * SECOND).await;
        assert_eq!(start.elapsed(), 9 * SECOND, "after it has fired");
        assert_eq!(timers.0.lock().len(), 1, "it was one timer all the time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_spare_timer_wakes_who_waits_now() {
        let timers = Arc::new(Timers::default());
        let start = Instant::now();
        let first = Arc::clone(&timers);
        // Another task is the first to wait for the timer, and gives it up.
        let gave_up = tokio::task::LocalSet::new();
        let task = gave_up.spawn_local(async move {
            let work = tokio::time::sleep(SECOND);
            first.within(start + 3 * SECOND, work).await
        });
        assert_eq!(gave_up.run_until(task).await.expect("it ran"), Some(()));
        assert_eq!(
            timers.within(start + 4 * SECOND, pending::<()>()).await,
            None
        );
        assert_eq!(start.elapsed(), 4 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_done_at_once_needs_no_timer() {
        let timers = Arc::new(Timers::default());
        assert_eq!(timers.within(Instant::now(), async { 7 }).await, Some(7));
        assert!(timers.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn spare_timers_are_bounded() {
        let timers = Arc::new(Timers::default());
        let many: Vec<_> = (0..MAX_SPARE + 5)
            .map(|_| timers.at(Instant::now()))
            .collect();
        drop(many);
        assert_eq!(timers.0.lock().len(), MAX_SPARE);
    }
}
