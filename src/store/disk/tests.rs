//! The suite and the model on the disk store, and what its other tests are written with.

mod cuts;
mod full;
mod restarts;
mod sealed;
mod trouble;

use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    config::OnFull,
    core::{
        fixtures::{answer, id, request, route, terms},
        record::{ShortId, State},
        transition::Resolution,
    },
    store::{
        Outcome, Purged, Query, Row,
        clock::ManualClock,
        model,
        suite::{Met, Subject, suite},
    },
    tasks::Tasks,
    telemetry::metrics::Metrics,
};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

const CACHE: MemoryLimits = MemoryLimits {
    max_bytes: 64 << 20,
    max_records: None,
    max_claims: 1000,
    on_full: OnFull::Evict,
};

/// A cache that holds nothing: everything comes from the database.
const NO_CACHE: MemoryLimits = MemoryLimits {
    max_bytes: 1,
    ..CACHE
};

/// How a store under test is opened.
#[derive(Clone)]
struct Setup {
    clock: ManualClock,
    cache: MemoryLimits,
    keys: Option<SealKeys>,
    max_bytes: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            clock: ManualClock::at(START),
            cache: CACHE,
            keys: None,
            max_bytes: 64 << 20,
        }
    }
}

impl Setup {
    fn open(&self, path: &Path) -> Result<DiskStore, OpenError> {
        let settings = Settings {
            path: path.to_owned(),
            max_bytes: self.max_bytes,
        };
        let clock = |last: Timestamp| {
            assert!(last <= self.clock.now(), "time has gone on");
            Arc::new(self.clock.clone()) as Arc<dyn Clock>
        };
        let metrics = Metrics::new(&[]).store("disk");
        DiskStore::open_at(&settings, self.cache, self.keys.as_ref(), metrics, clock)
    }
}

/// A disk store with a clock that stands, in a folder of its own.
struct Timed {
    /// `None`: between two lives.
    store: Option<DiskStore>,
    setup: Setup,
    folder: TempDir,
}

impl Timed {
    fn new(setup: Setup) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = setup.open(&folder.path().join("store")).expect("it opens");
        Self {
            store: Some(store),
            setup,
            folder,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn store(&self) -> &DiskStore {
        self.store.as_ref().expect("it is open")
    }

    /// Ends the store and opens it again.
    fn restart(&mut self) {
        self.store = None;
        self.store = Some(self.setup.open(&self.path()).expect("it opens again"));
    }

    async fn try_begin(&self, record: u64, terms: &Terms) -> Result<Begin, StoreError> {
        let (fingerprint, route) = (request("a"), route());
        let ask = Ask {
            fingerprint: &fingerprint,
            terms,
            route: &route,
        };
        self.store().begin(&id(record), &ask).await
    }

    async fn claim(&self, record: u64) -> Claim {
        match self.try_begin(record, &terms()).await {
            Ok(Begin::Claimed(claim)) => claim,
            other => panic!("{other:?}"),
        }
    }

    async fn meets(&self, record: u64) -> Met {
        match self.try_begin(record, &terms()).await {
            Ok(Begin::Claimed(_)) => Met::Nothing,
            Ok(Begin::Found(found)) => Met::from(&found),
            Err(error) => panic!("{error}"),
        }
    }

    async fn settle(&self, claim: Claim, settlement: Settlement) -> Settled {
        let settled = self.store().settle(claim, settlement, &terms()).await;
        settled.expect("it is settled")
    }

    /// Executes one request, whose answer has so many bytes of body.
    async fn execute(&self, record: u64, body: usize) -> Settled {
        let claim = self.claim(record).await;
        let answer = answer(&vec![b'x'; body]);
        self.settle(claim, Settlement::Complete(answer)).await
    }
}

impl Subject for Timed {
    /// What is in memory must be what the database says.
    async fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        let record = self.store().read(id).await.expect("it can be read");
        let there = transition::look(record.as_ref(), ask, self.setup.clock.now());
        if let Some(hot) = self.store().look(id, ask) {
            let there = there.as_ref().map(Met::from);
            assert_eq!(Some(Met::from(&hot)), there, "in memory and on the disk");
        }
        there
    }

    async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Begin {
        self.store().begin(id, ask).await.expect("room")
    }

