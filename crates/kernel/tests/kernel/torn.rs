//! Torn states, made by hand: one batch makes them impossible, so they come only from an import or a repaired journal.
//! What a run still owes is derived from its facts and paid in order.

use std::sync::Arc;

use crate::support::act::{awaiting, complete, done, flow, next, signal, spawn};
use crate::support::{BASE, Hand, World, check, token};
use abide_kernel::envelope::Message;
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::claim::{self, Definition};
use abide_kernel::transition::complete::{self, Completing};
use abide_kernel::transition::{child, heartbeat, recover};
use abide_kernel::{
    Claimant, Consume, Fact, Facts, Fingerprint, Outcome, Phase, PlannedStep, Refusal, Row, Run, RunId, StartSpec,
    Status,
};

/// A journal cut short: the world's rows of `run` with `kind` taken out of its last row, adopted by a new world.
fn torn(world: &World, run: RunId, kinds: &[&str]) -> (World, Vec<Row>) {
    let mut rows: Vec<Row> = world.disks[0].rows.iter().filter(|row| row.run == run).cloned().collect();
    let last = rows.last_mut().expect("a row");
    last.facts = last.facts.iter().filter(|fact| !kinds.contains(&fact.kind())).cloned().collect();
    let mut prior = abide_kernel::Seq(0);
    for (index, row) in rows.iter_mut().enumerate() {
        row.seq = abide_kernel::Seq(index as u64 + 1);
        row.prior = prior;
        prior = row.seq;
    }
    let mut other = World::new(1);
    other.join(Hand::new("w1", &["flow"]));
    other.disks[0].rows = rows.clone();
    other.crash(crate::support::Crash::BeforeAppend);
    (other, rows)
}

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

fn recovered(world: &mut World, run: RunId, journal: Vec<Row>) -> bool {
    match world.ask(Command::Recover { run, journal }) {
        Answer::Recorded { duplicate, .. } => !duplicate,
        other => panic!("{other:?}"),
    }
}

/// SQ-26: a step that was planned and never scheduled gets its intent, once.
#[test]
fn a_planned_step_gets_its_missing_intent() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, next("pay")));
    let (mut torn, _) = torn(&world, run, &["scheduled"]);
    assert!(matches!(torn.folded(run).expect("a run").cursors[0].phase, Phase::Planned { .. }));
    assert_eq!(torn.claim("w1", 9), 0, "nothing is visible");
    assert!(recovered(&mut torn, run, Vec::new()));
    assert!(!recovered(&mut torn, run, Vec::new()), "nothing is owed any more");
    assert_eq!(torn.claim("w1", 9), 1);
    check::check(&torn);
}

/// SQ-27, SQ-49: missing intents come first, then results that are recorded and not applied, one at a time, each under
/// the revision before it.
#[test]
fn intents_come_first_then_results_in_order() {
    let mut world = world();
    let plan = |step: &str| PlannedStep { step: step.into(), needs: Vec::new() };
    let run = world.start(StartSpec { steps: vec![plan("a"), plan("b"), plan("c")], ..flow() });
    let (mut torn, _) = torn(&world, run, &["nothing"]);
    // Two results are recorded and not applied, and the third step lost its intent.
    let mut state = torn.folded(run).expect("a run");
    for (cursor, claim) in [(0, 1), (1, 2)] {
        state.cursors[cursor].phase =
            Phase::Completed { claim, outcome: Arc::new(done()), consume: Consume::Presented, seen: 0 };
    }
    state.cursors[2].phase = Phase::Planned { visible_at: None };
    let first = recover::decide(&state, torn.now);
    assert_eq!(kinds(&first.facts), ["scheduled"]);
    fold(&mut state, &first.facts);
    let second = recover::decide(&state, torn.now);
    assert_eq!(kinds(&second.facts), ["applied"]);
    fold(&mut state, &second.facts);
    let third = recover::decide(&state, torn.now);
    assert_eq!(kinds(&third.facts), ["applied"]);
    fold(&mut state, &third.facts);
    assert!(recover::decide(&state, torn.now).is_empty());
    assert_eq!(torn.claim("w1", 9), 3);
}

