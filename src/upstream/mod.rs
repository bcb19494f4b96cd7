//! The side of the upstream: connections, their pool, and evidence of what was sent.
//!
//! HTTP/1 connections are our own, but for those that may switch protocols; those, and HTTP/2, are hyper's connection-level client. Each tells
//! a request of which nothing went out from one of which a byte may have.
//!
//! - [`Origin`] is one upstream as all workers share it, [`Pool`] one worker's connections to it;
//! - `connect` makes them (`addresses`, `wire`): name, addresses, TLS, HTTP/1.1 or HTTP/2; `multiplexed` has those that serve many requests at a time;
//! - `switch` sends a request that asks for another protocol, on a connection of its own;
//! - `http1` is one HTTP/1 connection, driven by its request; `heads` and `framing` refuse answers that cannot be believed;
//! - `sent` says whether a request without an answer was sent.

mod addresses;
mod body;
mod connect;
mod framing;
mod heads;
mod http1;
mod leave;
mod multiplexed;
mod origin;
mod pool;
mod received;
mod sent;
mod switch;
mod wire;

pub use body::{Incomplete, OutgoingBody, Upload, UploadStage, UpstreamBody};
pub(crate) use body::{Pause, next_piece};
pub use http1::Unfinished;
pub use leave::{Leave, Moment};
pub use origin::Origin;
pub use pool::{Call, Pool};
pub(crate) use pool::{SWEEP_EVERY, take_request};
pub use received::{Broken, Received};
pub use sent::{MaybeSent, NotSent, SendFailure};
pub use switch::{Switch, Switched};
