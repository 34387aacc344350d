//! Why a run does not move: one test per reason.

use std::sync::Arc;

use crate::support::act::{awaiting, complete, completing, done, flow, limited, payload, sleeping, spawn};
use crate::support::{BASE, Hand, World, definition, token};
use abide_kernel::explain::{Explanation, Reason, Service, Surroundings, explain};
use abide_kernel::shard::Command;
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    ErrorInfo, Fingerprint, Moment, Outcome, Phase, PlannedStep, Policy, RetryPolicy, Run, RunId, StartSpec, Status,
    Str,
};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

fn told(world: &World, run: RunId) -> Explanation {
    told_around(world, run, world.shards[0].surroundings(run, &world.throttle))
}

fn told_around(world: &World, run: RunId, around: Surroundings) -> Explanation {
    let told = explain(&world.folded(run).expect("a run"), &around, world.now);
    assert!(!told.sentence.is_empty() && !told.sentence.contains('\n'));
    assert!(!told.next_actions.is_empty());
    assert_eq!(told.evidence[0].0, "status");
    told
}

fn evidence<'a>(told: &'a Explanation, name: &str) -> &'a str {
    let found = told.evidence.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("{name} in {:?}", told.evidence)).1
}

/// AB-1: a run that has ended says how, when and why.
#[test]
fn an_ended_run_says_how() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let stop = Outcome::Stop { error: ErrorInfo::terminal("no_money", "the card was declined") };
    world.ask(complete(&world, run, stop));
    world.tick(65_000);
    let told = told(&world, run);
    assert_eq!(told.reason, Reason::Ended(Status::Failed));
    assert_eq!(told.sentence, "it ended as failed 1 min 5 s ago: no_money: the card was declined");
    assert!(told.next_actions.iter().any(|action| action.contains("history")));
}

/// AB-1: who executes it, and how long its lease lasts.
#[test]
fn an_executing_run_names_its_worker_and_lease() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.tick(400);
    let told = told(&world, run);
    assert_eq!(told.reason.code(), "executing");
    assert_eq!(told.sentence, "w1 executes step begin, last heard of 400 ms ago, and its lease lasts 600 ms more");
    assert_eq!(evidence(&told, "claim"), "1");
}

/// AB-1: a ready run that no worker can take says which piece is missing: queue, workflow, version or definition.
#[test]
fn a_run_nobody_can_execute_says_what_is_missing() {
    let mut world = world();
    let mut spec = flow();
    spec.fingerprint = Some(Fingerprint(7));
    let run = world.start(spec);
    let folded = world.folded(run).expect("a run");
    let queue: [Str; 1] = ["default".into()];
    let mail: [Str; 1] = ["mail".into()];
    let service = |queue: &[Str], definitions: &[&str]| {
        let definitions: Vec<_> = definitions.iter().map(|text| definition(text)).collect();
        Service::of(&folded, [(queue, definitions.as_slice())])
    };
    assert_eq!(service(&queue, &["flow"]), Service::Served);
    let cases = [
        (service(&mail, &["flow"]), "no_worker", "no live worker serves queue default"),
        (service(&queue, &["other"]), "no_worker_workflow", "no live worker of queue default has workflow flow"),
        (service(&queue, &["flow@2", "flow@3"]), "no_worker_version", "it needs flow v1, and live workers have v2, 3"),
        (
            service(&queue, &["flow@1#8"]),
            "no_worker_definition",
            "it is pinned to definition 0000000000000007 of flow v1, and live workers have 0000000000000008",
        ),
    ];
    for (service, code, sentence) in cases {
        let around = Surroundings { service, ..Surroundings::default() };
        let told = told_around(&world, run, around);
        assert_eq!(told.reason.code(), code);
        assert!(told.sentence.ends_with(sentence), "{}", told.sentence);
    }
}

/// AB-1: a ready run says how many are before it, and whether its queue is paused.
#[test]
fn a_ready_run_counts_those_before_it() {
    let mut world = world();
    let first = world.start(flow());
    world.start(flow());
    let third = world.start(flow());
    assert_eq!(told(&world, first).reason, Reason::Behind(0));
    let behind = told(&world, third);
    assert_eq!(behind.reason, Reason::Behind(2));
    assert!(behind.sentence.ends_with("behind 2 others"));
    let paused = Surroundings { queue_paused: true, ..Surroundings::default() };
    let paused = told_around(&world, third, paused);
    assert_eq!(paused.reason.code(), "queue_paused");
    assert!(paused.sentence.ends_with("but queue default is paused"));
}

