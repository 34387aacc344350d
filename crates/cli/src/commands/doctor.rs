//! `abide doctor`: what in a store needs a person, and what to do about it. It changes nothing.

use std::fs;
use std::path::Path;

use abide_kernel::{Phase, Run, RunId, Status, Timestamp};
use abide_runtime::Snapshot;
use abide_store::{Filter, Listed, Page};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure, Outcome};
use crate::input::duration;
use crate::keeper::Keeper;
use crate::options::Globals;
use crate::place::Place;
use crate::screen::{Cell, Screen, Tone};
use crate::text::span;

const PAGE_RUNS: usize = 1_000;
/// Findings of one kind that are named; more are only counted.
const NAMED_MAX: usize = 20;
/// A write-ahead log larger than this is not being brought into the file.
const WAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Look for what needs a person: expired claims, overdue timers, dead letters, foreign programs.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 means that nothing needs you, 1 that something does.

Examples:
  abide doctor
  abide doctor --json | jq -r '.findings[].code'
  abide doctor --grace 5m")]
pub(crate) struct Doctor {
    /// How late something may be before it counts
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    grace: std::time::Duration,
}

/// Something that needs a person.
#[derive(Debug, Serialize)]
struct Finding {
    code: &'static str,
    run: Option<RunId>,
    what: String,
    #[serde(rename = "do")]
    action: String,
}

impl Doctor {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let place = Place::of(globals)?;
        let mut visit = Visit {
            now: screen.now(),
            grace_ms: self.grace.as_millis() as u64,
            keepers: place.keepers()?,
            runs: 0,
            findings: Vec::new(),
            counts: std::collections::BTreeMap::new(),
        };
        let drift = place.file_reader()?.map(|reader| reader.drift()).transpose()?;
        for drifted in drift.unwrap_or_default() {
            let action = "leave the tables as they are; keep your own in another file";
            visit.add("schema_drift", None, drifted, action.into());
        }
        place.file().into_iter().for_each(|path| visit.look_at_file(path));
        let mut snapshot = place.snapshot()?;
        let damaged: Vec<(RunId, String)> = snapshot.damaged().map(|(run, found)| (run, found.to_owned())).collect();
        for (run, found) in damaged {
            visit.add("damaged", Some(run), found, "abide store check".into());
        }
        visit.look_at_runs(&mut snapshot, globals.namespace.as_deref())?;
        for item in snapshot.dead_letters()? {
            let what = format!("a {} message was set aside: {}", item.dead.envelope.message.kind(), item.dead.reason);
            let action = format!("abide dead-letter requeue {}, or discard", item.id);
            visit.add("dead_message", item.dead.envelope.message.target(), what, action);
        }
        visit.report(&screen)
    }
}

struct Visit {
    now: Timestamp,
    grace_ms: u64,
    keepers: Vec<Keeper>,
    runs: u64,
    findings: Vec<Finding>,
    counts: std::collections::BTreeMap<&'static str, usize>,
}

impl Visit {
    fn add(&mut self, code: &'static str, run: Option<RunId>, what: String, action: String) {
        let count = self.counts.entry(code).or_default();
        *count += 1;
        if *count <= NAMED_MAX {
            self.findings.push(Finding { code, run, what, action });
        }
    }

    /// Programs other than the holder that have the file open, and a log that has grown beyond measure.
    fn look_at_file(&mut self, path: &Path) {
        let holder = self.keepers.first().and_then(Keeper::pid);
        for (pid, name) in openers(path) {
            if Some(pid) != holder && pid != std::process::id() {
                let what = format!(
                    "process {pid} ({name}) has the file open; a reader that stays pins its log, a writer is refused nothing"
                );
                self.add("foreign_program", None, what, format!("end process {pid} if you do not know it"));
            }
        }
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        let bytes = fs::metadata(&wal).map_or(0, |metadata| metadata.len());
        if bytes > WAL_BYTES_MAX {
            let what = format!("the write-ahead log has grown to {} MiB", bytes / 1024 / 1024);
            self.add("log_not_settled", None, what, "end programs that read the file in one long transaction".into());
        }
    }

    fn look_at_runs(&mut self, snapshot: &mut Snapshot, namespace: Option<&str>) -> Result<(), Failure> {
        let mut filter = Filter::default();
        filter.namespace = namespace.map(Into::into);
        let mut before = None;
        loop {
            let page = Page { most: PAGE_RUNS, before };
            let listed = snapshot.list(&filter, &page)?;
            let Some(last) = listed.last() else {
                return Ok(());
            };
            before = Some(last.run);
            for listed in &listed {
                self.runs += 1;
                match snapshot.show(listed.run) {
                    Ok(Some(stored)) => self.look_at_run(listed, &stored.run),
                    Ok(None) => {}
                    Err(fault) => self.add("damaged", Some(listed.run), fault.message, "abide store check".into()),
                }
            }
        }
    }

