//! One transaction: what the writer does with all that waited, before any of it is answered.
//!
//! The core decides, on the record that is read inside the transaction. An error of the database ends the whole batch; a record
//! that cannot be read refuses its own command alone, and stays as it is.

use std::sync::{Arc, atomic::Ordering::Relaxed};

mod operator;

use super::{
    database::{self, Cursor, Database, House, Kept, NewRow},
    done::{Done, Verdict},
    queue::{Beginning, Command, Settling},
    room::Room,
    routes::Routes,
    rows,
    shared::Shared,
};
use crate::{
    core::{
        policy::Terms,
        record::{ClaimToken, NotRetained, Record, RecordId, State, encoding},
        time::Timestamp,
        transition::{self, After, Begun, Found},
    },
    store::{Held, Settled, StoreError},
};

/// A transaction that is under way.
pub(super) struct Batch<'a> {
    database: &'a Database,
    shared: &'a Shared,
    routes: &'a mut Routes,
    room: Room,
    house: House,
    done: Vec<Done>,
    /// What stands under these ids now; `None`: nothing that is settled.
    changes: Vec<(RecordId, Option<Arc<Record>>)>,
    wrote: bool,
    expired: u64,
    purged: u64,
}

/// What a batch leaves when it is committed.
pub(super) struct Committed {
    pub(super) house: House,
    pub(super) changes: Vec<(RecordId, Option<Arc<Record>>)>,
    pub(super) done: Vec<Done>,
    pub(super) expired: u64,
    pub(super) purged: u64,
}

/// What a sweep came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swept {
    /// There may be more behind this place.
    UpTo(Cursor),
    /// All that is due was looked at.
    All,
}

/// A record that was found.
type Standing = Option<(Kept, Arc<Record>)>;

impl<'a> Batch<'a> {
    pub(super) fn begin(
        database: &'a Database,
        shared: &'a Shared,
        routes: &'a mut Routes,
        max_bytes: u64,
        house: House,
    ) -> rusqlite::Result<Self> {
        database.begin()?;
        Ok(Self {
            database,
            shared,
            routes,
            room: Room::new(max_bytes, database.used_bytes()?),
            house,
            done: Vec::new(),
            changes: Vec::new(),
            wrote: false,
            expired: 0,
            purged: 0,
        })
    }

    /// Does one command. A sweep is not one of these.
    pub(super) fn take(&mut self, command: Command) -> rusqlite::Result<()> {
        let done = match command {
            // Who asked is gone: nothing is claimed for nobody.
            Command::Begin(_, reply) if reply.is_closed() => return Ok(()),
            Command::Begin(asked, reply) => Done::Begin {
                id: asked.id,
                token: asked.token,
                verdict: self.claim(&asked)?,
                reply,
            },
            Command::Renew {
                id,
                token,
                terms,
                reply,
            } => Done::Renew(self.renew(&id, token, &terms)?, reply),
            Command::Settle(settling, reply) => Done::Settle(self.settle(*settling)?, reply),
            Command::Abandon { id, token } => {
                // Noted first: if it fails, it is still to be let go.
                self.done.push(Done::Abandon { id, token });
                return self.let_go(&id, token);
            }
            Command::Purge(id, reply) => Done::Purge(self.purge(&id)?, reply),
            Command::Resolve(resolving, reply) => Done::Resolve(self.resolve(*resolving)?, reply),
            Command::Sweep(_) => return Ok(()),
        };
        self.done.push(done);
        Ok(())
    }

    /// The commands that are not answered yet, for a batch that failed.
    pub(super) fn into_done(self) -> Vec<Done> {
        self.done
    }

    /// Makes it durable.
    pub(super) fn commit(
        mut self,
        save_clock: bool,
    ) -> Result<Committed, (rusqlite::Error, Vec<Done>)> {
        let done = std::mem::take(&mut self.done);
        let committed = (|| {
            if self.wrote || save_clock {
                self.house.clock = self.shared.clock.now();
                self.house.writes += 1;
                self.database.save_house(&self.house)?;
            }
            self.database.commit()
        })();
        match committed {
            Ok(()) => Ok(Committed {
                house: self.house,
                changes: self.changes,
                done,
                expired: self.expired,
                purged: self.purged,
            }),
            Err(error) => Err((error, done)),
        }
    }

