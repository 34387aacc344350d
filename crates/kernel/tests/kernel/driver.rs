//! The shard as its driver sees it: what it says of itself, what it keeps in memory, and what it takes from the store.

use std::sync::Arc;

use crate::support::act::{awaiting, cancel, complete, completing, done, flow, limited, next, payload, show, signal};
use crate::support::{BASE, Crash, Hand, World, check, definition, token};
use abide_kernel::envelope::{Envelope, Message};
use abide_kernel::shard::{Answer, Command, Dispatch, Output, Rule, Scope, Shard, Throttle, Ticket, Worker};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    Claimant, Consume, End, ErrorInfo, Outcome, Phase, Policy, RequestId, Rev, Row, RunId, Seq, ShardEpoch, ShardId,
    StartSpec, Status,
};

fn world(shards: u16) -> World {
    let mut world = World::new(shards);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// Runs that wait for a signal, flushed and out of memory.
fn cold(world: &mut World, count: usize) -> Vec<RunId> {
    let runs: Vec<RunId> = (0..count).map(|_| world.start(flow())).collect();
    while world.claim("w1", count) > 0 {}
    for run in &runs {
        let park = complete(world, *run, awaiting("go"));
        world.ask(park);
    }
    world.flush();
    assert_eq!(world.resident_runs(), 0);
    runs
}

/// Every batch and every flush says whose it is and under which ownership.
#[test]
fn a_shard_signs_what_it_writes() {
    let mut world = world(4);
    world.crash(Crash::BeforeAppend);
    let mut run = world.start(flow());
    while world.home(run) == 0 {
        run = world.start(flow());
    }
    let home = world.home(run);
    for turn in 0..2 {
        world.held = true;
        let request = world.request();
        world.submit(signal(run, "go", request));
        let shard = &mut world.shards[home];
        assert_eq!((shard.id(), shard.epoch(), shard.map()), (ShardId(home as u16), ShardEpoch(2), world.map));
        assert!(shard.wants_append() && shard.gathered() == 1);
        let batch = shard.seal().expect("a batch");
        assert_eq!((batch.shard, batch.epoch), (shard.id(), shard.epoch()), "turn {turn}");
        world.append(home, &batch);
        world.shards[home].durable(world.now, batch);
        world.held = false;
    }
    assert_eq!(world.shards[home].sent(), [0; 4]);
    assert_eq!((world.shards[home].is_resident(run), world.shards[home].is_resident(RunId(7))), (true, false));
}

/// What may leave is taken once, by either way, and a shard knows whether there is any.
#[test]
fn outputs_are_taken_once() {
    let mut world = world(1);
    let run = world.start(flow());
    world.settle();
    let shard = &mut world.shards[0];
    let mut taken = Vec::new();
    for _ in 0..2 {
        assert!(!shard.has_outputs());
        shard.submit(BASE, Ticket(99), Command::Show { run });
        assert!(shard.has_outputs());
        shard.drain_outputs(&mut taken);
    }
    assert!(matches!(&taken[..], [Output::Answer(..), Output::Answer(..)]), "they are added to what was there");
}

/// A shard that finds itself broken says what, seals nothing, and flushes nothing.
#[test]
fn a_broken_shard_writes_nothing() {
    let mut world = world(1);
    let run = world.start(flow());
    let mut broken = world.folded(run).expect("a run");
    world.shards[0].set_aside(run);
    broken.cursors[0].turn = 1;
    broken.cursors[0].phase =
        Phase::Completed { claim: 7, outcome: Arc::new(done()), consume: Consume::Presented, seen: 0 };
    broken.end = Some(End { status: Status::Done, at: BASE, request: None });
    let shard = &mut world.shards[0];
    let fine = world.now.after(1);
    shard.adopt(broken, Seq(1));
    assert!(shard.bug().is_some_and(|bug| bug.contains(&run.to_string())), "{:?}", shard.bug());
    shard.submit(fine, Ticket(50), Command::Start { request: RequestId::new(fine, 5), spec: Box::new(flow()) });
    assert!(shard.wants_append() && shard.seal().is_none() && shard.flush().is_none());
    assert!(!shard.has_outputs(), "nobody is answered");
}

/// SE-34: a dispatch that nobody got is handed back with the shard, so that its worker can be counted free.
#[test]
fn an_abandoned_shard_names_what_was_not_delivered() {
    let mut world = world(1);
    world.start(flow());
    world.held = true;
    assert_eq!(world.claim("w1", 1), 1);
    let worker = world.worker("w1");
    let abandoned = world.shards.remove(0).abandon();
    let names: Vec<_> = abandoned.undelivered.iter().map(|(id, by)| (*id, &*by.owner)).collect();
    assert_eq!(names, [(worker, "w1")]);
}

/// A lease starts when the work is handed out, not when the claim was written.
#[test]
fn a_lease_starts_at_delivery() {
    let mut world = world(1);
    let run = world.start(flow());
    world.held = true;
    assert_eq!(world.claim("w1", 1), 1);
    world.now = world.now.after(700);
    world.held = false;
    world.settle();
    assert_eq!(world.dispatches[&run].lease_until, BASE.after(1_700));
    world.tick(999);
    assert_eq!(show(&mut world, run).status(), Status::Executing);
}

/// Workers of a tenant get nothing of another, and those who left get nothing at all.
#[test]
fn workers_get_what_they_serve() {
    let mut world = world(1);
    let (ours, worker) = (StartSpec { namespace: "acme".into(), ..flow() }, world.worker("w1"));
    world.start(flow());
    assert!(world.shards[0].has_ready());
    let mut only = Worker::new(vec!["default".into()], vec![definition("flow")]);
    only.namespace = Some("acme".into());
    world.shards[0].join(worker, only);
    assert_eq!(world.claim("w1", 9), 0);
    let run = world.start(ours.clone());
    assert_eq!(world.claim("w1", 9), 1);
    assert!(world.dispatches.contains_key(&run));
    world.start(ours);
    world.shards[0].leave(worker);
    assert_eq!(world.claim("w1", 9), 0);
    world.shards[0].join(worker, Worker::new(vec!["default".into()], vec![definition("flow")]));
    assert_eq!(world.claim("w1", 9), 2);
    assert!(!world.shards[0].has_ready());
}

/// Whoever holds a concurrency key of the same name in another tenant is in nobody's way, and is not named.
#[test]
fn a_key_of_another_tenant_is_another_key() {
    let mut world = world(1);
    let theirs = world.start(StartSpec { namespace: "acme".into(), ..limited("k") });
    assert_eq!(world.claim("w1", 1), 1);
    let holder = world.start(limited("k"));
    assert_eq!(world.claim("w1", 9), 1);
    let waits = world.start(limited("k"));
    let around = world.shards[0].surroundings(waits, &world.throttle);
    assert_eq!(around.key_held_by, [holder], "and not {theirs}");
}

/// D36: what may be given again is what is recognised the second time.
#[test]
fn commands_say_whether_they_may_be_repeated() {
    let mut world = world(1);
    let run = world.start(flow());
    let request = world.request();
    assert!(cancel(run, request, false).is_repeatable() && Command::Show { run }.is_repeatable());
    assert!(!Command::Requeue { run }.is_repeatable() && !Command::Purge { run }.is_repeatable());
}

/// A dispatch says about how large it is: what it carries for its step, and something for each entry of the ledger.
#[test]
fn a_dispatch_knows_its_size() {
    let mut world = world(1);
    let run = world.start(StartSpec { input: payload("12345"), ..flow() });
    assert_eq!(world.claim("w1", 1), 1);
    let bytes = |world: &World| world.dispatches.get(&run).map(Dispatch::bytes);
    assert_eq!(bytes(&world), Some(10), "the input, and the state that it is at first");
    let begin = |op: u32| Entry::Intend { op, key: "e".into(), input: 0, what: Wanted::Effect(Policy::Pure) };
    let mut parks = completing(&world, run, Outcome::Replay { delay_ms: 0, state: payload("1") });
    parks.entries = vec![begin(1), Entry::End { op: 1, outcome: Ok(payload("123")), at: BASE }, begin(2)];
    world.ask(Command::Complete { run, completing: parks });
    assert_eq!(world.claim("w1", 1), 1);
    assert_eq!(bytes(&world), Some(5 + 1 + 3 + 200 + 200));
}

/// Only what has changed and is sealed is flushed, and a shard knows how much that is.
#[test]
fn a_flush_takes_what_is_behind() {
    let mut world = world(1);
    let runs = cold(&mut world, 2);
    assert_eq!((world.shards[0].behind(), world.shards[0].flush().is_none()), (0, true));
    let request = world.request();
    world.ask(cancel(runs[0], request, false));
    world.flush();
    assert_eq!(world.shards[0].behind(), 0);
    let request = world.request();
    world.ask(signal(runs[1], "go", request));
    assert_eq!(world.shards[0].behind(), 1);
    world.ask(Command::Purge { run: runs[0] });
    assert!(world.shards[0].behind() > 1, "one that changed, and one that is gone");
    world.held = true;
    world.start(flow());
    assert!(world.shards[0].flush().is_none(), "what is gathered comes first");
    world.held = false;
    world.settle();
    let flush = world.shards[0].flush().expect("a flush");
    assert_eq!((flush.records.len(), flush.purged.len()), (2, 1));
}

/// A run that was set aside is not flushed.
#[test]
fn what_was_set_aside_is_not_flushed() {
    let mut world = world(1);
    let (aside, stays) = (world.start(flow()), world.start(flow()));
    world.shards[0].set_aside(aside);
    let flush = world.shards[0].flush().expect("a flush");
    assert_eq!(flush.records.iter().map(|record| record.run).collect::<Vec<_>>(), [stays]);
}

/// Runs that are only looked at leave memory again, without a flush that would see them off.
#[test]
fn visitors_leave() {
    let mut world = world(1);
    let runs = cold(&mut world, 300);
    for run in &runs[..255] {
        show(&mut world, *run);
    }
    world.start(flow());
    assert_eq!(world.resident_runs(), 256, "so many may stay, for those who look twice");
    show(&mut world, runs[255]);
    world.start(flow());
    assert_eq!(world.resident_runs(), 2);
}

/// G3: what is said to a run outside memory reaches it, however many are brought back before the next commit. The run whose
/// loading made room used to be seen off before the message that it was loaded for was obeyed; the message was used up.
#[test]
fn whoever_is_loaded_for_a_message_stays_for_it() {
    let mut world = world(1);
    let runs = cold(&mut world, 520);
    world.held = true;
    for (run, number) in runs.iter().zip(1..) {
        let reason = Arc::new(ErrorInfo::terminal("cancelled", "late"));
        let message = Message::Cancel { run: *run, request: world.request(), cascade: false, reason };
        world.shards[0].receive(world.now, Envelope { from: ShardId(0), to: ShardId(0), number, message });
    }
    world.settle();
    world.held = false;
    world.settle();
    let missed = runs.iter().filter(|run| world.folded(**run).expect("a run").end.is_none()).count();
    assert_eq!(missed, 0);
}

/// A shard counts what it has not looked at in time.
#[test]
fn overdue_runs_are_counted() {
    let mut world = world(1);
    for ms in [100, 200, 200] {
        let run = world.start(StartSpec { eligible_at: Some(BASE.after(ms)), ..flow() });
        show(&mut world, run);
    }
    let overdue = [99, 100, 200].map(|ms| world.shards[0].overdue(BASE.after(ms)));
    assert_eq!(overdue, [0, 1, 3]);
}

/// Whoever waits for a run's end is told its error only if it failed.
#[test]
fn an_end_names_an_error_only_if_it_is_one() {
    for (outcome, failed) in [(done(), false), (Outcome::Stop { error: ErrorInfo::terminal("broken", "x") }, true)] {
        let mut world = world(1);
        let run = world.start(flow());
        assert_eq!(world.claim("w1", 1), 1);
        let mut last = completing(&world, run, outcome);
        last.error = Some(Arc::new(ErrorInfo::retryable("once", "x")));
        let ticket = world.submit(Command::Watch { run });
        world.ask(Command::Complete { run, completing: last });
        let Some(Answer::Ended(ending)) = world.answer(ticket) else { panic!("it ended") };
        assert_eq!(ending.error.map(|error| error.code.to_string()), failed.then(|| "broken".to_owned()));
    }
}

/// A wake-up that names no attempt is strange, and nothing more.
#[test]
fn a_wake_up_for_nothing_is_an_anomaly() {
    let mut world = world(1);
    let run = world.start(flow());
    for turn in [0, 2] {
        world.ask(Command::Notified { run, cursor: 0, turn });
    }
    let kinds: Vec<String> = show(&mut world, run).anomalies.iter().map(|seen| seen.anomaly.kind.to_string()).collect();
    assert_eq!(kinds, ["unknown_runnable_intent"; 2]);
}

/// A log is folded row by row: what is known is passed by, and a gap or a missing beginning is refused.
#[test]
fn a_log_is_folded_in_order() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, next("two")));
    let rows = world.disks[0].rows.clone();
    let mut other = World::new(1);
    let shard = &mut other.shards[0];
    let told = |shard: &mut Shard, row: &Row| shard.replay(row).err().map(|text| text.replace(&run.to_string(), "r"));
    assert_eq!(told(shard, &rows[1]).as_deref(), Some("r: its journal begins at rev 2"));
    let late = Row { rev: Rev(5), ..rows[0].clone() };
    assert_eq!(told(shard, &late).as_deref(), Some("r: its journal begins at rev 5"));
    assert_eq!(told(shard, &rows[0]), None);
    assert_eq!(told(shard, &rows[2]).as_deref(), Some("r: rev 3 follows rev 1"));
    assert_eq!(told(shard, &rows[1]), None);
    assert_eq!(told(shard, &rows[0]), None, "it is known");
    assert_eq!(shard.run(run).map(|run| run.rev), Some(Rev(2)));
}

