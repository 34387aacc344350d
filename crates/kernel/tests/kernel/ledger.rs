//! The ledger: effects and waits of a step, begun and ended by facts.

use std::sync::Arc;

use crate::support::act::{completing, flow, payload, show, signal};
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::shard::{Answer, Command, Output};
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::resolve::Resolving;
use abide_kernel::{
    ErrorInfo, Moment, OpKind, OpState, Outcome, Payload, Policy, Refusal, Resolution, RunId, Standing, Status,
    Timestamp,
};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// A run whose first step is claimed.
fn claimed(world: &mut World) -> RunId {
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    run
}

fn record(world: &mut World, run: RunId, entries: Vec<Entry>) -> Answer {
    let claim = world.dispatches[&run].claim.number;
    let recording = Box::new(Recording { claim, token: token("w1"), entries });
    world.ask(Command::Record { run, recording })
}

fn intend(op: u32, key: &str, what: Wanted) -> Entry {
    Entry::Intend { op, key: key.into(), input: 7, what }
}

fn ended(world: &World, op: u32, value: &str) -> Entry {
    Entry::End { op, outcome: Ok(payload(value)), at: world.now }
}

fn suspend(world: &mut World, run: RunId, seen: u32, entries: Vec<Entry>) -> Answer {
    let mut completing = completing(world, run, Outcome::Suspend { seen });
    completing.entries = entries;
    world.ask(Command::Complete { run, completing })
}

fn refused(answer: &Answer, code: &str) {
    assert!(matches!(answer, Answer::Refused(refusal) if refusal.code() == code), "expected {code}, found {answer:?}");
}

fn recorded(answer: &Answer) {
    assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
}

/// The worker is lost, and another attempt of the same step is claimed.
fn lose_worker(world: &mut World) {
    world.tick(1_000);
    assert_eq!(world.claim("w1", 1), 1);
}

/// JI-10, JI-11, JI-12, JI-23, JI-24: an intent carries policy and key and stands before the result; both survive.
#[test]
fn an_effect_is_intended_and_then_ends() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(Policy::UnsafeOnce))]));
    let shown = show(&mut world, run);
    assert_eq!(shown.standing(1), Some(Standing::Running));
    assert_eq!(shown.effect_view(1).map(|effect| effect.policy), Some(Policy::UnsafeOnce));
    let end = ended(&world, 1, "17");
    recorded(&record(&mut world, run, vec![end]));
    world.crash(Crash::BeforeAppend);
    let shown = show(&mut world, run);
    assert_eq!(shown.standing(1), Some(Standing::Committed));
    assert!(matches!(&shown.op(1).expect("an entry").state, OpState::Done { value, .. } if value.text() == "17"));
    check::check(&world);
}

/// BU-19, BU-20, BU-21: only the worker that holds the step writes to its ledger, and an end stands.
#[test]
fn the_ledger_has_one_writer_and_an_end_stands() {
    let mut world = world();
    let run = claimed(&mut world);
    let (first, end) = (intend(1, "charge", Wanted::Effect(Policy::Idempotent)), ended(&world, 1, "1"));
    recorded(&record(&mut world, run, vec![first, end.clone()]));
    refused(&record(&mut world, run, vec![end.clone()]), "effect_ended");
    refused(&record(&mut world, run, vec![intend(3, "late", Wanted::Effect(Policy::Pure))]), "invalid");
    let stale = world.dispatches[&run].claim.number;
    lose_worker(&mut world);
    let recording = Box::new(Recording { claim: stale, token: token("w1"), entries: vec![end] });
    refused(&world.ask(Command::Record { run, recording }), "stale_claim");
    check::check(&world);
}

/// JI-15, JI-16, JI-17, JI-18, JI-19, BU-22, D19: what a lost worker began is begun again or not, by its policy.
#[test]
fn what_a_lost_worker_began_goes_by_policy() {
    for policy in Policy::ALL {
        let mut world = world();
        let run = claimed(&mut world);
        recorded(&record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(policy))]));
        lose_worker(&mut world);
        let again = record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(policy))]);
        let end = ended(&world, 1, "2");
        let end = record(&mut world, run, vec![end]);
        if policy.replay_safe() {
            recorded(&again);
            recorded(&end);
            assert_eq!(show(&mut world, run).standing(1), Some(Standing::Committed), "{policy}");
        } else {
            refused(&again, "in_doubt");
            refused(&end, "in_doubt");
            assert_eq!(show(&mut world, run).standing(1), Some(Standing::InDoubt), "{policy}");
        }
        check::check(&world);
    }
}

