//! The second phase of a world: nothing goes wrong any more, and everything must come to its end.

use abide::{Filter, Page, Run, Status};
use abide_runtime::Turned;

use super::{WORKERS, World};
use crate::Violation;
use crate::asking::{Question, Waiting};
use crate::checkers;
use crate::nodes::{NODE_LEASE_MS, Node};
use crate::rare;

/// Rounds of the healed world after which what has not ended never will.
const ROUNDS_MAX: u32 = 400;
/// Turns of the cranks in a row after which the nodes do not come to rest.
const TURNS_MAX: u32 = 100_000;
/// Letters in one instant after which there is no end to them.
const LETTERS_MAX: u32 = 100_000;
/// Rounds in which something is listed while runs are still open.
const LISTED_ROUNDS: u32 = 12;
/// Steps of time after which every shard is served, so that everything can be listed.
const LISTING_PATIENCE: u32 = 50;

impl World {
    /// Nothing goes wrong any more, and whoever waits for somebody is answered: everything must come to its end.
    pub(super) fn heal(&mut self) -> Result<(), Violation> {
        self.stop_faults()?;
        self.come_to_rest()
    }

    /// Nothing goes wrong any more.
    fn stop_faults(&mut self) -> Result<(), Violation> {
        self.story.tell(self.now(), || "all is healed".into());
        self.store.faults().heal();
        self.store.faults().mend();
        self.witness.truth.lock().healed = true;
        self.net.mend();
        self.profile.slow_disk = 0;
        while !self.late.is_empty() {
            self.write_late();
        }
        for place in 0..self.nodes.len() {
            self.nodes[place].paused_until = i64::MIN;
            while self.nodes[place].writes().is_some() {
                self.nodes[place].write();
            }
            // What a process has set aside it takes up again when it begins anew.
            let anew = self.profile.nodes == 1 && self.dice.chance(500);
            if !self.nodes[place].is_awake(self.now()) || anew || self.profile.rot > 0 {
                self.open(place)?;
            }
        }
        self.lift_rules()
    }

    /// Round after round until everything has come to its end.
    fn come_to_rest(&mut self) -> Result<(), Violation> {
        for round in 0..ROUNDS_MAX {
            self.settle()?;
            self.is_nothing_amiss()?;
            self.store.faults().fail_reads(0);
            self.view.look()?;
            self.view.check_places()?;
            self.view.compare()?;
            checkers::check(&self.view, &self.witness)?;
            let open = self.view.open_runs();
            if open.is_empty() && self.is_at_rest() {
                self.view.compare()?;
                for tenant in ["default", "acme"] {
                    let mut filter = Filter::default();
                    filter.namespace = Some(tenant.into());
                    self.list(&filter, LISTING_PATIENCE)?;
                }
                rare::note(&self.view, &self.witness);
                rare::note_recoveries(&self.store.faults().struck(), &self.witness);
                rare::note_paging(self.store.paged(), &self.witness);
                for _ in 0..self.store.faults().stale_writes() {
                    self.witness.saw("stale_write_refused");
                }
                return Ok(());
            }
            if round < LISTED_ROUNDS {
                let filter = self.filter();
                self.list(&filter, 0)?;
            }
            // Whoever was not answered asks until they are.
            std::mem::take(&mut self.unanswered).into_iter().for_each(|question| self.ask(question));
            self.ask(Question::Settle { nth: u64::from(round) });
            for (run, status) in open {
                let number = u64::from(round);
                match status {
                    Status::AwaitingDecision => self.ask(Question::Decide { run, approve: true }),
                    Status::InDoubt => self.ask(Question::Resolve { run, again: round % 2 == 0 }),
                    Status::DeadLettered => self.ask(Question::Letter { run, requeue: round % 3 == 0 }),
                    Status::AwaitingSignal => {
                        let asked = self.questions();
                        self.ask(Question::Signal { run, name: "paid", dedup: format!("healed-{number}"), asked });
                    }
                    _ => {}
                }
            }
            self.settle()?;
            self.skip();
            self.keep_leases()?;
        }
        self.view.look()?;
        checkers::joins::nobody_waits(&self.view)?;
        let unrest = self.unrest();
        let serves = |node: &Node| node.life.as_ref().map(|life| (life.crank.serves(), life.crank.closed()));
        let nodes: Vec<_> = self.nodes.iter().map(serves).collect();
        checkers::liveness::ended(ROUNDS_MAX, &self.view.open_runs(), &unrest, &format!("{nodes:?}"))
    }

    /// Whether nobody waits for anything any more.
    fn is_at_rest(&self) -> bool {
        self.unrest().is_empty()
    }