fn kinds(facts: &Facts) -> Vec<&'static str> {
    facts.iter().map(Fact::kind).collect()
}

fn fold(run: &mut Run, facts: &Facts) {
    let meta = abide_kernel::Meta { seq: abide_kernel::Seq(run.rev.0 + 1), at: BASE };
    for fact in facts {
        run.apply(fact, meta);
    }
    run.rev.0 += 1;
}

/// SQ-27: a result that is recorded and was not applied is applied by recovery, and the run goes on.
#[test]
fn a_recorded_result_is_applied() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, next("pay")));
    let (mut torn, _) = torn(&world, run, &["applied", "scheduled"]);
    assert!(recovered(&mut torn, run, Vec::new()));
    assert_eq!(torn.claim("w1", 1), 1);
    assert_eq!(&*torn.dispatches[&run].step, "pay");
    torn.ask(complete(&torn, run, done()));
    assert_eq!(torn.folded(run).expect("a run").status(), Status::Done);
}

/// SQ-47, SQ-48: a result is applied only after its completion; a claim of nobody is refused; applied again is nothing.
#[test]
fn only_a_completed_attempt_has_a_result() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let claimed = world.folded(run).expect("a run");
    assert_eq!(complete::decide_apply(&claimed, 1, world.now), Err(Refusal::ResultNotCompleted { claim: 1 }));
    assert!(matches!(complete::decide_apply(&claimed, 9, world.now), Err(Refusal::StaleClaim { claim: 9, .. })));
    world.ask(complete(&world, run, next("pay")));
    let applied = world.folded(run).expect("a run");
    assert!(complete::decide_apply(&applied, 1, world.now).expect("a no-op").is_empty());
}

/// SQ-55: a child that was asked for and never begun is begun under the same identity, and only once.
#[test]
fn a_child_that_never_began_is_begun() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, spawn(vec![flow(), flow()])));
    let asked: Vec<RunId> = world.folded(run).expect("a run").children.iter().map(|child| child.id).collect();
    let (mut torn, journal) = torn(&world, run, &["nothing"]);
    assert_eq!(torn.folded(asked[0]), None, "the crash came between the two");
    recovered(&mut torn, run, journal.clone());
    for child in &asked {
        let begun = torn.folded(*child).expect("it has begun");
        assert_eq!(begun.started.parent.as_ref().map(|parent| parent.run), Some(run));
    }
    let rows = torn.disks[0].rows.len();
    recovered(&mut torn, run, journal);
    torn.flush();
    let again: Vec<Row> = torn.disks[0].rows.clone();
    recovered(&mut torn, run, again);
    assert_eq!(torn.disks[0].rows.len(), rows, "those that have begun are left alone");
    torn.claim("w1", 9);
    for child in asked {
        torn.ask(complete(&torn, child, done()));
    }
    assert_eq!(torn.folded(run).expect("a run").status(), Status::Runnable);
}

fn claimant(name: &str) -> Arc<Claimant> {
    Arc::new(Claimant { owner: name.into(), token: token(name), lease_ms: 1_000, process: None })
}

fn definition() -> Definition {
    Definition { workflow: "flow".into(), version: 1, fingerprint: Fingerprint(7), first_step: "begin".into() }
}

