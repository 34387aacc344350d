//! Waits that the code gives up: what was sent to them is not lost, keeps its order, and nothing wakes the run for them.

use crate::support::act::{awaiting, complete, completing, flow, payload, show};
use crate::support::{BASE, Crash, Hand, World, check, token};
use abide_kernel::limits::INBOX_SIGNALS_MAX;
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::signal::{self, Sent};
use abide_kernel::{Fact, Moment, OpKind, OpState, Outcome, Payload, Policy, RunId, Status};

fn claimed() -> (World, RunId) {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    (world, run)
}

fn record(world: &mut World, run: RunId, entries: Vec<Entry>) -> Answer {
    let claim = world.dispatches[&run].claim.number;
    world.ask(Command::Record { run, recording: Box::new(Recording { claim, token: token("w1"), entries }) })
}

fn recorded(answer: &Answer) {
    assert!(matches!(answer, Answer::Recorded { duplicate: false, .. }), "{answer:?}");
}

fn nothing_new(answer: &Answer) {
    assert!(matches!(answer, Answer::Recorded { duplicate: true, .. }), "{answer:?}");
}

fn suspend(world: &mut World, run: RunId, seen: u32, entries: Vec<Entry>) {
    let mut completing = completing(world, run, Outcome::Suspend { seen });
    completing.entries = entries;
    recorded(&world.ask(Command::Complete { run, completing }));
}

fn send(world: &mut World, run: RunId, text: &str) -> Answer {
    let (request, payload) = (world.request(), payload(text));
    world.ask(Command::Signal { run, sent: Box::new(Sent { name: "go".into(), payload, dedup: None, request }) })
}

fn intend(op: u32, what: Wanted) -> Entry {
    Entry::Intend { op, key: format!("wait {op}").into(), input: 0, what }
}

fn wait(op: u32) -> Entry {
    intend(op, Wanted::Signal { name: "go".into(), deadline: None })
}

fn sleep(op: u32, ms: u64) -> Entry {
    intend(op, Wanted::Timer(Moment::In(ms)))
}

fn got(world: &mut World, run: RunId, op: u32) -> Option<String> {
    match &show(world, run).op(op).expect("an entry").state {
        OpState::Done { value, .. } => Some(value.text().to_owned()),
        _ => None,
    }
}

/// SE-17, SE-24: wherever two signals fall between a wait, its withdrawal and the waits after it, those get both, in the
/// order they came; and so they do after a crash.
#[test]
fn signals_to_a_wait_that_is_given_up_keep_their_order() {
    let rows: [&[&dyn Fn() -> Entry]; 4] =
        [&[&|| wait(1)], &[&|| Entry::Withdraw { op: 1 }], &[&|| wait(2)], &[&|| wait(3)]];
    let joined: [&[&dyn Fn() -> Entry]; 2] =
        [&[&|| wait(1)], &[&|| Entry::Withdraw { op: 1 }, &|| wait(2), &|| wait(3)]];
    let before: [&[&dyn Fn() -> Entry]; 2] =
        [&[&|| wait(1), &|| wait(2)], &[&|| wait(3), &|| Entry::Withdraw { op: 1 }]];
    for rows in [&rows[..], &joined[..], &before[..]] {
        for first in 0..=rows.len() {
            for second in first..=rows.len() {
                let (mut world, run) = claimed();
                for at in 0..=rows.len() {
                    for text in [(first, "1"), (second, "2")].iter().filter(|(when, _)| *when == at).map(|(_, t)| t) {
                        send(&mut world, run, text);
                    }
                    if let Some(row) = rows.get(at) {
                        recorded(&record(&mut world, run, row.iter().map(|entry| entry()).collect()));
                    }
                    check::check(&world);
                }
                world.crash(Crash::BeforeAppend);
                let found = [1, 2, 3].map(|op| got(&mut world, run, op));
                let wanted = [None, Some("1".into()), Some("2".into())];
                // Two waits that are open at once have no order of their own.
                let sorted = |mut found: [Option<String>; 3]| {
                    found.sort();
                    found
                };
                match rows.len() {
                    4 => assert_eq!(found, wanted, "{first} {second}"),
                    _ => assert_eq!(sorted(found), wanted, "{first} {second}"),
                }
                let shown = show(&mut world, run);
                assert!(shown.inbox.is_empty() && shown.open.is_empty(), "{first} {second}");
            }
        }
    }
}

