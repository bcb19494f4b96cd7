//! TLS as a client: whom this proxy believes when it calls somebody.
//!
//! - Certificates are verified against the system's roots: the files of `SSL_CERT_FILE` and `SSL_CERT_DIR` where these variables
//!   are set, else what the operating system keeps. There is no switch that believes anybody.
//! - TLS 1.2 and 1.3 (RFC 8446), by aws-lc-rs. No process-wide default is set or needed.
//! - Over it HTTP/1.1 is spoken, and ALPN (RFC 7301) offers nothing else.
//! - Whether a certificate was revoked is not asked.

use std::sync::{Arc, OnceLock};

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

/// The client configuration, made when it is first wanted, once: nobody needs roots who calls nobody over TLS.
#[derive(Debug, Default)]
pub struct Client(OnceLock<Arc<ClientConfig>>);

impl Client {
    /// The configuration. The first call reads the roots, and blocks for as long as the file system does.
    ///
    /// # Errors
    /// There are no roots.
    pub fn config(&self) -> Result<Arc<ClientConfig>, Unusable> {
        if let Some(made) = self.0.get() {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(client_config()?);
        Ok(Arc::clone(self.0.get_or_init(|| made)))
    }
}

/// Why nobody can be called over TLS.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Nobody's certificate would be believed, because nothing could be read.
    #[error("{ROOTS_MISSING} ({0}): {ROOTS_WANTED}")]
    Unreadable(rustls_native_certs::Error),
    /// Nobody's certificate would be believed, because nothing is there.
    #[error("{ROOTS_MISSING}: {ROOTS_WANTED}")]
    NoRoots,
    /// The cryptography lacks what TLS needs.
    #[error("TLS cannot be set up: {0}")]
    Provider(#[from] rustls::Error),
}

const ROOTS_MISSING: &str = "the system has no root certificates for TLS";
const ROOTS_WANTED: &str = "install them (ca-certificates), or name a PEM file in SSL_CERT_FILE";

fn client_config() -> Result<ClientConfig, Unusable> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    let mut faults = found.errors.into_iter();
    if usable == 0 {
        return Err(faults
            .next()
            .map_or(Unusable::NoRoots, Unusable::Unreadable));
    }
    for error in faults {
        tracing::warn!(%error, "some of the system's root certificates could not be read");
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