/// SQ-36, SQ-37, SQ-62: a claim before its time, an active take-over and a claim after the end are refused by name.
#[test]
fn claims_that_may_not_be_are_refused_by_name() {
    let mut world = world();
    let mut spec = flow();
    spec.eligible_at = Some(BASE.after(100));
    let run = world.start(spec);
    let early = claim::decide(&world.folded(run).expect("a run"), 0, &claimant("w2"), &definition(), world.now);
    assert_eq!(early, Err(Refusal::AttemptNotVisible { visible_at: BASE.after(100) }));
    world.tick(100);
    world.claim("w1", 1);
    let held = world.folded(run).expect("a run");
    assert_eq!(
        claim::decide(&held, 0, &claimant("w2"), &definition(), world.now),
        Err(Refusal::ActiveClaim { claim: 1, lease_until: BASE.after(1_100) })
    );
    world.tick(1_000);
    let expired = world.folded(run).expect("a run");
    assert!(claim::decide(&expired, 0, &claimant("w2"), &definition(), world.now).is_ok());
    world.claim("w1", 1);
    world.ask(complete(&world, run, done()));
    let over = claim::decide(&world.folded(run).expect("a run"), 0, &claimant("w2"), &definition(), world.now);
    assert!(matches!(over, Err(Refusal::RunOver { .. })));
}

/// SQ-38, SQ-33, D3: at the very instant its lease ends, a claim is worth nothing, although nobody has taken over.
#[test]
fn a_lease_ends_at_its_instant() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let held = world.folded(run).expect("a run");
    let completing = Completing {
        claim: 1,
        token: token("w1"),
        outcome: Arc::new(Outcome::Done { result: crate::support::act::payload("{}") }),
        consume: Consume::Presented,
        error: None,
        compact_after: None,
        entries: Vec::new(),
    };
    let (before, at) = (BASE.after(999), BASE.after(1_000));
    assert!(complete::decide(&held, &completing, before).is_ok());
    assert!(heartbeat::decide(&held, 1, token("w1"), before).is_ok());
    let expired = |found: Refusal| matches!(found, Refusal::LeaseExpired { claim: 1, .. });
    assert!(expired(complete::decide(&held, &completing, at).expect_err("too late")));
    assert!(expired(heartbeat::decide(&held, 1, token("w1"), at).expect_err("too late")));
    assert!(claim::give_back(&held, 1, token("w1"), at).is_err());
}

/// SQ-27: a result that is applied late uses up only what its step had seen; a claim that is not the one of the
/// result is stale, and one that executes has no result.
#[test]
fn a_late_result_is_applied_under_its_own_claim() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    let request = world.request();
    world.ask(signal(run, "go", request));
    world.claim("w1", 1);
    let executing = world.folded(run).expect("a run");
    assert_eq!(complete::decide_apply(&executing, 2, world.now), Err(Refusal::ResultNotCompleted { claim: 2 }));
    let stale = Refusal::StaleClaim { claim: 9, current: Some(2) };
    assert_eq!(complete::decide_apply(&executing, 9, world.now), Err(stale));
    let request = world.request();
    world.ask(signal(run, "go", request));
    world.ask(complete(&world, run, next("pay")));
    let (mut torn, _) = torn(&world, run, &["applied", "scheduled"]);
    let state = torn.folded(run).expect("a run");
    let stale = Refusal::StaleClaim { claim: 9, current: None };
    assert_eq!(complete::decide_apply(&state, 9, torn.now), Err(stale));
    assert!(recovered(&mut torn, run, Vec::new()));
    let left: Vec<u64> = torn.folded(run).expect("a run").inbox.iter().map(|signal| signal.id).collect();
    assert_eq!(left, [2], "the second came while the step executed");
}

/// Of the children that were asked for, those that have ended are not begun again.
#[test]
fn only_open_children_are_begun_again() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, spawn(vec![flow(), flow()])));
    world.claim("w1", 1);
    let ended = *world.dispatches.keys().find(|id| **id != run).expect("a child");
    world.ask(complete(&world, ended, done()));
    let rows: Vec<Row> = world.disks[0].rows.iter().filter(|row| row.run == run).cloned().collect();
    let parent = world.folded(run).expect("a run");
    let begun: Vec<RunId> = child::begin_again(&parent, &rows).iter().filter_map(Message::target).collect();
    let open: Vec<RunId> = parent.children.iter().map(|child| child.id).filter(|id| *id != ended).collect();
    assert_eq!(begun, open);
}
