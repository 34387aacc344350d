//! The world of a seed: nodes over a store that outlives them, clients who ask, and faults. First everything
//! goes wrong that can; then all is healed, and everything must come to its end.

mod clients;
mod faults;
mod heal;
mod rules;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide::RunId;
use abide_runtime::{Letter, Turned};
use abide_store::memory::{MemoryStore, WriteFault};

use crate::asking::{Asked, Question};
use crate::checkers::{self, View};
use crate::dice::Dice;
use crate::disk::Slow;
use crate::net::{Drawn, Net};
use crate::nodes::{BEGINNING_MS, NODE_LEASE_MS, Node};
use crate::panics;
use crate::profile::Profile;
use crate::story::{Listener, Story};
use crate::truth::Witness;
use crate::workers::{Around, Worker};
use crate::{Plan, Violation};

/// Events between two looks at everything, in worlds that are not watched all the time.
const AUDIT_EVERY: u64 = 64;
/// Steps of time in which nodes keep their leases, before it leaps.
const STEPS_MAX: i64 = 150;

/// How often a write that takes its time goes on when its node has a turn, in a thousand.
const WRITTEN: u64 = 250;

/// How often what a dead process was writing comes to the store, in a thousand.
const LATE: u64 = 50;

/// Workers outside of the nodes.
const WORKERS: usize = 3;

/// A world.
pub(crate) struct World {
    seed: u64,
    dice: Dice,
    profile: Profile,
    witness: Witness,
    store: MemoryStore,
    /// The time of the world, by which the store goes.
    time: Arc<AtomicI64>,
    net: Net,
    nodes: Vec<Node>,
    /// Workers outside of the nodes.
    workers: Vec<Worker>,
    /// Writes of processes that have died, on their way still.
    late: Vec<Slow>,
    /// Questions on their way, and the nodes that were asked.
    asked: Vec<(usize, Asked)>,
    /// Questions that were not answered, to be asked again.
    unanswered: Vec<Question>,
    runs: Vec<RunId>,
    questions: u64,
    /// An answer that must not have been given.
    wrong: Option<String>,
    view: View,
    /// Events between two looks at everything.
    audit_every: u64,
    pub(crate) story: Story,
}

impl World {
    /// The world of a seed, before anything has happened.
    pub(crate) fn new(seed: u64, listener: Option<Listener>) -> Self {
        let mut dice = Dice::new(seed);
        let profile = Profile::draw(&mut dice);
        Self::of(seed, profile, dice, listener)
    }

    /// A world in which one thing goes wrong.
    pub(crate) fn with(plan: &Plan, listener: Option<Listener>) -> Self {
        let world = Self::of(plan.seed, Profile::calm(plan.nodes), Dice::new(plan.seed), listener);
        world.store.faults().fail_after(plan.operation, plan.well, plan.fault);
        Self { audit_every: u64::MAX, ..world }
    }

    fn of(seed: u64, profile: Profile, mut dice: Dice, listener: Option<Listener>) -> Self {
        let time = Arc::new(AtomicI64::new(BEGINNING_MS));
        let store = match profile.nodes {
            1 => MemoryStore::new(profile.shards),
            _ => MemoryStore::shared(profile.shards, time.clone()),
        };
        let witness = Witness::new(seed, &profile, store.clone());
        let nodes = (0..profile.nodes).map(|place| Node::new(place, &profile, &mut dice)).collect();
        let workers = (0..WORKERS).map(|place| Worker::new(place, &mut dice)).collect();
        Self {
            seed,
            dice,
            witness,
            workers,
            view: View::new(store.clone()),
            store,
            time,
            net: Net::default(),
            nodes,
            late: Vec::new(),
            asked: Vec::new(),
            unanswered: Vec::new(),
            runs: Vec::new(),
            questions: 0,
            wrong: None,
            audit_every: AUDIT_EVERY,
            story: Story::new(listener, BEGINNING_MS),
            profile,
        }
    }

    /// Lets the world go through both of its phases.
    ///
    /// # Errors
    /// What was found wrong.
    pub(crate) fn live(&mut self) -> Result<(), Violation> {
        self.story.tell(self.now(), || format!("{:?}", self.profile));
        for event in 0..self.profile.events {
            self.happen()?;
            self.is_nothing_amiss()?;
            if self.profile.watched || event % self.audit_every == self.audit_every - 1 {
                self.audit()?;
            }
        }
        let healed = self.heal();
        self.count_strikes();
        healed?;
        self.is_nothing_amiss()?;
        self.view.look_again()?;
        checkers::check(&self.view, &self.witness)
    }

