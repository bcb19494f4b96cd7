//! The disk store, beside what its disk can do in the same folder: so many writers who each wait for two syncs in a row, which is what a
//! new key costs, and who share a sync with all that wait at its time; once as a file that grows, once as rows of SQLite.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinSet};

use super::{
    Result, Setting,
    compare::{HOT_KEYS, ROOM, quiet},
    load::{self, Keys, Load, Outcome, median},
    machine::real,
    proxies::{Peer, Proxy},
    table::{Table, legend, mark, progress},
    wire::Upstream,
};

/// As many as there are connections.
const WRITERS: u64 = 64;

/// What a claim and a settlement are, with an answer of 300 bytes.
const RECORD: [usize; 2] = [300, 800];

/// What is measured, and the row that it is compared with.
const ROWS: [(&str, Option<(usize, &str)>); 6] = [
    ("a file: two syncs each, shared by all who wait", None),
    (
        "SQLite: the same two writes to a table with one index",
        Some((0, "the file's")),
    ),
    ("disk store: a new key each", Some((0, "the file's"))),
    (
        "disk store: replay of 256 keys, 300 B",
        Some((5, "the memory store's")),
    ),
    ("memory store: a new key each", None),
    ("memory store: replay of 256 keys, 300 B", None),
];

pub(crate) async fn run(setting: &Setting, upstream: &Upstream) -> Result<()> {
    let mut rounds: Vec<[Figure; 6]> = Vec::new();
    for round in 0..setting.rounds {
        progress(&format!("disk: round {}", round + 1))?;
        let (folder, span) = (setting.folder()?, setting.span());
        let file = writers(file(folder.path())?, span).await?;
        let rows = writers(table(folder.path())?, span).await?;
        let on_disk = format!(
            "kind = \"disk\"\n[store.disk]\npath = \"{}\"",
            folder.path().join("store").display()
        );
        let in_memory = format!("[store.memory]\nmax_bytes = \"{ROOM}B\"");
        let mut figures = vec![Figure::Limit(file), Figure::Limit(rows)];
        for store in [on_disk, in_memory] {
            for keys in [Keys::Fresh, Keys::Stored(HOT_KEYS)] {
                let proxy = Proxy::start_on(Peer::Idem, upstream, &store).await?;
                let load = Load::new(keys, span);
                figures.push(Figure::Proxy(load::run(&proxy, upstream, load).await?));
            }
        }
        rounds.push(figures.try_into().ok().context("a figure is missing")?);
    }
    let mut printed = Table::new(
        format!(
            "Disk: {WRITERS} connections, {} s, {} rounds, medians; {}",
            setting.seconds,
            setting.rounds,
            legend()
        ),
        &["what", "a second", "CPU µs a request", "share"],
    );
    let (rounds, are_quiet) = quiet(rounds, |round| round.iter().all(Figure::is_quiet));
    let mark = mark(are_quiet);
    for (row, (what, base)) in ROWS.iter().enumerate() {
        let all: Vec<&Figure> = rounds.iter().filter_map(|round| round.get(row)).collect();
        let cpu = median(all.iter().filter_map(|figure| figure.cpu_us()));
        let share = match base {
            None => "-".to_owned(),
            Some((base, whose)) => {
                let shares = rounds.iter().filter_map(|round| {
                    Some(round.get(row)?.per_second() / round.get(*base)?.per_second())
                });
                format!("{:.2}{mark} of {whose}", median(shares)?)
            }
        };
        printed.row([
            (*what).to_owned(),
            format!(
                "{:.0}{mark}",
                median(all.iter().map(|one| one.per_second()))?
            ),
            cpu.map_or_else(|_| "-".to_owned(), |cpu| format!("{cpu:.1}{mark}")),
            share,
        ]);
    }
    printed.print(setting.form)
}

enum Figure {
    /// New keys a second, if that were all.
    Limit(f64),
    Proxy(Outcome),
}

