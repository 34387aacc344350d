//! `cargo xtask crash`: a process under mixed load meets one fault after the other, is started again and audited.
//! What it acknowledged was noted outside of it and must be there. Without a flag the fault is SIGKILL; each other
//! fault has a flag and a file here. The last line is one JSON object; the command ends badly if a promise was broken,
//! and also if the fault cannot be made here.

mod audit;
mod ledger;
mod process;
mod report;
pub(crate) mod worker;
mod workload;

mod bit_flips;
mod by_sql;
mod clock_jumps;
mod full_disk;
mod image;
mod io_errors;
mod kills;
mod nodes;
mod pauses;
mod power;
mod slow_disk;
pub(crate) mod transactions;
mod two_processes;
mod views;

use std::path::Path;

use anyhow::{Context, Result};
use clap::{Args, FromArgMatches};

/// How much to crash, and how.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// How often the process is killed.
    #[arg(long, default_value_t = 50)]
    cycles: u64,
    /// What the process keeps its facts in: a file, or a PostgreSQL server that lives only for this, with several nodes.
    #[arg(long, value_parser = ["sqlite", "postgres"], default_value = "sqlite")]
    store: String,
    /// With --store postgres: how many nodes share it.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Shards of the store; 1 in a file and 64 in a database, unless it is said otherwise.
    #[arg(long, default_value_t = 1, default_value_if("store", "postgres", "64"))]
    shards: u16,
    /// Where chance comes from; the same seed kills at the same points.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the store afterwards.
    #[arg(long)]
    keep: bool,
    /// A fault on purpose that the audit must find.
    #[arg(long, value_parser = ["ack-before-commit"])]
    sabotage: Option<String>,
    /// What the process is told an acknowledgement means.
    #[arg(long, value_parser = ["full", "relaxed"], default_value = "full")]
    durability: String,
    /// Cut the power so many times instead: a file system of its own loses everything it was not told to sync.
    #[arg(long, value_name = "N", group = "fault")]
    power_cuts: Option<u64>,
    /// Fail the n-th sync, and the n-th write, for every n there is.
    #[arg(long, group = "fault")]
    io_errors: bool,
    /// Flip one bit in every byte of a small closed store, one after the other.
    #[arg(long, group = "fault")]
    bit_flips: bool,
    /// Let the disk fill up, and make room again.
    #[arg(long, group = "fault")]
    full_disk: bool,
    /// Let every sync take a fifth of a second.
    #[arg(long, group = "fault")]
    slow_disk: bool,
    /// Stop the process for longer than its claims last, and let it go on.
    #[arg(long, group = "fault")]
    pauses: bool,
    /// Let the clock jump, forward and back.
    #[arg(long, group = "fault")]
    clock_jumps: bool,
    /// Start a second process on the same file, with and without the lock of the first.
    #[arg(long, group = "fault")]
    two_processes: bool,
    /// Kill it around the commits of transactions of the users' own.
    #[arg(long, group = "fault")]
    transactions: bool,
    /// With --bit-flips: only in every n-th byte.
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    match options {
        Options { transactions: true, .. } => transactions::perform(options),
        Options { store, .. } if store == "postgres" => nodes::perform(options),
        Options { power_cuts: Some(cuts), .. } => power::perform(options, *cuts),
        Options { io_errors: true, .. } => io_errors::perform(options),
        Options { bit_flips: true, .. } => bit_flips::perform(options),
        Options { full_disk: true, .. } => full_disk::perform(options),
        Options { slow_disk: true, .. } => slow_disk::perform(options),
        Options { pauses: true, .. } => pauses::perform(options),
        Options { clock_jumps: true, .. } => clock_jumps::perform(options),
        Options { two_processes: true, .. } => two_processes::perform(options),
        _ => kills::perform(options),
    }
}

/// What every check of the project does of this: a few power cuts where they can be made, a sample of bit flips, and a few
/// faults of several nodes.
pub(crate) fn perform_shortly(root: &Path) -> Result<()> {
    let default = || -> Result<Options> {
        let command = Options::augment_args(clap::Command::new("crash"));
        Ok(Options::from_arg_matches(&command.get_matches_from(["crash"]))?)
    };
    std::env::set_current_dir(root).context("going to the root of the workspace")?;
    match power::try_out() {
        Ok(()) => power::perform(&default()?, POWER_CUTS)?,
        Err(error) => eprintln!("xtask: power cuts are SKIPPED, they cannot be made here: {error:#}"),
    }
    bit_flips::perform(&Options { every: BYTES_PER_FLIP, ..default()? })?;
    nodes::perform(&Options { cycles: NODE_CYCLES, shards: NODE_SHARDS, ..default()? })
}

const POWER_CUTS: u64 = 5;
const BYTES_PER_FLIP: usize = 131;
const NODE_CYCLES: u64 = 3;
const NODE_SHARDS: u16 = 64;
