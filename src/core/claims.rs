//! Claims: what a verified token says (RFC 7519), and whether it may be believed now.
//!
//! Nothing here looks at signatures: whoever makes [`Claims`] has verified the token that they stand in.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::{canonical, policy::JsonPointer, time::Timestamp};

/// So far apart the clocks of issuer and proxy may be, in seconds: it is added to `exp` and taken off `nbf` (RFC 7519,
/// sections 4.1.4 and 4.1.5).
pub const LEEWAY_SECONDS: u32 = 30;

/// Why a token is refused. Each is a 401 `caller-missing`; they differ in the log alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.as_str())]
pub enum TokenFault {
    /// It is no signed token in compact form (RFC 7515, section 7.1), or one with critical extensions.
    Malformed,
    /// Its algorithm is none that public keys verify: `none` and HMAC among them.
    Algorithm,
    /// No key fits it.
    UnknownKey,
    /// The key that it names did not sign it.
    Signature,
    /// Its claims are no JSON object with an `exp`, or have a member twice.
    Claims,
    /// `exp` has passed.
    Expired,
    /// `nbf` has not come.
    NotYetValid,
    /// `iss` is not the configured one.
    Issuer,
    /// `aud` does not have the configured one.
    Audience,
}

impl TokenFault {
    /// One of each.
    pub const ALL: [Self; 9] = [
        Self::Malformed,
        Self::Algorithm,
        Self::UnknownKey,
        Self::Signature,
        Self::Claims,
        Self::Expired,
        Self::NotYetValid,
        Self::Issuer,
        Self::Audience,
    ];

    /// The fault as it is logged.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Claims => "claims",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
        }
    }
}

/// `jwt:CLAIM`: where in the claims a value stands, as the names from the outside in; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(Vec<String>);

impl ClaimPath {
    /// Reads `sub` or `realm.tenant`, or a JSON pointer (RFC 6901) such as `/https:~1~1id.test~1tenant` for names that
    /// have dots. `None`: a name is empty, or it is no such pointer.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let names: Vec<String> = if text.starts_with('/') {
            JsonPointer::parse(text)?.tokens().to_vec()
        } else {
            text.split('.').map(str::to_owned).collect()
        };
        names
            .iter()
            .all(|name| !name.is_empty())
            .then_some(Self(names))
    }

    /// The names, outermost first.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

/// What the claims must say, beside their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// What `iss` must be; `None`: it is not looked at.
    pub issuer: Option<String>,
    /// What `aud` must be or contain; `None`: it is not looked at.
    pub audience: Option<String>,
}

/// The claims of a token whose signature was verified.
pub struct Claims {
    /// A JSON object without duplicate members.
    payload: Box<str>,
    /// `exp`, in seconds since the Unix epoch.
    expires: f64,
    /// `nbf`, likewise.
    not_before: Option<f64>,
}

impl Claims {
    /// Reads the payload of a token.
    ///
    /// # Errors
    /// [`TokenFault::Claims`], [`TokenFault::Issuer`] or [`TokenFault::Audience`].
    pub fn read(payload: Vec<u8>, expected: &Expected) -> Result<Self, TokenFault> {
        // The strict reading: no member twice, no invalid UTF-8, nothing behind the end.
        canonical::json(&payload, &[], &[]).ok_or(TokenFault::Claims)?;
        let payload = String::from_utf8(payload).map_err(|_| TokenFault::Claims)?;
        let members = members(&payload).ok_or(TokenFault::Claims)?;
        if let Some(issuer) = &expected.issuer
            && members.get("iss").and_then(|raw| text(raw)).as_ref() != Some(issuer)
        {
            return Err(TokenFault::Issuer);
        }
        if let Some(audience) = &expected.audience
            && !members.get("aud").is_some_and(|raw| names(raw, audience))
        {
            return Err(TokenFault::Audience);
        }
        let time = |name| members.get(name).map(|raw| seconds(raw));
        let expires = time("exp").flatten().ok_or(TokenFault::Claims)?;
        let not_before = match time("nbf") {
            Some(None) => return Err(TokenFault::Claims),
            given => given.flatten(),
        };
        Ok(Self {
            payload: payload.into(),
            expires,
            not_before,
        })
    }

    /// Whether they may be believed at `now`, by the wall clock.
    ///
    /// # Errors
    /// [`TokenFault::Expired`] or [`TokenFault::NotYetValid`].
    pub fn in_force(&self, now: Timestamp) -> Result<(), TokenFault> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds until the year 287396 are exact"
        )]
        let now = now.as_millis() as f64 / 1000.0;
        let leeway = f64::from(LEEWAY_SECONDS);
        if now >= self.expires + leeway {
            return Err(TokenFault::Expired);
        }
        if self.not_before.is_some_and(|start| now + leeway < start) {
            return Err(TokenFault::NotYetValid);
        }
        Ok(())
    }

    /// How many bytes they have.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len()
    }

    /// The value at `path` in its canonical form, which says its kind too: a string, a number by its exact decimal value,
    /// or a truth value. `None`: it is absent, `null` or an empty string.
    ///
    /// # Errors
    /// [`NoName`]: it is an array or object, or the way to it does not lead through objects.
    pub fn at(&self, path: &ClaimPath) -> Result<Option<Vec<u8>>, NoName> {
        let mut text: &str = &self.payload;
        for name in path.names() {
            match members(text).ok_or(NoName)?.get(name.as_str()) {
                Some(value) if value.get() == "null" => return Ok(None),
                Some(value) => text = value.get(),
                None => return Ok(None),
            }
        }
        match text.as_bytes() {
            [b'[' | b'{', ..] => Err(NoName),
            br#""""# => Ok(None),
            value => canonical::json(value, &[], &[]).map(Some).ok_or(NoName),
        }
    }
}

/// A claim cannot name anybody: it is an array, an object, or not where it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoName;

/// Claims say who somebody is, so they are not shown.
impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claims(…)")
    }
}

/// The members of a JSON object that has none twice; `None`: it is no object.
fn members(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// Whether an `aud` is, or contains, `audience` (RFC 7519, section 4.1.3).
fn names(raw: &RawValue, audience: &str) -> bool {
    match serde_json::from_str::<Vec<String>>(raw.get()) {
        Ok(all) => all.iter().any(|one| one == audience),
        Err(_) => text(raw).is_some_and(|one| one == audience),
    }
}

/// A `NumericDate` (RFC 7519, section 2); a part of a second may be given.
fn seconds(raw: &RawValue) -> Option<f64> {
    let number: f64 = serde_json::from_str(raw.get()).ok()?;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests;
