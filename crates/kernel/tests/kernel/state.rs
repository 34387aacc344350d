//! What a run is folded to: everything a resume needs, in one versioned form; and what an envelope carries.

use std::sync::Arc;

use crate::support::act::{
    awaiting, cancel, complete, completing, done, flow, keyed, limited, next, payload, show, signal, spawn, start,
};
use crate::support::{BASE, Crash, Hand, World, check, fold_of, token};
use abide_kernel::envelope::{Envelope, Message};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::schedule;
use abide_kernel::transition::start::{self as starting, RejectReason, StartAnswer};
use abide_kernel::{
    ErrorInfo, FORMAT, Fact, Heartbeat, Meta, OnConflict, Outcome, Payload, Phase, PlannedStep, RUN_FORMAT, RequestId,
    Run, RunId, Scheduled, Seq, StartSpec, Status, Timestamp, WaitKind,
};

fn world(shards: u16) -> World {
    let mut world = World::new(shards);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// SE-2, SE-5, SE-7, SE-8, SE-15: the folded run carries identity, business reference, status, state, times, and
/// numeric versions of state and form; it alone is enough to resume.
#[test]
fn a_checkpoint_is_enough_to_resume() {
    let mut world = world(1);
    let mut spec = keyed("order-17");
    spec.input = payload(r#"{"n":1}"#);
    let run = world.start(spec);
    world.claim("w1", 1);
    world.tick(5);
    world.ask(complete(&world, run, awaiting("go")));
    world.flush();
    let record = world.disks[0].index[&run].clone();
    assert_eq!(record.status, Status::AwaitingSignal);
    assert_eq!((record.key.as_deref(), record.rev.0), (Some("order-17"), 3));
    let json: serde_json::Value = serde_json::from_slice(&record.checkpoint).expect("json");
    assert_eq!(json["format"], RUN_FORMAT);
    assert_eq!(json["rev"], 3);
    assert_eq!(json["id"], run.to_string());
    assert_eq!(json["started"]["spec"]["key"]["key"], "order-17");
    assert_eq!((&json["created_at"], &json["updated_at"]), (&BASE.0.into(), &(BASE.0 + 5).into()));
    // Nothing but the checkpoint: another world goes on from it.
    let mut other = World::new(1);
    other.join(Hand::new("w1", &["flow"]));
    other.shards[0].adopt(fold_of(&world.disks[0], &record), record.head);
    let request = other.request();
    other.held = true;
    other.submit(signal(run, "go", request));
    let woken = other.shards[0].run(run).expect("a run").clone();
    assert_eq!((woken.status(), woken.rev.0), (Status::Runnable, 4));
    assert_eq!(FORMAT, 1);
}

/// SE-9, SE-11, SE-16: a parked run says what it waits for, under which token, until when, and where it resumes.
#[test]
fn a_wait_has_a_kind_a_token_an_end_and_a_resume_point() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    let wait = Outcome::Await {
        signals: vec!["paid".into()],
        then: Some("ship".into()),
        deadline: Some(abide_kernel::Moment::In(500)),
        state: payload(r#"{"s":1}"#),
    };
    world.ask(complete(&world, run, wait));
    let shown = show(&mut world, run);
    let Phase::Waiting(wait) = &shown.cursors[0].phase else { panic!("it waits") };
    assert!(matches!(&wait.kind, WaitKind::Signal { names, .. } if &*names[0] == "paid"));
    assert_eq!((wait.token, wait.until), (1, Some(BASE.after(500))));
    assert_eq!(wait.then.as_deref(), Some("ship"));
    let json = serde_json::to_value(&shown).expect("json");
    assert_eq!(json["state"]["s"], 1);
    assert_eq!(json["cursors"][0]["phase"]["waiting"]["token"], 1);
    assert_eq!(json["cursors"][0]["step"], "begin");
    assert_eq!(serde_json::from_value::<Run>(json).expect("a run"), shown, "it reads back");
}

/// SE-12, SE-13, SE-14: the last signal used, the last error and who executed last are kept.
#[test]
fn the_last_signal_error_and_executor_are_kept() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    for _ in 0..2 {
        let request = world.request();
        world.ask(signal(run, "go", request));
    }
    world.claim("w1", 1);
    world.tick(7);
    let mut handled = completing(&world, run, next("pay"));
    handled.error = Some(Arc::new(ErrorInfo::retryable("timeout", "no answer")));
    world.ask(Command::Complete { run, completing: handled });
    let shown = show(&mut world, run);
    assert_eq!(shown.last_signal, Some(2));
    let error = shown.last_error.expect("an error");
    assert_eq!((&*error.code, error.retryable), ("timeout", true));
    let last = shown.last_executed.expect("an executor");
    assert_eq!((&*last.by, last.at), ("w1", BASE.after(7)));
}

/// SE-19, SE-20, SE-21: an envelope names its sender, receiver and number, and says in compact JSON what happened; it
/// never carries a whole run.
#[test]
fn envelopes_are_compact_and_numbered() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    let specs: Vec<StartSpec> = (0..8).map(|n| limited(&format!("c{n}"))).collect();
    world.ask(complete(&world, parent, spawn(specs)));
    world.claim("w1", 9);
    let children: Vec<RunId> = show(&mut world, parent).children.iter().map(|c| c.id).collect();
    for child in children {
        world.ask(complete(&world, child, done()));
    }
    let mut kinds = std::collections::BTreeSet::new();
    for disk in &world.disks {
        let mut last = std::collections::BTreeMap::new();
        for envelope in &disk.outbox {
            let number = last.entry(envelope.to).or_insert(0);
            *number += 1;
            assert_eq!(envelope.number, *number, "dense per receiver");
            kinds.insert(envelope.message.kind());
            let text = serde_json::to_string(envelope).expect("json");
            assert!(!text.contains('\n') && !text.contains(": "), "compact");
            assert!(!text.contains("cursors"), "no whole run");
            assert_eq!(serde_json::from_str::<Envelope>(&text).expect("it reads back"), *envelope);
        }
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["begin", "child_ended"]);
}

