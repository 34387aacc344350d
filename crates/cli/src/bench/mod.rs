//! Benchmarks: the engine against what the same store can do raw, in the same invocation.

mod crowd;
mod database;
mod effects;
mod fleet;
mod ground;
mod idle;
mod latency;
mod limit;
mod load;
mod machine;
mod node;
mod parked;
mod quiet;
mod replay;
mod report;
mod served;
mod sql;
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
    /// Runs that are started by SQL: how long it takes from the commit to the first step.
    Sql(sql::Sql),
    /// Nodes of a database, or a server and those connected to it, with nothing to do: what that costs.
    Idle(idle::Idle),
    /// One of several nodes that another benchmark started.
    #[command(hide = true)]
    Node(node::Node),
    /// Workers and watchers of a server that another benchmark started.
    #[command(hide = true)]
    Crowd(crowd::Crowd),
}

impl Bench {
    pub(crate) fn measure(self, store: &str) -> anyhow::Result<()> {
        let measured = match self {
            Self::Steps(steps) => steps.measure(store),
            Self::Latency(latency) => latency.measure(store),
            Self::Effects(effects) => effects.measure(),
            Self::Replay(replay) => replay.measure(),
            Self::Parked(parked) => parked.measure(),
            Self::Sql(sql) => sql.measure(store),
            Self::Idle(idle) => idle.measure(store),
            Self::Node(node) => node.measure(store),
            Self::Crowd(crowd) => crowd.measure(),
        };
        database::yield_to_interrupt();
        measured
    }
}

/// Rounds of engine and raw limit, in turn.
pub(crate) const ROUNDS: usize = 3;
