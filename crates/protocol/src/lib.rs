//! The words that are spoken with a server, and their versions: messages as JSON, problems (RFC 9457) with stable
//! codes, the table of routes, and the OpenAPI document that follows from them.
//!
//! Whatever a client sends is refused if it says something unknown; whatever it gets may say more in a later release of
//! the same version. Nothing here does I/O.

mod attempt;
mod audit;
mod boundary;
mod bounds;
mod code;
mod dead_letter;
mod effect;
mod idempotency;
mod instant;
mod journal;
mod ledger;
pub mod limits;
mod node;
pub mod openapi;
mod outcome;
mod problem;
mod progress;
mod queue;
mod result;
mod route;
mod routes;
mod run;
mod scope;
mod secret;
mod shape;
mod signal;
mod speak;
mod start;
mod tail;
mod token;
mod update;
mod user;
mod worker;
mod workflow;

pub use audit::{Audit, Change};
pub use boundary::{Assign, Boundary, BoundaryEvent, BoundaryPage, Decide, Decision};
pub use bounds::Bounds;
pub use code::{CODES, Code};
pub use dead_letter::{DeadAttempt, DeadLetterPage, Letter, Letters};
pub use effect::{Effect, EffectApproval, EffectPage, Effects, How, Resolve, RunEffect};
pub use idempotency::{BadKey, IdempotencyKey};
pub use instant::{BadInstant, Instant};
pub use journal::{Journal, JournalRow};
pub use ledger::{Elapsed, Entered, Entry, EntryEnd, LedgerEntry, Otherwise, Wanted};
pub use node::{Health, Node, Nodes, Ready};
pub use outcome::{Join, Moment, Outcome};
pub use problem::Problem;
pub use progress::{Progress, ProgressPage, latest as latest_progress};
pub use queue::{Queue, QueueHeld, QueueLimits, QueueRate, Queues};
pub use result::{Ending, Recorded};
pub use route::{Method, Operation, Query, QueryKind, Reach, Route};
pub use routes::routes;
pub use run::{Cancel, Error, Explanation, Run, RunPage, RunRecord, RunSummary, State};
pub use scope::{BadScope, Scope};
pub use secret::Secret;
pub use signal::{Signal, Signalled};
pub use speak::UNSAID;
pub use start::{Admission, Concurrency, OnConflict, Start, StartAnswer, StartMany, Started, StartedMany};
pub use tail::{Following, Happened, Reset, ResetReason};
pub use token::{CreateToken, CreatedToken, Token, Tokens};
pub use update::{Update, Updated};
pub use user::{BadRole, CreateUser, Login, NewPassword, Password, Role, Session, User, Users};
pub use worker::{
    Arrived, Attempt, Backoff, ClaimWork, Claims, Offered, Offspring, Report, ReportAnswer, Reported, Reports, Retry,
    Say, Worker, Workers,
};
pub use workflow::{Workflow, Workflows};

/// What every path of this version of the protocol begins with.
pub const PREFIX: &str = "/v1";
