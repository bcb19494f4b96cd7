//! A chunked body (RFC 9112, section 7.1), read as it comes.

use super::{fault::Fault, scan::is_token};

/// The extensions of a body, and its trailers with the empty line behind them, have fewer bytes than this each.
const MAX_BESIDE: u32 = 16 * 1024;

/// So many trailer fields there may be.
const MAX_TRAILERS: u32 = 100;

/// A size has at most so many digits.
const MAX_DIGITS: u8 = 16;

/// Where in a chunked body the reading is.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunked {
    at: At,
    /// Bytes of extensions so far.
    extensions: u32,
    /// Bytes of the trailer section so far.
    trailers: u32,
    fields: u32,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// In a size line, behind so many digits.
    Size { size: u64, digits: u8 },
    /// In an extension of a chunk of this size.
    Extension { size: u64 },
    /// Behind the CR of a size line.
    SizeEnd { size: u64 },
    /// In data of which so much is to come.
    Data { left: u64 },
    /// Behind the data.
    DataCr,
    /// Behind the CR behind the data.
    DataLf,
    /// At the start of a line in the trailer section.
    TrailerStart,
    /// In a trailer's name.
    TrailerName,
    /// In a trailer's value.
    TrailerValue,
    /// Behind the CR of a trailer.
    TrailerEnd,
    /// Behind the last CR of all.
    LastLf,
}

impl Default for At {
    fn default() -> Self {
        Self::Size { size: 0, digits: 0 }
    }
}

/// How far the reading came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// So many bytes are of the body, and good.
    pub(super) good: usize,
    pub(super) then: Then,
}

/// What comes behind the good bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// More of the body.
    More,
    /// What is no longer the body.
    End,
    /// What cannot be read.
    Fault(Fault),
}

impl Chunked {
    /// Reads on; `bytes` are new.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Progress {
        let mut good = 0;
        while let Some(byte) = bytes.get(good) {
            if let At::Data { left } = self.at {
                let here = (bytes.len() - good) as u64;
                if left > here {
                    self.at = At::Data { left: left - here };
                    good = bytes.len();
                    break;
                }
                // Not more than what is here, which is counted in usize.
                good += usize::try_from(left).unwrap_or(0);
                self.at = At::DataCr;
                continue;
            }
            match self.step(*byte) {
                Err(fault) => {
                    let then = Then::Fault(fault);
                    return Progress { good, then };
                }
                Ok(Step::On) => good += 1,
                Ok(Step::End) => {
                    good += 1;
                    let then = Then::End;
                    return Progress { good, then };
                }
            }
        }
        let then = Then::More;
        Progress { good, then }
    }

    fn step(&mut self, byte: u8) -> Result<Step, Fault> {
        let next = match (self.at, byte) {
            (At::Size { size, digits }, byte) if byte.is_ascii_hexdigit() => {
                if digits == MAX_DIGITS {
                    return Err(Fault::ChunkSize);
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                At::Size {
                    size: size << 4 | u64::from(digit),
                    digits: digits + 1,
                }
            }
            (At::Size { digits: 0, .. }, _) => return Err(Fault::ChunkSize),
            (At::Size { size, .. } | At::Extension { size }, b'\r') => At::SizeEnd { size },
            (At::Size { size, .. }, b';') => At::Extension { size },
            (At::Size { .. }, _) => return Err(Fault::ChunkSize),
            (At::Extension { size }, byte) if is_text(byte) => {
                self.extensions += 1;
                if self.extensions >= MAX_BESIDE {
                    return Err(Fault::ChunkExtension);
                }
                At::Extension { size }
            }
            (At::Extension { .. }, _) => return Err(Fault::ChunkExtension),
            (At::SizeEnd { size: 0 }, b'\n') => At::TrailerStart,
            (At::SizeEnd { size }, b'\n') => At::Data { left: size },
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::default(),
            (At::LastLf, b'\n') => return Ok(Step::End),
            (At::SizeEnd { .. } | At::DataCr | At::DataLf | At::Data { .. } | At::LastLf, _) => {
                return Err(Fault::ChunkEnd);
            }
            (at, byte) => self.trailer(at, byte)?,
        };
        self.at = next;
        Ok(Step::On)
    }

    fn trailer(&mut self, at: At, byte: u8) -> Result<At, Fault> {
        self.trailers += 1;
        // The last LF of all is not counted here.
        if self.trailers + 1 >= MAX_BESIDE {
            return Err(Fault::Trailers);
        }
        match (at, byte) {
            (At::TrailerStart, b'\r') => Ok(At::LastLf),
            (At::TrailerStart | At::TrailerName, byte) if is_token(byte) => Ok(At::TrailerName),
            (At::TrailerName, b':') => {
                self.fields += 1;
                if self.fields > MAX_TRAILERS {
                    return Err(Fault::Trailers);
                }
                Ok(At::TrailerValue)
            }
            (At::TrailerValue, b'\r') => Ok(At::TrailerEnd),
            (At::TrailerValue, byte) if is_text(byte) => Ok(At::TrailerValue),
            (At::TrailerEnd, b'\n') => Ok(At::TrailerStart),
            _ => Err(Fault::Trailers),
        }
    }
}

enum Step {
    On,
    End,
}

/// Whether the byte may stand in a value: no control but HTAB.
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
