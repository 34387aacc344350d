//! What holds for queues: somebody pauses the queue of a tenant, limits it, or lets it go on.

use abide_runtime::{QueueRule, Turned};

use super::World;
use crate::Violation;

/// Turns after which a node that has something to do still is left alone.
const PATIENCE: u32 = 64;
/// Tenants.
const TENANTS: [&str; 2] = ["default", "acme"];

impl World {
    /// Somebody says at a node what holds for a tenant's queue from now on. Nothing is under way there, so that whatever is
    /// claimed next is claimed by it; where several nodes go by it, each has its own count and hears of it in its time.
    pub(super) fn change_rule(&mut self, place: usize) -> Result<(), Violation> {
        if !self.nodes[place].is_awake(self.now()) || self.nodes[place].writes().is_some() {
            return Ok(());
        }
        let rests = (0..PATIENCE).any(|_| matches!(self.nodes[place].turn(), Turned::Rests(_)));
        if !rests || !self.nodes[place].is_awake(self.now()) {
            return Ok(());
        }
        self.audit()?;
        let tenant = *self.dice.pick(&TENANTS).unwrap_or(&TENANTS[0]);
        let most = [None, Some(0), Some(1), Some(3)][self.dice.weighted(&[4, 1, 2, 2])];
        self.say(place, tenant, most)
    }

    /// Nothing holds for any queue any more.
    pub(super) fn lift_rules(&mut self) -> Result<(), Violation> {
        let now = self.now();
        let place = self.nodes.iter().position(|node| node.is_awake(now)).ok_or("nobody is awake in a healed world")?;
        TENANTS.into_iter().try_for_each(|tenant| self.say(place, tenant, None))
    }

    fn say(&mut self, place: usize, tenant: &'static str, most: Option<u32>) -> Result<(), Violation> {
        let Some(life) = &self.nodes[place].life else { return Ok(()) };
        let change =
            |rule: &mut QueueRule| (rule.paused, rule.at_most) = (most == Some(0), most.filter(|most| *most > 0));
        let said = life.crank.engine().change_queue(&tenant.into(), &"default".into(), change);
        self.story.tell(self.now(), || format!("queue of {tenant}, at most {most:?}: {said:?}"));
        said.map_err(|error| format!("rules: what holds for a queue could not be said: {error}"))?;
        *self.witness.truth.lock().verbs.entry(("rule", true)).or_default() += 1;
        // A damaged run counts for nothing, whatever it holds.
        if self.profile.nodes == 1 && self.profile.rot == 0 {
            self.view.limit(tenant, most);
        }
        let never = life.crank.engine().change_queue(&tenant.into(), &"default".into(), |rule| {
            rule.rate = Some((0, 0));
        });
        if never.is_ok() {
            return Err(format!("rules: a queue of {tenant} may begin nothing in no time, and nobody minds"));
        }
        *self.witness.truth.lock().verbs.entry(("rule", false)).or_default() += 1;
        if most.is_some() {
            self.witness.saw(if most == Some(0) { "queue_paused" } else { "queue_limited" });
        }
        Ok(())
    }
}
