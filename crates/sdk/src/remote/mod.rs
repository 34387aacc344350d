//! An engine in another process, reached over HTTP: its client, and a worker of its own that executes workflows here.

mod ask;
mod connect;
mod http;
mod look;
mod reporter;
mod tail;
mod worker;

pub use connect::Connect;
pub(crate) use connect::is_server;
pub use http::{Ask, Http, Trouble, escape};
pub use tail::{Event, Events};
pub(crate) use worker::{Hired, Worker};
