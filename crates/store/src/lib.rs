//! Keeps facts, index rows and checkpoints, whole or not at all, and finds them again.
//!
//! A [`Store`] makes no decision about a run. Its durable unit is a [`Batch`](abide_kernel::shard::Batch) of
//! facts, envelopes and consumed cursors, appended under a fence of epoch and position. Index rows and
//! checkpoints are written behind and can be rebuilt from the log: deleting them changes no answer.

#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    allow(dead_code, reason = "only stores on a disk use it")
)]

mod cluster;
mod counts;
mod fault;
mod group;
mod import;
pub mod intake;
mod journal;
mod kept;
mod label;
mod letter;
mod listing;
mod record;
mod row;
mod serving;
mod setting;
mod store;
mod sum;
mod token;
pub mod transaction;
mod url;

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use cluster::{Cluster, Living, Member, Membership, Owned};
pub use fault::{Fault, FaultKind};
pub use import::Import;
pub use intake::Intake;
pub use kept::{Depth, Kept};
pub use listing::{DeadLetterItem, Filter, Listed, Page, Period, Stats};
pub use serving::Serving;
pub use store::{Counters, Due, Opened, Opener, Reader, ReadyPage, Scanned, Store, StoredRun, Verdict};
pub use token::StoredToken;
pub use url::{BadUrl, Durability, PostgresUrl, StoreUrl};
