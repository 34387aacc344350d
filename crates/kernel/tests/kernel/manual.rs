//! Manual boundaries: one at a time, asked of people, decided once, and remembered.

use crate::support::act::{cancel, complete, completing, done, flow, payload, show};
use crate::support::check::check;
use crate::support::{BASE, Crash, Hand, World, token};
use abide_kernel::explain::{Reason, Surroundings, explain};
use abide_kernel::limits::{MANUAL_EVENTS_MAX, MANUALS_MAX, NAME_BYTES_MAX, ROLES_MAX};
use abide_kernel::shard::{Answer, Command, Output};
use abide_kernel::transition::manual::{self, Asking, Assigning, Deciding};
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::{
    BoundaryId, Choice, Decided, Fact, Manual, ManualEvent, ManualKind, Moment, OnTimeout, OpState, Outcome, Payload,
    Refusal, RequestId, RunId, Status,
};

const SUSPEND: Outcome = Outcome::Suspend { seen: 0 };

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand { lease_ms: 1_000_000, ..Hand::new("w1", &["flow"]) });
    world
}

fn asking(kind: ManualKind) -> Asking {
    Asking { payload: payload(r#"{"amount":5}"#), ..Asking::new(kind) }
}

fn intend(op: u32, key: &str, asking: Asking) -> Entry {
    Entry::Intend { op, key: key.into(), input: 0, what: Wanted::Manual(Box::new(asking)) }
}

/// A step returns `outcome` and writes `entries` beside it.
fn returns(world: &mut World, run: RunId, outcome: Outcome, entries: Vec<Entry>) -> Answer {
    let mut completing = completing(world, run, outcome);
    completing.entries = entries;
    world.ask(Command::Complete { run, completing })
}

/// A run that waits for a person at entry 1 of its ledger.
fn parked(world: &mut World, asking: Asking) -> RunId {
    let run = world.start(flow());
    world.claim("w1", 1);
    let answer = returns(world, run, SUSPEND, vec![intend(1, "spend", asking)]);
    assert!(matches!(answer, Answer::Recorded { .. }), "{answer:?}");
    run
}

fn record(world: &mut World, run: RunId, entries: Vec<Entry>) -> Answer {
    let claim = world.dispatches[&run].claim.number;
    world.ask(Command::Record { run, recording: Box::new(Recording { claim, token: token("w1"), entries }) })
}

fn deciding(request: RequestId, op: u32, choice: Choice, actor: &str) -> Deciding {
    let payload = payload(r#"{"ok":true}"#);
    Deciding { op, choice, actor: actor.into(), roles: Vec::new(), note: Some("seen".into()), payload, request }
}

fn decide(world: &mut World, run: RunId, op: u32, choice: Choice, actor: &str) -> Answer {
    let deciding = Box::new(deciding(world.request(), op, choice, actor));
    world.ask(Command::Decide { run, deciding })
}

fn assign(world: &mut World, run: RunId, to: Option<&str>, actor: &str, take_over: bool) -> Answer {
    let request = world.request();
    let (to, actor) = (to.map(Into::into), actor.into());
    let assigning = Assigning { op: 1, to, actor, roles: Vec::new(), note: None, take_over, request };
    world.ask(Command::Assign { run, assigning: Box::new(assigning) })
}

fn refused(answer: Answer) -> Refusal {
    match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn recorded(answer: &Answer) -> bool {
    matches!(answer, Answer::Recorded { duplicate: false, .. })
}

fn anomalies(world: &mut World, run: RunId) -> Vec<String> {
    show(world, run).anomalies.iter().map(|seen| seen.anomaly.kind.to_string()).collect()
}

fn events(manual: &Manual) -> Vec<&'static str> {
    manual.events.iter().map(|event| event.kind.name()).collect()
}

/// The kinds of the facts in the run's last row.
fn last_row(world: &World, run: RunId) -> Vec<&'static str> {
    let row = world.disks[world.home(run)].rows.iter().rfind(|row| row.run == run).expect("a row");
    row.facts.iter().map(Fact::kind).collect()
}

/// SQ-56, SE-10, D27: a boundary is a fact of the run with step, kind, time and payload, and the run says which is open.
#[test]
fn a_run_that_asks_for_a_person_says_so() {
    let mut world = world();
    let roles = vec!["finance".into()];
    let run = parked(&mut world, Asking { roles, deadline: Some(Moment::In(500)), ..asking(ManualKind::Approval) });
    let shown = show(&mut world, run);
    assert_eq!(shown.status(), Status::AwaitingDecision);
    let open = shown.boundary().expect("a boundary");
    assert_eq!((open.asked.op, open.asked.kind, &*open.asked.step), (1, ManualKind::Approval, "begin"));
    assert_eq!((&*open.asked.key, open.asked.payload.text()), ("spend", r#"{"amount":5}"#));
    assert_eq!((open.at(), open.asked.until), (BASE, Some(BASE.after(500))));
    assert_eq!(shown.boundary_id(open), BoundaryId { run, op: 1 });
    assert_eq!(shown.next_due(), Some(BASE.after(500)));
    let row = &world.disks[0].rows.last().expect("a row").facts;
    assert!(matches!(&row[0], Fact::Asked(asked) if asked.kind == ManualKind::Approval), "{row:?}");
}

/// SQ-57, SE-23: a decision, the end of the wait and the next attempt are one row; the step gets the decision whole.
#[test]
fn a_decision_and_what_follows_are_one_row() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Approval));
    assert!(recorded(&decide(&mut world, run, 1, Choice::Approve, "ada")));
    assert_eq!(last_row(&world, run), ["decided", "resulted", "woken", "scheduled"]);
    world.claim("w1", 1);
    let OpState::Done { value, .. } = world.dispatches[&run].ops[0].state.clone() else {
        panic!("expected a decision");
    };
    let decided: Decided = value.decode().expect("a decision");
    assert_eq!(
        (decided.choice, decided.actor.as_deref(), decided.note.as_deref()),
        (Choice::Approve, Some("ada"), Some("seen"))
    );
    assert_eq!(decided.payload.text(), r#"{"ok":true}"#);
    check(&world);
}

/// SQ-57: a step that still executes hears of the decision at once.
#[test]
fn a_decision_is_told_to_the_step_that_executes() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    record(&mut world, run, vec![intend(1, "go", asking(ManualKind::Pause))]);
    world.outputs.clear();
    assert!(recorded(&decide(&mut world, run, 1, Choice::Resume, "ada")));
    let told = world.outputs.iter().find_map(|output| match output {
        Output::Told { id, op, .. } => Some((*id, op.state.clone())),
        _ => None,
    });
    assert!(matches!(told, Some((1, OpState::Done { .. }))), "{told:?}");
}

/// SQ-58: the same boundary asked for again is nothing new. SQ-59: another one beside it is an anomaly and changes nothing.
#[test]
fn one_boundary_at_a_time() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    assert!(recorded(&record(&mut world, run, vec![intend(1, "spend", asking(ManualKind::Pause))])));
    let again = record(&mut world, run, vec![intend(1, "spend", asking(ManualKind::Pause))]);
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
    let before = show(&mut world, run);
    for (op, kind) in [(2, ManualKind::Pause), (1, ManualKind::Task)] {
        let second = record(&mut world, run, vec![intend(op, "other", asking(kind))]);
        assert_eq!(refused(second), Refusal::SecondBoundary { op, open: 1 });
    }
    let both = vec![
        Entry::Withdraw { op: 1 },
        intend(2, "b", asking(ManualKind::Task)),
        intend(3, "c", asking(ManualKind::Task)),
    ];
    assert_eq!(refused(record(&mut world, run, both)), Refusal::SecondBoundary { op: 3, open: 2 });
    let after = show(&mut world, run);
    assert_eq!((after.manual, after.ops, after.open), (before.manual, before.ops, before.open));
    assert_eq!(anomalies(&mut world, run), ["second_boundary"; 3]);
    check(&world);
}