impl Figure {
    fn per_second(&self) -> f64 {
        match self {
            Self::Limit(per_second) => *per_second,
            Self::Proxy(outcome) => outcome.requests_per_s,
        }
    }

    fn cpu_us(&self) -> Option<f64> {
        match self {
            Self::Limit(_) => None,
            Self::Proxy(outcome) => Some(outcome.cpu_us),
        }
    }

    fn is_quiet(&self) -> bool {
        match self {
            Self::Limit(_) => true,
            Self::Proxy(outcome) => outcome.is_quiet(),
        }
    }
}

/// Something to write, and whom to tell when it is durable.
struct Write {
    number: u64,
    /// The first write of a key, or the second.
    step: usize,
    written: oneshot::Sender<()>,
}

/// How many pairs of writes a second all writers together get, if `commit` makes durable what waits.
async fn writers(
    mut commit: impl FnMut(&[Write]) -> Result<()> + Send + 'static,
    span: Duration,
) -> Result<f64> {
    let (queue, asked) = mpsc::channel::<Write>();
    let committer = std::thread::spawn(move || {
        while let Ok(first) = asked.recv() {
            let mut all = vec![first];
            all.extend(asked.try_iter());
            commit(&all)?;
            for one in all {
                let _ = one.written.send(());
            }
        }
        Result::Ok(())
    });
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let queue = queue.clone();
        tasks.spawn(async move {
            let mut pairs = 0_usize;
            while started.elapsed() < span {
                let number = pairs as u64 * WRITERS + writer;
                for step in 0..RECORD.len() {
                    let (written, told) = oneshot::channel();
                    queue.send(Write {
                        number,
                        step,
                        written,
                    })?;
                    told.await?;
                }
                pairs += 1;
            }
            Result::Ok(pairs)
        });
    }
    drop(queue);
    let mut pairs = 0;
    while let Some(ended) = tasks.join_next().await {
        pairs += ended??;
    }
    let per_second = real(pairs) / started.elapsed().as_secs_f64();
    let ended = committer.join();
    ended.ok().context("the committer panicked")??;
    Ok(per_second)
}

/// A file that grows.
fn file(folder: &Path) -> Result<impl FnMut(&[Write]) -> Result<()> + Send + use<>> {
    let mut file = File::create(folder.join("file"))?;
    Ok(move |writes: &[Write]| {
        let bytes: usize = writes.iter().filter_map(|one| RECORD.get(one.step)).sum();
        file.write_all(&vec![b'x'; bytes])?;
        file.sync_data()?;
        Ok(())
    })
}

/// A table of SQLite, as durable as the disk store's.
fn table(folder: &Path) -> Result<impl FnMut(&[Write]) -> Result<()> + Send + use<>> {
    let connection = Connection::open(folder.join("table"))?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE one (id BLOB NOT NULL, value BLOB NOT NULL);
         CREATE UNIQUE INDEX one_id ON one (id);",
    )?;
    Ok(move |writes: &[Write]| {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for one in writes {
            // In no order, as the digests that records are found by.
            let mut id = [0_u8; 32];
            let scattered = one.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            id.fill(0x5a);
            if let Some(first) = id.first_chunk_mut() {
                *first = scattered.to_be_bytes();
            }
            let value = vec![b'x'; RECORD.get(one.step).copied().unwrap_or_default()];
            let sql = if one.step == 0 {
                "INSERT INTO one (id, value) VALUES (?1, ?2)"
            } else {
                "UPDATE one SET value = ?2 WHERE id = ?1"
            };
            connection.prepare_cached(sql)?.execute((id, value))?;
        }
        connection.execute_batch("COMMIT")?;
        Ok(())
    })
}

impl Setting {
    /// A folder on the disk that is measured.
    fn folder(&self) -> Result<TempDir> {
        Ok(match &self.disk {
            Some(path) => tempfile::tempdir_in(path)?,
            None => tempfile::tempdir()?,
        })
    }
}
