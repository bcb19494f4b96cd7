//! How long connections are kept, with a clock that can be moved, and what makes one unfit for another request.

mod buffers;
mod leave;

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    pin::Pin,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
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
    pool_with(host, port, TaskTracker::new())
}

fn pool_with(host: &str, port: u16, tracker: TaskTracker) -> Pool {
    pool_within("1s", host, port, tracker)
}

/// One whose upstream has so long to answer, and to take each piece of what is left of a request that it has answered.
fn pool_within(response_timeout: &str, host: &str, port: u16, tracker: TaskTracker) -> Pool {
    let settings = format!(
        "url = \"http://{host}:{port}\"\nidle_timeout = \"1h\"\nresponse_timeout = \"{response_timeout}\"\nmax_idle_connections = 300\n"
    );
    pool_of(&settings, tracker)
}

/// One whose upstream is configured so.
fn pool_of(settings: &str, tracker: TaskTracker) -> Pool {
    let text = format!("[upstream]\n{settings}");
    let loaded = config::parse("test", &text, []).loaded().unwrap();
    let upstream = loaded.config.upstreams[0].clone();
    let origin = Origin::new(upstream, Metrics::new(&[])).unwrap();
    let runtime = tokio::runtime::Handle::current();
    Pool::new(origin, Tasks::new(runtime, tracker))
}

fn get() -> Request<OutgoingBody> {
    let request = Request::get("/").header("host", "a");
    request.body(OutgoingBody::Whole(None)).unwrap()
}

async fn ask(pool: &Pool) {
    answered(pool.send(get())).await;
}

async fn answered(call: Call) {
    let response = call.await.unwrap();
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

#[tokio::test]
async fn a_connection_rests_no_longer_than_its_upstream_says() {
    let (port, connections, _told) = scripted(|mut stream, _| {
        while read_head(&mut stream).is_some() {
            let head = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=300\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(head).unwrap();
        }
    });
    let pool = pool("127.0.0.1", port);
    ask(&pool).await;
    pass(Duration::from_secs(200)).await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    pass(Duration::from_secs(299)).await;
    ask(&pool).await;
    assert_eq!(
        connections.load(Ordering::SeqCst),
        2,
        "it may close any moment"
    );
    pass(Duration::from_secs(299)).await;
    // The event loop hears of the last one's end at one of its next turns.
    let idle = || pool.0.origin.idle_total.load(Ordering::Relaxed);
    for _ in 0..5_000 {
        pool.drop_old();
        if idle() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(idle(), 0);
}

/// A server that serves each connection by `serve`; the number of its connections.
fn scripted(
    serve: impl Fn(TcpStream, &mpsc::Sender<()>) + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>, mpsc::Receiver<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let (done, told) = mpsc::channel();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            let (done, serve) = (done.clone(), Arc::clone(&serve));
            thread::spawn(move || serve(stream, &done));
        }
    });
    (port, connections, told)
}

/// Waits for the server's word while the event loop turns.
async fn word(told: mpsc::Receiver<()>) -> mpsc::Receiver<()> {
    let waiting = tokio::task::spawn_blocking(move || {
        told.recv_timeout(Duration::from_secs(30)).unwrap();
        told
    });
    let told = waiting.await.unwrap();
    // What was done to sockets before the word is heard of in the event loop's next turn.
    tokio::task::yield_now().await;
    told
}

/// Reads until a head has ended; what came behind it.
fn read_head(stream: &mut TcpStream) -> Option<usize> {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&piece[..count]);
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            return Some(read.len() - end - 4);
        }
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// More than the sockets of both sides hold.
const LONG: usize = 32 << 20;