/// AB-1: a saturated key names the runs that hold it.
#[test]
fn a_saturated_key_names_its_holders() {
    let mut world = world();
    let holder = world.start(limited("c"));
    let run = world.start(limited("c"));
    world.claim("w1", 9);
    let told = told(&world, run);
    assert_eq!(told.reason, Reason::KeySaturated(vec![holder]));
    assert!(told.sentence.ends_with(&format!("concurrency key \"c\" is taken by {holder}")));
    assert_eq!(told.next_actions, [format!("abide run explain {holder}")]);
}

/// AB-1: a retry that is not due yet says after what and for how long.
#[test]
fn a_run_that_backs_off_says_after_what() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let failing = Failing {
        claim: 1,
        token: token("w1"),
        error: Arc::new(ErrorInfo::retryable("timeout", "no answer")),
        retry: Some(RetryPolicy::exponential(90_000)),
        seed: 1,
        entries: Vec::new(),
        reopen: Vec::new(),
        set_aside: false,
    };
    world.ask(Command::Fail { run, failing: Box::new(failing) });
    let told = told(&world, run);
    assert_eq!(told.reason, Reason::BackingOff(BASE.after(90_000)));
    assert_eq!(told.sentence, "attempt 1 of step begin backs off for another 1 min 30 s after timeout: no answer");
}

/// AB-1: a start in the future, a sleep, and a signal that is waited for.
#[test]
fn waits_say_for_what_and_how_long() {
    let mut world = world();
    let mut spec = flow();
    spec.eligible_at = Some(BASE.after(3 * 86_400_000));
    let later = world.start(spec);
    assert_eq!(told(&world, later).sentence, "it may not begin for another 3 d");
    assert_eq!(told(&world, later).reason.code(), "not_yet_eligible");

    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, sleeping(5_000)));
    assert_eq!(told(&world, run).sentence, "step begin sleeps for another 5 s");
    world.tick(5_000);
    world.claim("w1", 1);
    let wait = Outcome::Await {
        signals: vec!["paid".into(), "refused".into()],
        then: None,
        deadline: Some(Moment::In(10_000)),
        state: payload("{}"),
    };
    world.ask(complete(&world, run, wait));
    world.tick(2_000);
    let told = told(&world, run);
    assert_eq!(told.reason, Reason::WaitingForSignal(vec!["paid".into(), "refused".into()]));
    assert_eq!(told.sentence, "step begin waits for signal paid or refused since 2 s, for 8 s more at the longest");
    assert_eq!(told.next_actions[0], format!("abide run signal {run} paid"));
}

/// AB-1: a parent names the children it waits for.
#[test]
fn a_parent_names_its_open_children() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, spawn(vec![flow(), flow()])));
    let children: Vec<RunId> = world.folded(run).expect("a run").children.iter().map(|child| child.id).collect();
    world.claim("w1", 2);
    world.ask(complete(&world, children[0], done()));
    let told = told(&world, run);
    assert_eq!(told.reason, Reason::WaitingForChildren(vec![children[1]]));
    assert!(told.sentence.contains("waits for 1 of its children"));
    assert_eq!(evidence(&told, "children_succeeded"), "1");
}

/// AB-1: a dead letter says why it was set aside.
#[test]
fn a_dead_letter_says_why() {
    let mut world = world();
    let run = world.start(StartSpec { deliveries_max: Some(1), ..flow() });
    world.claim("w1", 1);
    world.tick(1_000);
    let told = told(&world, run);
    assert_eq!(told.reason, Reason::DeadLettered);
    assert!(told.sentence.contains("deliveries_exhausted"), "{}", told.sentence);
    assert_eq!(evidence(&told, "node"), "node");
    assert_eq!(told.next_actions[0], format!("abide dead-letter requeue {run}"));
}