/// SQ-57: a retry of the request that decided gets the first answer. SQ-59: a second decision and one that names another boundary are
/// anomalies, and the first stands.
#[test]
fn a_duplicate_is_answered_and_a_second_is_refused() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Approval));
    assert_eq!(
        refused(decide(&mut world, run, 7, Choice::Approve, "ada")),
        Refusal::StaleBoundary { op: 7, current: Some(1) }
    );
    let first = Box::new(deciding(world.request(), 1, Choice::Approve, "ada"));
    assert!(recorded(&world.ask(Command::Decide { run, deciding: first.clone() })));
    let again = world.ask(Command::Decide { run, deciding: first.clone() });
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
    let decided = Refusal::AlreadyDecided { op: 1, decided: "approved".into(), by: Some("ada".into()) };
    assert_eq!(refused(decide(&mut world, run, 1, Choice::Reject, "bob")), decided);
    assert_eq!(anomalies(&mut world, run), ["stale_decision", "second_decision"]);
    let shown = show(&mut world, run);
    assert_eq!(shown.manual(1).and_then(Manual::decided).map(|decided| decided.choice), Some(Choice::Approve));
    // Also after the run has ended, and its record was read back.
    world.claim("w1", 1);
    world.ask(complete(&world, run, done()));
    world.flush();
    world.crash(Crash::AfterAppend);
    let again = world.ask(Command::Decide { run, deciding: first });
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
}

