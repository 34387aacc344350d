//! Tail: whoever follows a run or a namespace is woken by the commit that made something true, and by nothing else.
//!
//! While nobody follows, a commit looks at one flag. Nothing is kept for those who read slowly: a run is read from its
//! journal at the reader's pace, and of a namespace there is a bounded ring that all its followers share. Whoever falls
//! behind the ring, or comes back to one that is not there any more, is told so: there is never a gap that is not said.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use abide_kernel::shard::Batch;
use abide_kernel::{Fact, Refusal, Row, Run, RunId, Status, Str, Timestamp};
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::core::Core;
use crate::driver::Shared;
use crate::engine::Engine;
use crate::link::Letter;

/// What is kept of a namespace for those who come back.
const EVENTS_MAX: usize = 1_024;
/// How many namespaces are followed at once.
const FEEDS_MAX: usize = 1_024;
/// How long a namespace is followed after the last one who did has gone: they may come back.
const LINGER_MS: u64 = 60_000;

/// Something became true of a run: what a row of its journal is about, without its payloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow: Str,
    /// Its revision since then.
    pub rev: u64,
    /// When.
    pub at: Timestamp,
    /// The kinds of facts, in order.
    pub facts: Vec<Str>,
    /// How the run ended, if it did.
    pub status: Option<Status>,
}

impl Happened {
    fn of(run: &Run, row: &Row) -> Self {
        let ended = row.facts.iter().find_map(|fact| match fact {
            Fact::Ended(ended) => Some(ended.status),
            _ => None,
        });
        Self {
            run: row.run,
            workflow: run.started.spec.workflow.clone(),
            rev: row.rev.0,
            at: row.at,
            facts: row.facts.iter().map(|fact| fact.kind().into()).collect(),
            status: ended,
        }
    }
}

/// A place in what happens in a namespace. It is good for as long as what follows it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Which ring: one that began anew has another.
    pub ring: u64,
    /// How many events came before.
    pub after: u64,
}

/// What there is to read for a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Events in order, none left out. None means that there are no more yet.
    Events(Vec<Arc<Happened>>),
    /// Something may have been missed: what follows comes from here on.
    Reset,
}

/// What happens in a namespace, for all who follow it.
struct Feed {
    ring: u64,
    /// How many events left the ring.
    gone: u64,
    events: VecDeque<Arc<Happened>>,
    moved: watch::Sender<u64>,
    /// Since when nobody follows.
    left: Option<Timestamp>,
}

impl Feed {
    fn new(ring: u64) -> Self {
        Self { ring, gone: 0, events: VecDeque::new(), moved: watch::Sender::new(0), left: None }
    }

    fn cursor(&self) -> Cursor {
        Cursor { ring: self.ring, after: self.gone + self.events.len() as u64 }
    }

    fn push(&mut self, happened: Arc<Happened>) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.gone += 1;
        }
        self.events.push_back(happened);
        self.moved.send_modify(|times| *times += 1);
    }

    fn begin_anew(&mut self, ring: u64) {
        (self.ring, self.gone) = (ring, 0);
        self.events.clear();
        self.moved.send_modify(|times| *times += 1);
    }

    /// Events after a place, if all of them are kept.
    fn after(&self, cursor: Cursor, most: usize) -> Option<Vec<Arc<Happened>>> {
        let known = cursor.ring == self.ring && cursor.after <= self.cursor().after;
        let skipped = cursor.after.checked_sub(self.gone).filter(|_| known)?;
        Some(self.events.iter().skip(skipped as usize).take(most).cloned().collect())
    }
}

/// A node that follows what happens here.
struct Follower {
    until: Timestamp,
    /// The number of the last letter to it.
    number: u64,
}

#[derive(Default)]
struct Followed {
    runs: HashMap<RunId, watch::Sender<u64>>,
    feeds: HashMap<Str, Feed>,
    followers: HashMap<Str, Follower>,
    /// The number of the last letter from each node that is followed.
    heard: HashMap<Str, u64>,
}

