//! Frames: the header with its version and checksum, and the fields behind it.

use super::{Damage, Part, VERSION};

const HEADER: usize = 12;

/// A frame in the making.
pub(super) struct Frame(pub(super) Vec<u8>);

impl Frame {
    pub(super) fn new(part: Part, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + room);
        bytes.extend_from_slice(&[b'i', b'd', part.as_byte(), VERSION]);
        bytes.resize(HEADER, 0);
        Self(bytes)
    }

    pub(super) fn field(&mut self, number: u8, value: &[u8]) {
        self.line(number, &[value]);
    }

    pub(super) fn line(&mut self, number: u8, parts: &[&[u8]]) {
        self.0.push(number);
        let mut length = parts.iter().map(|part| part.len()).sum::<usize>();
        while length >= 0x80 {
            self.0.push(0x80 | low7(length));
            length >>= 7;
        }
        self.0.push(low7(length));
        for part in parts {
            self.0.extend_from_slice(part);
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        // Over 4 GiB, which no limit admits, the length is wrong, and so it is read as damaged.
        let length = u32::try_from(self.0.len() - HEADER).unwrap_or(0);
        if let Some(place) = self.0.get_mut(4..8) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        let sum = checksum(&self.0).unwrap_or(0);
        if let Some(place) = self.0.get_mut(8..HEADER) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
        self.0
    }
}

fn low7(length: usize) -> u8 {
    u8::try_from(length & 0x7f).unwrap_or_default()
}

fn checksum(frame: &[u8]) -> Option<u32> {
    let mut sum = crc32fast::Hasher::new();
    sum.update(frame.get(..8)?);
    sum.update(frame.get(HEADER..)?);
    Some(sum.finalize())
}

/// What a whole frame of this part holds.
pub(super) fn content(part: Part, frame: &[u8]) -> Result<&[u8], Damage> {
    let (header, content) = frame.split_first_chunk::<HEADER>().ok_or(Damage::NoFrame)?;
    let [b'i', b'd', own, version, length @ .., s0, s1, s2, s3] = *header else {
        return Err(Damage::NoFrame);
    };
    if own != part.as_byte() {
        return Err(Damage::NoFrame);
    }
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    if u32::from_be_bytes(length) as usize != content.len()
        || checksum(frame) != Some(u32::from_be_bytes([s0, s1, s2, s3]))
    {
        return Err(Damage::Checksum);
    }
    Ok(content)
}

/// Number and value of each field.
pub(super) fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8]), Damage>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = take_field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or(Damage::Field("length of a field")))
    })
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let number = take_byte(rest)?;
    let (mut length, mut shift) = (0_usize, 0);
    loop {
        let byte = take_byte(rest)?;
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
        if shift > 28 {
            return None;
        }
    }
    let (value, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some((number, value))
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (byte, left) = rest.split_first()?;
    *rest = left;
    Some(*byte)
}
