//! Of a concurrency key no more attempts are claimed at once than it has room for.

use std::collections::{BTreeMap, BTreeSet};

use abide::{Fact, Row, RunId};
use abide_kernel::{Concurrency, Phase, Str};

use crate::Violation;

/// Who holds places, as far as the logs were read.
#[derive(Default)]
pub(crate) struct Places {
    /// The key of each run that has one, with its tenant.
    keys: BTreeMap<RunId, (Str, Concurrency)>,
    /// Cursors that are claimed, by tenant and key.
    held: BTreeMap<(Str, Str), BTreeSet<(RunId, u16)>>,
}

impl Places {
    /// Follows one row, each of a shard in its order.
    pub(crate) fn follow(&mut self, row: &Row) {
        // What was emptied before anybody looked may have been the end of a claim.
        if row.facts.is_empty() {
            self.held.values_mut().for_each(|held| held.retain(|(run, _)| *run != row.run));
        }
        for fact in &row.facts {
            let started = match fact {
                Fact::Started(started) => Some(&**started),
                Fact::Compacted(run) => Some(&*run.started),
                _ => None,
            };
            if let Some(spec) = started.map(|started| &started.spec)
                && let Some(concurrency) = &spec.concurrency
            {
                self.keys.insert(row.run, (spec.namespace.clone(), concurrency.clone()));
            }
            let Some((tenant, concurrency)) = self.keys.get(&row.run) else { continue };
            let held = self.held.entry((tenant.clone(), concurrency.key.clone())).or_default();
            match fact {
                Fact::Claimed(claimed) => drop(held.insert((row.run, claimed.cursor))),
                Fact::Expired(claim) | Fact::Returned(claim) => drop(held.remove(&(row.run, claim.cursor))),
                Fact::Completed(completed) => drop(held.remove(&(row.run, completed.cursor))),
                Fact::Failed(failed) => drop(held.remove(&(row.run, failed.cursor))),
                Fact::Compacted(run) => {
                    held.retain(|(run, _)| *run != row.run);
                    let claimed =
                        run.cursors.iter().enumerate().filter(|(_, at)| matches!(at.phase, Phase::Claimed(_)));
                    held.extend(claimed.map(|(cursor, _)| (row.run, cursor as u16)));
                }
                Fact::Ended(_) | Fact::Purged => held.retain(|(run, _)| *run != row.run),
                _ => {}
            }
        }
    }

    /// Looks whether there is room for all who hold places. Within a batch a claim may stand before the end that made room
    /// for it, because it rides in the row it follows from; a batch is there whole or not at all.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        for ((tenant, key), held) in &self.held {
            let limit = held.iter().filter_map(|(run, _)| self.keys.get(run)).map(|(_, known)| known.limit).max();
            if held.len() > limit.unwrap_or(0) as usize {
                return Err(format!(
                    "keys: {held:?} execute at once under {key} of {tenant}, which has room for {limit:?}"
                ));
            }
        }
        Ok(())
    }
}