impl Followed {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.feeds.is_empty() && self.followers.is_empty()
    }

    fn is_followed_here(&self) -> bool {
        !self.runs.is_empty() || !self.feeds.is_empty()
    }

    fn forget_idle(&mut self, now: Timestamp) {
        self.feeds.retain(|_, feed| feed.left.is_none_or(|left| now.since(left) < LINGER_MS));
        self.followers.retain(|_, follower| now < follower.until);
    }

    fn wake(&self, run: RunId) {
        if let Some(moved) = self.runs.get(&run) {
            moved.send_modify(|times| *times += 1);
        }
    }

    fn happened(&mut self, namespace: &str, happened: Happened) {
        self.wake(happened.run);
        if let Some(feed) = self.feeds.get_mut(namespace) {
            feed.push(Arc::new(happened));
        }
    }

    /// Something may have been missed: runs are looked at again, and whoever follows a namespace is told.
    fn begin_anew(&mut self, mut draw: impl FnMut() -> u64) {
        self.runs.values().for_each(|moved| moved.send_modify(|times| *times += 1));
        self.feeds.values_mut().for_each(|feed| feed.begin_anew(draw()));
    }
}

/// Who follows what.
#[derive(Default)]
pub(crate) struct Tail {
    /// Whether anybody does.
    is_followed: AtomicBool,
    followed: Mutex<Followed>,
}

impl Tail {
    fn is_followed(&self) -> bool {
        self.is_followed.load(Ordering::Acquire)
    }

    fn note(&self, followed: &Followed) {
        self.is_followed.store(!followed.is_empty(), Ordering::Release);
    }

    /// There is nothing more to come.
    pub(crate) fn close(&self) {
        let mut followed = self.followed.lock();
        *followed = Followed::default();
        self.note(&followed);
    }
}

/// Whoever follows a run.
#[derive(Debug)]
pub struct RunMoves {
    shared: Weak<Shared>,
    run: RunId,
    moved: watch::Receiver<u64>,
}

impl RunMoves {
    /// What is read from now on is what the next wait goes by.
    pub fn look(&mut self) {
        self.moved.borrow_and_update();
    }

    /// Waits until the run may have moved since it was last looked at. False when there is nothing more to come.
    pub async fn moved(&mut self) -> bool {
        self.moved.changed().await.is_ok()
    }
}

impl Drop for RunMoves {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut followed = shared.tail.followed.lock();
        // This one still counts.
        if followed.runs.get(&self.run).is_some_and(|moved| moved.receiver_count() <= 1) {
            followed.runs.remove(&self.run);
        }
        shared.tail.note(&followed);
    }
}

/// Whoever follows a namespace.
#[derive(Debug)]
pub struct Following {
    shared: Weak<Shared>,
    namespace: Str,
    cursor: Cursor,
    moved: watch::Receiver<u64>,
}

impl Following {
    /// Behind what was read last.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Reads on, at most so many events.
    #[must_use]
    pub fn take(&mut self, most: usize) -> Taken {
        self.moved.borrow_and_update();
        let Some(shared) = self.shared.upgrade() else { return Taken::Events(Vec::new()) };
        let followed = shared.tail.followed.lock();
        let Some(feed) = followed.feeds.get(&self.namespace) else { return Taken::Events(Vec::new()) };
        let Some(events) = feed.after(self.cursor, most) else {
            self.cursor = feed.cursor();
            return Taken::Reset;
        };
        self.cursor.after += events.len() as u64;
        Taken::Events(events)
    }

    /// Waits until there may be more. False when there is nothing more to come.
    pub async fn moved(&mut self) -> bool {
        self.moved.changed().await.is_ok()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let now = shared.now();
        let mut followed = shared.tail.followed.lock();
        if let Some(feed) = followed.feeds.get_mut(&self.namespace).filter(|feed| feed.moved.receiver_count() <= 1) {
            feed.left = Some(now);
        }
    }
}

