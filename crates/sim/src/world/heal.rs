//! The second phase of a world: nothing goes wrong any more, and everything must come to its end.

use abide::{Filter, Page, Status};
use abide_runtime::Turned;

use super::{WORKERS, World};
use crate::Violation;
use crate::asking::Question;
use crate::checkers;
use crate::nodes::Node;
use crate::rare;

/// Rounds of the healed world after which what has not ended never will.
const ROUNDS_MAX: u32 = 400;
/// Turns of the cranks in a row after which the nodes do not come to rest.
const TURNS_MAX: u32 = 100_000;

impl World {
    /// Nothing goes wrong any more, and whoever waits for somebody is answered: everything must come to its end.
    pub(super) fn heal(&mut self) -> Result<(), Violation> {
        self.story.tell(self.now(), || "all is healed".into());
        self.store.faults().heal();
        self.witness.truth.lock().healed = true;
        self.net.mend();
        for place in 0..self.nodes.len() {
            self.nodes[place].paused_until = i64::MIN;
            if !self.nodes[place].is_awake(self.now()) || self.profile.nodes == 1 {
                self.open(place)?;
            }
        }
        for round in 0..ROUNDS_MAX {
            self.settle()?;
            self.store.faults().fail_reads(0);
            self.view.look()?;
            let open = self.view.open_runs();
            if open.is_empty() {
                checkers::projection::agrees(&mut self.view, &mut self.store)?;
                self.list_tenants()?;
                rare::note(&self.view, &self.witness);
                for _ in 0..self.store.faults().stale_writes() {
                    self.witness.saw("stale_write_refused");
                }
                return Ok(());
            }
            for (run, status) in open {
                let number = u64::from(round);
                match status {
                    Status::AwaitingDecision => self.ask(Question::Decide { run, approve: true }),
                    Status::InDoubt => self.ask(Question::Resolve { run, again: round % 2 == 0 }),
                    Status::DeadLettered => self.ask(Question::Letter { run, requeue: round % 3 == 0 }),
                    Status::AwaitingSignal => {
                        self.ask(Question::Signal { run, name: "paid", dedup: format!("healed-{number}") });
                    }
                    _ => {}
                }
            }
            self.settle()?;
            self.skip();
        }
        let serves = |node: &Node| node.life.as_ref().map(|life| (life.crank.serves(), life.crank.closed()));
        let nodes: Vec<_> = self.nodes.iter().map(serves).collect();
        checkers::liveness::ended(ROUNDS_MAX, &self.view.open_runs(), &format!("{nodes:?}"))
    }

    /// Every node lists what each tenant has, and nothing else.
    fn list_tenants(&mut self) -> Result<(), Violation> {
        for tenant in ["default", "acme"] {
            let mut filter = Filter::default();
            filter.namespace = Some(tenant.into());
            let place = self.any_node();
            let Some(life) = &self.nodes[place].life else { continue };
            let engine = life.crank.engine().clone();
            let asked = filter.clone();
            let mut listing = Box::pin(async move { engine.list(&asked, &Page { most: 10_000, before: None }).await });
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            for _ in 0..TURNS_MAX {
                if let std::task::Poll::Ready(listed) = listing.as_mut().poll(&mut context) {
                    let listed = listed.map_err(|error| format!("isolation: {tenant} cannot be listed: {error}"))?;
                    checkers::isolation::lists(&self.view, &filter, &listed)?;
                    break;
                }
                self.settle()?;
            }
        }
        Ok(())
    }

    /// Turns until nothing more happens by itself.
    fn settle(&mut self) -> Result<(), Violation> {
        let mut quiet = 0;
        for _ in 0..TURNS_MAX {
            let mut rests = true;
            for place in 0..self.nodes.len() {
                rests &= matches!(self.turn(place), Turned::Rests(_));
            }
            while self.carry(true) {
                rests = false;
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
