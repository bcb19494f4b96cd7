//! Telemetry: what the process tells its operators while it serves.
//!
//! - [`metrics`] counts, and renders the Prometheus text (contract, section 11);
//! - [`log`] takes every log line to one bounded queue and one thread, so that a stalled standard error never
//!   stalls a request;
//! - [`access`] writes one line a request into the same queue;
//! - [`spans`] decides what is traced, and hands spans to whoever exports them, without ever waiting.
//!
//! Nothing here holds a key, a credential, a path or a body: there is no field to put one into. Every room but
//! `core` may use this one; it uses `core` and the configuration's types.

pub mod access;
pub mod log;
pub mod metrics;
pub mod spans;
