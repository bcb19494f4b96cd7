//! Chunked bodies of answers (RFC 9112, section 7.1): framing away, data out.
//!
//! White space behind a size and extensions are let through, as other clients do; line ends are CRLF alone.

use bytes::{Buf as _, Bytes, BytesMut};

/// The size lines' extensions of a body, and its trailers, have fewer bytes than this each.
const MAX_BESIDE: usize = 16 * 1024;

/// A size has at most so many digits.
const MAX_DIGITS: u8 = 16;

/// Where in a chunked body the reading is.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    at: At,
    /// Bytes of extensions so far.
    extensions: usize,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// In a size, behind so many digits.
    Size { size: u64, digits: u8 },
    /// Behind a size, in white space or an extension.
    Extension { size: u64 },
    /// Behind the CR of a size line.
    SizeEnd { size: u64 },
    /// In data of which so much is to come.
    Data { left: u64 },
    /// Behind the data.
    DataCr,
    /// Behind the CR behind the data.
    DataLf,
    /// In the trailer section, the first so many bytes of which hold no end.
    Trailers { seen: usize },
}

impl Default for At {
    fn default() -> Self {
        Self::Size { size: 0, digits: 0 }
    }
}

/// What comes next of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Data; never empty.
    Data(Bytes),
    /// Its end, and the lines of the trailer section, each with its CRLF.
    End(Bytes),
    /// More bytes are needed.
    More,
}

impl Chunked {
    /// Takes the next piece out of what was read.
    ///
    /// # Errors
    /// What is wrong with the framing.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Result<Piece, &'static str> {
        loop {
            match self.at {
                At::Data { left } if !input.is_empty() => {
                    let here =
                        usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
                    let data = input.split_to(here).freeze();
                    self.at = match left - here as u64 {
                        0 => At::DataCr,
                        left => At::Data { left },
                    };
                    return Ok(Piece::Data(data));
                }
                At::Trailers { seen } => return self.trailers(input, seen),
                _ => {}
            }
            let Some(byte) = input.first().copied() else {
                return Ok(Piece::More);
            };
            self.at = self.step(byte)?;
            input.advance(1);
        }
    }

    fn step(&mut self, byte: u8) -> Result<At, &'static str> {
        Ok(match (self.at, byte) {
            (At::Size { size, digits }, byte) if byte.is_ascii_hexdigit() => {
                if digits == MAX_DIGITS {
                    return Err("a chunk's size has too many digits");
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                At::Size {
                    size: size << 4 | u64::from(digit),
                    digits: digits + 1,
                }
            }
            (At::Size { digits: 0, .. }, _) => return Err("a chunk has no size"),
            (At::Size { size, .. } | At::Extension { size }, b'\r') => At::SizeEnd { size },
            (At::Size { size, .. }, b';' | b' ' | b'\t') => At::Extension { size },
            (At::Size { .. }, _) => return Err("a chunk's size is no number"),
            (At::Extension { .. }, b'\n') => return Err("a chunk's size line ends with a bare LF"),
            (At::Extension { size }, _) => {
                self.extensions += 1;
                if self.extensions >= MAX_BESIDE {
                    return Err("the extensions of a chunked body are too long");
                }
                At::Extension { size }
            }
            (At::SizeEnd { size: 0 }, b'\n') => At::Trailers { seen: 0 },
            (At::SizeEnd { size }, b'\n') => At::Data { left: size },
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::default(),
            _ => return Err("a chunk does not end where it should"),
        })
    }

    /// The section ends with an empty line: CRLF at its beginning, or two of them in a row.
    fn trailers(&mut self, input: &mut BytesMut, seen: usize) -> Result<Piece, &'static str> {
        let end = if input.starts_with(b"\r\n") {
            Some(0)
        } else {
            let from = seen.saturating_sub(3);
            let found = memchr::memmem::find(input.get(from..).unwrap_or_default(), b"\r\n\r\n");
            found.map(|at| from + at + 2)
        };
        if end.unwrap_or(input.len()) >= MAX_BESIDE {
            return Err("the trailers of a body are too long");
        }
        let Some(end) = end else {
            self.at = At::Trailers { seen: input.len() };
            return Ok(Piece::More);
        };
        let lines = input.split_to(end).freeze();
        input.advance(2);
        Ok(Piece::End(lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data and the trailers of a body, in one piece and byte by byte, and how much is left behind it.
    fn read(body: &str) -> Result<(String, String, usize), &'static str> {
        let whole = pieces(body, body.len().max(1));
        assert_eq!(whole, pieces(body, 1), "{body:?}");
        whole
    }

    fn pieces(body: &str, step: usize) -> Result<(String, String, usize), &'static str> {
        let (mut chunked, mut input, mut data) = (Chunked::default(), BytesMut::new(), Vec::new());
        let mut taken = 0;
        for piece in body.as_bytes().chunks(step) {
            input.extend_from_slice(piece);
            taken += piece.len();
            loop {
                match chunked.next(&mut input)? {
                    Piece::More => break,
                    Piece::Data(piece) => data.extend_from_slice(&piece),
                    Piece::End(lines) => {
                        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                        let left = input.len() + body.len() - taken;
                        return Ok((text(&data), text(&lines), left));
                    }
                }
            }
        }
        Err("unfinished")
    }

    #[test]
    fn data_comes_without_its_framing() {
        let read = |body| read(body).unwrap();
        assert_eq!(read("0\r\n\r\n"), (String::new(), String::new(), 0));
        let body = "3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n1 \r\nz\r\n000\r\n\r\nHTTP";
        assert_eq!(read(body), ("abc0123456789z".into(), String::new(), 4));
        let body = "1\r\na\r\n0\r\nA: b\r\nC: d\r\n\r\n";
        assert_eq!(read(body), ("a".into(), "A: b\r\nC: d\r\n".into(), 0));
    }

    #[test]
    fn what_could_end_elsewhere_is_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\na\r\n",
            "0x1\r\n",
            "1\na\r\n0\r\n\r\n",
            "1\r\nab\r\n0\r\n\r\n",
            "1\r\na\n0\r\n\r\n",
            "1;x\na\r\n0\r\n\r\n",
            "10000000000000000\r\n",
            "1 \n",
            "1\r\r\na",
        ] {
            let refused = read(body);
            assert!(refused.is_err_and(|why| why != "unfinished"), "{body:?}");
        }
    }

    #[test]
    fn what_stands_beside_the_data_is_bounded() {
        let long = "x".repeat(MAX_BESIDE);
        assert!(read(&format!("1;{long}\r\na\r\n")).is_err_and(|why| why.contains("extensions")));
        assert!(read(&format!("0\r\nA: {long}")).is_err_and(|why| why.contains("trailers")));
        assert!(
            read(&format!("0\r\nA: {long}\r\n\r\n")).is_err_and(|why| why.contains("trailers"))
        );
    }
}
