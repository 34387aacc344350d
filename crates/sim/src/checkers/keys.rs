//! No more attempts are claimed at once than there is room for: under a concurrency key, and in a tenant's queue that somebody has
//! limited or paused.

use std::collections::{BTreeMap, BTreeSet};

use abide::{Fact, Row, RunId};
use abide_kernel::{Concurrency, Phase, StartSpec, Str};

use crate::Violation;

/// A run, and one of its cursors.
type Place = (RunId, u16);

/// Who holds places, as far as the logs were read.
#[derive(Default)]
pub(crate) struct Places {
    /// The tenant of each run, and its key if it has one.
    specs: BTreeMap<RunId, (Str, Option<Concurrency>)>,
    /// Cursors that are claimed.
    held: BTreeSet<Place>,
    /// How many a tenant may hold at once, and who held one when that was said and does still.
    limits: BTreeMap<Str, (u32, BTreeSet<Place>)>,
}

impl Places {
    /// Follows one row, each of a shard in its order.
    pub(crate) fn follow(&mut self, row: &Row) {
        // What was emptied before anybody looked may have been the end of a claim.
        if row.facts.is_empty() {
            self.leaves(row.run);
        }
        for fact in &row.facts {
            match fact {
                Fact::Started(started) => self.knows(row.run, &started.spec),
                Fact::Claimed(claimed) => drop(self.held.insert((row.run, claimed.cursor))),
                Fact::Expired(claim) | Fact::Returned(claim) => drop(self.held.remove(&(row.run, claim.cursor))),
                Fact::Completed(completed) => drop(self.held.remove(&(row.run, completed.cursor))),
                Fact::Failed(failed) => drop(self.held.remove(&(row.run, failed.cursor))),
                Fact::Compacted(run) => {
                    self.knows(row.run, &run.started.spec);
                    self.leaves(row.run);
                    let cursors = run.cursors.iter().enumerate();
                    let claimed = cursors.filter(|(_, cursor)| matches!(cursor.phase, Phase::Claimed(_)));
                    self.held.extend(claimed.map(|(cursor, _)| (row.run, cursor as u16)));
                }
                Fact::Ended(_) | Fact::Purged => self.leaves(row.run),
                _ => {}
            }
        }
    }

    fn knows(&mut self, run: RunId, spec: &StartSpec) {
        self.specs.insert(run, (spec.namespace.clone(), spec.concurrency.clone()));
    }

    fn leaves(&mut self, run: RunId) {
        self.held.retain(|(holder, _)| *holder != run);
    }

    /// From now on so many attempts of a tenant may be claimed at once, or as many as there is room for. Nothing may be
    /// under way that was decided before.
    pub(crate) fn limit(&mut self, tenant: &str, most: Option<u32>) {
        self.limits.remove(tenant);
        if let Some(most) = most {
            self.limits.insert(tenant.into(), (most, self.of(tenant).collect()));
        }
    }

    /// Whoever holds a place now may have it, whatever was said.
    pub(crate) fn excuse(&mut self) {
        let tenants: Vec<Str> = self.limits.keys().cloned().collect();
        for tenant in tenants {
            let most = self.limits.get(&tenant).map(|(most, _)| *most);
            self.limit(&tenant, most);
        }
    }

    fn of(&self, tenant: &str) -> impl Iterator<Item = Place> {
        let ours = |run: &RunId| self.specs.get(run).is_some_and(|(known, _)| **known == *tenant);
        self.held.iter().filter(move |(run, _)| ours(run)).copied()
    }

    /// Looks whether there is room for all who hold places. Within a batch a claim may stand before the end that made room
    /// for it, because it rides in the row it follows from; a batch is there whole or not at all.
    pub(crate) fn check(&mut self) -> Result<(), Violation> {
        let mut keys: BTreeMap<(&Str, &Str), (u32, Vec<Place>)> = BTreeMap::new();
        for place in &self.held {
            if let Some((tenant, Some(concurrency))) = self.specs.get(&place.0) {
                let (limit, held) = keys.entry((tenant, &concurrency.key)).or_default();
                *limit = concurrency.limit.max(*limit);
                held.push(*place);
            }
        }
        for ((tenant, key), (limit, held)) in keys {
            if held.len() > limit as usize {
                return Err(format!(
                    "keys: {held:?} execute at once under {key} of {tenant}, which has room for {limit}"
                ));
            }
        }
        for (tenant, (most, before)) in self.limits.clone() {
            let held: BTreeSet<Place> = self.of(&tenant).collect();
            if held.len() > most as usize && !held.is_subset(&before) {
                return Err(format!("keys: {held:?} execute at once in {tenant}, which may have {most}"));
            }
            let before = before.intersection(&held).copied().collect();
            self.limits.insert(tenant, (most, before));
        }
        Ok(())
    }
}
