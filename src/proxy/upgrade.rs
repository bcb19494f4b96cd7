//! Upgrades of requests without a key (RFC 9110, section 7.8), and the tunnels that come of them.
//!
//! The request goes upstream on a connection of its own. Only the upstream's 101, and only to what was asked for, makes a tunnel; until then
//! not one byte behind the request's head is passed on. Any other answer is an answer like others. A tunnel belongs to its client's connection: it
//! runs in that connection's task, counts as a connection on both sides and ends with the drain.

use std::{io, time::Duration};

use http::{
    HeaderValue, Request, Response, Version,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
    response,
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    time::{Instant, sleep_until},
};

use super::{
    Peer, Worker,
    answer::Answer,
    body::AnswerBody,
    forward::{Passing, Through, head_in_time, outgoing},
};
use crate::{
    core::{headers, upgrade::Protocols},
    upstream::{MaybeSent, SendFailure, Switch, Switched, UploadStage},
};

/// Two connections that are one from now on, as soon as the client's has sent its 101.
#[derive(Debug)]
pub struct Tunnel {
    client: OnUpgrade,
    upstream: Switched,
}

/// Sends a request that asks to switch protocols on.
///
/// Dropping the future closes the upstream's connection in the middle of the call.
pub(super) async fn forward(
    worker: &Worker,
    through: Through<'_>,
    mut request: Request<Incoming>,
    protocols: &Protocols,
    peer: &Peer,
) -> Answer {
    let client = hyper::upgrade::on(&mut request);
    let mut passing = match Passing::new(worker, through) {
        Ok(passing) => passing,
        Err(answer) => return *answer,
    };
    let sent = passing.begins();
    let (mut parts, incoming) = request.into_parts();
    let (body, added, upload) = outgoing(&passing, &mut parts, incoming, peer, sent);
    added.insert_into(&mut parts.headers);
    let asks = HeaderValue::from_static("upgrade");
    parts.headers.insert(CONNECTION, asks);
    parts.headers.insert(UPGRADE, protocols.value().clone());
    let request = Request::from_parts(parts, body);
    let call = std::pin::pin!(passing.pool.switch(request));
    let body_timeout = worker.proxy.body_timeout;
    let answered = head_in_time(passing.pool, call, upload.as_deref(), body_timeout, sent).await;
    let stage = upload.map(|upload| upload.stage());
    match answered.map(|switch| switch.and_then(|switch| allowed(switch, protocols, stage))) {
        Ok(Ok(Switch::Switched(head, upstream))) => {
            let answer = passing.answered(switched(*head));
            peer.open(Tunnel { client, upstream });
            answer
        }
        Ok(Ok(Switch::Answer(response))) => passing.passed(response),
        Ok(Err(failure)) => passing.failed(&failure, stage),
        Err(_) => passing.timed_out(stage),
    }
}

/// Lets a switch through that is one to what was asked for, after the request has gone out whole.
fn allowed(
    switch: Switch,
    protocols: &Protocols,
    stage: Option<UploadStage>,
) -> Result<Switch, SendFailure> {
    let whole = matches!(stage, None | Some(UploadStage::Ended(_)));
    let refused = match &switch {
        Switch::Answer(response) => response.status().is_informational(),
        Switch::Switched(head, _) => !whole || !protocols.allow(&head.headers),
    };
    if refused {
        return Err(SendFailure::MaybeSent(MaybeSent::switched_protocols()));
    }
    Ok(switch)
}

/// The upstream's 101 as the client gets it.
fn switched(mut head: response::Parts) -> Response<AnswerBody> {
    let protocol = head.headers.get_all(UPGRADE).iter().cloned();
    let protocol: Vec<HeaderValue> = protocol.collect();
    headers::strip_hop_by_hop(&mut head.headers);
    head.headers.remove(CONTENT_LENGTH); // a 101 has none (RFC 9110, section 8.6)
    let asks = HeaderValue::from_static("upgrade");
    head.headers.insert(CONNECTION, asks);
    for protocol in protocol {
        head.headers.append(UPGRADE, protocol);
    }
    head.version = Version::HTTP_11;
    Response::from_parts(head, AnswerBody::Whole(None))
}

impl Peer {
    /// Leaves a tunnel for the connection to run once its 101 is sent.
    fn open(&self, tunnel: Tunnel) {
        *self.tunnel.lock() = Some(Box::new(tunnel));
    }

    /// The tunnel that the connection has become, if it has.
    #[must_use]
    pub fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        self.tunnel.lock().take()
    }
}

