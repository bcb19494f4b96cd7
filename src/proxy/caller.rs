//! The caller of a request: what its connection, its headers and its token say.

use http::HeaderMap;

use super::{Peer, Proxy};
use crate::{
    core::{
        caller::{self, CallerId, CallerMissing, Token},
        policy::Identity,
    },
    store::clock,
};

impl Proxy {
    /// Who is calling, by `identity`.
    ///
    /// It waits only where a token may have been signed by a key that is not known yet. Dropping the future changes nothing.
    ///
    /// # Errors
    /// The caller cannot be told, or is not who it says.
    pub(super) async fn caller(
        &self,
        identity: &Identity,
        peer: &Peer,
        headers: &HeaderMap,
    ) -> Result<CallerId, CallerMissing> {
        let address = caller::client_address(peer.address, headers, &self.trusted);
        let token = match identity.jwt {
            Some(verifier) => self.token(verifier, headers).await,
            None => Token::Refused, // nobody reads tokens, so that none is believed
        };
        caller::identify(
            identity,
            headers,
            &caller::Peer {
                address,
                certificate: peer.certificate.as_ref(),
            },
            &token,
        )
    }

    async fn token(&self, verifier: usize, headers: &HeaderMap) -> Token {
        let token = match caller::bearer_token(headers) {
            Ok(Some(token)) => token,
            Ok(None) => return Token::Absent,
            Err(CallerMissing) => return Token::Refused,
        };
        // The index was made with the list.
        let Some(verifier) = self.verifiers.get(verifier) else {
            return Token::Refused;
        };
        match verifier.verify(token, clock::wall).await {
            Ok(claims) => Token::Verified(claims),
            Err(fault) => {
                tracing::debug!(reason = fault.as_str(), "a token was refused");
                Token::Refused
            }
        }
    }
}
