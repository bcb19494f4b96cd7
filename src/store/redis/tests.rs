//! The suite and the model on a real Redis server, and what is this store's own.

mod cluster;
mod clustered;
mod purged;
mod replicas;
mod server;

use proptest::{prelude::*, test_runner::TestRunner};

use self::{cluster::Cluster, server::Server};
use super::*;
use crate::{
    config::{OnFull, RedisServers},
    core::{
        fixtures::{answer, id, request, route, terms},
        record::ShortId,
        transition::Resolution,
    },
    store::{
        Awaited, Outcome, Purged, Query, Row, Runs, model,
        suite::{Met, Subject, suite},
    },
    telemetry::metrics::Metrics,
};

/// Far enough ahead that the server itself, whose clock goes on, drops nothing.
const START: u64 = 4_000_000_000_000;

const CACHE: MemoryLimits = MemoryLimits {
    max_bytes: 64 << 20,
    max_records: None,
    max_claims: 1000,
    on_full: OnFull::Evict,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn settings(server: &Server) -> Settings {
    on(RedisServers::Single(server.url().parse().expect("a URL")))
}

fn on(servers: RedisServers) -> Settings {
    Settings {
        servers,
        timeout: Duration::from_secs(2),
        wait_replicas: 0,
        allow_eviction: false,
    }
}

fn keys(byte: u8) -> Option<SealKeys> {
    SealKeys::new(vec![zeroize::Zeroizing::new([byte; 32])])
}

fn open(server: &Server) -> RedisStore {
    let metrics = Metrics::new(&[]).store("redis");
    RedisStore::open(&settings(server), "n", CACHE, None, metrics).expect("it opens")
}

/// Waits until something holds; the last look decides.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A store whose clock stands until it is moved, on servers of its own.
struct Timed {
    store: RedisStore,
    servers: Arc<Servers>,
}

enum Servers {
    One(Server),
    Three(Cluster),
}

impl Servers {
    fn clocks(&self, command: &str, value: &str) {
        match self {
            Self::One(server) => _ = server.ask(&[command, "clock:0", value]),
            Self::Three(cluster) => cluster.clocks(command, value),
        }
    }
}

impl Timed {
    fn new(keys: Option<&SealKeys>) -> Self {
        Self::on(Arc::new(Servers::One(Server::start(&[]))), keys)
    }

    fn clustered() -> Self {
        Self::on(Arc::new(Servers::Three(Cluster::start())), None)
    }

    fn on(servers: Arc<Servers>, keys: Option<&SealKeys>) -> Self {
        servers.clocks("SET", &START.to_string());
        let settings = match &*servers {
            Servers::One(server) => settings(server),
            Servers::Three(cluster) => on(cluster.servers()),
        };
        let metrics = Metrics::new(&[]).store("redis");
        let store = RedisStore::open_with(Scripts::of_test(), &settings, "n", CACHE, keys, metrics);
        let store = store.expect("it opens");
        assert!(store.answers(), "{:?}", store.trouble());
        Self { store, servers }
    }
}

impl Subject for Timed {
    async fn look(&self, id: &RecordId, ask: &Ask<'_>) -> Option<Found> {
        let looked = self.store.inner.look(id, ask).await;
        looked.expect("it answers").1
    }

    async fn begin(&self, id: &RecordId, ask: &Ask<'_>) -> Begin {
        self.store.begin(id, ask).await.expect("it answers")
    }

    async fn renew(&self, claim: &Claim, terms: &Terms) -> Held {
        self.store.renew(claim, terms).await.expect("it answers")
    }

    async fn settle(&self, claim: Claim, settlement: Settlement, terms: &Terms) -> Settled {
        let settled = self.store.settle(claim, settlement, terms).await;
        settled.expect("it answers")
    }

    async fn list(&self, query: &Query) -> Vec<Row> {
        self.store.list(query).await.expect("it answers")
    }

    async fn row(&self, id: &RecordId) -> Option<Row> {
        self.store.row(id).await.expect("it answers")
    }

    async fn find(&self, short: ShortId) -> Vec<Row> {
        self.store.find(short).await.expect("it answers")
    }

    async fn purge(&self, id: &RecordId) -> Purged {
        self.store.purge(id).await.expect("it answers")
    }

    async fn resolve(&self, id: &RecordId, resolution: Resolution) -> Outcome {
        let outcome = self.store.resolve(id, resolution).await;
        outcome.expect("it answers")
    }

    async fn pass(&self, span: Duration) {
        self.servers.clocks("INCRBY", &super::span(span));
    }

    async fn sweep(&self) {
        self.store.sweep();
    }
}

suite!(Timed::new(None));

mod sealed {
    use super::*;

    suite!(Timed::new(keys(1).as_ref()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_redis_store_does_what_the_pure_functions_say(steps in model::steps(), sealed: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let seal = if sealed { keys(1) } else { None };
        let timed = Timed::new(seal.as_ref());
        runtime.block_on(model::agree(&timed, Timestamp::from_millis(START), &steps))?;
    }
}

mod in_a_cluster {
    use super::*;

    suite!(Timed::clustered());
}

#[test]
fn the_redis_store_does_the_same_in_a_cluster() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // One cluster for all cases: it takes seconds to form.
    let servers = Arc::new(Servers::Three(Cluster::start()));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(16));
    let ran = runner.run(&model::steps(), |steps| {
        if let Servers::Three(cluster) = &*servers {
            cluster.flush();
        }
        let timed = Timed::on(Arc::clone(&servers), None);
        runtime.block_on(model::agree(&timed, Timestamp::from_millis(START), &steps))
    });
    if let Err(why) = ran {
        panic!("{why}\n{runner}");
    }
}

async fn begun(store: &RedisStore, n: u64, terms: &Terms) -> Result<Begin, StoreError> {
    let (fingerprint, route) = (request("a"), route());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms,
        route: &route,
    };
    store.begin(&id(n), &ask).await
}

