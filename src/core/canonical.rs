//! Canonical forms: what makes two spellings of one body, or of one query, the same request (contract, section 6).
//!
//! Each function gives bytes (or slices) that are equal exactly if two inputs mean the same, or `None` where the
//! input is not what it should be: then its raw bytes count. None of them ever makes two different requests equal;
//! in doubt they say `None`, and a retry that is spelt differently is a false mismatch, never a false replay.
//!
//! Beside them stands what reads one value out of a form or a JSON document, and what takes it out of the text.

mod form;
mod json;
mod multipart;
mod number;
mod place;
mod wanted;

pub use form::{form, query, values, without_pairs};
pub use json::{is_json, is_well_formed, json};
pub use multipart::{boundary, multipart};
pub use place::{is_ambiguous, value_at, without_value};
