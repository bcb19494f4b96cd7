//! TLS as a client.

use std::sync::{Arc, OnceLock};

use rustls::{ClientConfig, RootCertStore};

use super::{
    Pair, Unusable,
    files::{certificates, private_key, roots, unusable},
    provider,
};

/// What is offered to whoever is called, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// `http/1.1` alone.
    Http1,
    /// `h2` alone.
    Http2,
    /// `h2`, or else `http/1.1`.
    Either,
}

/// The client configuration for the system's roots, made when it is first wanted, once: nobody needs roots who calls nobody over TLS.
#[derive(Debug, Default)]
pub struct Client(OnceLock<Arc<ClientConfig>>);

impl Client {
    /// The configuration, for HTTP/1.1. The first call reads the roots, and blocks for as long as the file system does.
    ///
    /// # Errors
    /// There are no roots.
    pub fn config(&self) -> Result<Arc<ClientConfig>, Unusable> {
        if let Some(made) = self.0.get() {
            return Ok(Arc::clone(made));
        }
        let made = client_config(None, None, Alpn::Http1)?;
        Ok(Arc::clone(self.0.get_or_init(|| made)))
    }
}

/// The configuration of a client that believes whom `ca` leads to, or the system's roots, and proves itself by `pair`; from the files as
/// they are now. Blocks for as long as the file system does.
///
/// # Errors
/// One of the files is not what it is to be, they do not belong together, or the system has no roots.
pub fn client_config(
    ca: Option<&std::path::Path>,
    pair: Option<&Pair>,
    alpn: Alpn,
) -> Result<Arc<ClientConfig>, Unusable> {
    let roots = match ca {
        Some(path) => roots(path)?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match pair {
        Some(Pair { cert, key }) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| {
                unusable(
                    key,
                    format!("it does not go with {}: {error}", cert.display()),
                )
            })?,
        None => builder.with_no_client_auth(),
    };
    let (h2, http1) = (b"h2".to_vec(), b"http/1.1".to_vec());
    config.alpn_protocols = match alpn {
        Alpn::Http1 => vec![http1],
        Alpn::Http2 => vec![h2],
        Alpn::Either => vec![h2, http1],
    };
    Ok(Arc::new(config))
}

fn system_roots() -> Result<RootCertStore, Unusable> {
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
    Ok(roots)
}