impl Tunnel {
    /// Passes bytes on until both sides are done, one fails, or neither has said anything for an hour. Both connections are closed then.
    ///
    /// Belongs behind the client's connection, which hands its stream over when it ends. Dropping the future closes both.
    pub async fn run(self) {
        // The other way for it to end is that the 101 could not be sent.
        if let Ok(client) = self.client.await {
            let ended = pass_on(TokioIo::new(client), self.upstream, IDLE).await;
            tracing::debug!(ended = %Ended(&ended), "a tunnel ended");
        }
    }
}

/// A tunnel in which nothing has moved for so long is ended: its clients keep theirs alive by pings, if they mean to.
const IDLE: Duration = Duration::from_hours(1);

/// So much is read ahead of a side that does not take it, in each direction.
const BUFFER: usize = 16 * 1024;

/// How a tunnel ended, in words.
struct Ended<'a>(&'a io::Result<()>);

impl std::fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Ok(()) => f.write_str("both sides are done"),
            Err(error) => error.fmt(f),
        }
    }
}

/// Passes bytes both ways. The end of one direction is passed on and leaves the other open.
async fn pass_on<C, U>(client: C, upstream: U, idle: Duration) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    U: AsyncRead + AsyncWrite,
{
    let (mut client_reads, mut client_writes) = split(client);
    let (mut upstream_reads, mut upstream_writes) = split(upstream);
    let moved = Mutex::new(Instant::now());
    let both = async {
        tokio::try_join!(
            one_way(&mut client_reads, &mut upstream_writes, &moved),
            one_way(&mut upstream_reads, &mut client_writes, &moved),
        )
    };
    let silence = async {
        // Set anew only when it goes off: what moves costs no timer.
        loop {
            let due = *moved.lock() + idle;
            sleep_until(due).await;
            if *moved.lock() + idle <= Instant::now() {
                return io::Error::from(io::ErrorKind::TimedOut);
            }
        }
    };
    tokio::select! {
        biased;
        ended = both => ended.map(|_| ()),
        silent = silence => Err(silent),
    }
}

async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: &Mutex<Instant>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        *moved.lock() = Instant::now();
        if count == 0 {
            return to.shutdown().await;
        }
        let mut piece = buffer.get(..count).unwrap_or_default();
        while !piece.is_empty() {
            let written = to.write(piece).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            *moved.lock() = Instant::now();
            piece = piece.get(written..).unwrap_or_default();
        }
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// The far ends of a tunnel, and the tunnel.
    fn tunnel(
        idle: Duration,
    ) -> (
        DuplexStream,
        DuplexStream,
        impl Future<Output = io::Result<()>>,
    ) {
        let (client, near) = duplex(64);
        let (upstream, far) = duplex(64);
        (client, upstream, pass_on(near, far, idle))
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_each_way_ends_on_its_own() {
        let (mut client, mut upstream, passing) = tunnel(IDLE);
        let talk = async move {
            client.write_all(&vec![7; 100_000]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut said = Vec::new();
            client.read_to_end(&mut said).await.unwrap();
            said
        };
        let listen = async move {
            let mut heard = Vec::new();
            upstream.read_to_end(&mut heard).await.unwrap();
            upstream.write_all(b"after the end").await.unwrap();
            drop(upstream);
            heard.len()
        };
        let (ended, said, heard) = tokio::join!(passing, talk, listen);
        ended.unwrap();
        assert_eq!((said.as_slice(), heard), (&b"after the end"[..], 100_000));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_tunnel_and_a_byte_either_way_prolongs_it() {
        let idle = Duration::from_secs(100);
        let (mut client, mut upstream, passing) = tunnel(idle);
        let started = Instant::now();
        let talk = async {
            for _ in 0..3 {
                tokio::time::sleep(idle * 9 / 10).await;
                client.write_all(b"x").await.unwrap();
                upstream.read_u8().await.unwrap();
                tokio::time::sleep(idle * 9 / 10).await;
                upstream.write_all(b"x").await.unwrap();
                client.read_u8().await.unwrap();
            }
        };
        let (ended, ()) = tokio::join!(passing, talk);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), idle * 6 * 9 / 10 + idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_does_not_read_ends_it_too_and_holds_no_more_than_a_buffer() {
        let (mut client, upstream, passing) = tunnel(IDLE);
        let flood = async {
            let mut sent = 0;
            while client.write_all(&[0; 1024]).await.is_ok() {
                sent += 1024;
            }
            sent
        };
        let (ended, sent) = tokio::join!(passing, flood);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(sent <= BUFFER + 1024, "{sent}");
        drop(upstream);
    }
}
