//! `cargo xtask crash`: a process under mixed load meets one fault after the other, is started again and audited.
//! What it acknowledged was noted outside of it and must be there. Without a flag the fault is SIGKILL; each other
//! fault has a flag and a file here. The last line is one JSON object; the command ends badly if a promise was broken,
//! and also if the fault cannot be made here.

mod audit;
mod ledger;
mod process;
pub(crate) mod worker;
mod workload;

mod bit_flips;
mod image;
mod io_errors;
mod kills;
mod power;
mod views;

use anyhow::Result;
use clap::Args;

/// How much to crash, and how.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// How often the process is killed.
    #[arg(long, default_value_t = 50)]
    cycles: u64,
    /// Shards of the store.
    #[arg(long, default_value_t = 1)]
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
    /// With --bit-flips: only in every n-th byte.
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    if let Some(cuts) = options.power_cuts {
        return power::perform(options, cuts);
    }
    if options.io_errors {
        return io_errors::perform(options);
    }
    if options.bit_flips {
        return bit_flips::perform(options);
    }
    kills::perform(options)
}
