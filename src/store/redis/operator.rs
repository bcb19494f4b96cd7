//! What operators ask of a Redis store. Lists walk all of the server's keys, in steps between which others are served; nothing of a
//! request ever does.

use std::{sync::Arc, time::Duration};

use ::redis::{RedisError, Value, cmd, pipe};

use super::{
    Inner, Kept, RedisStore, SLACK,
    kept::{self, FIELDS, unhex},
    link::Call,
    node::{Live, Node},
    scripts::Script,
};
use crate::{
    core::{
        record::{RecordId, ShortId},
        time::Timestamp,
        transition::{self, Resolution, Resolved},
    },
    store::{Outcome, Purged, Query, Row, StoreError, draw_token},
};

impl RedisStore {
    /// As [`crate::store::Stores::list`]. Records that cannot be read are left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; also if the walk takes too long.
    pub async fn list(&self, query: &Query) -> Result<Vec<Row>, StoreError> {
        let mut rows: Vec<Row> = Vec::new();
        let walk = self.inner.walk("", |met| {
            let Met::Row(row) = met else {
                return;
            };
            if query.wants(&row) {
                rows.push(row);
            }
            // Never many more than are wanted.
            if rows.len() > query.limit.saturating_mul(2) + 1000 {
                first_of(&mut rows, query.limit);
            }
        });
        walked(walk).await?;
        first_of(&mut rows, query.limit);
        Ok(rows)
    }

    /// As [`crate::store::Stores::row`]. One look, however many keys there are.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; also if the record cannot be read.
    pub async fn row(&self, id: &RecordId) -> Result<Option<Row>, StoreError> {
        let inner = &*self.inner;
        let (kept, now, _) = inner.read(id).await?;
        let Some(kept) = kept else {
            return Ok(None);
        };
        let bytes = kept.answer_bytes();
        let record = kept.head(&inner.seal, id);
        let record = record.map_err(|why| inner.unreadable(id, why))?;
        Ok(Row::of(*id, &record, now, bytes))
    }

    /// As [`crate::store::Stores::find`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; also if the walk takes too long, or all that it meets cannot be read.
    pub async fn find(&self, short: ShortId) -> Result<Vec<Row>, StoreError> {
        let mut rows: Vec<Row> = Vec::new();
        let first = kept::hex(&short.to_bytes());
        let mut unreadable = false;
        let walk = self.inner.walk(&first, |met| match met {
            // A walk may meet a key twice.
            Met::Row(row) if rows.iter().all(|other| other.id != row.id) => {
                if rows.len() < 2 {
                    rows.push(row);
                }
            }
            Met::Row(_) => {}
            Met::Unreadable(_) => unreadable = true,
        });
        walked(walk).await?;
        if rows.is_empty() && unreadable {
            return Err(StoreError::Unavailable);
        }
        Ok(rows)
    }

    /// As [`crate::store::Stores::ids`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; also if the walk takes too long.
    pub async fn ids(&self, short: ShortId) -> Result<Vec<RecordId>, StoreError> {
        let mut ids: Vec<RecordId> = Vec::new();
        let first = kept::hex(&short.to_bytes());
        let walk = self.inner.walk(&first, |met| {
            let (Met::Row(Row { id, .. }) | Met::Unreadable(id)) = met;
            if !ids.contains(&id) {
                ids.push(id);
            }
        });
        walked(walk).await?;
        Ok(ids)
    }