/// A run that begins anew under the id of one that was purged takes that purge back, and no other.
#[test]
fn a_new_beginning_takes_back_its_own_purge() {
    let mut world = world(1);
    let runs = [world.start(flow()), world.start(flow())];
    let began = world.disks[0].rows.clone();
    for run in runs {
        let request = world.request();
        world.ask(cancel(run, request, false));
        world.ask(Command::Purge { run });
    }
    let rows = world.disks[0].rows.clone();
    let mut other = World::new(1);
    let shard = &mut other.shards[0];
    for row in &rows {
        shard.replay(row).expect("the log folds");
    }
    shard.replay(&Row { seq: Seq(rows.len() as u64 + 1), prior: Seq(0), ..began[0].clone() }).expect("it begins anew");
    shard.replayed(BASE);
    let flush = shard.flush().expect("a flush");
    assert_eq!(flush.purged.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [runs[1]]);
}

/// A process knows the claims of its own workers: those it must tell, should it stop.
#[test]
fn local_claims_are_those_of_this_process() {
    let mut world = World::new(1);
    world.join(Hand { local: true, ..Hand::new("here", &["flow"]) });
    world.join(Hand::new("far", &["flow"]));
    let runs = [world.start(flow()), world.start(flow())];
    assert_eq!((world.claim("here", 1), world.claim("far", 1)), (1, 1));
    let ours = world.dispatches[&runs[0]].claim;
    assert_eq!(world.shards[0].local_claims(), [ours]);
}

