//! What a certificate says (X.509, RFC 5280): how long it may be used, and whom it names.

use std::path::Path;

use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

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

/// Whom a certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its subject, as it is encoded (DER).
    pub subject: Vec<u8>,
    /// The URIs among its subject alternative names (RFC 5280, section 4.2.1.6), in their order.
    pub uris: Vec<String>,
}

/// Whom a certificate (DER) names; `None`: it cannot be told, for it is malformed. Nothing is verified here.
#[must_use]
pub fn named(certificate: &[u8]) -> Option<Named> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut uris = Vec::new();
    // An extension that stands twice is an error here.
    if let Some(names) = certificate.subject_alternative_name().ok()? {
        for name in &names.value.general_names {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                // It might have been one.
                GeneralName::Invalid(..) => return None,
                _ => {}
            }
        }
    }
    Some(Named {
        subject: certificate.subject().as_raw().to_vec(),
        uris,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(uris: &[&str], name: Option<&str>) -> Vec<u8> {
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names.extend(uris.iter().map(uri));
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn its_subject_and_its_uris_are_read() {
        let uris = ["spiffe://td/a", "https://a.test/"];
        let named = named(&certificate(&uris, Some("ann"))).unwrap();
        assert_eq!(named.uris, uris);
        assert!(named.subject.ends_with(b"ann"));
        assert_eq!(named.subject[0], 0x30, "a sequence");
        assert_eq!(usize::from(named.subject[1]), named.subject.len() - 2);

        let unnamed = super::named(&certificate(&[], None)).unwrap();
        assert_eq!((unnamed.subject, unnamed.uris), (vec![0x30, 0], Vec::new()));
    }

    #[test]
    fn what_cannot_be_read_names_nobody() {
        let good = certificate(&["spiffe://td/a"], Some("ann"));
        for length in 0..good.len() {
            assert_eq!(named(&good[..length]), None);
        }
        // A URI is ASCII: what is not might be anything.
        let at = good.windows(9).position(|bytes| bytes == b"spiffe://");
        let mut bad = good;
        bad[at.unwrap()] = 0xff;
        assert_eq!(named(&bad), None);
    }
}
