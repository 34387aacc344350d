//! Random questions, waits, answers and crashes: whoever asked is answered, once, and no wait sleeps beside what it waits for.

use std::collections::BTreeMap;

use crate::support::act::{completing, flow, payload, show};
use crate::support::random::config;
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::shard::{Answer, Command, Output, Ticket, Told};
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::update::Requesting;
use abide_kernel::{OpId, OpKind, OpState, Outcome, Phase, Reply, RequestId, Run, RunId, UpdateState};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Act {
    Ask(bool),
    Wait(bool),
    Withdraw(u8),
    Take(u8),
    Answer(u8),
    Suspend,
    Claim,
    Again,
    Flush,
    Crash(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => any::<bool>().prop_map(Act::Ask),
        4 => any::<bool>().prop_map(Act::Wait),
        2 => any::<u8>().prop_map(Act::Withdraw),
        4 => any::<u8>().prop_map(Act::Take),
        3 => any::<u8>().prop_map(Act::Answer),
        3 => Just(Act::Suspend),
        4 => Just(Act::Claim),
        1 => Just(Act::Again),
        1 => Just(Act::Flush),
        1 => any::<bool>().prop_map(Act::Crash),
    ]
}

fn name(which: bool) -> &'static str {
    if which { "one" } else { "two" }
}

struct Play {
    world: World,
    run: RunId,
    /// Who waits for an answer, and with which question.
    asked: BTreeMap<Ticket, (RequestId, bool)>,
    answered: usize,
}

impl Play {
    fn new() -> Self {
        let mut world = World::new(1);
        world.join(Hand::new("w1", &["flow"]));
        let run = world.start(flow());
        world.outputs.clear();
        Self { world, run, asked: BTreeMap::new(), answered: 0 }
    }

    fn ask(&mut self, request: RequestId, which: bool) {
        let asked = Requesting { name: name(which).into(), input: payload("1"), dedup: None, request };
        let command = Command::Update { run: self.run, asked: Box::new(asked), told: Told::Answered };
        let ticket = self.world.submit(command);
        self.asked.insert(ticket, (request, which));
    }

    fn is_claimed(run: &Run) -> bool {
        matches!(run.cursors[0].phase, Phase::Claimed(_))
    }

    /// Waits of the present visit.
    fn waits(run: &Run) -> Vec<(OpId, &OpState)> {
        let ours = run.ops().filter(|(_, op)| op.visit == run.cursors[0].visit);
        ours.filter(|(_, op)| matches!(op.kind, OpKind::Update { .. })).map(|(id, op)| (id, &op.state)).collect()
    }

    fn record(&mut self, entries: Vec<Entry>) {
        let claim = self.world.dispatches[&self.run].claim.number;
        let recording = Box::new(Recording { claim, token: token("w1"), entries });
        let answer = self.world.ask(Command::Record { run: self.run, recording });
        assert!(matches!(answer, Answer::Recorded { .. }), "{answer:?}");
    }

    fn complete(&mut self, outcome: Outcome, entries: Vec<Entry>) {
        let mut completing = completing(&self.world, self.run, outcome);
        completing.entries = entries;
        let answer = self.world.ask(Command::Complete { run: self.run, completing });
        assert!(matches!(answer, Answer::Recorded { .. }), "{answer:?}");
    }

