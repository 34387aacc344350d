//! Benchmarks: the engine against what the same store can do raw, in the same invocation.

mod effects;
mod latency;
mod limit;
mod load;
mod machine;
mod parked;
mod replay;
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
    /// Functions of no-op effects, many or one in flight: effects per second, and how long a run takes.
    Effects(effects::Effects),
    /// Functions with a long past: how long they take to be brought back.
    Replay(replay::Replay),
    /// Runs that wait: what they cost in memory, and how fast they come back.
    Parked(parked::Parked),
}

impl Bench {
    pub(crate) fn measure(self) -> anyhow::Result<()> {
        match self {
            Self::Steps(steps) => steps.measure(),
            Self::Latency(latency) => latency.measure(),
            Self::Effects(effects) => effects.measure(),
            Self::Replay(replay) => replay.measure(),
            Self::Parked(parked) => parked.measure(),
        }
    }
}

/// Rounds of engine and raw limit, in turn.
pub(crate) const ROUNDS: usize = 3;
