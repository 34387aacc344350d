//! Listing runs by their index rows.

use abide_kernel::Status;
use rusqlite::{Connection, ToSql, params_from_iter};

use super::fault::fault;
use super::limit;
use super::read::{Id, RECORD_COLUMNS, raw_record};
use crate::listing::instants;
use crate::record::RawRecord;
use crate::{Fault, Filter, Listed, Page, label};

pub(super) fn list(connection: &Connection, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Fault> {
    let doing = |error| fault("listing runs", error);
    let mut sql = format!("SELECT {RECORD_COLUMNS} FROM run WHERE reservation = 0");
    let mut with: Vec<Box<dyn ToSql>> = Vec::new();
    let texts = [
        ("namespace", &filter.namespace),
        ("workflow", &filter.workflow),
        ("queue", &filter.queue),
        ("key", &filter.key),
    ];
    for (column, value) in texts {
        if let Some(value) = value {
            with.push(Box::new(value.to_string()));
            sql.push_str(&format!(" AND {column} = ?{}", with.len()));
        }
    }
    for (condition, id) in [("parent = ", filter.parent), ("id < ", page.before)] {
        if let Some(id) = id {
            with.push(Box::new(id.0.to_be_bytes().to_vec()));
            sql.push_str(&format!(" AND {condition}?{}", with.len()));
        }
    }
    for (name, value) in &filter.labels {
        with.push(Box::new(label::line(name, value)));
        sql.push_str(&format!(" AND instr(labels, ?{}) > 0", with.len()));
    }
    for (condition, at) in instants(filter) {
        if let Some(at) = at {
            with.push(Box::new(at.0));
            sql.push_str(&format!(" AND {condition} ?{}", with.len()));
        }
    }
    if !filter.statuses.is_empty() {
        let words: Vec<String> = filter.statuses.iter().map(|status| format!("'{}'", status.name())).collect();
        sql.push_str(&format!(" AND status IN ({})", words.join(",")));
        if !filter.statuses.contains(&Status::Done) {
            // In the words of the index on open runs: SQLite uses it only if it finds them in the query.
            sql.push_str(" AND status <> 'done'");
        }
    }
    with.push(Box::new(limit(page.most)));
    sql.push_str(&format!(" ORDER BY id DESC LIMIT ?{}", with.len()));
    let mut statement = connection.prepare_cached(&sql).map_err(doing)?;
    let rows = statement.query_map(params_from_iter(with.iter()), listed).map_err(doing)?;
    rows.map(|row| row.map_err(doing)?).collect()
}

/// What the listing shows of a run. A row that is not as it was written is reported, never guessed.
fn listed(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<Listed, Fault>> {
    let Id(run) = row.get(0)?;
    Ok(raw_record(run, row).and_then(RawRecord::listed))
}