/// Commands for a run that is being loaded still wait when a message for it comes.
#[test]
fn a_message_does_not_push_commands_out_of_the_waiting_room() {
    let mut world = world(2);
    let run = cold(&mut world, 1)[0];
    let home = world.home(run);
    world.loads_held = true;
    let ticket = world.submit(Command::Show { run });
    let (from, to) = (ShardId((1 - home) as u16), ShardId(home as u16));
    let request = world.request();
    let reason = Arc::new(ErrorInfo::terminal("cancelled", "x"));
    let message = Message::Cancel { run, request, cascade: false, reason };
    world.shards[home].receive(world.now, Envelope { from, to, number: 1, message });
    world.settle();
    world.loads_held = false;
    world.settle();
    assert!(matches!(world.answer(ticket), Some(Answer::Run(..))));
    assert_eq!(show(&mut world, run).status(), Status::Cancelled);
}

/// GD-59: what a batch took from each of its senders is in it, each under its own count.
#[test]
fn a_batch_counts_what_it_took_by_sender() {
    let mut world = world(4);
    let run = cold(&mut world, 1)[0];
    let home = world.home(run);
    world.held = true;
    show_later(&mut world, run);
    let senders = [(home + 1) % 4, (home + 2) % 4];
    for (sender, number) in [(senders[0], 1), (senders[1], 1), (senders[0], 2)] {
        let (from, to) = (ShardId(sender as u16), ShardId(home as u16));
        let message = Message::ParentPurged { run, parent: RunId(1) };
        world.shards[home].receive(world.now, Envelope { from, to, number, message });
    }
    let batch = world.shards[home].seal().expect("a batch");
    assert_eq!(batch.consumed, [(ShardId(senders[0] as u16), 2), (ShardId(senders[1] as u16), 1)]);
}