/// SQ-59, SQ-61: the end of a run clears its boundary; a decision after it is an anomaly and changes nothing.
#[test]
fn a_run_that_ends_asks_nobody() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Task));
    let request = world.request();
    world.ask(cancel(run, request, false));
    let shown = show(&mut world, run);
    assert_eq!((shown.status(), shown.boundary()), (Status::Cancelled, None));
    assert_eq!(events(&shown.manual[0]), ["created", "closed"]);
    let late = refused(decide(&mut world, run, 1, Choice::Complete, "ada"));
    assert_eq!(late, Refusal::RunOver { run, status: Status::Cancelled });
    assert_eq!(anomalies(&mut world, run), ["run_terminal"]);
    assert_eq!(show(&mut world, run).manual, shown.manual);
    check(&world);
}

/// D27: at the deadline the wait is over and the code decides; what comes later is refused as late.
#[test]
fn a_deadline_ends_the_wait() {
    let mut world = world();
    let run = parked(&mut world, Asking { deadline: Some(Moment::In(500)), ..asking(ManualKind::Approval) });
    world.tick(499);
    assert_eq!(show(&mut world, run).status(), Status::AwaitingDecision);
    world.tick(1);
    assert_eq!(last_row(&world, run), ["resulted", "woken", "scheduled"]);
    let shown = show(&mut world, run);
    assert!(matches!(shown.ops[0].state, OpState::Elapsed { .. }));
    assert_eq!((shown.manual[0].end.as_ref().map(|end| end.name()), shown.boundary()), (Some("timed_out"), None));
    let late = refused(decide(&mut world, run, 1, Choice::Approve, "ada"));
    assert_eq!(late, Refusal::DecisionLate { op: 1, until: BASE.after(500) });
    assert_eq!(anomalies(&mut world, run), ["late_decision"]);
    check(&world);
}

/// D27: a default decision is recorded as one, by nobody.
#[test]
fn a_deadline_may_decide() {
    let mut world = world();
    let on_timeout = OnTimeout::Decide { choice: Choice::Reject, payload: payload("1") };
    let late = Asking { deadline: Some(Moment::In(500)), on_timeout, ..asking(ManualKind::Approval) };
    let run = parked(&mut world, late.clone());
    world.tick(500);
    assert_eq!(last_row(&world, run), ["decided", "resulted", "woken", "scheduled"]);
    let shown = show(&mut world, run);
    let decided = shown.manual[0].decided().expect("a decision");
    assert_eq!((decided.choice, &decided.actor, decided.payload.text()), (Choice::Reject, &None, "1"));
    // A deadline that has come when it is asked decides at once.
    world.claim("w1", 1);
    let now = Asking { deadline: Some(Moment::In(0)), ..late };
    returns(&mut world, run, Outcome::Suspend { seen: 1 }, vec![intend(2, "again", now)]);
    let shown = show(&mut world, run);
    assert_eq!((shown.status(), shown.manual(2).and_then(Manual::decided).is_some()), (Status::Runnable, true));
    check(&world);
}

