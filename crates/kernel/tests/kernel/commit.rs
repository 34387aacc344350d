//! What leaves, and when: nothing before the batch it was decided in is durable, and every caller is told once.

use crate::support::act::{
    awaiting, cancel, complete, done, flow, keyed, limited, next, show, signal, sleeping, start,
};
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::shard::{Answer, Command, Load, Loaded, Output};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{Fact, Refusal, RunId, StartSpec, Status};

fn world(shards: u16) -> World {
    let mut world = World::new(shards);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// A start whose key and whose concurrency key have different homes.
fn apart(world: &World) -> StartSpec {
    (0..99)
        .map(|n| StartSpec { key: keyed("k").key, ..limited(&format!("c{n}")) })
        .find(|spec| {
            let request = abide_kernel::RequestId::new(world.now, 1);
            world.map.home(spec.home_slot(request)) != world.map.home(spec.admission_slot(request))
        })
        .expect("some keys live apart")
}

/// SQ-18, SE-22, GD-1: answers, refusals, reads and dispatches wait for the batch they were decided in.
#[test]
fn nothing_leaves_before_it_is_durable() {
    let mut world = world(1);
    world.held = true;
    let run = world.start(flow());
    world.claim("w1", 1);
    let shown = world.submit(Command::Show { run });
    let refused = world.submit(Command::Requeue { run });
    assert!(world.outputs.is_empty(), "nothing is durable yet");
    assert!(world.disks[0].rows.is_empty());
    // The first batch is under way: what is decided now waits for it, or for the one after it.
    let batch = world.shards[0].seal().expect("a batch");
    let read = world.submit(Command::Show { run });
    let request = world.request();
    let signalled = world.submit(signal(run, "go", request));
    world.append(0, &batch);
    world.shards[0].durable(world.now, batch);
    world.settle();
    assert!(world.answer(shown).is_some() && world.answer(refused).is_some());
    assert!(world.answer(read).is_some(), "it showed only what is durable now");
    assert!(world.answer(signalled).is_none(), "its own batch is not");
    assert!(world.outputs.iter().any(|output| matches!(output, Output::Dispatch(_))));
    world.durable();
    assert!(world.answer(signalled).is_some());
}

/// SQ-37: what is gathered may wait for the batch before it. A claim used to ride in the row of its intent also when the
/// attempt had become visible only since, and the journal then told of a claim before its time.
#[test]
fn a_claim_that_had_to_wait_has_a_row_of_its_own() {
    let mut world = world(1);
    world.held = true;
    let visible_at = world.now.after(1_000);
    let run = world.start(StartSpec { eligible_at: Some(visible_at), ..flow() });
    assert_eq!(world.claim("w1", 1), 0);
    world.tick(2_000);
    assert_eq!(world.claim("w1", 1), 1);
    world.held = false;
    world.durable();
    let rows: Vec<_> = world.disks[0].rows.iter().filter(|row| row.run == run).collect();
    let claimed =
        rows.iter().find(|row| row.facts.iter().any(|fact| matches!(fact, Fact::Claimed(_)))).expect("a claim");
    assert!(rows.len() == 2 && claimed.at >= visible_at, "{rows:?}");
    check::check(&world);
}

/// An answer that hangs on envelopes alone: asking for a child a second time sends word and writes no row. The answer
/// used to leave with the batch before.
#[test]
fn an_answer_that_hangs_on_an_envelope_waits_for_it() {
    let mut world = world(4);
    let parent = world.start(flow());
    world.claim("w1", 1);
    let home = world.home(parent);
    let mut spec = flow();
    spec.concurrency = (0..99)
        .map(|n| limited(&format!("c{n}")))
        .find(|spec| {
            let slot = spec.home_slot(abide_kernel::RequestId::new(world.now, 1));
            usize::from(world.map.home(slot).0) != home
        })
        .expect("a key that lives elsewhere")
        .concurrency;
    let child = |world: &World| Command::StartChild {
        run: parent,
        starting: Box::new(StartingChild {
            claim: world.dispatches[&parent].claim.number,
            token: token("w1"),
            key: "one".into(),
            spec: spec.clone(),
            metadata: None,
        }),
    };
    world.ask(child(&world));
    world.held = true;
    let request = world.request();
    world.submit(signal(parent, "x", request));
    let first = world.shards[home].seal().expect("a batch with a row");
    let ticket = world.submit(child(&world));
    world.append(home, &first);
    world.shards[home].durable(world.now, first);
    world.settle();
    assert_eq!(world.answer(ticket), None, "its envelope is not durable");
    let second = world.shards[home].seal().expect("a batch of envelopes");
    assert!(second.rows.is_empty() && !second.envelopes.is_empty());
    world.append(home, &second);
    world.shards[home].durable(world.now, second);
    world.settle();
    assert!(matches!(world.answer(ticket), Some(Answer::Child(_))));
}

/// SE-34, SE-25: a batch that is refused, or whose outcome is unknown, ends the shard: every caller that was not
/// answered is told so once, and the retry finds what is true.
#[test]
fn an_abandoned_shard_names_every_unanswered_caller_once() {
    let mut world = world(1);
    let ended = world.start(flow());
    let request = world.request();
    world.ask(cancel(ended, request, false));
    let open = world.start(flow());
    world.outputs.clear();
    world.held = true;
    world.loads_held = true;
    let request = world.request();
    let mut asked = vec![
        world.submit(Command::Watch { run: open }),
        world.submit(start(request, keyed("k"))),
        world.submit(Command::Show { run: RunId(77) }),
        world.submit(Command::Show { run: RunId(77) }),
    ];
    let signal_request = world.request();
    asked.push(world.submit(signal(open, "go", signal_request)));
    // An answer that could leave and that nobody took yet.
    let taken = world.submit(Command::Show { run: open });
    asked.push(taken);
    assert!(world.outputs.is_empty());
    world.crash(Crash::BeforeAppend);
    let mut lost = std::mem::take(&mut world.lost);
    lost.sort();
    assert_eq!(lost, asked);
    world.held = false;
    world.loads_held = false;
    assert_eq!(show(&mut world, open).inbox.len(), 0);
    world.ask(signal(open, "go", signal_request));
    assert!(matches!(world.ask(start(request, keyed("k"))), Answer::Started(StartAnswer::Created(_))));
    check::check(&world);
}

/// D36: the retry of a start whose outcome was unknown gets the first answer, here and when its run lives elsewhere.
#[test]
fn a_start_that_was_written_and_never_answered_is_found_again() {
    for shards in [1, 4] {
        let mut world = world(shards);
        let spec = apart(&World::new(4));
        for forget in [false, true] {
            let mut spec = spec.clone();
            spec.key.as_mut().expect("a key").key = format!("k{forget}").into();
            let request = world.request();
            world.held = true;
            let ticket = world.submit(start(request, spec.clone()));
            if forget {
                world.forget_index();
            }
            world.held = false;
            world.crash(Crash::AfterAppend);
            assert!(world.lost.contains(&ticket));
            let id = spec.run_id(request);
            assert_eq!(world.ask(start(request, spec.clone())), Answer::Started(StartAnswer::Created(id)));
            assert_eq!(show(&mut world, id).status(), Status::Runnable);
            world.flush();
            assert_eq!(world.ask(start(request, spec)), Answer::Started(StartAnswer::Created(id)));
        }
    }
}

/// D36: a start whose run lives in another shard is answered when that shard has begun it, and not before.
#[test]
fn a_start_elsewhere_is_answered_when_it_has_begun() {
    let mut world = world(4);
    let spec = apart(&world);
    let request = world.request();
    world.wire_held = true;
    let ticket = world.submit(start(request, spec.clone()));
    let rival = world.request();
    let waiting = world.submit(start(rival, spec.clone()));
    assert_eq!(world.answer(ticket), None, "only its key is reserved");
    assert_eq!(world.answer(waiting), None);
    world.wire_held = false;
    world.settle();
    let id = spec.run_id(request);
    assert_eq!(world.answer(ticket), Some(Answer::Started(StartAnswer::Created(id))));
    assert!(matches!(
        world.answer(waiting),
        Some(Answer::Started(StartAnswer::Rejected { by, .. })) if by == id
    ));
}

/// Commands for a run that is being loaded wait, in order, and are answered by what is true then.
#[test]
fn commands_for_a_run_being_loaded_keep_their_order() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    world.flush();
    assert_eq!(world.resident_runs(), 0);
    world.loads_held = true;
    let (one, two) = (world.request(), world.request());
    let first = world.submit(signal(run, "a", one));
    let ended = world.submit(cancel(run, two, false));
    let three = world.request();
    let late = world.submit(signal(run, "b", three));
    let again = world.submit(signal(run, "a", one));
    assert_eq!(world.waiting_loads.len(), 1, "one load for all of them");
    world.loads_held = false;
    world.settle();
    assert!(matches!(world.answer(first), Some(Answer::Signalled(a)) if !a.duplicate));
    assert!(matches!(world.answer(ended), Some(Answer::Recorded { .. })));
    assert!(matches!(world.answer(late), Some(Answer::Refused(Refusal::RunOver { status: Status::Cancelled, .. }))));
    assert!(matches!(world.answer(again), Some(Answer::Signalled(a)) if a.duplicate));
}

