//! `abide run …`: one execution of a workflow, looked at or changed.

mod cancel;
mod compact;
mod explain;
mod export;
mod facts;
mod history;
mod list;
mod purge;
mod resume;
mod show;
mod signal;
mod start;
mod state;
pub(crate) mod surroundings;
mod update;
mod watch;

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::options::Globals;

/// Runs: list, show, state, watch, history, export, explain, start, signal, update, resume, cancel, compact, purge.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List runs, newest first.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Show where a run stands.
    Show(show::Show),
    /// Print what a run shows of itself, now or at a revision.
    State(state::State),
    /// Follow a run, or all runs, and tell what happens as it does.
    Watch(watch::Watch),
    /// Tell what happened to a run, fact by fact.
    History(history::History),
    /// Write a run's journal as JSON lines, to be replayed on other code.
    Export(export::Export),
    /// Say why a run does not move, and what would move it.
    Explain(explain::Explain),
    /// Start a run of a workflow; an engine that has its code executes it.
    Start(start::Start),
    /// Send a named signal to a run.
    Signal(signal::Signal),
    /// Ask a run to do something; an engine that has its code answers.
    Update(update::Update),
    /// Let a run go on that pauses for a person.
    Resume(resume::Resume),
    /// End a run from outside.
    Cancel(cancel::Cancel),
    /// Let a run's journal begin anew: what was before goes for good.
    Compact(compact::Compact),
    /// Remove the record of a run that has ended.
    Purge(purge::Purge),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Show(show) => show.perform(globals),
            Verb::State(state) => state.perform(globals),
            Verb::Watch(watch) => watch.perform(globals),
            Verb::History(history) => history.perform(globals),
            Verb::Export(export) => export.perform(globals),
            Verb::Explain(explain) => explain.perform(globals),
            Verb::Start(start) => start.perform(globals),
            Verb::Signal(signal) => signal.perform(globals),
            Verb::Update(update) => update.perform(globals),
            Verb::Resume(resume) => resume.perform(globals),
            Verb::Cancel(cancel) => cancel.perform(globals),
            Verb::Compact(compact) => compact.perform(globals),
            Verb::Purge(purge) => purge.perform(globals),
        }
    }
}
