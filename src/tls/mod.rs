//! TLS, on both sides: whom this proxy believes when it calls somebody, and how it proves itself.
//!
//! - Whoever is called is verified: against the file that is configured, or the system's roots (the files of `SSL_CERT_FILE` and
//!   `SSL_CERT_DIR` where these variables are set, else what the operating system keeps). There is no switch that believes anybody.
//! - TLS 1.2 and 1.3 (RFC 8446), by aws-lc-rs. No process-wide default is set or needed.
//! - HTTP/1.1 and HTTP/2 are told apart by ALPN (RFC 7301). There is no early data: it can be replayed.
//! - Whether a certificate was revoked is not asked.

mod certificate;
mod client;
mod files;
mod server;
mod watch;

use std::{path::PathBuf, sync::Arc};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub use self::{
    certificate::{Expiry, Named, expiry, named},
    client::{Alpn, Client, client_config},
    files::{ClientAuth, Pair, ServerFiles, UpstreamFiles, certificates, private_key, roots},
    server::server_config,
    watch::{Follow, Look, Watched},
};

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Nobody's certificate would be believed, because nothing could be read.
    #[error("{ROOTS_MISSING} ({0}): {ROOTS_WANTED}")]
    Unreadable(rustls_native_certs::Error),
    /// Nobody's certificate would be believed, because nothing is there.
    #[error("{ROOTS_MISSING}: {ROOTS_WANTED}")]
    NoRoots,
    /// A file is not what it is to be.
    #[error("{}: {why}", file.display())]
    File {
        /// Which one.
        file: PathBuf,
        /// What is wrong with it. Never what stands in it.
        why: String,
    },
    /// The cryptography lacks what TLS needs.
    #[error("TLS cannot be set up: {0}")]
    Provider(#[from] rustls::Error),
}

const ROOTS_MISSING: &str = "the system has no root certificates for TLS";
const ROOTS_WANTED: &str = "install them (ca-certificates), or name a PEM file in SSL_CERT_FILE";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