    fn look_at_run(&mut self, listed: &Listed, run: &Run) {
        let id = run.id;
        for seen in &run.anomalies {
            let what = format!("anomaly {}: {}", seen.anomaly.kind, seen.anomaly.detail);
            self.add("anomaly", Some(id), what, format!("abide run history {id}"));
        }
        if listed.status == Status::DeadLettered {
            let why = run.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let what = format!("its attempt was set aside{why}");
            self.add("dead_letter", Some(id), what, format!("abide dead-letter requeue {id}, or discard"));
        }
        for cursor in &run.cursors {
            match &cursor.phase {
                Phase::Claimed(claim) => {
                    let process = cursor.claimant.as_ref().and_then(|by| by.process.as_deref());
                    if self.is_late(claim.until()) && !self.is_held_by(process) {
                        let what =
                            format!("the lease of claim {} ended {} ago", claim.number, self.since(claim.until()));
                        self.add("expired_claim", Some(id), what, self.start_engine());
                    }
                }
                Phase::Scheduled { visible_at, .. } if self.is_late(*visible_at) => {
                    let what = format!("its attempt could be claimed {} ago, and nobody has", self.since(*visible_at));
                    self.add("overdue_attempt", Some(id), what, format!("abide run explain {id}"));
                }
                Phase::Waiting(wait) => {
                    if let Some(until) = wait.until.filter(|until| self.is_late(*until)) {
                        let what = format!("its timer was due {} ago", self.since(until));
                        self.add("overdue_timer", Some(id), what, self.start_engine());
                    }
                }
                _ => {}
            }
        }
    }

    fn is_late(&self, at: Timestamp) -> bool {
        self.now.since(at) > self.grace_ms
    }

    fn since(&self, at: Timestamp) -> String {
        span(self.now.since(at))
    }

    /// Whether a claim is of a process that serves the store: it extends its leases in memory.
    fn is_held_by(&self, process: Option<&str>) -> bool {
        process.is_some_and(|process| self.keepers.iter().any(|keeper| keeper.is(process)))
    }

    fn start_engine(&self) -> String {
        match self.keepers.as_slice() {
            [] => "start an engine on the store: nobody holds it".into(),
            [keeper] => format!("look at {}, which holds the store and should have", keeper.shown()),
            several => format!("look at the {} nodes that share the store: abide node list", several.len()),
        }
    }

    fn report(self, screen: &Screen) -> Outcome {
        let exit = if self.findings.is_empty() { Exit::Ok } else { Exit::Failure };
        if !screen.is_text() {
            let (holder, nodes): (Vec<&Keeper>, Vec<&Keeper>) =
                self.keepers.iter().partition(|keeper| keeper.pid().is_some());
            let nodes: Vec<_> = nodes.into_iter().map(Keeper::json).collect();
            let holder = holder.first().map(|keeper| keeper.json());
            screen.document(&json!({
                "ok": self.findings.is_empty(), "runs": self.runs, "holder": holder, "nodes": nodes,
                "counts": self.counts, "findings": self.findings,
            }))?;
            return Ok(exit);
        }
        let rows = self.findings.iter().map(|finding| {
            vec![
                Cell::toned(finding.code, Tone::Bad),
                Cell::toned(finding.run.map_or("-".into(), |run| screen.id(run)), Tone::Strong),
                Cell::new(&finding.what),
                Cell::toned(screen.command(&finding.action), Tone::Busy),
            ]
        });
        if self.findings.is_empty() {
            screen.remark(&format!("{} runs were looked at: nothing needs you", self.runs));
        } else {
            screen.table(&["CODE", "RUN", "WHAT", "DO"], rows.collect())?;
        }
        for (code, count) in self.counts.iter().filter(|(_, count)| **count > NAMED_MAX) {
            screen.remark(&format!("{code}: {} more", count - NAMED_MAX));
        }
        Ok(exit)
    }
}

/// Processes that have the file open, where the system tells.
fn openers(path: &Path) -> Vec<(u32, String)> {
    let Ok(path) = path.canonicalize() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let files = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let opened = files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == path);
        if opened {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push((pid, name.trim().to_owned()));
        }
    }
    found
}
