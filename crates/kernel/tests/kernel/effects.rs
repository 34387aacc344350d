//! Effects that need a person's word, effects that are tried again, and who may write what becomes of them.

use std::sync::Arc;

use crate::support::act::{completing, flow, next, payload, show};
use crate::support::{BASE, Crash, Hand, World, check, token};
use abide_kernel::limits::OPS_MAX;
use abide_kernel::shard::{Answer, Command, Output};
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::manual::{Asking, Deciding};
use abide_kernel::transition::record::{self, Entry, Recording, Wanted};
use abide_kernel::transition::resolve::Resolving;
use abide_kernel::{
    Choice, ErrorInfo, Fact, Interrupt, ManualKind, Moment, Outcome, Payload, Phase, Policy, Refusal, Resolution,
    RetryPolicy, RunId, Standing, Status, review_key,
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

/// An entry that was begun is the one that is meant: begun again under its claim it is nothing new, and under another policy
/// or key it is something else.
#[test]
fn an_effect_is_begun_as_it_is_recorded() {
    let mut world = world();
    let run = claimed(&mut world);
    let wire = intend(1, "wire", Wanted::Effect(Policy::UnsafeOnce));
    recorded(&record(&mut world, run, vec![wire.clone()]));
    let again = record(&mut world, run, vec![wire]);
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
    refused(&record(&mut world, run, vec![intend(1, "wire", Wanted::Effect(Policy::Idempotent))]), "invalid");
    refused(&record(&mut world, run, vec![intend(1, "mail", Wanted::Effect(Policy::UnsafeOnce))]), "invalid");
    refused(&record(&mut world, run, vec![Entry::Withdraw { op: 1 }]), "invalid");
}

/// Several effects begin in one row: each is tried again, ended or withdrawn by its own rules.
#[test]
fn effects_of_one_row_keep_apart() {
    let mut world = world();
    let run = claimed(&mut world);
    let entries = vec![
        intend(1, "fetch", Wanted::Effect(Policy::Idempotent)),
        intend(2, "wire", Wanted::Effect(Policy::UnsafeOnce)),
        intend(3, "sleep", Wanted::Timer(Moment::In(50))),
        again(1, 5),
        Entry::Withdraw { op: 3 },
    ];
    recorded(&record(&mut world, run, entries));
    let shown = show(&mut world, run);
    assert_eq!(shown.effects().map(|effect| effect.failures).collect::<Vec<u32>>(), [1, 0]);
    assert_eq!(shown.open, [1, 2]);
    check::check(&world);
}

/// An effect ended when its worker says, but not later than the row that says so; a fact names only a time of its own.
#[test]
fn an_effect_ends_no_later_than_its_row() {
    let mut world = world();
    let run = claimed(&mut world);
    world.tick(10);
    for (op, ms, kept) in [(1, 3, Some(BASE.after(3))), (2, 10, None), (3, 99, None)] {
        let begin = intend(op, &format!("e{op}"), Wanted::Effect(Policy::Idempotent));
        let end = Entry::End { op, outcome: Ok(payload("5")), at: BASE.after(ms) };
        recorded(&record(&mut world, run, vec![begin, end]));
        let Some(Fact::Resulted(resulted)) = world.disks[0].rows.last().and_then(|row| row.facts.last()) else {
            panic!("expected the end of an effect");
        };
        assert_eq!(resulted.at, kept, "entry {op}");
        let when = show(&mut world, run).op(op).and_then(|entry| entry.state.when()).expect("it ended");
        assert_eq!(when.at, kept.unwrap_or(world.now), "entry {op}");
    }
    let at = world.now;
    recorded(&record(&mut world, run, vec![intend(4, "patch", Wanted::Patch { at })]));
    let row = world.disks[0].rows.last().expect("a row");
    assert!(matches!(row.facts.last(), Some(Fact::Resulted(resulted)) if resulted.at.is_none()));
}

/// JI-22: an approval is for the visit of the step in which it was asked for.
#[test]
fn an_approval_ends_with_its_step() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![review(1)]));
    recorded(&decide(&mut world, run, 1, Choice::Approve));
    recorded(&returns(&mut world, run, next("two"), Vec::new()));
    assert_eq!(world.claim("w1", 1), 1);
    refused(&record(&mut world, run, vec![reviewed(2, "charge", 1)]), "not_approved");
}