/// SE-12: a signal is the last one processed when the code has seen it, not when a wait got it that was given up; what the
/// code has seen is not given to another wait.
#[test]
fn a_signal_is_processed_when_the_code_has_seen_it() {
    let (mut world, run) = claimed();
    recorded(&record(&mut world, run, vec![wait(1)]));
    send(&mut world, run, "1");
    assert_eq!(show(&mut world, run).last_signal, None);
    recorded(&record(&mut world, run, vec![Entry::Withdraw { op: 1 }]));
    let shown = show(&mut world, run);
    assert_eq!((shown.last_signal, shown.inbox.len(), shown.op(1).expect("an entry").is_withdrawn()), (None, 1, true));
    assert_eq!(shown.inbox[0].payload, payload("1"));
    nothing_new(&record(&mut world, run, vec![Entry::Withdraw { op: 1 }]));
    recorded(&record(&mut world, run, vec![wait(2)]));
    recorded(&record(&mut world, run, vec![Entry::See { op: 2 }]));
    nothing_new(&record(&mut world, run, vec![Entry::Withdraw { op: 2 }]));
    let shown = show(&mut world, run);
    assert_eq!((shown.last_signal, shown.inbox.len()), (Some(1), 0));
    assert_eq!(got(&mut world, run, 2), Some("1".into()));
    let kind = &shown.op(2).expect("an entry").kind;
    assert!(matches!(kind, OpKind::Signal { got: None, .. }), "nothing is kept of what cannot come back: {kind:?}");
    check::check(&world);
}

/// GD-29: a signal that was offered before and that a wait gives back in the row in which the step awaits it again is in the
/// inbox then: the step does not spin on it, and waits for what comes after it.
#[test]
fn what_is_given_back_with_an_await_is_not_offered_again() {
    let (mut world, run) = claimed();
    let await_go = complete(&world, run, awaiting("go"));
    recorded(&world.ask(await_go));
    send(&mut world, run, "1");
    assert_eq!(world.claim("w1", 1), 1);
    recorded(&record(&mut world, run, vec![wait(1)]));
    assert_eq!(got(&mut world, run, 1), Some("1".into()), "the inbox is empty, until the row that follows");
    let entries = vec![Entry::Withdraw { op: 1 }];
    let completing = Completing { entries, ..completing(&world, run, awaiting("go")) };
    recorded(&world.ask(Command::Complete { run, completing }));
    assert_eq!((show(&mut world, run).inbox.len(), world.claim("w1", 1)), (1, 0));
    send(&mut world, run, "2");
    assert_eq!((show(&mut world, run).inbox.len(), world.claim("w1", 1)), (2, 1));
    check::check(&world);
}

/// SE-9, SE-29, SE-30: a timer, or the deadline of a wait, that was given up wakes nobody.
#[test]
fn what_is_given_up_wakes_nobody() {
    let (mut world, run) = claimed();
    let bound = intend(2, Wanted::Signal { name: "go".into(), deadline: Some(Moment::In(60)) });
    recorded(&record(&mut world, run, vec![sleep(1, 50), bound, intend(3, Wanted::Timer(Moment::In(500)))]));
    suspend(&mut world, run, 2, vec![Entry::Withdraw { op: 1 }, Entry::Withdraw { op: 2 }]);
    let rev = show(&mut world, run).rev;
    world.tick(100);
    assert_eq!(world.claim("w1", 1), 0);
    assert_eq!(show(&mut world, run).rev, rev);
    world.tick(400);
    assert_eq!(world.claim("w1", 1), 1, "the one that it waits for does");
    check::check(&world);
}