/// A run whose stored record is damaged is refused by name; others go on.
#[test]
fn a_damaged_run_is_refused_and_others_go_on() {
    let mut world = world(1);
    let other = world.start(flow());
    world.loads_held = true;
    let ticket = world.submit(Command::Show { run: RunId(5) });
    world.shards[0].loaded_run(world.now, RunId(5), Loaded::Corrupt("bad row".into()));
    world.waiting_loads.clear();
    world.settle();
    assert!(matches!(
        world.answer(ticket),
        Some(Answer::Refused(Refusal::Corrupt { found, .. })) if found == "bad row"
    ));
    assert_eq!(show(&mut world, other).status(), Status::Runnable);
}

/// A moment that passed between two ticks, while the run left memory, still comes. It used to be forgotten.
#[test]
fn a_moment_that_passed_before_the_run_left_memory_still_comes() {
    let mut world = world(1);
    let mut spec = flow();
    spec.eligible_at = Some(world.now.after(100));
    let run = world.start(spec);
    // Time moves by a command and no tick: the attempt is due, and not in its lane yet.
    world.now = world.now.after(150);
    world.start(flow());
    world.flush();
    assert!(world.shards[0].run(run).is_none(), "it left memory");
    assert!(world.shards[0].next_wake().is_some_and(|at| at <= world.now));
    world.tick(0);
    assert_eq!(world.claim("w1", 9), 2);
}

