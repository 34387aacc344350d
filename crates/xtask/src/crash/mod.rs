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
mod door;
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

use anyhow::{Context, Result, bail};
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

impl Options {
    /// Why these do not go together. What is asked for and not done would pass for something that was shown.
    fn contradiction(&self) -> Option<&'static str> {
        let on_a_file = self.power_cuts.is_some()
            || self.io_errors
            || self.bit_flips
            || self.full_disk
            || self.slow_disk
            || self.pauses
            || self.clock_jumps
            || self.two_processes;
        let shared = self.store == "postgres";
        let relaxed = self.durability == "relaxed";
        match () {
            () if shared && on_a_file => Some("this fault strikes a file: with --store postgres there is none"),
            () if shared && relaxed => Some("--durability is about a file: with --store postgres the server decides"),
            () if self.transactions && relaxed => Some("--transactions are always --durability full"),
            () if self.transactions && self.sabotage.is_some() => Some("--transactions know no --sabotage"),
            () => None,
        }
    }
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    if let Some(reason) = options.contradiction() {
        bail!("{reason}");
    }
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

/// What every check of the project does of this: a few power cuts where they can be made, a sample of bit flips, two
/// processes on one file, and a few faults of several nodes.
pub(crate) fn perform_shortly(root: &Path) -> Result<()> {
    let default = || -> Result<Options> {
        let command = Options::augment_args(clap::Command::new("crash"));
        Ok(Options::from_arg_matches(&command.get_matches_from(["crash"]))?)
    };
    std::env::set_current_dir(root).context("going to the root of the workspace")?;
    match power::try_out() {
        Ok(()) => power::perform(&default()?, POWER_CUTS)?,
        // Where every change is checked, a check that cannot be made is missing.
        Err(error) if std::env::var("CI").is_ok_and(|ci| ci == "true") => {
            return Err(error.context("power cuts cannot be made here"));
        }
        Err(error) => eprintln!("xtask: power cuts are SKIPPED, they cannot be made here: {error:#}"),
    }
    bit_flips::perform(&Options { every: BYTES_PER_FLIP, ..default()? })?;
    two_processes::perform_rounds(&default()?, TWO_PROCESSES_ROUNDS)?;
    nodes::perform(&Options { cycles: NODE_CYCLES, shards: NODE_SHARDS, ..default()? })
}

const POWER_CUTS: u64 = 5;
const BYTES_PER_FLIP: usize = 131;
const TWO_PROCESSES_ROUNDS: u64 = 1;
const NODE_CYCLES: u64 = 3;
const NODE_SHARDS: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn contradiction(words: &[&str]) -> Option<&'static str> {
        let command = Options::augment_args(clap::Command::new("crash"));
        let matches = command.try_get_matches_from(["crash"].iter().chain(words)).expect("the flags exist");
        Options::from_arg_matches(&matches).expect("the flags are understood").contradiction()
    }

    #[test]
    fn a_fault_that_would_not_strike_is_refused() {
        let on_a_file = [
            &["--power-cuts", "1"][..],
            &["--io-errors"],
            &["--bit-flips"],
            &["--full-disk"],
            &["--slow-disk"],
            &["--pauses"],
            &["--clock-jumps"],
            &["--two-processes"],
            &["--durability", "relaxed"],
        ];
        for words in on_a_file {
            assert_eq!(contradiction(words), None);
            assert!(contradiction(&[words, &["--store", "postgres"]].concat()).is_some(), "{words:?}");
        }
        assert_eq!(contradiction(&["--store", "postgres", "--transactions"]), None);
        assert!(contradiction(&["--transactions", "--sabotage", "ack-before-commit"]).is_some());
    }
}
