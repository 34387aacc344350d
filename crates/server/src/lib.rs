//! The engine over HTTP: one port, one table of routes, tokens that say who may do what where.
//!
//! A [`Server`] answers for an engine of the runtime, which may execute workflows itself or only know the store. It
//! decides nothing about runs: a request becomes a command of the kernel, and a refusal becomes a problem.

mod access;
mod answer;
mod asked;
mod audit;
mod auth;
mod blocking;
mod call;
mod connect;
mod limits;
mod listen;
mod places;
mod rate;
mod routes;
mod serve;
mod session;
mod spoken;
mod tls;
mod token;
mod user;

pub use asked::Open;
pub use audit::{AUDIT, audit_change, audit_mark, prune_audit};
pub use limits::Limits;
pub use listen::{Listening, ServeError, Server};
pub use routes::{shown_nodes, shown_queue, shown_rule};
pub use tls::{Tls, TlsError};
pub use token::{BadToken, first, mint, sessions_of, shown};
pub use user::{BadUser, USER, USERS_MAX, enrol, shown_user, with_password};
