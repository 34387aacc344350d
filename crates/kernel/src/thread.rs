//! Threads: the journal read by subject. A thread's id is derived from what it is about, which facts belong to it
//! follows from their kind, and its projection is rebuilt from those facts alone.
//!
//! Nothing decides by these projections: the shard's own indexes do. They are for readers of an exported journal,
//! and for tests that hold the two against each other.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use smallvec::SmallVec;

use crate::{Claimant, Fact, RunId, Seq, Started, Status, Str, Timestamp};

/// A subject of the journal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thread {
    /// The life of one run: `run:<id>`.
    Run(RunId),
    /// The attempts of one queue: `dispatch:<queue>`.
    Dispatch(Str),
    /// The runs of one workflow: `run_index:<workflow>`.
    RunIndex(Str),
    /// All runs: `run_catalog`.
    Catalog,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(run) => write!(f, "run:{run}"),
            Self::Dispatch(queue) => write!(f, "dispatch:{queue}"),
            Self::RunIndex(workflow) => write!(f, "run_index:{workflow}"),
            Self::Catalog => f.write_str("run_catalog"),
        }
    }
}

impl FromStr for Thread {
    type Err = BadThread;

    fn from_str(text: &str) -> Result<Self, BadThread> {
        let bad = || BadThread { found: text.to_string() };
        if text == "run_catalog" {
            return Ok(Self::Catalog);
        }
        let (kind, name) = text.split_once(':').ok_or_else(bad)?;
        match kind {
            "run" => name.parse().map(Self::Run).map_err(|_| bad()),
            "dispatch" if !name.is_empty() => Ok(Self::Dispatch(name.into())),
            "run_index" if !name.is_empty() => Ok(Self::RunIndex(name.into())),
            _ => Err(bad()),
        }
    }
}

/// A text that names no thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadThread {
    /// The text.
    pub found: String,
}

impl fmt::Display for BadThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected run:<id>, dispatch:<queue>, run_index:<workflow> or run_catalog, found {:?}", self.found)
    }
}

impl core::error::Error for BadThread {}

/// A fact where it stands: whose it is, when and where it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The run.
    pub run: RunId,
    /// The position of its row.
    pub seq: Seq,
    /// The instant of its row.
    pub at: Timestamp,
    /// The fact.
    pub fact: &'a Fact,
}

/// The threads that `fact` belongs to, for a run that began as `started`.
#[must_use]
pub fn threads(run: RunId, started: &Started, fact: &Fact) -> SmallVec<[Thread; 3]> {
    let mut found = SmallVec::new();
    let (life, dispatch, listed) = match fact {
        Fact::Started(_) | Fact::Ended(_) | Fact::Purged | Fact::Compacted(_) => (true, false, true),
        Fact::Scheduled(_)
        | Fact::Notified(_)
        | Fact::Claimed(_)
        | Fact::Heartbeat(_)
        | Fact::Progressed(_)
        | Fact::Expired(_)
        | Fact::Returned(_)
        | Fact::DeadLettered(_)
        | Fact::Requeued(_) => (false, true, false),
        // The queue learns that the attempt is over, the run what came of it.
        Fact::Completed(_) | Fact::Failed(_) => (true, true, false),
        Fact::Pinned(_)
        | Fact::Applied(_)
        | Fact::SignalReceived(_)
        | Fact::Woken(_)
        | Fact::ChildStarted(_)
        | Fact::ChildAnswered(_)
        | Fact::ChildEnded(_)
        | Fact::ParentPurged
        | Fact::Begun
        | Fact::Intended(_)
        | Fact::Resulted(_)
        | Fact::Retrying(_)
        | Fact::Seen(_)
        | Fact::Resolved(_)
        | Fact::Cancelling(_)
        | Fact::Asked(_)
        | Fact::Assigned(_)
        | Fact::Decided(_)
        | Fact::Published(_)
        | Fact::Requested(_)
        | Fact::Answered(_)
        | Fact::Anomaly(_) => (true, false, false),
    };
    if life {
        found.push(Thread::Run(run));
    }
    if dispatch {
        found.push(Thread::Dispatch(started.spec.queue.clone()));
    }
    if listed {
        found.push(Thread::RunIndex(started.spec.workflow.clone()));
        found.push(Thread::Catalog);
    }
    found
}

