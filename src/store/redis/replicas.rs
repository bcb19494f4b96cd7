//! `wait_replicas`: a claim counts once so many replicas have it.
//!
//! `WAIT` answers for what its own connection has written, and blocks that connection meanwhile. So it has connections of its own, lanes, of
//! each server, for as long as the connection lasts over which the claims are made. A lane takes all claims that wait, renews one of
//! them, and waits once: a replica that has this renewal has everything that the server wrote before it, and so every claim that was made
//! when the renewal was sent. Claims that are older than the lane's connection are renewed each: what the server was before may have
//! lost them. While one lane waits, the next takes what comes.
//!
//! Only claims are waited for. A failover that loses a settlement leaves the claim, and so an unknown outcome; it executes nothing twice.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ::redis::{RedisError, Value, cmd};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::{
    Inner, SLACK, Unsure,
    node::{Live, Node},
    place::Place,
    span,
};
use crate::{
    core::{policy::Terms, record::RecordId},
    store::{Claim, StoreError},
    tasks::Tasks,
};

/// Where claims wait that were made over one connection. The lanes end with it.
#[derive(Debug)]
pub(super) struct Lanes {
    claims: mpsc::Sender<Waiting>,
    timeout: Duration,
}

/// A claim that waits.
#[derive(Debug)]
struct Waiting {
    id: RecordId,
    token: [u8; 16],
    lease: String,
    /// When the store was asked for it.
    asked: Instant,
    until: Instant,
    said: oneshot::Sender<Result<(), StoreError>>,
}

impl Lanes {
    /// Those of the server at `place`, which is `node`'s now.
    pub(super) fn open(
        inner: &Arc<Inner>,
        node: &Arc<Node>,
        place: &Place,
        timeout: Duration,
        tasks: &Tasks,
    ) -> Self {
        let (claims, waiting) = mpsc::channel(QUEUE);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..LANES {
            let lane = Lane {
                inner: Arc::clone(inner),
                node: Arc::clone(node),
                place: place.clone(),
                timeout,
                claims: Arc::clone(&waiting),
                connection: None,
            };
            tasks.detach(lane.run());
        }
        Self { claims, timeout }
    }

    /// Waits until enough replicas have a claim that was made, for which the store was asked then.
    ///
    /// Dropping the future leaves the claim as it is.
    ///
    /// # Errors
    /// They do not have it within the store's timeout, or it is lost.
    async fn have(&self, claim: &Claim, terms: &Terms, asked: Instant) -> Result<(), StoreError> {
        let (said, answer) = oneshot::channel();
        let until = asked + self.timeout;
        let waiting = Waiting {
            id: claim.id,
            token: claim.token.to_bytes(),
            lease: span(terms.lease),
            asked,
            until,
            said,
        };
        self.claims
            .try_send(waiting)
            .map_err(|_| StoreError::Unavailable)?;
        match tokio::time::timeout_at(until.into(), answer).await {
            Ok(Ok(said)) => said,
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable),
        }
    }
}

impl Inner {
    /// A claim that was made `there`, once enough replicas have it. One that they do not have is let go.
    ///
    /// Dropping the future has it let go a moment later.
    ///
    /// # Errors
    /// They do not have it in time.
    pub(super) async fn shared(
        &self,
        claim: Claim,
        there: &Live,
        terms: &Terms,
        asked: Instant,
        unsure: Unsure<'_>,
    ) -> Result<Claim, StoreError> {
        let had = match &there.lanes {
            Some(lanes) => lanes.have(&claim, terms, asked).await,
            None => Ok(()),
        };
        // At once if that is possible, and else with those of which nobody knows.
        let known = if had.is_ok() {
            true
        } else {
            let release = self.release(&claim.id, claim.token);
            matches!(tokio::time::timeout(SLACK, release).await, Ok(Ok(())))
        };
        if known {
            unsure.settled();
        }
        had.map(|()| claim)
    }
}

/// A connection of its own, and what goes over it.
struct Lane {
    inner: Arc<Inner>,
    node: Arc<Node>,
    place: Place,
    timeout: Duration,
    claims: Arc<Mutex<mpsc::Receiver<Waiting>>>,
    connection: Option<(Live, Instant)>,
}

impl Lane {
    async fn run(mut self) {
        loop {
            let mut batch = Vec::new();
            let taken = self.claims.lock().await.recv_many(&mut batch, BATCH).await;
            if taken == 0 {
                return;
            }
            // Whoever has waited long enough is gone.
            batch.retain(|claim| !claim.said.is_closed());
            let said = self.wait(&mut batch).await;
            if said.is_err() {
                // Whatever went wrong, the next ones do not wait behind it.
                self.connection = None;
            }
            for claim in batch {
                // Nobody may wait for it any more.
                let _ = claim.said.send(said);
            }
        }
    }

    /// Waits once for all of them. Those whose claims are lost are told so and taken out.
    async fn wait(&mut self, batch: &mut Vec<Waiting>) -> Result<(), StoreError> {
        let (link, node) = (&self.inner.link, &*self.node);
        if batch.is_empty() {
            return Ok(());
        }
        let (live, since) = if let Some(connection) = self.connection.take() {
            connection
        } else {
            let connected = self.connect().await;
            let live = connected.map_err(|error| link.complains(node, &error))?;
            (live, Instant::now())
        };
        let (live, since) = &*self.connection.insert((live, since));
        let mut renewed = false;
        let mut at = 0;
        while let Some(claim) = batch.get(at) {
            if renewed && claim.asked > *since {
                at += 1;
                continue;
            }
            let key = self.inner.key(&claim.id);
            let arguments: [&[u8]; 2] = [&claim.token, claim.lease.as_bytes()];
            let told = link
                .run_on(node, live, &link.scripts.renew, &key, &arguments, 1)
                .await?;
            if matches!(told.first(), Some(Value::Int(1))) {
                renewed = true;
                at += 1;
            } else {
                let lost = batch.swap_remove(at);
                let _ = lost.said.send(Err(StoreError::Unavailable));
            }
        }
        let Some(until) = batch.iter().map(|claim| claim.until).max() else {
            return Ok(());
        };
        let left = until
            .saturating_duration_since(Instant::now())
            .as_millis()
            .max(1);
        let wanted = link.wait_replicas;
        let mut wait = cmd("WAIT");
        wait.arg(wanted)
            .arg(u64::try_from(left).unwrap_or(u64::MAX));
        match link.ask(live, &wait).await {
            Ok(Value::Int(have)) if have >= i64::from(wanted) => Ok(()),
            Ok(Value::Int(have)) => Err(link.complains(
                node,
                &format_args!("{have} of {wanted} replicas have a claim in time"),
            )),
            Ok(_) => Err(link.odd()),
            Err(error) => Err(link.failed(node, live, &error)),
        }
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let connection = self.place.connect_plain(self.timeout + GRACE).await?;
        Ok(Live::new(connection, self.place.clone()))
    }
}

/// So many connections a server.
const LANES: usize = 4;

/// So many claims can wait for a lane; one more is refused.
const QUEUE: usize = 16 * 1024;

/// So many are waited for at once, at most.
const BATCH: usize = 4 * 1024;

/// So much longer than the server is to wait its answer is waited for.
const GRACE: Duration = Duration::from_millis(250);
