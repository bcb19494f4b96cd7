//! How long connections are kept, with a clock that can be moved.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use http_body_util::BodyExt as _;
use tokio_util::task::TaskTracker;

use super::*;
use crate::telemetry::metrics::Metrics;

/// A server that answers every request with 200; the number of its connections.
fn serving() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                let mut head = [0; 4096];
                while stream.read(&mut head).is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, connections)
}

fn pool(host: &str, port: u16) -> Pool {
    let text = format!("[upstream]\nurl = \"http://{host}:{port}\"\nidle_timeout = \"1h\"\n");
    let loaded = config::parse("test", &text, []).loaded().unwrap();
    let upstream = loaded.config.upstreams[0].clone();
    let origin = Origin::new(upstream, Metrics::new(&[])).unwrap();
    let runtime = tokio::runtime::Handle::current();
    Pool::new(origin, Tasks::new(runtime, TaskTracker::new()))
}

async fn ask(pool: &Pool) {
    let request = Request::get("/").header("host", "a");
    let request = request.body(OutgoingBody::Whole(None)).unwrap();
    let response = pool.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap();
}

/// Moves the clock while nothing is under way.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_connection_to_a_name_is_used_for_some_minutes_only() {
    let (port, connections) = serving();
    let pool = pool("localhost", port);
    for _ in 0..3 {
        ask(&pool).await;
    }
    pass(Duration::from_mins(4)).await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    pass(Duration::from_mins(2)).await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_to_an_address_stays() {
    let (port, connections) = serving();
    let pool = pool("127.0.0.1", port);
    ask(&pool).await;
    pass(Duration::from_mins(50)).await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    pass(Duration::from_mins(61)).await;
    pool.drop_old();
    assert_eq!(pool.0.origin.idle_total.load(Ordering::Relaxed), 0);
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 2, "idle for too long");
}
