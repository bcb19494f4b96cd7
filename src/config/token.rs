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

impl Token {
    /// Reads the file at `path`. White space around the token does not count.
    ///
    /// # Errors
    /// What is wrong with the file; never what stands in it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("the file cannot be read: {error}"))?;
        let token = text.trim();
        if token.is_empty() {
            return Err("the file is empty".into());
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the file holds no token".into());
        }
        Ok(Self(token.into()))
    }
}

/// Reads `token_file`.
pub(super) fn read(path: &str) -> Result<Token, Refusal> {
    Token::read(Path::new(path)).map_err(|why| Refusal::wrong(why).allowed(ALLOWED))
}