    /// Counts what went wrong with the store and on the net: what somebody met, not what was about to.
    fn count_strikes(&self) {
        let struck = self.store.faults().struck();
        let mut faults: Vec<(&'static str, u64)> = vec![
            ("flush", struck.flushes),
            ("ownership", struck.ownerships),
            ("partition", self.net.cut_off()),
            ("read", struck.reads),
            ("renewal", struck.renewals),
        ];
        faults.extend(struck.appends.into_iter().map(|(fault, times)| {
            let name = match fault {
                WriteFault::Refused => "append_refused",
                WriteFault::UnknownWritten => "append_unknown_written",
                WriteFault::UnknownLost => "append_unknown_lost",
                WriteFault::UnknownTorn => "append_torn",
                WriteFault::FatalWritten => "append_fatal_written",
                WriteFault::FatalLost => "append_fatal_lost",
                WriteFault::FatalTorn => "append_fatal_torn",
            };
            (name, times)
        }));
        let mut truth = self.witness.truth.lock();
        for (fault, times) in faults.into_iter().filter(|(_, times)| *times > 0) {
            *truth.faults.entry(fault).or_default() += times;
        }
    }

    /// How often something went wrong with the store.
    pub(crate) fn struck(&self) -> u64 {
        self.store.faults().struck().total()
    }

    /// What was witnessed.
    pub(crate) fn witness(&self) -> &Witness {
        &self.witness
    }

    /// A number that two lives of the same seed share, unless something of them is not of the seed.
    pub(crate) fn hash(&mut self) -> u64 {
        self.view.hash() ^ self.questions.wrapping_mul(31) ^ self.story.hash()
    }

    /// How many questions were asked.
    pub(crate) fn questions(&self) -> u64 {
        self.questions
    }

