//! The clients of a world: what they ask, what they hear of it, and what they ask again.

use abide::{Refusal, RequestId, RunId, Timestamp};

use super::World;
use crate::asking::{Asked, Deed, Pace, Question, Told};
use crate::truth::Acknowledged;
use crate::workflows::AGAIN;

impl World {
    pub(super) fn ask_something(&mut self) {
        let question = match self.unanswered.pop() {
            Some(question) if self.dice.chance(700) => question,
            unanswered => {
                self.unanswered.extend(unanswered);
                self.question()
            }
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
                if let Question::Start { request, .. } = &question {
                    *self.witness.truth.lock().starts.entry(*request).or_default() += 1;
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
        match self.dice.weighted(&[30, 22, 4, 8, 10, 8, 6, 4, 4, 10, 4, 2, 4, 4]) {
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
            11 => Question::Settle { nth: number },
            12 => Question::Show { run },
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
            let (place, asked) = &mut self.asked[index];
            // Whoever settles a dead letter looks into the store, and would wait there for a write that waits for the world.
            let waits = matches!(asked.question, Question::Settle { .. }) && self.nodes[*place].writes().is_some();
            let told = if waits { None } else { asked.poll(&self.witness) };
            let Some(told) = told else {
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
            self.story.answer(self.now(), || format!("{}: {told:?}", asked.question.verb()));
            self.see(&asked.question, &told);
            match told {
                Told::So(what) => self.learn(what),
                Told::Done => {}
                Told::No(why, refusal) => self.is_refused(&asked.question, &why, refusal.as_deref()),
                Told::Wrong(what) => self.wrong = Some(what),
                Told::Nothing | Told::Closed => self.unanswered.push(asked.question),
            }
        }
    }

    /// What was refused is not done, whether or not whoever asked hears of it.
    fn take_back(&self, question: &Question, told: &Told) {
        if let Told::No(..) | Told::Closed = told {
            question.deed().into_iter().for_each(|deed| self.witness.refused(&deed));
            if let Question::Start { request, .. } = question
                && let Some(starts) = self.witness.truth.lock().starts.get_mut(request)
            {
                *starts -= 1;
            }
        }
    }

    /// What a refusal says has to be so: a run that somebody was told of is found until somebody asks for its removal, and one
    /// that is over stays so. A start that began a run is not refused when it is asked again, because of the run that it began
    /// itself.
    fn is_refused(&mut self, question: &Question, why: &str, refusal: Option<&Refusal>) {
        match refusal {
            Some(Refusal::NotFound { run }) if self.must_be_there(*run) => {
                self.wrong = Some(format!("{run} was acknowledged, nobody asked for its removal, and {why}"));
            }
            Some(Refusal::RunOver { run, status }) => {
                self.witness.acknowledge(Acknowledged::Over { run: *run, status: *status });
            }
            Some(Refusal::Corrupt { .. }) if self.profile.rot == 0 => {
                self.wrong = Some(format!("nothing was damaged, and {why}"));
            }
            _ => {}
        }
        let Question::Start { request, .. } = question else { return };
        let truth = self.witness.truth.lock();
        let Some(run) = truth.begun.get(request) else { return };
        if why.contains("taken") && !truth.asks.contains_key(&(*run, Deed::Purge)) {
            self.wrong = Some(format!("{request:?} began {run}, and is told: {why}"));
        }
    }

    /// Whether a run is known to all who may be asked: it was acknowledged, and nobody asked for its removal. A node whose
    /// clock is set back believes in its lease for longer than others do, so that what it reads may be old.
    fn must_be_there(&self, run: RunId) -> bool {
        let is_new = self.profile.nodes == 1 || self.profile.jump == 0;
        is_new && self.runs.contains(&run) && !self.witness.truth.lock().asks.contains_key(&(run, Deed::Purge))
    }

    /// Rare things that clients meet.
    fn see(&self, question: &Question, told: &Told) {
        match (question, told) {
            (Question::Start { reuse: true, .. }, Told::So(Acknowledged::Started { run, .. }))
                if self.runs.contains(run) =>
            {
                self.witness.saw("start_reused");
            }
            (_, Told::No(_, Some(refusal))) if matches!(**refusal, Refusal::Corrupt { .. }) => {
                self.witness.saw("damage_met");
            }
            (Question::Start { .. }, Told::No(why, _)) if why.contains("taken") => self.witness.saw("key_taken"),
            (Question::Resolve { .. }, Told::So(_)) => self.witness.saw("doubt_resolved"),
            (Question::Forge { .. }, Told::No(..)) => self.witness.saw("forged_completion_refused"),
            (Question::Signal { .. }, Told::No(_, Some(refusal))) if matches!(**refusal, Refusal::RunOver { .. }) => {
                self.witness.saw("signal_after_the_end");
            }
            (Question::Update { .. }, Told::So(_)) => self.witness.saw("update_answered"),
            _ => {}
        }
    }

    fn learn(&mut self, what: Acknowledged) {
        if let Acknowledged::Started { run, key, request, created, .. } = &what
            && (key.is_none() || *created)
        {
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
