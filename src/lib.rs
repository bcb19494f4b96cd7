//! idem-proxy: an idempotency sidecar in front of any HTTP API.
//!
//! The rooms, and who may enter which (an arrow is an import, nothing points up):
//! `main → cli → app → server, admin → proxy → flight, identity, store, upstream, route → core`; `config → identity → core`;
//! `server, upstream, identity, config → tls`; `telemetry` is for all but `core`.
//!
//! - [`core`] decides, purely: keys, callers, fingerprints, records and what follows from them.
//! - [`store`] holds records; [`flight`] what runs here; [`upstream`] the connections behind; [`route`] finds the policy;
//!   [`identity`] verifies tokens; [`tls`] says whom to believe, and how to prove oneself.
//! - [`proxy`] walks a request through all of these once; [`server`] brings the requests, [`admin`] the operators.
//! - [`config`] reads what we are told, [`cli`] the command line; [`telemetry`] says what we did, [`otlp`] exports the traces of it; [`app`] puts it all together, and anew
//!   at a reload; [`demo`] has something to try it on.
//! - Tools that know none of this: [`tasks`] alone spawns, [`timers`] are used again, [`limit`] bounds, [`net`] has streams,
//!   a [`bell`] wakes, [`descriptors`] knows how many files may be open.

pub mod admin;
pub mod app;
pub mod bell;
pub mod cli;
pub mod config;
pub mod core;
pub mod demo;
pub mod descriptors;
pub mod flight;
pub mod identity;
pub mod limit;
pub mod net;
pub mod otlp;
pub mod proxy;
pub mod route;
pub mod server;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod timers;
pub mod tls;
pub mod upstream;
