//! Damage to one shard, where nodes share a store: the shard is set aside, which everybody is told, and the others go on.
//! Without this each node in turn would take the shard, fail, and close with everything else that it serves.

use abide_kernel::shard::{Answer, Command, Ticket, Unflushed};
use abide_kernel::{Refusal, ShardId, Str, Timestamp};
use abide_store::{Fault, Member};

use crate::core::{Core, Waiter};
use crate::dispatch::Reply;
use crate::driver::Shared;
use crate::link::Letter;
use crate::membership::tell_unknown;
use crate::ring::Ring;
use crate::snapshot::is_corrupt;

impl Shared {
    /// Sets a shard aside whose record is damaged. What the store still has under this node's name is released with the
    /// next renewal.
    ///
    /// # Errors
    /// The fault itself, when it is of another kind, or the store is of one owner and there are no others to go on.
    pub(crate) fn set_shard_aside(&self, id: ShardId, fault: Fault) -> Result<(), Fault> {
        if !is_corrupt(&fault) {
            return Err(fault);
        }
        let mut told = Vec::new();
        {
            let now = self.now();
            let mut core = self.core.lock();
            let Some(ring) = &mut core.ring else { return Err(fault) };
            let is_new = ring.aside.insert((id, self.process.clone()), fault.message.clone()).is_none();
            core.drop_shard(now, id, &mut told);
            if is_new {
                core.meter.shards_damaged += 1;
                core.tell_damage();
                tracing::error!(
                    shard = id.0,
                    %fault,
                    "what is kept of a shard is damaged: it is set aside until this process starts anew, the others go on; \
                     run `abide store check`"
                );
            }
        }
        tell_unknown(told);
        Ok(())
    }
}

impl Core {
    /// Tells the others which shards were set aside here. They are told again, because letters may be lost.
    pub(crate) fn tell_damage(&self) {
        let Some(ring) = &self.ring else { return };
        let here = ring.aside.iter().filter(|((_, process), _)| *process == ring.member.process);
        let damaged: Vec<(ShardId, String)> = here.map(|((shard, _), found)| (*shard, found.clone())).collect();
        if !damaged.is_empty() {
            ring.tell_all(&Letter::Damaged(damaged));
        }
    }

    /// Another node set shards aside: whoever waits for them here is told. That node may be wrong, so that this one takes
    /// them all the same when it is its turn.
    pub(crate) fn others_set_aside(
        &mut self,
        now: Timestamp,
        from: &Member,
        shards: Vec<(ShardId, String)>,
        replies: &mut Vec<Reply>,
    ) {
        if let Some(ring) = &mut self.ring {
            let said = shards.into_iter().map(|(shard, found)| ((shard, from.process.clone()), found));
            ring.aside.extend(said);
        }
        self.reroute(now, replies);
    }
}

impl Ring {
    /// Whether a process set a shard aside. It does not take it again: each try would bump an epoch and read a log for
    /// nothing, and the next node would do the same.
    pub(crate) fn is_aside(&self, shard: ShardId, process: &Str) -> bool {
        self.aside.contains_key(&(shard, process.clone()))
    }

    /// What is wrong with a shard that was set aside, if nobody serves it all the same.
    fn damage(&self, shard: ShardId) -> Option<&str> {
        let ((_, _), found) = self.aside.iter().find(|((aside, _), _)| *aside == shard)?;
        // One whose row is damaged cannot be released, and seems to be owned.
        let served = self.view.owner(shard).is_some_and(|owner| !self.is_aside(shard, &owner.member.process));
        (!served).then_some(found)
    }

    /// Takes a command back whose shard is damaged and served by nobody, with what its caller is told. What nobody waits for
    /// and must arrive stays, for when the shard is repaired.
    pub(crate) fn take_hopeless(&mut self, ticket: Ticket, home: ShardId) -> Option<(Waiter, Answer)> {
        let found = self.damage(home)?.to_owned();
        let answer = self.waits_under(ticket).and_then(|command| answer(command, found))?;
        self.take_forward(ticket).map(|forward| (forward.into_parts().1, answer))
    }
}

/// What a caller is told whose shard is damaged. A list does without what memory would have known of the shard.
fn answer(command: &Command, found: String) -> Option<Answer> {
    let run = match command {
        Command::Unflushed => return Some(Answer::Unflushed(Unflushed::default())),
        Command::Start { request, spec } => spec.run_id(*request),
        command => command.run()?,
    };
    Some(Answer::Refused(Refusal::Corrupt { run, found }))
}