    async fn renew(&self, claim: &Claim, terms: &Terms) -> Held {
        self.store().renew(claim, terms).await.expect("it answers")
    }

    async fn settle(&self, claim: Claim, settlement: Settlement, terms: &Terms) -> Settled {
        let settled = self.store().settle(claim, settlement, terms).await;
        settled.expect("it answers")
    }

    async fn list(&self, query: &Query) -> Vec<Row> {
        self.store().list(query).await.expect("it answers")
    }

    async fn row(&self, id: &RecordId) -> Option<Row> {
        self.store().row(id).await.expect("it answers")
    }

    async fn find(&self, short: ShortId) -> Vec<Row> {
        self.store().find(short).await.expect("it answers")
    }

    async fn purge(&self, id: &RecordId) -> Purged {
        let purged = self.store().purge(id).await.expect("it answers");
        self.assert_counted();
        purged
    }

    async fn resolve(&self, id: &RecordId, resolution: Resolution) -> Outcome {
        let outcome = self.store().resolve(id, resolution).await.expect("room");
        self.assert_counted();
        outcome
    }

    async fn pass(&self, span: Duration) {
        self.setup.clock.pass(span);
    }

    async fn sweep(&self) {
        self.store().sweep().await;
    }
}

fn keys(bytes: &[u8]) -> Option<SealKeys> {
    let keys = bytes
        .iter()
        .map(|byte| zeroize::Zeroizing::new([*byte; 32]));
    SealKeys::new(keys.collect())
}

fn is_complete(settled: &Settled) -> bool {
    matches!(settled, Settled::Kept(record) if matches!(record.state, State::Complete(_)))
}

/// How many records the tables have, by state.
fn counted(path: &Path) -> [u64; 5] {
    let database = rusqlite::Connection::open(path.join("records.db")).expect("a database");
    [0, 1, 2, 3, 4].map(|state| {
        let sql = "SELECT count(*) FROM record WHERE state = ?1";
        let count = database.query_row(sql, [state], |row| row.get::<_, i64>(0));
        u64::try_from(count.expect("a count")).expect("not negative")
    })
}

impl Timed {
    /// Compares what is there with what is said to be there.
    fn assert_counted(&self) {
        let counted = counted(&self.path());
        let levels = self.store().levels();
        assert_eq!(levels.records, counted.iter().sum::<u64>());
        assert_eq!(levels.claims, counted[0]);
    }
}

suite!(Timed::new(Setup::default()));

mod without_a_cache {
    use super::*;

