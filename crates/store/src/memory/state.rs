//! The contents of a store in memory: logs, index rows in their orders, envelopes and cursors.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use abide_kernel::envelope::Envelope;
use abide_kernel::shard::{Batch, Flush, LinePlace, Record};
use abide_kernel::{LetterId, Row, RunId, Seq, ShardEpoch, ShardId, ShardMap, Status, Str, Timestamp};

use super::faults::Script;
use crate::journal::{COMPACTED, Gathering, Mark, Walk};
use crate::row::RawRow;
use crate::{
    DeadLetterItem, Due, Fault, FaultKind, Living, Opened, ReadyPage, Scanned, StoredRun, Verdict, group, import,
    journal, label, record,
};

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) shards: Vec<ShardState>,
    pub(super) runs: BTreeMap<RunId, Indexed>,
    occupied: BTreeSet<(String, RunId)>,
    due: BTreeSet<(ShardId, Timestamp, RunId)>,
    ready: BTreeMap<(ShardId, String), BTreeSet<LinePlace>>,
    /// By receiver, sender and number.
    pub(super) envelopes: BTreeMap<(ShardId, ShardId, u64), Envelope>,
    /// By receiver and sender: the last number consumed.
    pub(super) cursors: BTreeMap<(ShardId, ShardId), u64>,
    pub(super) dead: Vec<DeadLetterItem>,
    /// How many envelopes were ever set aside.
    pub(super) letters: u64,
    /// It is being filled from elsewhere.
    pub(super) importing: bool,
    /// Tokens of a server's clients: what is kept of each, by id.
    pub(super) tokens: BTreeMap<String, String>,
    /// By kind and id.
    pub(super) kept: BTreeMap<(String, String), String>,
    /// Nodes that share the store, by process, and when their leases end.
    pub(super) members: BTreeMap<Str, Living>,
    /// How many batches were refused as stale.
    pub(super) stale_writes: u64,
    /// A batch that was written though its ownership had ended: the shard, that ownership and the one that had followed.
    pub(super) usurped: Option<(ShardId, ShardEpoch, ShardEpoch)>,
    pub(super) paged: Paged,
    pub(super) script: Script,
}

/// How often owners read on behind what they keep in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paged {
    /// In lines of attempts that wait.
    pub lines: u64,
    /// In what is due.
    pub deadlines: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ShardState {
    pub(super) epoch: ShardEpoch,
    /// Who took it last and has not released it.
    pub(super) owner: Option<Str>,
    pub(super) watermark: Seq,
    /// Where its log ended each time that it was taken.
    pub(super) openings: Vec<Seq>,
    /// Whether what is kept of it, or an envelope that it has not consumed, is not as it was written.
    pub(super) row_damaged: bool,
    pub(super) mail_damaged: bool,
    /// The row at position `n` stands at index `n - 1`.
    pub(super) rows: Vec<RawRow>,
}

#[derive(Clone, Debug)]
pub(super) struct Indexed {
    pub(super) shard: ShardId,
    pub(super) record: Record,
    pub(super) checksum: i64,
}

impl ShardState {
    pub(super) fn head(&self) -> Seq {
        Seq(self.rows.len() as u64)
    }

    pub(super) fn check_row(&self, shard: ShardId) -> Result<(), Fault> {
        if self.row_damaged {
            return Err(Fault::corrupt(None, None, format!("the row of shard {} is damaged", shard.0)));
        }
        Ok(())
    }
}

impl State {
    pub(super) fn new(map: ShardMap) -> Self {
        Self {
            shards: map.all().map(|_| ShardState::default()).collect(),
            runs: BTreeMap::new(),
            occupied: BTreeSet::new(),
            due: BTreeSet::new(),
            ready: BTreeMap::new(),
            envelopes: BTreeMap::new(),
            cursors: BTreeMap::new(),
            dead: Vec::new(),
            letters: 0,
            importing: false,
            tokens: BTreeMap::new(),
            kept: BTreeMap::new(),
            members: BTreeMap::new(),
            stale_writes: 0,
            usurped: None,
            paged: Paged::default(),
            script: Script::default(),
        }
    }

