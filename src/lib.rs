//! idem-proxy: an idempotency sidecar in front of any HTTP API.

pub mod admin;
pub mod cli;
pub mod config;
pub mod core;
pub mod store;
pub mod telemetry;