    /// What is on its way still: questions, reports of workers, envelopes, and keys that are held for nobody.
    fn unrest(&self) -> Vec<String> {
        let asked =
            self.asked.iter().map(|(node, asked)| format!("node {node} owes an answer to {:?}", asked.question));
        let unanswered = self.unanswered.iter().map(|question| format!("nobody knows of {question:?}"));
        let reports = self
            .workers
            .iter()
            .filter(|worker| worker.waits())
            .map(|_| "a worker waits to hear of a report".to_owned());
        let mail = self.store.unconsumed().into_iter().map(|envelope| format!("on its way: {envelope:?}"));
        let dead = self.store.set_aside().into_iter().map(|letter| format!("set aside: {letter:?}"));
        let held = self.view.runs.iter().filter(|(_, told)| told.run.occupies_key());
        let held = held.map(|(id, told)| format!("{id} holds {:?}", told.run.started.spec.key));
        asked.chain(unanswered).chain(reports).chain(mail).chain(dead).chain(held).collect()
    }

    /// Nodes renew their leases as they do while time goes on, and hear each other in between. After a leap each of them
    /// finds the others dead, until those have renewed.
    fn keep_leases(&mut self) -> Result<(), Violation> {
        if self.profile.nodes == 1 {
            return Ok(());
        }
        for _ in 0..4 {
            self.pass(NODE_LEASE_MS / 3);
            self.settle()?;
        }
        Ok(())
    }

    /// A node lists what a filter says, page by page. Without patience the shards of one who died may not be served yet.
    fn list(&mut self, filter: &Filter, patience: u32) -> Result<(), Violation> {
        let (mut all, mut before) = (Vec::new(), None);
        let most = 1 + self.dice.below(40) as usize;
        loop {
            let place = self.any_node();
            let Some(life) = &self.nodes[place].life else { return Ok(()) };
            let (engine, asked) = (life.crank.engine().clone(), filter.clone());
            let mut listing = Waiting::new(async move { engine.list(&asked, &Page { most, before }).await });
            let mut turns = 0;
            let page = loop {
                if let Some(listed) = listing.poll() {
                    break listed.map_err(|error| format!("listing: {filter:?} cannot be listed: {error}"))?;
                }
                if turns > patience {
                    return if patience == 0 { Ok(()) } else { Err(format!("listing: {filter:?} does not come")) };
                }
                self.settle()?;
                if turns > 0 {
                    self.skip();
                }
                turns += 1;
            };
            before = page.last().map(|run| run.run);
            let is_last = page.len() < most;
            all.extend(page);
            if is_last {
                break;
            }
        }
        self.settle()?;
        self.view.look()?;
        self.witness.saw("listed");
        checkers::listing::agrees(&self.view, filter, &all)
    }

    /// A filter, any.
    fn filter(&mut self) -> Filter {
        let mut filter = Filter::default();
        filter.namespace = self.dice.pick(&[None, Some("default"), Some("acme")]).copied().flatten().map(Into::into);
        filter.workflow = self
            .dice
            .pick(&[None, Some("trip"), Some("order"), Some("parcel"), Some("leaf")])
            .copied()
            .flatten()
            .map(Into::into);
        filter.key = self.dice.pick(&[None, None, None, Some("key-1")]).copied().flatten().map(Into::into);
        let statuses: [&[Status]; 4] =
            [&[], &[Status::Done], &[Status::AwaitingSignal, Status::Failed], &[Status::Cancelled]];
        filter.statuses = self.dice.pick(&statuses).map(|statuses| statuses.to_vec()).unwrap_or_default();
        let labels = [None, None, Some("odd"), Some("even")];
        let label = self.dice.pick(&labels).copied().flatten();
        filter.labels.extend(label.map(|label| ("number".into(), label.into())));
        filter.queue = self.dice.pick(&[None, None, Some("default"), Some("other")]).copied().flatten().map(Into::into);
        // Instants at which something happened, so that a run lies on either edge.
        let runs: Vec<&Run> = self.view.runs.values().map(|told| &told.run).collect();
        match self.dice.below(6) {
            0 => filter.created.from = self.dice.pick(&runs).map(|run| run.created_at),
            1 => filter.created.before = self.dice.pick(&runs).map(|run| run.created_at),
            2 => filter.updated.from = self.dice.pick(&runs).map(|run| run.updated_at),
            3 => filter.updated.before = self.dice.pick(&runs).map(|run| run.updated_at),
            4 => filter.parent = self.dice.pick(&runs).map(|run| run.id),
            _ => {}
        }
        filter
    }

    /// Turns until nothing more happens by itself.
    fn settle(&mut self) -> Result<(), Violation> {
        let (mut quiet, mut letters) = (0, 0);
        for _ in 0..TURNS_MAX {
            let mut rests = true;
            for place in 0..self.nodes.len() {
                rests &= matches!(self.turn(place), Turned::Rests(_));
            }
            while self.carry(true) {
                rests = false;
                letters += 1;
                if letters > LETTERS_MAX {
                    return Err(format!("liveness: {LETTERS_MAX} letters in one instant, and no end"));
                }
            }
            for worker in 0..WORKERS {
                rests &= !self.work(worker, true);
            }
            self.release();
            self.hear();
            quiet = if rests { quiet + 1 } else { 0 };
            if quiet == 2 {
                return Ok(());
            }
        }
        Err(format!("liveness: the nodes do not come to rest in {TURNS_MAX} turns"))
    }
}
