//! Claims that replicas must have before they count.

use super::*;

fn opened(server: &Server, wait_replicas: u32) -> RedisStore {
    let settings = Settings {
        wait_replicas,
        timeout: Duration::from_millis(500),
        ..settings(server)
    };
    let metrics = Metrics::new(&[]).store("redis");
    RedisStore::open(&settings, "n", CACHE, None, metrics).expect("it opens")
}

#[tokio::test]
async fn a_claim_counts_once_its_replica_has_it() {
    let server = Server::start(&[]);
    let replica = server.replica();
    let store = opened(&server, 1);
    until("it has its replica", || store.answers()).await;
    for n in 1..=20 {
        let held = claim(&store, n).await;
        let key = store.inner.key(&held.id);
        assert_eq!(replica.ask(&["EXISTS", &key]), "1", "{n}");
        complete(&store, held).await;
        assert_eq!(meets(&store, n).await, done());
    }
}

#[tokio::test]
async fn a_claim_that_no_replica_has_in_time_is_refused_and_let_go() {
    let server = Server::start(&[]);
    let replica = server.replica();
    let store = opened(&server, 1);
    until("it has its replica", || store.answers()).await;
    let running = claim(&store, 1).await;
    replica.freeze();
    let refused = begun(&store, 2, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    until("nothing of it is left", || server.ask(&["DBSIZE"]) == "1").await;
    // What runs is none of the replica's affair.
    assert_eq!(store.renew(&running, &terms()).await, Ok(Held::Yes));
    complete(&store, running).await;
    replica.thaw();
    let end = std::time::Instant::now() + PATIENCE;
    while begun(&store, 2, &terms()).await.is_err() {
        assert!(std::time::Instant::now() < end, "it claims again");
    }
}

#[tokio::test]
async fn with_fewer_replicas_than_wanted_it_is_not_ready_and_what_runs_goes_on() {
    let server = Server::start(&[]);
    let mut replica = server.replica();
    let store = opened(&server, 1);
    until("it has its replica", || store.answers()).await;
    let running = claim(&store, 1).await;
    replica.kill();
    until("it is not ready", || !store.answers()).await;
    let before = server.ask(&["DBSIZE"]);
    let refused = begun(&store, 2, &terms()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable)),
        "{refused:?}"
    );
    assert_eq!(server.ask(&["DBSIZE"]), before, "nothing was tried");
    assert_eq!(store.renew(&running, &terms()).await, Ok(Held::Yes));
    complete(&store, running).await;
    assert_eq!(hot(&store, 1), Some(done()));
    replica.restart();
    until("it is ready", || store.answers()).await;
    let _claimed = claim(&store, 2).await;
    // Two are more than there are.
    assert!(!opened(&server, 2).answers());
}

#[tokio::test]
async fn one_wait_serves_many_claims() {
    const CLAIMS: u64 = 200;
    let server = Server::start(&[]);
    let replica = server.replica();
    let store = Arc::new(opened(&server, 1));
    until("it has its replica", || store.answers()).await;
    let tasks: Vec<_> = (1..=CLAIMS)
        .map(|n| {
            let store = Arc::clone(&store);
            async move { claim(&store, n).await }
        })
        .collect();
    let claims = all(tasks).await;
    for held in &claims {
        let key = store.inner.key(&held.id);
        assert_eq!(replica.ask(&["EXISTS", &key]), "1");
    }
    let stats = server.ask(&["INFO", "commandstats"]);
    let calls = stats
        .split("cmdstat_wait:calls=")
        .nth(1)
        .expect("it waited");
    let calls = calls.split(',').next().and_then(|calls| calls.parse().ok());
    let calls: u64 = calls.expect("a number");
    assert!(calls < CLAIMS / 2, "{calls} waits for {CLAIMS} claims");
}

#[tokio::test]
async fn connections_that_were_closed_meanwhile_are_made_again() {
    // More than there are lanes, which take turns.
    const CLAIMS: u64 = 12;
    let server = Server::start(&[]);
    let replica = server.replica();
    let store = opened(&server, 1);
    until("it has its replica", || store.answers()).await;
    for n in 1..=CLAIMS {
        let _held = claim(&store, n).await;
    }
    // The one that listens is of another type.
    let killed = server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_ne!(killed, "0");
    for n in CLAIMS + 1..=CLAIMS * 2 {
        let held = claim(&store, n).await;
        let key = store.inner.key(&held.id);
        assert_eq!(replica.ask(&["EXISTS", &key]), "1", "{n}");
    }
}

/// Runs all of them side by side.
async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures
        .into_iter()
        .map(|one| (Box::pin(one), None))
        .collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (one, output) in &mut futures {
            if output.is_none() {
                match one.as_mut().poll(cx) {
                    std::task::Poll::Ready(done) => *output = Some(done),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    futures
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}
