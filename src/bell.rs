//! Rings that a task can do without.
//!
//! hyper wakes the task of an HTTP/1 connection whenever a piece of a request's body is taken, for there might be more of it to read. Behind
//! the last piece there is not, so that the task would run once more for nothing, for every request that has a body.
//!
//! A [`Bell`] stands between such a task and all that wakes it. [`holding`] keeps the rings back that one piece of work causes on its own
//! thread; whoever did that work knows whether they say anything. Rings from other threads, and at any other time, pass at once.

use std::{
    cell::RefCell,
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use parking_lot::Mutex;

/// What wakes a task.
#[derive(Debug)]
pub struct Bell {
    clapper: Arc<Clapper>,
    /// The same as those who wait see it.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Clapper(Mutex<Option<Waker>>);

impl Bell {
    /// A bell that nobody hears yet.
    #[must_use]
    pub fn new() -> Self {
        let clapper = Arc::<Clapper>::default();
        Self {
            waker: Waker::from(Arc::clone(&clapper)),
            clapper,
        }
    }

    /// Does `work`, whose task is woken by this bell alone.
    ///
    /// Dropping the future drops nothing of the work.
    pub async fn wakes<F: Future>(&self, mut work: Pin<&mut F>) -> F::Output {
        poll_fn(|cx| {
            self.clapper.is_heard_by(cx.waker());
            work.as_mut().poll(&mut Context::from_waker(&self.waker))
        })
        .await
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Clapper {
    fn is_heard_by(&self, task: &Waker) {
        let mut heard = self.0.lock();
        if !heard.as_ref().is_some_and(|own| own.will_wake(task)) {
            *heard = Some(task.clone());
        }
    }

    fn ring(&self) {
        // Cloned, so that nothing is done under the lock that could come back here.
        let task = self.0.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Wake for Clapper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let kept = HOLDING.try_with(|holding| match &mut *holding.borrow_mut() {
            Holding::Back(held) if held.as_ref().is_none_or(|one| Arc::ptr_eq(one, self)) => {
                *held = Some(Arc::clone(self));
                true
            }
            Holding::Back(_) | Holding::Nothing => false,
        });
        if kept != Ok(true) {
            self.ring();
        }
    }
}

thread_local! {
    static HOLDING: RefCell<Holding> = const { RefCell::new(Holding::Nothing) };
}

/// What is held back on a thread at the moment.
enum Holding {
    /// Rings pass.
    Nothing,
    /// This bell's, or none yet. A second bell's pass.
    Back(Option<Arc<Clapper>>),
}

impl Holding {
    /// Goes over to this; what rang before.
    fn now(self) -> Option<Arc<Clapper>> {
        match HOLDING.try_with(|holding| holding.replace(self)) {
            Ok(Self::Back(held)) => held,
            Ok(Self::Nothing) | Err(_) => None,
        }
    }
}

/// Rings are kept back on this thread. They pass when this is dropped, unless they are [`spared`](Self::spare).
#[must_use = "dropped at once, nothing was kept back"]
pub struct Held(PhantomData<*const ()>);

impl Held {
    /// They would have said nothing: nobody is woken.
    pub fn spare(self) {
        drop(Holding::Nothing.now());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(held) = Holding::Nothing.now() {
            held.ring();
        }
    }
}

/// Does `work` and keeps back what it rings on this thread, for as long as the second value is there.
pub fn holding<T>(work: impl FnOnce() -> T) -> (T, Held) {
    if let Some(before) = Holding::Back(None).now() {
        before.ring();
    }
    let held = Held(PhantomData);
    (work(), held)
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A bell that a task hears, what rings it, and the task.
    fn heard() -> (Bell, Waker, Arc<Task>) {
        let (bell, task) = (Bell::new(), Arc::<Task>::default());
        let mut rings = None;
        {
            let mut work = pin!(poll_fn(|cx| {
                rings = Some(cx.waker().clone());
                std::task::Poll::Ready(())
            }));
            let waker = Waker::from(Arc::clone(&task));
            let mut rung = pin!(bell.wakes(work.as_mut()));
            let polled = rung.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_ready());
        }
        (bell, rings.expect("it was polled"), task)
    }

    fn woken(task: &Task) -> usize {
        task.0.swap(0, Ordering::Relaxed)
    }

    #[test]
    fn rings_pass_where_nothing_is_held_back() {
        let (_bell, rings, task) = heard();
        rings.wake_by_ref();
        rings.wake_by_ref();
        assert_eq!(woken(&task), 2);
        let ((), held) = holding(|| ());
        drop(held);
        rings.wake_by_ref();
        assert_eq!(woken(&task), 1);
    }

    #[test]
    fn what_was_held_back_rings_once_unless_it_is_spared() {
        let (_bell, rings, task) = heard();
        let (done, held) = holding(|| {
            rings.wake_by_ref();
            rings.wake_by_ref();
            7
        });
        assert_eq!((done, woken(&task)), (7, 0));
        drop(held);
        assert_eq!(woken(&task), 1);
        let ((), held) = holding(|| rings.wake_by_ref());
        held.spare();
        assert_eq!(woken(&task), 0);
        rings.wake_by_ref();
        assert_eq!(woken(&task), 1);
    }

    #[test]
    fn nothing_of_others_is_held_back() {
        let (_bell, rings, task) = heard();
        let (_other, other_rings, other_task) = heard();
        let ((), held) = holding(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| rings.wake_by_ref());
            });
            assert_eq!(woken(&task), 1, "it came from another thread");
            rings.wake_by_ref();
            other_rings.wake_by_ref();
        });
        assert_eq!((woken(&task), woken(&other_task)), (0, 1));
        // What was held back is not lost to another holding.
        let ((), inner) = holding(|| ());
        assert_eq!(woken(&task), 1);
        inner.spare();
        held.spare();
    }

    #[test]
    fn work_that_panics_leaves_nothing_held_back() {
        let (_bell, rings, task) = heard();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            holding(|| {
                rings.wake_by_ref();
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(woken(&task), 1);
        rings.wake_by_ref();
        assert_eq!(woken(&task), 1);
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        let (bell, rings, task) = heard();
        let other = Arc::<Task>::default();
        let waker = Waker::from(Arc::clone(&other));
        let mut work = pin!(std::future::pending::<()>());
        let mut rung = pin!(bell.wakes(work.as_mut()));
        assert!(
            rung.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        rings.wake_by_ref();
        assert_eq!((woken(&task), woken(&other)), (0, 1));
    }
}
