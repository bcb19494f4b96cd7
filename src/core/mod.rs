//! The pure core: everything that could run a write twice is decided here, and only here.
//!
//! Plain functions over plain data. No tokio, no hyper, no I/O, no clock but an argument, no randomness:
//! only `http` types and bytes. Nothing of ours outside this room is imported.

pub mod added;
pub mod caller;
pub mod canonical;
pub mod carrier;
pub mod claims;
pub mod digest;
pub mod fingerprint;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod forwarding;
pub mod frames;
pub mod framing;
pub mod headers;
pub mod http2;
pub mod key;
mod media;
pub mod outcome;
pub mod path;
pub mod policy;
pub mod present;
pub mod problem;
pub mod record;
pub mod time;
pub mod trace;
pub mod trailers;
pub mod transition;
pub mod upgrade;