#[tokio::test]
async fn a_request_goes_out_whole_behind_an_answer_that_came_early() {
    let (open, gate) = mpsc::channel::<()>();
    let (gate, long) = (Mutex::new(gate), AtomicBool::new(true));
    let (port, connections, told) = scripted(move |mut stream, done| {
        let behind = read_head(&mut stream).unwrap();
        stream.write_all(OK).unwrap();
        if !long.swap(false, Ordering::SeqCst) {
            return;
        }
        // Nothing is read before the answer was: the request cannot be out by then.
        gate.lock().recv_timeout(Duration::from_mins(1)).unwrap();
        let (mut left, mut piece) = (LONG - behind, vec![0; 1 << 16]);
        while left > 0 {
            let more = stream.read(&mut piece).unwrap();
            assert_ne!(more, 0, "it is closed with {left} bytes unsent");
            left -= more;
        }
        assert_eq!(
            stream.read(&mut piece).unwrap(),
            0,
            "it is closed behind it"
        );
        done.send(()).unwrap();
    });
    let pool = pool_within("1m", "127.0.0.1", port, TaskTracker::new());
    let request = Request::post("/").header("host", "a");
    let body = OutgoingBody::whole(vec![b'x'; LONG].into());
    let response = pool.send(request.body(body).unwrap()).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "ok");
    open.send(()).unwrap();
    word(told).await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 2, "it served one alone");
}

/// Asks with a long body a server that answers early with `answer`, and does not read on before all is over; how much came in all.
async fn read_late(answer: &'static [u8]) -> usize {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let read = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&read);
    let (port, _, told) = scripted(move |mut stream, done| {
        let behind = read_head(&mut stream).unwrap();
        stream.write_all(answer).unwrap();
        gate.lock().recv_timeout(Duration::from_mins(1)).unwrap();
        let (mut all, mut piece) = (behind, vec![0; 1 << 16]);
        while let Ok(more @ 1..) = stream.read(&mut piece) {
            all += more;
        }
        count.store(all, Ordering::SeqCst);
        done.send(()).unwrap();
    });
    let tracker = TaskTracker::new();
    let pool = pool_with("127.0.0.1", port, tracker.clone());
    let body = OutgoingBody::whole(vec![b'x'; LONG].into());
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let response = pool.send(request).await.unwrap();
    assert!(!tracker.is_empty(), "a drain waits for it");
    response.into_body().collect().await.unwrap();
    tracker.close();
    let over = tokio::time::timeout(Duration::from_secs(45), tracker.wait());
    over.await.expect("the rest of the request is bounded");
    open.send(()).unwrap();
    word(told).await;
    read.load(Ordering::SeqCst)
}

#[tokio::test]
async fn the_rest_of_a_request_is_not_offered_for_ever() {
    assert!(read_late(OK).await < LONG);
}

