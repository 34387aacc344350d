//! Every bound answers with a typed refusal before anything is written.

use std::sync::Arc;

use crate::support::act::{
    awaiting, complete, done, flow, keyed, limited, next, payload, signal as send, spawn, start,
};
use crate::support::{Hand, World, token};
use abide_kernel::limits::{
    ANOMALIES_MAX, AWAIT_NAMES_MAX, CHILDREN_MAX, DEDUP_KEYS_MAX, ERROR_BYTES_MAX, INBOX_SIGNALS_MAX, KEY_BYTES_MAX,
    LABELS_MAX, LEASE_MS_MIN, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, WAITING_COMMANDS_MAX,
};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::anomaly;
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::signal::{self, Sent};
use abide_kernel::{
    Concurrency, ErrorInfo, Fact, Join, Meta, Outcome, Payload, PlannedStep, Refusal, RunId, Seq, Signal, StartSpec,
    Status, Str,
};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

fn long(bytes: usize) -> Str {
    "x".repeat(bytes).into()
}

fn huge() -> Payload {
    payload(&format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_MAX)))
}

fn refusal(answer: Answer) -> Refusal {
    match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

/// D31: names, keys, labels, plans and payloads of a start are checked before anything is written.
#[test]
fn a_start_is_checked_before_it_is_written() {
    let mut world = world();
    let plan = |step: &str, needs: &[&str]| PlannedStep {
        step: step.into(),
        needs: needs.iter().map(|need| Str::from(*need)).collect(),
    };
    let specs = [
        (StartSpec { workflow: "".into(), ..flow() }, "invalid"),
        (StartSpec { workflow: "a\nb".into(), ..flow() }, "invalid"),
        (StartSpec { workflow: long(NAME_BYTES_MAX + 1), ..flow() }, "too_large"),
        (StartSpec { queue: long(NAME_BYTES_MAX + 1), ..flow() }, "too_large"),
        (StartSpec { namespace: "".into(), ..flow() }, "invalid"),
        (StartSpec { input: huge(), ..flow() }, "too_large"),
        (keyed(""), "invalid"),
        (keyed(&long(KEY_BYTES_MAX + 1)), "too_large"),
        (limited(""), "invalid"),
        (StartSpec { concurrency: Some(Concurrency { key: "c".into(), limit: 0 }), ..flow() }, "invalid"),
        (StartSpec { labels: vec![("a".into(), "b".into()); LABELS_MAX + 1], ..flow() }, "too_large"),
        (StartSpec { steps: vec![plan("a", &[]), plan("a", &[])], ..flow() }, "invalid"),
        (StartSpec { steps: vec![plan("a", &["b"]), plan("b", &["a"])], ..flow() }, "invalid"),
    ];
    for (spec, code) in specs {
        let request = world.request();
        let found = refusal(world.ask(start(request, spec.clone())));
        assert_eq!(found.code(), code, "{:?}", spec.workflow);
        assert!(!found.to_string().is_empty());
    }
    assert!(world.disks[0].rows.is_empty());
    let request = world.request();
    let exact = StartSpec { workflow: long(NAME_BYTES_MAX), ..flow() };
    assert!(matches!(world.ask(start(request, exact)), Answer::Started(_)));
}

/// An outcome, an error and a signal that are not acceptable change nothing; the worker may answer again.
#[test]
fn an_outcome_is_checked_before_it_is_written() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let rows = world.disks[0].rows.len();
    let state = payload("{}");
    let wait = |signals: Vec<Str>| Outcome::Await { signals, then: None, deadline: None, state: state.clone() };
    let many =
        |join| Outcome::Spawn { children: Vec::new(), then: "up".into(), join, deadline: None, state: state.clone() };
    let outcomes = [
        next(""),
        Outcome::Done { result: huge() },
        wait(Vec::new()),
        wait(vec!["a".into(); AWAIT_NAMES_MAX + 1]),
        wait(vec!["".into()]),
        spawn(vec![flow(); CHILDREN_MAX + 1]),
        spawn(vec![StartSpec { workflow: "".into(), ..flow() }]),
        many(Join::Quorum(0)),
        many(Join::Quorum(2)),
        Outcome::Stop { error: ErrorInfo { message: long(ERROR_BYTES_MAX + 1), ..ErrorInfo::terminal("x", "") } },
    ];
    for outcome in outcomes {
        let found = refusal(world.ask(complete(&world, run, outcome)));
        assert!(matches!(found, Refusal::Invalid { .. } | Refusal::TooLarge { .. }), "{found}");
    }
    let failing = Failing {
        claim: 1,
        token: token("w1"),
        error: Arc::new(ErrorInfo { details: Some(huge()), ..ErrorInfo::terminal("x", "") }),
        retry: None,
        seed: 0,
        entries: Vec::new(),
        reopen: Vec::new(),
        set_aside: false,
    };
    let fail = Command::Fail { run, failing: Box::new(failing) };
    assert_eq!(refusal(world.ask(fail)).code(), "too_large");
    for name in [long(NAME_BYTES_MAX + 1), "".into()] {
        let request = world.request();
        refusal(world.ask(send(run, &name, request)));
    }
    assert_eq!(world.disks[0].rows.len(), rows, "nothing was written");
    assert!(matches!(world.ask(complete(&world, run, done())), Answer::Recorded { .. }));
}

