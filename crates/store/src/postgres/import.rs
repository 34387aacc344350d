//! Filling a schema from elsewhere. Whoever does it owns the tables: engines need not be able to.

use super::fault::Trouble;
use super::link::{Live, Work};
use super::{PostgresStore, letter, schema, transaction};
use crate::setting::IMPORTING;
use crate::transaction::Outcome;
use crate::{DeadLetterItem, Fault, Import, import};

/// Refuses a schema that holds a part of what was to be imported.
pub(super) async fn check(live: &mut Live, schema: &str) -> Result<(), Trouble> {
    let sql = "SELECT EXISTS (SELECT FROM setting WHERE name = $1)";
    if live.query_one(sql, &[&IMPORTING]).await?.try_get(0)? {
        let remove = format!("drop it with DROP SCHEMA \"{schema}\" CASCADE");
        return Err(import::unfinished(&format!("the schema {schema}"), &remove).into());
    }
    Ok(())
}

impl Import for PostgresStore {
    fn begin_import(&mut self) -> Result<(), Fault> {
        self.counts.write();
        let name = self.settings.schema.clone();
        self.link.run("beginning an import", Work::Repeatable, async |live: &mut Live| {
            live.transaction("BEGIN", async |live| {
                let sql = "SELECT EXISTS (SELECT FROM journal) OR EXISTS (SELECT FROM dead_letter)
                    OR EXISTS (SELECT FROM transaction_outcome) OR EXISTS (SELECT FROM request)";
                if live.query_one(sql, &[]).await?.try_get(0)? {
                    return Err(import::not_empty(&format!("the schema {name}")).into());
                }
                schema::write_setting(live, IMPORTING, 1).await
            })
            .await
        })
    }

    fn import_letter(&mut self, letter: &DeadLetterItem) -> Result<(), Fault> {
        self.counts.write();
        self.link.run("keeping a dead letter", Work::Once, async |live: &mut Live| {
            live.transaction("BEGIN", async |live| letter::set_aside(live, letter.at, &letter.node, &letter.dead).await)
                .await
        })
    }

    fn import_outcome(&mut self, outcome: &Outcome) -> Result<(), Fault> {
        self.counts.write();
        self.link.run("keeping the outcome of a transaction", Work::Once, async |live: &mut Live| {
            transaction::insert(live, outcome).await
        })
    }

    fn end_import(&mut self) -> Result<(), Fault> {
        self.counts.write();
        self.link.run("ending an import", Work::Repeatable, async |live: &mut Live| {
            live.execute("DELETE FROM setting WHERE name = $1", &[&IMPORTING]).await?;
            Ok(())
        })
    }
}
