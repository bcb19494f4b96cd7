//! Canonical forms: what makes two spellings of one body, or of one query, the same request (contract, section 6).
//!
//! Each function gives bytes (or slices) that are equal exactly if two inputs mean the same, or `None` where the
//! input is not what it should be: then its raw bytes count. None of them ever makes two different requests equal;
//! in doubt they say `None`, and a retry that is spelt differently is a false mismatch, never a false replay.

mod form;
mod json;
mod multipart;
mod number;
mod wanted;

pub use form::{form, query};
pub use json::json;
pub use multipart::{boundary, multipart};
