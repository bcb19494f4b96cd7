//! Deadlines that hardly ever come, for what waits again and again.
//!
//! A timer is armed for a deadline at the first wait, and left alone when a later one has a later deadline: that it fired early
//! costs one look, while moving it would cost each wait. So a request costs no timer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::time::Instant;

use crate::timers::{Timer, Timers};

/// One timer, made at its first use.
#[derive(Debug)]
pub(super) struct Wait {
    timers: Arc<Timers>,
    armed: Option<Armed>,
}

#[derive(Debug)]
struct Armed {
    timer: Timer,
    until: Instant,
    wakes: Waker,
}

impl Wait {
    pub(super) fn new(timers: Arc<Timers>) -> Self {
        Self {
            timers,
            armed: None,
        }
    }

    /// Whether the task of `cx` is woken some time anyway. Costs next to nothing.
    pub(super) fn is_armed(&self, cx: &Context<'_>) -> bool {
        self.armed
            .as_ref()
            .is_some_and(|armed| !armed.timer.is_elapsed() && armed.wakes.will_wake(cx.waker()))
    }

    /// Whether it is woken at `latest` or earlier anyway.
    pub(super) fn is_armed_for(&self, latest: Instant, cx: &Context<'_>) -> bool {
        self.armed
            .as_ref()
            .is_some_and(|armed| armed.until <= latest)
            && self.is_armed(cx)
    }

    /// Wakes the task of `cx` at `until`; ready if that is past.
    pub(super) fn poll_until(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(armed) = &mut self.armed {
            armed.timer.move_to(until);
            armed.until = until;
            armed.wakes.clone_from(cx.waker());
        }
        let armed = self.armed.get_or_insert_with(|| Armed {
            timer: self.timers.at(until),
            until,
            wakes: cx.waker().clone(),
        });
        Pin::new(&mut armed.timer).poll(cx)
    }
}
