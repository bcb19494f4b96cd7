//! The side of the clients: listeners, workers, connections, and their end.

pub mod connection;
pub mod drain;
pub mod listen;
pub mod worker;