/// AB-1: a step of a graph names the steps it needs.
#[test]
fn a_step_names_what_it_needs() {
    let mut world = world();
    let plan = |step: &str, needs: &[&str]| PlannedStep {
        step: step.into(),
        needs: needs.iter().map(|need| Str::from(*need)).collect(),
    };
    let run = world.start(StartSpec { steps: vec![plan("a", &[]), plan("b", &[]), plan("c", &["a", "b"])], ..flow() });
    world.claim("w1", 2);
    let mut parked = completing(&world, run, awaiting("go"));
    parked.claim = 1;
    world.ask(Command::Complete { run, completing: parked.clone() });
    parked.claim = 2;
    parked.outcome = Arc::new(done());
    world.ask(Command::Complete { run, completing: parked });
    // What waits says more than what needs it.
    assert_eq!(told(&world, run).reason.code(), "waiting_for_signal");
    let mut folded = world.folded(run).expect("a run");
    folded.cursors[0].phase = Phase::Closed;
    let told = explain(&folded, &Surroundings::default(), world.now);
    assert_eq!(told.reason, Reason::NeedsNotMet(vec!["a".into()]));
    assert_eq!(told.sentence, "step c needs a, not finished yet");
}

/// AB-1: a run that waits for its ledger says for what: each name once, children, or the next instant.
#[test]
fn a_ledger_says_what_it_waits_for() {
    let signal = |name: &str| Wanted::Signal { name: name.into(), deadline: None };
    let update = |name: &str| Wanted::Update { name: name.into(), deadline: Some(Moment::In(5_000)) };
    let timer = || Wanted::Timer(Moment::In(60_000));
    let cases = [
        (
            vec![signal("go"), signal("go"), signal("stop")],
            "begin waits for signal go or stop since 0 ms",
            "waiting_for_signal",
        ),
        (
            vec![update("ask"), update("ask"), timer()],
            "begin waits for update ask since 0 ms, for 5 s more at the longest",
            "waiting_for_update",
        ),
        (
            vec![signal("go"), update("ask")],
            "begin waits for signal go or update ask since 0 ms, for 5 s more at the longest",
            "waiting_for_signal",
        ),
        (vec![Wanted::Child(Box::new(flow())), timer()], "begin waits for 1 of its children", "waiting_for_children"),
        (vec![timer()], "begin sleeps for another 1 min", "sleeping"),
    ];
    for (waits, sentence, code) in cases {
        let mut world = world();
        let run = world.start(flow());
        world.claim("w1", 1);
        let mut parks = completing(&world, run, Outcome::Suspend { seen: 0 });
        let intend = |(op, what): (usize, Wanted)| Entry::Intend {
            op: op as u32 + 1,
            key: format!("e{op}").into(),
            input: 0,
            what,
        };
        parks.entries = waits.into_iter().enumerate().map(intend).collect();
        world.ask(Command::Complete { run, completing: parks });
        let told = told(&world, run);
        assert!(told.sentence.starts_with(sentence), "{}", told.sentence);
        assert_eq!(told.reason.code(), code);
    }
}

/// AB-1: an effect that rests before it is tried again says what failed, also beside a later timer.
#[test]
fn a_resting_effect_says_what_failed() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let mut parks = completing(&world, run, Outcome::Suspend { seen: 0 });
    let intend = |op: u32, key: &str, what: Wanted| Entry::Intend { op, key: key.into(), input: 0, what };
    parks.entries = vec![
        intend(1, "late", Wanted::Timer(Moment::In(60_000))),
        intend(2, "fetch", Wanted::Effect(Policy::Idempotent)),
        Entry::Again { op: 2, error: Arc::new(ErrorInfo::retryable("down", "x")), delay_ms: 2_000 },
    ];
    world.ask(Command::Complete { run, completing: parks });
    assert_eq!(told(&world, run).sentence, "effect \"fetch\" failed (down: x) and is tried again in 2 s");
}

/// AB-1: a run that ended well needs no history to be understood; a torn one needs an engine; a retry after a lost worker
/// backs off.
#[test]
fn what_to_do_next_fits_the_reason() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let mut state = world.folded(run).expect("a run");
    world.ask(complete(&world, run, done()));
    let told_of = |world: &World, state: &Run| explain(state, &Surroundings::default(), world.now);
    assert_eq!(told(&world, run).next_actions, [format!("abide run show {run}")]);
    state.cursors[0].phase = Phase::Failed;
    let torn = told_of(&world, &state);
    assert_eq!(torn.next_actions, [format!("open the store with an engine: it brings {run} in order")]);
    state.cursors[0].phase = Phase::Scheduled { visible_at: world.now.after(10), arrival: abide_kernel::Seq(1) };
    (state.cursors[0].retries, state.cursors[0].reclaims) = (1, 1);
    assert_eq!(told_of(&world, &state).reason.code(), "backing_off");
}
