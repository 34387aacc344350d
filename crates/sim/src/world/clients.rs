//! The clients of a world: what they ask, what they hear of it, and what they ask again.

use abide::{RequestId, Timestamp};

use super::World;
use crate::asking::{Asked, Pace, Question, Told};
use crate::truth::Acknowledged;
use crate::workflows::AGAIN;

impl World {
    pub(super) fn ask_something(&mut self) {
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

    pub(super) fn ask(&mut self, question: Question) {
        self.questions += 1;
        self.witness.truth.lock().questions = self.questions;
        self.story.tell(self.now(), || format!("ask {question:?}"));
        let place = self.any_node();
        match &self.nodes[place].life {
            Some(life) => {
                // It may be done before anybody is told.
                question.deed().into_iter().for_each(|deed| self.witness.asks(deed));
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
    pub(super) fn hear(&mut self) {
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
        if let Told::No(_) = told {
            question.deed().into_iter().for_each(|deed| self.witness.refused(&deed));
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
}
