//! What may happen to a run or a queue, and what follows.
//!
//! The kernel is a pure function of its inputs: no clock, no I/O, no randomness, no hash order. A run is a
//! fold of [`Fact`]s ([`Run::apply`]); what may be appended next is decided in [`transition`]; a [`Shard`]
//! holds many runs and is driven by commands, by "position n is durable" and by the current instant.

#![no_std]

extern crate alloc;

pub mod limits;

mod ids;
mod payload;
mod time;

mod check;
mod child;
mod effect;
pub mod envelope;
mod error;
mod fact;
mod manual;
mod op;
mod outcome;
mod progress;
mod refusal;
mod retry;
mod run;
mod spec;
mod status;
mod trace;
mod update;

pub mod explain;
pub mod moving;
pub mod shard;
pub mod thread;
pub mod transition;

pub use child::*;
pub use effect::*;
pub use error::ErrorInfo;
pub use fact::*;
pub use ids::*;
pub use manual::*;
pub use op::*;
pub use outcome::*;
pub use payload::Payload;
pub use progress::*;
pub use refusal::Refusal;
pub use retry::{Backoff, RetryPolicy};
pub use run::*;
pub use shard::Shard;
pub use spec::*;
pub use status::{Status, StatusSet};
pub use time::{Moment, Timestamp};
pub use trace::{NotATraceContext, TraceContext};
pub use update::*;

/// A shared, immutable piece of text: names, keys, owners.
pub type Str = alloc::sync::Arc<str>;
