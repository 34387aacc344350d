//! `abide bench node`: one of several nodes under load, told what to do by the benchmark that started it.

use std::io::{BufRead, Write};

use clap::Args;

use super::fleet::One;
use super::load::{Load, Work};
use super::machine::no_op;

/// A node of a benchmark: does what it is told line by line, and ends when nobody tells it anything any more.
#[derive(Debug, Args)]
pub(crate) struct Node {
    #[arg(long)]
    steps: usize,
    #[arg(long)]
    in_flight: usize,
    #[arg(long)]
    shards: u16,
}

impl Node {
    pub(crate) fn measure(&self, store: &str) -> anyhow::Result<()> {
        let (steps, in_flight, shards) = (self.steps, self.in_flight, self.shards);
        let load = Load { workflow: "no_op", runs: 0, steps, in_flight, shards };
        let engine = One::open(store, &load, no_op("no_op", steps))?;
        let mut out = std::io::stdout();
        writeln!(out, "\"ready\"")?;
        out.flush()?;
        for line in std::io::stdin().lock().lines() {
            let work: Work = serde_json::from_str(&line?)?;
            let gained = engine.drive(load.workflow, work, in_flight)?;
            writeln!(out, "{}", serde_json::to_string(&gained)?)?;
            out.flush()?;
        }
        engine.stop();
        Ok(())
    }
}