impl Engine {
    /// Follows a run: whoever does is woken when it has moved, and reads its journal then.
    #[must_use]
    pub fn follow_run(&self, run: RunId) -> RunMoves {
        let shared = &self.shared;
        let moved = shared.follow(|followed| {
            let moved = followed.runs.entry(run).or_insert_with(|| watch::Sender::new(0));
            moved.subscribe()
        });
        RunMoves { shared: Arc::downgrade(shared), run, moved }
    }

    /// Follows a namespace, from a place on or from now on.
    ///
    /// # Errors
    /// When too many are followed.
    pub fn follow(&self, namespace: &Str, after: Option<Cursor>) -> Result<Following, Refusal> {
        let shared = &self.shared;
        let (now, ring) = (shared.now(), shared.draw());
        let (cursor, moved) = shared.follow(|followed| {
            followed.forget_idle(now);
            if followed.feeds.len() >= FEEDS_MAX && !followed.feeds.contains_key(namespace) {
                return Err(Refusal::Busy { what: "namespaces that are followed".into(), limit: FEEDS_MAX as u64 });
            }
            let feed = followed.feeds.entry(namespace.clone()).or_insert_with(|| Feed::new(ring));
            feed.left = None;
            Ok((after.unwrap_or_else(|| feed.cursor()), feed.moved.subscribe()))
        })?;
        Ok(Following { shared: Arc::downgrade(shared), namespace: namespace.clone(), cursor, moved })
    }
}

impl Shared {
    /// Changes who follows what. The first one here has the other nodes tell what happens there.
    fn follow<T>(&self, change: impl FnOnce(&mut Followed) -> T) -> T {
        let mut followed = self.tail.followed.lock();
        let before = followed.is_followed_here();
        let changed = change(&mut followed);
        let first = !before && followed.is_followed_here();
        self.tail.note(&followed);
        drop(followed);
        if first {
            self.follow_others(&self.core.lock());
        }
        changed
    }

    fn draw(&self) -> u64 {
        self.entropy.next() as u64
    }

    /// A batch is durable: whoever follows is told.
    pub(crate) fn tell_followers(&self, core: &Core, now: Timestamp, batch: &Batch) {
        if !self.tail.is_followed() {
            return;
        }
        let shard = core.shards[usize::from(batch.shard.0)].as_ref();
        let shard = shard.filter(|shard| shard.epoch() == batch.epoch);
        let mut told = Vec::new();
        let mut followed = self.tail.followed.lock();
        followed.forget_idle(now);
        for row in &batch.rows {
            let known = shard.and_then(|shard| shard.run(row.run)).filter(|run| !run.is_reservation());
            let Some(run) = known else {
                // Of a run that is gone from memory, only those who look at it can find out more.
                followed.wake(row.run);
                continue;
            };
            let namespace = &run.started.spec.namespace;
            if followed.followers.is_empty() && !followed.feeds.contains_key(namespace) {
                followed.wake(row.run);
                continue;
            }
            let happened = Happened::of(run, row);
            if !followed.followers.is_empty() {
                told.push((namespace.clone(), happened.clone()));
            }
            followed.happened(namespace, happened);
        }
        if !told.is_empty() {
            tell_nodes(&mut followed, core, &told);
        }
        self.tail.note(&followed);
    }

    /// A run has something to show that is in no row. It is best effort, here and elsewhere.
    pub(crate) fn tell_moved(&self, core: &Core, run: RunId) {
        if !self.tail.is_followed() {
            return;
        }
        let followed = self.tail.followed.lock();
        followed.wake(run);
        let Some(ring) = &core.ring else { return };
        let members = followed.followers.keys().filter_map(|process| ring.find(process));
        members.for_each(|member| ring.send(member, Letter::Moved { run }));
    }

    /// Another node says that a run of its own has something to show.
    pub(crate) fn heard_of_move(&self, run: RunId) {
        self.tail.followed.lock().wake(run);
    }

