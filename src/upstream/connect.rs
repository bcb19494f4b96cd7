//! Making a connection: name, address, TLS, and which HTTP it is for.
//!
//! All of it is within `connect_timeout`. A name is resolved anew each time, so that a changed address is followed; its addresses are
//! tried as RFC 8305 has it, which is safe because nothing has been written yet.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, UnixStream},
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_rustls::TlsConnector;

use super::{addresses::in_turn, origin::Origin, wire::Wire};
use crate::{
    config::{Protocol, Target},
    net::Stream,
    tasks::Tasks,
    telemetry::metrics::{ConnectFailure, Side},
};

/// A connection that nothing was written to yet.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) wire: Wire,
    pub(super) speaks: Speaks,
}

/// Which HTTP a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Http1,
    Http2,
}

/// Which HTTP a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// What is configured, and what the upstream chooses of it.
    Configured,
    /// HTTP/1.1, whatever is configured.
    Http1,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Unreached {
    Dns(io::Error),
    Connect(io::Error),
    Timeout,
    Tls(io::Error),
    /// It speaks no HTTP/2, and is to.
    NoHttp2,
    /// HTTP/2 could not be begun.
    NoGreeting(hyper::Error),
    /// It did not begin with HTTP/2's SETTINGS, but broke off or said something else.
    Greeting(io::Error),
}

impl Unreached {
    /// How it is counted.
    pub(super) fn reason(&self) -> ConnectFailure {
        match self {
            Self::Dns(_) => ConnectFailure::Dns,
            Self::Connect(_) => ConnectFailure::Connect,
            Self::Timeout => ConnectFailure::Timeout,
            Self::Tls(_) | Self::NoHttp2 | Self::NoGreeting(_) | Self::Greeting(_) => {
                ConnectFailure::Tls
            }
        }
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(error) => write!(f, "cannot resolve its name: {error}"),
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Timeout => f.write_str("cannot connect: no answer in connect_timeout"),
            Self::Tls(error) => write!(f, "cannot agree on TLS: {error}"),
            Self::Greeting(error) => write!(f, "it does not speak HTTP/2: {error}"),
            Self::NoGreeting(error) => write!(f, "it does not speak HTTP/2: {error}"),
            Self::NoHttp2 => f.write_str("it did not agree to HTTP/2, which is configured"),
        }
    }
}

/// Connects, until `deadline`.
///
/// Dropping the future gives the connection up; nothing was written to it but a handshake.
pub(super) async fn connect(
    origin: &Origin,
    want: Want,
    tasks: &Tasks,
    deadline: Instant,
) -> Result<Connected, Unreached> {
    let reached = timeout_at(deadline, reach(origin, want, tasks)).await;
    reached.unwrap_or(Err(Unreached::Timeout))
}

async fn reach(origin: &Origin, want: Want, tasks: &Tasks) -> Result<Connected, Unreached> {
    let upstream = &origin.upstream;
    let stream = match &upstream.target {
        Target::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            Stream::Unix(stream.map_err(Unreached::Connect)?)
        }
        Target::Tcp { host, port } => {
            let resolved = resolved(origin, host, *port, tasks).await;
            let addresses = in_turn(resolved.map_err(Unreached::Dns)?.into_iter());
            let stream = first_of(&addresses).await.map_err(Unreached::Connect)?;
            prepared(stream).map_err(Unreached::Connect)?
        }
    };
    let open = origin.metrics.connection(Side::Upstream);
    let (Some(tls), Some(files)) = (&origin.tls, &upstream.tls) else {
        let speaks = match (want, upstream.protocol) {
            (Want::Configured, Protocol::Http2) => Speaks::Http2,
            _ => Speaks::Http1,
        };
        let wire = Wire::plain(stream, open);
        return Ok(Connected { wire, speaks });
    };
    let mut config = tls.current();
    if want == Want::Http1 {
        Arc::make_mut(&mut config).alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    let stream = TlsConnector::from(config)
        .connect(files.server_name.clone(), stream)
        .await
        .map_err(Unreached::Tls)?;
    let chosen = stream.get_ref().1.alpn_protocol();
    let speaks = match (want, upstream.protocol, chosen) {
        (Want::Configured, Protocol::Http2 | Protocol::Auto, Some(b"h2")) => Speaks::Http2,
        (Want::Configured, Protocol::Http2, _) => return Err(Unreached::NoHttp2),
        _ => Speaks::Http1,
    };
    let wire = Wire::tls(stream, open);
    Ok(Connected { wire, speaks })
}

