//! The world of a seed: one node at a time over a store that outlives it, clients who ask, and faults. First everything
//! goes wrong that can; then all is healed, and everything must come to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide::{Client, Clock, RunId, Status};
use abide_runtime::{Config, Crank, Entropy, Turned};
use abide_store::memory::{MemoryStore, WriteFault};

use crate::Violation;
use crate::asking::{Asked, Question, Told};
use crate::checkers::{self, View};
use crate::dice::Dice;
use crate::profile::Profile;
use crate::story::Story;
use crate::truth::{Acknowledged, Witness};
use crate::workflows;

/// When time begins: the first day of 2030.
const BEGINNING_MS: i64 = 1_893_456_000_000;
/// How long a claim lasts.
const LEASE_MS: i64 = 30_000;
/// Events between two looks at everything.
const AUDIT_EVERY: u64 = 64;
/// Rounds of the healed world after which what has not ended never will.
const ROUNDS_MAX: u32 = 400;
/// Turns of the crank in a row after which the node does not come to rest.
const TURNS_MAX: u32 = 100_000;

/// A node that lives.
struct Node {
    crank: Crank,
    client: Client,
}

/// A world.
pub(crate) struct World {
    seed: u64,
    dice: Dice,
    profile: Profile,
    witness: Witness,
    store: MemoryStore,
    clock: Arc<AtomicI64>,
    node: Option<Node>,
    asked: Vec<Asked>,
    /// Questions that were not answered, to be asked again.
    unanswered: Vec<Question>,
    runs: Vec<RunId>,
    questions: u64,
    view: View,
    pub(crate) story: Story,
}

impl World {
    /// The world of a seed, before anything has happened.
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let mut dice = Dice::new(seed);
        let profile = Profile::draw(&mut dice);
        let witness = Witness::new(seed, &profile);
        let store = MemoryStore::new(profile.shards);
        Self {
            seed,
            dice,
            witness,
            view: View::new(store.clone()),
            store,
            clock: Arc::new(AtomicI64::new(BEGINNING_MS)),
            node: None,
            asked: Vec::new(),
            unanswered: Vec::new(),
            runs: Vec::new(),
            questions: 0,
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
            if event % AUDIT_EVERY == AUDIT_EVERY - 1 {
                self.audit()?;
            }
        }
        self.heal()?;
        self.audit()
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

    fn now(&self) -> i64 {
        self.clock.load(Ordering::Acquire)
    }