/// SE-3, SE-4: a task is assigned, released and reassigned by events that are only added, and done by whoever has it.
#[test]
fn a_task_goes_from_hand_to_hand() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Task));
    assert!(recorded(&assign(&mut world, run, Some("ada"), "ada", false)));
    assert_eq!(last_row(&world, run), ["assigned"]);
    let same = assign(&mut world, run, Some("ada"), "ada", false);
    assert!(matches!(same, Answer::Recorded { duplicate: true, .. }), "{same:?}");
    let theirs = Refusal::NotAssignee { op: 1, assignee: "ada".into() };
    assert_eq!(refused(assign(&mut world, run, Some("bob"), "bob", false)), theirs);
    assert_eq!(refused(assign(&mut world, run, None, "bob", false)), theirs);
    assert_eq!(refused(decide(&mut world, run, 1, Choice::Complete, "bob")), theirs);
    assert!(recorded(&assign(&mut world, run, None, "ada", false)));
    assert!(recorded(&assign(&mut world, run, Some("bob"), "bob", false)));
    assert!(recorded(&assign(&mut world, run, Some("eve"), "lead", true)));
    assert!(recorded(&decide(&mut world, run, 1, Choice::Complete, "eve")));
    let shown = show(&mut world, run);
    assert_eq!(events(&shown.manual[0]), ["created", "assigned", "released", "assigned", "reassigned", "completed"]);
    let last = shown.manual[0].events.last().expect("an event");
    assert_eq!((last.actor.as_deref(), last.note.as_deref()), (Some("eve"), Some("seen")));
    // Who may not is told so; it contradicts nothing.
    assert_eq!(anomalies(&mut world, run), [""; 0]);
    check(&world);
}

/// SE-4, AB-6: a retry of an assignment gets the first answer, and a task does not go round for ever.
#[test]
fn assignments_are_recognised_and_bounded() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Task));
    let request = world.request();
    let first = Assigning {
        op: 1,
        to: Some("ada".into()),
        actor: "ada".into(),
        roles: Vec::new(),
        note: None,
        take_over: false,
        request,
    };
    let claim = |world: &mut World| world.ask(Command::Assign { run, assigning: Box::new(first.clone()) });
    assert!(recorded(&claim(&mut world)));
    assert!(recorded(&assign(&mut world, run, None, "ada", false)));
    let again = claim(&mut world);
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
    assert_eq!(show(&mut world, run).manual[0].assignee, None);
    let mut refusal = None;
    for turn in 0..MANUAL_EVENTS_MAX {
        let to = ["ada", "bob"][turn % 2];
        if let Answer::Refused(found) = assign(&mut world, run, Some(to), "lead", true) {
            refusal.get_or_insert(found);
        }
    }
    assert!(matches!(refusal, Some(Refusal::Busy { .. })), "{refusal:?}");
    assert!(recorded(&assign_free(&mut world, run)), "the one who has it may still finish it");
    assert_eq!(show(&mut world, run).manual[0].events.len(), MANUAL_EVENTS_MAX);
}

/// Whoever has the task completes it.
fn assign_free(world: &mut World, run: RunId) -> Answer {
    let assignee = show(world, run).manual[0].assignee.clone().expect("somebody has it");
    decide(world, run, 1, Choice::Complete, &assignee)
}

/// SE-3: the roles in which somebody acts are recorded, and must be among those asked for.
#[test]
fn a_wrong_role_is_refused() {
    let mut world = world();
    let run = parked(&mut world, Asking { roles: vec!["finance".into()], ..asking(ManualKind::Approval) });
    let wrong = Refusal::WrongRole { op: 1, roles: vec!["finance".into()] };
    for roles in [vec![], vec!["sales".into()]] {
        let said = Deciding { roles, ..deciding(world.request(), 1, Choice::Approve, "ada") };
        assert_eq!(refused(world.ask(Command::Decide { run, deciding: Box::new(said) })), wrong);
    }
    assert_eq!(refused(assign(&mut world, run, Some("ada"), "ada", false)), wrong);
    let roles = vec!["sales".into(), "finance".into()];
    let said = Deciding { roles: roles.clone(), ..deciding(world.request(), 1, Choice::Approve, "ada") };
    assert!(recorded(&world.ask(Command::Decide { run, deciding: Box::new(said) })));
    assert_eq!(show(&mut world, run).manual[0].decided().map(|decided| decided.roles.clone()), Some(roles));
}

/// D27: each kind has its own words; what does not fit is refused and the boundary stays open.
#[test]
fn a_decision_must_fit_its_boundary() {
    for (kind, wrong) in [
        (ManualKind::Pause, Choice::Approve),
        (ManualKind::Approval, Choice::Complete),
        (ManualKind::Task, Choice::Reject),
    ] {
        let mut world = world();
        let run = parked(&mut world, asking(kind));
        assert_eq!(refused(decide(&mut world, run, 1, wrong, "ada")).code(), "invalid");
        assert_eq!(refused(decide(&mut world, run, 1, kind.choices()[0], "")).code(), "invalid");
        assert!(show(&mut world, run).boundary().is_some());
        assert!(recorded(&decide(&mut world, run, 1, kind.choices()[0], "ada")));
    }
}

