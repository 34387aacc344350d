//! Workers outside of the nodes, who ask at their desks: they die with what they hold, are away beyond their leases, hang
//! up, answer late, twice, at another node, and under a token that is not theirs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use abide::{ErrorInfo, Refusal, RetryPolicy, RunId, Status, Timestamp};
use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::progress::Progressing;
use abide_kernel::{Claimant, Outcome, TokenHash};
use abide_runtime::{Claiming, Engine, Offer, Unanswered};

use crate::asking::{Deed, Waiting};
use crate::dice::Dice;
use crate::nodes::LEASE_MS;
use crate::parcels::{self, Attempt, Next, Posting};
use crate::story::Story;
use crate::truth::{Acknowledged, Witness};

/// Reports that a worker remembers, and may send again.
const SAID_MAX: usize = 8;

/// What is said of an attempt.
#[derive(Clone)]
struct Said {
    run: RunId,
    claim: u32,
    command: Command,
    /// Whether it is under the token of another.
    forged: bool,
}

impl Said {
    fn word(&self) -> String {
        let verb = match &self.command {
            Command::Complete { .. } => "a completion",
            Command::Fail { .. } => "a failure",
            Command::Record { .. } => "an intent",
            Command::GiveBack { .. } => "what it gives back",
            _ => "a heartbeat",
        };
        let forged = if self.forged { ", forged," } else { "" };
        format!("{verb}{forged} under claim {} of {}", self.claim, self.run)
    }
}

/// A report on its way.
struct Report {
    said: Said,
    answer: Waiting<Result<Vec<Answer>, Unanswered>>,
}

/// A worker.
pub(crate) struct Worker {
    place: usize,
    token: TokenHash,
    /// Until when it does nothing.
    away_until: i64,
    asks: Option<Waiting<Vec<Dispatch>>>,
    holds: Vec<Attempt>,
    reports: Vec<Report>,
    /// What it said lately.
    said: VecDeque<Said>,
    /// Claims whose ends were recorded when it said so, and whether as something new.
    recorded: BTreeMap<(RunId, u32), bool>,
    /// What must not have been answered so.
    wrong: Option<String>,
}

/// What a worker needs of its world.
pub(crate) struct Around<'a> {
    /// A node that it may talk to.
    pub(crate) engine: Option<Arc<Engine>>,
    pub(crate) dice: &'a mut Dice,
    pub(crate) witness: &'a Witness,
    pub(crate) story: &'a mut Story,
    pub(crate) now: i64,
    pub(crate) healed: bool,
}

impl Worker {
    /// A worker of one tenant, or of all.
    pub(crate) fn new(place: usize, dice: &mut Dice) -> Self {
        Self {
            place,
            token: TokenHash(u128::from(dice.number()) << 1),
            away_until: i64::MIN,
            asks: None,
            holds: Vec::new(),
            reports: Vec::new(),
            said: VecDeque::new(),
            recorded: BTreeMap::new(),
            wrong: None,
        }
    }

    /// Whether it waits to hear what came of a report.
    pub(crate) fn waits(&self) -> bool {
        !self.reports.is_empty()
    }

    /// An answer that must not have been given.
    pub(crate) fn wrong(&mut self) -> Option<String> {
        self.wrong.take()
    }

    /// Does something, perhaps. Whether it did.
    pub(crate) fn act(&mut self, around: &mut Around<'_>) -> bool {
        let heard = self.hear(around);
        if around.now < self.away_until && !around.healed {
            return heard;
        }
        if !around.healed && self.misbehaves(around) {
            return true;
        }
        let Some(engine) = around.engine.clone() else { return heard };
        if self.holds.is_empty() {
            let asks = self.asks.is_none() && self.ask(&engine, around);
            return asks || heard;
        }
        self.go_on(&engine, around) || heard
    }

    /// Asks for attempts.
    fn ask(&mut self, engine: &Engine, around: &mut Around<'_>) -> bool {
        let offer = self.offer(around.dice);
        match engine.claim(&offer) {
            Ok(claiming) => self.sit(claiming),
            Err(_) => false,
        }
    }

    fn sit(&mut self, claiming: Claiming) -> bool {
        let given = async move { claiming.work().await.map_or_else(|_| Vec::new(), abide_runtime::Work::take) };
        self.asks = Some(Waiting::new(given));
        true
    }

