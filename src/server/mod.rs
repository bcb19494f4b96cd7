//! The side of the clients: listeners, workers, connections, and their end.

pub mod accept;
pub mod certificates;
pub mod connection;
pub mod conversation;
pub mod drain;
mod frames;
pub mod guard;
mod head_timer;
pub mod http1;
mod http2;
pub mod listen;
mod sniff;
pub mod tls;
mod turns;
mod wait;
pub mod worker;
