//! A drain that operators ask for: asked once or often, it is one drain, and whoever asks is told how it ended.

use tokio::sync::watch;

use crate::core::record::ShortId;

/// Where operators ask for a drain, and the application says what became of it.
#[derive(Debug)]
pub struct Drains {
    asked: watch::Sender<Asked>,
    ended: watch::Sender<Option<DrainEnd>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    NotYet,
    Yes,
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainEnd {
    /// All that ran has finished.
    Whole,
    /// `drain_timeout` passed first.
    Unfinished(Left),
}

/// What has not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The records of the executions that still run.
    pub executions: Vec<ShortId>,
    /// The records of those whose end the store has not taken yet.
    pub unsaved: Vec<ShortId>,
    /// How many client connections are left.
    pub connections: usize,
    /// How many tasks are beside all of these: what is left of a request goes out behind its answer, or a connection to an upstream ends.
    pub tasks: usize,
}

impl Default for Drains {
    fn default() -> Self {
        Self {
            asked: watch::Sender::new(Asked::NotYet),
            ended: watch::Sender::new(None),
        }
    }
}

impl Drains {
    /// Completes when a drain was asked for.
    pub async fn asked(&self) {
        // The sender is here, so that this never fails.
        let _ = self
            .asked
            .subscribe()
            .wait_for(|asked| *asked == Asked::Yes)
            .await;
    }

    /// Says how the drain ended, to all that wait for it and to those that come later.
    pub fn tell(&self, end: DrainEnd) {
        self.ended.send_replace(Some(end));
    }

    /// Asks for the drain and waits for its end.
    ///
    /// Dropping the future takes nothing back.
    pub(super) async fn ask(&self) -> DrainEnd {
        self.asked.send_replace(Asked::Yes);
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(end) = ended.borrow_and_update().clone() {
                return end;
            }
            if ended.changed().await.is_err() {
                return DrainEnd::Whole; // the sender is here, so that this never happens
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_drain_is_told_to_all_that_ask() {
        let drains = Drains::default();
        let left = DrainEnd::Unfinished(Left {
            connections: 2,
            ..Left::default()
        });
        let application = async {
            drains.asked().await;
            drains.asked().await;
            drains.tell(left.clone());
        };
        let (first, second, ()) = tokio::join!(drains.ask(), drains.ask(), application);
        assert_eq!((&first, &second), (&left, &left));
        assert_eq!(drains.ask().await, left);
        drains.tell(DrainEnd::Whole);
        assert_eq!(drains.ask().await, DrainEnd::Whole);
    }
}