async fn claim(store: &RedisStore, n: u64) -> Claim {
    match begun(store, n, &terms()).await {
        Ok(Begin::Claimed(claim)) => claim,
        other => panic!("{other:?}"),
    }
}

async fn meets(store: &RedisStore, n: u64) -> Met {
    match begun(store, n, &terms()).await {
        Ok(Begin::Claimed(_)) => Met::Nothing,
        Ok(Begin::Found(found)) => Met::from(&found),
        Err(error) => panic!("{error}"),
    }
}

fn hot(store: &RedisStore, n: u64) -> Option<Met> {
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    store.look(&id(n), &ask).as_ref().map(Met::from)
}

/// What who has waited meets; `None`: it ran, and is gone.
async fn waited(store: &RedisStore, n: u64) -> Result<Option<Met>, StoreError> {
    waited_as(store, n, Runs::Perhaps).await
}

async fn waited_as(store: &RedisStore, n: u64, runs: Runs) -> Result<Option<Met>, StoreError> {
    let (fingerprint, route, terms) = (request("a"), route(), terms());
    let ask = Ask {
        fingerprint: &fingerprint,
        terms: &terms,
        route: &route,
    };
    match store.wait(&id(n), &ask, 5, runs).await? {
        Awaited::Found(found) => Ok(Some(Met::from(&found))),
        Awaited::Gone => Ok(None),
        Awaited::Nothing => Ok(Some(Met::Nothing)),
    }
}

async fn complete(store: &RedisStore, claim: Claim) {
    let done = Settlement::Complete(answer(b"done"));
    let settled = store.settle(claim, done, &terms()).await;
    assert!(matches!(settled, Ok(Settled::Kept(_))), "{settled:?}");
}

fn done() -> Met {
    Met::Complete(http::StatusCode::CREATED, b"done".to_vec())
}

#[tokio::test]
async fn every_key_ends_by_itself_and_never_by_its_lease() {
    let server = Server::start(&[]);
    let store = open(&server);
    let short = Terms {
        lease: Duration::from_secs(5),
        ..terms()
    };
    let _lapsing = begun(&store, 1, &short).await;
    complete(&store, claim(&store, 2).await).await;
    let unknown = claim(&store, 3).await;
    let settled = store.settle(unknown, Settlement::Unknown, &terms()).await;
    assert!(settled.is_ok());
    let keys = server.ask(&["KEYS", "idem:*"]);
    let keys: Vec<_> = keys.lines().collect();
    assert_eq!(keys.len(), 3);
    for key in keys {
        let left: i64 = server.ask(&["PTTL", key]).parse().expect("a number");
        assert!(left > 80_000_000, "{key}: {left} ms");
    }
    // What has ended is gone without anybody's doing.
    let brief = Terms {
        retention: Duration::from_millis(200),
        lease: Duration::from_millis(200),
        ..terms()
    };
    let _brief = begun(&store, 4, &brief).await;
    until("it goes", || server.ask(&["DBSIZE"]) == "3").await;
}

