//! The guard on one end of a pipe, on a clock that stands still while anything goes on.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::{Instant, advance, timeout},
};

use super::{Guard, Times};
use crate::{
    core::{framing::Limits, problem::Problem},
    server::conversation::{ConnectionState, Requests},
    timers::Timers,
};

const SECOND: Duration = Duration::from_secs(1);

const TIMES: Times = Times {
    head: Duration::from_secs(10),
    keepalive: Duration::from_secs(75),
    write: Duration::from_mins(1),
};

struct Setup {
    client: DuplexStream,
    guard: Guard<DuplexStream>,
    state: Arc<ConnectionState>,
    requests: Requests,
    timers: Arc<Timers>,
}

/// A client and the guard, with so many bytes between them.
fn setup(between: usize) -> Setup {
    let (client, stream) = duplex(between);
    let requests = Requests::new();
    let state = Arc::new(ConnectionState::new(requests.clone()));
    let timers = Arc::default();
    let limits = Limits {
        head_bytes: 1024,
        target_bytes: 256,
    };
    let guard = Guard::new(stream, limits, TIMES, Arc::clone(&state), &timers);
    Setup {
        client,
        guard,
        state,
        requests,
        timers,
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

impl Setup {
    async fn say(&mut self, text: &str) {
        self.client
            .write_all(text.as_bytes())
            .await
            .expect("the pipe takes it");
    }

    /// What the parser gets next; empty: the end.
    async fn next(&mut self) -> String {
        let mut bytes = [0; 512];
        let count = self.guard.read(&mut bytes).await.expect("no error");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    /// Nothing is given to the parser for this long.
    async fn nothing_for(&mut self, time: Duration) {
        let given = timeout(time, self.next()).await;
        assert!(given.is_err(), "{given:?} was given");
    }
}

#[tokio::test(start_paused = true)]
async fn heads_come_whole_and_bodies_as_they_come() {
    let mut setup = setup(4096);
    for piece in ["POST / HTTP/1.1\r\nHost: a\r\n", "Content-Length: 4\r\n\r"] {
        setup.say(piece).await;
        setup.nothing_for(SECOND).await;
    }
    setup.say("\nab").await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n";
    assert_eq!(setup.next().await, format!("{head}ab"));
    // The end of the body, a whole request, and a part of one.
    setup.say(&format!("cd{GET}GET /")).await;
    assert_eq!(setup.next().await, format!("cd{GET}"));
    setup.nothing_for(SECOND).await;
    setup.say(&GET[5..]).await;
    assert_eq!(setup.next().await, GET);
    // Half a head at the end is none.
    setup.say("GET /").await;
    drop(setup.client);
    let mut rest = Vec::new();
    setup.guard.read_to_end(&mut rest).await.expect("an end");
    assert!(rest.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_large_head_comes_in_pieces_that_fit() {
    let mut setup = setup(4096);
    let head = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(900)
    );
    setup.say(&head[..600]).await;
    setup.nothing_for(SECOND).await;
    setup.say(&format!("{}{GET}", &head[600..])).await;
    let mut all = String::new();
    while all.len() < head.len() + GET.len() {
        all += &setup.next().await;
    }
    assert_eq!(all, format!("{head}{GET}"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_head_is_replaced_behind_the_requests_before_it() {
    for split in [true, false] {
        let mut setup = setup(4096);
        let bad = "GET / HTTP/1.1\nHost: a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        if split {
            setup.say(&format!("{GET}{}", &bad[..5])).await;
            assert_eq!(setup.next().await, GET);
            setup.say(&bad[5..]).await;
        } else {
            setup.say(&format!("{GET}{bad}")).await;
            assert_eq!(setup.next().await, GET);
        }
        let stand_in = setup.next().await;
        assert!(stand_in.starts_with("GET / HTTP/1.1\r\n"), "{stand_in}");
        assert!(stand_in.contains("Connection: close\r\n"), "{stand_in}");
        assert_eq!(setup.state.refusal_for(1), None);
        let refusal = setup.state.refusal_for(2);
        assert!(
            matches!(refusal, Some(Problem::BadRequest(_))),
            "{refusal:?}"
        );
        setup.say(GET).await;
        setup.nothing_for(1000 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_body_fails_where_it_breaks_and_for_good() {
    let mut setup = setup(4096);
    let good = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello";
    setup.say(&format!("{good}\n0\r\n\r\n{GET}")).await;
    assert_eq!(setup.next().await, good);
    let mut bytes = [0; 64];
    for _ in 0..3 {
        let error = setup
            .guard
            .read(&mut bytes)
            .await
            .expect_err("it is broken");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_has_its_time_from_its_first_byte_on() {
    let mut setup = setup(4096);
    setup.say(GET).await;
    assert_eq!(setup.next().await, GET);
    advance(50 * SECOND).await;
    setup.say("GET /").await;
    let start = Instant::now();
    for _ in 0..4 {
        setup.nothing_for(2 * SECOND).await;
        setup.say("x").await;
    }
    let stand_in = setup.next().await;
    assert!(stand_in.ends_with("\r\n\r\n"), "{stand_in}");
    assert_eq!(setup.state.refusal_for(2), Some(Problem::RequestTimeout));
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_in_time_starts_no_clock_for_the_next() {
    let mut setup = setup(4096);
    for _ in 0..5 {
        setup.say(&GET[..5]).await;
        setup.nothing_for(9 * SECOND).await;
        setup.say(&GET[5..]).await;
        assert_eq!(setup.next().await, GET);
        let running = setup.requests.start();
        setup.nothing_for(9 * SECOND).await;
        drop(running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_ends_after_the_time_of_a_head() {
    for keepalive in [75 * SECOND, 2 * SECOND] {
        let mut setup = setup(4096);
        setup.guard.times.keepalive = keepalive;
        let start = Instant::now();
        assert_eq!(setup.next().await, "");
        assert_eq!(start.elapsed().as_secs(), 10);
        assert!(setup.guard.rested().is_none(), "it is over");
    }
}

#[tokio::test(start_paused = true)]
async fn idling_begins_with_the_end_of_the_last_answer() {
    let mut setup = setup(4096);
    setup.guard.times.keepalive = 4 * SECOND;
    let start = Instant::now();
    for _ in 0..3 {
        setup.say(GET).await;
        assert_eq!(setup.next().await, GET);
        let running = setup.requests.start();
        setup.nothing_for(100 * SECOND).await;
        drop(running);
        setup.nothing_for(3 * SECOND).await;
    }
    assert_eq!(setup.next().await, "");
    assert_eq!(start.elapsed().as_secs(), 3 * 103 + 1);
    assert!(setup.guard.phase == super::Phase::Over);
    assert_eq!(setup.next().await, "", "it stays over");
}

#[tokio::test(start_paused = true)]
async fn one_timer_does_for_all_heads() {
    let mut setup = setup(4096);
    setup.guard.times.keepalive = 4 * SECOND;
    let start = Instant::now();
    for _ in 0..50 {
        setup.say(GET).await;
        assert_eq!(setup.next().await, GET);
        drop(setup.requests.start());
        setup.nothing_for(SECOND).await;
    }
    assert_eq!(setup.next().await, "");
    assert_eq!(start.elapsed().as_secs(), 49 + 4);
    assert!(
        !format!("{:?}", setup.timers).contains("Sleep"),
        "none was given back meanwhile"
    );
}

#[tokio::test(start_paused = true)]
async fn behind_an_upgrade_nothing_is_read_before_the_decision() {
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    for tunnel in [true, false] {
        let mut setup = setup(4096);
        setup.say(&format!("{ask}{GET}GET")).await;
        assert_eq!(setup.next().await, ask);
        assert!(setup.state.asks_upgrade(1));
        let running = setup.requests.start();
        setup.nothing_for(1000 * SECOND).await;
        drop(running);
        if tunnel {
            setup.state.tunnel();
            assert_eq!(setup.next().await, format!("{GET}GET"));
            setup.say("\0\n").await;
            assert_eq!(setup.next().await, "\0\n");
            // There is no limit of time.
            setup.nothing_for(1000 * SECOND).await;
        } else {
            setup.state.no_tunnel();
            assert_eq!(setup.next().await, GET);
            setup.say(&GET[3..]).await;
            assert_eq!(setup.next().await, GET);
        }
        assert!(!setup.state.asks_upgrade(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_wakes_the_reader() {
    let mut setup = setup(4096);
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    setup.say(&format!("{ask}{GET}")).await;
    assert_eq!(setup.next().await, ask);
    let state = Arc::clone(&setup.state);
    let reading = async { timeout(SECOND, setup.next()).await };
    let deciding = async {
        tokio::task::yield_now().await;
        state.no_tunnel();
    };
    let (read, ()) = tokio::join!(reading, deciding);
    assert_eq!(read.expect("it was woken"), GET);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_takes_ends_and_a_slow_one_does_not() {
    let mut setup = setup(8);
    let start = Instant::now();
    let mut took = Vec::new();
    {
        let write = async { setup.guard.write_all(&[b'x'; 40]).await };
        let read = async {
            for _ in 0..4 {
                tokio::time::sleep(59 * SECOND).await;
                let mut piece = [0; 8];
                setup.client.read_exact(&mut piece).await.expect("bytes");
                took.extend_from_slice(&piece);
            }
        };
        let (done, ()) = tokio::join!(write, read);
        done.expect("it was read, slowly");
    }
    assert_eq!(took.len(), 32);
    let late = setup
        .guard
        .write_all(b"more")
        .await
        .expect_err("nobody reads");
    assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(start.elapsed().as_secs(), 4 * 59 + 60);
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_who_still_sends_and_for_nobody_else() {
    let mut quiet = setup(4096);
    let start = Instant::now();
    quiet.say(GET).await;
    assert_eq!(quiet.next().await, GET);
    quiet.guard.shutdown().await.expect("an end");
    assert_eq!(start.elapsed(), Duration::ZERO);

    let mut sends = setup(4096);
    sends.say("nonsense\r\n\r\n").await;
    assert!(sends.next().await.starts_with("GET"));
    let shutdown = async { sends.guard.shutdown().await };
    let client = async {
        for _ in 0..5 {
            sends
                .client
                .write_all(&[b'x'; 4000])
                .await
                .expect("it is read");
        }
    };
    let (ended, ()) = tokio::join!(shutdown, client);
    ended.expect("an end");
    assert_eq!(start.elapsed().as_secs(), 1, "and not for longer than that");
}

#[tokio::test(start_paused = true)]
async fn a_short_time_to_idle_is_kept_beside_a_long_one_for_heads() {
    let mut setup = setup(4096);
    setup.guard.times.keepalive = 2 * SECOND;
    let start = Instant::now();
    for _ in 0..3 {
        setup.nothing_for(SECOND).await;
        setup.say(&GET[..5]).await;
        setup.nothing_for(5 * SECOND).await;
        setup.say(&GET[5..]).await;
        assert_eq!(setup.next().await, GET);
        drop(setup.requests.start());
    }
    assert_eq!(setup.next().await, "");
    assert_eq!(start.elapsed().as_secs(), 18 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_rests_and_its_stream_stays_open() {
    let mut setup = setup(4096);
    let start = Instant::now();
    setup.nothing_for(8 * SECOND).await;
    for _ in 0..2 {
        setup.say(GET).await;
        assert_eq!(setup.next().await, GET);
        let running = setup.requests.start();
        setup.nothing_for(60 * SECOND).await;
        drop(running);
        setup.nothing_for(4 * SECOND).await;
    }
    assert_eq!(setup.next().await, "");
    assert_eq!(start.elapsed().as_secs(), 8 + 2 * 64 + 1);
    setup.guard.shutdown().await.expect("it is left open");
    let mut client = setup.client;
    let mut stream = setup.guard.rested().expect("it rests");
    client.write_all(b"?").await.expect("it is open");
    assert_eq!(stream.read_u8().await.expect("it is open"), b'?');
    stream.write_all(b"!").await.expect("it is open");
    assert_eq!(client.read_u8().await.expect("it is open"), b'!');
}

#[tokio::test(start_paused = true)]
async fn neither_half_a_head_nor_half_a_body_rests() {
    let mut head = setup(4096);
    head.say(GET).await;
    assert_eq!(head.next().await, GET);
    head.say(&GET[..5]).await;
    head.nothing_for(9 * SECOND).await;
    assert!(head.guard.rested().is_none());
    let mut body = setup(4096);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab";
    body.say(post).await;
    assert_eq!(body.next().await, post);
    body.nothing_for(200 * SECOND).await;
    assert!(body.guard.rested().is_none());
}
