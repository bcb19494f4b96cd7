//! `wait_replicas`: a claim counts once so many replicas have it.
//!
//! `WAIT` answers for what its own connection has written, and blocks that connection meanwhile. So it has connections of its own, lanes, of
//! each server, for as long as the connection lasts over which the claims are made. A lane takes all claims that wait, renews every one
//! of them in one round trip, and waits once. A renewal proves that the server to which the lane leads has the claim, whatever the name
//! leads to by now, and a replica that has the renewal has the claim. In a cluster each is asked for as one that is on its way: its
//! slot may not be the server's yet. One that is not renewed there fails alone. While one lane waits, the next takes what comes.
//!
//! A lane that nobody has used for a while may have been closed, by the server or on the way, without anybody's telling: one that is
//! found broken is opened again once, and one that was idle for long is not tried. Renewals can be repeated.
//!
//! Only claims are waited for. A failover that loses a settlement leaves the claim, and so an unknown outcome. Where those are held for
//! ever, nothing is executed twice by that; where they are released, or held for a while, it may be.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ::redis::{ErrorKind, RedisError, ServerErrorKind, Value, cmd, pipe};
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
    /// It, and when it was last of use.
    connection: Option<(Live, Instant)>,
}

/// What the server says to each renewal.
type Renewed = Vec<Result<Value, RedisError>>;

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
            for claim in batch {
                // Nobody may wait for it any more.
                let _ = claim.said.send(said);
            }
        }
    }

    /// Waits once for all of them. Those that are not renewed are told so and taken out.
    async fn wait(&mut self, batch: &mut Vec<Waiting>) -> Result<(), StoreError> {
        let Some(until) = batch.iter().map(|claim| claim.until).max() else {
            return Ok(());
        };
        let used = self.connection.take();
        let (live, told) = self.renewed(used, batch, until).await?;
        let (link, node) = (&self.inner.link, &*self.node);
        let (many, mut told) = (batch.len(), told.into_iter());
        for claim in std::mem::take(batch) {
            let failed = match told.next() {
                Some(Ok(Value::Array(said))) if said.first() == Some(&Value::Int(1)) => {
                    batch.push(claim);
                    continue;
                }
                // It is lost, or the lane leads to another server.
                Some(Ok(Value::Array(_))) => StoreError::Unavailable,
                Some(Err(error)) => link.failed(node, &live, &error),
                Some(Ok(_)) | None => link.odd(),
            };
            // Nobody may wait for it any more.
            let _ = claim.said.send(Err(failed));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let left = until
            .saturating_duration_since(Instant::now())
            .as_millis()
            .max(1);
        let wanted = link.wait_replicas;
        let mut wait = cmd("WAIT");
        wait.arg(wanted)
            .arg(u64::try_from(left).unwrap_or(u64::MAX));
        match link.ask(&live, &wait).await {
            Ok(Value::Int(have)) if have >= i64::from(wanted) => {
                // Where something was not renewed it may lead elsewhere by now.
                if batch.len() == many {
                    self.connection = Some((live, Instant::now()));
                }
                Ok(())
            }
            Ok(Value::Int(have)) => Err(link.complains(
                node,
                &format_args!("{have} of {wanted} replicas have a claim in time"),
            )),
            Ok(_) => Err(link.odd()),
            Err(error) => Err(link.failed(node, &live, &error)),
        }
    }

    /// Renews all of them, over the connection that was used before if it still works; which it was.
    async fn renewed(
        &self,
        used: Option<(Live, Instant)>,
        batch: &[Waiting],
        until: Instant,
    ) -> Result<(Live, Renewed), StoreError> {
        let (link, node) = (&self.inner.link, &*self.node);
        if let Some((live, at)) = used
            && at.elapsed() < MOST_IDLE
        {
            match self.renew(&live, batch).await {
                Ok(told) => return Ok((live, told)),
                // It was closed while nobody used it.
                Err(error) if error.is_io_error() && Instant::now() < until => {}
                Err(error) => return Err(link.failed(node, &live, &error)),
            }
        }
        let connected = self.connect().await;
        let live = connected.map_err(|error| link.complains(node, &error))?;
        match self.renew(&live, batch).await {
            Ok(told) => Ok((live, told)),
            Err(error) => Err(link.failed(node, &live, &error)),
        }
    }

    /// What the server says to each, in one round trip.
    async fn renew(&self, live: &Live, batch: &[Waiting]) -> Result<Renewed, RedisError> {
        let told = self.renew_with(live, batch, Script::Known).await?;
        let forgotten = |told: &Result<Value, RedisError>| {
            let kind = told.as_ref().map_err(RedisError::kind);
            matches!(kind, Err(ErrorKind::Server(ServerErrorKind::NoScript)))
        };
        if !told.iter().any(forgotten) {
            return Ok(told);
        }
        self.inner.link.metrics.script_missed();
        self.renew_with(live, batch, Script::Told).await
    }

    async fn renew_with(
        &self,
        live: &Live,
        batch: &[Waiting],
        script: Script,
    ) -> Result<Renewed, RedisError> {
        let link = &self.inner.link;
        let renew = &link.scripts.renew;
        let clustered = link.is_clustered();
        let mut all = pipe();
        all.ignore_errors();
        if let Script::Told = script {
            all.cmd("SCRIPT").arg("LOAD").arg(&renew.text).ignore();
        }
        for claim in batch {
            if clustered {
                all.cmd("ASKING").ignore();
            }
            let key = self.inner.key(&claim.id);
            let call = all.cmd("EVALSHA").arg(&renew.hash).arg(1).arg(key);
            call.arg(&claim.token[..]).arg(&claim.lease);
        }
        link.metrics.round_trip();
        all.query_async(&mut live.connection.clone()).await
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let connection = self.place.connect_plain(self.timeout + GRACE).await?;
        Ok(Live::new(connection, self.place.clone()))
    }
}

/// Whether the server knows the script, or is told it.
#[derive(Clone, Copy)]
enum Script {
    Known,
    Told,
}

/// So many connections a server.
const LANES: usize = 4;

/// So many claims can wait for a lane; one more is refused.
const QUEUE: usize = 16 * 1024;

/// So many are waited for at once, at most.
const BATCH: usize = 4 * 1024;

/// So much longer than the server is to wait its answer is waited for.
const GRACE: Duration = Duration::from_millis(250);

/// A connection that was of no use for so long is not used again: what lies between may have forgotten it in silence.
const MOST_IDLE: Duration = Duration::from_secs(30);
