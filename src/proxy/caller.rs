//! The caller of a request: what its connection, its headers and its token say.
//!
//! Nearly every request of a connection brings the credential of the one before. Where that alone says who is calling, it is compared with
//! the last one and not hashed again.

use std::fmt;

use http::{HeaderMap, header::AUTHORIZATION};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{Peer, Proxy};
use crate::{
    core::{
        caller::{self, CallerId, CallerMissing, Token},
        policy::{CallerPart, Identity},
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
        let credential = only_credential(identity, headers);
        if let Some(caller) = credential.and_then(|credential| peer.known.recall(credential)) {
            return Ok(caller);
        }
        let address = if identity.from.contains(&CallerPart::PeerIp) {
            caller::client_address(peer.address, headers, &self.trusted)
        } else {
            None // nobody asks
        };
        let token = match identity.jwt {
            Some(verifier) => self.token(verifier, headers).await,
            None => Token::Refused, // nobody reads tokens, so that none is believed
        };
        let caller = caller::identify(
            identity,
            headers,
            &caller::Peer {
                address,
                certificate: peer.certificate.as_ref(),
            },
            &token,
        )?;
        if let Some(credential) = credential {
            peer.known.keep(credential, caller);
        }
        Ok(caller)
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

/// The credential that alone says who is calling: the value of the one line of Authorization, where the caller is nothing else.
fn only_credential<'h>(identity: &Identity, headers: &'h HeaderMap) -> Option<&'h [u8]> {
    if identity.from != [CallerPart::Authorization] {
        return None;
    }
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let first = lines.next()?;
    let value = first.as_bytes();
    // What an empty value means is said by `missing`, which routes differ in.
    (lines.next().is_none() && !value.trim_ascii().is_empty()).then_some(value)
}

/// The caller that a connection's last credential was.
#[derive(Default)]
pub(super) struct Known(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    last: Option<(Zeroizing<Box<[u8]>>, CallerId)>,
    /// How many other credentials came in a row. A connection that many callers share is not worth remembering.
    others: u8,
}

/// So many, and nothing is remembered any more.
const OTHERS: u8 = 8;

/// Longer credentials are not remembered, in bytes.
const LONGEST: usize = 4096;

impl Known {
    fn recall(&self, credential: &[u8]) -> Option<CallerId> {
        let mut memory = self.0.lock();
        let (last, caller) = memory.last.as_ref()?;
        let caller = equal(last, credential).then_some(*caller)?;
        memory.others = 0;
        Some(caller)
    }

    fn keep(&self, credential: &[u8], caller: CallerId) {
        let mut memory = self.0.lock();
        if memory.others >= OTHERS || credential.len() > LONGEST {
            memory.last = None;
            return;
        }
        memory.others += 1;
        memory.last = Some((Zeroizing::new(credential.into()), caller));
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known(…)")
    }
}

/// Whether both are the same; how long it takes says nothing of where they differ.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differing = |(one, other): (&u8, &u8)| one ^ other;
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .map(differing)
            .fold(0, |all, bits| all | bits)
            == 0
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::core::policy::MissingCaller;

    fn identity(from: Vec<CallerPart>) -> Identity {
        Identity {
            from,
            missing: MissingCaller::Reject,
            jwt: None,
        }
    }

    fn caller(credential: &'static str) -> CallerId {
        let identity = identity(vec![CallerPart::Authorization]);
        let headers = [(AUTHORIZATION, HeaderValue::from_static(credential))]
            .into_iter()
            .collect();
        caller::identify(
            &identity,
            &headers,
            &caller::Peer::default(),
            &Token::Absent,
        )
        .expect("a caller")
    }

    #[test]
    fn the_last_credential_alone_is_known_and_to_the_byte() {
        let known = Known::default();
        assert_eq!(known.recall(b"Bearer a"), None);
        known.keep(b"Bearer a", caller("Bearer a"));
        assert_eq!(known.recall(b"Bearer a"), Some(caller("Bearer a")));
        for other in [&b"Bearer b"[..], b"Bearer ", b"Bearer aa", b""] {
            assert_eq!(known.recall(other), None);
        }
        known.keep(b"Bearer b", caller("Bearer b"));
        assert_eq!(known.recall(b"Bearer a"), None);
        assert_eq!(known.recall(b"Bearer b"), Some(caller("Bearer b")));
    }

    #[test]
    fn a_connection_of_many_callers_is_remembered_no_longer() {
        let known = Known::default();
        for _ in 0..OTHERS {
            known.keep(b"Bearer a", caller("Bearer a"));
        }
        assert_eq!(known.recall(b"Bearer a"), Some(caller("Bearer a")));
        for _ in 0..OTHERS {
            known.keep(b"Bearer b", caller("Bearer b"));
        }
        known.keep(b"Bearer b", caller("Bearer b"));
        assert_eq!(known.recall(b"Bearer b"), None);
        let known = Known::default();
        known.keep(&[b'x'; LONGEST + 1], caller("Bearer a"));
        assert_eq!(known.recall(&[b'x'; LONGEST + 1]), None);
    }

    #[test]
    fn only_one_line_that_says_all_is_remembered() {
        let headers = |values: &[&'static str]| {
            let line = |value: &&'static str| (AUTHORIZATION, HeaderValue::from_static(value));
            values.iter().map(line).collect::<HeaderMap>()
        };
        let alone = identity(vec![CallerPart::Authorization]);
        let one = headers(&["Bearer a"]);
        assert_eq!(only_credential(&alone, &one), Some(&b"Bearer a"[..]));
        assert_eq!(only_credential(&alone, &headers(&[])), None);
        assert_eq!(only_credential(&alone, &headers(&[""])), None);
        let mut two = one.clone();
        two.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert_eq!(only_credential(&alone, &two), None);
        for from in [
            vec![],
            vec![CallerPart::PeerIp],
            vec![CallerPart::Authorization, CallerPart::PeerIp],
        ] {
            assert_eq!(only_credential(&identity(from), &one), None);
        }
    }
}
