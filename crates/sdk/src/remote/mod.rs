//! An engine in another process, reached over HTTP: its client, and a worker of its own that executes workflows here.

mod ask;
mod connect;
mod http;
mod look;
mod reporter;
mod worker;

pub use connect::Connect;
pub(crate) use connect::is_server;
pub(crate) use http::Http;
pub(crate) use worker::{Hired, Worker};