    pub(super) fn open_shard(&mut self, shard: ShardId, owner: &str) -> Result<Opened, Fault> {
        if self.importing {
            return Err(import::unfinished("the store", "drop it"));
        }
        let count = self.shards.len();
        let Some(state) = self.shards.get_mut(usize::from(shard.0)) else {
            let message = format!("the store has {count} shards, counted from 0; found shard {}", shard.0);
            return Err(Fault::new(FaultKind::Unusable, message));
        };
        state.check_row(shard)?;
        journal::check_end(shard, state.head(), state.watermark)?;
        state.epoch.0 += 1;
        state.openings.push(state.head());
        state.owner = Some(owner.into());
        let mut opened = Opened {
            epoch: state.epoch,
            head: state.head(),
            watermark: state.watermark,
            sent: vec![0; count],
            consumed: vec![0; count],
            last_at: state.rows.last().map_or(Timestamp(0), |row| row.at),
        };
        let sent = self.envelopes.keys().map(|(to, from, number)| (*to, *from, *number));
        let cursors = self.cursors.iter().map(|((to, from), number)| (*to, *from, *number));
        for (to, _, number) in sent.chain(cursors).filter(|(_, from, _)| *from == shard) {
            let last = &mut opened.sent[usize::from(to.0)];
            *last = number.max(*last);
        }
        for ((_, from), number) in self.cursors.iter().filter(|((to, _), _)| *to == shard) {
            opened.consumed[usize::from(from.0)] = *number;
        }
        Ok(opened)
    }

    /// Whether a shard is owned under this epoch; where nodes share the store, by one whose lease has not ended `now`.
    pub(super) fn owns(&self, shard: ShardId, epoch: ShardEpoch, now: Option<Timestamp>) -> bool {
        let found = self.shards.get(usize::from(shard.0));
        found.is_some_and(|state| state.epoch == epoch && epoch.0 > 0 && self.is_served(state, now))
    }

    /// Which batches of a group may follow. A later batch of a shard follows the earlier ones of the group.
    pub(super) fn fence(&self, group: &[Batch], now: Option<Timestamp>) -> Vec<Verdict> {
        group::fence(group, |shard| {
            let state = self.shards.get(usize::from(shard.0)).filter(|state| self.is_served(state, now))?;
            Some((state.epoch, state.head()))
        })
    }

    /// Writes the batches that may follow; answers with rows and bytes of facts.
    pub(super) fn append(&mut self, group: &[Batch], verdicts: &[Verdict]) -> Result<(usize, usize), Fault> {
        let (mut rows, mut bytes) = (0, 0);
        let accepted = || group::accepted(group, verdicts);
        let envelopes = || accepted().flat_map(|batch| &batch.envelopes).map(place);
        if let Some((to, from, number)) = envelopes().find(|place| self.envelopes.contains_key(place)) {
            let message = format!(
                "envelope {number} from shard {} to shard {} exists already: nothing was written",
                from.0, to.0
            );
            return Err(Fault::new(FaultKind::Refused, message));
        }
        let settled = || accepted().flat_map(|batch| &batch.settled);
        if let Some(letter) = settled().find(|letter| self.dead.iter().all(|item| item.id != **letter)) {
            return Err(journal::no_letter(*letter));
        }
        self.dead.retain(|item| settled().all(|letter| *letter != item.id));
        for batch in accepted() {
            let state = &mut self.shards[usize::from(batch.shard.0)];
            if batch.epoch != state.epoch {
                self.usurped.get_or_insert((batch.shard, batch.epoch, state.epoch));
            }
            let owner = state.owner.clone().unwrap_or_default();
            let node = self.members.get(&owner).map_or(&*owner, |living| &*living.member.node).to_owned();
            for row in &batch.rows {
                let raw = RawRow::of(batch.shard, row);
                bytes += raw.facts.len();
                state.rows.push(raw);
            }
            rows += batch.rows.len();
            let at = state.rows.last().map_or(Timestamp(0), |row| row.at);
            for dead in &batch.dead {
                self.letters += 1;
                self.dead.push(DeadLetterItem {
                    id: LetterId(self.letters),
                    at,
                    node: node.clone(),
                    dead: dead.clone(),
                });
            }
            for envelope in &batch.envelopes {
                self.envelopes.insert(place(envelope), envelope.clone());
            }
            for (sender, number) in &batch.consumed {
                let cursor = self.cursors.entry((batch.shard, *sender)).or_default();
                *cursor = (*cursor).max(*number);
            }
        }
        Ok((rows, bytes))
    }