/// SE-42: a dead letter keeps the attempt as it was scheduled, the reason, the node and the time; so does an envelope
/// for a run that is damaged.
#[test]
fn a_dead_letter_keeps_everything() {
    let mut world = world(4);
    let run = world.start(StartSpec { deliveries_max: Some(1), ..flow() });
    world.claim("w1", 1);
    world.tick(1_000);
    let shown = show(&mut world, run);
    let Phase::DeadLettered(letter) = &shown.cursors[0].phase else { panic!("a dead letter") };
    assert_eq!((&*letter.node, letter.at), ("node", BASE.after(1_000)));
    assert_eq!(&*letter.reason.code, "deliveries_exhausted");
    assert_eq!((letter.envelope.turn, letter.envelope.step.as_deref()), (1, Some("begin")));

    let home = world.home(run);
    let damaged = RunId::new(world.now, run.slot(), 9);
    let envelope = Envelope {
        from: abide_kernel::ShardId(((home + 1) % 4) as u16),
        to: abide_kernel::ShardId(home as u16),
        number: 1,
        message: Message::ParentPurged { run: damaged, parent: run },
    };
    world.loads_held = true;
    world.shards[home].receive(world.now, envelope.clone());
    world.settle();
    world.waiting_loads.clear();
    let corrupt = abide_kernel::shard::Loaded::Corrupt("bad checksum".into());
    world.shards[home].loaded_run(world.now, damaged, corrupt);
    world.loads_held = false;
    world.settle();
    let dead = world.disks[home].dead.values().next().expect("a dead letter");
    assert_eq!((&dead.envelope, &*dead.reason), (&envelope, "bad checksum"));
    assert_eq!(world.disks[home].consumed[(home + 1) % 4], 1, "it is set aside, not in the way");
}

