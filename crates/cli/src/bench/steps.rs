//! `abide bench steps`: R runs of S no-op steps with F in flight on a fresh durable store.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::load::{Load, scratch};
use super::machine::no_op;

/// Many runs in flight: steps per second, against raw rows per second.
#[derive(Debug, Args)]
pub(crate) struct Steps {
    /// How many runs.
    #[arg(long, default_value_t = 20_000)]
    runs: usize,
    /// Steps of each run.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Runs in flight at once.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Shards of the store.
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the files go; a fresh directory in the current one if absent.
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Steps {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let dir = scratch(self.dir.as_deref())?;
        let (runs, steps, in_flight, shards) = (self.runs, self.steps, self.in_flight, self.shards);
        let load = Load { workflow: "no_op", runs, steps, in_flight, shards };
        let report = load.measure(dir.path(), || no_op(steps), |_, _, _| Ok(()))?;
        let settings = [
            ("bench", json!("steps")),
            ("runs", json!(runs)),
            ("steps", json!(steps)),
            ("in_flight", json!(in_flight)),
            ("shards", json!(shards)),
        ];
        report.print(self.json, &settings);
        Ok(())
    }
}