/// SE-17, SE-30: what was given up may be waited for after all: it gets what came meanwhile, or ends at its old instant.
#[test]
fn what_was_given_up_may_be_waited_for_again() {
    let (mut world, run) = claimed();
    recorded(&record(&mut world, run, vec![wait(1), sleep(2, 50), sleep(3, 50)]));
    let again = |op: u32| Entry::WaitAgain { op };
    nothing_new(&record(&mut world, run, vec![again(1), again(2)]));
    recorded(&record(&mut world, run, (1..=3).map(|op| Entry::Withdraw { op }).collect()));
    recorded(&record(&mut world, run, vec![again(1), Entry::Withdraw { op: 1 }]));
    assert!(show(&mut world, run).op(1).expect("an entry").is_withdrawn());
    send(&mut world, run, "1");
    assert_eq!(show(&mut world, run).inbox.len(), 1);
    recorded(&record(&mut world, run, vec![again(1), again(2)]));
    assert_eq!(got(&mut world, run, 1), Some("1".into()));
    assert_eq!(show(&mut world, run).open, [2]);
    world.tick(50);
    let state = |world: &mut World, op: u32| show(world, run).op(op).expect("an entry").state.clone();
    assert!(matches!(state(&mut world, 2), OpState::Elapsed { .. }));
    recorded(&record(&mut world, run, vec![again(3)]));
    assert!(matches!(state(&mut world, 3), OpState::Elapsed { .. }), "its instant has come");
    assert!(!show(&mut world, run).op(3).expect("an entry").is_withdrawn());
    nothing_new(&record(&mut world, run, vec![again(1), again(2), again(3)]));
    assert!(matches!(record(&mut world, run, vec![again(9)]), Answer::Refused(_)));
    check::check(&world);
}

/// SE-17: a run that begins again leaves no wait behind that would take a signal, or wake it; what a wait of its last life
/// had got and the code had not seen is for the next.
#[test]
fn a_new_beginning_leaves_no_wait_behind() {
    let (mut world, run) = claimed();
    recorded(&record(&mut world, run, vec![wait(1), wait(2), sleep(3, 50)]));
    send(&mut world, run, "1");
    let mut again = completing(&world, run, Outcome::ContinueAsNew { input: Payload::null() });
    again.entries = vec![wait(4)];
    recorded(&world.ask(Command::Complete { run, completing: again }));
    let shown = show(&mut world, run);
    assert_eq!((shown.inbox.len(), shown.open.len()), (1, 0));
    assert_eq!(world.claim("w1", 1), 1);
    send(&mut world, run, "2");
    recorded(&record(&mut world, run, vec![wait(5), wait(6)]));
    assert_eq!([5, 6].map(|op| got(&mut world, run, op)), [Some("1".into()), Some("2".into())]);
    check::check(&world);
}

/// SE-22: a run that ends with waits open is over: nothing is due, and a signal is refused.
#[test]
fn a_run_that_ends_with_waits_open_is_over() {
    let (mut world, run) = claimed();
    let mut done = completing(&world, run, Outcome::Done { result: Payload::null() });
    done.entries = vec![wait(1), sleep(2, 50)];
    recorded(&world.ask(Command::Complete { run, completing: done }));
    let shown = show(&mut world, run);
    assert_eq!(shown.status(), Status::Done);
    world.tick(100);
    assert_eq!(show(&mut world, run).rev, shown.rev);
    assert!(matches!(send(&mut world, run, "1"), Answer::Refused(_)));
    check::check(&world);
}