    /// The tenant that it works for, where that is not all of them.
    fn namespace(&self) -> Option<&'static str> {
        (self.place == 1).then_some("default")
    }

    fn offer(&self, dice: &mut Dice) -> Offer {
        Offer {
            namespace: self.namespace().map(Into::into),
            queues: vec!["default".into()],
            definitions: vec![parcels::definition()],
            by: Claimant::new(format!("worker-{}", self.place).into(), self.token, LEASE_MS as u64, None),
            most: 1 + dice.below(3) as usize,
            waits: true,
        }
    }

    /// What has come for it.
    fn hear(&mut self, around: &mut Around<'_>) -> bool {
        let mut heard = false;
        if let Some(given) = self.asks.as_mut().and_then(Waiting::poll) {
            self.asks = None;
            heard = !given.is_empty();
            if heard {
                around.witness.saw("attempt_at_a_desk");
            }
            for attempt in &given {
                let tenant = &attempt.started.spec.namespace;
                if self.namespace().is_some_and(|ours| *ours != **tenant) {
                    self.wrong = Some(format!("worker {} is given an attempt of {tenant}", self.place));
                }
                let (run, claim) = (attempt.claim.run, attempt.claim.number);
                let told = || format!("worker {} is given {} of {run} under claim {claim}", self.place, attempt.step);
                around.story.tell(around.now, told);
            }
            self.holds.extend(given.into_iter().map(Attempt::new));
        }
        let mut index = 0;
        while index < self.reports.len() {
            let Some(answer) = self.reports[index].answer.poll() else {
                index += 1;
                continue;
            };
            heard = true;
            let said = self.reports.remove(index).said;
            match answer.ok().and_then(|mut answers| answers.pop()) {
                // Nobody knows: it is said again, perhaps.
                None | Some(Answer::Refused(Refusal::Closed { .. } | Refusal::Unknown)) => {
                    self.intent_answered(&said, Some(false));
                    self.remember(said);
                }
                Some(answer) => self.answered(said, &answer, around),
            }
        }
        heard
    }

    fn answered(&mut self, said: Said, answer: &Answer, around: &mut Around<'_>) {
        let witness = around.witness;
        around.story.answer(around.now, || format!("worker {} hears of {}: {answer:?}", self.place, said.word()));
        let verb = match said.command {
            Command::Complete { .. } | Command::Fail { .. } => "report",
            Command::Record { .. } => "intend",
            _ => "keep",
        };
        let well = !matches!(answer, Answer::Refused(_));
        *witness.truth.lock().verbs.entry((verb, well)).or_default() += 1;
        if said.forged {
            if well {
                self.wrong = Some(format!("{} was answered with {answer:?}", said.word()));
            }
            witness.saw(match answer {
                Answer::Refused(Refusal::InDoubt { .. }) => "doubted_effect_refused",
                _ => "report_of_another_refused",
            });
            return;
        }
        self.intent_answered(&said, if well { Some(true) } else { None });
        match answer {
            Answer::Recorded { duplicate, .. } if verb == "report" => {
                witness.acknowledge(Acknowledged::Reported { run: said.run, claim: said.claim });
                if *duplicate {
                    witness.saw("report_repeated");
                }
                let new = self.recorded.entry((said.run, said.claim)).or_insert(false);
                let purged = witness.truth.lock().asks.contains_key(&(said.run, Deed::Purge));
                if !duplicate && std::mem::replace(new, true) && !purged {
                    self.wrong = Some(format!("claim {} of {} ended twice as something new", said.claim, said.run));
                }
            }
            Answer::Refused(Refusal::LeaseExpired { .. } | Refusal::StaleClaim { current: None, .. }) => {
                witness.saw("report_late");
            }
            Answer::Refused(Refusal::StaleClaim { current: Some(_), .. }) => {
                witness.saw("report_late");
                witness.saw("claim_of_another_now");
            }
            Answer::Refused(Refusal::RunOver { status: Status::Cancelled, .. } | Refusal::Cancelling { .. })
                if verb == "report" =>
            {
                witness.saw("cancel_overtakes_a_report");
            }
            _ => {}
        }
        self.remember(said);
    }

    /// Whether an intent is durable: yes, nobody knows, or it was refused and the attempt is over.
    fn intent_answered(&mut self, said: &Said, durable: Option<bool>) {
        if !matches!(said.command, Command::Record { .. }) {
            return;
        }
        let ours = |held: &Attempt| (held.given.claim.run, held.given.claim.number) == (said.run, said.claim);
        let Some(place) = self.holds.iter().position(ours) else { return };
        let effect = &mut self.holds[place].effect;
        match (*effect, durable) {
            (Posting::Intended(op), Some(true)) => *effect = Posting::Allowed(op),
            (Posting::Intended(op), Some(false)) => *effect = Posting::Wanted(op),
            (_, None) => drop(self.holds.remove(place)),
            _ => {}
        }
    }

    fn remember(&mut self, said: Said) {
        self.said.push_back(said);
        if self.said.len() > SAID_MAX {
            self.said.pop_front();
        }
    }

    /// Something that a good worker does not do. Whether it was that.
    fn misbehaves(&mut self, around: &mut Around<'_>) -> bool {
        let often = around.witness.profile().worker;
        if !around.dice.chance(often) {
            return false;
        }
        match around.dice.weighted(&[3, 4, 4, 8, 6]) {
            0 => {
                around.witness.strike("worker_dies");
                around.story.tell(around.now, || format!("worker {} dies", self.place));
                let recorded = std::mem::take(&mut self.recorded);
                *self = Self { recorded, ..Self::new(self.place, around.dice) };
            }
            1 => {
                around.witness.strike("worker_away");
                self.away_until = around.now + LEASE_MS + around.dice.below(60_000) as i64;
                around.story.tell(around.now, || format!("worker {} is away until {}", self.place, self.away_until));
            }
            2 => {
                around.witness.strike("worker_hangs_up");
                self.asks = None;
            }
            3 => return self.say_again(around),
            _ => return self.forge(around),
        }
        true
    }

    /// Says again what it said before.
    fn say_again(&mut self, around: &mut Around<'_>) -> bool {
        let place = around.dice.below(self.said.len() as u64) as usize;
        let (Some(said), Some(engine)) = (self.said.get(place).cloned(), around.engine.clone()) else { return false };
        around.witness.strike("report_twice");
        self.report(&engine, said, None);
        true
    }

    /// Says what nobody may say: that an attempt is over, under a token that is not of its claim, or that an effect begins
    /// that is in doubt.
    fn forge(&mut self, around: &mut Around<'_>) -> bool {
        let (Some(held), Some(engine)) = (self.holds.first(), around.engine.clone()) else { return false };
        let command = match held.effect {
            Posting::Doubted(op) => {
                around.witness.strike("doubt_ignored");
                held.intend(op, self.token)
            }
            _ => {
                around.witness.strike("report_forged");
                let outcome = Outcome::Done { result: parcels::number(666) };
                held.complete(TokenHash(self.token.0 ^ 1), outcome, Vec::new())
            }
        };
        let said = said(held, command, true);
        self.report(&engine, said, None);
        true
    }

    /// Goes on with one of the attempts that it holds.
    fn go_on(&mut self, engine: &Engine, around: &mut Around<'_>) -> bool {
        let place = around.dice.below(self.holds.len() as u64) as usize;
        if !around.healed && self.something_else(place, engine, around) {
            return true;
        }
        let now = Timestamp(around.now);
        let run = self.holds[place].given.claim.run;
        match self.holds[place].next(self.token, now) {
            Next::Intend(command) => {
                let said = said(&self.holds[place], command, false);
                self.report(engine, said, None);
            }
            Next::Wait => return false,
            Next::Call => {
                let worker = format!("worker-{}", self.place).into();
                around.witness.calls(run, Some(parcels::EFFECT), abide::Policy::UnsafeOnce, Some(worker));
            }
            Next::Return(command) => {
                let held = self.holds.remove(place);
                let said = said(&held, command, false);
                // What follows is asked for with the same breath.
                let next = self.asks.is_none() && around.dice.chance(500);
                let offer = next.then(|| self.offer(around.dice));
                self.report(engine, said, offer.as_ref());
                if next {
                    around.witness.saw("asked_with_a_report");
                }
            }
        }
        true
    }

    /// What a good worker does beside its work. Whether it did something.
    fn something_else(&mut self, place: usize, engine: &Engine, around: &mut Around<'_>) -> bool {
        let held = &self.holds[place];
        let (claim, token) = (held.given.claim, self.token);
        let command = match around.dice.weighted(&[70, 10, 6, 8, 5]) {
            1 => Command::Heartbeat { claim, token },
            2 => {
                let progressing = Progressing { name: "packed".into(), value: parcels::number(1) };
                Command::Progress { claim, token, progressing: Box::new(progressing) }
            }
            // What it may have called is over by its end alone.
            3 if !held.has_begun() => {
                let failing = Failing {
                    claim: claim.number,
                    token,
                    error: Arc::new(ErrorInfo::retryable("torn", "the paper was torn")),
                    retry: Some(RetryPolicy { retries_max: Some(6), ..RetryPolicy::exponential(1_000) }),
                    seed: 0,
                    entries: Vec::new(),
                    reopen: Vec::new(),
                    set_aside: false,
                };
                Command::Fail { run: claim.run, failing: Box::new(failing) }
            }
            4 if !held.has_begun() => Command::GiveBack { claim, token },
            _ => return false,
        };
        let ends = matches!(command, Command::Fail { .. } | Command::GiveBack { .. });
        let said = said(held, command, false);
        self.report(engine, said, None);
        if ends {
            self.holds.remove(place);
        }
        true
    }

    fn report(&mut self, engine: &Engine, said: Said, next: Option<&Offer>) {
        let (answer, seated) = engine.report(vec![(said.run.slot(), said.command.clone())], next);
        if let Some(Ok(claiming)) = seated {
            self.sit(claiming);
        }
        self.reports.push(Report { said, answer: Waiting::new(answer) });
    }
}

fn said(held: &Attempt, command: Command, forged: bool) -> Said {
    Said { run: held.given.claim.run, claim: held.given.claim.number, command, forged }
}
