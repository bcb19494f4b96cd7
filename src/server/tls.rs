//! TLS to clients: the handshake, and what is known of the client after it.
//!
//! - A handshake runs in its connection's own task, on its worker: nobody else waits for it. It has `head_timeout`; half a message, no
//!   message, or anything that is no TLS ends the connection, and is counted by its reason.
//! - What a connection was accepted with stays with it: certificates that are replaced meanwhile are for those that come later.

use std::{io, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use rustls::{AlertDescription, Error as TlsError, ServerConfig};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::Instant,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::connection::Negotiated;
use crate::{
    core::caller::Certified,
    telemetry::metrics::Handshake,
    timers::Timers,
    tls::{ServerFiles, Unusable, Watched, named},
};

/// How the client listeners speak TLS, or that they do not. What is set here counts for the connections that are accepted from then on.
#[derive(Debug, Default)]
pub struct Secured(ArcSwapOption<Watched<ServerConfig>>);

impl Secured {
    /// As `[server.tls]` says; `None`: in cleartext. Blocks for as long as the file system does.
    ///
    /// # Errors
    /// One of the files is not what it is to be, or they do not belong together.
    pub fn new(files: Option<ServerFiles>) -> Result<Self, Unusable> {
        let secured = Self::default();
        secured.set(files.map(ServerFiles::watched).transpose()?);
        Ok(secured)
    }

    /// From now on so.
    pub fn set(&self, watched: Option<Watched<ServerConfig>>) {
        self.0.store(watched.map(Arc::new));
    }

    /// The files that are in force.
    #[must_use]
    pub fn watched(&self) -> Option<Arc<Watched<ServerConfig>>> {
        self.0.load_full()
    }

    /// How the next connection is accepted; `None`: in cleartext. Takes no lock.
    #[must_use]
    pub fn config(&self) -> Option<Arc<ServerConfig>> {
        self.0.load().as_ref().map(|watched| watched.current())
    }
}

/// A connection that has come through the handshake.
#[derive(Debug)]
pub(super) struct Shaken<S> {
    /// Its content.
    pub(super) stream: TlsStream<S>,
    /// Which protocol was agreed on.
    pub(super) negotiated: Negotiated,
    /// Who the client is, if it has proved that.
    pub(super) certificate: Option<Certified>,
}

/// Shakes hands until `deadline`. A client that is refused is told why, by an alert (RFC 8446, section 6).
///
/// Dropping the future closes the connection.
///
/// # Errors
/// How it failed.
pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    config: Arc<ServerConfig>,
    timers: &Arc<Timers>,
    deadline: Instant,
) -> Result<Shaken<S>, Handshake> {
    let shaking = TlsAcceptor::from(config).accept(stream).into_fallible();
    let stream = match timers.within(deadline, shaking).await {
        None => return Err(Handshake::Late),
        Some(Err((error, stream))) => {
            tracing::debug!(%error, "a TLS handshake failed");
            end(stream).await;
            return Err(reason(&error));
        }
        Some(Ok(stream)) => stream,
    };
    let (_, session) = stream.get_ref();
    let negotiated = match session.alpn_protocol() {
        Some(b"h2") => Negotiated::Http2,
        Some(_) => Negotiated::Http1, // there is no third that is offered
        None => Negotiated::Unsaid,
    };
    let certificate = session
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|certificate| match named(certificate) {
            Some(named) => Certified::of(&named.subject, &named.uris),
            None => Certified::Unclear,
        });
    Ok(Shaken {
        stream,
        negotiated,
        certificate,
    })
}

/// Ends a connection behind its alert. What the client sends meanwhile is read and dropped for a moment, so that the alert is not lost
/// to a reset.
async fn end<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let ended = async {
        stream.shutdown().await?;
        let mut dropped = [0; 1024];
        while stream.read(&mut dropped).await? > 0 {}
        io::Result::Ok(())
    };
    // Whether the alert was read is the client's affair.
    let _ = tokio::time::timeout(LAST_WORDS, ended).await;
}

/// How long a client that was refused may take to go.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn reason(error: &io::Error) -> Handshake {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<TlsError>());
    match tls {
        None => Handshake::Gone,
        Some(TlsError::InvalidMessage(_)) => Handshake::NotTls,
        Some(TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented) => {
            Handshake::ClientCertificate
        }
        Some(TlsError::PeerIncompatible(_) | TlsError::NoApplicationProtocol) => {
            Handshake::Incompatible
        }
        Some(TlsError::AlertReceived(alert)) => match alert {
            AlertDescription::CloseNotify | AlertDescription::UserCanceled => Handshake::Gone,
            _ => Handshake::Refused,
        },
        Some(_) => Handshake::Broken,
    }
}
