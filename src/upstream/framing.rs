//! What an answer's head says of its framing, where one parser may believe it and another would read it otherwise.
//!
//! An answer that two parsers can end at two places is no answer: what follows on its connection could be anybody's (RFC 9112, section
//! 11.1). HTTP/2 frames by itself; of it the status and Content-Length alone are looked at.

use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

/// What may be done with the connection once the answer has come whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It may serve another request.
    Reuse,
    /// It is closed: the upstream says so, or the answer ends with it, or the answer has no body but its head tells of one, which may
    /// follow all the same.
    Close,
}

/// Judges an answer's head.
///
/// # Errors
/// What is wrong with it: it is not to be believed.
pub(super) fn judge(status: StatusCode, headers: &HeaderMap) -> Result<After, &'static str> {
    let mut said = Said::default();
    for length in headers.get_all(CONTENT_LENGTH) {
        said.length(length)?;
    }
    for coding in headers.get_all(TRANSFER_ENCODING) {
        said.coding(coding)?;
    }
    Ok(said.after(status))
}

/// What a head has said of its framing so far.
#[derive(Debug, Default)]
pub(super) struct Said {
    length: Option<u64>,
    chunked: bool,
}

impl Said {
    /// One more `Content-Length`.
    pub(super) fn length(&mut self, length: &HeaderValue) -> Result<(), &'static str> {
        let digits = length.as_bytes();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err("its Content-Length is not one number");
        }
        if self.length.is_some() {
            return Err("it has more than one Content-Length");
        }
        let number = length.to_str().ok().and_then(|digits| digits.parse().ok());
        self.length = Some(number.ok_or("its Content-Length is too large")?);
        self.one_of_both()
    }

    /// One more `Transfer-Encoding`.
    pub(super) fn coding(&mut self, coding: &HeaderValue) -> Result<(), &'static str> {
        if self.chunked || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err("its transfer coding is not chunked, once");
        }
        self.chunked = true;
        self.one_of_both()
    }

    fn one_of_both(&self) -> Result<(), &'static str> {
        if self.chunked && self.length.is_some() {
            return Err("it has a Content-Length and a Transfer-Encoding");
        }
        Ok(())
    }

    /// Whether the body is chunked.
    pub(super) const fn is_chunked(&self) -> bool {
        self.chunked
    }

    /// The length, where there is one.
    pub(super) const fn number(&self) -> Option<u64> {
        self.length
    }

    /// What follows for the connection, where nothing else ends it.
    pub(super) fn after(&self, status: StatusCode) -> After {
        let tells_of_a_body = self.chunked || self.length.is_some_and(|length| length != 0);
        if status == StatusCode::NO_CONTENT && tells_of_a_body {
            return After::Close;
        }
        After::Reuse
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn judged(status: u16, lines: &[(&str, &str)]) -> Result<After, &'static str> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        judge(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn plain_framing_passes() {
        for lines in [
            &[][..],
            &[("content-length", "0")],
            &[("content-length", "18446744073709551615")],
            &[("transfer-encoding", "Chunked")],
        ] {
            assert_eq!(judged(200, lines), Ok(After::Reuse), "{lines:?}");
        }
        assert_eq!(
            judged(304, &[("content-length", "7")]),
            Ok(After::Reuse),
            "the length of what is not here"
        );
    }

    #[test]
    fn doubtful_framing_is_refused_whatever_the_status() {
        for lines in [
            &[("content-length", "5"), ("content-length", "5")][..],
            &[("content-length", "5"), ("content-length", "6")],
            &[("content-length", "5, 5")],
            &[("content-length", "+5")],
            &[("content-length", "0x5")],
            &[("content-length", "")],
            &[("content-length", "5"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked, chunked")],
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
            &[("transfer-encoding", "gzip")],
            &[("transfer-encoding", "identity")],
        ] {
            for status in [200, 204, 304, 500] {
                assert!(judged(status, lines).is_err(), "{status} {lines:?}");
            }
        }
    }

    #[test]
    fn a_204_that_tells_of_a_body_ends_its_connection() {
        assert_eq!(judged(204, &[("content-length", "0")]), Ok(After::Reuse));
        for line in [("content-length", "2"), ("transfer-encoding", "chunked")] {
            assert_eq!(judged(204, &[line]), Ok(After::Close));
        }
    }
}
