//! What undoes something: a run that is cancelled comes back to undo what it did, whatever it waits for, and ends then.

use std::sync::Arc;

use crate::support::act::{cancel, completing, flow, payload, show};
use crate::support::{Hand, World, check, token};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::{ClaimId, ErrorInfo, Moment, Outcome, Policy, RetryPolicy, RunId, Standing, Status};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand { lease_ms: 100_000, ..Hand::new("w1", &["flow"]) });
    world
}

fn intend(op: u32, key: &str, what: Wanted) -> Entry {
    Entry::Intend { op, key: key.into(), input: 0, what }
}

fn sleep() -> Wanted {
    Wanted::Timer(Moment::In(60_000))
}

fn undo() -> Entry {
    intend(1, "undo", Wanted::Undo(Policy::UnsafeOnce))
}

fn record(world: &mut World, run: RunId, entries: Vec<Entry>) -> Answer {
    let claim = world.dispatches[&run].claim.number;
    world.ask(Command::Record { run, recording: Box::new(Recording { claim, token: token("w1"), entries }) })
}

fn returns(world: &mut World, run: RunId, outcome: Outcome, entries: Vec<Entry>) -> Answer {
    let mut completing = completing(world, run, outcome);
    completing.entries = entries;
    world.ask(Command::Complete { run, completing })
}

fn fails(world: &mut World, run: RunId, set_aside: bool) -> Answer {
    let failing = Failing {
        claim: world.dispatches[&run].claim.number,
        token: token("w1"),
        error: Arc::new(ErrorInfo::retryable("down", "it broke")),
        retry: Some(RetryPolicy::exponential(60_000)),
        seed: 1,
        entries: Vec::new(),
        reopen: Vec::new(),
        set_aside,
    };
    world.ask(Command::Fail { run, failing: Box::new(failing) })
}

fn recorded(answer: &Answer) {
    assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
}

fn refused(answer: &Answer, code: &str) {
    assert!(matches!(answer, Answer::Refused(refusal) if refusal.code() == code), "expected {code}, found {answer:?}");
}

/// A run that is claimed and has something to undo.
fn armed(world: &mut World) -> RunId {
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    recorded(&record(world, run, vec![undo()]));
    run
}

/// A cancelled run undoes first, whether it sleeps, rests before a retry or was set aside; it ends when it says so. Whoever
/// asked hears the same again, and nobody else may ask.
#[test]
fn a_cancelled_run_is_brought_back_to_undo() {
    let sleeps = |world: &mut World, run: RunId| {
        let timer = intend(2, "sleep", sleep());
        returns(world, run, Outcome::Suspend { seen: 0 }, vec![timer])
    };
    let rests = |world: &mut World, run: RunId| fails(world, run, false);
    let aside = |world: &mut World, run: RunId| fails(world, run, true);
    let ways: [fn(&mut World, RunId) -> Answer; 3] = [sleeps, rests, aside];
    for (way, status) in ways.into_iter().zip([Status::Sleeping, Status::Runnable, Status::DeadLettered]) {
        let mut world = world();
        let run = armed(&mut world);
        recorded(&way(&mut world, run));
        assert_eq!((show(&mut world, run).status(), world.claim("w1", 1)), (status, 0), "nothing to do for now");
        let request = world.request();
        recorded(&world.ask(cancel(run, request, false)));
        let again = world.ask(cancel(run, request, false));
        assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
        let other = world.request();
        refused(&world.ask(cancel(run, other, false)), "cancelling");
        assert_eq!(world.claim("w1", 1), 1, "a run that was {status}");
        recorded(&returns(&mut world, run, Outcome::Cancelled, Vec::new()));
        assert_eq!(show(&mut world, run).status(), Status::Cancelled);
        check::check(&world);
    }
}

/// D36: a cancellation that was accepted, and whose answer was lost, was refused when it was sent again after the run had failed
/// to undo what it did and had ended so. It gets its first answer; any other request is told that the run is over.
#[test]
fn a_cancellation_is_known_after_the_run_ended_otherwise() {
    let mut world = world();
    let run = armed(&mut world);
    let request = world.request();
    recorded(&world.ask(cancel(run, request, false)));
    assert_eq!(world.claim("w1", 1), 1);
    let error = ErrorInfo::terminal("stuck", "it cannot be undone");
    recorded(&returns(&mut world, run, Outcome::Stop { error }, Vec::new()));
    assert_eq!(show(&mut world, run).status(), Status::Failed);
    let again = world.ask(cancel(run, request, false));
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
    let other = world.request();
    refused(&world.ask(cancel(run, other, false)), "run_over");
    check::check(&world);
}

/// D12: a run that was cancelled with its children, and could not undo what it did, ended as failed, and its children went on:
/// they were told only by a run that ended as cancelled. They are told whatever way it ends.
#[test]
fn children_of_a_cancelled_run_end_however_it_ends() {
    let (done, stuck) = (payload("1"), ErrorInfo::terminal("stuck", "it cannot be undone"));
    for outcome in [Outcome::Cancelled, Outcome::Stop { error: stuck }, Outcome::Done { result: done }] {
        let mut world = world();
        let run = armed(&mut world);
        let child = intend(2, "child", Wanted::Child(Box::new(flow())));
        recorded(&returns(&mut world, run, Outcome::Suspend { seen: 0 }, vec![child]));
        let child = show(&mut world, run).children[0].id;
        let request = world.request();
        recorded(&world.ask(cancel(run, request, true)));
        assert_eq!(show(&mut world, child).end, None, "its parent undoes first");
        while world.dispatches.get(&run).is_none_or(|given| given.claim.number < 2) {
            assert!(world.claim("w1", 1) > 0);
        }
        recorded(&returns(&mut world, run, outcome.clone(), Vec::new()));
        assert_eq!(show(&mut world, child).status(), Status::Cancelled, "{outcome:?}");
        check::check(&world);
    }
}

