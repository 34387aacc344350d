//! The end of a story: everything comes to its end undisturbed, is audited, and is told in one line.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::process::{Plan, Task};
use super::{Options, audit};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the store anew, lets everything end, and looks at it once more.
pub(crate) fn settle(options: &Options, store: &Path, ledger: &mut Ledger) -> Result<()> {
    settle_under(options, store, ledger, &[])
}

/// The same under a tool.
pub(crate) fn settle_under(options: &Options, store: &Path, ledger: &mut Ledger, tool: &[String]) -> Result<()> {
    let plan = Plan::new(options, store, options.seed, Task::Drain).under(tool);
    let status = plan.start()?.end(ledger, PATIENCE)?;
    if !status.success() {
        ledger.problems.push(format!("opened anew, the process ended with {status}"));
        ledger.unfinished += 1;
    }
    let found = audit::audit(store, ledger)?;
    ledger.unfinished += found.open;
    ledger.add(&found);
    Ok(())
}

/// Says what happened, with what is particular to the fault; a broken promise is an error.
pub(crate) fn tell(ledger: &Ledger, particular: Value) -> Result<()> {
    for problem in ledger.problems.iter().take(20) {
        eprintln!("problem: {problem}");
    }
    let mut told = json!({
        "acknowledged": ledger.acknowledged(),
        "lost": ledger.lost,
        "terminal_twice": ledger.terminal_twice,
        "lease_overlaps": ledger.lease_overlaps,
        "rebuild_mismatches": ledger.rebuild_mismatches,
        "unfinished": ledger.unfinished,
        "naps": ledger.naps,
        "naps_early": ledger.naps_early,
        "unsafe_once_started": ledger.calls.len(),
        "unsafe_once_twice": ledger.called_twice(),
    });
    if let (Some(told), Value::Object(particular)) = (told.as_object_mut(), particular) {
        told.extend(particular);
    }
    println!("{told}");
    let wrong = ledger.lost
        + ledger.terminal_twice
        + ledger.lease_overlaps
        + ledger.rebuild_mismatches
        + ledger.unfinished
        + ledger.asked_not_once
        + ledger.naps_early
        + ledger.called_twice();
    ensure!(wrong == 0, "{wrong} things are not as they were promised");
    ensure!(ledger.acknowledged() > 0, "nothing was acknowledged, so nothing was shown");
    Ok(())
}
