//! Durable execution for Rust: programs that survive crashes, deploys and month-long waits.
//!
//! A [`Machine`] is a workflow of named steps. Each step is ordinary async code that returns what happens next;
//! its new state is durable before anything follows from it. Kill the process at any moment, open the same store
//! again, and every run goes on where it stood.
//!
//! ```
//! use abide::{Engine, Machine, done, next};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let greet = Machine::<String>::new("greet")
//!     .step("compose", async |_, name: String| Ok(next("send", format!("hello {name}"))))
//!     .step("send", async |_, greeting: String| Ok(done(&greeting)));
//!
//! let engine = Engine::open("memory:").register(greet).start().await?;
//! let run = engine.client().start("greet", "Ada").await?;
//! let greeting: String = run.result().await?;
//! assert_eq!(greeting, "hello Ada");
//! # engine.stop(std::time::Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```

mod asking;
mod branches;
mod client;
mod context;
mod control;
mod effects;
mod engine;
mod error;
mod function;
mod ledger;
mod limit;
mod machine;
#[cfg(feature = "otlp")]
pub mod otlp;
mod outcome;
mod people;
/// How servers are spoken to, for the command line. It may change with every release.
#[cfg(feature = "http")]
#[doc(hidden)]
pub mod remote;
mod run;
mod standing;
mod start;
mod stepping;
pub mod testing;
#[cfg(feature = "https")]
mod tls;
mod transaction;

pub use asking::AskUpdate;
pub use client::Client;
pub use context::{Child, Ctx};
pub use control::{Control, Operation, Plan, PlanError};
pub use effects::Resolve;
pub use engine::{Engine, EngineBuilder};
pub use error::{ClientError, Failure, StartError, StepError};
pub use function::{FnCtx, Function};
pub use ledger::answer::{Answer, InFunction, InStep};
pub use ledger::children::{ChildCall, Children, Joined, StartedChild};
pub use ledger::manual::{Decision, ManualWait, TaskWait};
pub use ledger::points::{Boxed, Call, Effect, SignalWait};
pub use ledger::review::{Rejection, Review};
pub use ledger::update::{UpdateRequest, UpdateWait};
pub use limit::Limit;
pub use machine::{Machine, Workflow};
pub use outcome::{
    ChildStart, Outcome, await_any, await_signal, child, continue_as_new, days, done, hours, minutes, next, replay,
    secs, sleep, spawn, stop,
};
pub use people::{Assign, Decide, OpenBoundary};
#[cfg(feature = "http")]
pub use remote::Connect;
pub use run::{Admission, RunHandle};
pub use start::{Start, StartMany};

pub use abide_kernel::explain;
pub use abide_kernel::{
    Approval, Backoff, BoundaryId, Choice, Consume, EffectView, ErrorInfo, Fact, Got, InDoubt, Interrupt, Join,
    LetterId, Manual, ManualEnd, ManualEvent, ManualEventKind, ManualKind, OnConflict, Op, OpId, OpKind, OpState,
    Payload, Policy, Refusal, RequestId, RetryPolicy, Row, Run, RunId, Standing, Status, StatusSet, Timestamp,
    TraceContext, WakeReason,
};
#[cfg(feature = "http")]
pub use abide_protocol::Problem;
pub use abide_runtime::{Clock, EndedSpan, Metrics, Notifier, SpanOf, Stopped, Tracer};
#[cfg(feature = "postgres")]
pub use abide_store::postgres::{Transaction, TransactionError, tokio_postgres};
pub use abide_store::sqlite::rusqlite;
pub use abide_store::{DeadLetterItem, Durability, Filter, Listed, Page, Period, Stats};