/// Brings a run into memory while commits are held.
fn show_later(world: &mut World, run: RunId) {
    world.submit(Command::Show { run });
}

/// GD-60: a child that has begun and is out of memory is looked for before it is begun once more.
#[test]
fn a_child_that_is_cold_is_not_begun_twice() {
    let mut world = world(1);
    let parent = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    let starting = StartingChild {
        claim: world.dispatches[&parent].claim.number,
        token: token("w1"),
        key: "child".into(),
        spec: flow(),
        metadata: None,
    };
    let begin = Command::StartChild { run: parent, starting: Box::new(starting) };
    world.ask(begin.clone());
    let child = world.folded(parent).expect("a run").children[0].id;
    assert_eq!(world.claim("w1", 1), 1);
    let park = complete(&world, child, awaiting("go"));
    world.ask(park);
    world.flush();
    world.crash(Crash::BeforeAppend);
    assert!(!world.shards[0].is_resident(child));
    world.ask(begin);
    check::check(&world);
    assert_eq!(show(&mut world, child).status(), Status::AwaitingSignal, "it is as it was");
}

/// The patience with an attempt that nobody can execute runs on while workers come and go.
#[test]
fn patience_runs_on_while_workers_join() {
    let mut world = world(1);
    let runs = ["gone", "lost"].map(|flow| {
        world.tick(500);
        world.start(StartSpec::new(flow, payload("{}")))
    });
    let ends = |world: &World| runs.map(|run| world.shards[0].surroundings(run, &world.throttle).dead_letter_at);
    let before = ends(&world);
    assert!(before[0].is_some() && before[0] < before[1], "{before:?}");
    world.tick(1_000);
    world.join(Hand::new("w2", &["flow"]));
    assert_eq!(ends(&world), before);
}