    /// As [`crate::store::Stores::purge`]; told to every proxy.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn purge(&self, id: &RecordId) -> Result<Purged, StoreError> {
        let inner = &*self.inner;
        let (link, key) = (&inner.link, inner.key(id));
        for _ in 0..super::ROUNDS {
            // Bound to what is there now: if it comes late, it takes nothing else.
            let Some([token, state]) = inner.seen(id).await? else {
                return Ok(Purged::Absent);
            };
            let arguments: [&[u8]; 6] = [
                &token,
                &state,
                inner.channel.as_bytes(),
                &inner.origin,
                id.as_bytes(),
                b"",
            ];
            let told = self.ask_in_time(&link.scripts.purge, &key, &arguments);
            let told = told.await?;
            inner.cache.written(*id, None);
            match told.first() {
                Some(Value::Int(0)) => return Ok(Purged::Absent),
                Some(Value::Int(1)) => {
                    link.purged
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    return Ok(Purged::Gone);
                }
                Some(Value::Int(2)) => return Ok(Purged::Runs),
                // It is another one by now, or the server's clock was not known well enough: it is now.
                Some(Value::Int(_)) => {}
                _ => return Err(link.odd()),
            }
        }
        Err(StoreError::Unavailable)
    }

    /// Runs a script whose last argument is the time after which it does nothing: who has given it up need not fear it much longer.
    async fn ask_in_time(
        &self,
        script: &Script,
        key: &str,
        arguments: &[&[u8]],
    ) -> Result<Vec<Value>, StoreError> {
        let ran = self.inner.link.run_there(Call {
            script,
            key,
            arguments,
            deadline: Some((arguments.len().saturating_sub(1), self.timeout + SLACK)),
            at: 1,
        });
        ran.await.map(|(told, _)| told)
    }

    /// As [`crate::store::Stores::resolve`]; told to every proxy.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Unavailable`]
    pub async fn resolve(
        &self,
        id: &RecordId,
        resolution: Resolution,
    ) -> Result<Outcome, StoreError> {
        let inner = &*self.inner;
        let (link, key) = (&inner.link, inner.key(id));
        for _ in 0..super::ROUNDS {
            let (kept, now, _) = inner.read(id).await?;
            let Some(kept) = kept else {
                return Ok(Outcome::Absent);
            };
            let (token, state, since) = (kept.token.to_bytes(), kept.state, kept.since);
            let (state, since) = (state.to_string(), since.map_or_else(String::new, decimal));
            let record = inner.record(id, kept, now)?;
            let record = match transition::resolve(Some(&record), resolution.clone(), now) {
                Resolved::Absent => return Ok(Outcome::Absent),
                Resolved::NotUnknown => return Ok(Outcome::NotUnknown),
                Resolved::Released => None,
                Resolved::Kept(record) => Some(Arc::new(record)),
            };
            // A token of its own, so that a holder who comes late has lost the record.
            let new = draw_token()?;
            let (new_token, mut status, mut head, mut answer) =
                (new.to_bytes(), String::new(), Vec::new(), Vec::new());
            if let (Some(record), Resolution::Complete(said)) = (&record, &resolution) {
                said.status().as_str().clone_into(&mut status);
                let digests = record.print.digests();
                head = kept::write_head(&inner.seal, id, new, digests, &record.route)
                    .map_err(|_| StoreError::Unavailable)?;
                answer = kept::write_answer(&inner.seal, id, new, said)
                    .map_err(|_| StoreError::Unavailable)?;
            }
            let arguments: [&[u8]; 11] = [
                &token,
                state.as_bytes(),
                since.as_bytes(),
                inner.channel.as_bytes(),
                &inner.origin,
                id.as_bytes(),
                if record.is_some() { &new_token } else { &[] },
                status.as_bytes(),
                &head,
                &answer,
                b"",
            ];
            let told = self.ask_in_time(&link.scripts.resolve, &key, &arguments);
            let told = told.await?;
            if told.first() != Some(&Value::Int(1)) {
                continue;
            }
            // It is read again when it is asked for: a purge after it may have been heard of before this.
            inner.cache.written(*id, None);
            let Some(record) = record else {
                return Ok(Outcome::Released);
            };
            let bytes = u64::try_from(answer.len()).unwrap_or(u64::MAX);
            return Row::of(*id, &record, now, bytes)
                .map(Outcome::Kept)
                .ok_or(StoreError::Unavailable);
        }
        Err(StoreError::Unavailable)
    }
}

/// The first of them, in their order; a walk may meet a key twice.
fn first_of(rows: &mut Vec<Row>, limit: usize) {
    rows.sort_by_key(|row| row.place().order());
    rows.dedup_by_key(|row| row.id);
    rows.truncate(limit);
}

fn decimal(at: Timestamp) -> String {
    at.as_millis().to_string()
}

async fn walked(walk: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    let walked = tokio::time::timeout(LONGEST_WALK, walk).await;
    walked.unwrap_or(Err(StoreError::Unavailable))
}

impl Inner {
    /// Token and state of what is there, readable or not; both are nothing where it is of another version, or the server does not answer.
    /// None: there is nothing.
    pub(super) async fn seen(&self, id: &RecordId) -> Result<Option<[Vec<u8>; 2]>, StoreError> {
        let link = &self.link;
        let told = match link.run(&link.scripts.read, &self.key(id), &[], 0).await {
            Ok(told) => told,
            Err(StoreError::Unavailable) => return Ok(Some([Vec::new(), Vec::new()])),
            Err(why) => return Err(why),
        };
        let Some(Value::Array(fields)) = told.into_iter().nth(1) else {
            return Ok(None);
        };
        let mut fields = fields.into_iter().map(|field| match field {
            Value::BulkString(bytes) => bytes,
            _ => Vec::new(),
        });
        // In the order of FIELDS: the version, the state, the token.
        let (state, token) = (fields.nth(1), fields.next());
        Ok(Some([token, state].map(Option::unwrap_or_default)))
    }

