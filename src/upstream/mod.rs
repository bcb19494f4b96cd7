//! The side of the upstream: connections, their pool, and evidence of what was sent.
//!
//! Connections are hyper's connection-level client, for it alone gives a request back that was never started: the
//! only proof that nothing was sent, beside a connection that could not be made.

mod body;
mod connect;
mod pool;
mod sent;
mod switch;

pub use body::{Incomplete, OutgoingBody, Upload, UploadStage, UpstreamBody};
pub(crate) use body::{Pause, next_piece};
pub use pool::Pool;
pub(crate) use pool::SWEEP_EVERY;
pub use sent::{MaybeSent, NotSent, SendFailure};
pub use switch::{Switch, Switched};