    /// Reads the record under this id; an inner error if it cannot be read.
    fn find(&mut self, id: &RecordId) -> rusqlite::Result<Result<Standing, StoreError>> {
        let kept = match self.database.find(id) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Ok(Ok(None)),
            Err(error) if database::is_damage(&error) => {
                return Ok(Err(self.shared.unreadable(id, rows::Unreadable::Damaged)));
            }
            Err(error) => return Err(error),
        };
        Ok(match rows::read_head(&self.shared.seal, id, &kept) {
            Ok(record) => Ok(Some((kept, Arc::new(record)))),
            Err(why) => Err(self.shared.unreadable(id, why)),
        })
    }

    fn claim(&mut self, asked: &Beginning) -> rusqlite::Result<Result<Verdict, StoreError>> {
        let standing = match self.find(&asked.id)? {
            Ok(standing) => standing,
            Err(error) => return Ok(Err(error)),
        };
        let now = self.shared.clock.now();
        let there = standing.as_ref().map(|(_, record)| record);
        let record = match transition::begin(there, &asked.ask(), asked.token, now) {
            Begun::Found(Found::Complete(_)) => return Ok(Ok(Verdict::Cold)),
            Begun::Found(found) => return Ok(Ok(Verdict::Found(found))),
            Begun::Claimed(record) => record,
        };
        let before = self.changes.len();
        if !self.admits(now)? {
            return Ok(Err(StoreError::Full));
        }
        let standing = if self.changes.len() == before {
            standing
        } else {
            // A sweep made room, and may have taken what stood here.
            self.find(&asked.id)?.ok().flatten()
        };
        let ended = |(_, old): &(Kept, Arc<Record>)| transition::forgotten(old, now);
        self.expired += u64::from(standing.as_ref().is_some_and(ended));
        let was = standing.map(|(kept, _)| kept);
        let written = self.write(&asked.id, was, asked.token, &record, None)?;
        if written.is_ok() {
            self.changes.push((asked.id, None));
        }
        Ok(written.map(|()| Verdict::Claimed))
    }

    /// Whether there is room for one more claim and its answer. What has expired takes nobody's room.
    fn admits(&mut self, now: Timestamp) -> rusqlite::Result<bool> {
        if self.room.admits(&self.house.counts) {
            return Ok(true);
        }
        let mut from = Cursor::default();
        for _ in 0..SWEEPS_FOR_ROOM {
            let swept = self.sweep(from, SWEEP_FOR_ROOM, now)?;
            self.room.measured(self.database.used_bytes()?);
            if self.room.admits(&self.house.counts) {
                return Ok(true);
            }
            match swept {
                Swept::UpTo(cursor) => from = cursor,
                Swept::All => break,
            }
        }
        Ok(false)
    }

    fn renew(
        &mut self,
        id: &RecordId,
        token: ClaimToken,
        terms: &Terms,
    ) -> rusqlite::Result<Result<Held, StoreError>> {
        let standing = match self.find(id)? {
            Ok(standing) => standing,
            Err(error) => return Ok(Err(error)),
        };
        let there = standing.as_ref().map(|(_, record)| record);
        let now = self.shared.clock.now();
        let Some(record) = transition::renew(there, token, terms, now) else {
            return Ok(Ok(Held::Lost));
        };
        let was = standing.map(|(kept, _)| kept);
        let written = self.write(id, was, token, &record, None)?;
        Ok(written.map(|()| Held::Yes))
    }

    fn settle(&mut self, settling: Settling) -> rusqlite::Result<Result<Settled, StoreError>> {
        let Settling {
            id,
            token,
            settlement,
            terms,
            answer,
        } = settling;
        let standing = match self.find(&id)? {
            Ok(standing) => standing,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(settled) = already_settled(&standing, token, &settlement) {
            return Ok(Ok(settled));
        }
        let there = standing.as_ref().map(|(_, record)| record);
        let now = self.shared.clock.now();
        let record = match transition::settle(there, token, settlement, &terms, now) {
            After::Lost => return Ok(Ok(Settled::Lost)),
            After::Released => {
                self.remove(&id, standing.map(|(kept, _)| kept))?;
                return Ok(Ok(Settled::Released));
            }
            After::Kept(record) => record,
        };
        let answer = answer.filter(|_| matches!(record.state, State::Complete(_)));
        let (record, answer) = match answer {
            Some(answer) if !self.room.holds(answer.len()) => (
                transition::without_answer(record, NotRetained::NoRoom),
                None,
            ),
            answer => (record, answer),
        };
        let was = standing.map(|(kept, _)| kept);
        let written = self.write(&id, was, token, &record, answer.as_deref())?;
        Ok(written.map(|()| {
            let record = Arc::new(record);
            self.changes.push((id, Some(Arc::clone(&record))));
            Settled::Kept(record)
        }))
    }

    /// Lets go of a claim that nothing was executed under.
    pub(super) fn let_go(&mut self, id: &RecordId, token: ClaimToken) -> rusqlite::Result<()> {
        if let Ok(Some((kept, record))) = self.find(id)?
            && kept.token == token
            && matches!(record.state, State::InFlight { .. })
        {
            self.remove(id, Some(kept))?;
        }
        Ok(())
    }

    /// What a predecessor held is unknown from now on; whether this one is to be counted as such.
    pub(super) fn orphan(&mut self, id: &RecordId, kept: Kept) -> rusqlite::Result<bool> {
        let record = match rows::read_head(&self.shared.seal, id, &kept) {
            Ok(record) => record,
            Err(why) => {
                // It stays as it is: nobody may claim it, and with its key it is found again.
                self.shared.unreadable(id, why);
                return Ok(false);
            }
        };
        let Some(orphan) = transition::orphaned(&record, self.shared.clock.now()) else {
            return Ok(false);
        };
        let token = kept.token;
        Ok(self.write(id, Some(kept), token, &orphan, None)?.is_ok())
    }

    /// Frees what is forgotten among at most `most` records that are due behind `from`, and marks what has expired.
    pub(super) fn sweep(
        &mut self,
        from: Cursor,
        most: usize,
        now: Timestamp,
    ) -> rusqlite::Result<Swept> {
        let due = match self.database.due(now, from, most) {
            Ok(due) => due,
            // What is broken there breaks off the sweep, and not the requests.
            Err(error) if database::is_damage(&error) => return Ok(Swept::All),
            Err(error) => return Err(error),
        };
        let (mut last, mut bytes, ended) = (from, 0, due.len() < most);
        for (cursor, id, kept) in due {
            last = cursor;
            bytes += kept.answer_bytes;
            // What cannot be read stays: nobody can tell whether its key is refused.
            let Ok(record) = rows::read_head(&self.shared.seal, &id, &kept) else {
                continue;
            };
            if transition::forgotten(&record, now) {
                self.remove(&id, Some(kept))?;
                self.expired += 1;
            } else if let Some(marker) = transition::aged(&record, now) {
                let token = kept.token;
                let _sealed = self.write(&id, Some(kept), token, &marker, None)?;
                self.changes.push((id, None));
            }
            if bytes > SWEEP_BYTES {
                return Ok(Swept::UpTo(last));
            }
        }
        Ok(if ended { Swept::All } else { Swept::UpTo(last) })
    }

    /// Writes a record over what was found there; an inner error if it cannot be sealed.
    fn write(
        &mut self,
        id: &RecordId,
        was: Option<Kept>,
        token: ClaimToken,
        record: &Record,
        answer: Option<&[u8]>,
    ) -> rusqlite::Result<Result<(), StoreError>> {
        let seal = &self.shared.seal;
        let Ok(head) = rows::write_head(seal, id, token, record) else {
            return Ok(Err(StoreError::Unavailable));
        };
        let Some(route) = self.routes.number(&record.route, self.database, seal)? else {
            return Ok(Err(StoreError::Unavailable));
        };
        let state = record.state.number();
        self.database.put(
            id,
            &NewRow {
                state,
                token,
                route,
                started_at: record.started_at,
                due_at: transition::changes_at(record),
                head: &head,
                answer,
            },
        )?;
        let new = head.len() + answer.map_or(0, <[u8]>::len);
        self.room.took(new);
        self.count(was.map(|kept| kept.state), Some(state));
        Ok(Ok(()))
    }

    fn remove(&mut self, id: &RecordId, was: Option<Kept>) -> rusqlite::Result<()> {
        self.database.remove(id)?;
        self.count(was.map(|kept| kept.state), None);
        self.changes.push((*id, None));
        Ok(())
    }

    fn count(&mut self, was: Option<u8>, is: Option<u8>) {
        self.wrote = true;
        if let Some(count) = was.and_then(|was| self.house.counts.get_mut(usize::from(was))) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = is.and_then(|is| self.house.counts.get_mut(usize::from(is))) {
            *count += 1;
        }
    }
}

