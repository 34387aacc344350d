//! Effects that need a person's word, effects that are tried again, and who may write what becomes of them.

use std::sync::Arc;

use crate::support::act::{completing, flow, next, payload, show};
use crate::support::{BASE, Crash, Hand, World, check, token};
use abide_kernel::shard::{Answer, Command, Output};
use abide_kernel::transition::manual::{Asking, Deciding};
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::resolve::Resolving;
use abide_kernel::{
    Choice, ErrorInfo, Fact, Interrupt, ManualKind, Moment, Outcome, Payload, Policy, Resolution, RunId, Standing,
    Status, review_key,
};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand { lease_ms: 100_000, ..Hand::new("w1", &["flow"]) });
    world
}

fn claimed(world: &mut World) -> RunId {
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    run
}

fn recording(world: &World, run: RunId, entries: Vec<Entry>) -> Box<Recording> {
    Box::new(Recording { claim: world.dispatches[&run].claim.number, token: token("w1"), entries })
}

fn record(world: &mut World, run: RunId, entries: Vec<Entry>) -> Answer {
    let recording = recording(world, run, entries);
    world.ask(Command::Record { run, recording })
}

fn returns(world: &mut World, run: RunId, outcome: Outcome, entries: Vec<Entry>) -> Answer {
    let mut completing = completing(world, run, outcome);
    completing.entries = entries;
    world.ask(Command::Complete { run, completing })
}

fn intend(op: u32, key: &str, what: Wanted) -> Entry {
    Entry::Intend { op, key: key.into(), input: 7, what }
}

/// Asks for a review of the effect `charge`, by somebody of finance, within a while.
fn review(op: u32) -> Entry {
    let asking = Asking {
        payload: payload(r#"{"operation":"charge"}"#),
        roles: vec!["finance".into()],
        deadline: Some(Moment::In(500)),
        ..Asking::new(ManualKind::Approval)
    };
    intend(op, &review_key("charge"), Wanted::Manual(Box::new(asking)))
}

fn reviewed(op: u32, key: &str, review: u32) -> Entry {
    intend(op, key, Wanted::Reviewed { policy: Policy::UnsafeOnce, review })
}

fn decide(world: &mut World, run: RunId, op: u32, choice: Choice) -> Answer {
    let (request, roles) = (world.request(), vec!["finance".into()]);
    let (actor, note) = ("ada".into(), Some("seen".into()));
    let deciding = Deciding { op, choice, actor, roles, note, payload: Payload::null(), request };
    world.ask(Command::Decide { run, deciding: Box::new(deciding) })
}

fn resolve(world: &mut World, run: RunId, roles: &[&str], interrupt: u32) -> Answer {
    let (request, roles) = (world.request(), roles.iter().map(|role| (*role).into()).collect());
    let (key, how) = ("charge".into(), Resolution::Retry);
    let resolving = Resolving { key, interrupt: Some(interrupt), how, actor: "eve".into(), roles, note: None, request };
    world.ask(Command::Resolve { run, resolving: Box::new(resolving) })
}

fn refused(answer: &Answer, code: &str) {
    assert!(matches!(answer, Answer::Refused(refusal) if refusal.code() == code), "expected {code}, found {answer:?}");
}

fn recorded(answer: &Answer) {
    assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
}

/// A run whose charge waits for a review at entry 1.
fn interrupted(world: &mut World) -> RunId {
    let run = claimed(world);
    recorded(&returns(world, run, Outcome::Suspend { seen: 0 }, vec![review(1)]));
    assert_eq!(show(world, run).status(), Status::AwaitingDecision);
    run
}

/// JI-20, JI-21, JI-22: an effect under review begins only under the approval of its own review, and is stamped with it.
#[test]
fn an_approval_is_for_one_effect() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![review(1)]));
    refused(&record(&mut world, run, vec![reviewed(2, "charge", 1)]), "not_approved");
    recorded(&decide(&mut world, run, 1, Choice::Approve));
    // The word was for `charge`, and given at entry 1.
    refused(&record(&mut world, run, vec![reviewed(2, "refund", 1)]), "not_approved");
    refused(&record(&mut world, run, vec![reviewed(2, "charge", 7)]), "not_approved");
    assert!(show(&mut world, run).effects().next().is_none(), "nothing was written");
    recorded(&record(&mut world, run, vec![reviewed(2, "charge", 1)]));
    world.crash(Crash::BeforeAppend);
    let stamped = show(&mut world, run).effect_view(2).and_then(|effect| effect.approval).expect("an approval");
    assert_eq!(
        (stamped.interrupt, &*stamped.actor, stamped.note.as_deref()),
        (Interrupt::Review(1), "ada", Some("seen"))
    );
    check::check(&world);
}

