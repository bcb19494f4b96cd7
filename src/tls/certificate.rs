//! What a certificate says (X.509, RFC 5280): how long it may be used.

use std::path::Path;

use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Unusable, certificates, files::unusable};

/// When a certificate expires: seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry(pub i64);

/// When the first certificate of a file expires: the one that is shown, in front of its chain.
///
/// # Errors
/// The file cannot be read, is no PEM, or holds no certificate.
pub fn expiry(path: &Path) -> Result<Expiry, Unusable> {
    let chain = certificates(path)?;
    let first = chain
        .first()
        .and_then(|der| X509Certificate::from_der(der).ok());
    let (_, certificate) =
        first.ok_or_else(|| unusable(path, "its first certificate cannot be read"))?;
    Ok(Expiry(certificate.validity().not_after.timestamp()))
}