/// What a shard told the throttle it takes back when it leaves, and a throttle may forget all that executes.
#[test]
fn a_shard_that_leaves_makes_room() {
    let rules = vec![Rule { scope: Scope::Queue("default".into()), at_most: Some(2), rate: None }];
    for forgets in [false, true] {
        let mut world = World::throttled(2, rules.clone());
        world.join(Hand::new("w1", &["flow"]));
        assert!(!world.throttle.is_empty() && Throttle::default().is_empty());
        let mut runs: Vec<RunId> = Vec::new();
        while [0, 1].iter().any(|home| runs.iter().filter(|run| world.home(**run) == *home).count() < 3) {
            let run = world.start(flow());
            runs.push(run);
        }
        assert_eq!(world.claim("w1", 2), 2);
        assert_eq!(world.claim("w1", 9), 0, "the cap is reached");
        let full = world.shards.iter().position(|shard| !shard.claimed_runs().is_empty()).expect("one has claims");
        // Reported, and reported again when nothing changed.
        world.shards.iter_mut().for_each(|shard| shard.report(&mut world.throttle));
        if forgets {
            world.throttle.forget_running();
        } else {
            world.shards[full].withdraw(&mut world.throttle);
        }
        let by = Claimant::new("w1".into(), token("w1"), 1_000, None);
        let (other, worker) = (1 - full, world.worker("w1"));
        world.throttle.begin_round();
        let claimed = world.shards[other].claim(world.now, worker, &by, 9, &mut world.throttle);
        assert_eq!(claimed, 2, "forgets: {forgets}");
    }
}

/// A run whose steps wait leaves memory, also with steps planned behind them; one that changed while it was flushed stays.
#[test]
fn a_run_leaves_memory_when_nothing_of_it_is_behind() {
    let mut world = world(1);
    let plan = |step: &str, needs: &[&str]| abide_kernel::PlannedStep {
        step: step.into(),
        needs: needs.iter().map(|need| (*need).into()).collect(),
    };
    let run = world.start(StartSpec { steps: vec![plan("a", &[]), plan("b", &["a"])], ..flow() });
    assert_eq!(world.claim("w1", 1), 1);
    let park = complete(&world, run, awaiting("go"));
    world.ask(park);
    let flush = world.shards[0].flush().expect("it changed");
    let request = world.request();
    world.ask(signal(run, "other", request));
    world.shards[0].flushed();
    assert!(world.shards[0].is_resident(run), "it changed since");
    let again = world.shards[0].flush().expect("it changed again");
    assert!(again.records[0].rev > flush.records[0].rev);
    world.shards[0].flushed();
    assert!(!world.shards[0].is_resident(run));
}

