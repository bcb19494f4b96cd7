//! Tokens: who signed them, and with which keys that is found out.
//!
//! A [`Verifier`] is made for each `[identity.jwt]` that is in effect. It takes a bearer token and gives the claims that
//! `core` names the caller by, or says why not. What is promised:
//!
//! - Only public keys verify (`jwk`: RSA, P-256, P-384, P-521, Ed25519), each only with its own kind of algorithm. `none` and
//!   HMAC do not exist here, so that no public key can serve as a secret. Headers that name keys (`jwk`, `jku`, `x5c`) are not
//!   looked at.
//! - Without keys every token is refused.
//! - Keys are replaced while the proxy runs, off the path of requests: a file when it changes, a URL every five minutes. Keys
//!   that are in force stay so while new ones cannot be read. A token that no key fits may ask for a URL's keys ahead of time,
//!   once in ten seconds, and waits for them. Behind `https` nobody is asked whose certificate does not prove the URL's host.
//! - A verifier that is [`Kept`] has its keys kept fresh for as long as a configuration or a request uses it.
//! - Tokens that were verified are remembered by their SHA-256, within 4 MiB, for the set of keys that verified them; times are
//!   judged at each request.
//!
//! The room knows no configuration and no clock: `config` makes [`Settings`], requests bring the time.

mod fetch;
mod file;
mod jwk;
mod jws;
mod keys;
mod verifier;

use std::{fmt, path::PathBuf, sync::Arc};

use rustls::pki_types::ServerName;

use crate::core::claims::Expected;

pub use self::{
    file::{Unreadable, read},
    jwk::{KeySet, Unusable},
    verifier::{Kept, Verifier},
};

/// `[identity.jwt]`: what a verifier is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the keys are.
    pub source: Source,
    /// What the claims must say.
    pub expected: Expected,
}

/// Where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `jwks_file`
    File {
        /// Its path.
        path: PathBuf,
        /// The keys that were in it when the configuration was read.
        keys: Arc<KeySet>,
    },
    /// `jwks_url`
    Url(Url),
}

/// The source as it is logged: the path, or host and port.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => path.display().fmt(f),
            Self::Url(url) => url.authority.fmt(f),
        }
    }
}

/// An `http://` or `https://` URL, split as it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// What is spoken there.
    pub scheme: Scheme,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Host and port as the URL has them.
    pub authority: http::uri::Authority,
    /// Path and query. They may hold a secret, and are not logged.
    pub target: http::uri::PathAndQuery,
}

/// What is spoken with whoever serves keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP in cleartext.
    Http,
    /// HTTP over TLS, with a server whose certificate is for this name or address.
    Https(ServerName<'static>),
}

/// The largest set of keys, in bytes, from a file or a URL.
const MAX_SET_BYTES: usize = 1 << 20;
