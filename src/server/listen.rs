//! Listeners: TCP and unix sockets.

use std::{
    io,
    net::IpAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket, UnixListener, lookup_host};

use crate::{
    config::{Config, Listen},
    net::Stream,
};

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    /// As it is shown to people.
    address: String,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

/// A unix socket's file, removed when the listener goes.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already; there is nobody left to tell.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The listeners of one process.
#[derive(Debug)]
pub struct Listeners {
    /// Where clients connect.
    pub clients: Vec<Listener>,
    /// Where operators connect.
    pub operators: Vec<Listener>,
}

impl Listeners {
    /// Binds every address of a configuration.
    ///
    /// # Errors
    /// What could not be bound, and why.
    pub async fn bind(config: &Config) -> anyhow::Result<Self> {
        async fn all(addresses: &[Listen]) -> anyhow::Result<Vec<Listener>> {
            let mut bound = Vec::new();
            for address in addresses {
                bound.append(&mut Listener::bind(address).await?);
            }
            Ok(bound)
        }
        Ok(Self {
            clients: all(&config.server.listen).await?,
            operators: all(&config.admin.listen).await?,
        })
    }
}

impl Listener {
    /// Takes over a listener that somebody else has bound.
    ///
    /// # Errors
    /// The event loop does not take it.
    pub fn adopt(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let kind = Kind::Tcp(TcpListener::from_std(listener)?);
        Ok(Self { kind, address })
    }

    /// Binds every address that `listen` names.
    ///
    /// # Errors
    /// What could not be bound, and why.
    pub async fn bind(listen: &Listen) -> anyhow::Result<Vec<Self>> {
        match listen {
            Listen::Unix(path) => Ok(vec![bind_unix(path).await?]),
            Listen::Tcp(address) => bind_tcp(address).await,
        }
    }

    /// The address, with the port that was chosen where it was `0`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether nobody can reach it from another machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match &self.kind {
            Kind::Unix { .. } => true,
            Kind::Tcp(listener) => listener
                .local_addr()
                .is_ok_and(|address| address.ip().to_canonical().is_loopback()),
        }
    }

    /// The next connection, and its peer's address where it has one.
    ///
    /// A connection that is gone before it was accepted is not an error. Where the process is out of file descriptors `no_files` is
    /// called, and this waits a little, so that it does not spin. Dropping the future loses no connection.
    pub async fn accept(&self, no_files: impl Fn()) -> (Stream, Option<IpAddr>) {
        loop {
            let accepted = match &self.kind {
                Kind::Tcp(listener) => listener
                    .accept()
                    .await
                    .and_then(|(stream, peer)| Ok((Stream::tcp(stream)?, Some(peer.ip())))),
                Kind::Unix { listener, .. } => listener
                    .accept()
                    .await
                    .map(|(stream, _)| (Stream::Unix(stream), None)),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) if is_the_peers(&error) => {}
                Err(error) => {
                    if is_for_want_of_files(&error) {
                        no_files();
                    }
                    tracing::warn!(%error, address = self.address, "cannot accept connections; trying again");
                    tokio::time::sleep(OUT_OF_RESOURCES).await;
                }
            }
        }
    }
}

/// How long to wait when the system has no resources for another connection.
const OUT_OF_RESOURCES: Duration = Duration::from_millis(50);

/// As many connections may wait to be accepted; the system may have a lower limit of its own.
const BACKLOG: u32 = 4096;

fn is_for_want_of_files(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

fn is_the_peers(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::InvalidInput // the socket was closed before its options were set
            | io::ErrorKind::NotConnected
            | io::ErrorKind::Interrupted
    )
}

async fn bind_tcp(address: &str) -> anyhow::Result<Vec<Listener>> {
    let why = || format!("cannot listen on {address}");
    let mut bound = Vec::new();
    for resolved in lookup_host(address).await.with_context(why)? {
        let bind = || {
            let socket = if resolved.is_ipv4() {
                TcpSocket::new_v4()
            } else {
                TcpSocket::new_v6()
            }?;
            socket.set_reuseaddr(true)?;
            bound_unsent(&socket);
            socket.bind(resolved)?;
            socket.listen(BACKLOG)
        };
        let listener = bind().with_context(why)?;
        let address = listener.local_addr().with_context(why)?.to_string();
        bound.push(Listener {
            kind: Kind::Tcp(listener),
            address,
        });
    }
    if bound.is_empty() {
        return Err(anyhow!("the name has no address").context(why()));
    }
    Ok(bound)
}

/// Bounds what the kernel takes of an answer before the client has read what went before; accepted sockets inherit it.
///
/// Otherwise it takes megabytes, and asks for more only when a third of that is gone: a client that reads slowly would look like one
/// that does not read at all.
#[cfg(target_os = "linux")]
fn bound_unsent(socket: &TcpSocket) {
    // A kernel without it serves all the same.
    let _ = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES);
}

#[cfg(not(target_os = "linux"))]
fn bound_unsent(_: &TcpSocket) {}

/// Enough to keep a fast client busy while the next piece is written.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 256 << 10;

async fn bind_unix(path: &Path) -> anyhow::Result<Listener> {
    let why = || format!("cannot listen on unix:{}", path.display());
    remove_stale(path).await.with_context(why)?;
    let listener = UnixListener::bind(path).with_context(why)?;
    Ok(Listener {
        kind: Kind::Unix {
            listener,
            _file: SocketFile(path.to_owned()),
        },
        address: format!("unix:{}", path.display()),
    })
}

/// Removes a socket that a process left behind: one that nobody listens on. Anything else is not ours to remove.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
        Ok(there) if !there.file_type().is_socket() => {
            Err(anyhow!("there is a file of another kind"))
        }
        Ok(_) => match tokio::net::UnixStream::connect(path).await {
            Ok(_) => Err(anyhow!("another process listens there")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Ok(std::fs::remove_file(path)?)
            }
            Err(error) => Err(error.into()),
        },
    }
}
