//! Makes time pass: admits, commits, dispatches, completes, times, recovers, inspects.
//!
//! One driver thread turns the crank (see `driver`): it polls user steps, hands what they return to the shard,
//! commits when the steps are quiet, and lets what has become durable leave. Callers on other threads decide
//! under the same lock and wait for the driver's commit. A step that blocks is noticed and another thread takes
//! over the crank. Nothing polls: an idle engine sleeps until its next deadline.

mod admission;
mod audit;
mod bell;
mod clock;
mod commit;
mod completion;
mod config;
mod core;
mod crank;
mod damage;
mod desk;
mod desks;
mod dispatch;
mod driver;
mod engine;
mod entropy;
mod expiry;
mod hands;
pub mod house;
mod inspection;
mod intake;
mod letters;
mod link;
mod membership;
mod observer;
pub mod points;
mod program;
mod queues;
mod recovery;
mod remote;
mod rest;
mod ring;
mod roster;
mod snapshot;
mod steps;
mod tail;
mod telemetry;
mod tokens;
mod versions;
mod views;
mod visit;
mod watchdog;
mod wire;
mod writer;

pub use admission::{Unanswered, new_request};
pub use audit::{Audit, Problem};
pub use clock::Clock;
pub use config::{Config, Pool, Sharing};
pub use crank::{Crank, Turned};
pub use desk::{Kind, Lately, Offer};
pub use engine::{Engine, OpenError, Stopped};
pub use entropy::Entropy;
pub use hands::Hands;
pub use inspection::{Metrics, Trail};
pub use link::{Letter, Link, Mail, NoLink};
pub use observer::{Beginning, Instead, Observer};
pub use program::{Attempt, AttemptLink, Carrying, Courier, Life, Notifier, Program, Verdict};
pub use queues::{QueueRule, SeenQueue};
pub use remote::{Claiming, Work};
pub use rest::Rest;
pub use roster::Roster;
pub use snapshot::Snapshot;
pub use tail::{Cursor, Following, Happened, RunMoves, Taken};
pub use telemetry::{EndedSpan, Histogram, Meter, SpanOf, Tracer};
pub use versions::UNSAID;
pub use wire::{Mailbox, Wire};