    /// What became true may not all have been told: a shard was opened here, or elsewhere.
    pub(crate) fn tell_anew(&self, core: &Core) {
        if self.tail.is_followed() {
            let mut followed = self.tail.followed.lock();
            followed.begin_anew(|| self.draw());
            // A number that is left out says so to those elsewhere.
            followed.followers.values_mut().for_each(|follower| follower.number += 1);
            tell_nodes(&mut followed, core, &[]);
        }
    }

    /// Has the other nodes tell what happens there, if anybody here wants to know.
    pub(crate) fn follow_others(&self, core: &Core) {
        let Some(ring) = core.ring.as_ref().filter(|_| self.tail.is_followed()) else { return };
        let mut followed = self.tail.followed.lock();
        if !followed.is_followed_here() {
            return;
        }
        followed.heard.retain(|process, _| ring.find(process).is_some());
        for member in ring.others() {
            let heard = followed.heard.get(&member.process).copied();
            ring.send(member, Letter::Follow { heard });
        }
    }

    /// Another node wants to be told what happens here, from now on and for a while.
    pub(crate) fn followed_by(&self, core: &Core, now: Timestamp, process: &Str, heard: Option<u64>) {
        let Some(ring) = &core.ring else { return };
        let mut followed = self.tail.followed.lock();
        let follower = followed.followers.entry(process.clone()).or_insert(Follower { until: now, number: 0 });
        follower.until = now.after(ring.lease_ms);
        let number = follower.number;
        if heard != Some(number)
            && let Some(member) = ring.find(process)
        {
            ring.send(member, Letter::Rows { number, rows: Vec::new() });
        }
        self.tail.note(&followed);
    }

    /// Another node tells what happened there.
    pub(crate) fn heard_of(&self, process: &Str, number: u64, rows: Vec<(Str, Happened)>) {
        let mut followed = self.tail.followed.lock();
        if !followed.is_followed_here() {
            return;
        }
        let before = followed.heard.insert(process.clone(), number);
        let next = before.is_some_and(|before| number == before + u64::from(!rows.is_empty()));
        if !next {
            followed.begin_anew(|| self.draw());
        }
        rows.into_iter().for_each(|(namespace, happened)| followed.happened(&namespace, happened));
    }
}

/// Tells the nodes that follow what happens here.
fn tell_nodes(followed: &mut Followed, core: &Core, told: &[(Str, Happened)]) {
    let Some(ring) = &core.ring else { return };
    for (process, follower) in &mut followed.followers {
        follower.number += u64::from(!told.is_empty());
        if let Some(member) = ring.find(process) {
            ring.send(member, Letter::Rows { number: follower.number, rows: told.to_vec() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(rev: u64) -> Arc<Happened> {
        let run = RunId(7);
        Arc::new(Happened { run, workflow: "w".into(), rev, at: Timestamp(0), facts: Vec::new(), status: None })
    }

    fn revs(feed: &Feed, after: u64) -> Option<Vec<u64>> {
        let events = feed.after(Cursor { ring: feed.ring, after }, usize::MAX)?;
        Some(events.iter().map(|event| event.rev).collect())
    }

    /// AB-13: a ring gives what comes after a place, in order, and knows when it cannot.
    #[test]
    fn a_ring_never_leaves_anything_out_in_silence() {
        let mut feed = Feed::new(1);
        assert_eq!(revs(&feed, 0), Some(vec![]));
        (1..=3).for_each(|rev| feed.push(happened(rev)));
        assert_eq!(revs(&feed, 1), Some(vec![2, 3]));
        assert_eq!(revs(&feed, 4), None, "nobody was there yet");
        (4..=EVENTS_MAX as u64 + 2).for_each(|rev| feed.push(happened(rev)));
        assert_eq!(feed.events.len(), EVENTS_MAX);
        assert_eq!(revs(&feed, 1), None, "the second is gone");
        assert_eq!(revs(&feed, 2).map(|revs| (revs[0], revs.len())), Some((3, EVENTS_MAX)));
        let before = feed.cursor();
        feed.begin_anew(2);
        assert_eq!(feed.after(before, 1), None, "another ring");
        assert_eq!(revs(&feed, 0), Some(vec![]));
    }
}
