//! Bodies that are read straight into a buffer.

use super::*;
use crate::upstream::Broken;

/// Reads a body that has a length into a buffer of just that size.
async fn read_into(body: &mut UpstreamBody, length: usize) -> Result<Vec<u8>, Broken> {
    let mut buffer = Vec::with_capacity(length);
    while body.has_length() {
        body.read_into(&mut buffer).await?;
    }
    Ok(buffer)
}

#[tokio::test]
async fn a_body_with_a_length_is_read_straight_into_a_buffer_of_its_size() {
    const LENGTH: usize = 300_000;
    let sent = (0..=250).cycle().take(LENGTH).collect::<Vec<u8>>();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (head, tail) = (answer.into_bytes(), sent.clone());
    let (port, connections, _told) = scripted(move |mut stream, _| {
        while read_head(&mut stream).is_some() {
            // The first of it comes with the head.
            let first = [&head[..], &tail[..100]].concat();
            stream.write_all(&first).unwrap();
            for piece in tail[100..].chunks(70_000) {
                thread::sleep(Duration::from_millis(1));
                stream.write_all(piece).unwrap();
            }
        }
    });
    let pool = pool("127.0.0.1", port);
    for _ in 0..3 {
        let mut body = pool.send(get()).await.unwrap().into_body();
        let read = read_into(&mut body, LENGTH).await.unwrap();
        assert!(read == sent, "every byte");
        assert_eq!(read.capacity(), LENGTH);
        assert!(http_body::Body::is_end_stream(&body));
        assert!(body.frame().await.is_none(), "nothing is left");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_on_its_way_into_a_buffer_is_none() {
    let (port, _, _told) = scripted(|mut stream, _| {
        read_head(&mut stream).unwrap();
        stream.write_all(&OK[..OK.len() - 1]).unwrap();
    });
    let pool = pool("127.0.0.1", port);
    let mut body = pool.send(get()).await.unwrap().into_body();
    assert!(read_into(&mut body, 2).await.is_err());
    assert!(!http_body::Body::is_end_stream(&body), "it has no end");
    assert!(body.frame().await.is_none(), "it is told once");
    assert_eq!(pool.0.origin.idle_total.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nothing_behind_a_body_is_read_into_its_buffer() {
    let (port, connections, told) = scripted(|mut stream, done| {
        read_head(&mut stream).unwrap();
        stream.write_all(&[OK, b" and more"].concat()).unwrap();
        done.send(()).unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let pool = pool("127.0.0.1", port);
    let mut body = pool.send(get()).await.unwrap().into_body();
    assert_eq!(read_into(&mut body, 2).await.unwrap(), b"ok");
    word(told).await;
    let mut body = pool.send(get()).await.unwrap().into_body();
    assert_eq!(read_into(&mut body, 2).await.unwrap(), b"ok");
    assert_eq!(
        connections.load(Ordering::SeqCst),
        2,
        "it was not used again"
    );
}

#[tokio::test]
async fn an_early_answer_is_read_into_a_buffer_too() {
    let (port, _, _told) = scripted(|mut stream, _| {
        read_head(&mut stream).unwrap();
        stream.write_all(OK).unwrap();
        while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {}
    });
    let pool = pool_within("1m", "127.0.0.1", port, TaskTracker::new());
    let body = OutgoingBody::whole(vec![b'x'; LONG].into());
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let mut body = pool.send(request).await.unwrap().into_body();
    assert_eq!(read_into(&mut body, 2).await.unwrap(), b"ok");
}
