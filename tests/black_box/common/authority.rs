//! Certificates, made as tests run: an authority, what it certifies, and TLS clients that believe it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer},
    version,
};

/// A certification authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    own: CertificateDer<'static>,
    pem: String,
}

/// A certificate and its key.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) cert: String,
    pub(crate) key: String,
    der: CertificateDer<'static>,
    secret: PrivateKeyDer<'static>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate");
        Self {
            pem: own.pem(),
            own: own.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Its own certificate, as a peer that believes it wants it.
    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.own
    }

    /// A server's certificate for `localhost`.
    pub(crate) fn server(&self) -> Certified {
        self.certify(|params| {
            params.subject_alt_names =
                vec![SanType::DnsName("localhost".try_into().expect("ASCII"))];
        })
    }

    /// A client's certificate with this common name.
    pub(crate) fn client(&self, name: &str) -> Certified {
        self.certify(|params| {
            params.distinguished_name = named(name);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    /// A client's certificate with this common name and these URIs.
    pub(crate) fn client_with(&self, name: &str, uris: &[&str]) -> Certified {
        self.certify(|params| {
            params.distinguished_name = named(name);
            let uri = |uri: &&str| SanType::URI((*uri).try_into().expect("ASCII"));
            params.subject_alt_names = uris.iter().map(uri).collect();
        })
    }

    /// A certificate as `change` makes it.
    pub(crate) fn certify(&self, change: impl FnOnce(&mut CertificateParams)) -> Certified {
        let mut params = CertificateParams::default();
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Certified {
            cert: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            secret: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        }
    }

    /// A client that believes this authority, speaks HTTP/1.1, and shows this certificate if asked.
    pub(crate) fn connector(&self, certificate: Option<&Certified>) -> Arc<ClientConfig> {
        Arc::new(self.settings(certificate, &[&version::TLS12, &version::TLS13]))
    }

    /// The same, to be changed.
    pub(crate) fn settings(
        &self,
        certificate: Option<&Certified>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.own.clone()).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(shown) => builder
                .with_client_auth_cert(vec![shown.der.clone()], shown.secret.clone_key())
                .expect("a certificate and its key"),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}

impl Certified {
    /// Writes both into `folder`, as `tls.crt` and `tls.key`.
    pub(crate) fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        fs::create_dir_all(folder).expect("a folder");
        let (cert, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        fs::write(&cert, &self.cert).expect("the folder takes a file");
        fs::write(&key, &self.key).expect("the folder takes a file");
        (cert, key)
    }

    /// Its key.
    pub(crate) fn secret(&self) -> PrivateKeyDer<'static> {
        self.secret.clone_key()
    }

    /// The certificate, as a peer sees it.
    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if !name.is_empty() {
        subject.push(DnType::CommonName, name);
    }
    subject
}
