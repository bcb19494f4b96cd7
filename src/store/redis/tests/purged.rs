//! What is purged: elsewhere while this proxy settles it, too late, twice over.

use super::*;

#[tokio::test]
async fn an_answer_that_was_purged_before_its_own_proxy_hears_of_it_is_not_kept() {
    let server = Server::start(&[]);
    let (store, other) = (open(&server), open(&server));
    let held = claim(&store, 1).await;
    let key = store.inner.key(&held.id);
    let settlement = Settlement::Complete(answer(b"done"));
    let terms = terms();
    let mut settling = std::pin::pin!(store.settle(held, settlement, &terms));
    // It is sent, and what comes of it waits: nothing is answered before it has been looked at once.
    server.freeze();
    std::future::poll_fn(|cx| {
        assert!(settling.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    server.thaw();
    until("it is settled", || server.ask(&["HGET", &key, "s"]) == "2").await;
    let before = store.inner.cache.seen(&id(1));
    assert_eq!(other.purge(&id(1)).await, Ok(Purged::Gone));
    until("the purge is told", || {
        store.inner.cache.seen(&id(1)) != before
    })
    .await;
    let settled = settling.await;
    assert!(matches!(settled, Ok(Settled::Kept(_))), "{settled:?}");
    assert_eq!(hot(&store, 1), None);
}

#[tokio::test]
async fn a_purge_or_a_resolution_that_comes_late_changes_nothing() {
    let server = Server::start(&[]);
    let store = open(&server);
    complete(&store, claim(&store, 1).await).await;
    let inner = &store.inner;
    let key = inner.key(&id(1));
    let [token, state] = inner.seen(&id(1)).await.expect("it answers").expect("one");
    let run = async |script, token: &[u8], until: &[u8]| {
        let purge: [&[u8]; 6] = [token, &state, b"c", b"o", b"i", until];
        let resolve: [&[u8]; 11] = [
            token, b"1", b"5", b"c", b"o", b"i", b"", b"", b"", b"", until,
        ];
        let arguments = match script {
            "purge" => (&inner.link.scripts.purge, &purge[..]),
            _ => (&inner.link.scripts.resolve, &resolve[..]),
        };
        let told = inner.link.run(arguments.0, &key, arguments.1, 1).await;
        told.expect("it answers").into_iter().next()
    };
    let (late, in_time) = (b"1", b"99999999999999");
    for script in ["purge", "resolve"] {
        assert_eq!(run(script, &token, late).await, Some(Value::Int(4)));
    }
    // Neither does one that was bound to the record before, however soon it comes.
    assert_eq!(store.purge(&id(1)).await, Ok(Purged::Gone));
    assert_eq!(
        run("purge", &token, in_time).await,
        Some(Value::Int(0)),
        "nothing is there"
    );
    complete(&store, claim(&store, 1).await).await;
    assert_eq!(run("purge", &token, in_time).await, Some(Value::Int(3)));
    assert_eq!(run("purge", b"", in_time).await, Some(Value::Int(3)));
    assert_eq!(run("resolve", &token, in_time).await, Some(Value::Int(0)));
    assert_eq!(meets(&store, 1).await, done());
}

#[tokio::test]
async fn a_claim_that_nobody_holds_is_let_go_before_the_end() {
    let server = Server::start(&[]);
    let store = open(&server);
    let held = claim(&store, 1).await;
    let soon = Duration::from_millis(300);
    let abandoned = &store.inner.link.abandoned;
    abandoned.add(held.id, held.token, soon, Duration::from_mins(1));
    let ended = tokio::task::spawn_blocking(move || drop(store)).await;
    assert!(ended.is_ok());
    assert_eq!(server.ask(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn who_only_replays_follows_the_clock_of_the_server() {
    let timed = Timed::new(None);
    let Timed { store, servers } = &timed;
    complete(store, claim(store, 1).await).await;
    assert_eq!(hot(store, 1), Some(done()));
    let later = START + u64::try_from(terms().retention.as_millis()).expect("a time");
    servers.clocks("SET", &later.to_string());
    // Long before anything that is cached is not believed any more for want of an answer.
    until("it has expired", || hot(store, 1).is_none()).await;
    assert!(store.answers());
    let nothing = RecordId::from_bytes([0; 32]);
    let believed = store
        .inner
        .link
        .with_node("", &nothing, super::super::node::Node::believes);
    assert_eq!(believed, Some(true));
}