/// Where an attempt stands, as its queue's thread has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// It can be claimed from this instant on.
    Scheduled {
        /// Not before.
        visible_at: Timestamp,
    },
    /// A worker holds it.
    Claimed {
        /// The claim's number.
        claim: u32,
        /// Who, if the thread says so.
        by: Option<Arc<Claimant>>,
        /// When its lease ends.
        lease_until: Timestamp,
        /// Since when it could be claimed, should it be given back.
        visible_at: Timestamp,
    },
    /// It was answered, or its lease ended.
    Over,
    /// It was set aside.
    DeadLettered,
}

/// An attempt of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Its number within the run's cursor.
    pub turn: u32,
    /// Its step, once named.
    pub step: Option<Str>,
    /// Where it stands.
    pub standing: Standing,
    /// Who claimed the cursor last.
    claimant: Option<Arc<Claimant>>,
}

/// The projection of a queue's thread: its attempts, by run and cursor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dispatch {
    attempts: BTreeMap<(RunId, u16), Attempt>,
    over: BTreeSet<RunId>,
}

impl Dispatch {
    /// Folds the facts of the thread, in order. Facts of other threads change nothing.
    pub fn fold<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Self {
        let mut projection = Self::default();
        for entry in entries {
            projection.apply(&entry);
        }
        projection
    }

    /// The end of a run, which is its own thread's to tell: its attempts are hidden, and still explained.
    pub fn end(&mut self, run: RunId) {
        self.over.insert(run);
    }

    /// The attempt of a run's cursor, ended or not.
    #[must_use]
    pub fn attempt(&self, run: RunId, cursor: u16) -> Option<&Attempt> {
        self.attempts.get(&(run, cursor))
    }

    /// Attempts that can be claimed at `now`, those visible longest first.
    #[must_use]
    pub fn visible(&self, now: Timestamp) -> Vec<(RunId, u16)> {
        self.select(|standing| match standing {
            Standing::Scheduled { visible_at } => Some(*visible_at).filter(|at| *at <= now),
            _ => None,
        })
    }

    /// Attempts whose lease has ended at `now` and that nobody has answered: they can be delivered again.
    #[must_use]
    pub fn expired(&self, now: Timestamp) -> Vec<(RunId, u16)> {
        self.select(|standing| match standing {
            Standing::Claimed { lease_until, .. } => Some(*lease_until).filter(|at| *at <= now),
            _ => None,
        })
    }

    fn select(&self, when: impl Fn(&Standing) -> Option<Timestamp>) -> Vec<(RunId, u16)> {
        let open = self.attempts.iter().filter(|((run, _), _)| !self.over.contains(run));
        let mut found: Vec<(Timestamp, (RunId, u16))> =
            open.filter_map(|(key, attempt)| Some((when(&attempt.standing)?, *key))).collect();
        found.sort();
        found.into_iter().map(|(_, key)| key).collect()
    }

