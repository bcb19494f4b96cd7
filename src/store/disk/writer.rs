//! The writer: the one thread that decides and writes. It takes all that waits, does it in one transaction, makes that durable,
//! and then answers: one sync of the disk for many.
//!
//! After an error it promises nothing more on its connection: it closes it, opens the database again, and writes what was in
//! the log once more, before it goes on. A claim whose commit failed, and that was found to be there all the same, is let go:
//! its request was refused, and nothing was executed under it. A settlement whose commit failed is tried again by its holder,
//! and found settled. Until the database works again, everything is refused at once.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    batch::{Batch, Swept},
    database::{Cursor, Database, House, Open, Unusable},
    done::Done,
    queue::{Command, Queue, Reply},
    routes::Routes,
    shared::Shared,
};
use crate::{
    core::record::{ClaimToken, RecordId},
    store::StoreError,
};

/// The writer, before and while it runs.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<Queue>,
    pub(super) max_bytes: u64,
    /// `None`: it is down.
    database: Option<Database>,
    routes: Routes,
    /// As of the last commit that succeeded.
    house: House,
    /// Claims that may be there and that nobody holds.
    doubts: Vec<(RecordId, ClaimToken)>,
    sweep: Option<Cursor>,
    /// Who waits for the end of the sweep.
    sweeping: Vec<Reply<()>>,
    clock_saved: Instant,
    tried: Instant,
    complained: Option<Instant>,
    #[cfg(test)]
    faults: super::faults::Faults,
}

/// What was found at the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Inventory {
    pub(super) records: u64,
    /// Claims of a predecessor, whose outcome is unknown now.
    pub(super) claims: u64,
    pub(super) bytes: u64,
}

impl Writer {
    /// Takes over a database that was just opened: what its predecessor held is unknown from now on.
    pub(super) fn start(
        shared: Arc<Shared>,
        queue: Arc<Queue>,
        database: Database,
        max_bytes: u64,
    ) -> rusqlite::Result<(Self, Inventory)> {
        let house = database.house()?;
        let routes = Routes::load(&database, &shared.seal)?;
        let mut writer = Self {
            #[cfg(test)]
            faults: database.faults.clone(),
            shared,
            queue,
            max_bytes,
            database: None,
            routes,
            house,
            doubts: Vec::new(),
            sweep: None,
            sweeping: Vec::new(),
            clock_saved: Instant::now(),
            tried: Instant::now(),
            complained: None,
        };
        let claims = writer.orphan_all(&database)?;
        let bytes = database.used_bytes()?;
        let inventory = Inventory {
            records: writer.house.counts.iter().sum(),
            claims,
            bytes,
        };
        writer
            .shared
            .gauges
            .records
            .store(inventory.records, Relaxed);
        writer.shared.gauges.bytes.store(bytes, Relaxed);
        writer.database = Some(database);
        Ok((writer, inventory))
    }

    #[cfg(test)]
    pub(super) fn faults(&self) -> super::faults::Faults {
        self.faults.clone()
    }

    fn orphan_all(&mut self, database: &Database) -> rusqlite::Result<u64> {
        let (mut after, mut orphaned) = (0, 0);
        loop {
            let found = database.in_flight(after, ORPHANS)?;
            let ended = found.len() < ORPHANS;
            let mut batch = Batch::begin(
                database,
                &self.shared,
                &mut self.routes,
                self.max_bytes,
                self.house,
            )?;
            for (row, id, kept) in found {
                after = row;
                orphaned += u64::from(batch.orphan(&id, kept)?);
            }
            let committed = batch.commit(true).map_err(|(error, _)| error)?;
            self.house = committed.house;
            if ended {
                return Ok(orphaned);
            }
        }
    }

