//! The drain, as connections and listeners see it: it begins once, for all of them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Tells everybody that the drain has begun. Clones tell the same.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    begun: AtomicBool,
    token: CancellationToken,
}

impl Drain {
    /// No more connections; those that are there finish their answer.
    pub fn begin(&self) {
        // In this order: whoever is woken by the token sees the flag.
        self.0.begun.store(true, Ordering::Release);
        self.0.token.cancel();
    }

    /// Completes when the drain begins.
    #[must_use]
    pub fn begun(&self) -> Begun {
        Begun {
            inner: Arc::clone(&self.0),
            told: Box::pin(self.0.token.clone().cancelled_owned()),
            waits: None,
        }
    }
}

/// The beginning of the drain. A connection polls it at each of its own steps, and the token takes a lock that all connections of
/// all cores share; so this asks the token once a waiting task, and from then on only looks at a flag.
#[derive(Debug)]
pub struct Begun {
    inner: Arc<Inner>,
    told: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whom the token will wake.
    waits: Option<Waker>,
}

impl Future for Begun {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waits = |waker: &Waker| waker.will_wake(cx.waker());
        if self.waits.as_ref().is_some_and(waits) && !self.inner.begun.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.waits = Some(cx.waker().clone());
        ready!(self.told.as_mut().poll(cx));
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn poll(begun: &mut Begun, woken: &Arc<Woken>) -> bool {
        let waker = Waker::from(Arc::clone(woken));
        Pin::new(begun)
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    }

    #[test]
    fn whoever_polled_last_is_woken_and_then_told() {
        let drain = Drain::default();
        let mut begun = drain.begun();
        let [first, second] = [(); 2].map(|()| Arc::new(Woken::default()));
        assert!(!poll(&mut begun, &first));
        assert!(!poll(&mut begun, &first));
        assert!(!poll(&mut begun, &second));
        drain.begin();
        assert!(second.0.load(Ordering::SeqCst));
        assert!(poll(&mut begun, &second));
    }

    #[test]
    fn whoever_comes_late_is_told_at_once() {
        let drain = Drain::default();
        let mut waiting = drain.begun();
        let woken = Arc::default();
        assert!(!poll(&mut waiting, &woken));
        drain.begin();
        assert!(poll(&mut waiting, &woken));
        assert!(poll(&mut drain.begun(), &woken));
    }
}