    /// How many nodes it has.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn now(&self) -> i64 {
        self.time.load(Ordering::Acquire)
    }

    fn pass(&self, ms: i64) {
        let now = self.time.fetch_add(ms, Ordering::AcqRel) + ms;
        self.nodes.iter().for_each(|node| node.set_time(now));
    }

    /// A node, any of them.
    fn any_node(&mut self) -> usize {
        self.dice.below(self.nodes.len() as u64) as usize
    }

    /// One event.
    fn happen(&mut self) -> Result<(), Violation> {
        let place = self.any_node();
        if self.nodes[place].life.as_ref().is_none_or(|life| life.crank.closed().is_some()) {
            self.open(place)?;
        }
        self.strike(place)?;
        if !self.late.is_empty() && self.dice.chance(LATE) {
            self.write_late();
        }
        match self.dice.weighted(&[60, 24, 8, 5, 3, 30, 20, 2]) {
            0 => {
                for _ in 0..=self.dice.below(6) {
                    self.turn(place);
                }
            }
            1 => self.ask_something(),
            2 => {
                let most = if self.profile.nodes == 1 { 90_000 } else { 25_000 };
                let ms = self.dice.below(most) as i64;
                self.pass(ms);
            }
            3 => self.release(),
            4 => self.skip(),
            6 => {
                for _ in 0..=self.dice.below(6) {
                    let worker = self.dice.below(WORKERS as u64) as usize;
                    self.work(worker, false);
                }
            }
            7 => self.change_rule(place)?,
            _ => {
                for _ in 0..=self.dice.below(8) {
                    self.carry(false);
                }
            }
        }
        self.hear();
        Ok(())
    }

    fn abandon_questions(&mut self, place: usize) {
        let (gone, kept) = std::mem::take(&mut self.asked).into_iter().partition(|(asked, _)| *asked == place);
        self.asked = kept;
        let gone: Vec<(usize, Asked)> = gone;
        self.unanswered.extend(gone.into_iter().map(|(_, asked)| asked.question));
    }

    /// Opens the store with a new life of a node, as often as it takes.
    fn open(&mut self, place: usize) -> Result<(), Violation> {
        self.abandon_questions(place);
        self.bury(place);
        for _ in 0..50 {
            self.witness.truth.lock().life += 1;
            match self.nodes[place].open(&self.store, &self.net, &self.witness, self.seed) {
                Ok(()) => {
                    self.story.tell(self.now(), || format!("node {place} is there"));
                    return Ok(());
                }
                Err(error) => self.story.tell(self.now(), || format!("the store does not open: {error}")),
            }
        }
        Err("the store could not be opened in fifty tries".into())
    }

    fn turn(&mut self, place: usize) -> Turned {
        if !self.nodes[place].is_awake(self.now()) {
            return Turned::Rests(None);
        }
        if self.nodes[place].writes().is_some() {
            // The engine goes on while its writer writes.
            return if self.dice.chance(WRITTEN) { self.nodes[place].write() } else { self.nodes[place].turn() };
        }
        if !self.dice.chance(self.profile.slow_disk) {
            return self.nodes[place].turn();
        }
        let turned = self.nodes[place].turn_slowly();
        if self.nodes[place].writes().is_some() {
            self.witness.strike("slow_write");
        }
        turned
    }

    /// A letter arrives, or does not. Whether there was one.
    fn carry(&mut self, healed: bool) -> bool {
        let (lost, twice) = if healed { (0, 0) } else { (self.profile.letter_lost, self.profile.letter_twice) };
        match self.net.draw(&mut self.dice, lost, twice) {
            Drawn::None => false,
            Drawn::Lost(how) => {
                self.witness.strike(how);
                true
            }
            Drawn::Arrives(sent, again) => {
                if again {
                    self.witness.strike("letter_twice");
                }
                let now = self.now();
                for node in self.nodes.iter().filter(|node| node.is_awake(now)) {
                    if node.receive(&sent.to, &sent.from, sent.letter.clone()) {
                        seen(&self.witness, &sent.letter);
                    }
                }
                true
            }
        }
    }

    /// Time passes to when something is due, in steps in which nodes keep their leases, or in one leap.
    fn skip(&mut self) {
        let due = self.nodes.iter().filter_map(|node| node.life.as_ref()?.crank.next_due()).map(|at| at.0).min();
        let now = self.now();
        let due = due.unwrap_or(if self.profile.nodes > 1 { now + NODE_LEASE_MS } else { now });
        // A node whose clock runs late comes to it later.
        let late = if self.profile.nodes > 1 { 1_000 } else { 0 };
        let wait = (due - now).max(late);
        let step = NODE_LEASE_MS / 3;
        if self.profile.nodes > 1 && wait / step < STEPS_MAX {
            while self.now() < now + wait {
                self.pass(step.min(now + wait - self.now()));
                for place in 0..self.nodes.len() {
                    self.turn(place);
                }
            }
        } else {
            self.pass(wait);
        }
    }

    /// Calls that take long come to their end.
    fn release(&mut self) {
        let mut truth = self.witness.truth.lock();
        truth.releases += 1;
        let slow = std::mem::take(&mut truth.slow);
        drop(truth);
        slow.into_iter().for_each(std::task::Waker::wake);
    }

    /// A worker does something, at any node. Whether it did.
    fn work(&mut self, worker: usize, healed: bool) -> bool {
        let (place, now) = (self.any_node(), self.now());
        let Self { workers, nodes, dice, witness, story, .. } = self;
        let living = nodes[place].life.as_ref().filter(|_| !healed || nodes[place].is_awake(now));
        let engine = living.map(|life| life.crank.engine().clone());
        let moved = workers[worker].act(&mut Around { engine, dice, witness, story, now, healed });
        if let Some(wrong) = workers[worker].wrong() {
            self.wrong = Some(wrong);
        }
        moved
    }

    fn audit(&mut self) -> Result<(), Violation> {
        self.store.faults().fail_reads(0);
        self.view.look()?;
        self.view.check_places()?;
        self.view.compare()?;
        checkers::check(&self.view, &self.witness)
    }

    /// Whether nobody was told what they must not be told, and the engine found no fault with itself.
    fn is_nothing_amiss(&mut self) -> Result<(), Violation> {
        if let Some(wrong) = self.wrong.take() {
            return Err(format!("answers: {wrong}"));
        }
        if let Some(panic) = panics::take() {
            return Err(format!("panics: {panic}"));
        }
        let bug = self.nodes.iter().find_map(|node| node.life.as_ref()?.crank.bug());
        bug.map_or(Ok(()), |bug| Err(format!("invariants: {bug}")))
    }
}

/// Rare things that letters tell of.
fn seen(witness: &Witness, letter: &Letter) {
    match letter {
        Letter::Answer { .. } => witness.saw("answer_of_another_node"),
        Letter::Elsewhere { .. } => witness.saw("asked_of_the_wrong_node"),
        Letter::Mail(_) => witness.saw("mail_between_nodes"),
        Letter::Took(_) => witness.saw("shard_taken"),
        Letter::Released(_) => witness.saw("shard_released"),
        Letter::Told { .. } => witness.saw("ledger_told_by_another_node"),
        Letter::Ask { .. }
        | Letter::Joined
        | Letter::Damaged(_)
        | Letter::Forget { .. }
        | Letter::Fetched(_)
        | Letter::Follow { .. }
        | Letter::Moved { .. }
        | Letter::Rules { .. }
        | Letter::Rows { .. } => {}
        Letter::Handed { attempts, .. } if !attempts.is_empty() => witness.saw("attempt_of_another_nodes_desk"),
        Letter::Desk(_)
        | Letter::Work(_)
        | Letter::Seat { .. }
        | Letter::Handed { .. }
        | Letter::WhoWorks { .. }
        | Letter::Workers { .. } => {}
    }
}
