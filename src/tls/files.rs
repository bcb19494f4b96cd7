//! The PEM files (RFC 7468) that a configuration names, and what is read from them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{Error, PemObject as _},
    },
};

use super::{Alpn, Unusable, Watched, client_config, server_config};

/// A certificate with its chain, and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, and those that lead from it to a root.
    pub cert: PathBuf,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Whether clients prove who they are. The files hold the roots that their certificates must lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAuth {
    /// Nobody is asked.
    Off,
    /// Everybody is asked; who has no certificate is served all the same, who has a bad one is not.
    Optional(PathBuf),
    /// Only who has one is served.
    Required(PathBuf),
}

/// What a server needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// How it proves itself.
    pub pair: Pair,
    /// Whether its clients do.
    pub client_auth: ClientAuth,
}

impl ServerFiles {
    /// What they make of a listener, now and when they change.
    ///
    /// # Errors
    /// One of the files is not what it is to be, or they do not belong together.
    pub fn watched(self) -> Result<Watched<ServerConfig>, Unusable> {
        let mut files = vec![self.pair.cert.clone(), self.pair.key.clone()];
        match &self.client_auth {
            ClientAuth::Off => {}
            ClientAuth::Optional(ca) | ClientAuth::Required(ca) => files.push(ca.clone()),
        }
        let cert = Some(self.pair.cert.clone());
        Watched::new(files, cert, move || server_config(&self))
    }
}

/// What a call to an upstream needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamFiles {
    /// The roots that the upstream's certificate must lead to; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// How this proxy proves itself; `None`: not at all.
    pub pair: Option<Pair>,
    /// The name that the upstream's certificate must have.
    pub server_name: ServerName<'static>,
}

impl UpstreamFiles {
    /// What they make of a caller, now and when they change. The system's roots are read with them, and do not count as one of them.
    ///
    /// # Errors
    /// One of the files is not what it is to be, they do not belong together, or the system has no roots.
    pub fn watched(self, alpn: Alpn) -> Result<Watched<ClientConfig>, Unusable> {
        let cert = self.pair.as_ref().map(|pair| pair.cert.clone());
        let key = self.pair.as_ref().map(|pair| pair.key.clone());
        let files = [&self.ca, &cert, &key].into_iter().flatten().cloned();
        Watched::new(files.collect(), cert, move || {
            client_config(self.ca.as_deref(), self.pair.as_ref(), alpn)
        })
    }
}

/// The certificates of a file; at least one.
///
/// # Errors
/// The file cannot be read, is no PEM, or holds none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, Error>>)
        .map_err(|error| unusable(path, why(&error)))?;
    if found.is_empty() {
        return Err(unusable(path, "it holds no certificate"));
    }
    Ok(found)
}

/// The first private key of a file.
///
/// # Errors
/// The file cannot be read, is no PEM, or holds none.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Unusable> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        Error::NoItemsFound => unusable(path, "it holds no private key"),
        error => unusable(path, why(&error)),
    })
}

/// The certificates of a file, as those that others must lead to.
///
/// # Errors
/// The file cannot be read, is no PEM, or one of its certificates is none.
pub fn roots(path: &Path) -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

pub(super) fn unusable(path: &Path, why: impl fmt::Display) -> Unusable {
    Unusable::File {
        file: path.to_owned(),
        why: why.to_string(),
    }
}

/// What a fault of reading says; never a part of what was read.
fn why(error: &Error) -> String {
    match error {
        Error::Io(error) => format!("it cannot be read: {error}"),
        Error::NoItemsFound => "it holds nothing of that kind".into(),
        _ => "it is no PEM".into(),
    }
}