/// A run that parked and left memory is not brought back when its last lease would have ended: only by its own moment. It
/// used to be, thirty seconds later, and an idle engine read its store.
#[test]
fn the_lease_of_a_parked_run_is_forgotten() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, sleeping(3_600_000)));
    let until = world.shards[0].next_wake().expect("it sleeps until then");
    assert!(until >= world.now.after(3_600_000), "the next moment is the run's own: {until:?}");
    world.flush();
    assert!(world.shards[0].run(run).is_none(), "it left memory");
    assert_eq!(world.shards[0].next_wake(), Some(until));
}

/// A deadline that changes while a page of deadlines is being read is neither lost nor taken from the stale page.
#[test]
fn a_deadline_set_while_a_page_is_read_is_kept() {
    let mut world = world(1);
    let runs: Vec<RunId> = (0..8)
        .map(|n| {
            let run = world.start(flow());
            world.claim("w1", 1);
            world.ask(complete(&world, run, sleeping(1_000 * (n + 1))));
            run
        })
        .collect();
    let moved = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, moved, awaiting("go")));
    world.flush();
    world.crash(Crash::BeforeAppend);
    // Three entries are known; the fourth instant is where the store is asked again.
    world.loads_held = true;
    world.tick(4_000);
    assert!(world.waiting_loads.iter().any(|(_, load)| matches!(load, Load::Due { .. })));
    assert!(world.shards[0].next_wake().is_none_or(|at| at > world.now), "no spin while it reads");
    let loads: Vec<(usize, Load)> = world.waiting_loads.drain(..).collect();
    let (page, others): (Vec<_>, Vec<_>) = loads.into_iter().partition(|(_, load)| matches!(load, Load::Due { .. }));
    world.waiting_loads.extend(others);
    // The page is read from the store now, and arrives later.
    let stale: Vec<_> = world.disks[0]
        .index
        .values()
        .filter_map(|record| Some((record.due?, record.run)))
        .filter(|(at, _)| *at >= world.now && *at < world.now.after(2_500))
        .collect();
    world.loads_held = false;
    let request = world.request();
    world.ask(signal(moved, "go", request));
    world.claim("w1", 9);
    world.ask(complete(&world, moved, sleeping(1_500)));
    world.flush();
    assert!(world.shards[0].run(moved).is_none(), "it left memory again");
    world.shards[0].loaded_due(world.now, &stale, Some(world.now.after(2_500)));
    assert_eq!(page.len(), 1);
    world.tick(1_500);
    assert!(world.has_work("w1"), "{moved} woke at its new time");
    assert_eq!(world.folded(moved).expect("a run").status(), Status::Runnable);
    for _ in 0..10 {
        world.tick(1_000);
    }
    for run in runs {
        assert_eq!(world.folded(run).expect("a run").status(), Status::Runnable, "{run}");
    }
}