#[tokio::test]
async fn nothing_more_goes_to_an_upstream_that_has_said_it_closes() {
    let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert!(read_late(closing).await < LONG);
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_not_used() {
    let (port, connections, mut told) = scripted(|mut stream, done| {
        read_head(&mut stream).unwrap();
        stream.write_all(OK).unwrap();
        drop(stream);
        done.send(()).unwrap();
    });
    let pool = pool("127.0.0.1", port);
    for count in 1..=3 {
        ask(&pool).await;
        told = word(told).await;
        assert_eq!(connections.load(Ordering::SeqCst), count);
    }
    pool.drop_old();
    assert_eq!(pool.0.origin.idle_total.load(Ordering::Relaxed), 0);
}

/// A gate that everybody waits at until it is opened.
type Gate = Arc<std::sync::Barrier>;

/// A pool of so many idle connections to a server that has said `last` on each of them since, and closed it.
async fn all_spoken_on(many: usize, last: &'static [u8]) -> (Pool, Arc<AtomicUsize>) {
    let gate = Gate::new(std::sync::Barrier::new(many + 1));
    let (all_asked, all_kept) = (Arc::clone(&gate), Arc::clone(&gate));
    let count = AtomicUsize::new(0);
    let (port, connections, mut told) = scripted(move |mut stream, done| {
        let is_early = count.fetch_add(1, Ordering::SeqCst) < many;
        read_head(&mut stream).unwrap();
        if is_early {
            all_asked.wait();
        }
        stream.write_all(OK).unwrap();
        if is_early {
            all_asked.wait();
            stream.write_all(last).unwrap();
            drop(stream);
            done.send(()).unwrap();
        }
    });
    let pool = pool("127.0.0.1", port);
    let asking: Vec<_> = (0..many)
        .map(|_| {
            let asking = pool.clone();
            let tasks = pool.tasks();
            tasks.spawn(async move { ask(&asking).await })
        })
        .collect();
    let gate_opened = tokio::task::spawn_blocking(move || gate.wait());
    for one in asking {
        one.await.unwrap();
    }
    gate_opened.await.unwrap();
    assert_eq!(pool.0.origin.idle_total.load(Ordering::Relaxed), many);
    tokio::task::spawn_blocking(move || all_kept.wait())
        .await
        .unwrap();
    for _ in 0..many {
        told = word(told).await;
    }
    // The word may have come ahead of the event loop's next look at its sockets.
    tokio::task::yield_now().await;
    (pool, connections)
}

#[tokio::test]
async fn of_many_connections_that_were_closed_none_is_used() {
    let (pool, connections) = all_spoken_on(200, b"").await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 201);
    let (pool, _) = all_spoken_on(200, b"").await;
    pool.drop_old();
    assert_eq!(pool.0.origin.idle_total.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_was_said_unasked_is_heard_by_a_task_that_has_spent_its_budget() {
    let stray = b"HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n";
    let (pool, connections) = all_spoken_on(1, stray).await;
    let call = std::future::poll_fn(|cx| {
        while let Poll::Ready(one) = tokio::task::coop::poll_proceed(cx) {
            one.made_progress();
        }
        Poll::Ready(pool.send(get()))
    });
    answered(call.await).await;
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

/// A server that answers once and resets the connection when it is told to; the first `breaking` connections only.
fn resetting(breaking: usize) -> (u16, Arc<AtomicUsize>, mpsc::Receiver<()>, Gate) {
    let gate = Gate::new(std::sync::Barrier::new(2));
    let told = Arc::clone(&gate);
    let count = AtomicUsize::new(0);
    let (port, connections, done) = scripted(move |mut stream, done| {
        let breaks = count.fetch_add(1, Ordering::SeqCst) < breaking;
        while read_head(&mut stream).is_some() {
            stream.write_all(OK).unwrap();
            if breaks {
                told.wait();
                socket2::SockRef::from(&stream)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(stream);
                done.send(()).unwrap();
                return;
            }
        }
    });
    (port, connections, done, gate)
}

#[tokio::test]
async fn a_request_that_a_broken_connection_took_nothing_of_goes_out_on_a_fresh_one() {
    let (port, connections, told, gate) = resetting(1);
    let pool = pool("127.0.0.1", port);
    ask(&pool).await;
    let body = OutgoingBody::whole(vec![b'x'; 100].into());
    let call = pool.send(Request::post("/").body(body).unwrap());
    gate.wait();
    // The event loop does not look: the connection is found broken when it is written to.
    told.recv_timeout(Duration::from_secs(30)).unwrap();
    answered(call).await;
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_first_write_that_fails_whole_proves_that_nothing_was_sent() {
    let (port, _, told, gate) = resetting(1);
    let pool = pool("127.0.0.1", port);
    ask(&pool).await;
    let (mut head, body) = get().into_parts();
    let mut exchange = pool.exchange(
        pool.take_idle(Instant::now()).unwrap(),
        (&mut head, body),
        None,
        Used::Before,
        None,
    );
    gate.wait();
    told.recv_timeout(Duration::from_secs(30)).unwrap();
    let failed = (&mut exchange).await.unwrap_err();
    assert!(matches!(failed, SendFailure::NotSent(_)), "{failed}");
}

#[tokio::test]
async fn what_is_said_unasked_is_nobodys_answer() {
    let (port, connections, _told) = scripted(|mut stream, _| {
        while read_head(&mut stream).is_some() {
            stream.write_all(&[OK, OK].concat()).unwrap();
        }
    });
    let pool = pool("127.0.0.1", port);
    for count in 1..=3 {
        ask(&pool).await;
        assert_eq!(connections.load(Ordering::SeqCst), count);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_none() {
    let (port, _, _told) = scripted(|mut stream, _| {
        read_head(&mut stream).unwrap();
        stream.write_all(&OK[..OK.len() - 1]).unwrap();
    });
    let pool = pool("127.0.0.1", port);
    let response = pool.send(get()).await.unwrap();
    let mut body = response.into_body();
    while body.frame().await.unwrap().is_ok() {}
    assert!(!http_body::Body::is_end_stream(&body), "it has no end");
    assert!(body.frame().await.is_none(), "it is told once");
    assert_eq!(pool.0.origin.idle_total.load(Ordering::Relaxed), 0);
}