/// GD-20: what waits got and may give back counts as waiting: the inbox holds it all, whatever is given up.
#[test]
fn what_comes_back_fits_into_the_inbox() {
    let (mut world, run) = claimed();
    recorded(&record(&mut world, run, vec![wait(1), wait(2)]));
    for _ in 0..INBOX_SIGNALS_MAX {
        assert!(matches!(send(&mut world, run, "1"), Answer::Signalled(_)));
    }
    let full = send(&mut world, run, "1");
    assert!(matches!(&full, Answer::Refused(refusal) if refusal.code() == "busy"), "{full:?}");
    recorded(&record(&mut world, run, vec![Entry::Withdraw { op: 1 }, Entry::Withdraw { op: 2 }]));
    let shown = show(&mut world, run);
    assert_eq!((shown.inbox.len(), shown.inbox[0].id, shown.inbox[1].id), (INBOX_SIGNALS_MAX, 1, 2));
}

fn wait_for(op: u32, name: &str) -> Entry {
    intend(op, Wanted::Signal { name: name.into(), deadline: None })
}

/// GD-20: what a wait gives back is for waits of its own name: the first that is open, also one that is begun or waited for
/// again in the same row, and nothing else.
#[test]
fn what_is_given_back_goes_to_its_own_name() {
    let effect = |op: u32| intend(op, Wanted::Effect(Policy::Idempotent));
    // Entry 1 has got a signal, and entry 2 was given up; the row gives 1 up.
    let cases: [(&str, Vec<Entry>, u32, usize); 4] = [
        ("another name", vec![Entry::Withdraw { op: 1 }, wait_for(3, "stop")], 3, 1),
        ("no wait", vec![effect(3), Entry::Withdraw { op: 1 }], 3, 1),
        ("begun", vec![effect(3), wait(4), Entry::Withdraw { op: 1 }], 4, 0),
        ("waited for again", vec![Entry::WaitAgain { op: 2 }, Entry::Withdraw { op: 1 }], 2, 0),
    ];
    for (case, entries, op, inbox) in cases {
        let (mut world, run) = claimed();
        recorded(&record(&mut world, run, vec![wait(1), wait(2)]));
        send(&mut world, run, "1");
        recorded(&record(&mut world, run, vec![Entry::Withdraw { op: 2 }]));
        recorded(&record(&mut world, run, entries));
        assert_eq!(show(&mut world, run).inbox.len(), inbox, "{case}");
        assert_eq!(got(&mut world, run, op).is_some(), inbox == 0, "{case}");
        check::check(&world);
    }
}

/// A run that begins again gives up its waits, and says nothing of effects that are open.
#[test]
fn a_new_beginning_gives_up_waits_only() {
    let (mut world, run) = claimed();
    let effect = |op: u32| intend(op, Wanted::Effect(Policy::Idempotent));
    recorded(&record(&mut world, run, vec![effect(1), wait(2)]));
    let mut again = completing(&world, run, Outcome::ContinueAsNew { input: Payload::null() });
    again.entries = vec![effect(3), wait(4)];
    recorded(&world.ask(Command::Complete { run, completing: again }));
    let given_up = |fact: &Fact| match fact {
        Fact::Resulted(resulted) => Some(resulted.op),
        _ => None,
    };
    let row = world.disks[0].rows.last().expect("a row");
    assert_eq!(row.facts.iter().filter_map(given_up).collect::<Vec<u32>>(), [2, 4]);
    check::check(&world);
}

/// A long ledger takes nothing of the inbox's room; only what its waits have got does.
#[test]
fn a_long_ledger_leaves_the_inbox_its_room() {
    let (mut world, run) = claimed();
    recorded(&record(&mut world, run, vec![intend(1, Wanted::Patch { at: BASE })]));
    let mut state = world.folded(run).expect("a run");
    let mark = state.ops[0].clone();
    state.ops = std::sync::Arc::new(vec![mark; INBOX_SIGNALS_MAX]);
    let sent = Sent { name: "go".into(), payload: Payload::null(), dedup: None, request: world.request() };
    assert!(signal::decide(&state, &sent).is_ok());
}
