//! Updates: a run is asked, and answers. What the transcripts do not show: limits, orders, and crashes in between.

use crate::support::act::{cancel, completing, done, flow, payload, show};
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::limits::{ANSWERS_MAX, PAYLOAD_BYTES_MAX, UPDATES_MAX};
use abide_kernel::shard::{Answer, Command, Ticket, Told};
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::update::Requesting;
use abide_kernel::{ErrorInfo, OpState, Outcome, Payload, Refusal, Reply, RequestId, RunId, Status, UpdateState};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

fn claimed(world: &mut World) -> RunId {
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    run
}

fn update(run: RunId, name: &str, request: RequestId, told: Told) -> Command {
    let asked = Requesting { name: name.into(), input: payload("1"), dedup: None, request };
    Command::Update { run, asked: Box::new(asked), told }
}

fn ask(world: &mut World, run: RunId, name: &str) -> Ticket {
    let request = world.request();
    world.submit(update(run, name, request, Told::Answered))
}

fn accept(world: &mut World, run: RunId, name: &str) -> Answer {
    let request = world.request();
    world.ask(update(run, name, request, Told::Accepted))
}

fn record(world: &mut World, run: RunId, entries: Vec<Entry>) -> Answer {
    let claim = world.dispatches[&run].claim.number;
    world.ask(Command::Record { run, recording: Box::new(Recording { claim, token: token("w1"), entries }) })
}

fn wait(op: u32) -> Entry {
    let what = Wanted::Update { name: "go".into(), deadline: None };
    Entry::Intend { op, key: format!("go#{op}").into(), input: 0, what }
}