    pub(super) fn flush(&mut self, flush: &Flush) {
        for record in &flush.records {
            self.put(flush.shard, record);
        }
        for (run, _) in &flush.purged {
            self.take(*run);
        }
        for (_, head) in flush.compacted.iter().chain(&flush.purged) {
            self.erase(flush.shard, *head);
        }
        let cursors = &self.cursors;
        self.envelopes.retain(|(to, from, number), _| {
            *to != flush.shard || cursors.get(&(*to, *from)).is_none_or(|consumed| number > consumed)
        });
        let state = &mut self.shards[usize::from(flush.shard.0)];
        state.watermark = state.watermark.max(flush.through);
    }

    /// Empties a run's rows before the one that purges or compacts it, back to the first that says something.
    fn erase(&mut self, shard: ShardId, head: Seq) {
        let rows = &mut self.shards[usize::from(shard.0)].rows;
        let at = |seq: Seq| (seq.0 as usize).wrapping_sub(1);
        let mut next = rows.get(at(head)).map_or(Seq(0), |row| row.prior);
        while let Some(row) = rows.get_mut(at(next)).filter(|row| !row.is_emptied()) {
            row.empty();
            next = row.prior;
        }
    }

    fn put(&mut self, shard: ShardId, record: &Record) {
        let found = self.runs.get(&record.run);
        if found.is_some_and(|found| found.record.rev > record.rev) {
            return;
        }
        self.take(record.run);
        let run = record.run;
        self.occupied.extend(record.occupies.iter().map(|key| (key.clone(), run)));
        self.due.extend(record.due.map(|due| (shard, due, run)));
        if let Some((line, place)) = &record.ready {
            self.ready.entry((shard, line.clone())).or_default().insert(*place);
        }
        let indexed = Indexed { shard, record: record.clone(), checksum: record::checksum(shard.0, record) };
        self.runs.insert(run, indexed);
    }

    fn take(&mut self, run: RunId) {
        let Some(Indexed { shard, record, .. }) = self.runs.remove(&run) else {
            return;
        };
        if let Some(key) = record.occupies {
            self.occupied.remove(&(key, run));
        }
        if let Some(due) = record.due {
            self.due.remove(&(shard, due, run));
        }
        if let Some((line, place)) = record.ready
            && let Entry::Occupied(mut waiting) = self.ready.entry((shard, line))
        {
            waiting.get_mut().remove(&place);
            if waiting.get().is_empty() {
                waiting.remove();
            }
        }
    }

    pub(super) fn lose_index(&mut self) {
        self.runs.clear();
        self.occupied.clear();
        self.due.clear();
        self.ready.clear();
        for shard in &mut self.shards {
            shard.watermark = Seq(0);
        }
    }

    pub(super) fn scan(&self, shard: ShardId, after: Seq, most: usize) -> Result<Vec<Scanned>, Fault> {
        let rows = self.shards.get(usize::from(shard.0));
        let rows = rows.map_or(&[][..], |state| &state.rows);
        let page = rows.iter().skip(after.0 as usize).take(most.max(1));
        journal::in_order(shard, after, page.map(|row| (row.seq, row.decode())))
    }

    pub(super) fn read_run(&self, run: RunId) -> Result<Option<StoredRun>, Fault> {
        let raw = |indexed: &Indexed| {
            let shard = indexed.shard;
            indexed.raw().decode(|head| self.journal(shard, run, head, 0))
        };
        self.runs.get(&run).map(raw).transpose()
    }

    /// A run's rows from `head` back to the one its journal begins with, without those below revision `from`, in order.
    pub(super) fn journal(&self, shard: ShardId, run: RunId, head: Seq, from: u64) -> Result<Vec<Row>, Fault> {
        let rows = &self.shards[usize::from(shard.0)].rows;
        journal::follow(shard, run, head, from, |seq| Ok(rows.get(seq.0 as usize - 1).cloned()))
    }

    /// Where those rows lie: the first so many.
    pub(super) fn trail(
        &self,
        shard: ShardId,
        run: RunId,
        head: Seq,
        from: u64,
        most: usize,
    ) -> Result<Vec<Seq>, Fault> {
        let rows = &self.shards[usize::from(shard.0)].rows;
        let mut walk = Walk::new(shard, run, head, from, most);
        while let Some(seq) = walk.next() {
            let mark = |row: &RawRow| {
                let begins = row.facts.starts_with(COMPACTED.as_bytes());
                Mark { run: row.run, rev: row.rev, prior: row.prior, begins }
            };
            walk.take(rows.get(seq.0 as usize - 1).map(mark))?;
        }
        Ok(walk.end())
    }

