//! Making a connection.

use std::io;

use tokio::net::{TcpStream, UnixStream, lookup_host};

use crate::{config::Target, net::Stream};

/// Connects to `target`. A name is resolved anew each time, so that a changed address is followed; its addresses are
/// tried in order, which is safe because nothing has been written yet.
pub(super) async fn connect(target: &Target) -> io::Result<Stream> {
    match target {
        Target::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
        Target::Tcp { host, port } => {
            let mut last = None;
            for address in lookup_host((host.as_str(), *port)).await? {
                match TcpStream::connect(address).await {
                    Ok(stream) => return Stream::tcp(stream),
                    Err(error) => last = Some(error),
                }
            }
            Err(last.unwrap_or_else(|| {
                io::Error::new(io::ErrorKind::NotFound, "the name has no address")
            }))
        }
    }
}