    suite!(Timed::new(Setup {
        cache: NO_CACHE,
        keys: keys(&[1]),
        ..Setup::default()
    }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_disk_store_does_what_the_pure_functions_say(steps in model::steps(), cached: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let cache = if cached { CACHE } else { NO_CACHE };
        let timed = Timed::new(Setup { cache, ..Setup::default() });
        runtime.block_on(model::agree(&timed, START, &steps))?;
        runtime.block_on(timed.store().sweep());
        timed.assert_counted();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_claim_at_once_one_gets_it() {
    let timed = Arc::new(Timed::new(Setup::default()));
    let tasks = Tasks::new(Handle::current(), TaskTracker::new());
    for record in 0..20 {
        let copies = (0..16).map(|_| {
            let timed = Arc::clone(&timed);
            tasks.spawn(async move { timed.try_begin(record, &terms()).await })
        });
        let mut claimed = 0;
        for copy in copies.collect::<Vec<_>>() {
            match copy.await.expect("no panic") {
                Ok(Begin::Claimed(_)) => claimed += 1,
                Ok(Begin::Found(Found::InFlight { .. })) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(claimed, 1);
    }
    timed.assert_counted();
}

#[tokio::test]
async fn many_at_once_share_a_sync() {
    let metrics = Metrics::new(&[]);
    let (setup, folder) = (Setup::default(), tempfile::tempdir().expect("a folder"));
    let settings = Settings {
        path: folder.path().join("store"),
        max_bytes: setup.max_bytes,
    };
    let store = DiskStore::open(&settings, CACHE, None, metrics.store("disk")).expect("it opens");
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    let ids: Vec<RecordId> = (0..200).map(id).collect();
    let all = trouble::futures_all(ids.iter().map(|id| store.begin(id, &ask))).await;
    assert!(
        all.iter()
            .all(|begun| matches!(begun, Ok(Begin::Claimed(_))))
    );
    let text = String::from_utf8(metrics.render()).expect("text");
    let value = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.rsplit_once(' ')?.1.parse().ok());
        value.unwrap_or_else(|| panic!("{name}: {text}"))
    };
    let operations = value("idem_proxy_store_committed_operations_total");
    let commits = value("idem_proxy_store_commit_duration_seconds_count");
    assert_eq!(operations, 200);
    assert!(
        commits < 100,
        "{commits} commits for {operations} operations"
    );
}

#[tokio::test]
async fn a_request_that_goes_away_while_it_claims_leaves_no_claim() {
    let timed = Timed::new(Setup::default());
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    for record in 0..50 {
        let id = id(record);
        let mut begin = Box::pin(timed.store().begin(&id, &ask));
        // Once is enough for the question to be asked; the answer comes to nobody, before or after it is given.
        let polled = futures_once(&mut begin).await;
        if record % 2 == 0 {
            tokio::task::yield_now().await;
        }
        drop(begin);
        assert!(!polled, "no answer comes at once");
        assert_eq!(timed.meets(record).await, Met::Nothing, "{record}");
    }
}

/// Polls a future once; whether it was ready.
async fn futures_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        let ready = std::pin::Pin::new(&mut *future).poll(cx).is_ready();
        std::task::Poll::Ready(ready)
    })
    .await
}

#[tokio::test]
async fn an_expired_answer_leaves_memory_and_disk() {
    let timed = Timed::new(Setup::default());
    for record in 0..300 {
        assert!(is_complete(&timed.execute(record, 10_000).await));
    }
    let full = timed.store().levels();
    assert_eq!(full.records, 300);
    timed.pass(Duration::from_hours(24)).await;
    timed.sweep().await;
    let empty = timed.store().levels();
    assert_eq!(empty.records, 0);
    assert!(
        empty.bytes < full.bytes / 10,
        "{} of {}",
        empty.bytes,
        full.bytes
    );
    assert_eq!(timed.store().evictions(Eviction::Expired), 300);
    assert_eq!(timed.store().evictions(Eviction::Size), 0);
    timed.assert_counted();
}

#[tokio::test]
async fn a_database_of_others_is_left_alone() {
    let timed = Timed::new(Setup::default());
    let Timed { setup, folder, .. } = &timed;
    let other = |name: &str, change: &dyn Fn(&Path)| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).expect("a folder");
        let database = path.join("records.db");
        change(&database);
        let before = std::fs::read(&database).expect("a file");
        let refused = setup.open(&path).expect_err("it is refused").to_string();
        assert!(
            refused.contains(database.to_str().expect("UTF-8")),
            "{refused}"
        );
        assert_eq!(std::fs::read(&database).expect("a file"), before);
        refused
    };
    let sql = |text: &'static str| {
        move |path: &Path| {
            let database = rusqlite::Connection::open(path).expect("a database");
            database.execute_batch(text).expect("SQL");
        }
    };
    let foreign = other("foreign", &sql("CREATE TABLE t (a)"));
    assert!(foreign.contains("no database of idem-proxy"), "{foreign}");
    let later = other(
        "later",
        &sql("CREATE TABLE t (a); PRAGMA application_id = 1768187245; PRAGMA user_version = 3"),
    );
    assert!(later.contains("format 3"), "{later}");
    other("garbage", &|path| {
        std::fs::write(path, [b'x'; 8192]).expect("a file");
    });
}

/// `HAVE_FDATASYNC` is not among the options that SQLite tells; the one beside it in `.cargo/config.toml` is.
#[test]
fn sqlite_is_compiled_with_the_flags_of_this_house() {
    let database = rusqlite::Connection::open_in_memory().expect("a database");
    let mut told = database.prepare("PRAGMA compile_options").expect("SQL");
    let told = told.query_map([], |row| row.get::<_, String>(0));
    let mut told = told.expect("rows").map(|option| option.expect("text"));
    assert!(told.any(|option| option == "DEFAULT_MEMSTATUS=0"));
}
