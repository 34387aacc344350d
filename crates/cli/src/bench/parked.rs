//! `abide bench parked`: runs that wait, and what they cost.

use clap::Args;

/// Runs that wait on a signal or a far timer.
#[derive(Debug, Args)]
pub(crate) struct Parked {
    /// How many runs.
    #[arg(long, default_value_t = 10_000)]
    runs: usize,
}

impl Parked {
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let _ = (self.runs, super::machine::parked());
        anyhow::bail!("not measured yet")
    }
}