fn failing(world: &World, run: RunId, entries: Vec<Entry>, reopen: Vec<u32>) -> Command {
    let failing = Failing {
        claim: world.dispatches[&run].claim.number,
        token: token("w1"),
        error: down(),
        retry: Some(RetryPolicy::exponential(5)),
        seed: 1,
        entries,
        reopen,
        set_aside: false,
    };
    Command::Fail { run, failing: Box::new(failing) }
}

/// D20: a step that fails by its effects takes them up again with its retry: those whose errors may be cured and that may
/// be repeated, whether they failed in this row or before.
#[test]
fn a_retry_begins_the_effects_again_that_failed_it() {
    let terminal = Arc::new(ErrorInfo::terminal("no", "x"));
    let cases = [
        (Policy::Idempotent, Err(down()), Standing::NotStarted),
        (Policy::Idempotent, Err(terminal), Standing::Failed),
        (Policy::Idempotent, Ok(payload("5")), Standing::Committed),
        (Policy::UnsafeOnce, Err(down()), Standing::Failed),
    ];
    for (policy, outcome, standing) in cases {
        for earlier in [true, false] {
            let mut world = world();
            let run = claimed(&mut world);
            // Beside another effect that succeeds, and is left alone.
            let other = vec![
                intend(1, "other", Wanted::Effect(Policy::Idempotent)),
                Entry::End { op: 1, outcome: Ok(payload("1")), at: world.now },
            ];
            let mut entries = vec![
                intend(2, "fetch", Wanted::Effect(policy)),
                Entry::End { op: 2, outcome: outcome.clone(), at: world.now },
            ];
            if earlier {
                entries.splice(0..0, other);
                recorded(&record(&mut world, run, std::mem::take(&mut entries)));
            } else {
                entries.splice(0..0, other);
            }
            let command = failing(&world, run, entries, vec![2]);
            recorded(&world.ask(command));
            let shown = show(&mut world, run);
            let found = (shown.standing(1), shown.standing(2));
            assert_eq!(found, (Some(Standing::Committed), Some(standing)), "{policy} {outcome:?} earlier: {earlier}");
            check::check(&world);
        }
    }
}

/// What an attempt wrote and nobody can record would be written again by the next: the attempt is set aside, and says why.
#[test]
fn an_attempt_that_cannot_be_recorded_is_set_aside() {
    let mut world = world();
    let run = claimed(&mut world);
    let unfit = vec![intend(1, "", Wanted::Effect(Policy::Pure))];
    let command = failing(&world, run, unfit, Vec::new());
    refused(&world.ask(command), "invalid");
    let shown = show(&mut world, run);
    assert_eq!(shown.status(), Status::DeadLettered);
    let Phase::DeadLettered(letter) = &shown.cursors[0].phase else { panic!("it was set aside") };
    assert!(letter.reason.message.contains("cannot be recorded"), "{}", letter.reason);
    // Whoever does not hold the attempt sets nothing aside, and what can be recorded is refused for another reason.
    let run = claimed(&mut world);
    let Command::Fail { mut failing, .. } =
        failing(&world, run, vec![intend(1, "", Wanted::Effect(Policy::Pure))], Vec::new())
    else {
        panic!("a failure")
    };
    failing.claim = 9;
    refused(&world.ask(Command::Fail { run, failing }), "stale_claim");
    assert_eq!(show(&mut world, run).status(), Status::Executing);
    check::check(&world);
}

/// A ledger holds so many entries, whether they come in one row or in several, and says so.
#[test]
fn a_ledger_has_a_bound() {
    let mut world = world();
    let run = claimed(&mut world);
    let mark = |op: u32| intend(op, "mark", Wanted::Patch { at: BASE });
    recorded(&record(&mut world, run, vec![mark(1), mark(2)]));
    let most = OPS_MAX as u32;
    let recording = |last: u32| *recording(&world, run, (3..=last).map(mark).collect());
    let state = world.folded(run).expect("a run");
    assert!(record::decide(&state, &recording(most), world.now).is_ok());
    let busy = record::decide(&state, &recording(most + 1), world.now).expect_err("one too many");
    assert_eq!(busy, Refusal::Busy { what: "the run's ledger".into(), limit: OPS_MAX as u64 });
}
