//! Requests whose leave to be begun ends while they wait for something: none of them is sent.

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::Semaphore,
};

use super::*;
use crate::{
    net,
    telemetry::metrics::Side,
    upstream::{Moment, wire::Wire},
};

fn leave() -> Leave {
    Leave::new(Moment::now(), Duration::from_mins(1))
}

/// Takes a call one turn further; it is not ready then.
async fn turn(call: &mut Call) {
    let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *call).poll(cx))).await;
    assert!(polled.is_pending(), "{polled:?}");
}

/// It ends as one that was not sent for want of leave.
async fn is_not_begun(call: Call) {
    let ended = tokio::time::timeout(Duration::from_secs(30), call).await;
    let failure = ended.expect("it ends").expect_err("it was not sent");
    assert!(
        matches!(&failure, SendFailure::NotSent(why) if why.is_without_leave()),
        "{failure:?}"
    );
}

/// A server that answers every request, and tells of it.
fn telling() -> (u16, mpsc::Receiver<()>) {
    let (port, _, asked) = scripted(|mut stream, asked| {
        while read_head(&mut stream).is_some() {
            asked.send(()).unwrap();
            stream.write_all(OK).unwrap();
        }
    });
    (port, asked)
}

#[tokio::test]
async fn a_request_whose_leave_is_over_when_its_turn_comes_is_not_sent() {
    let (port, asked) = telling();
    let pool = pool("127.0.0.1", port);
    ask(&pool).await;
    answered(pool.send_within(get(), Instant::now(), leave())).await;
    // A connection stands, and the leave ends between the request's beginning and its turn.
    let leave = Leave::new(Moment::now(), Duration::from_millis(300));
    let mut call = pool.send_within(get(), Instant::now(), leave.clone());
    turn(&mut call).await;
    while !leave.is_over() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    is_not_begun(call).await;
    assert_eq!(asked.try_iter().count(), 2);
}

#[tokio::test]
async fn nor_is_one_that_waits_for_its_turn_on_a_fresh_connection() {
    let (port, asked) = telling();
    let pool = pool("127.0.0.1", port);
    let Ok(Line::Http1(fresh)) = pool.line().await else {
        panic!("it speaks HTTP/1");
    };
    let leave = leave();
    let (own, held) = (pool.clone(), leave.clone());
    let exchange = async move { own.exchange_on_a_fresh_one(fresh, get(), Some(held)).await };
    let mut call = Call(Way::Any(Box::pin(exchange)));
    turn(&mut call).await;
    leave.end();
    is_not_begun(call).await;
    ask(&pool).await;
    assert_eq!(asked.try_iter().count(), 1);
}

#[tokio::test]
async fn nor_is_one_that_a_broken_connection_took_nothing_of() {
    let (port, connections, told, gate) = resetting(1);
    let pool = pool("127.0.0.1", port);
    ask(&pool).await;
    let leave = leave();
    let mut call = pool.send_within(get(), Instant::now(), leave.clone());
    turn(&mut call).await;
    gate.wait();
    told.recv_timeout(Duration::from_secs(30)).unwrap();
    // It is found broken now, and another one is made.
    turn(&mut call).await;
    leave.end();
    is_not_begun(call).await;
    ask(&pool).await;
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

/// A connection that stands and takes nothing, what its other end reads, and how much that is.
async fn full() -> (Box<Connection>, UnixStream, usize) {
    let (ours, upstream) = UnixStream::pair().unwrap();
    ours.writable().await.unwrap();
    let mut filled = 0;
    for piece in [&[b'x'; 4096][..], b"x"] {
        while let Ok(count) = ours.try_write(piece) {
            filled += count;
        }
    }
    let open = Metrics::new(&[]).connection(Side::Upstream);
    let wire = Wire::plain(net::Stream::Unix(ours), open);
    (Box::new(Connection::new(wire, None)), upstream, filled)
}

#[tokio::test]
async fn nor_is_one_that_waits_for_room_in_its_socket() {
    let pool = pool("127.0.0.1", 9);
    for ends in [false, true] {
        let (connection, mut upstream, filled) = full().await;
        let (leave, (mut head, body)) = (leave(), get().into_parts());
        let request = (&mut head, body);
        let own = Some(leave.clone());
        let exchange = pool.exchange(connection, request, None, Used::Before, own);
        let mut call = Call(Way::Standing(exchange));
        for _ in 0..4 {
            turn(&mut call).await;
        }
        if ends {
            leave.end();
        }
        upstream.read_exact(&mut vec![0; filled]).await.unwrap();
        if ends {
            is_not_begun(call).await;
            let mut rest = Vec::new();
            upstream.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty(), "{rest:?}");
        } else {
            let (asked, ()) = tokio::join!(
                async {
                    let asked = upstream.read_u8().await.unwrap();
                    upstream.write_all(OK).await.unwrap();
                    asked
                },
                answered(call)
            );
            assert_eq!(asked, b'G', "there is room, and leave");
        }
    }
}