fn reply(op: u32, text: &str) -> Entry {
    Entry::Answer { op, reply: Reply::Value(payload(text)), unread: false }
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

fn answered(world: &mut World, ticket: Ticket, text: &str) {
    let answer = world.answer(ticket);
    assert!(matches!(&answer, Some(Answer::Answered(Reply::Value(value))) if value.text() == text), "{answer:?}");
}

/// D36: whoever waits for an end or an answer waits for a run, and only who waits or looks changes nothing.
#[test]
fn commands_say_what_they_wait_for_and_whether_they_change_anything() {
    let mut world = world();
    let run = world.start(flow());
    let request = world.request();
    let answered = update(run, "go", request, Told::Answered);
    let accepted = update(run, "go", request, Told::Accepted);
    assert!(answered.awaits() == Some(run) && !answered.changes_nothing());
    assert!(accepted.awaits().is_none() && !accepted.changes_nothing());
    assert!(Command::Watch { run }.awaits() == Some(run) && Command::Watch { run }.changes_nothing());
    for looks in [Command::Show { run }, Command::Unflushed] {
        assert!(looks.awaits().is_none() && looks.changes_nothing());
    }
}

/// AB-14: in whatever order a request and a park meet, the run wakes, and the caller gets the answer, once.
#[test]
fn every_interleaving_of_request_and_park_wakes_the_run() {
    for at in 0..4 {
        let mut world = world();
        let run = claimed(&mut world);
        let mut ticket = (at == 0).then(|| ask(&mut world, run, "go"));
        recorded(&record(&mut world, run, vec![wait(1)]));
        ticket = ticket.or_else(|| (at == 1).then(|| ask(&mut world, run, "go")));
        recorded(&suspend(&mut world, run, 0, vec![]));
        ticket = ticket.or_else(|| (at == 2).then(|| ask(&mut world, run, "go")));
        if at == 3 {
            world.flush();
            assert_eq!(world.resident_runs(), 0, "a run that waits to be asked leaves memory");
        }
        let ticket = ticket.unwrap_or_else(|| ask(&mut world, run, "go"));
        assert_eq!(world.answer(ticket), None, "{at}: nobody has answered");
        assert_eq!(world.claim("w1", 1), 1, "{at}: the run wakes");
        recorded(&record(&mut world, run, vec![Entry::See { op: 1 }, reply(1, "7")]));
        answered(&mut world, ticket, "7");
        check::check(&world);
    }
}

/// AB-14: a wait that is given up loses nothing, whenever the request came and wherever the next wait begins.
#[test]
fn what_a_wait_got_that_is_given_up_goes_to_the_next() {
    let orders: [&[&str]; 6] = [
        &["ask", "wait 1", "withdraw, wait 2"],
        &["wait 1", "ask", "withdraw, wait 2"],
        &["wait 1", "withdraw, wait 2", "ask"],
        &["wait 1", "ask", "wait 2, withdraw"],
        &["wait 1", "wait 2", "ask", "withdraw"],
        &["ask", "wait 1, withdraw, wait 2"],
    ];
    for order in orders {
        let mut world = world();
        let run = claimed(&mut world);
        let mut ticket = None;
        for row in order {
            if *row == "ask" {
                ticket = Some(ask(&mut world, run, "go"));
                continue;
            }
            let entries = row.split(", ").map(|word| match word {
                "wait 1" => wait(1),
                "wait 2" => wait(2),
                _ => Entry::Withdraw { op: 1 },
            });
            let entries = entries.collect();
            recorded(&record(&mut world, run, entries));
            check::check(&world);
        }
        recorded(&record(&mut world, run, vec![Entry::See { op: 2 }, reply(2, "2")]));
        answered(&mut world, ticket.expect("somebody asked"), "2");
        let shown = show(&mut world, run);
        assert!(matches!(shown.op(1).expect("an entry").state, OpState::Elapsed { .. }), "{order:?}");
        assert!(shown.open.is_empty(), "{order:?}");
        check::check(&world);
    }
}

/// AB-14: what the code has seen is not given to another wait: it is the code's to answer.
#[test]
fn what_the_code_has_seen_stays_with_it() {
    let mut world = world();
    let run = claimed(&mut world);
    let ticket = ask(&mut world, run, "go");
    recorded(&record(&mut world, run, vec![wait(1)]));
    recorded(&record(&mut world, run, vec![Entry::See { op: 1 }]));
    let nothing = record(&mut world, run, vec![Entry::Withdraw { op: 1 }]);
    assert!(matches!(nothing, Answer::Recorded { duplicate: true, .. }), "{nothing:?}");
    recorded(&record(&mut world, run, vec![reply(1, "1")]));
    answered(&mut world, ticket, "1");
}

/// AB-14: an update is answered once, by the step that got it, with something that can be kept.
#[test]
fn an_answer_that_may_not_be_is_refused() {
    let mut world = world();
    let run = claimed(&mut world);
    refused(&record(&mut world, run, vec![reply(1, "1")]), "invalid");
    recorded(&record(&mut world, run, vec![wait(1)]));
    refused(&record(&mut world, run, vec![reply(1, "1")]), "invalid");
    let ticket = ask(&mut world, run, "go");
    let large = format!("{:?}", "x".repeat(PAYLOAD_BYTES_MAX));
    refused(&record(&mut world, run, vec![reply(1, &large)]), "too_large");
    refused(&record(&mut world, run, vec![reply(1, "1"), reply(1, "2")]), "invalid");
    assert_eq!(world.answer(ticket), None, "nothing was written");
    recorded(&record(&mut world, run, vec![reply(1, "3")]));
    refused(&record(&mut world, run, vec![reply(1, "4")]), "invalid");
    answered(&mut world, ticket, "3");
    refused(&record(&mut world, run, vec![Entry::Publish { state: payload(&large) }]), "too_large");
    assert_eq!(show(&mut world, run).published, None);
    check::check(&world);
}

/// AB-14: a request that may not be is refused before anything is written.
#[test]
fn a_request_that_may_not_be_is_refused() {
    let mut world = world();
    let run = claimed(&mut world);
    let rev = show(&mut world, run).rev;
    refused(&accept(&mut world, run, ""), "invalid");
    refused(&accept(&mut world, run, &"x".repeat(300)), "too_large");
    refused(&accept(&mut world, RunId(77), "go"), "not_found");
    let request = world.request();
    let input = payload(&format!("{:?}", "x".repeat(PAYLOAD_BYTES_MAX)));
    let asked = Box::new(Requesting { name: "go".into(), input, dedup: None, request });
    refused(&world.ask(Command::Update { run, asked, told: Told::Answered }), "too_large");
    let request = world.request();
    let asked = Box::new(Requesting { name: "go".into(), input: Payload::null(), dedup: Some("".into()), request });
    refused(&world.ask(Command::Update { run, asked, told: Told::Answered }), "invalid");
    assert_eq!(show(&mut world, run).rev, rev, "nothing was written");
}

/// AB-14: what waits is bounded, and so is what is remembered: the oldest answer is forgotten first, whoever asked first.
#[test]
fn updates_and_answers_are_bounded() {
    let mut world = world();
    let run = claimed(&mut world);
    let first = ask(&mut world, run, "go");
    recorded(&record(&mut world, run, vec![wait(1)]));
    for op in 2..=ANSWERS_MAX as u32 + 1 {
        accept(&mut world, run, "go");
        recorded(&record(&mut world, run, vec![wait(op)]));
        recorded(&record(&mut world, run, vec![reply(op, "1")]));
    }
    recorded(&record(&mut world, run, vec![reply(1, "1")]));
    answered(&mut world, first, "1");
    let shown = show(&mut world, run);
    assert_eq!((shown.updates.len(), shown.update(2).is_none(), shown.update(1).is_some()), (ANSWERS_MAX, true, true));
    for _ in 0..UPDATES_MAX {
        accept(&mut world, run, "more");
    }
    refused(&accept(&mut world, run, "more"), "busy");
}

/// AB-14: a caller whose shard is lost asks again with the same request, and is answered from what is durable.
#[test]
fn a_crash_between_request_and_answer_loses_neither() {
    for (at, how) in
        [(0, Crash::BeforeAppend), (0, Crash::AfterAppend), (1, Crash::BeforeAppend), (1, Crash::AfterAppend)]
    {
        let mut world = world();
        let run = claimed(&mut world);
        recorded(&suspend(&mut world, run, 0, vec![wait(1)]));
        let request = world.request();
        world.held = at == 0;
        let ticket = world.submit(update(run, "go", request, Told::Answered));
        if at == 1 {
            assert_eq!(world.claim("w1", 1), 1);
            world.held = true;
            let claim = world.dispatches[&run].claim.number;
            let entries = vec![Entry::See { op: 1 }, reply(1, "1")];
            let recording = Recording { claim, token: token("w1"), entries };
            world.submit(Command::Record { run, recording: Box::new(recording) });
        }
        world.crash(how);
        world.held = false;
        assert!(world.lost.contains(&ticket), "{at} {how:?}: the caller is told that nobody knows");
        let ticket = world.submit(update(run, "go", request, Told::Answered));
        let durable = (at, how) == (1, Crash::AfterAppend);
        if !durable {
            assert_eq!(world.answer(ticket), None);
            // What was claimed by a worker that is gone is claimed again.
            world.tick(1_000);
            assert_eq!(world.claim("w1", 1), 1, "{at} {how:?}");
            recorded(&record(&mut world, run, vec![Entry::See { op: 1 }, reply(1, "1")]));
        }
        answered(&mut world, ticket, "1");
        assert_eq!(show(&mut world, run).updates.len(), 1, "{at} {how:?}: it was asked once");
        check::check(&world);
    }
}

/// AB-14: whoever gives up waiting is not kept; the run answers all the same.
#[test]
fn a_caller_that_goes_away_leaves_nothing_behind() {
    let mut world = world();
    let run = claimed(&mut world);
    recorded(&record(&mut world, run, vec![wait(1)]));
    let (gone, stays) = (ask(&mut world, run, "go"), world.submit(Command::Watch { run }));
    world.shards[0].unwatch(run, gone);
    recorded(&record(&mut world, run, vec![reply(1, "1")]));
    assert_eq!(world.answer(gone), None);
    let command = crate::support::act::complete(&world, run, done());
    recorded(&world.ask(command));
    assert!(matches!(world.answer(stays), Some(Answer::Ended(_))));
    assert_eq!(show(&mut world, run).updates.len(), 1);
}

/// AB-14: a run that is being cancelled begins nothing new, and one that is cancelled says that it did not answer.
#[test]
fn a_cancelled_run_answers_nobody() {
    let mut world = world();
    let run = claimed(&mut world);
    let undo = Wanted::Undo(abide_kernel::Policy::Idempotent);
    recorded(&record(&mut world, run, vec![Entry::Intend { op: 1, key: "undo".into(), input: 0, what: undo }]));
    let ticket = ask(&mut world, run, "go");
    let request = world.request();
    recorded(&world.ask(cancel(run, request, false)));
    refused(&accept(&mut world, run, "go"), "cancelling");
    assert_eq!(world.claim("w1", 1), 1);
    let completing = completing(&world, run, Outcome::Cancelled);
    recorded(&world.ask(Command::Complete { run, completing }));
    let told = world.answer(ticket);
    let Some(Answer::Refused(Refusal::Unanswered { name, status, .. })) = &told else {
        panic!("expected to be told, found {told:?}");
    };
    assert_eq!((&**name, *status), ("go", Status::Cancelled));
    assert!(matches!(show(&mut world, run).updates[0].state, UpdateState::Waiting { .. }));
}

/// AB-14: a parent sees the state that its child published last, also with its last words.
#[test]
fn a_parent_sees_what_its_child_published() {
    let mut world = world();
    let run = claimed(&mut world);
    let child = Entry::Intend { op: 1, key: "child".into(), input: 0, what: Wanted::Child(Box::new(flow())) };
    recorded(&suspend(&mut world, run, 0, vec![child]));
    assert_eq!(world.claim("w1", 1), 1);
    let id = show(&mut world, run).children[0].id;
    let mut last = completing(&world, id, Outcome::Stop { error: ErrorInfo::terminal("no", "no") });
    last.entries = vec![Entry::Publish { state: payload("1") }, Entry::Publish { state: payload("2") }];
    recorded(&world.ask(Command::Complete { run: id, completing: last }));
    let ended = show(&mut world, run).children[0].end.clone();
    assert!(matches!(&ended, Some(abide_kernel::ChildEnd::Ended { state, .. }) if state.text() == "2"), "{ended:?}");
    assert_eq!(show(&mut world, id).visible_state().text(), "2");
    check::check(&world);
}