    /// Works until the queue is closed and empty.
    pub(super) fn run(mut self) {
        while let Some(commands) = self.queue.take(self.patience()) {
            if self.database.is_none() {
                self.reopen();
            }
            match self.database.take() {
                Some(database) => self.work(database, commands),
                None => self.refuse_all(commands),
            }
        }
        self.shared.close_readers();
        if let Some(database) = self.database.take() {
            // So that the next start has little to read. The log says the same, if this fails.
            let _ = database.checkpoint();
        }
    }

    fn patience(&self) -> Duration {
        match (&self.database, &self.sweep) {
            (None, _) => REOPEN_EVERY,
            (Some(_), Some(_)) => Duration::ZERO,
            (Some(_), None) => LOOK_EVERY,
        }
    }

    /// One transaction. The database is put back if it can be trusted afterwards.
    fn work(&mut self, database: Database, commands: Vec<Command>) {
        let save_clock = self.clock_saved.elapsed() >= SAVE_CLOCK_EVERY;
        if !database.is_in_place() {
            self.refuse_all(commands);
            // What only the log had is written to the file that we still hold, wherever it is now.
            let _ = database.checkpoint();
            return self.fail(database, &"its files were moved or removed", Vec::new());
        }
        let mut wanted = Vec::with_capacity(commands.len());
        for command in commands {
            match command {
                Command::Sweep(reply) => {
                    self.sweeping.push(reply);
                    self.sweep.get_or_insert_default();
                }
                command => wanted.push(command),
            }
        }
        if wanted.is_empty() && self.sweep.is_none() && !save_clock {
            self.database = Some(database);
            return;
        }
        match self.transact(&database, wanted, save_clock) {
            Ok(()) => {
                if save_clock {
                    self.clock_saved = Instant::now();
                }
                self.database = Some(database);
            }
            Err(Failed {
                error,
                done,
                undone,
            }) => {
                database.roll_back();
                self.refuse_all(undone);
                self.fail(database, &error, done);
            }
        }
    }

