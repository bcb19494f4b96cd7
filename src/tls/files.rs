//! The PEM files (RFC 7468) that a configuration names, and what is read from them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{Error, PemObject as _},
    },
};

use super::Unusable;

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