    fn pass(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::AcqRel);
    }

    /// One event.
    fn happen(&mut self) -> Result<(), Violation> {
        if self.node.as_ref().is_none_or(|node| node.crank.closed().is_some()) {
            self.open()?;
        }
        self.strike();
        match self.dice.weighted(&[60, 18, 8, 5, 3]) {
            0 => {
                for _ in 0..=self.dice.below(6) {
                    self.turn();
                }
            }
            1 => self.ask_something(),
            2 => {
                let ms = self.dice.below(90_000) as i64;
                self.pass(ms);
            }
            3 => self.release(),
            _ => self.skip(),
        }
        self.hear();
        Ok(())
    }

    /// Something goes wrong, perhaps.
    fn strike(&mut self) {
        let Profile { crash, append, flush, read, jump, pause, .. } = self.profile;
        let faults = self.store.faults();
        if self.dice.chance(append) {
            let fault = WriteFault::ALL[self.dice.below(WriteFault::ALL.len() as u64) as usize];
            self.witness.strike(match fault {
                WriteFault::Refused => "append_refused",
                WriteFault::UnknownWritten => "append_unknown_written",
                WriteFault::UnknownLost => "append_unknown_lost",
                WriteFault::FatalWritten => "append_fatal_written",
                WriteFault::FatalLost => "append_fatal_lost",
            });
            self.story.tell(self.now(), || format!("the next append: {fault:?}"));
            faults.fail_append(fault);
        }
        if self.dice.chance(flush) {
            let fault = *self.dice.pick(&WriteFault::ALL).unwrap_or(&WriteFault::Refused);
            self.witness.strike("flush");
            faults.fail_flush(fault);
        }
        if self.dice.chance(read) {
            self.witness.strike("read");
            faults.fail_reads(1);
        }
        if self.dice.chance(jump) {
            self.witness.strike("clock_jump");
            let hours = self.dice.below(30) as i64 - 4;
            self.story.tell(self.now(), || format!("the clock jumps by {hours} hours"));
            self.pass(hours * 3_600_000);
        }
        if self.dice.chance(pause) {
            self.witness.strike("pause");
            let ms = LEASE_MS + self.dice.below(100_000) as i64;
            self.pass(ms);
        }
        if self.dice.chance(crash) {
            self.crash();
        }
    }

    /// The node dies. What it was asked is not answered.
    fn crash(&mut self) {
        self.witness.strike("crash");
        self.story.tell(self.now(), || "the node dies".into());
        self.end_node();
        if self.dice.chance(self.profile.lose_index) {
            self.witness.strike("index_lost");
            self.store.faults().lose_index();
        }
    }

    fn end_node(&mut self) {
        for asked in self.asked.drain(..) {
            self.unanswered.push(asked.question);
        }
        if let Some(node) = self.node.take() {
            node.crank.engine().crash();
        }
        let mut truth = self.witness.truth.lock();
        truth.life += 1;
        let slow = std::mem::take(&mut truth.slow);
        drop(truth);
        drop(slow);
    }

    /// Opens the store with a new node, as often as it takes.
    fn open(&mut self) -> Result<(), Violation> {
        self.end_node();
        for _ in 0..50 {
            let life = self.witness.truth.lock().life;
            let mut config = Config::default();
            config.node = format!("node-{life}");
            config.programs = workflows::programs(&self.witness);
            config.clock = Clock::Manual(self.clock.clone());
            config.entropy = Entropy::seeded(self.seed ^ u64::from(life) << 32);
            config.lease = Duration::from_millis(LEASE_MS as u64);
            config.flush_runs = self.profile.flush_runs;
            match Crank::open(Box::new(self.store.clone()), config) {
                Ok(crank) => {
                    let client = Client::new(crank.engine().clone());
                    self.node = Some(Node { crank, client });
                    return Ok(());
                }
                Err(error) => self.story.tell(self.now(), || format!("the store does not open: {error}")),
            }
        }
        Err("the store could not be opened in fifty tries".into())
    }

    fn turn(&mut self) -> Turned {
        let Some(node) = &self.node else { return Turned::Rests(None) };
        node.crank.turn()
    }

    /// Time passes to when something is due.
    fn skip(&mut self) {
        if let Turned::Rests(Some(at)) = self.turn() {
            self.pass((at.0 - self.now()).max(0));
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
        self.story.tell(self.now(), || format!("ask {question:?}"));
        if let Some(node) = &self.node {
            self.asked.push(Asked::new(question, node.client.clone()));
        }
    }

    fn question(&mut self) -> Question {
        let number = self.questions;
        let Some(run) = self.dice.pick(&self.runs).copied() else { return self.start() };
        match self.dice.weighted(&[30, 22, 4, 8, 10, 8, 6, 4, 4, 10]) {
            0 => self.start(),
            1 => {
                let name = if self.dice.chance(500) { "paid" } else { "go" };
                Question::Signal { run, name, dedup: format!("signal-{number}") }
            }
            2 => Question::Cancel { run },
            3 => Question::Update { run, dedup: format!("update-{number}"), input: number },
            4 => Question::Decide { run, approve: self.dice.chance(800) },
            5 => Question::Resolve { run, again: self.dice.chance(400) },
            6 => Question::Letter { run, requeue: self.dice.chance(700) },
            7 => Question::Purge { run },
            8 => Question::Compact { run },
            _ => Question::Result { run },
        }
    }

    fn start(&mut self) -> Question {
        let workflow = if self.dice.chance(600) { "trip" } else { "order" };
        let key = self.dice.chance(400).then(|| format!("key-{}", self.dice.below(5)));
        // The same key with another input is refused, whether or not the run is to be reused.
        let input = if key.is_some() { self.dice.below(2) } else { self.dice.below(256) };
        Question::Start { workflow, input, key, reuse: self.dice.chance(500) }
    }

    /// Whoever was answered hears it, unless the answer is lost.
    fn hear(&mut self) {
        let mut index = 0;
        while index < self.asked.len() {
            let Some(told) = self.asked[index].poll(&self.witness) else {
                index += 1;
                continue;
            };
            let asked = self.asked.remove(index);
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
                Told::Nothing => self.unanswered.push(asked.question),
            }
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
            (Question::Signal { .. }, Told::No(_)) => self.witness.saw("signal_after_the_end"),
            (Question::Update { .. }, Told::So(_)) => self.witness.saw("update_answered"),
            _ => {}
        }
    }

    fn learn(&mut self, what: Acknowledged) {
        match &what {
            Acknowledged::Started { run, .. } if !self.runs.contains(run) => self.runs.push(*run),
            Acknowledged::Purged { run } => {
                self.runs.retain(|known| known != run);
                self.witness.truth.lock().purged.insert(*run);
            }
            _ => {}
        }
        self.witness.acknowledge(what);
    }

    fn audit(&mut self) -> Result<(), Violation> {
        self.store.faults().fail_reads(0);
        self.view.look()?;
        checkers::check(&self.view, &self.witness)
    }

    /// Nothing goes wrong any more, and whoever waits for somebody is answered: everything must come to its end.
    fn heal(&mut self) -> Result<(), Violation> {
        self.story.tell(self.now(), || "all is healed".into());
        self.store.faults().heal();
        self.witness.truth.lock().healed = true;
        self.open()?;
        for round in 0..ROUNDS_MAX {
            self.settle()?;
            self.store.faults().fail_reads(0);
            self.view.look()?;
            let open = self.view.open_runs();
            if open.is_empty() {
                return checkers::projection::agrees(&mut self.view, &mut self.store);
            }
            for (run, status) in open {
                let number = u64::from(round);
                match status {
                    Status::AwaitingDecision => self.ask(Question::Decide { run, approve: true }),
                    Status::InDoubt => self.ask(Question::Resolve { run, again: round % 2 == 0 }),
                    Status::DeadLettered => self.ask(Question::Letter { run, requeue: round % 3 == 0 }),
                    Status::AwaitingSignal => {
                        self.ask(Question::Signal { run, name: "paid", dedup: format!("healed-{number}") });
                    }
                    _ => {}
                }
            }
            self.settle()?;
            self.skip();
        }
        let open = self.view.open_runs();
        Err(format!("liveness: after {ROUNDS_MAX} rounds without faults these have not ended: {open:?}"))
    }

    /// Turns until nothing more happens by itself.
    fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..TURNS_MAX {
            let turned = self.turn();
            self.release();
            self.hear();
            if let Turned::Rests(_) = turned
                && let Turned::Rests(_) = self.turn()
            {
                return Ok(());
            }
        }
        Err(format!("liveness: the node does not come to rest in {TURNS_MAX} turns"))
    }
}
