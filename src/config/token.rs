//! The bearer token of the admin API, from its file.

use std::{fmt, path::Path, sync::Arc};

use super::problem::Refusal;

/// A bearer token (RFC 6750, section 2.1). Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    /// The token itself, to be compared in constant time.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

const ALLOWED: &str = "a file with one line: a token of visible ASCII characters";

/// Reads `token_file`. White space around the token does not count.
pub(super) fn read(path: &str) -> Result<Token, Refusal> {
    let refuse = |why: String| Refusal::wrong(why).allowed(ALLOWED);
    let text = std::fs::read_to_string(Path::new(path))
        .map_err(|error| refuse(format!("the file cannot be read: {error}")))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(refuse("the file is empty".into()));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(refuse("the file holds no token".into()));
    }
    Ok(Token(token.into()))
}