/// JI-22: what was rejected, and what nobody answered in time, does not begin.
#[test]
fn no_word_and_a_no_let_nothing_begin() {
    for rejected in [true, false] {
        let mut world = world();
        let run = interrupted(&mut world);
        if rejected {
            recorded(&decide(&mut world, run, 1, Choice::Reject));
        } else {
            world.tick(500);
            refused(&decide(&mut world, run, 1, Choice::Approve), "decision_late");
        }
        assert_eq!(world.claim("w1", 1), 1, "the step hears of it");
        refused(&record(&mut world, run, vec![reviewed(2, "charge", 1)]), "not_approved");
        check::check(&world);
    }
}

/// JI-20, D19: what was approved and is now in doubt needs a new word, in a role of its review; that word is stamped too.
#[test]
fn what_is_in_doubt_needs_a_word_of_its_own() {
    let mut world = world();
    let run = interrupted(&mut world);
    recorded(&decide(&mut world, run, 1, Choice::Approve));
    assert_eq!(world.claim("w1", 1), 1);
    recorded(&record(&mut world, run, vec![reviewed(2, "charge", 1)]));
    world.tick(100_000);
    assert_eq!(world.claim("w1", 1), 1, "its worker was lost");
    refused(&record(&mut world, run, vec![reviewed(2, "charge", 1)]), "in_doubt");
    refused(&resolve(&mut world, run, &[], 2), "wrong_role");
    refused(&resolve(&mut world, run, &["finance"], 1), "wrong_interrupt");
    recorded(&resolve(&mut world, run, &["finance"], 2));
    recorded(&record(&mut world, run, vec![reviewed(2, "charge", 1)]));
    let view = show(&mut world, run).effect_view(2).expect("an effect");
    let stamped = view.approval.expect("an approval");
    assert_eq!((view.standing, stamped.interrupt, &*stamped.actor), (Standing::Running, Interrupt::Doubt(2), "eve"));
    check::check(&world);
}

/// A step that is left does not ask any more: what it asked is withdrawn, and the next step may ask.
#[test]
fn a_step_that_is_left_asks_no_more() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![review(1)]));
    recorded(&returns(&mut world, run, next("two"), Vec::new()));
    let shown = show(&mut world, run);
    assert!(shown.boundary().is_none(), "{:?}", shown.manual);
    refused(&decide(&mut world, run, 1, Choice::Approve), "stale_boundary");
    assert_eq!(world.claim("w1", 1), 1);
    recorded(&record(&mut world, run, vec![review(2)]));
    check::check(&world);
}

fn down() -> Arc<ErrorInfo> {
    Arc::new(ErrorInfo::retryable("down", "x"))
}

fn again(op: u32, delay_ms: u64) -> Entry {
    Entry::Again { op, error: down(), delay_ms }
}