fn resolving(world: &mut World, how: Resolution, interrupt: Option<u32>) -> Resolving {
    let request = world.request();
    let (actor, roles, note) = ("ada".into(), Vec::new(), Some("seen".into()));
    Resolving { key: "charge".into(), interrupt, how, actor, roles, note, request }
}

/// JI-20, JI-21, JI-26: an answer to the interrupt that waits lets the effect begin once more, and only once.
#[test]
fn a_resolution_answers_one_interrupt() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(Policy::UnsafeOnce))]));
    lose_worker(&mut world);
    recorded(&suspend(&mut world, run, 0, vec![]));
    assert_eq!(show(&mut world, run).status(), Status::InDoubt);
    for wrong in [None, Some(9)] {
        let resolving = Box::new(resolving(&mut world, Resolution::Retry, wrong));
        refused(&world.ask(Command::Resolve { run, resolving }), "wrong_interrupt");
    }
    let retry = Box::new(resolving(&mut world, Resolution::Retry, Some(1)));
    recorded(&world.ask(Command::Resolve { run, resolving: retry.clone() }));
    let twice = world.ask(Command::Resolve { run, resolving: retry });
    assert!(matches!(twice, Answer::Recorded { duplicate: true, .. }), "the same request again: {twice:?}");
    assert_eq!(world.claim("w1", 1), 1);
    recorded(&record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(Policy::UnsafeOnce))]));
    lose_worker(&mut world);
    assert_eq!(show(&mut world, run).standing(1), Some(Standing::InDoubt), "the word was used up");
    let value = Box::new(resolving(&mut world, Resolution::Value(payload("5")), None));
    recorded(&world.ask(Command::Resolve { run, resolving: value }));
    let told = world.outputs.iter().any(|output| matches!(output, Output::Told { id: 1, .. }));
    assert!(told, "the step that executes hears of it");
    let again = Box::new(resolving(&mut world, Resolution::Value(payload("6")), None));
    refused(&world.ask(Command::Resolve { run, resolving: again }), "not_in_doubt");
    check::check(&world);
}

/// D20: an error that may be cured lets the effect begin again with the retry; one that may not stands.
#[test]
fn a_failed_effect_is_begun_again_only_if_it_may_be_cured() {
    for retryable in [true, false] {
        let mut world = world();
        let run = claimed(&mut world);
        let error = Arc::new(ErrorInfo { retryable, ..ErrorInfo::retryable("down", "x") });
        let failed = Entry::End { op: 1, outcome: Err(error), at: world.now };
        recorded(&record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(Policy::Idempotent)), failed]));
        let again = record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(Policy::Idempotent))]);
        if retryable {
            recorded(&again)
        } else {
            refused(&again, "effect_ended")
        }
        check::check(&world);
    }
}

/// SE-30, D9: a suspended step wakes when a wait of its ends: by its signal, its instant, or the wait's deadline.
#[test]
fn a_suspended_step_wakes_with_its_ledger() {
    let mut world = world();
    let run = claimed(&mut world);
    let waits = vec![
        intend(1, "go", Wanted::Signal { name: "go".into(), deadline: None }),
        intend(2, "soon", Wanted::Timer(Moment::In(50))),
        intend(3, "bound", Wanted::Signal { name: "never".into(), deadline: Some(Moment::In(80)) }),
    ];
    recorded(&suspend(&mut world, run, 0, waits));
    assert_eq!(show(&mut world, run).status(), Status::AwaitingSignal);
    world.flush();
    assert_eq!(world.resident_runs(), 0, "it leaves memory");
    world.tick(50);
    assert_eq!(world.claim("w1", 1), 1, "the timer woke it");
    let request = world.request();
    world.ask(signal(run, "go", request));
    let told = |world: &World| world.outputs.iter().filter(|output| matches!(output, Output::Told { .. })).count();
    assert_eq!(told(&world), 1, "the signal is told to the step that executes");
    recorded(&suspend(&mut world, run, 2, vec![Entry::See { op: 2 }, Entry::See { op: 1 }]));
    world.tick(30);
    assert_eq!(world.claim("w1", 1), 1, "the wait's deadline woke it");
    let shown = show(&mut world, run);
    let seen: Vec<u32> = (1..=3).map(|op| shown.op(op).and_then(|op| op.state.when()).map_or(9, |w| w.seen)).collect();
    assert_eq!(seen, [2, 1, 0], "as the step took notice of them");
    assert!(shown.inbox.is_empty(), "the signal was used up");
    check::check(&world);
}

