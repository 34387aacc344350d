//! `abide run list`: runs, newest first, a page at a time.

use abide_kernel::Status;
use abide_store::{Filter, Listed, Page, Period};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure, Outcome};
use crate::input::{When, label, when};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::Source;
use crate::text::iso;

/// List runs, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  abide run list
  abide run list --workflow checkout --status failed,dead_lettered
  abide run list --label team=ops --created-after 2h      started within two hours
  abide run list --limit 100 --before run_0193f2c4a1b2    the next page
  abide run ls --status sleeping | cut -f1                ids only")]
pub(crate) struct List {
    /// Runs of this workflow
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Runs in one of these statuses, separated by commas; `open` means all that are not over
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    status: Vec<String>,
    /// Runs in this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Runs with this business key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Runs with this label; given more than once, with all of them
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Runs that were started at this instant or after it: an instant, or how long ago
    #[arg(long, value_name = "WHEN", value_parser = when)]
    created_after: Option<When>,
    /// Runs that were started before this instant
    #[arg(long, value_name = "WHEN", value_parser = when)]
    created_before: Option<When>,
    /// Runs that last changed at this instant or after it
    #[arg(long, value_name = "WHEN", value_parser = when)]
    updated_after: Option<When>,
    /// Runs that last changed before this instant
    #[arg(long, value_name = "WHEN", value_parser = when)]
    updated_before: Option<When>,
    /// Children of this run
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Runs older than this one: the last of the page before
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

impl List {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let mut filter = Filter::default();
        filter.namespace = globals.namespace.as_deref().map(Into::into);
        filter.workflow = self.workflow.as_deref().map(Into::into);
        filter.queue = self.queue.as_deref().map(Into::into);
        filter.key = self.key.as_deref().map(Into::into);
        filter.statuses = statuses(&self.status)?;
        filter.labels = self.label.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
        let at = |when: Option<When>| when.map(|when| when.from(screen.now()));
        filter.created = Period { from: at(self.created_after), before: at(self.created_before) };
        filter.updated = Period { from: at(self.updated_after), before: at(self.updated_before) };
        filter.parent = match &self.parent {
            Some(parent) => Some(source.find(parent)?),
            None => None,
        };
        let before = match &self.before {
            Some(before) => Some(source.find(before)?),
            None => None,
        };
        let most = self.limit as usize;
        let mut listed = source.list(&filter, &Page { most: most + 1, before })?;
        let more = listed.len() > most;
        listed.truncate(most);
        if !screen.is_text() {
            let runs: Vec<Value> = listed.iter().map(run_json).collect();
            screen.documents("runs", &runs)?;
            return Ok(Exit::Ok);
        }
        screen.table(&HEADS, listed.iter().map(|listed| row(&screen, listed)).collect())?;
        match listed.last() {
            None => screen.remark("no run matches"),
            Some(last) if more => screen.remark(&format!("more with --before {}", screen.id(last.run))),
            Some(_) => {}
        }
        Ok(Exit::Ok)
    }
}

const HEADS: [&str; 7] = ["RUN", "WORKFLOW", "STATUS", "STEP", "KEY", "CREATED", "DUE"];

fn row(screen: &Screen, listed: &Listed) -> Vec<Cell> {
    // An attempt that is due already waits for a worker, not for an instant.
    let due = listed.due.filter(|due| listed.status != Status::Runnable || *due > screen.now());
    vec![
        Cell::toned(screen.id(listed.run), Tone::Strong),
        Cell::new(format!("{} v{}", listed.workflow, listed.version)),
        Cell::status(listed.status),
        Cell::new(listed.step.as_deref().unwrap_or("-")),
        Cell::new(listed.key.as_deref().unwrap_or("-")),
        Cell::toned(screen.time(listed.created_at), Tone::Faint),
        Cell::toned(due.map_or("-".into(), |due| screen.time(due)), Tone::Faint),
    ]
}

/// A listed run as JSON.
pub(crate) fn run_json(listed: &Listed) -> Value {
    json!({
        "run": listed.run,
        "namespace": &*listed.namespace,
        "workflow": &*listed.workflow,
        "version": listed.version,
        "queue": &*listed.queue,
        "status": listed.status,
        "step": listed.step.as_deref(),
        "key": listed.key.as_deref(),
        "parent": listed.parent,
        "labels": listed.labels.iter().map(|(name, value)| (name.to_string(), json!(&**value))).collect::<Map<_, _>>(),
        "created_at": iso(listed.created_at),
        "updated_at": iso(listed.updated_at),
        "due": listed.due.map(iso),
        "rev": listed.rev,
    })
}

fn statuses(words: &[String]) -> Result<Vec<Status>, Failure> {
    let mut statuses = Vec::new();
    for word in words {
        if word == "open" {
            statuses.extend(Status::ALL.into_iter().filter(|status| !status.is_terminal()));
            continue;
        }
        let status = word
            .parse()
            .map_err(|unknown| Failure::usage("bad_status", format!("{unknown}, or open; found {word:?}")))?;
        statuses.push(status);
    }
    Ok(statuses)
}
