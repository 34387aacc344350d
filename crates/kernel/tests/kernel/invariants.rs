//! What must hold of every run: each rule, broken by hand, is found before anything could be written.

use std::sync::Arc;

use crate::support::act::{complete, completing, done, flow, next, payload, spawn};
use crate::support::{BASE, Hand, World};
use abide_kernel::limits::INBOX_SIGNALS_MAX;
use abide_kernel::shard::Command;
use abide_kernel::transition::manual::Asking;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    End, ManualEnd, ManualKind, Moment, OpState, Outcome, Phase, PlannedStep, RequestId, Run, RunId, Signal, StartSpec,
    Status, Update, UpdateState, WaitKind,
};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

fn intend(op: u32, what: Wanted) -> Entry {
    Entry::Intend { op, key: format!("e{op}").into(), input: 0, what }
}

/// A run that is claimed.
fn claimed() -> (World, RunId) {
    let mut world = world();
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    (world, run)
}

/// A run after one more outcome, with entries of the ledger.
fn after(outcome: Outcome, entries: Vec<Entry>) -> Run {
    let (mut world, run) = claimed();
    let mut completing = completing(&world, run, outcome);
    completing.entries = entries;
    world.ask(Command::Complete { run, completing });
    let folded = world.folded(run).expect("a run");
    assert_eq!(folded.check(), Ok(()), "it is whole before it is broken");
    folded
}

fn executing() -> Run {
    let (world, run) = claimed();
    world.folded(run).expect("a run")
}

fn ended() -> Run {
    after(done(), Vec::new())
}

fn awaiting() -> Run {
    let deadline = Some(Moment::In(50));
    after(Outcome::Await { signals: vec!["go".into()], then: None, deadline, state: payload("1") }, Vec::new())
}

fn asking() -> Run {
    after(Outcome::Suspend { seen: 0 }, vec![intend(1, Wanted::Manual(Box::new(Asking::new(ManualKind::Pause))))])
}

fn ledger(what: Wanted) -> Run {
    after(Outcome::Suspend { seen: 0 }, vec![intend(1, what)])
}

fn signal(id: u64, name: &str) -> Signal {
    Signal { id, name: name.into(), payload: payload("1"), at: BASE }
}

fn update(state: UpdateState) -> Update {
    let (dedup, input_hash, request) = (None, 0, RequestId::new(BASE, 1));
    Update { id: 1, name: "ask".into(), dedup, input_hash, request, at: BASE, state }
}

fn broken(mut run: Run, how: impl FnOnce(&mut Run)) -> String {
    how(&mut run);
    run.check().expect_err("a broken run")
}

fn wait(run: &mut Run) -> &mut abide_kernel::Wait {
    let Phase::Waiting(wait) = &mut run.cursors[0].phase else { panic!("it waits") };
    Arc::make_mut(wait)
}

/// D33: a fold that contradicts itself is found, and says what it is.
#[test]
fn a_run_that_contradicts_itself_is_found() {
    let end = || Some(End { status: Status::Done, at: BASE, request: None });
    let cases = [
        broken(executing(), |run| {
            run.signals = INBOX_SIGNALS_MAX as u64 + 1;
            run.inbox = (1..=run.signals).map(|id| signal(id, "n")).collect();
        }),
        broken(executing(), |run| {
            run.signals = 2;
            run.inbox = vec![signal(2, "n"), signal(1, "n")];
        }),
        broken(executing(), |run| run.inbox = vec![signal(1, "n")]),
        broken(executing(), |run| run.claims = 0),
        broken(executing(), |run| run.cursors[0].claimant = None),
        broken(executing(), |run| run.cursors[0].phase = Phase::Closed),
        broken(executing(), |run| run.cursors[0].phase = Phase::Finished { result: payload("1") }),
        broken(executing(), |run| run.end = end()),
        broken(awaiting(), |run| run.tokens = 0),
        broken(awaiting(), |run| (run.signals, run.inbox) = (1, vec![signal(1, "go")])),
        broken(awaiting(), |run| {
            wait(run).kind = WaitKind::Timer;
            wait(run).until = None;
        }),
        broken(after(spawn(vec![flow()]), Vec::new()), |run| {
            let WaitKind::Children(barrier) = &mut wait(run).kind else { panic!("it waits for children") };
            barrier.pending = 0;
        }),
        broken(asking(), |run| {
            let manual = Arc::make_mut(&mut run.manual);
            manual.push(manual[0].clone());
        }),
        broken(ended(), |run| run.manual = asking().manual),
        broken(asking(), |run| {
            Arc::make_mut(&mut run.ops)[0].state = OpState::Done { when: when(), value: payload("1") }
        }),
        broken(ledger(Wanted::Signal { name: "go".into(), deadline: None }), |run| {
            run.signals = 1;
            run.inbox = vec![signal(1, "go")];
        }),
        broken(ledger(Wanted::Update { name: "ask".into(), deadline: None }), |run| {
            run.updates = vec![update(UpdateState::Waiting { input: payload("1") })];
        }),
        broken(ledger(Wanted::Update { name: "ask".into(), deadline: None }), |run| {
            run.updates = vec![update(UpdateState::Given { op: 1 })];
        }),
    ];
    let expected = [
        "inbox holds 10001 signals",
        "inbox is out of order: 2 to 1 of 2",
        "inbox is out of order: 1 to 1 of 0",
        "claim 1 of 0 has no claimant or was never made",
        "claim 1 of 1 has no claimant or was never made",
        "a cursor is closed, but the run has not ended",
        "every cursor is finished, but the run has not ended",
        "the run has ended, but a cursor is open",
        "wait token 1 was never made",
        "the run waits for a signal that is in its inbox",
        "the run sleeps without an end",
        "the run waits on a satisfied barrier",
        "boundary 1 is open beside boundary 1",
        "the run has ended, but boundary 1 is open",
        "boundary 1 is open, but its entry of the ledger is not",
        "entry 1 waits for signal \"go\", which is in the inbox",
        "the run waits for update 1, which waits for it",
        "update 1 is with entry 1, which did not get it",
    ];
    assert_eq!(cases, expected);
}

