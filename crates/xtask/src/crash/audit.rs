//! The audit: the journal alone is folded and held against what was acknowledged, and against the index rows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use abide_kernel::{Choice, Fact, Reply, Row, Run, RunId, Seq, Status};
use abide_store::Reader;
use abide_store::sqlite::open_read_only;
use anyhow::{Context, Result};
use rusqlite::Connection;

use super::ledger::Ledger;

/// What an audit found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) lost: Vec<String>,
    pub(crate) terminal_twice: Vec<String>,
    pub(crate) lease_overlaps: Vec<String>,
    pub(crate) mismatches: Vec<String>,
    pub(crate) asked_not_once: Vec<String>,
    pub(crate) open: u64,
}

/// A run folded from the journal, and what the journal says happened to it.
#[derive(Debug)]
struct Folded {
    run: Run,
    ends: u64,
    overlaps: u64,
    dedup: Vec<String>,
    approved: bool,
}

/// Folds the whole journal of a file and compares.
pub(crate) fn audit(store: &Path, ledger: &Ledger) -> Result<Found> {
    audit_with(&mut open_read_only(store).context("opening the store to audit it")?, ledger)
}

/// The same of any store.
pub(crate) fn audit_with(reader: &mut dyn Reader, ledger: &Ledger) -> Result<Found> {
    let folded = fold(reader)?;
    let mut found = Found::default();
    for run in ledger.started.keys() {
        if !folded.contains_key(run) {
            found.lost.push(format!("the start of {run} was acknowledged and is gone"));
        }
    }
    for (run, key) in ledger.signals.keys() {
        if !folded.get(run).is_some_and(|folded| folded.dedup.contains(key)) {
            found.lost.push(format!("signal {key} to {run} was acknowledged and is gone"));
        }
    }
    for (run, how) in &ledger.ended {
        if folded.get(run).is_none_or(|folded| ending(&folded.run) != *how) {
            found.lost.push(format!("{run} was said to have ended as {how}, and has not"));
        }
    }
    for run in ledger.cancelled.keys() {
        if folded.get(run).is_none_or(|folded| folded.run.status() != Status::Cancelled) {
            found.lost.push(format!("the cancellation of {run} was acknowledged and is gone"));
        }
    }
    for ((run, key), answer) in &ledger.updated {
        if folded.get(run).is_none_or(|folded| answer_to(&folded.run, key).as_ref() != Some(answer)) {
            found.lost.push(format!("update {key} was answered with {answer}, and {run} has not"));
        }
    }
    for run in &ledger.approved {
        if folded.get(run).is_none_or(|folded| !folded.approved) {
            found.lost.push(format!("an approval of {run} was acknowledged and is gone"));
        }
    }
    for (id, folded) in &folded {
        if folded.ends > 1 {
            found.terminal_twice.push(format!("{id} has {} terminal facts", folded.ends));
        }
        if folded.overlaps > 0 {
            found.lease_overlaps.push(format!("{id} was claimed {} times while it was claimed", folded.overlaps));
        }
        found.open += u64::from(folded.run.end.is_none() && !folded.run.is_reservation());
        let indexed = reader.read_run(folded.run.id)?;
        if let Some(indexed) = indexed.filter(|indexed| indexed.run.rev == folded.run.rev)
            && serde_json::to_string(&indexed.run)? != serde_json::to_string(&folded.run)?
        {
            found.mismatches.push(format!("{id}: its index row is not the fold of its journal"));
        }
    }
    found.asked_not_once = asked_not_once(&folded, ledger);
    Ok(found)
}

/// What was asked by SQL and committed is one run, or one signal of one; what was rolled back is none.
fn asked_not_once(folded: &BTreeMap<String, Folded>, ledger: &Ledger) -> Vec<String> {
    let mut done: BTreeMap<String, u64> = BTreeMap::new();
    for run in folded.values().map(|folded| &folded.run).filter(|run| !run.is_reservation()) {
        for request in std::iter::once(run.started.request).chain(run.dedup.iter().map(|seen| seen.request)) {
            *done.entry(request.to_string()).or_default() += 1;
        }
    }
    let times = |request: &String| done.get(request).copied().unwrap_or(0);
    let committed = ledger.asked.iter().filter(|request| times(request) != 1);
    let withdrawn = ledger.withdrawn.iter().filter(|request| times(request) != 0);
    let say = |request: &String, what: &str| format!("{request} was {what}, and done {} times", times(request));
    let committed = committed.map(|request| say(request, "committed"));
    committed.chain(withdrawn.map(|request| say(request, "rolled back"))).collect()
}

/// What a run answered to the update of a key, as its journal says.
fn answer_to(run: &Run, key: &str) -> Option<String> {
    let update = run.updates.iter().find(|update| update.dedup.as_deref() == Some(key))?;
    match update.reply()? {
        Reply::Value(answer) => Some(answer.text().to_owned()),
        Reply::Rejected(_) => None,
    }
}

/// How a run ended, in the words of the process.
pub(crate) fn ending(run: &Run) -> String {
    let result = run.result.as_ref().map_or("-".to_owned(), |result| result.text().to_owned());
    format!("{} {result}", run.status())
}

