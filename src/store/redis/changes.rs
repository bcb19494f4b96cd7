//! Who waits for a record that runs elsewhere, and how they are woken.
//!
//! A waiter costs memory only: no connection, no thread. All who wait for one record share an entry, so that one of them reads the
//! store at a time and the others find what it found.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ::redis::{PushInfo, PushKind, Value};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Inner, ORIGIN, node::Node};
use crate::core::record::{Record, RecordId};

/// Every record that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Changes(Mutex<HashMap<RecordId, Arc<Entry>>>);

#[derive(Debug)]
pub(super) struct Entry {
    /// How many changes were told so far.
    changed: watch::Sender<u64>,
    waiters: AtomicUsize,
    /// What was read last. Held by who reads the store.
    pub(super) look: tokio::sync::Mutex<Option<Look>>,
}

/// What one of those who wait has read for all.
#[derive(Debug)]
pub(super) struct Look {
    /// How many changes had been told before it was read.
    pub(super) changes: u64,
    /// Which look it was; the first is 1.
    pub(super) number: u64,
    /// What was there.
    pub(super) record: Option<Arc<Record>>,
}

/// A place among those who wait; given up on drop.
#[derive(Debug)]
pub(super) struct Waiting {
    id: RecordId,
    pub(super) entry: Arc<Entry>,
    home: Weak<Changes>,
}

impl Changes {
    /// Takes a place among at most `max`; `None`: it is full.
    pub(super) fn join(self: &Arc<Self>, id: RecordId, max: usize) -> Option<Waiting> {
        let mut entries = self.0.lock();
        let entry = entries.entry(id).or_insert_with(|| {
            Arc::new(Entry {
                changed: watch::Sender::new(0),
                waiters: AtomicUsize::new(0),
                look: tokio::sync::Mutex::default(),
            })
        });
        if entry.waiters.load(Relaxed) >= max.max(1) {
            return None;
        }
        entry.waiters.fetch_add(1, Relaxed);
        Some(Waiting {
            id,
            entry: Arc::clone(entry),
            home: Arc::downgrade(self),
        })
    }

    /// Whether somebody waits for this record.
    pub(super) fn awaits(&self, id: &RecordId) -> bool {
        self.0.lock().contains_key(id)
    }

    /// Wakes who waits for this record.
    pub(super) fn wake(&self, id: &RecordId) {
        if let Some(entry) = self.0.lock().get(id) {
            entry.tell();
        }
    }

    /// Wakes everybody: nobody knows what was missed.
    pub(super) fn wake_all(&self) {
        for entry in self.0.lock().values() {
            entry.tell();
        }
    }
}

impl Entry {
    /// How many changes were told so far.
    pub(super) fn changes(&self) -> u64 {
        *self.changed.borrow()
    }

    fn tell(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }
}

impl Waiting {
    /// Tells of every change from now on.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.entry.changed.subscribe()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else {
            return;
        };
        let mut entries = home.0.lock();
        // Under the lock under which places are taken.
        if self.entry.waiters.fetch_sub(1, Relaxed) == 1 {
            entries.remove(&self.id);
        }
    }
}

impl Inner {
    /// What another process, or this one, has published: its kind, who published it, the record.
    pub(super) fn pushed(&self, node: &Node, push: &PushInfo) {
        if push.kind == PushKind::Disconnection {
            node.broken.notify_one();
            return;
        }
        let (PushKind::Message, Some(Value::BulkString(message))) = (&push.kind, push.data.get(1))
        else {
            return;
        };
        let Some((kind, rest)) = message.split_first() else {
            return;
        };
        let Some((origin, id)) = rest.split_at_checked(ORIGIN) else {
            return;
        };
        let Ok(id) = <[u8; 32]>::try_from(id) else {
            return;
        };
        let id = RecordId::from_bytes(id);
        // What this process settled, it has put into its cache itself.
        if *kind == b'p' || origin != self.origin {
            self.cache.written(id, None);
        }
        self.changes.wake(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::fixtures::id;

    #[tokio::test]
    async fn places_are_bounded_and_given_back_and_a_change_wakes_who_subscribed_before() {
        let changes = Arc::new(Changes::default());
        let first = changes.join(id(1), 2).expect("room");
        let second = changes.join(id(1), 2).expect("room");
        assert!(changes.join(id(1), 2).is_none());
        assert!(changes.join(id(2), 2).is_some());
        assert!(changes.awaits(&id(1)));
        let mut woken = second.subscribe();
        changes.wake(&id(2));
        assert!(!woken.has_changed().expect("it lives"));
        changes.wake(&id(1));
        woken.changed().await.expect("it lives");
        changes.wake_all();
        woken.changed().await.expect("it lives");
        drop((first, second));
        assert!(!changes.awaits(&id(1)));
        assert!(changes.0.lock().is_empty());
    }
}
