//! hyper's timer for `head_timeout`, out of the worker's spare ones: hyper makes one for every head.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper::rt;

use crate::timers::{Timer, Timers};

/// Makes hyper's timers.
#[derive(Debug)]
pub(super) struct HeadTimer(pub(super) Arc<Timers>);

impl rt::Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(HeadSleep(self.0.at(deadline.into())))
    }
}

struct HeadSleep(Timer);

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl rt::Sleep for HeadSleep {}