#[tokio::test]
async fn a_settled_record_is_told_from_memory_until_it_is_purged_elsewhere() {
    let server = Server::start(&[]);
    let (one, other) = (open(&server), open(&server));
    complete(&one, claim(&one, 1).await).await;
    assert_eq!(hot(&one, 1), Some(done()), "who settled it has it");
    assert_eq!(hot(&other, 1), None);
    // Word of the settlement may come behind it, and takes it out of the other's memory once more.
    let end = std::time::Instant::now() + PATIENCE;
    while hot(&other, 1).is_none() {
        assert!(std::time::Instant::now() < end, "who found it has it");
        assert_eq!(meets(&other, 1).await, done());
    }
    assert_eq!(one.purge(&id(1)).await, Ok(Purged::Gone));
    assert_eq!(hot(&one, 1), None);
    until("the purge is told", || hot(&other, 1).is_none()).await;
    assert_eq!(meets(&other, 1).await, Met::Nothing);
}

#[tokio::test]
async fn nothing_in_memory_is_believed_without_a_server() {
    let server = Server::start(&[]);
    let store = open(&server);
    complete(&store, claim(&store, 1).await).await;
    assert_eq!(hot(&store, 1), Some(done()));
    server.freeze();
    // Nothing published can be known to have come any more.
    until("the cache is not believed", || hot(&store, 1).is_none()).await;
    until("it is not ready", || !store.answers()).await;
    server.thaw();
    until("it is ready", || store.answers()).await;
    assert_eq!(meets(&store, 1).await, done());
}

#[tokio::test]
async fn who_waits_elsewhere_is_woken_and_never_claims() {
    let server = Server::start(&[]);
    let (one, other) = (open(&server), open(&server));
    let held = claim(&one, 1).await;
    let (met, ()) = tokio::join!(waited(&other, 1), async {
        until("it waits", || other.inner.changes.join(id(1), 1).is_none()).await;
        complete(&one, held).await;
    });
    assert_eq!(met, Ok(Some(done())));
    let held = claim(&one, 2).await;
    let (met, ()) = tokio::join!(waited(&other, 2), async {
        until("it waits", || other.inner.changes.join(id(2), 1).is_none()).await;
        let released = one.settle(held, Settlement::Release, &terms()).await;
        assert!(matches!(released, Ok(Settled::Released)));
    });
    // It may have been released before it was looked at first.
    assert!(matches!(met, Ok(None | Some(Met::Nothing))), "{met:?}");
    assert_eq!(meets(&one, 2).await, Met::Nothing, "nobody has claimed it");
    // Who knows that it ran is never told that nothing did, however late it looks.
    assert_eq!(waited_as(&other, 3, Runs::Surely).await, Ok(None));
    assert_eq!(waited(&other, 3).await, Ok(Some(Met::Nothing)));
}

#[tokio::test]
async fn who_does_not_know_that_it_runs_waits_for_no_server_that_is_down() {
    let mut server = Server::start(&[]);
    let store = open(&server);
    server.kill();
    until("it is not ready", || !store.answers()).await;
    assert_eq!(waited(&store, 1).await, Ok(Some(Met::Nothing)));
}

