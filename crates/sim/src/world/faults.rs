//! What goes wrong in a world: with its store, its clocks, its net and its processes.

use abide::RunId;
use abide_kernel::{Seq, ShardId};
use abide_store::Store;
use abide_store::memory::{Operation, Rot, Stage, WriteFault};

use super::World;
use crate::Violation;
use crate::checkers::Told;
use crate::nodes::{LEASE_MS, NODE_LEASE_MS};
use crate::profile::Profile;

impl World {
    /// Something goes wrong, perhaps.
    pub(super) fn strike(&mut self, place: usize) -> Result<(), Violation> {
        self.strike_store();
        let Profile { crash, jump, pause, partition, leave, nodes, rot, .. } = self.profile;
        if self.dice.chance(rot) {
            self.rot()?;
        }
        if self.dice.chance(jump) {
            self.jump(place);
        }
        if self.dice.chance(pause) {
            self.witness.strike("pause");
            let ms = LEASE_MS + self.dice.below(100_000) as i64;
            if nodes == 1 {
                self.pass(ms);
            } else {
                self.story.tell(self.now(), || format!("node {place} is paused for {ms} ms"));
                self.nodes[place].paused_until = self.now() + ms;
            }
        }
        if self.dice.chance(crash) {
            self.crash(place);
        }
        if nodes > 1 && self.dice.chance(partition) {
            let other = self.any_node();
            if self.dice.chance(500) {
                self.story.tell(self.now(), || format!("nothing gets from node {place} to node {other}"));
                self.net.cut(place, other);
            } else {
                self.net.mend();
            }
        }
        if nodes > 1 && self.dice.chance(leave) {
            self.witness.strike("leave");
            self.story.tell(self.now(), || format!("node {place} leaves"));
            self.abandon_questions(place);
            self.nodes[place].leave();
        }
        Ok(())
    }

    /// Something goes wrong with the store, perhaps.
    fn strike_store(&mut self) {
        let Profile { append, flush, read, ownership, .. } = self.profile;
        let faults = self.store.faults();
        if self.dice.chance(append) {
            let fault = WriteFault::ALL[self.dice.below(WriteFault::ALL.len() as u64) as usize];
            self.story.tell(self.now(), || format!("the next append: {fault:?}"));
            faults.fail_append(fault);
        }
        if self.dice.chance(flush) {
            let fault = *self.dice.pick(&WriteFault::ALL).unwrap_or(&WriteFault::Refused);
            faults.fail_flush(fault);
        }
        if self.dice.chance(read) {
            faults.fail_reads(1);
        }
        if self.dice.chance(ownership) {
            let all = [WriteFault::Refused, WriteFault::UnknownWritten, WriteFault::UnknownLost];
            let fault = *self.dice.pick(&all).unwrap_or(&WriteFault::Refused);
            let operation = if self.dice.chance(700) { Operation::Ownership } else { Operation::Renewal };
            self.story.tell(self.now(), || format!("the next {operation:?}: {fault:?}"));
            faults.fail_after(operation, 0, fault);
        }
    }

    /// A bit flips of a row, of a checkpoint, or, where nodes share the store and others go on, of what is kept of a whole
    /// shard. Whoever looks knows everything as it was.
    fn rot(&mut self) -> Result<(), Violation> {
        self.audit()?;
        let shard = ShardId(self.dice.below(u64::from(self.profile.shards)) as u16);
        let whole = self.profile.nodes > 1;
        let what = match self.dice.weighted(&[5, 4, u64::from(whole), u64::from(whole)]) {
            2 => Some((Rot::Shard(shard), "shard_rots")),
            3 => Some((Rot::Mail(shard), "mail_rots")),
            kind => self.rotting_run().map(|(run, seq)| match kind {
                0 => (Rot::Row(self.store.map().home(run.slot()), seq), "row_rots"),
                _ => (Rot::Checkpoint(run), "checkpoint_rots"),
            }),
        };
        let Some((what, name)) = what else { return Ok(()) };
        if self.store.faults().rot(what, self.dice.below(1 << 20) as usize) {
            self.story.tell(self.now(), || format!("a bit flips: {what:?}"));
            self.witness.strike(name);
        }
        Ok(())
    }

    /// A run to be damaged, and one of its rows. One with a key would leave the key free, and the place that it has of a
    /// concurrency key: nobody can know what a damaged row said.
    fn rotting_run(&mut self) -> Option<(RunId, Seq)> {
        let holds_nothing = |told: &Told| {
            let spec = &told.run.started.spec;
            spec.key.is_none() && spec.concurrency.is_none() && !told.run.is_reservation()
        };
        let runs: Vec<RunId> =
            self.view.runs.iter().filter(|(_, told)| holds_nothing(told)).map(|(run, _)| *run).collect();
        let run = *self.dice.pick(&runs)?;
        let row = self.dice.pick(&self.view.runs.get(&run)?.rows)?;
        Some((run, row.seq))
    }

    /// A clock jumps: the world's, if there is one node alone, or that of a node.
    fn jump(&mut self, place: usize) {
        self.witness.strike("clock_jump");
        if self.profile.nodes == 1 {
            let hours = self.dice.below(30) as i64 - 4;
            self.story.tell(self.now(), || format!("the clock jumps by {hours} hours"));
            self.pass(hours * 3_600_000);
            return;
        }
        let ms = self.dice.below(4 * NODE_LEASE_MS as u64) as i64 - 2 * NODE_LEASE_MS;
        self.story.tell(self.now(), || format!("the clock of node {place} jumps by {ms} ms"));
        self.nodes[place].jump(ms);
        self.pass(0);
    }

    /// A node dies. What it was asked is not answered.
    fn crash(&mut self, place: usize) {
        self.witness.strike("crash");
        self.story.tell(self.now(), || format!("node {place} dies"));
        self.abandon_questions(place);
        self.bury(place);
        // Others go by what the index rows say.
        if self.profile.nodes == 1 && self.dice.chance(self.profile.lose_index) {
            self.witness.strike("index_lost");
            self.store.faults().lose_index();
        }
    }

    /// A node is dead. What it was writing is lost or there, and where others have a store of their own to write to, it may
    /// come there late.
    pub(super) fn bury(&mut self, place: usize) {
        let Some(slow) = self.nodes[place].die(&self.net) else { return };
        let fate = ["write_lost", "write_done", "write_late"];
        let drawn = fate[self.dice.below(if self.profile.nodes > 1 { 3 } else { 2 }) as usize];
        // What is written already is there; only nobody was told.
        let fate = if slow.stage() == Stage::Begun { drawn } else { "write_untold" };
        self.story.tell(self.now(), || format!("node {place} dies while it writes ({:?}): {fate}", slow.stage()));
        self.witness.strike(fate);
        match fate {
            "write_late" => self.late.push(slow),
            fate => slow.end(fate == "write_done"),
        }
    }

    /// What a process was writing when it died comes to the store.
    pub(super) fn write_late(&mut self) {
        let index = self.dice.below(self.late.len() as u64) as usize;
        let refused = self.store.faults().stale_writes();
        self.late.swap_remove(index).end(true);
        if self.store.faults().stale_writes() > refused {
            self.witness.saw("late_write_refused");
        }
    }
}
