//! What a request may look like before anything believes it.
//!
//! [`Stream`] reads the bytes of one HTTP/1.x client: where heads and bodies end, and whether another parser could read them
//! otherwise. [`check`] judges the fields of a head that was parsed, in whichever version it came. What either refuses
//! (contract, section 7) never reaches the upstream, and its connection ends.

mod chunked;
mod fault;
mod fields;
mod head;
mod line;
#[cfg(test)]
mod properties;
mod scan;
mod stream;
#[cfg(test)]
mod tests;

pub use self::{
    fault::Fault,
    fields::{check, drop_underscore_twins, is_authority},
    head::MAX_FIELDS,
    stream::{Limits, Place, Read, Stream, Then},
};