    fn obey(&mut self, act: &Act) {
        let shown = show(&mut self.world, self.run);
        let waits = Self::waits(&shown);
        let pick = |n: u8, fits: &dyn Fn(&OpState) -> bool| {
            let fitting: Vec<OpId> = waits.iter().filter(|(_, state)| fits(state)).map(|(id, _)| *id).collect();
            (!fitting.is_empty()).then(|| fitting[usize::from(n) % fitting.len()])
        };
        let seen = |state: &OpState| matches!(state, OpState::Done { when, .. } if when.seen > 0);
        let unseen = |state: &OpState| matches!(state, OpState::Done { when, .. } if when.seen == 0);
        let claimed = Self::is_claimed(&shown);
        match act {
            Act::Ask(which) => {
                let request = self.world.request();
                self.ask(request, *which);
            }
            Act::Claim => {
                self.world.claim("w1", 1);
            }
            Act::Flush => self.world.flush(),
            Act::Crash(late) => {
                self.world.crash(if *late { Crash::AfterAppend } else { Crash::BeforeAppend });
                for ticket in std::mem::take(&mut self.world.lost) {
                    let (request, which) = self.asked.remove(&ticket).expect("somebody asked");
                    self.ask(request, which);
                }
            }
            _ if !claimed => {}
            Act::Wait(which) => {
                let what = Wanted::Update { name: name(*which).into(), deadline: None };
                let op = shown.next_op();
                self.record(vec![Entry::Intend { op, key: format!("wait {op}").into(), input: 0, what }]);
            }
            Act::Withdraw(n) => {
                if let Some(op) = pick(*n, &|_| true) {
                    self.record(vec![Entry::Withdraw { op }]);
                }
            }
            Act::Take(n) => {
                if let Some(op) = pick(*n, &unseen) {
                    self.record(vec![Entry::See { op }]);
                }
            }
            Act::Answer(n) => {
                let given = |op: &OpId| matches!(shown.op(*op).map(|op| &op.kind), Some(OpKind::Update { answered, .. }) if !answered);
                if let Some(op) = pick(*n, &seen).filter(given) {
                    self.record(vec![Entry::Answer { op, reply: Reply::Value(payload("1")), unread: false }]);
                }
            }
            Act::Suspend => {
                if waits.iter().any(|(_, state)| **state == OpState::Open) {
                    self.complete(Outcome::Suspend { seen: shown.ops_ended }, vec![]);
                }
            }
            Act::Again => {
                let open = waits.iter().filter(|(_, state)| **state == OpState::Open);
                let entries = open.map(|(op, _)| Entry::Withdraw { op: *op }).collect();
                self.complete(Outcome::ContinueAsNew { input: payload("2") }, entries);
            }
        }
        self.listen();
    }

    fn listen(&mut self) {
        for output in std::mem::take(&mut self.world.outputs) {
            if let Output::Answer(ticket, answer) = output
                && self.asked.remove(&ticket).is_some()
            {
                assert!(matches!(answer, Answer::Answered(_)), "{answer:?}");
                self.answered += 1;
            }
        }
    }

    /// The code waits for everything once more and answers it all: nobody is left.
    fn finish(&mut self, asked: usize) {
        // Wherever it is parked, it waits for one of these.
        self.obey(&Act::Ask(true));
        self.obey(&Act::Ask(false));
        let asked = asked + 2;
        for _ in 0..asked {
            self.obey(&Act::Claim);
            let shown = show(&mut self.world, self.run);
            let waits = Self::waits(&shown);
            let done: Vec<OpId> =
                waits.iter().filter(|(_, state)| matches!(state, OpState::Done { .. })).map(|(id, _)| *id).collect();
            let waiting = shown.updates.iter().filter(|update| matches!(update.state, UpdateState::Waiting { .. }));
            let names: Vec<bool> = waiting.map(|update| *update.name == *name(true)).collect();
            names.into_iter().for_each(|which| self.obey(&Act::Wait(which)));
            for n in 0..done.len() as u8 {
                self.obey(&Act::Take(0));
                self.obey(&Act::Answer(n));
            }
        }
        check::check(&self.world);
        assert!(self.asked.is_empty(), "{:?} were never answered", self.asked);
        assert_eq!(self.answered, asked);
    }
}

proptest! {
    #![proptest_config(config(60, 17))]

    /// AB-14: whatever happens in whatever order, whoever asked is answered, and once.
    #[test]
    fn nobody_who_asked_is_left(acts in proptest::collection::vec(act(), 1..40)) {
        let mut play = Play::new();
        for act in &acts {
            play.obey(act);
            check::check(&play.world);
        }
        let asked = acts.iter().filter(|act| matches!(act, Act::Ask(_))).count();
        play.finish(asked);
    }
}
