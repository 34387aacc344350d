//! What the cases write: runs, rows and index rows, with as little in them as they need.

use std::collections::BTreeMap;

use abide_kernel::envelope::{Envelope, Message};
use abide_kernel::shard::{Batch, Flush, Record};
use abide_kernel::transition::compact;
use abide_kernel::{Fact, Facts, Rev, Row, Run, RunId, SLOTS, Seq, ShardEpoch, ShardId, Slot, Status, Timestamp, mix};

use super::SHARDS;
use crate::{Opened, Store, Verdict};

/// The `n`-th run of a shard.
pub(super) fn run_id(shard: ShardId, n: u64) -> RunId {
    let slot = Slot(shard.0 * (SLOTS / SHARDS));
    RunId::new(Timestamp(1_700_000_000_000 + n as i64), slot, u128::from(mix(n)))
}

/// Facts as a program of any release wrote them.
pub(super) fn facts(text: &str) -> Facts {
    serde_json::from_str(text).expect("the suite writes facts that decode")
}

pub(super) fn started(workflow: &str) -> Facts {
    let request = "req_0123456789abcdef0123456789abcdef";
    facts(&format!(
        r#"[{{"started":{{"spec":{{"workflow":"{workflow}","version":1,"input":null}},"request":"{request}"}}}}]"#
    ))
}

/// A signal with any JSON document in it.
pub(super) fn signal(id: u64, payload: &str) -> Facts {
    let request = "req_00000000000000000000000000000001";
    facts(&format!(r#"[{{"signal_received":{{"id":{id},"name":"n","payload":{payload},"request":"{request}"}}}}]"#))
}

/// The whole run, as it is after the row that says so.
pub(super) fn compacted(owner: &Owner, run: RunId) -> Facts {
    compact::decide(owner.folded(run), Timestamp(1_700_000_000_000 + owner.head.0 as i64 + 1)).facts
}

pub(super) fn purged() -> Facts {
    [Fact::Purged].into_iter().collect()
}

/// An owner of one shard, who knows where each run stands.
pub(super) struct Owner {
    pub(super) shard: ShardId,
    pub(super) epoch: ShardEpoch,
    pub(super) head: Seq,
    runs: BTreeMap<RunId, (Rev, Seq)>,
    folded: BTreeMap<RunId, Run>,
}

impl Owner {
    pub(super) fn open(store: &mut dyn Store, shard: u16) -> Self {
        Self::after(shard, &open(store, shard))
    }

    pub(super) fn after(shard: u16, opened: &Opened) -> Self {
        Self {
            shard: ShardId(shard),
            epoch: opened.epoch,
            head: opened.head,
            runs: BTreeMap::new(),
            folded: BTreeMap::new(),
        }
    }

    /// The next row of a run; its first one begins it.
    pub(super) fn row(&mut self, run: RunId, facts: Facts) -> Row {
        self.head = self.head.next();
        let (rev, prior) = self.runs.get(&run).copied().unwrap_or_default();
        let row = Row {
            seq: self.head,
            run,
            rev: Rev(rev.0 + 1),
            prior,
            at: Timestamp(1_700_000_000_000 + self.head.0 as i64),
            facts,
        };
        self.runs.insert(run, (row.rev, row.seq));
        match self.folded.get_mut(&run) {
            Some(folded) => folded.apply_row(&row),
            None => {
                let begun = Run::begin(&row).expect("a run's first row begins it");
                self.folded.insert(run, begun);
            }
        }
        row
    }

    /// Rows that begin runs `from` to `to` of this shard.
    pub(super) fn starts(&mut self, from: u64, to: u64) -> Vec<Row> {
        let begin = |n| self.row(run_id(self.shard, n), started("w"));
        (from..to).map(begin).collect()
    }

    pub(super) fn batch(&self, rows: Vec<Row>) -> Batch {
        Batch { shard: self.shard, epoch: self.epoch, rows, ..Batch::default() }
    }

    pub(super) fn flush(&self, records: Vec<Record>) -> Flush {
        Flush { shard: self.shard, epoch: self.epoch, through: self.head, records, ..Flush::default() }
    }

    pub(super) fn folded(&self, run: RunId) -> &Run {
        &self.folded[&run]
    }

    pub(super) fn head_of(&self, run: RunId) -> Seq {
        self.runs[&run].1
    }

    /// The index row of a run as it stands.
    pub(super) fn record(&self, run: RunId) -> Record {
        let folded = self.folded(run);
        let spec = &folded.started.spec;
        Record {
            run,
            head: self.head_of(run),
            rev: folded.rev,
            namespace: spec.namespace.clone(),
            workflow: spec.workflow.clone(),
            version: spec.version,
            queue: spec.queue.clone(),
            status: Status::Runnable,
            step: None,
            key: None,
            occupies: None,
            parent: None,
            labels: Vec::new(),
            created_at: folded.created_at,
            updated_at: folded.updated_at,
            due: None,
            ready: None,
            reservation: false,
            checkpoint: serde_json::to_vec(folded).expect("a run has a JSON form"),
        }
    }
}

pub(super) fn open(store: &mut dyn Store, shard: u16) -> Opened {
    store.open_shard(ShardId(shard), &format!("owner of {shard}")).expect("the shard opens")
}

/// Appends, and demands that it is durable.
pub(super) fn append(store: &mut dyn Store, batch: Batch) {
    let verdicts = store.append(&[batch]).expect("the append is answered");
    assert_eq!(verdicts, [Verdict::Durable]);
}

pub(super) fn flush(store: &mut dyn Store, flush: &Flush) {
    let verdicts = store.flush(std::slice::from_ref(flush)).expect("the flush is answered");
    assert_eq!(verdicts, [Verdict::Durable]);
}

/// The whole log of a shard, in pages of `page`.
pub(super) fn log(store: &mut dyn Store, shard: u16, page: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let after = rows.last().map_or(Seq(0), |row| row.seq);
        let found = store.scan(ShardId(shard), after, page).expect("the log can be read");
        assert!(found.len() <= page, "a page of {page} holds {}", found.len());
        if found.is_empty() {
            return rows;
        }
        rows.extend(found.into_iter().map(|row| row.expect("the row is sound")));
        assert!(rows.len() < 100_000, "the log must come to an end");
    }
}

/// An envelope between shards.
pub(super) fn envelope(from: u16, to: u16, number: u64) -> Envelope {
    let reservation = run_id(ShardId(to), number);
    Envelope { from: ShardId(from), to: ShardId(to), number, message: Message::Begun { reservation } }
}

/// Numbers that look random and are the same every time.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `sides`.
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % sides
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len() as u64) as usize]
    }
}