/// How many facts of a kind the journal of a file has.
pub(crate) fn count(store: &Path, is_one: impl Fn(&Fact) -> bool) -> Result<u64> {
    let mut reader = open_read_only(store).context("opening the store to count in it")?;
    let mut counted = 0;
    each_row(&mut reader, |row| {
        counted += row.facts.iter().filter(|fact| is_one(fact)).count() as u64;
        Ok(())
    })?;
    Ok(counted)
}

/// Shows every row of the journal, shard by shard, in its order.
fn each_row(reader: &mut dyn Reader, mut show: impl FnMut(&Row) -> Result<()>) -> Result<()> {
    for shard in reader.map().all() {
        let mut after = Seq(0);
        loop {
            let rows = reader.scan(shard, after, 10_000)?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                let row = row.context("a journal row is damaged")?;
                after = row.seq;
                show(&row)?;
            }
        }
    }
    Ok(())
}

fn fold(reader: &mut dyn Reader) -> Result<BTreeMap<String, Folded>> {
    let mut folded: BTreeMap<RunId, Folded> = BTreeMap::new();
    // Nothing is purged here, so that a row without facts was emptied by a compaction: its row is to come.
    each_row(reader, |row| if row.facts.is_empty() { Ok(()) } else { fold_row(&mut folded, row) })?;
    Ok(folded.into_iter().map(|(id, folded)| (id.to_string(), folded)).collect())
}

fn fold_row(folded: &mut BTreeMap<RunId, Folded>, row: &Row) -> Result<()> {
    let entry = match folded.entry(row.run) {
        Entry::Occupied(entry) => {
            let entry = entry.into_mut();
            let (rev, before) = (row.rev.0, entry.run.rev.0);
            anyhow::ensure!(rev == before + 1, "{}: rev {rev} after {before}", row.run);
            entry.count(&row.facts);
            entry.run.apply_row(row);
            if let Some(Fact::Compacted(_)) = row.facts.first() {
                let begun = serde_json::to_string(&Run::begin(row)?)?;
                let same = begun == serde_json::to_string(&entry.run)?;
                anyhow::ensure!(same, "{}: its compacted row is not what its journal folds to", row.run);
            }
            entry
        }
        Entry::Vacant(entry) => {
            let run = Run::begin(row).with_context(|| format!("{} does not begin", row.run))?;
            // What was counted before is known only by what the run still remembers.
            let told = matches!(row.facts.first(), Some(Fact::Compacted(whole)) if whole.end.is_some());
            let dedup = run.dedup.iter().filter_map(|seen| seen.key.as_ref().map(ToString::to_string)).collect();
            entry.insert(Folded { run, ends: u64::from(told), overlaps: 0, dedup, approved: false })
        }
    };
    for fact in &row.facts {
        match fact {
            Fact::Ended(_) => entry.ends += 1,
            Fact::Decided(decided) => entry.approved |= decided.choice == Choice::Approve,
            Fact::SignalReceived(signal) => entry.dedup.extend(signal.dedup.as_ref().map(ToString::to_string)),
            _ => {}
        }
    }
    Ok(())
}

impl Folded {
    /// Looks at the facts of a row before they are folded: a claim on a cursor that is claimed is an overlap.
    fn count(&mut self, facts: &[Fact]) {
        let mut held =
            matches!(self.run.cursors.first().map(|cursor| &cursor.phase), Some(abide_kernel::Phase::Claimed(_)));
        for fact in facts {
            match fact {
                Fact::Claimed(_) if held => self.overlaps += 1,
                Fact::Claimed(_) => held = true,
                Fact::Completed(_) | Fact::Failed(_) | Fact::Expired(_) | Fact::Returned(_) | Fact::Ended(_) => {
                    held = false
                }
                _ => {}
            }
        }
    }
}

/// Deletes every index row and checkpoint: the journal alone must be enough. Gives how many runs differ after the
/// engine has rebuilt them.
pub(crate) fn lose_index(store: &Path) -> Result<u64> {
    let mut reader = open_read_only(store)?;
    let before = fold(&mut reader)?;
    drop(reader);
    {
        let connection = Connection::open(store)?;
        connection.execute_batch("DELETE FROM run; UPDATE shard SET watermark = 0;")?;
    }
    // An engine without workers opens, rebuilds and writes the index rows again.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let url = format!("sqlite:{}", store.display());
        let engine = abide::Engine::open(&url).node("rebuild").queue("nobody", 1).start().await?;
        engine.stop(std::time::Duration::from_secs(5)).await;
        anyhow::Ok(())
    })?;
    let mut reader = open_read_only(store)?;
    let after = fold(&mut reader)?;
    let mut mismatches = 0;
    for (id, folded) in &before {
        let same_past = after.get(id).is_some_and(|now| now.run.rev >= folded.run.rev);
        let rebuilt = after.get(id).map(|now| (&now.run, reader.read_run(now.run.id)));
        let same_now = match rebuilt {
            Some((run, Ok(Some(stored)))) => serde_json::to_string(&stored.run)? == serde_json::to_string(run)?,
            _ => false,
        };
        mismatches += u64::from(!same_past || !same_now);
    }
    Ok(mismatches)
}