fn when() -> abide_kernel::EndedAt {
    abide_kernel::EndedAt { ended: 1, seen: 0, at: BASE }
}

/// What is no contradiction is let be: what was seen before, what another name is for, what a visit that was left waits
/// for, and what nobody waits for once the run has ended.
#[test]
fn what_is_no_contradiction_is_let_be() {
    let fine = |mut run: Run, how: &dyn Fn(&mut Run)| {
        how(&mut run);
        assert_eq!(run.check(), Ok(()));
    };
    let send = |run: &mut Run, name: &str| {
        run.signals = 1;
        run.inbox = vec![signal(1, name)];
    };
    fine(awaiting(), &|run| {
        send(run, "go");
        let WaitKind::Signal { after, .. } = &mut wait(run).kind else { panic!("it waits for a signal") };
        *after = 1;
    });
    fine(awaiting(), &|run| send(run, "other"));
    let waits = || ledger(Wanted::Signal { name: "go".into(), deadline: None });
    fine(waits(), &|run| send(run, "other"));
    fine(waits(), &|run| {
        send(run, "go");
        run.cursors[0].visit += 1;
    });
    fine(ended(), &|run| {
        run.ops = waits().ops;
        run.open = vec![1];
        send(run, "go");
    });
    fine(asking(), &|run| Arc::make_mut(&mut run.manual)[0].end = Some(ManualEnd::Withdrawn));
}

/// A run with several cursors stands where the busiest of them does; a step whose needs are not met is not ready.
#[test]
fn a_graph_stands_where_its_busiest_cursor_does() {
    let mut world = world();
    let plan = |step: &str, needs: &[&str]| PlannedStep {
        step: step.into(),
        needs: needs.iter().map(|need| (*need).into()).collect(),
    };
    let run = world.start(StartSpec { steps: vec![plan("a", &[]), plan("b", &[]), plan("c", &["a"])], ..flow() });
    let mut state = world.folded(run).expect("a run");
    assert_eq!([0, 1, 2].map(|cursor: usize| state.needs_met(&state.cursors[cursor])), [true, true, false]);
    let sleeps = after(Outcome::Sleep { until: Moment::In(50), then: None, state: payload("1") }, Vec::new());
    let (sleeping, signal) = (sleeps.cursors[0].phase.clone(), awaiting().cursors[0].phase.clone());
    let (finished, planned) = (Phase::Finished { result: payload("1") }, Phase::Planned { visible_at: None });
    for (a, b, status, met) in [
        (&sleeping, &signal, Status::Sleeping, false),
        (&signal, &sleeping, Status::AwaitingSignal, false),
        (&sleeping, &finished, Status::Sleeping, false),
        (&sleeping, &planned, Status::Runnable, false),
        (&finished, &sleeping, Status::Runnable, true),
    ] {
        for (cursor, phase) in state.cursors.iter_mut().zip([a, b, &planned]) {
            cursor.phase = phase.clone();
        }
        assert_eq!((state.status(), state.needs_met(&state.cursors[2])), (status, met));
    }
}

/// A run that waits for its ledger stands where a person would look first: at a question, else at what it waited for first.
#[test]
fn a_ledger_stands_where_a_person_would_look() {
    let signal = || Wanted::Signal { name: "go".into(), deadline: None };
    let (timer, child) = (|| Wanted::Timer(Moment::In(50)), || Wanted::Child(Box::new(flow())));
    let asks = || Wanted::Manual(Box::new(Asking::new(ManualKind::Pause)));
    for (waits, status) in [
        ([timer(), signal(), child()], Status::AwaitingSignal),
        ([timer(), child(), signal()], Status::AwaitingChildren),
        ([signal(), asks(), child()], Status::AwaitingDecision),
    ] {
        let entries = waits.into_iter().zip(1..).map(|(what, op)| intend(op, what)).collect();
        assert_eq!(after(Outcome::Suspend { seen: 0 }, entries).status(), status);
    }
}

/// Whatever happens to a claimed run by itself happens when its lease ends, at the latest.
#[test]
fn a_claimed_run_is_due_when_its_lease_ends() {
    assert_eq!(executing().next_due(), Some(BASE.after(1_000)));
    assert_eq!((awaiting().next_due(), ended().next_due()), (Some(BASE.after(50)), None));
    let (mut world, run) = claimed();
    let command = complete(&world, run, next("two"));
    world.ask(command);
    assert_eq!(world.folded(run).expect("a run").next_due(), None, "what can be claimed stands in line");
}