/// An upstream of HTTP/2 that takes one request at a time on each connection.
struct Narrow {
    pool: Pool,
    /// The paths of those that came.
    seen: Arc<Mutex<Vec<String>>>,
    /// How many may be answered.
    answers: Arc<Semaphore>,
}

impl Narrow {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.unwrap();
        let port = listener.local_addr().unwrap().port();
        let settings = format!("url = \"http://127.0.0.1:{port}\"\nprotocol = \"http2\"\n");
        let narrow = Self {
            pool: pool_of(&settings, TaskTracker::new()),
            seen: Arc::default(),
            answers: Arc::new(Semaphore::new(0)),
        };
        let (seen, answers) = (Arc::clone(&narrow.seen), Arc::clone(&narrow.answers));
        let tasks = narrow.pool.tasks().clone();
        narrow.pool.tasks().detach(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answers) = (Arc::clone(&seen), Arc::clone(&answers));
                tasks.detach(serve(stream, seen, answers, tasks.clone()));
            }
        });
        narrow
    }

    fn get(path: &str) -> Request<OutgoingBody> {
        let request = Request::get(path).header("host", "a");
        request.body(OutgoingBody::Whole(None)).unwrap()
    }
}

async fn serve(
    stream: tokio::net::TcpStream,
    seen: Arc<Mutex<Vec<String>>>,
    answers: Arc<Semaphore>,
    tasks: Tasks,
) {
    let mut builder = h2::server::Builder::new();
    let handshake = builder
        .max_concurrent_streams(1)
        .handshake::<_, Bytes>(stream);
    let mut connection = handshake.await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        seen.lock().push(request.uri().path().to_owned());
        let answers = Arc::clone(&answers);
        tasks.detach(async move {
            answers.acquire().await.unwrap().forget();
            respond.send_response(Response::new(()), true).unwrap();
        });
    }
}

#[tokio::test]
async fn nor_is_one_that_waits_for_a_stream() {
    let narrow = Narrow::start().await;
    let pool = &narrow.pool;
    let asking = |path| {
        let call = pool.send(Narrow::get(path));
        pool.tasks().spawn(answered(call))
    };
    let held: Vec<_> = (0..MAX_CONNECTIONS).map(|_| asking("/held")).collect();
    while narrow.seen.lock().len() < MAX_CONNECTIONS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let leave = leave();
    let mut call = pool.send_within(Narrow::get("/keyed"), Instant::now(), leave.clone());
    turn(&mut call).await;
    let mut other = pool.send(Narrow::get("/other"));
    turn(&mut other).await;
    leave.end();
    narrow.answers.add_permits(1);
    is_not_begun(call).await;
    // What it did not need is the next one's.
    narrow.answers.add_permits(MAX_CONNECTIONS);
    answered(other).await;
    for one in held {
        one.await.unwrap();
    }
    let mut seen = narrow.seen.lock().clone();
    assert_eq!(seen.pop().as_deref(), Some("/other"));
    assert_eq!(seen, ["/held"; MAX_CONNECTIONS]);
}