    /// Shows `take` every record of this namespace whose id begins so; some may come twice. Every node that has records is
    /// walked over, one after the other; one that does not answer ends it.
    async fn walk(&self, first: &str, mut take: impl FnMut(Met)) -> Result<(), StoreError> {
        let nodes = self.link.nodes();
        if nodes.is_empty() {
            return Err(StoreError::Unavailable);
        }
        for node in nodes {
            self.walk_node(&node, first, &mut take).await?;
        }
        Ok(())
    }

    async fn walk_node(
        &self,
        node: &Node,
        first: &str,
        take: &mut impl FnMut(Met),
    ) -> Result<(), StoreError> {
        let (link, live) = (&self.link, node.live()?);
        let now = self.now(node).await?;
        let pattern = format!("{}{first}*", self.prefix);
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(STEP);
            link.metrics.round_trip();
            let scanned = scan
                .query_async::<(u64, Vec<Vec<u8>>)>(&mut live.connection.clone())
                .await;
            let (next, keys) = scanned.map_err(|error| link.failed(node, &live, &error))?;
            if !keys.is_empty() {
                self.rows(node, &live, &keys, now, take).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    async fn rows(
        &self,
        node: &Node,
        live: &Live,
        keys: &[Vec<u8>],
        now: Timestamp,
        take: &mut impl FnMut(Met),
    ) -> Result<(), StoreError> {
        let [head @ .., answer] = FIELDS;
        let mut both = pipe();
        for key in keys {
            both.cmd("HMGET").arg(key).arg(&head[..]);
            both.cmd("HSTRLEN").arg(key).arg(answer);
        }
        self.link.metrics.round_trip();
        let told = both
            .ignore_errors()
            .query_async::<Vec<Result<Value, RedisError>>>(&mut live.connection.clone())
            .await
            .map_err(|error| self.link.failed(node, live, &error))?;
        let mut told = told.into_iter();
        for key in keys {
            let (Some(fields), Some(length)) = (told.next(), told.next()) else {
                return Err(self.link.odd());
            };
            let id = key.strip_prefix(self.prefix.as_bytes()).and_then(unhex);
            let Some(id) = id.map(RecordId::from_bytes) else {
                continue;
            };
            let (kept, bytes) = match (fields, length) {
                (Ok(fields), _) if is_absent(&fields) => continue,
                (Ok(fields), Ok(length)) => (Kept::read(fields), length_of(&length)),
                // It is no record, or moves to another node just now.
                _ => match self.read(&id).await {
                    Ok((Some(kept), ..)) => {
                        let bytes = kept.answer_bytes();
                        (Ok(kept), bytes)
                    }
                    Ok((None, ..)) => continue,
                    Err(_) => {
                        take(Met::Unreadable(id));
                        continue;
                    }
                },
            };
            match kept.and_then(|kept| kept.head(&self.seal, &id)) {
                Ok(record) => {
                    if let Some(row) = Row::of(id, &record, now, bytes) {
                        take(Met::Row(row));
                    }
                }
                Err(_) => take(Met::Unreadable(id)),
            }
        }
        Ok(())
    }

    /// The node's time, as its scripts have it.
    async fn now(&self, node: &Node) -> Result<Timestamp, StoreError> {
        let link = &self.link;
        let nothing = link.nothing_on(node, &self.prefix);
        let nothing = self.key(&nothing.ok_or(StoreError::Unavailable)?);
        let told = link.run(&link.scripts.read, &nothing, &[], 0).await?;
        Ok(super::time(told.into_iter().next()))
    }
}

/// What a walk meets.
enum Met {
    Row(Row),
    /// It is there, and cannot be read.
    Unreadable(RecordId),
}

/// Whether there is no such key any more.
fn is_absent(fields: &Value) -> bool {
    match fields {
        Value::Array(fields) => fields.iter().all(|field| *field == Value::Nil),
        _ => false,
    }
}

fn length_of(told: &Value) -> u64 {
    match told {
        Value::Int(length) => u64::try_from(*length).unwrap_or(0),
        _ => 0,
    }
}

/// So many keys are looked at in one step.
const STEP: u32 = 1000;

/// A walk over so many keys that it takes longer is given up.
const LONGEST_WALK: Duration = Duration::from_secs(10);
