//! One connection over a pair of sockets, between the steps that a caller takes.

use std::future::poll_fn;

use http::Request;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::*;
use crate::{
    net::Stream,
    telemetry::metrics::{Metrics, Side},
};

fn connection() -> (Connection, UnixStream) {
    let (ours, upstream) = UnixStream::pair().unwrap();
    let open = Metrics::new(&[]).connection(Side::Upstream);
    (
        Connection::new(Wire::plain(Stream::Unix(ours), open), None),
        upstream,
    )
}

fn get() -> Request<OutgoingBody> {
    let request = Request::get("/").header("host", "a");
    request.body(OutgoingBody::Whole(None)).unwrap()
}

fn begin(connection: &mut Connection, request: Request<OutgoingBody>) {
    let (mut head, body) = request.into_parts();
    connection.begin(&mut head, body, None);
}

/// The head of what the upstream answers once it has been asked, and what it was asked.
async fn exchange(
    connection: &mut Connection,
    upstream: &mut UnixStream,
    answer: &[u8],
) -> (Head, Vec<u8>) {
    let answering = async {
        let mut asked = vec![0; 64];
        let count = upstream.read(&mut asked).await.unwrap();
        asked.truncate(count);
        upstream.write_all(answer).await.unwrap();
        asked
    };
    let (head, asked) = tokio::join!(poll_fn(|cx| connection.poll_head(cx)), answering);
    (head.unwrap(), asked)
}

#[tokio::test]
async fn a_request_goes_out_in_the_turn_behind_the_one_it_is_begun_in() {
    let (mut connection, upstream) = connection();
    begin(&mut connection, get());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(connection.poll_head(&mut cx).is_pending());
    let mut sent = [0; 64];
    let early = upstream.try_read(&mut sent);
    assert!(early.is_err(), "{early:?} bytes were sent");
    assert!(connection.poll_head(&mut cx).is_pending());
    upstream.readable().await.unwrap();
    let count = upstream.try_read(&mut sent).unwrap();
    assert_eq!(&sent[..count], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
}

#[tokio::test]
async fn a_request_that_waits_for_its_turn_does_not_go_into_a_connection_spoken_on() {
    let (mut connection, mut upstream) = connection();
    begin(&mut connection, get());
    upstream
        .write_all(b"HTTP/1.1 408 Late\r\n\r\n")
        .await
        .unwrap();
    tokio::task::yield_now().await;
    let head = poll_fn(|cx| connection.poll_head(cx)).await;
    assert!(
        matches!(head, Err(Unfinished::NotBegun(Ok(21)))),
        "{head:?}"
    );
}

#[tokio::test]
async fn a_connection_that_was_closed_before_the_first_byte_leaves_the_request_whole() {
    let (mut closed, upstream) = connection();
    drop(upstream);
    begin(&mut closed, get());
    let head = poll_fn(|cx| closed.poll_head(cx)).await;
    assert!(matches!(head, Err(Unfinished::NotBegun(_))), "{head:?}");
    let (mut fresh, mut upstream) = connection();
    fresh.takes_over(closed);
    let answer = b"HTTP/1.1 204 Done\r\n\r\n";
    let (head, asked) = exchange(&mut fresh, &mut upstream, answer).await;
    assert_eq!(head.status, 204);
    assert_eq!(asked, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
}

#[tokio::test]
async fn another_request_may_follow_behind_the_answers_end_alone() {
    let (mut connection, mut upstream) = connection();
    begin(&mut connection, get());
    assert!(!connection.may_follow());
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
    exchange(&mut connection, &mut upstream, answer).await;
    assert!(!connection.may_follow(), "its body is still to come");
    connection.answered();
    assert!(connection.may_follow());
}

#[tokio::test]
async fn an_idle_connection_does_not_keep_the_room_of_a_large_head() {
    let (mut connection, _upstream) = connection();
    let request = Request::get("/").header("x", "x".repeat(60_000));
    begin(
        &mut connection,
        request.body(OutgoingBody::Whole(None)).unwrap(),
    );
    assert!(connection.out.front.capacity() >= 60_000);
    connection.rests();
    assert!(connection.out.front.capacity() <= LEAST_READ);
}