/// SE-3, D1: what people were asked and did survives the loss of its step's ledger, compaction and a crash.
#[test]
fn history_survives_compaction() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Task));
    assign(&mut world, run, Some("ada"), "ada", false);
    decide(&mut world, run, 1, Choice::Complete, "ada");
    world.claim("w1", 1);
    world.ask(complete(&world, run, Outcome::ContinueAsNew { input: Payload::null() }));
    world.claim("w1", 1);
    returns(&mut world, run, SUSPEND_AGAIN, vec![intend(2, "spend", asking(ManualKind::Approval))]);
    world.ask(Command::Compact { run });
    world.flush();
    world.crash(Crash::AfterAppend);
    let shown = show(&mut world, run);
    assert!(shown.op(1).is_none(), "the ledger of the life before is gone");
    assert_eq!(events(&shown.manual[0]), ["created", "assigned", "completed"]);
    assert_eq!(shown.boundary().map(|open| open.asked.op), Some(2));
    assert!(recorded(&decide(&mut world, run, 2, Choice::Reject, "ada")));
    check(&world);
}

const SUSPEND_AGAIN: Outcome = Outcome::Suspend { seen: 1 };

/// SE-3: the history is bounded, and the oldest goes first.
#[test]
fn a_run_remembers_so_many() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    let most = MANUALS_MAX as u32;
    for op in 1..=most + 2 {
        let entries = vec![intend(op, &format!("b{op}"), asking(ManualKind::Pause)), Entry::Withdraw { op }];
        assert!(recorded(&record(&mut world, run, entries)));
    }
    let shown = show(&mut world, run);
    assert_eq!((shown.manual.len(), shown.manual[0].asked.op), (MANUALS_MAX, 3));
    let stale = refused(decide(&mut world, run, 1, Choice::Resume, "ada"));
    assert_eq!(stale, Refusal::StaleBoundary { op: 1, current: None });
}

/// SQ-59: what a step no longer waits for is withdrawn: by itself, or because its run begins again.
#[test]
fn what_nobody_waits_for_is_withdrawn() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    record(&mut world, run, vec![intend(1, "a", asking(ManualKind::Pause))]);
    assert!(recorded(&record(&mut world, run, vec![Entry::Withdraw { op: 1 }])));
    let again = record(&mut world, run, vec![Entry::Withdraw { op: 1 }]);
    assert!(matches!(again, Answer::Recorded { duplicate: true, .. }), "{again:?}");
    assert_eq!(refused(record(&mut world, run, vec![Entry::Withdraw { op: 9 }])).code(), "invalid");
    let stale = refused(decide(&mut world, run, 1, Choice::Resume, "ada"));
    assert_eq!(stale, Refusal::StaleBoundary { op: 1, current: None });
    let again = Outcome::ContinueAsNew { input: Payload::null() };
    returns(&mut world, run, again, vec![intend(2, "b", asking(ManualKind::Pause))]);
    let shown = show(&mut world, run);
    assert_eq!((shown.boundary(), events(&shown.manual[1])), (None, vec!["created", "closed"]));
    check(&world);
}

/// AB-1: a run that waits for a person says for whom, and which words answer.
#[test]
fn a_waiting_run_names_the_words_that_answer() {
    let mut world = world();
    let roles = vec!["finance".into()];
    let run = parked(&mut world, Asking { roles, deadline: Some(Moment::In(120_000)), ..asking(ManualKind::Approval) });
    world.tick(60_000);
    let told = explain(&world.folded(run).expect("a run"), &Surroundings::default(), world.now);
    let id = BoundaryId { run, op: 1 };
    assert_eq!(told.reason, Reason::AwaitingDecision(id));
    assert_eq!(
        told.sentence,
        "begin waits for approval \"spend\" by role finance since 1 min, for 1 min more at the longest"
    );
    assert_eq!(told.next_actions[0], format!("abide approval approve {id} --as NAME --role finance"));
    for (name, value) in [("boundary", id.to_string()), ("roles", "finance".into())] {
        assert!(told.evidence.contains(&(name.into(), value)), "{name} in {:?}", told.evidence);
    }

    let task = parked(&mut world, Asking { assignee: Some("ada".into()), ..asking(ManualKind::Task) });
    let told = explain(&world.folded(task).expect("a run"), &Surroundings::default(), world.now);
    assert!(told.sentence.contains("by ada"), "{}", told.sentence);
    let id = BoundaryId { run: task, op: 1 };
    assert_eq!(told.next_actions, [format!("abide task complete {id} --as ada --result JSON")]);
}

