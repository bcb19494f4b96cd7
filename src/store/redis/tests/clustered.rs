//! What is a cluster's own.

use super::{
    cluster::{Cluster, one_each, owner, range},
    *,
};

fn open_on(cluster: &Cluster, timeout: Duration) -> RedisStore {
    let metrics = Metrics::new(&[]).store("redis");
    let settings = Settings {
        timeout,
        ..on(cluster.servers())
    };
    RedisStore::open(&settings, "n", CACHE, None, metrics).expect("it opens")
}

#[tokio::test]
async fn claims_wait_for_the_replicas_of_their_own_shard() {
    let mut cluster = Cluster::start();
    let replica = cluster.nodes()[0].replica();
    let settings = Settings {
        wait_replicas: 1,
        ..on(cluster.servers())
    };
    let metrics = Metrics::new(&[]).store("redis");
    let store = RedisStore::open(&settings, "n", CACHE, None, metrics).expect("it opens");
    let [followed, alone, _] = one_each(&store);
    let first = cluster.nodes()[0].port().to_string();
    until("the others are named", || {
        let trouble = store.trouble().unwrap_or_default();
        trouble.matches("has 0 of the 1 replicas").count() == 2 && !trouble.contains(&first)
    })
    .await;
    let held = claim(&store, followed).await;
    assert_eq!(replica.ask(&["EXISTS", &store.inner.key(&held.id)]), "1");
    let refused = begun(&store, alone, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    assert_eq!(
        cluster.nodes()[1].ask(&["DBSIZE"]),
        "0",
        "nothing was tried"
    );
    complete(&store, held).await;
    assert_eq!(meets(&store, followed).await, done());
}

#[tokio::test]
async fn while_a_slot_moves_its_claims_wait_for_the_replicas_of_who_takes_them() {
    let mut cluster = Cluster::start();
    let replicas: Vec<_> = cluster.nodes().iter().map(Server::replica).collect();
    let settings = Settings {
        wait_replicas: 1,
        ..on(cluster.servers())
    };
    let metrics = Metrics::new(&[]).store("redis");
    let store = RedisStore::open(&settings, "n", CACHE, None, metrics).expect("it opens");
    until("all have replicas", || store.answers()).await;
    let [moving, stays, _] = one_each(&store);
    move_slot(&mut cluster, &store, moving, Moved::Keys);
    // The second node takes what is new of that slot, and does so beside its own.
    let (moved, own) = tokio::join!(claim(&store, moving), claim(&store, stays));
    for held in [moved, own] {
        let key = store.inner.key(&held.id);
        // A replica does not import: it is asked for all that it has.
        assert!(replicas[1].ask(&["KEYS", "*"]).contains(&key), "{key}");
        complete(&store, held).await;
    }
}

#[tokio::test]
async fn a_claim_is_in_time_by_the_clock_of_the_node_that_takes_it() {
    const HOUR: u64 = 3_600_000;
    let mut cluster = Cluster::start();
    cluster.clocks("SET", &START.to_string());
    let settings = on(cluster.servers());
    let metrics = Metrics::new(&[]).store("redis");
    let store = RedisStore::open_with(Scripts::of_test(), &settings, "n", CACHE, None, metrics);
    let store = store.expect("it opens");
    let [moving, ..] = one_each(&store);
    // What the first node's clock shows is known.
    complete(&store, claim(&store, moving).await).await;
    assert_eq!(store.purge(&id(moving)).await, Ok(Purged::Gone));
    cluster.clocks_from(1, &(START + HOUR).to_string());
    move_slot(&mut cluster, &store, moving, Moved::Keys);
    let held = claim(&store, moving).await;
    complete(&store, held).await;
    assert_eq!(meets(&store, moving).await, done());
}

fn all() -> Query {
    Query {
        standing: None,
        route: None,
        limit: 10,
        after: None,
    }
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// Moves the slot of a record, its keys first and then the slot itself, as far as is said.
fn move_slot(cluster: &mut Cluster, store: &RedisStore, n: u64, how_far: Moved) {
    let slot = super::super::slots::slot(store.inner.key(&id(n)).as_bytes()).to_string();
    let from = owner(store, n);
    let to = (from + 1) % 3;
    let nodes = cluster.nodes();
    let ids: Vec<_> = nodes
        .iter()
        .map(|node| node.ask(&["CLUSTER", "MYID"]))
        .collect();
    nodes[to].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
    nodes[from].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
    if how_far == Moved::Announced {
        return;
    }
    let port = nodes[to].port().to_string();
    for key in nodes[from]
        .ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"])
        .lines()
    {
        nodes[from].ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    if how_far == Moved::Keys {
        return;
    }
    for at in [to, from, (from + 2) % 3] {
        nodes[at].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Announced,
    Keys,
    Slot,
}

#[tokio::test]
async fn every_node_has_its_records_and_is_listed() {
    let cluster = Cluster::start();
    let (one, other) = (open_on(&cluster, TIMEOUT), open_on(&cluster, TIMEOUT));
    for n in one_each(&one) {
        complete(&one, claim(&one, n).await).await;
        assert_eq!(meets(&other, n).await, done());
    }
    assert_eq!(one.list(&all()).await.expect("it answers").len(), 3);
    for n in one_each(&one) {
        let found = one.find(id(n).short()).await.expect("it answers");
        assert_eq!(found.len(), 1);
        assert_eq!(one.purge(&id(n)).await, Ok(Purged::Gone));
        until("the purge is told", || hot(&other, n).is_none()).await;
        assert_eq!(meets(&other, n).await, Met::Nothing);
    }
}

#[tokio::test]
async fn a_key_is_followed_while_its_slot_moves() {
    let mut cluster = Cluster::start();
    let store = open_on(&cluster, TIMEOUT);
    for how_far in [Moved::Announced, Moved::Keys, Moved::Slot] {
        // Those before have moved on.
        let n = match how_far {
            Moved::Announced => one_each(&store)[0],
            Moved::Keys => one_each(&store)[1],
            Moved::Slot => one_each(&store)[2],
        };
        let held = claim(&store, n).await;
        move_slot(&mut cluster, &store, n, how_far);
        assert_eq!(store.renew(&held, &terms()).await, Ok(Held::Yes));
        complete(&store, held).await;
        assert_eq!(meets(&store, n).await, done());
        let listed = store.list(&all()).await.expect("it answers");
        assert!(listed.iter().any(|row| row.id == id(n)));
        assert_eq!(store.purge(&id(n)).await, Ok(Purged::Gone));
        // Nothing is under the key any more, so that it is made where the slot goes.
        let _held = claim(&store, n).await;
    }
}

#[tokio::test]
async fn who_takes_a_key_on_its_way_may_name_another() {
    let mut cluster = Cluster::start();
    let store = open_on(&cluster, TIMEOUT);
    let n = one_each(&store)[0];
    let slot = super::super::slots::slot(store.inner.key(&id(n)).as_bytes()).to_string();
    let nodes = cluster.nodes();
    let ids: Vec<_> = nodes
        .iter()
        .map(|node| node.ask(&["CLUSTER", "MYID"]))
        .collect();
    // The first still moves it to the second, which knows already that it went on to the third.
    nodes[0].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
    nodes[1].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[2]]);
    nodes[2].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[2]]);
    let held = claim(&store, n).await;
    let key = store.inner.key(&held.id);
    assert_eq!(nodes[2].ask(&["EXISTS", &key]), "1");
    complete(&store, held).await;
}