    pub(super) fn rows(&self, shard: ShardId, run: RunId, places: &[Seq], bytes: usize) -> Result<Vec<Row>, Fault> {
        let rows = &self.shards[usize::from(shard.0)].rows;
        let mut gathering = Gathering::new(shard, run, bytes);
        for seq in places {
            if !gathering.take(*seq, rows.get((seq.0 as usize).wrapping_sub(1)).cloned())? {
                break;
            }
        }
        Ok(gathering.end())
    }

    pub(super) fn read_key(&self, identity: &str) -> Option<RunId> {
        let from = (identity.to_owned(), RunId(0));
        let (key, run) = self.occupied.range(from..).next()?;
        (key == identity).then_some(*run)
    }

    pub(super) fn read_due(&self, shard: ShardId, from: Timestamp, most: usize) -> Due {
        let mut entries: Vec<(Timestamp, RunId)> = Vec::new();
        let from = (shard, from, RunId(0));
        for (_, at, run) in self.due.range(from..).take_while(|(of, ..)| *of == shard) {
            // The page ends between two instants: all runs of its last instant belong to it, however many.
            if entries.len() >= most.max(1) && entries.last().is_some_and(|(last, _)| last < at) {
                return Due { entries, more_from: Some(*at) };
            }
            entries.push((*at, *run));
        }
        Due { entries, more_from: None }
    }

    pub(super) fn read_claimed(&self, shard: ShardId) -> Vec<RunId> {
        let claimed = |found: &&Indexed| found.shard == shard && found.record.status == Status::Executing;
        self.runs.values().filter(claimed).map(|found| found.record.run).collect()
    }

    pub(super) fn read_lines(&self, shard: ShardId) -> Vec<String> {
        self.ready.keys().filter(|(of, _)| *of == shard).map(|(_, line)| line.clone()).collect()
    }

    pub(super) fn read_ready(
        &self,
        shard: ShardId,
        line: &str,
        after: Option<LinePlace>,
        now: Timestamp,
        most: usize,
    ) -> ReadyPage {
        let waiting = self.ready.get(&(shard, line.to_owned())).into_iter().flatten();
        let mut visible = waiting.filter(|place| Some(**place) > after && place.eligible_at <= now).copied();
        let places = visible.by_ref().take(most).collect();
        ReadyPage { places, more: visible.next().is_some() }
    }

    pub(super) fn read_envelopes(&self, to: ShardId, most: usize) -> Result<Vec<Envelope>, Fault> {
        let envelopes: Vec<Envelope> = self.unconsumed(to).take(most).cloned().collect();
        let damaged = self.shards.get(usize::from(to.0)).is_some_and(|state| state.mail_damaged);
        match envelopes.first().filter(|_| damaged) {
            Some(Envelope { from, number, .. }) => {
                let message = format!("envelope {number} from shard {} to shard {} is damaged", from.0, to.0);
                Err(Fault::corrupt(None, None, message))
            }
            None => Ok(envelopes),
        }
    }

    /// The envelopes for a shard that it has not consumed, by sender and number.
    pub(super) fn unconsumed(&self, to: ShardId) -> impl Iterator<Item = &Envelope> {
        self.envelopes
            .range((to, ShardId(0), 0)..)
            .take_while(move |((receiver, ..), _)| *receiver == to)
            .filter(|((to, from, number), _)| self.cursors.get(&(*to, *from)).is_none_or(|consumed| number > consumed))
            .map(|(_, envelope)| envelope)
    }
}

fn place(envelope: &Envelope) -> (ShardId, ShardId, u64) {
    (envelope.to, envelope.from, envelope.number)
}

impl Indexed {
    fn raw(&self) -> record::RawRecord {
        let record = &self.record;
        let (line, place) = record.ready.as_ref().map(|(line, place)| (line.clone(), place)).unzip();
        let owned = |text: &Option<Str>| text.as_ref().map(ToString::to_string);
        record::RawRecord {
            run: record.run,
            shard: self.shard.0,
            head: record.head.0,
            rev: record.rev.0,
            namespace: record.namespace.to_string(),
            workflow: record.workflow.to_string(),
            version: record.version,
            queue: record.queue.to_string(),
            status: record.status.name().to_owned(),
            step: owned(&record.step),
            key: owned(&record.key),
            occupies: record.occupies.clone(),
            parent: record.parent,
            labels: label::written(&record.labels),
            created_at: record.created_at.0,
            updated_at: record.updated_at.0,
            due: record.due.map(|due| due.0),
            line,
            place: record::place(place),
            reservation: record.reservation,
            checkpoint: record.checkpoint.clone(),
            checksum: self.checksum,
        }
    }
}
