//! The product from outside: each file shows one capability on the built binary, over real sockets.
//!
//! One crate, so that the harness is compiled and linked once.

#[cfg(test)]
mod callers;
#[cfg(test)]
mod callers_jwt;
#[cfg(test)]
mod callers_jwt_tls;
#[cfg(test)]
mod carriers;
#[cfg(test)]
mod common;
#[cfg(test)]
mod dashboard;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod departures;
#[cfg(test)]
mod dialect_table;
#[cfg(test)]
mod dialects;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod durable;
#[cfg(test)]
mod edges;
#[cfg(test)]
mod executions;
#[cfg(test)]
mod failovers;
#[cfg(test)]
mod fingerprints;
#[cfg(test)]
mod forwarding;
#[cfg(test)]
mod framing;
#[cfg(test)]
mod framing_fuzz;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod http2;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod outcomes;
#[cfg(test)]
mod passthrough;
#[cfg(test)]
mod policy_page;
#[cfg(test)]
mod process;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod real_clients;
#[cfg(test)]
mod records;
#[cfg(test)]
mod records_api;
#[cfg(test)]
mod records_command;
#[cfg(test)]
mod redis_access;
#[cfg(test)]
mod redis_trouble;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod replays;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod spans;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod times;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod tls_files;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod trailers;
#[cfg(test)]
mod transparency;
#[cfg(test)]
mod unprotected;
#[cfg(test)]
mod upgrades;
#[cfg(test)]
mod upstream_h2;
#[cfg(test)]
mod upstream_tls;
#[cfg(test)]
mod upstreams;
