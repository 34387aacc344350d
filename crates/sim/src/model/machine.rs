//! A node: a clock, and the real shard while it owns it or still believes that it does.

use std::sync::Arc;

use abide_kernel::limits::DEFINITION_WAIT_MS_DEFAULT;
use abide_kernel::shard::{Batch, Config, Load, Loaded, Rules, Shard, Throttle, Windows, Worker, WorkerId};
use abide_kernel::transition::claim::Definition;
use abide_kernel::{Claimant, Fingerprint, Seq, ShardEpoch, ShardId, ShardMap, Str, Timestamp, TokenHash, stable_hash};

use super::disk::Disk;
use super::{Bounds, Hands};
use crate::Violation;

/// How long a lease lasts; time passes in halves of it.
pub(super) const LEASE_MS: u64 = 1_000;
pub(super) const WORKFLOW: &str = "flow";

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// Which one.
    pub(super) number: usize,
    /// Its clock: where nodes share a store, it agrees with nobody's.
    pub(super) clock: Timestamp,
    /// Which life of its process it is.
    pub(super) life: u8,
    /// The shard, as it believes to own it.
    pub(super) owned: Option<Arc<Owned>>,
}

/// A shard that a node owns, or owned.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) epoch: u64,
    pub(super) shard: Shard,
    /// A batch that the store has taken, and the node does not know yet.
    pub(super) flying: Option<Batch>,
    /// The workers that it gives work to.
    pub(super) hands: Vec<usize>,
    claimants: Vec<Arc<Claimant>>,
}

impl Owned {
    fn worker(&self, hand: usize) -> WorkerId {
        WorkerId(self.hands.iter().position(|known| *known == hand).unwrap_or_default() as u32)
    }

    /// Whether the worker could claim now.
    pub(super) fn has_work(&mut self, hand: usize) -> bool {
        let worker = self.worker(hand);
        let now = self.shard.now();
        self.shard.has_work(now, worker, &mut Throttle::default())
    }

    /// Lets the worker claim.
    pub(super) fn claim(&mut self, now: Timestamp, hand: usize) {
        let worker = self.worker(hand);
        let by = self.claimants[worker.0 as usize].clone();
        self.shard.claim(now, worker, &by, 1, &mut Throttle::default());
    }

    /// Answers what the shard asks of the store.
    pub(super) fn load(&mut self, now: Timestamp, disk: &Disk) -> Result<(), Violation> {
        for load in self.shard.take_loads() {
            let indexed = disk.indexed()?.map(|(run, head)| (run.id, Loaded::Run(Box::new(run), head)));
            match load {
                Load::Run(id) => {
                    let found = indexed.filter(|(known, _)| *known == id);
                    self.shard.loaded_run(now, id, found.map_or(Loaded::Missing, |(_, loaded)| loaded));
                }
                Load::Due { from } => {
                    let due = disk.index.iter().filter_map(|record| Some((record.due?, record.run)));
                    let page: Vec<_> = due.filter(|(at, _)| *at >= from).collect();
                    self.shard.loaded_due(now, &page, None);
                }
                Load::Key(_) | Load::Ready { .. } => return Err(format!("one run needs no {load:?}")),
            }
        }
        Ok(())
    }
}

impl Machine {
    /// A node that owns nothing.
    pub(super) fn new(number: usize, clock: Timestamp) -> Self {
        Self { number, clock, life: 0, owned: None }
    }

    /// The shard, to be changed: other states may share it.
    pub(super) fn owned(&mut self) -> Option<(Timestamp, &mut Owned)> {
        Some((self.clock, Arc::make_mut(self.owned.as_mut()?)))
    }

    /// In which life of its process the worker is that lives in it, if one does.
    pub(super) fn worker_life(&self, bounds: &Bounds) -> u8 {
        if bounds.hands.live_in_nodes() { self.life } else { 0 }
    }

    fn process(&self) -> Str {
        format!("process {} of node {}", self.life, self.number).into()
    }

    /// The token of the worker that has the number of this node: its own, or that of the process in which it lives.
    pub(super) fn token(&self, bounds: &Bounds) -> TokenHash {
        if bounds.hands.live_in_nodes() { hash(&self.process()) } else { worker_token(self.number) }
    }

    fn claimant(&self, bounds: &Bounds, hand: usize) -> Arc<Claimant> {
        let lives_here = bounds.hands.live_in_nodes();
        let token = if lives_here { self.token(bounds) } else { worker_token(hand) };
        Claimant::new(format!("worker {hand}").into(), token, LEASE_MS, lives_here.then(|| self.process()))
    }

    /// What time it is when the node opens the shard.
    pub(super) fn opening(&self, disk: &Disk) -> Timestamp {
        self.clock.max(disk.last_at())
    }

    /// Opens the shard from what is durable, in the order of `abide_runtime`'s recovery.
    pub(super) fn open(&mut self, bounds: &Bounds, disk: &Disk) -> Result<(), Violation> {
        let now = self.opening(disk);
        let config = Config {
            id: ShardId(0),
            map: ShardMap::new(1),
            epoch: ShardEpoch(disk.epoch),
            node: format!("node {}", self.number).into(),
            process: self.process(),
            head: disk.head(),
            sent: vec![0],
            consumed: vec![0],
            notify: false,
            windows: Windows::default(),
            rules: Rules::default(),
            definition_wait_ms: DEFINITION_WAIT_MS_DEFAULT,
        };
        let mut shard = Shard::new(config, now);
        recall(&mut shard, disk)?;
        if let Some(record) = &disk.index {
            if let Some((line, _)) = &record.ready {
                let page = disk.indexed()?.into_iter().filter(|_| record.head > Seq(0)).collect();
                shard.loaded_ready(now, line, page, None);
            }
            let due: Vec<_> = record.due.map(|due| (due, record.run)).into_iter().collect();
            shard.loaded_due(now, &due, None);
        }
        shard.replayed(now);
        if bounds.hands == Hands::Local {
            for run in shard.claimed_runs() {
                shard.end_lost_claims(run);
            }
        }
        let hands = if bounds.hands.live_in_nodes() { vec![self.number] } else { vec![0, 1] };
        for number in 0..hands.len() {
            let definition = Definition {
                workflow: WORKFLOW.into(),
                version: 1,
                fingerprint: Fingerprint(7),
                first_step: "first".into(),
            };
            shard.join(WorkerId(number as u32), Worker::new(vec!["default".into()], vec![definition]));
        }
        let claimants = hands.iter().map(|hand| self.claimant(bounds, *hand)).collect();
        self.owned = Some(Arc::new(Owned { epoch: disk.epoch, shard, flying: None, hands, claimants }));
        Ok(())
    }
}

fn worker_token(hand: usize) -> TokenHash {
    hash(&format!("worker {hand}"))
}

fn hash(name: &str) -> TokenHash {
    TokenHash(u128::from(stable_hash(name.as_bytes())))
}

/// Folds the log after the index rows; a run that is claimed or changed since comes from its index row first.
fn recall(shard: &mut Shard, disk: &Disk) -> Result<(), Violation> {
    if let Some((run, head)) = disk.indexed()?
        && (disk.is_behind()
            || disk.index.as_ref().is_some_and(|record| record.status == abide_kernel::Status::Executing))
    {
        shard.adopt(run, head);
    }
    for row in disk.rows.iter().skip(disk.through.0 as usize) {
        shard.replay(row)?;
    }
    Ok(())
}