/// D20: an effect that failed rests without a worker until its instant, and then may begin again; how often it failed is in
/// the journal.
#[test]
fn an_effect_rests_until_it_is_tried_again() {
    let mut world = world();
    let run = claimed(&mut world);
    let fetch = intend(1, "fetch", Wanted::Effect(Policy::Idempotent));
    recorded(&returns(&mut world, run, Outcome::Suspend { seen: 0 }, vec![fetch, again(1, 50)]));
    let shown = show(&mut world, run);
    assert_eq!((shown.status(), shown.next_due()), (Status::Sleeping, Some(BASE.after(50))));
    let view = shown.effect_view(1).expect("an effect");
    assert_eq!((view.standing, view.failures, view.retry_at), (Standing::NotStarted, 1, Some(BASE.after(50))));
    assert_eq!(view.error, Some(down()));
    world.tick(49);
    assert_eq!(world.claim("w1", 1), 0, "not before its time");
    world.tick(1);
    assert_eq!(world.claim("w1", 1), 1);
    world.crash(Crash::BeforeAppend);
    recorded(&record(&mut world, run, vec![again(1, 100)]));
    let view = show(&mut world, run).effect_view(1).expect("an effect");
    assert_eq!((view.failures, view.retry_at), (2, Some(BASE.after(150))));
    world.outputs.clear();
    world.tick(100);
    let told = world.outputs.iter().any(|output| matches!(output, Output::Told { id: 1, .. }));
    assert!(told, "a step that executes meanwhile hears that it may begin");
    let end = Entry::End { op: 1, outcome: Ok(payload("5")), at: world.now };
    recorded(&record(&mut world, run, vec![end]));
    assert_eq!(show(&mut world, run).standing(1), Some(Standing::Committed));
    check::check(&world);
}

/// D20: what must not happen twice, and what no retry cures, is not tried again, whoever asks.
#[test]
fn not_everything_is_tried_again() {
    let mut world = world();
    let run = claimed(&mut world);
    for policy in [Policy::Reconcile, Policy::UnsafeOnce] {
        let entries = vec![intend(1, "wire", Wanted::Effect(policy)), again(1, 5)];
        refused(&record(&mut world, run, entries), "invalid");
    }
    let terminal = Entry::Again { op: 1, error: Arc::new(ErrorInfo::terminal("no", "x")), delay_ms: 5 };
    let fetch = intend(1, "fetch", Wanted::Effect(Policy::Idempotent));
    refused(&record(&mut world, run, vec![fetch.clone(), terminal]), "invalid");
    let end = Entry::End { op: 1, outcome: Ok(payload("5")), at: world.now };
    recorded(&record(&mut world, run, vec![fetch, end]));
    refused(&record(&mut world, run, vec![again(1, 5)]), "effect_ended");
    check::check(&world);
}

/// Without a delay it may begin again at once: a step that suspends is not parked on it.
#[test]
fn without_a_delay_it_is_tried_again_at_once() {
    let mut world = world();
    let run = claimed(&mut world);
    let fetch = intend(1, "fetch", Wanted::Effect(Policy::Dedupe));
    recorded(&returns(&mut world, run, Outcome::Suspend { seen: 0 }, vec![fetch, again(1, 0)]));
    assert_eq!(world.claim("w1", 1), 1);
    let view = show(&mut world, run).effect_view(1).expect("an effect");
    assert_eq!((view.failures, view.retry_at), (1, None));
    check::check(&world);
}

/// BU-25: what is shown of effects is a mirror for people: rows are only ever added, and what may be written is decided by the
/// claim alone, also when the mirror is gone.
#[test]
fn the_mirror_is_no_lock() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![intend(1, "charge", Wanted::Effect(Policy::Idempotent))]));
    let facts = |world: &World| -> Vec<Fact> { world.disks[0].rows.iter().flat_map(|row| row.facts.clone()).collect() };
    let before = facts(&world);
    let stale = recording(&world, run, vec![Entry::End { op: 1, outcome: Ok(payload("1")), at: world.now }]);
    world.tick(100_000);
    assert_eq!(world.claim("w1", 1), 1, "another claim has the step");
    // The mirror says the same to both, and lets neither write.
    let view = show(&mut world, run).effect_view(1).expect("an effect");
    assert_eq!((view.standing, view.value), (Standing::NotStarted, None));
    refused(&world.ask(Command::Record { run, recording: stale.clone() }), "stale_claim");
    world.disks[0].index.clear();
    world.disks[0].through = abide_kernel::Seq(0);
    world.crash(Crash::BeforeAppend);
    refused(&world.ask(Command::Record { run, recording: stale }), "stale_claim");
    let end = Entry::End { op: 1, outcome: Ok(payload("2")), at: world.now };
    recorded(&record(&mut world, run, vec![end]));
    assert_eq!(show(&mut world, run).effect_view(1).and_then(|view| view.value), Some(payload("2")));
    assert_eq!(facts(&world)[..before.len()], before, "what was written stays as it was");
    check::check(&world);
}