#[tokio::test]
async fn what_is_cached_of_a_slot_that_moved_is_purged_by_who_has_it_now() {
    let mut cluster = Cluster::start();
    let (one, other) = (open_on(&cluster, TIMEOUT), open_on(&cluster, TIMEOUT));
    let n = one_each(&one)[0];
    complete(&one, claim(&one, n).await).await;
    let end = std::time::Instant::now() + PATIENCE;
    while hot(&other, n).is_none() {
        assert!(std::time::Instant::now() < end, "who found it has it");
        assert_eq!(meets(&other, n).await, done());
    }
    move_slot(&mut cluster, &one, n, Moved::Slot);
    cluster.agree();
    assert_eq!(one.purge(&id(n)).await, Ok(Purged::Gone));
    until("the purge is told", || hot(&other, n).is_none()).await;
    assert_eq!(meets(&other, n).await, Met::Nothing);
}

#[tokio::test]
async fn a_dead_node_takes_its_own_slots_down_and_no_others() {
    let mut cluster = Cluster::start();
    let store = open_on(&cluster, TIMEOUT);
    let [dead, lives, _] = one_each(&store);
    complete(&store, claim(&store, lives).await).await;
    let held = claim(&store, dead).await;
    cluster.nodes()[0].kill();
    until("it is not ready", || !store.answers()).await;
    let (first, last) = range(0);
    let trouble = store.trouble().expect("a reason");
    let port = cluster.nodes()[0].port();
    let shard = format!("shard 127.0.0.1:{port} (slots {first}-{last})");
    assert!(trouble.contains(&shard), "{trouble}");
    let refused = begun(&store, dead, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    assert_eq!(meets(&store, lives).await, done());
    until("what lives is believed", || hot(&store, lives).is_some()).await;
    assert!(
        store.list(&all()).await.is_err(),
        "no list leaves a node out"
    );
    cluster.nodes()[0].restart();
    until("it is ready", || store.answers()).await;
    // It kept nothing; the claim is lost, and that is known.
    assert_eq!(store.renew(&held, &terms()).await, Ok(Held::Lost));
}

#[tokio::test]
async fn a_frozen_node_is_refused_within_the_timeout_and_another_answers() {
    let cluster = Cluster::start();
    let mut cluster = cluster;
    let store = open_on(&cluster, Duration::from_millis(300));
    let [frozen, lives, _] = one_each(&store);
    cluster.nodes()[0].freeze();
    let refused = begun(&store, frozen, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    let _held = claim(&store, lives).await;
    assert!(!store.answers());
    cluster.nodes()[0].thaw();
    until("it is ready", || store.answers()).await;
    let mut left = meets(&store, frozen).await;
    let end = std::time::Instant::now() + PATIENCE;
    while left != Met::Nothing {
        assert!(std::time::Instant::now() < end, "{left:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = meets(&store, frozen).await;
    }
}

#[tokio::test]
async fn a_store_opens_before_its_cluster_and_finds_it_by_any_node() {
    let mut cluster = Cluster::start();
    for node in cluster.nodes() {
        node.kill();
    }
    let store = open_on(&cluster, TIMEOUT);
    let trouble = store.trouble().expect("a reason");
    assert!(trouble.contains("no node tells"), "{trouble}");
    let refused = begun(&store, 1, &terms()).await;
    assert!(matches!(refused, Err(StoreError::Unavailable)));
    for node in cluster.nodes() {
        node.restart();
    }
    until("it is ready", || store.answers()).await;
    let _held = claim(&store, 1).await;
}

#[tokio::test]
async fn scripts_are_told_to_each_node_again_that_forgot_them() {
    let mut cluster = Cluster::start();
    let store = open_on(&cluster, TIMEOUT);
    let numbers = one_each(&store);
    for node in cluster.nodes() {
        node.ask(&["SCRIPT", "FLUSH"]);
    }
    for n in numbers {
        complete(&store, claim(&store, n).await).await;
    }
}

#[tokio::test]
async fn a_node_that_evicts_is_refused_by_name() {
    let mut cluster = Cluster::start();
    cluster.nodes()[1].ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let metrics = Metrics::new(&[]).store("redis");
    let opened = RedisStore::open(&on(cluster.servers()), "n", CACHE, None, metrics);
    let refused = opened.expect_err("it evicts").to_string();
    let port = cluster.nodes()[1].port().to_string();
    assert!(
        refused.contains("noeviction") && refused.contains(&port),
        "{refused}"
    );
}