/// A worker whose claim was taken away for a cancellation hears of it with its next heartbeat, by name, whether somebody
/// undoes already or not; it was once told that another worker has its attempt, and that stood in the run's story as an
/// anomaly. The fence holds all the same, also against whoever only knows the number.
#[test]
fn a_heartbeat_tells_of_a_cancellation() {
    let mut world = world();
    world.join(Hand { lease_ms: 100_000, ..Hand::new("w2", &["flow"]) });
    let run = armed(&mut world);
    let held = world.dispatches[&run].claim;
    let beat = |by: &str, number: u32| Command::Heartbeat { claim: ClaimId { number, ..held }, token: token(by) };
    let request = world.request();
    recorded(&world.ask(cancel(run, request, false)));
    refused(&world.ask(beat("w1", held.number)), "cancelling");
    assert_eq!(world.claim("w2", 1), 1, "somebody undoes");
    refused(&world.ask(beat("w1", held.number)), "cancelling");
    let recording = Recording { claim: held.number, token: token("w1"), entries: vec![intend(2, "more", sleep())] };
    refused(&world.ask(Command::Record { run, recording: Box::new(recording) }), "cancelling");
    assert!(show(&mut world, run).anomalies.is_empty(), "{:?}", show(&mut world, run).anomalies);

    refused(&world.ask(beat("w2", held.number)), "wrong_token");
    refused(&world.ask(beat("w1", held.number + 9)), "stale_claim");
    assert_eq!(show(&mut world, run).anomalies.len(), 2);
    let mut completing = completing(&world, run, Outcome::Cancelled);
    completing.token = token("w2");
    recorded(&world.ask(Command::Complete { run, completing }));
    refused(&world.ask(beat("w1", held.number)), "run_over");
    let after = show(&mut world, run);
    assert_eq!((after.status(), after.anomalies.len(), after.taken.len()), (Status::Cancelled, 2, 0));
    check::check(&world);
}

/// A run with nothing to undo ends at once: its worker's heartbeat is told so and is no anomaly; its result is one.
#[test]
fn a_heartbeat_tells_of_the_end_of_a_cancelled_run() {
    let mut world = world();
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    let (claim, request) = (world.dispatches[&run].claim, world.request());
    let late = completing(&world, run, Outcome::Cancelled);
    recorded(&world.ask(cancel(run, request, false)));
    refused(&world.ask(Command::Heartbeat { claim, token: token("w1") }), "run_over");
    assert!(show(&mut world, run).anomalies.is_empty());
    refused(&world.ask(Command::Complete { run, completing: late }), "run_over");
    assert_eq!(show(&mut world, run).anomalies.len(), 1);
    check::check(&world);
}

/// What is only there to undo something keeps its policy, is not begun, and is nothing to wait for.
#[test]
fn what_may_be_undone_is_nothing_to_wait_for() {
    let mut world = world();
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    refused(&returns(&mut world, run, Outcome::Suspend { seen: 0 }, vec![undo()]), "invalid");
    recorded(&record(&mut world, run, vec![undo()]));
    refused(&returns(&mut world, run, Outcome::Suspend { seen: 0 }, Vec::new()), "invalid");
    let effect = show(&mut world, run).effect_view(1).expect("an effect");
    assert_eq!((effect.policy, effect.standing, effect.undo), (Policy::UnsafeOnce, Standing::NotStarted, true));
}

/// A run that nobody cancels cannot end as cancelled.
#[test]
fn only_a_run_that_is_being_cancelled_ends_so() {
    let mut world = world();
    let run = armed(&mut world);
    refused(&returns(&mut world, run, Outcome::Cancelled, Vec::new()), "invalid");
    recorded(&returns(&mut world, run, Outcome::Done { result: payload("1") }, Vec::new()));
}

/// AB-3: what would undo something of an old life is forgotten with it, also when it was registered with the new beginning:
/// the ledger lets go of it, and a run that is cancelled then has nothing to undo.
#[test]
fn a_new_life_has_nothing_to_undo() {
    let mut world = world();
    let run = armed(&mut world);
    let second = intend(2, "undo#2", Wanted::Undo(Policy::Idempotent));
    let again = Outcome::ContinueAsNew { input: payload("2") };
    recorded(&returns(&mut world, run, again, vec![second]));
    let shown = show(&mut world, run);
    assert_eq!(shown.open_ops().count(), 0);
    assert!(shown.effects().all(|effect| effect.standing == Standing::NotStarted), "nothing was undone");
    assert_eq!(world.claim("w1", 1), 1);
    let what = Wanted::Effect(Policy::Idempotent);
    recorded(&record(&mut world, run, vec![intend(3, "book", what)]));
    assert_eq!(show(&mut world, run).ops().count(), 1, "of the old life nothing is kept");
    let request = world.request();
    recorded(&world.ask(cancel(run, request, false)));
    assert_eq!(show(&mut world, run).status(), Status::Cancelled);
    check::check(&world);
}