/// A settlement whose first try took effect although it was said to have failed.
fn already_settled(
    standing: &Standing,
    token: ClaimToken,
    settlement: &transition::Settlement,
) -> Option<Settled> {
    let (kept, record) = standing.as_ref()?;
    if kept.token != token {
        return None;
    }
    let record = match (&record.state, settlement) {
        (State::Complete(_), transition::Settlement::Complete(answer)) => {
            let record = encoding::whole(Record::clone(record), Some(answer.clone()));
            Arc::new(record.ok()?)
        }
        (State::Tombstone { .. }, _) | (State::Unknown { .. }, transition::Settlement::Unknown) => {
            Arc::clone(record)
        }
        _ => return None,
    };
    Some(Settled::Kept(record))
}

impl Shared {
    /// Makes what a batch has written visible.
    pub(super) fn show(&self, committed: &mut Committed, used_bytes: u64) {
        for (id, record) in committed.changes.drain(..) {
            self.cache.written(id, record.as_ref());
        }
        let counts = committed.house.counts;
        let [in_flight, ..] = counts;
        self.gauges.records.store(counts.iter().sum(), Relaxed);
        self.gauges.claims.store(in_flight, Relaxed);
        self.gauges.bytes.store(used_bytes, Relaxed);
        self.gauges.expired.fetch_add(committed.expired, Relaxed);
        self.gauges.purged.fetch_add(committed.purged, Relaxed);
    }
}

/// So many due records are looked at in one step for a request that wants room.
const SWEEP_FOR_ROOM: usize = 64;

/// And so many steps are made for it.
const SWEEPS_FOR_ROOM: usize = 4;

/// A step of a sweep ends once it has freed so many bytes of answers.
const SWEEP_BYTES: u64 = 1 << 20;