/// A full inbox is `busy`, and has room again when a step has used signals up.
#[test]
fn a_full_inbox_is_busy() {
    let mut world = world();
    let run = world.start(flow());
    let mut full = world.folded(run).expect("a run");
    full.signals = INBOX_SIGNALS_MAX as u64;
    full.inbox = (1..=INBOX_SIGNALS_MAX as u64)
        .map(|id| Signal { id, name: "n".into(), payload: Payload::null(), at: world.now })
        .collect();
    assert_eq!(full.check(), Ok(()));
    let request = world.request();
    let sent = Sent { name: "n".into(), payload: Payload::null(), dedup: None, request };
    let refused = signal::decide(&full, &sent).expect_err("it is full");
    assert_eq!((refused.code(), refused.may_retry()), ("busy", true));
    full.inbox.pop();
    assert!(signal::decide(&full, &sent).is_ok());
}

/// The memory for deduplication keys is bounded: the oldest is forgotten first.
#[test]
fn old_deduplication_keys_are_forgotten() {
    let mut world = world();
    let run = world.start(flow());
    let requests: Vec<_> = (0..=DEDUP_KEYS_MAX).map(|_| world.request()).collect();
    for request in &requests {
        world.submit(send(run, "n", *request));
    }
    assert_eq!(world.folded(run).expect("a run").dedup.len(), DEDUP_KEYS_MAX);
    assert!(matches!(world.ask(send(run, "n", requests[1])), Answer::Signalled(a) if a.duplicate));
    assert!(matches!(world.ask(send(run, "n", requests[0])), Answer::Signalled(a) if !a.duplicate));
}

/// D33: anomalies are kept up to their bound; what comes after changes nothing at all.
#[test]
fn anomalies_are_bounded_and_never_change_a_run() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let before = world.folded(run).expect("a run");
    let stale = |world: &World| {
        let Command::Complete { run, mut completing } = complete(world, run, done()) else { panic!("a completion") };
        completing.claim = 99;
        Command::Complete { run, completing }
    };
    for _ in 0..ANOMALIES_MAX + 5 {
        assert_eq!(refusal(world.ask(stale(&world))).code(), "stale_claim");
    }
    let after = world.folded(run).expect("a run");
    assert_eq!(after.anomalies.len(), ANOMALIES_MAX);
    assert_eq!((after.cursors, after.state), (before.cursors, before.state));
    assert_eq!(world.disks[0].rows.len(), 2 + ANOMALIES_MAX);
    assert!(matches!(world.ask(complete(&world, run, done())), Answer::Recorded { .. }));
}

/// Too many commands for one run or key that is being loaded are `busy`.
#[test]
fn the_waiting_room_is_bounded() {
    let mut world = world();
    world.tick(1);
    world.loads_held = true;
    for _ in 0..WAITING_COMMANDS_MAX {
        world.submit(Command::Show { run: RunId(1) });
        let request = world.request();
        world.submit(start(request, keyed("k")));
    }
    assert!(world.outputs.is_empty());
    let ticket = world.submit(Command::Show { run: RunId(1) });
    assert_eq!(refusal(world.answer(ticket).expect("an answer")).code(), "busy");
    let request = world.request();
    let ticket = world.submit(start(request, keyed("k")));
    assert_eq!(refusal(world.answer(ticket).expect("an answer")).code(), "busy");
}

/// A worker's lease is long enough for a heartbeat, whatever it asks for.
#[test]
fn a_lease_is_never_too_short() {
    let mut world = World::new(1);
    let mut hand = Hand::new("w1", &["flow"]);
    hand.lease_ms = 0;
    world.join(hand);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.tick(LEASE_MS_MIN - 1);
    assert_eq!(world.folded(run).expect("a run").status(), Status::Executing);
    assert!(matches!(world.ask(complete(&world, run, awaiting("go"))), Answer::Recorded { .. }));
}

/// A start for another shard is refused: the caller has an old map.
#[test]
fn a_start_for_another_shard_is_refused() {
    let mut world = World::new(4);
    let request = world.request();
    let home = usize::from(world.map.home(flow().home_slot(request)).0);
    let other = &mut world.shards[(home + 1) % 4];
    other.submit(world.now, abide_kernel::shard::Ticket(1), start(request, flow()));
    assert_eq!(other.gathered(), 0);
    assert_eq!(other.take_outputs().len(), 1);
}

/// D33: every refusal that contradicts the facts is an anomaly of its own kind, and every other is an answer only. A fold
/// keeps no more of them than a decision does.
#[test]
fn a_contradiction_is_an_anomaly_of_its_kind() {
    let mut world = world();
    let id = world.start(flow());
    let mut run = world.folded(id).expect("a run");
    let cases = [
        (Refusal::AttemptNotVisible { visible_at: world.now }, Some("attempt_not_visible")),
        (Refusal::ActiveClaim { claim: 1, lease_until: world.now }, Some("active_claim")),
        (Refusal::ResultNotCompleted { claim: 1 }, Some("result_not_completed")),
        (Refusal::Cancelling { run: id }, None),
    ];
    for (refusal, kind) in cases {
        let fact = anomaly::of_refusal(&run, &refusal);
        let found = fact.as_ref().map(|fact| match fact {
            Fact::Anomaly(anomaly) => (&*anomaly.kind, &*anomaly.detail),
            other => panic!("expected an anomaly, found {other:?}"),
        });
        assert_eq!(found, kind.map(|kind| (kind, refusal.to_string())).as_ref().map(|(kind, text)| (*kind, &**text)));
    }
    let fact = anomaly::fact(&run, "strange", "x").expect("room");
    for _ in 0..=ANOMALIES_MAX {
        run.apply(&fact, Meta { seq: Seq(9), at: world.now });
    }
    assert_eq!(run.anomalies.len(), ANOMALIES_MAX);
}
