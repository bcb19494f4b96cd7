//! What is purged elsewhere while this proxy settles it.

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