#[tokio::test]
async fn a_lost_message_is_made_up_for() {
    let server = Server::start(&[]);
    let (one, other) = (open(&server), open(&server));
    let held = claim(&one, 1).await;
    let (met, ()) = tokio::join!(waited(&other, 1), async {
        until("it waits", || other.inner.changes.join(id(1), 1).is_none()).await;
        // Settled by hand, and told to nobody.
        let key = one.inner.key(&id(1));
        let token = held.token.to_bytes();
        let answer = kept::write_answer(&one.inner.seal, &id(1), held.token, &answer(b"done"));
        let answer = answer.expect("it is written");
        server.write(&[
            b"HSET",
            key.as_bytes(),
            b"s",
            b"2",
            b"c",
            b"201",
            b"b",
            &answer,
        ]);
        assert_eq!(token.len(), 16);
    });
    assert_eq!(met, Ok(Some(done())));
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_told_again() {
    let server = Server::start(&[]);
    let store = open(&server);
    let held = claim(&store, 1).await;
    server.ask(&["SCRIPT", "FLUSH"]);
    complete(&store, held).await;
    server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(meets(&store, 1).await, done());
}

#[tokio::test]
async fn a_settlement_whose_answer_was_lost_can_be_repeated() {
    let server = Server::start(&[]);
    let store = open(&server);
    let held = claim(&store, 1).await;
    let (id, token) = (held.id, held.token);
    complete(&store, held).await;
    complete(&store, Claim { id, token }).await;
    let again = Claim { id, token };
    let other = store.settle(again, Settlement::Unknown, &terms()).await;
    assert!(matches!(other, Ok(Settled::Lost)), "{other:?}");
}

#[tokio::test]
async fn a_begin_that_was_stuck_leaves_no_claim_behind() {
    let server = Server::start(&[]);
    let mut settings = settings(&server);
    settings.timeout = Duration::from_millis(200);
    let metrics = Metrics::new(&[]).store("redis");
    let store = RedisStore::open(&settings, "n", CACHE, None, metrics).expect("it opens");
    server.freeze();
    let stuck = begun(&store, 1, &terms()).await;
    assert!(matches!(stuck, Err(StoreError::Unavailable)), "{stuck:?}");
    // While the breaker is open nothing is sent at all.
    let refused = begun(&store, 2, &terms()).await;
    assert!(matches!(refused, Err(StoreError::Unavailable)));
    server.thaw();
    until("it is ready", || store.answers()).await;
    until("nothing is left", || server.ask(&["DBSIZE"]) == "0").await;
    let _claimed = claim(&store, 1).await;
}

#[tokio::test]
async fn a_claim_that_was_made_and_not_told_is_let_go() {
    let server = Server::start(&[]);
    let store = open(&server);
    let held = claim(&store, 1).await;
    let (now, last) = (Duration::ZERO, Duration::from_mins(1));
    let abandoned = &store.inner.link.abandoned;
    abandoned.add(held.id, held.token, now, last);
    until("it is let go", || server.ask(&["DBSIZE"]) == "0").await;
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_unless_that_is_allowed() {
    let server = Server::start(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]);
    let mut settings = settings(&server);
    let open = |settings: &Settings| {
        let metrics = Metrics::new(&[]).store("redis");
        RedisStore::open(settings, "n", CACHE, None, metrics)
    };
    let refused = open(&settings).expect_err("it evicts").to_string();
    assert!(refused.contains("noeviction"), "{refused}");
    settings.allow_eviction = true;
    assert!(open(&settings).expect("it is allowed").answers());
    // One that begins to evict while it is used is used no longer.
    settings.allow_eviction = false;
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let store = open(&settings).expect("it does not evict");
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    until("it is not ready", || !store.answers()).await;
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    until("it is ready", || store.answers()).await;
}

#[tokio::test]
async fn a_store_opens_before_its_server_and_finds_it_again() {
    let mut server = Server::start(&[]);
    server.kill();
    let store = open(&server);
    assert!(!store.answers());
    server.restart();
    until("it is ready", || store.answers()).await;
    let _held = claim(&store, 1).await;
    server.kill();
    until("it is not ready", || !store.answers()).await;
    server.restart();
    until("it is ready", || store.answers()).await;
}

#[tokio::test]
async fn a_full_server_takes_no_claim_and_keeps_what_runs() {
    let server = Server::start(&[]);
    let store = open(&server);
    let (held, done_by) = (claim(&store, 1).await, claim(&store, 3).await);
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = begun(&store, 2, &terms()).await;
    assert!(matches!(full, Err(StoreError::Full)), "{full:?}");
    let released = store.settle(held, Settlement::Release, &terms()).await;
    assert!(matches!(released, Ok(Settled::Released)), "{released:?}");
    assert_eq!(store.renew(&done_by, &terms()).await, Ok(Held::Yes));
    complete(&store, done_by).await;
    assert_eq!(meets(&store, 3).await, done());
    assert!(store.answers(), "it is full, and there");
}

#[tokio::test]
async fn what_cannot_be_read_is_never_taken_for_nothing() {
    let server = Server::start(&[]);
    let store = open(&server);
    complete(&store, claim(&store, 1).await).await;
    let key = store.inner.key(&id(1));
    for (field, value) in [("h", "x"), ("s", "7"), ("a", "no"), ("v", "2")] {
        let before = server.ask(&["HGET", &key, field]);
        server.ask(&["HSET", &key, field, value]);
        let met = begun(&store, 1, &terms()).await;
        assert!(
            matches!(met, Err(StoreError::Unavailable)),
            "{field}: {met:?}"
        );
        if field != "h" {
            server.ask(&["HSET", &key, field, &before]);
        }
    }
    // Neither does it stand in the way of a purge.
    for (n, field, value) in [
        (1, "v", "2"),
        (2, "s", "7"),
        (3, "h", "x"),
        (4, "e", "abc"),
        (5, "s", "0"), // without the end of its lease
        (6, "r", "x"),
    ] {
        if n > 1 {
            complete(&store, claim(&store, n).await).await;
        }
        server.ask(&["HSET", &store.inner.key(&id(n)), field, value]);
        assert_eq!(store.purge(&id(n)).await, Ok(Purged::Gone), "{field}");
        let _held = claim(&store, n).await;
    }
}