    fn transact(
        &mut self,
        database: &Database,
        commands: Vec<Command>,
        save_clock: bool,
    ) -> Result<(), Failed> {
        let mut commands = commands.into_iter();
        let operations = commands.len() as u64;
        let failed = |error, done, undone: std::vec::IntoIter<Command>| Failed {
            error,
            done,
            undone: undone.collect(),
        };
        let batch = Batch::begin(
            database,
            &self.shared,
            &mut self.routes,
            self.max_bytes,
            self.house,
        );
        let mut batch = match batch {
            Ok(batch) => batch,
            Err(error) => return Err(failed(error, Vec::new(), commands)),
        };
        while let Some(command) = commands.next() {
            if let Err(error) = batch.take(command) {
                return Err(failed(error, batch.into_done(), commands));
            }
        }
        let mut swept = None;
        if let Some(from) = self.sweep {
            let most = if operations == 0 {
                SWEEP_IDLE
            } else {
                SWEEP_BUSY
            };
            match batch.sweep(from, most, self.shared.clock.now()) {
                Ok(outcome) => swept = Some(outcome),
                Err(error) => return Err(failed(error, batch.into_done(), commands)),
            }
        }
        let started = Instant::now();
        let mut committed = batch
            .commit(save_clock)
            .map_err(|(error, done)| failed(error, done, commands))?;
        self.shared.metrics.committed(operations, started.elapsed());
        self.house = committed.house;
        // What it is measured by is in memory; if not, the next transaction says so.
        let used = database.used_bytes().unwrap_or(0);
        self.shared.show(&mut committed, used);
        for done in committed.done {
            done.answer(&self.queue);
        }
        match swept {
            Some(Swept::UpTo(cursor)) => self.sweep = Some(cursor),
            Some(Swept::All) => {
                self.sweep = None;
                for reply in self.sweeping.drain(..) {
                    let _ = reply.send(Ok(()));
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Nothing is promised until the database was opened again.
    fn fail(&mut self, database: Database, error: &dyn std::fmt::Display, undone: Vec<Done>) {
        self.shared.down.store(true, Relaxed);
        self.shared.close_readers();
        drop(database);
        self.tried = Instant::now();
        self.sweep = None;
        for reply in self.sweeping.drain(..) {
            let _ = reply.send(Err(StoreError::Unavailable));
        }
        self.doubts
            .extend(undone.into_iter().filter_map(Done::refuse));
        self.complain(error);
    }

    fn complain(&mut self, error: &dyn std::fmt::Display) {
        let due = self
            .complained
            .is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY);
        if due {
            self.complained = Some(Instant::now());
            let path = self.shared.path.display();
            tracing::error!(%path, %error, "the disk store does not work; keyed requests get what on_store_failure says until it does");
        }
    }

    fn reopen(&mut self) {
        if self.tried.elapsed() < REOPEN_EVERY {
            return;
        }
        self.tried = Instant::now();
        match self.opened_again() {
            Ok(database) => {
                self.database = Some(database);
                self.shared.down.store(false, Relaxed);
                let path = self.shared.path.display();
                tracing::info!(%path, "the disk store works again");
            }
            Err(error) => self.complain(&error),
        }
    }

    fn opened_again(&mut self) -> Result<Database, Unusable> {
        #[cfg_attr(not(test), expect(unused_mut, reason = "tests put faults into it"))]
        let mut database = Database::open(&self.shared.path, Open::Again, self.max_bytes)?;
        #[cfg(test)]
        database.faults.clone_from(&self.faults);
        let house = database.house()?;
        if house.writes < self.house.writes {
            return Err(Unusable::Older);
        }
        self.routes = Routes::load(&database, &self.shared.seal)?;
        let mut batch = Batch::begin(
            &database,
            &self.shared,
            &mut self.routes,
            self.max_bytes,
            house,
        )?;
        for (id, token) in &self.doubts {
            batch.let_go(id, *token)?;
        }
        let mut committed = batch.commit(true).map_err(|(error, _)| error)?;
        self.house = committed.house;
        let used = database.used_bytes()?;
        self.shared.show(&mut committed, used);
        // A commit that was said to have failed may have taken effect: what it removed is to be forgotten here too.
        self.shared.cache.clear();
        self.doubts.clear();
        Ok(database)
    }

    /// Refuses what cannot be done now; what was to be let go is let go later.
    fn refuse_all(&mut self, commands: Vec<Command>) {
        for command in commands {
            if let Command::Abandon { id, token } = command {
                self.doubts.push((id, token));
            } else {
                refuse(command);
            }
        }
    }
}

/// A transaction that failed: what was done in it, and what was not even begun.
struct Failed {
    error: rusqlite::Error,
    done: Vec<Done>,
    undone: Vec<Command>,
}

/// Says that nothing came of a command.
fn refuse(command: Command) {
    let unavailable = StoreError::Unavailable;
    match command {
        Command::Begin(_, reply) => drop(reply.send(Err(unavailable))),
        Command::Renew { reply, .. } => drop(reply.send(Err(unavailable))),
        Command::Settle(_, reply) => drop(reply.send(Err(unavailable))),
        Command::Sweep(reply) => drop(reply.send(Err(unavailable))),
        Command::Purge(_, reply) => drop(reply.send(Err(unavailable))),
        Command::Resolve(_, reply) => drop(reply.send(Err(unavailable))),
        Command::Abandon { .. } => {}
    }
}

/// How often it is looked whether the files are still there, while nothing else is to do.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often the time is saved, and with it shown that the disk takes what is written, while nothing else is.
const SAVE_CLOCK_EVERY: Duration = Duration::from_secs(3);

/// How often a database that failed is opened again.
const REOPEN_EVERY: Duration = Duration::from_millis(500);

/// How often it is said that the store does not work.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// How many records are swept in one transaction of their own.
const SWEEP_IDLE: usize = 256;

/// And how many beside requests, who wait for it.
const SWEEP_BUSY: usize = 32;

/// How many claims of a predecessor are let go in one transaction.
const ORPHANS: usize = 512;
