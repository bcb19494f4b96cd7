//! The side of the clients: listeners, workers, connections, and their end.
//!
//! - `listen` and `accept` take connections and give each to the `worker` that has the fewest; `drain` tells them when to stop;
//! - `tls` and `certificates` are TLS to clients; `connection` finds out which HTTP is spoken (`sniff`);
//! - `http1` serves HTTP/1.x behind the `guard`, which judges every byte before the parser has it; the two know of each other by the
//!   `conversation`;
//! - `http2` serves HTTP/2 over `frames`, which looks for floods; `turns` tells whose client does not read;
//! - `wait` has the deadlines of the guard, out of a worker's timers.
//!
//! What a request means is the affair of `proxy`.

pub mod accept;
pub mod certificates;
pub mod connection;
pub mod conversation;
pub mod drain;
mod frames;
pub mod guard;
pub mod http1;
mod http2;
pub mod listen;
mod sniff;
pub mod tls;
mod turns;
mod wait;
pub mod worker;