/// SE-3: what is asked is checked before it is written.
#[test]
fn a_question_must_be_fit_to_ask() {
    let long: abide_kernel::Str = "x".repeat(NAME_BYTES_MAX + 1).into();
    let decide = |choice: Choice| OnTimeout::Decide { choice, payload: Payload::null() };
    let fine = Asking {
        roles: vec!["role".into(); ROLES_MAX],
        assignee: Some("ada".into()),
        on_timeout: decide(Choice::Reject),
        ..asking(ManualKind::Approval)
    };
    assert_eq!(fine.validate(), Ok(()));
    for (unfit, code) in [
        (Asking { roles: vec!["role".into(); ROLES_MAX + 1], ..fine.clone() }, "too_large"),
        (Asking { roles: vec!["".into()], ..fine.clone() }, "invalid"),
        (Asking { assignee: Some(long), ..fine.clone() }, "too_large"),
        (Asking { on_timeout: decide(Choice::Resume), ..fine.clone() }, "invalid"),
    ] {
        let mut world = world();
        let run = world.start(flow());
        world.claim("w1", 1);
        assert_eq!(refused(record(&mut world, run, vec![intend(1, "spend", unfit)])).code(), code);
        assert!(show(&mut world, run).manual.is_empty(), "nobody is asked");
    }
}

/// SE-3, SE-4: every event says who did what, for whom, why, and by which request.
#[test]
fn an_event_says_it_all() {
    let mut world = world();
    let run = parked(&mut world, asking(ManualKind::Task));
    let (first, second) = (world.request(), world.request());
    let (to, note) = (Some("bob".into()), Some("yours".into()));
    let (roles, take_over) = (Vec::new(), false);
    let assigning = Assigning { op: 1, to, actor: "ada".into(), roles, note, take_over, request: first };
    assert!(recorded(&world.ask(Command::Assign { run, assigning: Box::new(assigning) })));
    let deciding = Box::new(deciding(second, 1, Choice::Complete, "bob"));
    assert!(recorded(&world.ask(Command::Decide { run, deciding })));
    let told = |event: &ManualEvent| {
        let text = |word: &Option<abide_kernel::Str>| word.as_deref().unwrap_or("-").to_owned();
        (text(&event.actor), text(&event.to), text(&event.note), event.request)
    };
    let events: Vec<_> = show(&mut world, run).manual[0].events.iter().map(told).collect();
    let words = |actor: &str, to: &str, note: &str| (actor.to_owned(), to.to_owned(), note.to_owned());
    let expected = [
        (words("-", "-", "-"), None),
        (words("ada", "bob", "yours"), Some(first)),
        (words("bob", "-", "seen"), Some(second)),
    ];
    assert_eq!(events, expected.map(|((actor, to, note), request)| (actor, to, note, request)));
}

/// A decision that comes at the deadline is late, also where nobody has looked at the clock since.
#[test]
fn a_decision_at_the_deadline_is_late() {
    let mut world = world();
    let until = world.now.after(100);
    let run = parked(&mut world, Asking { deadline: Some(Moment::At(until)), ..asking(ManualKind::Approval) });
    let state = world.folded(run).expect("a run");
    let deciding = deciding(world.request(), 1, Choice::Approve, "ada");
    assert!(manual::decide(&state, &deciding, world.now).is_ok());
    let late = manual::decide(&state, &deciding, until).expect_err("late");
    assert_eq!(late, Refusal::DecisionLate { op: 1, until });
}

/// D27: a step that comes back asks for the same under the same key; anything else is another question, and says which.
#[test]
fn a_question_is_known_by_kind_and_key() {
    let mut world = world();
    let run = world.start(flow());
    world.claim("w1", 1);
    assert!(recorded(&record(&mut world, run, vec![intend(1, "spend", asking(ManualKind::Approval))])));
    for (key, kind) in [("other", ManualKind::Approval), ("spend", ManualKind::Task)] {
        let other = refused(record(&mut world, run, vec![intend(1, key, asking(kind))]));
        assert_eq!(other, Refusal::SecondBoundary { op: 1, open: 1 });
    }
    assert!(recorded(&decide(&mut world, run, 1, Choice::Approve, "ada")));
    let other = refused(record(&mut world, run, vec![intend(1, "other", asking(ManualKind::Approval))]));
    assert_eq!(other.to_string(), r#"ledger entry: expected approval "spend", found approval "other""#);
}