/// A purged run is not brought back by a store that has not heard of it yet.
#[test]
fn a_purged_run_stays_gone_before_the_store_knows() {
    let mut world = world(1);
    // Requests made after the shard was opened are remembered for a while.
    world.tick(1);
    let mut spec = keyed("k");
    spec.key.as_mut().expect("a key").occupied = abide_kernel::StatusSet::ALL;
    let request = world.request();
    let run = spec.run_id(request);
    world.ask(start(request, spec.clone()));
    let by = world.request();
    world.ask(cancel(run, by, false));
    world.flush();
    assert!(world.disks[0].index.contains_key(&run));
    world.ask(Command::Purge { run });
    // The store still has its row, with the key.
    assert!(matches!(world.ask(Command::Show { run }), Answer::Refused(Refusal::NotFound { .. })));
    assert_eq!(
        world.ask(start(request, spec.clone())),
        Answer::Started(StartAnswer::Created(run)),
        "the retry gets the first answer and begins nothing"
    );
    let second = world.request();
    assert!(matches!(
        world.ask(start(second, spec.clone())),
        Answer::Started(StartAnswer::Created(id)) if id == spec.run_id(second)
    ));
    world.flush();
    assert_eq!(world.ask(start(request, spec)), Answer::Started(StartAnswer::Created(run)));
    assert!(world.folded(run).is_none());
    check::check(&world);
}

/// The deadline of a run that turns out not to exist is looked at once and forgotten.
#[test]
fn a_deadline_of_a_missing_run_is_dropped() {
    let mut world = world(1);
    world.shards[0].loaded_due(world.now, &[(world.now.after(10), RunId(9))], None);
    world.tick(10);
    assert_eq!(world.shards[0].next_wake(), None);
    assert!(world.outputs.is_empty());
    let run = world.start(flow());
    world.claim("w1", 1);
    assert!(matches!(world.ask(complete(&world, run, done())), Answer::Recorded { .. }));
}

