//! The test kit: workflows in plain `cargo test`, in memory and in virtual time.
//!
//! [`TestEngine`] runs the real engine on a store in memory. Time stands still while something happens and jumps to the
//! next deadline when nothing else can, so a month-long wait takes no time at all.
//!
//! ```
//! use abide::testing::TestEngine;
//! use abide::{Failure, FnCtx, Function, days};
//!
//! let remind = Function::new("remind", async |ctx: FnCtx, name: String| {
//!     ctx.sleep(days(30)).await?;
//!     let answer: Option<String> = ctx.signal("answer").within(days(7)).await?;
//!     Ok::<_, Failure>(format!("{name}: {}", answer.unwrap_or_else(|| "no answer".into())))
//! });
//! let engine = TestEngine::new().register(remind);
//! let run = engine.start("remind", "Ada");
//! assert_eq!(run.result::<String>().unwrap(), "Ada: no answer");
//! assert_eq!(engine.elapsed(), days(37));
//! ```
//!
//! [`crash_everywhere`] runs a workflow once for every moment at which it could be killed. [`Journals`] and
//! [`assert_replays`] run today's code over journals of yesterday.

mod crash;
mod engine;
mod history;
mod journal;
mod journals;
mod people;
mod replay;
mod report;
mod run;
mod script;
mod wait;

/// The guide, so that its examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/testing.md")]
struct Guide;

pub use crash::{CrashEverywhere, crash_everywhere};
pub use engine::TestEngine;
pub use journal::{BadJournal, JOURNAL_FORMAT, read_journal, write_journal};
pub use journals::{JournalReport, Journals, assert_replays};
pub use replay::Replayed;
pub use report::{CrashPoint, CrashReport, Held, Repeated, Side, Violation};
pub use run::TestRun;
pub use script::Scripted;