/// A step that suspends without having seen the last end is not parked: it would wait for what has come.
#[test]
fn nothing_that_ended_is_missed_by_a_suspend() {
    let mut world = world();
    let run = claimed(&mut world);
    let request = world.request();
    world.ask(signal(run, "go", request));
    let wait = intend(1, "go", Wanted::Signal { name: "go".into(), deadline: None });
    recorded(&suspend(&mut world, run, 0, vec![wait]));
    assert_eq!(world.claim("w1", 1), 1, "the signal was there already");
    refused(&suspend(&mut world, run, 1, vec![]), "invalid");
    check::check(&world);
}

/// A child of the ledger ends its entry, with its result or its error.
#[test]
fn a_child_ends_its_entry() {
    let mut world = world();
    let run = claimed(&mut world);
    let child = intend(1, "child", Wanted::Child(Box::new(flow())));
    recorded(&suspend(&mut world, run, 0, vec![child]));
    assert_eq!(show(&mut world, run).status(), Status::AwaitingChildren);
    assert_eq!(world.claim("w1", 1), 1);
    let OpKind::Child { run: child } = show(&mut world, run).op(1).expect("an entry").kind else {
        panic!("expected a child");
    };
    let completing = completing(&world, child, Outcome::Done { result: payload("8") });
    recorded(&world.ask(Command::Complete { run: child, completing }));
    let entry = show(&mut world, run).op(1).cloned().expect("an entry");
    assert!(matches!(entry.state, OpState::Done { value, .. } if value.text() == "8"));
    assert_eq!(world.claim("w1", 1), 1, "the parent goes on");
    check::check(&world);
}

/// Entries of a visit that was left are forgotten with the next entry, and numbers go on.
#[test]
fn entries_of_a_step_that_was_left_are_forgotten() {
    let mut world = world();
    let run = claimed(&mut world);
    let entries = vec![intend(1, "a", Wanted::Effect(Policy::Idempotent)), ended(&world, 1, "1")];
    let mut next = completing(&world, run, Outcome::Next { step: "two".into(), state: Payload::null() });
    next.entries = entries;
    recorded(&world.ask(Command::Complete { run, completing: next }));
    assert_eq!(world.claim("w1", 1), 1);
    assert_eq!(show(&mut world, run).ops.len(), 1, "still there to be looked at");
    recorded(&record(&mut world, run, vec![intend(2, "a", Wanted::Timer(Moment::At(Timestamp(0))))]));
    let shown = show(&mut world, run);
    assert_eq!((shown.ops.len(), shown.ops_dropped, shown.next_op()), (1, 1, 3));
    assert!(matches!(shown.op(2).expect("an entry").state, OpState::Elapsed { .. }));
    check::check(&world);
}

/// AB-5: the mark of an edit ends with its beginning, at the time that the code saw, and its step has seen it: a replay
/// takes it in its order, and the code's time does not move by it.
#[test]
fn a_mark_takes_no_time() {
    let mut world = world();
    let run = claimed(&mut world);
    let at = world.now;
    world.tick(100);
    recorded(&record(&mut world, run, vec![intend(1, "patch edit", Wanted::Patch { at })]));
    let shown = show(&mut world, run);
    let when = shown.op(1).and_then(|op| op.state.when()).expect("it has ended");
    assert_eq!((when.at, when.ended, when.seen), (at, 1, 1));
    assert!(shown.open.is_empty());
    refused(&record(&mut world, run, vec![intend(1, "patch edit", Wanted::Patch { at })]), "invalid");
    check::check(&world);
}