    fn apply(&mut self, entry: &Entry<'_>) {
        let at = |cursor: u16| (entry.run, cursor);
        match entry.fact {
            Fact::Scheduled(scheduled) => {
                let claimant = self.attempts.remove(&at(scheduled.cursor)).and_then(|before| before.claimant);
                let visible_at = scheduled.visible_at.unwrap_or(entry.at);
                let attempt = Attempt {
                    turn: scheduled.turn,
                    step: scheduled.step.clone(),
                    standing: Standing::Scheduled { visible_at },
                    claimant,
                };
                self.attempts.insert(at(scheduled.cursor), attempt);
            }
            Fact::Claimed(claimed) => self.stand(at(claimed.cursor), |attempt| {
                if claimed.by.is_some() {
                    attempt.claimant.clone_from(&claimed.by);
                }
                let visible_at = match attempt.standing {
                    Standing::Scheduled { visible_at } => visible_at,
                    _ => entry.at,
                };
                let lease_ms = attempt.claimant.as_ref().map_or(0, |by| by.lease_ms);
                attempt.standing = Standing::Claimed {
                    claim: claimed.claim,
                    by: attempt.claimant.clone(),
                    lease_until: entry.at.after(lease_ms),
                    visible_at,
                };
            }),
            Fact::Heartbeat(beat) => self.stand(at(beat.cursor), |attempt| match &mut attempt.standing {
                Standing::Claimed { claim, lease_until, .. } if *claim == beat.claim => *lease_until = beat.lease_until,
                // A stale one is for the anomalies; the attempt is as it was.
                _ => {}
            }),
            Fact::Returned(returned) => self.stand(at(returned.cursor), |attempt| {
                if let Standing::Claimed { visible_at, .. } = attempt.standing {
                    attempt.standing = Standing::Scheduled { visible_at };
                }
            }),
            Fact::Expired(claim) => self.stand(at(claim.cursor), |attempt| attempt.standing = Standing::Over),
            Fact::Completed(done) => self.stand(at(done.cursor), |attempt| attempt.standing = Standing::Over),
            Fact::Failed(failed) => {
                self.stand(at(failed.cursor), |attempt| attempt.standing = Standing::Over);
            }
            Fact::DeadLettered(dead) => self.stand(at(dead.cursor), |attempt| {
                attempt.standing = Standing::DeadLettered;
            }),
            _ => {}
        }
    }

    fn stand(&mut self, key: (RunId, u16), change: impl FnOnce(&mut Attempt)) {
        if let Some(attempt) = self.attempts.get_mut(&key) {
            change(attempt);
        }
    }
}

/// A run as listings show it: where to find it and how it ended, and nothing that its user put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The run.
    pub run: RunId,
    /// Its tenant.
    pub namespace: Str,
    /// Its workflow.
    pub workflow: Str,
    /// Its version.
    pub version: u32,
    /// The queue whose thread explains its attempts.
    pub queue: Str,
    /// When it was started.
    pub created_at: Timestamp,
    /// How and when it ended.
    pub ended: Option<(Status, Timestamp)>,
}

/// The projection of the catalog's thread, or of one workflow's index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    runs: BTreeMap<RunId, Summary>,
    keys: BTreeMap<Str, Vec<RunId>>,
}

impl Catalog {
    /// Folds the facts of the thread, in order. Facts of other threads change nothing.
    pub fn fold<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Self {
        let mut projection = Self::default();
        for entry in entries {
            projection.apply(&entry);
        }
        projection
    }

    /// All runs, oldest first, redacted.
    pub fn list(&self) -> impl Iterator<Item = &Summary> {
        self.runs.values()
    }

    /// The runs that were started with this business key, oldest first.
    #[must_use]
    pub fn by_key(&self, key: &str) -> &[RunId] {
        self.keys.get(key).map_or(&[], Vec::as_slice)
    }

    fn apply(&mut self, entry: &Entry<'_>) {
        match entry.fact {
            Fact::Started(started) if started.reserves.is_none() => self.start(entry, started),
            Fact::Compacted(run) => {
                self.start(entry, &run.started);
                if let Some(summary) = self.runs.get_mut(&entry.run) {
                    summary.created_at = run.created_at;
                    summary.ended = run.end.as_ref().map(|end| (end.status, end.at));
                }
            }
            Fact::Ended(ended) => {
                if let Some(summary) = self.runs.get_mut(&entry.run) {
                    summary.ended = Some((ended.status, entry.at));
                }
            }
            Fact::Purged => {
                self.runs.remove(&entry.run);
                self.keys.values_mut().for_each(|runs| runs.retain(|run| *run != entry.run));
            }
            _ => {}
        }
    }

    fn start(&mut self, entry: &Entry<'_>, started: &Started) {
        let spec = &started.spec;
        let summary = Summary {
            run: entry.run,
            namespace: spec.namespace.clone(),
            workflow: spec.workflow.clone(),
            version: spec.version,
            queue: spec.queue.clone(),
            created_at: entry.at,
            ended: None,
        };
        self.runs.insert(entry.run, summary);
        if let Some(key) = &spec.key {
            let runs = self.keys.entry(key.key.clone()).or_default();
            if !runs.contains(&entry.run) {
                runs.push(entry.run);
            }
        }
    }
}
