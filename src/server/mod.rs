//! The side of the clients: listeners, workers, connections, and their end.

pub mod accept;
pub mod connection;
pub mod conversation;
pub mod drain;
pub mod guard;
pub mod http1;
pub mod listen;
mod wait;
pub mod worker;
