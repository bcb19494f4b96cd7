//! One request head, read as it comes.

use super::{
    fault::Fault,
    line::{self, Version},
    scan::next_control,
    stream::Limits,
};

/// So many fields may stand in a head: over HTTP/1.x the parser behind takes no more, and looking at each of them for each rule would
/// cost the proxy more than it costs the client to send them.
pub const MAX_FIELDS: usize = 100;

/// A larger body is none to the parser behind.
const LONGEST_BODY: u64 = u64::MAX - 2;

/// What was read of a head so far. It holds no bytes: whoever reads keeps them, from the head's first on.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    /// Where the line begins that is not whole yet.
    line: usize,
    /// Up to where that line was looked at.
    scanned: usize,
    stage: Stage,
    facts: Facts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// An empty line may still come before the request line (RFC 9112, section 2.2).
    #[default]
    Before,
    RequestLine,
    Fields(Version),
}

#[derive(Clone, Debug, Default)]
struct Facts {
    fields: u8,
    hosts: u8,
    length: Option<u64>,
    chunked: bool,
    /// `Upgrade` stands there.
    upgrade: bool,
    /// `Connection` names it.
    upgrade_named: bool,
}

/// A head that is whole, and good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// How many bytes it has.
    pub(super) length: usize,
    pub(super) body: Body,
    pub(super) after: After,
}

/// How a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Length(u64),
    Chunked,
}

/// What may follow the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Another one.
    Request,
    /// Whatever the protocol has that it asks for (RFC 9110, section 7.8).
    Upgrade,
}

impl Head {
    /// Reads on; `head` is everything since the head's first byte. `None`: it is not whole yet.
    pub(super) fn read(&mut self, head: &[u8], limits: &Limits) -> Result<Option<Whole>, Fault> {
        loop {
            let found = next_control(head, self.scanned);
            if let Some(at) = found
                && head.get(at..at + 2) == Some(b"\r\n")
                && at + 2 <= limits.head_bytes
            {
                let line = head.get(self.line..at).unwrap_or_default();
                let end = self.whole_line(line, limits)?;
                self.line = at + 2;
                self.scanned = self.line;
                let Some((body, after)) = end else { continue };
                let length = self.line;
                return Ok(Some(Whole {
                    length,
                    body,
                    after,
                }));
            }
            let seen = found.unwrap_or(head.len());
            self.check_size(head, seen, limits)?;
            self.scanned = seen;
            return match (head.get(seen), head.get(seen + 1)) {
                (None, _) | (Some(b'\r'), None) => Ok(None),
                (Some(b'\r'), Some(_)) if seen + 2 > limits.head_bytes => Err(Fault::HeadTooLarge),
                (Some(b'\r'), Some(_)) => Err(Fault::BareCr),
                (Some(b'\n'), _) => Err(Fault::BareLf),
                (Some(_), _) => Err(Fault::Control),
            };
        }
    }

    /// Whether the head is within its limits, as far as it was `seen`. The verdict is the same however the bytes were split.
    fn check_size(&self, head: &[u8], seen: usize, limits: &Limits) -> Result<(), Fault> {
        if !matches!(self.stage, Stage::Fields(_)) {
            let line = head.get(self.line..seen.min(limits.head_bytes));
            line::unfinished_request_line(line.unwrap_or_default(), limits.target_bytes)?;
        }
        if seen >= limits.head_bytes {
            return Err(Fault::HeadTooLarge);
        }
        Ok(())
    }

    /// Takes a whole line; what follows the head if it was the last one.
    fn whole_line(&mut self, line: &[u8], limits: &Limits) -> Result<Option<(Body, After)>, Fault> {
        match self.stage {
            Stage::Before if line.is_empty() => self.stage = Stage::RequestLine,
            Stage::Before | Stage::RequestLine => {
                let version = line::request_line(line, limits.target_bytes)?;
                self.stage = Stage::Fields(version);
            }
            Stage::Fields(version) if line.is_empty() => return self.facts.end(version).map(Some),
            Stage::Fields(version) => self.facts.field(line, version)?,
        }
        Ok(None)
    }
}

impl Facts {
    fn field(&mut self, line: &[u8], version: Version) -> Result<(), Fault> {
        let (name, value) = line::field(line)?;
        self.fields += 1;
        if usize::from(self.fields) > MAX_FIELDS {
            return Err(Fault::TooManyFields);
        }
        // The length tells nearly all other names apart.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.hosts += 1;
                if self.hosts > 1 {
                    return Err(Fault::Host);
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                let mut names = value.split(|byte| *byte == b',').map(line::trimmed);
                self.upgrade_named |= names.any(|name| name.eq_ignore_ascii_case(b"upgrade"));
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => self.length(value)?,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.coding(value, version)?,
            _ => {}
        }
        Ok(())
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.chunked {
            return Err(Fault::LengthAndCoding);
        }
        if self.length.is_some() {
            return Err(Fault::LengthTwice);
        }
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(value).ok().filter(|_| digits);
        let length = text.and_then(|text| text.parse().ok());
        self.length = Some(
            length
                .filter(|length| *length <= LONGEST_BODY)
                .ok_or(Fault::Length)?,
        );
        Ok(())
    }

    fn coding(&mut self, value: &[u8], version: Version) -> Result<(), Fault> {
        if version == Version::Http10 {
            return Err(Fault::CodingInOld);
        }
        if self.length.is_some() {
            return Err(Fault::LengthAndCoding);
        }
        if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Fault::Coding);
        }
        self.chunked = true;
        Ok(())
    }

    fn end(&self, version: Version) -> Result<(Body, After), Fault> {
        if self.hosts == 0 && version == Version::Http11 {
            return Err(Fault::Host);
        }
        let body = if self.chunked {
            Body::Chunked
        } else {
            Body::Length(self.length.unwrap_or(0))
        };
        let after = if self.upgrade && self.upgrade_named && version == Version::Http11 {
            After::Upgrade
        } else {
            After::Request
        };
        Ok((body, after))
    }
}
