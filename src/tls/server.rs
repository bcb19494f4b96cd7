//! TLS as a server.

use std::sync::Arc;

use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::{
    ClientAuth, ServerFiles, Unusable, certificates,
    files::{private_key, roots, unusable},
    provider,
};

/// The configuration of a listener that speaks HTTP/2 and HTTP/1.1, from its files as they are now. Blocks for as long as the file
/// system does.
///
/// # Errors
/// One of the files is not what it is to be, or they do not belong together.
pub fn server_config(files: &ServerFiles) -> Result<Arc<ServerConfig>, Unusable> {
    let ServerFiles { pair, client_auth } = files;
    let chain = certificates(&pair.cert)?;
    let key = private_key(&pair.key)?;
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match verifier(client_auth)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        unusable(
            &pair.key,
            format!("it does not go with {}: {error}", pair.cert.display()),
        )
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if !matches!(client_auth, ClientAuth::Off) {
        // A session that is resumed shows no certificate: it would outlive the one that it began with.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

fn verifier(client_auth: &ClientAuth) -> Result<Option<Arc<dyn ClientCertVerifier>>, Unusable> {
    let (path, required) = match client_auth {
        ClientAuth::Off => return Ok(None),
        ClientAuth::Optional(path) => (path, false),
        ClientAuth::Required(path) => (path, true),
    };
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider());
    if !required {
        builder = builder.allow_unauthenticated();
    }
    builder
        .build()
        .map(Some)
        .map_err(|error| unusable(path, error))
}