/// The addresses of a host. The system's resolver blocks, and longer than anybody waits for it where its servers are silent: those who
/// wait for it are bounded, so that they do not take all the threads that others block on.
async fn resolved(
    origin: &Origin,
    host: &str,
    port: u16,
    tasks: &Tasks,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let place = Arc::clone(&origin.resolving).acquire_owned().await;
    let place = place.map_err(io::Error::other)?;
    let (told, answer) = oneshot::channel();
    let host = host.to_owned();
    tasks.block(move || {
        let found = (host.as_str(), port).to_socket_addrs();
        drop(place);
        // Whoever asked may have stopped waiting.
        let _ = told.send(found.map(Iterator::collect));
    });
    answer.await.map_err(io::Error::other)?
}

/// The next address is tried when the one before has failed, or has not answered for so long (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// A connection to the first of the addresses that takes one; the other attempts are given up.
async fn first_of(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let attempt = |address: &SocketAddr| -> Attempt { Box::pin(TcpStream::connect(*address)) };
    first_to_succeed(addresses.iter().map(attempt)).await
}

async fn first_to_succeed<T, F>(mut untried: impl Iterator<Item = F>) -> io::Result<T>
where
    F: Future<Output = io::Result<T>> + Unpin,
{
    let mut running: Vec<F> = Vec::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let more = match untried.next() {
            Some(attempt) => {
                running.push(attempt);
                true
            }
            None => false,
        };
        if running.is_empty() {
            return Err(last);
        }
        let mut patience = std::pin::pin!(sleep_until(Instant::now() + NEXT_AFTER));
        let step = poll_fn(|cx| {
            let mut failed = None;
            let mut place = 0;
            while let Some(attempt) = running.get_mut(place) {
                match Pin::new(attempt).poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(Some(stream))),
                    Poll::Ready(Err(error)) => {
                        failed = Some(error);
                        drop(running.swap_remove(place));
                    }
                    Poll::Pending => place += 1,
                }
            }
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if more => patience.as_mut().poll(cx).map(|()| Ok(None)),
                None => Poll::Pending,
            }
        });
        match step.await {
            Ok(Some(stream)) => return Ok(stream),
            Ok(None) => {}
            Err(error) => last = error,
        }
    }
}

/// A silent connection is asked for a sign of life after so long, then this often, and is broken after so many without one: peers that
/// vanished are noticed even where nobody waits for them.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

fn prepared(stream: TcpStream) -> io::Result<Stream> {
    if let (Ok(own), Ok(peer)) = (stream.local_addr(), stream.peer_addr())
        && own == peer
    {
        // Where nobody listens on a port that the system gives to connections, one may be made to itself (RFC 9293, section 3.5).
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    SockRef::from(&stream).set_tcp_keepalive(&probes)?;
    Stream::tcp(stream)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    type Try = Pin<Box<dyn Future<Output = io::Result<u8>>>>;

    fn refused() -> Try {
        Box::pin(ready(Err(io::ErrorKind::ConnectionRefused.into())))
    }

    fn silent() -> Try {
        Box::pin(pending())
    }

    fn taken_after(ms: u64, by: u8) -> Try {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok(by)
        })
    }

    async fn first(attempts: Vec<Try>) -> (io::Result<u8>, Duration) {
        let start = Instant::now();
        let result = first_to_succeed(attempts.into_iter()).await;
        (result, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lets_the_next_address_be_tried_at_once() {
        let (result, took) = first(vec![refused(), refused(), taken_after(10, 3)]).await;
        assert_eq!(result.unwrap(), 3);
        assert_eq!(took, Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_holds_the_next_up_for_a_moment_only() {
        let (result, took) = first(vec![silent(), silent(), taken_after(10, 3)]).await;
        assert_eq!(result.unwrap(), 3);
        assert_eq!(took, 2 * NEXT_AFTER + Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_answers_late_still_wins_over_one_that_does_not() {
        let (result, took) = first(vec![taken_after(400, 1), silent()]).await;
        assert_eq!(result.unwrap(), 1);
        assert_eq!(took, Duration::from_millis(400));
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_fail_the_last_failure_is_told() {
        let (result, _) = first(vec![refused(), refused()]).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let (result, _) = first(vec![]).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