/// D37: a node whose clock is behind never dates a fact before the last one, and gives live claims a full lease again.
#[test]
fn time_never_runs_backwards() {
    let mut world = world(1);
    world.tick(60_000);
    let run = world.start(flow());
    world.claim("w1", 1);
    let last = world.disks[0].rows.last().expect("a row").at;
    world.now = crate::support::BASE;
    world.crash(Crash::BeforeAppend);
    world.now = crate::support::BASE.after(1);
    let answer = world.ask(complete(&world, run, next("pay")));
    assert!(matches!(answer, Answer::Recorded { .. }), "{answer:?}");
    assert!(world.disks[0].rows.last().expect("a row").at >= last);
    // An id made after this node's clock but before the last fact may have begun before.
    let recent = world.disks[0].rows[0].run;
    assert!(world.folded(recent).is_some());
}

/// Index rows that are written while a long log is still being folded name the keys that are taken. They used to name
/// none, and the key was given away once the run had left memory.
#[test]
fn index_rows_written_while_folding_hold_their_keys() {
    let mut world = world(1);
    let run = world.start(keyed("k"));
    let rows = world.disks[0].rows.clone();
    let mut other = World::new(1);
    for row in &rows {
        other.shards[0].replay(row).expect("it folds");
    }
    let flush = other.shards[0].flush().expect("index rows");
    assert_eq!(flush.records[0].run, run);
    assert_eq!(flush.records[0].occupies, Some(keyed("k").key_identity("k")));
}

/// A run that is set aside because its record is damaged leaves nothing behind that a worker or a start could meet.
#[test]
fn a_run_set_aside_leaves_every_index() {
    let mut world = world(1);
    let mut spec = keyed("k");
    spec.concurrency = limited("c").concurrency;
    let run = world.start(spec.clone());
    let second = StartSpec { key: keyed("other").key, ..spec };
    world.start(second);
    assert!(world.has_work("w1"));
    world.shards[0].set_aside(run);
    assert_eq!(world.claim("w1", 9), 1, "only the second");
    let request = world.request();
    assert!(matches!(world.ask(start(request, keyed("k"))), Answer::Started(StartAnswer::Created(_))));
}

/// D37: after a take-over a live claim gets a full lease again: the last heartbeats were kept in memory only.
#[test]
fn a_take_over_gives_live_claims_a_full_lease() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.tick(300);
    let beat = Command::Heartbeat { claim: world.dispatches[&run].claim, token: token("w1") };
    world.ask(beat);
    assert_eq!(world.disks[0].rows.len(), 2, "the heartbeat is not in the log");
    for flush in [false, true] {
        if flush {
            world.flush();
        }
        world.now = world.now.after(800);
        world.crash(Crash::BeforeAppend);
        world.tick(199);
        assert_eq!(world.folded(run).expect("a run").status(), Status::Executing);
    }
    assert!(matches!(world.ask(complete(&world, run, done())), Answer::Recorded { .. }));
}

/// How many rows of a run still say something, in order.
fn telling(world: &World, run: RunId) -> Vec<u64> {
    let rows = world.disks[0].rows.iter().filter(|row| row.run == run && !row.facts.is_empty());
    rows.map(|row| row.rev.0).collect()
}

/// D1: rows before a compacted one go with the next flush, also when the process that compacted died before it.
#[test]
fn a_compaction_reaches_the_store_also_after_a_crash() {
    let mut world = world(1);
    let run = world.start(flow());
    world.claim("w1", 1);
    world.ask(complete(&world, run, awaiting("go")));
    assert!(matches!(world.ask(Command::Compact { run }), Answer::Recorded { duplicate: false, .. }));
    assert!(matches!(world.ask(Command::Compact { run }), Answer::Recorded { duplicate: true, .. }));
    assert_eq!(telling(&world, run), [1, 2, 3, 4], "nothing goes before it is durable");
    world.crash(Crash::BeforeAppend);
    world.flush();
    assert_eq!(telling(&world, run), [4]);
    // A second flush has nothing to say of it, and the run goes on.
    let request = world.request();
    world.ask(signal(run, "go", request));
    assert_eq!(world.shards[0].flush().expect("the run changed").compacted, []);
    assert_eq!(show(&mut world, run).journal_rows(), 2);
}