/// A refusal of what the ledger cannot hold says what was expected.
#[test]
fn what_the_ledger_cannot_hold_is_refused() {
    let mut world = world();
    let run = claimed(&mut world);
    let answer = record(&mut world, run, vec![intend(1, "", Wanted::Effect(Policy::Pure))]);
    assert!(matches!(&answer, Answer::Refused(Refusal::Invalid { .. })), "{answer:?}");
    let long = "x".repeat(2_000);
    refused(&record(&mut world, run, vec![intend(1, &long, Wanted::Effect(Policy::Pure))]), "too_large");
    let unknown = ended(&world, 4, "1");
    refused(&record(&mut world, run, vec![unknown]), "invalid");
    assert!(show(&mut world, run).ops.is_empty(), "nothing was written");
}

/// A resolution is of the effect that is named, ends it for good, and leaves the other entries alone.
#[test]
fn a_resolution_ends_one_entry() {
    let how = [
        Resolution::Value(payload("5")),
        Resolution::Failed(Arc::new(ErrorInfo::terminal("no", "x"))),
        Resolution::Compensated,
    ];
    for (how, standing) in how.into_iter().zip([Standing::Committed, Standing::Failed, Standing::Compensated]) {
        let mut world = world();
        let run = claimed(&mut world);
        let entries = vec![
            intend(1, "charge", Wanted::Effect(Policy::UnsafeOnce)),
            intend(2, "mail", Wanted::Effect(Policy::UnsafeOnce)),
            intend(3, "sleep", Wanted::Timer(Moment::In(1_000_000))),
        ];
        recorded(&record(&mut world, run, entries));
        lose_worker(&mut world);
        recorded(&suspend(&mut world, run, 0, vec![]));
        let resolving = Box::new(resolving(&mut world, how, None));
        recorded(&world.ask(Command::Resolve { run, resolving }));
        let shown = show(&mut world, run);
        assert_eq!((shown.standing(1), shown.standing(2)), (Some(standing), Some(Standing::InDoubt)));
        assert_eq!((&shown.open[..], shown.ops_ended), (&[2, 3][..], 1), "the others stay open");
        assert_eq!(shown.op(1).and_then(|op| op.state.when()).map(|when| (when.ended, when.seen)), Some((1, 0)));
        assert_eq!(world.claim("w1", 1), 1, "whoever waits for it wakes");
        // What has ended and was not seen keeps the step from parking.
        recorded(&suspend(&mut world, run, 0, vec![]));
        assert_eq!(world.claim("w1", 1), 1);
        recorded(&suspend(&mut world, run, 1, vec![]));
        assert_eq!(world.claim("w1", 1), 0);
        check::check(&world);
    }
}

/// Every park has a token of its own, so that what was meant for an earlier one is stale.
#[test]
fn every_park_has_its_own_token() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&suspend(&mut world, run, 0, vec![intend(1, "sleep", Wanted::Timer(Moment::In(50)))]));
    assert_eq!(show(&mut world, run).tokens, 1);
    world.tick(50);
    assert_eq!(world.claim("w1", 1), 1);
    recorded(&suspend(&mut world, run, 1, vec![intend(2, "again", Wanted::Timer(Moment::In(50)))]));
    assert_eq!(show(&mut world, run).tokens, 2);
    refused(&world.ask(Command::Wake { run, token: 1 }), "stale_token");
}

/// A step that begins a child is told which run it is, also before the child ends.
#[test]
fn a_step_hears_of_the_child_it_began() {
    let mut world = world();
    let run = claimed(&mut world);
    world.outputs.clear();
    recorded(&record(&mut world, run, vec![intend(1, "child", Wanted::Child(Box::new(flow())))]));
    let told =
        |output: &Output| matches!(output, Output::Told { id: 1, op, .. } if matches!(op.kind, OpKind::Child { .. }));
    assert!(world.outputs.iter().any(told), "{:?}", world.outputs);
}
