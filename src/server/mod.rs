//! The side of the clients: listeners, workers, connections, and their end.

pub mod accept;
pub mod certificates;
pub mod connection;
pub mod drain;
mod frames;
mod head_timer;
mod http1;
mod http2;
pub mod listen;
pub mod tls;
mod requests;
mod sniff;
mod turns;
pub mod worker;
