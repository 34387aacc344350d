//! Benchmarks: the engine against what the same store can do raw, in the same invocation.

mod latency;
mod limit;
mod machine;
mod parked;
mod report;
mod steps;

use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Runs of no-op steps, many in flight: steps per second.
    Steps(steps::Steps),
    /// Runs of no-op steps, one in flight: how long a run takes.
    Latency(latency::Latency),
    /// Runs that wait: what they cost in memory, and how fast they come back.
    Parked(parked::Parked),
}

impl Bench {
    pub(crate) fn measure(self) -> anyhow::Result<()> {
        match self {
            Self::Steps(steps) => steps.measure(),
            Self::Latency(latency) => latency.measure(),
            Self::Parked(parked) => parked.measure(),
        }
    }
}

/// Rounds of engine and raw limit, in turn.
pub(crate) const ROUNDS: usize = 3;