/// An index row names the parent while the parent's record is there, and holds no state where the journal tells it as well.
#[test]
fn an_index_row_holds_what_is_needed() {
    let mut world = world(1);
    let parent = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    let spawns = complete(&world, parent, crate::support::act::spawn(vec![flow()]));
    world.ask(spawns);
    let child = world.folded(parent).expect("a run").children[0].id;
    let row = |world: &mut World| {
        world.flush();
        world.disks[0].index[&child].clone()
    };
    let open = row(&mut world);
    assert_eq!((open.parent, open.checkpoint.is_empty()), (Some(parent), false));
    let request = world.request();
    world.ask(cancel(child, request, false));
    assert!(row(&mut world).checkpoint.is_empty(), "it has ended after a few rows");
    let (from, to, message) = (ShardId(0), ShardId(0), Message::ParentPurged { run: child, parent });
    let number = world.shards[0].expects(from);
    world.shards[0].receive(world.now, Envelope { from, to, number, message });
    world.durable();
    assert_eq!(row(&mut world).parent, None);
}

/// A child that has begun and ended is not begun again by word that comes once more, in whatever order the store answers.
#[test]
fn a_child_is_looked_for_before_it_is_admitted_again() {
    let mut world = world(4);
    let parent = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    let elsewhere = (0..99).map(|n| crate::support::act::keyed(&format!("k{n}"))).find(|spec| {
        let slot = spec.home_slot(RequestId::new(world.now, 1));
        usize::from(world.map.home(slot).0) != world.home(parent)
    });
    let spawns =
        complete(&world, parent, crate::support::act::spawn(vec![elsewhere.expect("a key that lives elsewhere")]));
    world.ask(spawns);
    let child = world.folded(parent).expect("a run").children[0].id;
    let home = world.home(child);
    let other = loop {
        let run = world.start(flow());
        if world.home(run) == home {
            break run;
        }
    };
    while world.claim("w1", 9) > 0 {}
    let ends = complete(&world, child, done());
    world.ask(ends);
    let parks = complete(&world, other, awaiting("go"));
    world.ask(parks);
    world.flush();
    world.crash(Crash::BeforeAppend);
    let admits = |envelope: &&Envelope| matches!(&envelope.message, Message::AdmitChild { .. });
    let again = world.disks.iter().flat_map(|disk| &disk.outbox).find(admits).expect("it was admitted").message.clone();
    world.loads_held = true;
    let senders = [(home + 1) % 4, (home + 2) % 4].map(|sender| ShardId(sender as u16));
    let word = Message::ParentPurged { run: other, parent: RunId(1) };
    for (from, message) in senders.into_iter().zip([again, word]) {
        let number = world.shards[home].expects(from);
        let to = ShardId(home as u16);
        world.shards[home].receive(world.now, Envelope { from, to, number, message });
    }
    world.settle();
    assert_eq!(world.waiting_loads.len(), 2);
    world.waiting_loads.swap(0, 1);
    world.loads_held = false;
    world.settle();
    let begun = |row: &&Row| row.run == child && row.rev == Rev(1);
    assert_eq!(world.disks[home].rows.iter().filter(begun).count(), 1);
    assert_eq!(show(&mut world, child).status(), Status::Done);
}

/// D36: a start whose id is older than the newest run that the store knows may have begun before: it is looked for first.
#[test]
fn a_start_that_may_have_begun_is_looked_for() {
    for (newest, looked_for) in [(None, 0), (Some(1_000), 1)] {
        let mut world = world(1);
        let shard = &mut world.shards[0];
        if let Some(ms) = newest {
            shard.newest_run(RunId::new(BASE.after(ms), abide_kernel::Slot(1), 1));
        }
        let request = RequestId::new(BASE.after(500), 7);
        shard.submit(BASE.after(2_000), Ticket(9), Command::Start { request, spec: Box::new(flow()) });
        assert_eq!(shard.take_loads().len(), looked_for, "newest: {newest:?}");
    }
}
