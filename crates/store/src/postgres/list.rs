//! Listing runs by their index rows.

use abide_kernel::Status;
use tokio_postgres::types::{ToSql, Type};

use super::column::{Id, escape};
use super::fault::Trouble;
use super::limit;
use super::link::{Live, Value};
use super::read::{RECORD, raw_record};
use crate::listing::instants;
use crate::record::RawRecord;
use crate::{Filter, Listed, Page, label};

pub(super) async fn list(live: &mut Live, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Trouble> {
    let mut query = Query { sql: RECORD.replace("WHERE id = $1", "WHERE NOT reservation"), with: Vec::new() };
    let texts = [
        ("namespace", &filter.namespace),
        ("workflow", &filter.workflow),
        ("queue", &filter.queue),
        ("key", &filter.key),
    ];
    for (column, value) in texts {
        if let Some(value) = value {
            query.and(&format!("{column} ="), escape(value).into_owned(), Type::TEXT);
        }
    }
    for (condition, id) in [("parent =", filter.parent), ("id <", page.before)] {
        if let Some(id) = id {
            query.and(condition, Id(id), Type::UUID);
        }
    }
    for (name, value) in &filter.labels {
        query.and("0 < strpos(labels,", label::line(name, value), Type::TEXT);
        query.sql.push(')');
    }
    for (condition, at) in instants(filter) {
        if let Some(at) = at {
            query.and(condition, at.0, Type::INT8);
        }
    }
    if !filter.statuses.is_empty() {
        let words: Vec<String> = filter.statuses.iter().map(|status| format!("'{}'", status.name())).collect();
        query.sql.push_str(&format!(" AND status IN ({})", words.join(", ")));
        if !filter.statuses.contains(&Status::Done) {
            // In the words of the index on open runs.
            query.sql.push_str(" AND status <> 'done'");
        }
    }
    query.sql.push_str(" ORDER BY id DESC");
    query.push("LIMIT", limit(page.most), Type::INT8);
    let with: Vec<(Value<'_>, Type)> =
        query.with.iter().map(|(value, kind)| (&**value as Value<'_>, kind.clone())).collect();
    let mut listed = Vec::new();
    for row in live.query_once(&query.sql, &with).await? {
        let Id(run) = row.try_get(0)?;
        listed.push(raw_record(run, &row).and_then(RawRecord::listed)?);
    }
    Ok(listed)
}

/// A statement that is being put together.
struct Query {
    sql: String,
    with: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Query {
    fn and(&mut self, condition: &str, value: impl ToSql + Sync + Send + 'static, kind: Type) {
        self.push(&format!("AND {condition}"), value, kind);
    }

    fn push(&mut self, words: &str, value: impl ToSql + Sync + Send + 'static, kind: Type) {
        self.with.push((Box::new(value), kind));
        self.sql.push_str(&format!(" {words} ${}", self.with.len()));
    }
}
