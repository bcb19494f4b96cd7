//! The side of the clients: listeners, workers, connections, and their end.

pub mod accept;
pub mod certificates;
pub mod connection;
pub mod drain;
mod head_timer;
pub mod listen;
pub mod tls;
pub mod worker;
