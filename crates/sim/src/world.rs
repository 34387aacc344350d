//! The world of a seed: nodes over a store that outlives them, clients who ask, and faults. First everything
//! goes wrong that can; then all is healed, and everything must come to its end.

mod heal;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide::{RequestId, RunId, Timestamp};
use abide_runtime::{Letter, Turned};
use abide_store::memory::{MemoryStore, WriteFault};

use crate::Violation;
use crate::asking::{Asked, Pace, Question, Told};
use crate::checkers::{self, View};
use crate::dice::Dice;
use crate::disk::Slow;
use crate::net::{Drawn, Net};
use crate::nodes::{BEGINNING_MS, LEASE_MS, NODE_LEASE_MS, Node};
use crate::panics;
use crate::profile::Profile;
use crate::story::Story;
use crate::truth::{Acknowledged, Witness};
use crate::workers::{Around, Worker};
use crate::workflows::AGAIN;

/// Events between two looks at everything.
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
    pub(crate) story: Story,
}

impl World {
    /// The world of a seed, before anything has happened.
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let mut dice = Dice::new(seed);
        let profile = Profile::draw(&mut dice);
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
            story: Story::new(tells, BEGINNING_MS),
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
            if event % AUDIT_EVERY == AUDIT_EVERY - 1 {
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
        ];
        faults.extend(struck.appends.into_iter().map(|(fault, times)| {
            let name = match fault {
                WriteFault::Refused => "append_refused",
                WriteFault::UnknownWritten => "append_unknown_written",
                WriteFault::UnknownLost => "append_unknown_lost",
                WriteFault::UnknownTorn => "append_torn",
                WriteFault::FatalWritten => "append_fatal_written",
                WriteFault::FatalLost => "append_fatal_lost",
            };
            (name, times)
        }));
        let mut truth = self.witness.truth.lock();
        for (fault, times) in faults.into_iter().filter(|(_, times)| *times > 0) {
            *truth.faults.entry(fault).or_default() += times;
        }
    }

    /// What was witnessed.
    pub(crate) fn witness(&self) -> &Witness {
        &self.witness
    }

    /// A number that two lives of the same seed share, unless something of them is not of the seed.
    pub(crate) fn hash(&mut self) -> u64 {
        self.view.hash() ^ self.questions.wrapping_mul(31)
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
        self.strike(place);
        if !self.late.is_empty() && self.dice.chance(LATE) {
            self.write_late();
        }
        match self.dice.weighted(&[60, 24, 8, 5, 3, 30, 20]) {
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
            _ => {
                for _ in 0..=self.dice.below(8) {
                    self.carry(false);
                }
            }
        }
        self.hear();
        Ok(())
    }

    /// Something goes wrong, perhaps.
    fn strike(&mut self, place: usize) {
        self.strike_store();
        let Profile { crash, jump, pause, partition, leave, nodes, .. } = self.profile;
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
            self.story.tell(self.now(), || format!("the next to take or release a shard, or to leave: {fault:?}"));
            faults.fail_ownership(fault);
        }
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
    fn bury(&mut self, place: usize) {
        let Some(slow) = self.nodes[place].die(&self.net) else { return };
        let fate = ["write_lost", "write_done", "write_late"];
        let fate = fate[self.dice.below(if self.profile.nodes > 1 { 3 } else { 2 }) as usize];
        self.story.tell(self.now(), || format!("node {place} dies while it writes ({:?}): {fate}", slow.stage()));
        self.witness.strike(fate);
        match fate {
            "write_late" => self.late.push(slow),
            fate => slow.end(fate == "write_done"),
        }
    }

    /// What a process was writing when it died comes to the store.
    fn write_late(&mut self) {
        let index = self.dice.below(self.late.len() as u64) as usize;
        let refused = self.store.faults().stale_writes();
        self.late.swap_remove(index).end(true);
        if self.store.faults().stale_writes() > refused {
            self.witness.saw("late_write_refused");
        }
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

    fn ask_something(&mut self) {
        let question = match self.unanswered.pop() {
            Some(question) if self.dice.chance(700) => question,
            _ => self.question(),
        };
        let twice = self.dice.chance(self.profile.twice);
        self.ask(question.clone());
        if twice {
            self.witness.strike("request_twice");
            self.ask(question);
        }
    }

    fn ask(&mut self, question: Question) {
        self.questions += 1;
        self.witness.truth.lock().questions = self.questions;
        self.story.tell(self.now(), || format!("ask {question:?}"));
        let place = self.any_node();
        match &self.nodes[place].life {
            Some(life) => {
                if let Question::Purge { run } = &question {
                    // It may be gone before anybody is told.
                    *self.witness.truth.lock().purges.entry(*run).or_default() += 1;
                }
                let engine = life.crank.engine().clone();
                self.asked.push((place, Asked::new(question, life.client.clone(), engine)));
            }
            None => self.unanswered.push(question),
        }
    }

    fn question(&mut self) -> Question {
        let number = self.questions;
        let Some(run) = self.dice.pick(&self.runs).copied() else { return self.start() };
        match self.dice.weighted(&[30, 22, 4, 8, 10, 8, 6, 4, 4, 10, 4, 4]) {
            0 => self.start(),
            1 => {
                let name = if self.dice.chance(500) { "paid" } else { "go" };
                Question::Signal { run, name, dedup: format!("signal-{number}"), asked: number }
            }
            2 => Question::Cancel { run, all: self.dice.chance(300) },
            3 => Question::Update { run, dedup: format!("update-{number}"), input: number },
            4 => Question::Decide { run, approve: self.dice.chance(800) },
            5 => Question::Resolve { run, again: self.dice.chance(400) },
            6 => Question::Letter { run, requeue: self.dice.chance(700) },
            7 => Question::Purge { run },
            8 => Question::Compact { run },
            9 => Question::Forge { run, claim: 1 + self.dice.below(4) as u32 },
            10 => Question::Assign { run, take: self.dice.chance(600) },
            _ => Question::Result { run },
        }
    }

    fn start(&mut self) -> Question {
        let workflow = ["trip", "order", "parcel"][self.dice.weighted(&[55, 30, 15])];
        let key = self.dice.chance(400).then(|| format!("key-{}", self.dice.below(5)));
        // The same key with another input is refused, whether or not the run is to be reused.
        let input = if key.is_some() { self.dice.below(2) } else { self.dice.below(2 * AGAIN) };
        let tenant = if self.dice.chance(300) { "acme" } else { "default" };
        let (reuse, few) = (self.dice.chance(500), self.dice.chance(300));
        let drawn = u128::from(self.dice.number()) << 64 | u128::from(self.dice.number());
        let request = RequestId::new(Timestamp(self.now()), drawn);
        let pace = [Pace::Any, Pace::Later, Pace::Soon][self.dice.weighted(&[75, 15, 10])];
        Question::Start { request, workflow, input, key, reuse, tenant, few, pace }
    }

    /// Whoever was answered hears it, unless the answer is lost.
    fn hear(&mut self) {
        let mut index = 0;
        while index < self.asked.len() {
            let Some(told) = self.asked[index].1.poll(&self.witness) else {
                index += 1;
                continue;
            };
            let (_, asked) = self.asked.remove(index);
            self.take_back(&asked.question, &told);
            if self.dice.chance(self.profile.lost_answer) && !self.witness.truth.lock().healed {
                self.witness.strike("answer_lost");
                self.unanswered.push(asked.question);
                continue;
            }
            self.story.tell(self.now(), || format!("{}: {told:?}", asked.question.verb()));
            self.see(&asked.question, &told);
            match told {
                Told::So(what) => self.learn(what),
                Told::Done | Told::No(_) => {}
                Told::Wrong(what) => self.wrong = Some(what),
                Told::Nothing => self.unanswered.push(asked.question),
            }
        }
    }

    /// What was refused is not done, whether or not whoever asked hears of it.
    fn take_back(&self, question: &Question, told: &Told) {
        if let (Question::Purge { run }, Told::No(_)) = (question, told)
            && let Some(asks) = self.witness.truth.lock().purges.get_mut(run)
        {
            *asks -= 1;
        }
    }

    /// Rare things that clients meet.
    fn see(&self, question: &Question, told: &Told) {
        match (question, told) {
            (Question::Start { reuse: true, .. }, Told::So(Acknowledged::Started { run, .. }))
                if self.runs.contains(run) =>
            {
                self.witness.saw("start_reused");
            }
            (Question::Start { .. }, Told::No(why)) if why.contains("taken") => self.witness.saw("key_taken"),
            (Question::Resolve { .. }, Told::So(_)) => self.witness.saw("doubt_resolved"),
            (Question::Forge { .. }, Told::No(_)) => self.witness.saw("forged_completion_refused"),
            (Question::Signal { .. }, Told::No(_)) => self.witness.saw("signal_after_the_end"),
            (Question::Update { .. }, Told::So(_)) => self.witness.saw("update_answered"),
            _ => {}
        }
    }

    fn learn(&mut self, what: Acknowledged) {
        if let Acknowledged::Started { run, key: None, request, .. } = &what {
            let begun = *self.witness.truth.lock().begun.entry(*request).or_insert(*run);
            if begun != *run {
                self.wrong = Some(format!("{request:?} began {begun}, and then {run}"));
            }
        }
        match &what {
            Acknowledged::Started { run, .. } if !self.runs.contains(run) => self.runs.push(*run),
            Acknowledged::Purged { run } => self.runs.retain(|known| known != run),
            _ => {}
        }
        self.witness.acknowledge(what);
    }

    fn audit(&mut self) -> Result<(), Violation> {
        self.store.faults().fail_reads(0);
        self.view.look()?;
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
