//! What must hold of a world after every command, whatever the command was.

use std::collections::BTreeMap;

use abide_kernel::{Facts, Rev, Row, Run, RunId, Seq};

use super::{World, fold_of};

/// The run as its rows in `rows` make it; `None` when it has none or was purged.
pub fn fold(rows: &[Row], id: RunId) -> Option<Run> {
    fold_to(rows, id, Rev(u64::MAX))
}

fn fold_to(rows: &[Row], id: RunId, last: Rev) -> Option<Run> {
    let mut run: Option<Run> = None;
    for row in rows.iter().filter(|row| row.run == id && row.rev <= last && !row.facts.is_empty()) {
        if is_purge(row) {
            run = None;
            continue;
        }
        match &mut run {
            None => run = Some(Run::begin(row).expect("a journal")),
            Some(run) => run.apply_row(row),
        }
    }
    run
}

/// The run as its rows make it since it was compacted last; `None` when it never was.
fn fold_compacted(rows: &[Row], id: RunId) -> Option<Run> {
    let begins = rows.iter().rposition(|row| row.run == id && is_compaction(row))?;
    fold(&rows[begins..], id)
}

fn is_compaction(row: &Row) -> bool {
    row.facts.first().is_some_and(|fact| fact.kind() == "compacted")
}

fn is_purge(row: &Row) -> bool {
    row.facts.iter().any(|fact| fact.kind() == "purged")
}

pub fn json(run: &Run) -> String {
    serde_json::to_string(run).expect("json")
}

/// Positions and revisions are dense, links are right, and every row survives its own text form.
fn check_log(rows: &[Row]) {
    let mut last: BTreeMap<RunId, (Rev, Seq)> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row.seq, Seq(index as u64 + 1), "positions are dense");
        let (rev, prior) = last.get(&row.run).copied().unwrap_or_default();
        assert_eq!(row.rev, Rev(rev.0 + 1), "revisions of {} are dense", row.run);
        assert_eq!(row.prior, prior, "prior of {} at {:?}", row.run, row.seq);
        let begins_later = || rows[index..].iter().any(|later| later.run == row.run && is_compaction(later));
        assert!(!row.facts.is_empty() || begins_later(), "a row says something, or a later one says it all");
        last.insert(row.run, (row.rev, row.seq));
        // Long after a purge its request may come once more, and begins a run of its own.
        if is_purge(row) {
            last.remove(&row.run);
        }
        let text = serde_json::to_string(&row.facts).expect("json");
        let back: Facts = serde_json::from_str(&text).expect("facts");
        assert_eq!(serde_json::to_string(&back).expect("json"), text, "facts survive their text");
    }
}

/// A row as it comes back from a store that keeps text.
fn reread(row: &Row) -> Row {
    let text = serde_json::to_string(&row.facts).expect("json");
    Row { facts: serde_json::from_str(&text).expect("facts"), ..row.clone() }
}

pub fn check(world: &World) {
    for (index, disk) in world.disks.iter().enumerate() {
        check_log(&disk.rows);
        let again: Vec<Row> = disk.rows.iter().map(reread).collect();
        let mut ids: Vec<RunId> = disk.rows.iter().map(|row| row.run).collect();
        ids.sort();
        ids.dedup();
        for id in ids {
            let one = fold(&disk.rows, id);
            let two = fold(&again, id);
            assert_eq!(one.as_ref().map(json), two.as_ref().map(json), "two folds are equal");
            if let Some(run) = &one {
                run.check().expect("an invariant of the fold");
                if let Some(since) = fold_compacted(&again, id) {
                    assert_eq!(json(&since), json(run), "a compacted row says all that was before it");
                }
            }
            // While commits are held, memory is ahead of the log.
            if let (Some(resident), false) = (world.shards[index].run(id), world.held) {
                let folded = one.as_ref().map(json);
                assert_eq!(Some(json(resident)), folded, "memory is the fold of the log");
            }
            let again = disk.rows.iter().any(|row| row.run == id && is_purge(row));
            if let (Some(record), false) = (disk.index.get(&id), again) {
                let folded = fold_to(&disk.rows, id, record.rev).expect("a fold");
                assert_eq!(json(&fold_of(disk, record)), json(&folded), "a checkpoint is the fold to its rev");
            }
        }
        assert_eq!(world.shards[index].bug(), None);
    }
}