/// GD-46: a batch of starts is one commit; duplicates of what exists and within the batch are rejected, and the answers
/// name the runs that were really inserted.
#[test]
fn a_batch_of_starts_is_one_commit() {
    for shards in [1, 4] {
        let mut world = world(shards);
        let existing = world.start(keyed("a"));
        world.flush();
        world.held = true;
        world.loads_held = true;
        let keys = ["a", "b", "b", "c", "c", "b"];
        let tickets: Vec<_> = keys
            .iter()
            .map(|key| {
                let request = world.request();
                (world.submit(start(request, keyed(key))), keyed(key).run_id(request))
            })
            .collect();
        world.loads_held = false;
        world.settle();
        let gathered: usize = world.shards.iter().map(|shard| shard.gathered()).sum();
        assert_eq!(gathered, 2, "b and c, in one batch per shard");
        world.held = false;
        world.settle();
        let created: Vec<bool> = tickets
            .into_iter()
            .map(|(ticket, id)| match world.answer(ticket) {
                Some(Answer::Started(StartAnswer::Created(run))) => run == id,
                Some(Answer::Started(StartAnswer::Rejected { reason: RejectReason::KeyTaken, .. })) => false,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(created, [false, true, false, true, false, false]);
        assert_eq!(show(&mut world, existing).status(), Status::Runnable);
        check::check(&world);
    }
}

/// BU-5, BU-6: with `reuse`, the same input in another spelling is the same input; other input is rejected.
#[test]
fn reuse_compares_inputs_by_meaning() {
    let mut world = world(4);
    let spec = |input: &str| {
        let mut spec = limited("far");
        spec.key = keyed("k").key;
        spec.key.as_mut().expect("a key").on_conflict = OnConflict::Reuse;
        spec.input = payload(input);
        spec
    };
    let run = world.start(spec(r#"{"a":1,"b":2}"#));
    let mut ask = |input: &str| {
        let request = world.request();
        world.ask(start(request, spec(input)))
    };
    assert_eq!(ask(r#"{ "b":2, "a":1 }"#), Answer::Started(StartAnswer::Reused(run)));
    assert_eq!(ask(r#"{"a":1}"#), Answer::Started(StartAnswer::Rejected { by: run, reason: RejectReason::OtherInput }));
}

/// GD-16, D26: a failure nobody answers ends the run with its structured error; there is no attempt limit unless a
/// policy says so.
#[test]
fn a_failure_without_policy_ends_the_run() {
    let mut world = world(1);
    let fail = |world: &World, run, retry| Command::Fail {
        run,
        failing: Box::new(Failing {
            claim: world.dispatches[&run].claim.number,
            token: token("w1"),
            error: Arc::new(ErrorInfo::retryable("panic", "the handler raised")),
            retry,
            seed: 3,
            entries: Vec::new(),
            reopen: Vec::new(),
            set_aside: false,
        }),
    };
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(fail(&world, run, None));
    let shown = show(&mut world, run);
    assert_eq!(shown.status(), Status::Failed);
    assert_eq!(&*shown.last_error.expect("an error").code, "panic");
    let run = world.start(flow());
    let policy = abide_kernel::RetryPolicy { delay_ms: 0, ..abide_kernel::RetryPolicy::exponential(0) };
    for retries in 0..50 {
        assert_eq!(world.claim("w1", 1), 1);
        assert_eq!(world.dispatches[&run].retries, retries, "the counter goes on");
        world.ask(fail(&world, run, Some(policy)));
    }
}

/// D29, BU-15: the visit that names a step's effects is the same for every attempt, and another for the next step.
#[test]
fn a_visit_is_stable_across_attempts() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    let first = world.dispatches[&run].clone();
    world.tick(1_000);
    world.claim("w1", 1);
    let second = world.dispatches[&run].clone();
    assert_eq!((first.visit, first.epoch), (second.visit, second.epoch));
    assert_ne!(first.turn, second.turn);
    world.ask(complete(&world, run, next("begin")));
    world.claim("w1", 1);
    assert_ne!(world.dispatches[&run].visit, second.visit, "entered again, although it has the same name");
}

/// BU-16, GD-2, GD-18: a crash before the commit runs the step again from the state before it.
#[test]
fn a_step_that_was_not_committed_runs_again() {
    let mut world = world(1);
    let mut hand = Hand::new("w2", &["flow"]);
    hand.local = true;
    world.join(hand);
    let run = world.start(flow());
    world.claim("w2", 1);
    let lost = complete(&world, run, Outcome::Next { step: "pay".into(), state: payload(r#"{"n":2}"#) });
    world.held = true;
    world.submit(lost);
    world.held = false;
    world.crash(Crash::BeforeAppend);
    world.claim("w1", 1);
    let again = &world.dispatches[&run];
    assert_eq!((&*again.step, again.state.text(), again.reclaims), ("begin", "{}", 1));
}

/// D4, GD-35: a lost worker counts as a reclaim and a failure as a retry; both are the attempt, and a next step resets
/// them.
#[test]
fn retries_and_reclaims_are_counted_apart() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.tick(1_000);
    world.claim("w1", 1);
    world.ask(complete(&world, run, Outcome::Replay { state: Payload::null(), delay_ms: 0 }));
    world.claim("w1", 1);
    let seen = &world.dispatches[&run];
    assert_eq!((seen.retries, seen.reclaims), (1, 1));
    world.ask(complete(&world, run, next("pay")));
    world.claim("w1", 1);
    let seen = &world.dispatches[&run];
    assert_eq!((seen.retries, seen.reclaims), (0, 0));
}

/// GD-51, D25: a run is pinned to the definition of its first claim; a worker with another one never gets it.
#[test]
fn a_run_finishes_on_the_definition_it_began_with() {
    let mut world = World::new(1);
    world.join(Hand::new("old", &["flow@1#7"]));
    world.join(Hand::new("new", &["flow@1#8", "flow@2#9"]));
    let run = world.start(flow());
    world.claim("old", 1);
    world.ask(complete(&world, run, next("pay")));
    assert_eq!(world.claim("new", 9), 0);
    world.crash(Crash::BeforeAppend);
    assert_eq!(world.claim("new", 9), 0);
    assert_eq!(world.claim("old", 9), 1);
    let pinned = show(&mut world, run).fingerprint.expect("a fingerprint");
    assert_eq!(pinned.0, 7);
}

/// SQ-21, SQ-20: an intent that comes twice is nothing new, and a lost wake-up costs nothing: the attempt is found
/// again after a restart from the log alone.
#[test]
fn a_visible_attempt_is_found_again_from_the_log_alone() {
    let mut world = world(1);
    let run = world.start(flow());
    let Some(Fact::Scheduled(intent)) = world.disks[0].rows[0].facts.last().cloned() else { panic!("an intent") };
    let again = Command::Schedule { run, intent };
    assert!(matches!(world.ask(again), Answer::Recorded { duplicate: true, .. }));
    world.flush();
    world.forget_index();
    world.crash(Crash::BeforeAppend);
    assert_eq!(world.claim("w1", 9), 1);
}

/// SE-33, GD-21: a signal that is sent again after its answer was lost is one signal, whether its first batch was kept
/// or not.
#[test]
fn a_signal_sent_twice_is_one() {
    for how in [Crash::BeforeAppend, Crash::AfterAppend] {
        let mut world = world(1);
        let run = world.start(flow());
        let request: RequestId = world.request();
        world.held = true;
        world.submit(signal(run, "go", request));
        world.held = false;
        world.crash(how);
        let answer = world.ask(signal(run, "go", request));
        assert!(
            matches!(answer, Answer::Signalled(a) if a.signal == 1 && a.duplicate == (how == Crash::AfterAppend)),
            "{answer:?}"
        );
        assert_eq!(show(&mut world, run).inbox.len(), 1);
        let by = world.request();
        world.ask(cancel(run, by, false));
        assert!(matches!(world.ask(signal(run, "go", request)), Answer::Signalled(a) if a.duplicate));
    }
}

/// SQ-30, SQ-41: what a worker gets names the attempt, the step, the input, the claim and the end of its lease; a
/// heartbeat answers with the new end.
#[test]
fn a_dispatch_is_a_work_item() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    let item = world.dispatches[&run].clone();
    assert_eq!((item.claim.run, item.cursor, item.turn), (run, 0, 1));
    assert_eq!((&*item.step, item.state.text()), ("begin", "{}"));
    assert_eq!((item.claim.number, item.lease_until), (1, BASE.after(1_000)));
    world.tick(100);
    let beat = Command::Heartbeat { claim: item.claim, token: token("w1") };
    assert_eq!(world.ask(beat), Answer::Extended { lease_until: BASE.after(1_100) });
    let claimant = show(&mut world, run).cursors[0].claimant.clone().expect("a claimant");
    assert_eq!((&*claimant.owner, claimant.token), ("w1", token("w1")));
    assert!(matches!(world.ask(complete(&world, run, done())), Answer::Recorded { rev, .. } if rev.0 == 3));
}

/// GD-33: between its dispatch and its completion a step holds nothing but its claim: nothing waits to be written, and
/// other runs are committed meanwhile.
#[test]
fn a_step_runs_outside_any_commit() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    assert!(!world.shards[0].wants_append());
    let other = world.start(flow());
    world.claim("w1", 1);
    assert!(matches!(world.ask(complete(&world, other, done())), Answer::Recorded { .. }));
    world.flush();
    assert!(!world.shards[0].wants_append());
    assert!(matches!(world.ask(complete(&world, run, done())), Answer::Recorded { .. }));
}

/// SQ-31: who wakes and who claims does not matter: a loop that looks by itself, a runner that is told, and one that
/// takes over after a crash leave the same journal of claims and results behind.
#[test]
fn any_runner_may_claim_and_the_journal_decides() {
    let mut journals = Vec::new();
    for runner in ["looks", "told", "after a crash"] {
        let mut world = World::new(1);
        world.notify = runner == "told";
        world.crash(Crash::BeforeAppend);
        world.join(Hand::new("w1", &["flow"]));
        let run = world.start(flow());
        match runner {
            "looks" => assert!(world.has_work("w1")),
            "told" => assert!(
                world
                    .outputs
                    .iter()
                    .any(|o| matches!(o, abide_kernel::shard::Output::Scheduled { run: told, .. } if *told == run))
            ),
            _ => world.crash(Crash::BeforeAppend),
        }
        assert_eq!(world.claim("w1", 9), 1);
        world.ask(complete(&world, run, done()));
        let facts: Vec<String> =
            world.disks[0].rows.iter().map(|row| serde_json::to_string(&row.facts).expect("json")).collect();
        journals.push(facts);
    }
    assert_eq!(journals[0], journals[1]);
    assert_eq!(journals[0], journals[2]);
}

/// A run that begins again counts its lives and says when the last one began; a next step is no beginning.
#[test]
fn a_run_knows_when_it_last_began() {
    let mut world = world(1);
    let run = world.start(flow());
    for (life, outcome) in [(0, next("two")), (1, again()), (2, again())] {
        assert_eq!(world.claim("w1", 1), 1);
        world.tick(10);
        world.ask(complete(&world, run, outcome));
        let shown = show(&mut world, run);
        let begun = if life == 0 { BASE } else { world.now };
        assert_eq!((shown.continuations, shown.begun_at, shown.created_at), (life, begun, BASE));
    }
}

fn again() -> Outcome {
    Outcome::ContinueAsNew { input: payload("{}") }
}

/// What is kept in a log and compared with what a later release computes stays the same for ever: the digests by which a
/// duplicate is told from a conflict, and the id of the record that holds a key.
#[test]
fn what_a_later_release_computes_is_the_same() {
    let mut world = world(1);
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    world.ask(complete(&world, run, next("two")));
    let digest = |world: &World| {
        let run = world.folded(run).expect("a run");
        run.cursors[0].completion.map(|recorded| recorded.digest)
    };
    assert_eq!(digest(&world), Some(7_741_685_163_388_846_277));
    assert_eq!(world.claim("w1", 1), 1);
    let failing = Failing {
        claim: 2,
        token: token("w1"),
        error: Arc::new(ErrorInfo::terminal("code", "message")),
        retry: None,
        seed: 1,
        entries: Vec::new(),
        reopen: Vec::new(),
        set_aside: false,
    };
    world.ask(Command::Fail { run, failing: Box::new(failing) });
    assert_eq!(digest(&world), Some(2_718_883_232_054_156_263));
    let request = RequestId::new(BASE, 7);
    let id = RunId::new(BASE, keyed("k").home_slot(request), u128::MAX);
    assert_eq!(starting::reservation_id(id, &keyed("k"), request).to_string(), "run_00e8d4a510005ae0923e4b1b9e710b8a");
}

/// A lease is journaled when a third of it has passed, and the journal says until when.
#[test]
fn a_journaled_lease_is_the_one_that_counts() {
    let mut world = world(1);
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    let claim = world.dispatches[&run].claim;
    let beats = |world: &World| {
        let facts = world.disks[0].rows.iter().flat_map(|row| &row.facts);
        facts.filter(|fact| fact.kind() == "heartbeat").count()
    };
    for (ms, journaled, until) in [(300, 0, 1_000), (100, 1, 1_400), (100, 1, 1_400), (300, 2, 1_800)] {
        world.tick(ms);
        world.ask(Command::Heartbeat { claim, token: token("w1") });
        let run = world.folded(run).expect("a run");
        let Phase::Claimed(held) = &run.cursors[0].phase else { panic!("it is claimed") };
        assert_eq!((beats(&world), held.lease_until), (journaled, BASE.after(until)));
    }
    let mut other = world.folded(run).expect("a run");
    let beat = Heartbeat { cursor: 0, claim: 9, lease_until: BASE };
    other.apply(&Fact::Heartbeat(beat), Meta { seq: Seq(99), at: BASE });
    assert_eq!(Some(other.cursors), world.folded(run).map(|run| run.cursors), "a beat of another claim");
}

/// SQ-21, SQ-22: an intent from outside is taken where a step is planned and has none; the same again is nothing new, and
/// anything else contradicts the facts.
#[test]
fn an_intent_from_outside_must_fit() {
    let mut world = world(1);
    let plan = |step: &str, needs: &[&str]| PlannedStep {
        step: step.into(),
        needs: needs.iter().map(|need| (*need).into()).collect(),
    };
    let run = world.start(StartSpec { steps: vec![plan("a", &[]), plan("b", &["a"])], ..flow() });
    let mut state = world.folded(run).expect("a run");
    let (now, later) = (world.now, world.now.after(50));
    let wanted = |turn: u32, step: &str, visible_at: Option<Timestamp>| Scheduled {
        cursor: 0,
        turn,
        step: Some(step.into()),
        visible_at,
    };
    let told = |state: &Run, wanted: &Scheduled| -> Vec<String> {
        let kind = |fact: &Fact| match fact {
            Fact::Anomaly(anomaly) => anomaly.kind.to_string(),
            other => other.kind().to_owned(),
        };
        schedule::decide(state, wanted, now).iter().map(kind).collect()
    };
    let nothing: [&str; 0] = [];
    // It stands since now, under turn 1.
    for (same, turn, step, at) in [
        (true, 1, "a", None),
        (true, 1, "a", Some(now)),
        (false, 1, "a", Some(later)),
        (false, 2, "a", None),
        (false, 2, "a", Some(now)),
        (false, 1, "b", None),
        (false, 1, "b", Some(now)),
    ] {
        let expected = if same { &nothing[..] } else { &["conflicting_intent"][..] };
        assert_eq!(told(&state, &wanted(turn, step, at)), expected, "{turn} {step} {at:?}");
    }
    let waits = Scheduled { cursor: 1, turn: 1, step: Some("b".into()), visible_at: None };
    assert_eq!(told(&state, &waits), ["conflicting_intent"], "its needs are not met");
    assert_eq!(told(&state, &Scheduled { cursor: 7, ..waits }), ["unknown_runnable_intent"]);
    state.cursors[0].phase = Phase::Scheduled { visible_at: later, arrival: Seq(1) };
    assert_eq!(told(&state, &wanted(1, "a", None)), ["conflicting_intent"], "it stands for later");
    state.cursors[0].phase = Phase::Planned { visible_at: None };
    for (turn, step, kind) in [(2, "a", "scheduled"), (3, "a", "conflicting_intent"), (2, "b", "conflicting_intent")] {
        assert_eq!(told(&state, &wanted(turn, step, None)), [kind]);
    }
    for (at, kept) in [(later, Some(later)), (now, None)] {
        let facts = schedule::decide(&state, &wanted(2, "a", Some(at)), now);
        assert!(matches!(&facts[..], [Fact::Scheduled(scheduled)] if scheduled.visible_at == kept), "{facts:?}");
    }
}
