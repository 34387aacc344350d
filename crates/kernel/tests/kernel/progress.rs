//! Progress: what a step says of itself is shown at once, costs no row of its own, and rides with the next one.

use crate::support::act::{complete, done, flow, next, payload, show};
use crate::support::{Crash, Hand, World, check, token};
use abide_kernel::limits::{NAME_BYTES_MAX, PROGRESS_BYTES_MAX, PROGRESS_EVENTS_MAX, PROGRESS_NAMES_MAX};
use abide_kernel::shard::{Answer, Command, Output};
use abide_kernel::transition::progress::Progressing;
use abide_kernel::{ClaimId, Progress, Refusal, RunId};

fn world() -> World {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    world
}

/// A run whose first step is claimed.
fn claimed(world: &mut World) -> RunId {
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    run
}

fn say_under(world: &mut World, claim: ClaimId, by: &str, name: &str, value: &str) -> Answer {
    let progressing = Box::new(Progressing { name: name.into(), value: payload(value) });
    world.ask(Command::Progress { claim, token: token(by), progressing })
}

fn say(world: &mut World, run: RunId, name: &str, value: &str) -> Answer {
    let claim = world.dispatches[&run].claim;
    say_under(world, claim, "w1", name, value)
}

fn said(answer: &Answer) {
    assert!(matches!(answer, Answer::Extended { .. }), "{answer:?}");
}

fn refused(answer: &Answer, code: &str) {
    assert!(matches!(answer, Answer::Refused(refusal) if refusal.code() == code), "expected {code}, found {answer:?}");
}

fn progress(world: &mut World, run: RunId) -> Progress {
    show(world, run).progress.map(|progress| *progress).unwrap_or_default()
}

fn latest(progress: &Progress) -> Vec<String> {
    progress.latest.iter().map(|said| format!("{}={}", said.event.name, said.event.value.text())).collect()
}

fn events(progress: &Progress, after: u64) -> Vec<String> {
    progress.after(after).map(|said| said.event.value.text().to_owned()).collect()
}

/// BU-28, BU-29, BU-30, BU-31: the last value of a name counts, events keep their order, and what comes after one of them is
/// found again. Nothing is written until the run has something else to write.
#[test]
fn the_last_value_counts_and_events_keep_their_order() {
    let mut world = world();
    let run = claimed(&mut world);
    let rows = world.disks[0].rows.len();
    for (name, value) in [("rows", "1"), ("bytes", "10"), ("rows", "2")] {
        said(&say(&mut world, run, name, value));
    }
    assert_eq!(world.disks[0].rows.len(), rows, "no row of its own");
    assert_eq!(world.outputs.iter().filter(|output| matches!(output, Output::Progressed(_))).count(), 3);
    let shown = progress(&mut world, run);
    assert_eq!(latest(&shown), ["bytes=10", "rows=2"]);
    let seqs: Vec<u64> = shown.events.iter().map(|said| said.event.seq).collect();
    assert!(seqs.is_sorted_by(|one, other| one < other), "{seqs:?}");
    assert_eq!(events(&shown, 0), ["1", "10", "2"]);
    assert_eq!(events(&shown, seqs[0]), ["10", "2"]);
    assert_eq!(events(&shown, seqs[2]), [""; 0]);

    world.ask(complete(&world, run, next("two")));
    world.crash(Crash::BeforeAppend);
    assert_eq!(progress(&mut world, run), shown, "it rode with the outcome");
    check::check(&world);
}

/// BU-28: the next attempt at the step is told what the last one said, also when its worker was lost; the next step is not.
#[test]
fn the_next_attempt_is_told_and_the_next_step_is_not() {
    let mut world = world();
    let run = claimed(&mut world);
    said(&say(&mut world, run, "page", "7"));
    world.tick(1_000);
    assert_eq!(world.claim("w1", 1), 1);
    let told = &world.dispatches[&run].progress;
    assert_eq!(told.iter().map(|event| (&*event.name, event.value.text())).collect::<Vec<_>>(), [("page", "7")]);
    world.ask(complete(&world, run, next("two")));
    assert_eq!(world.claim("w1", 1), 1);
    assert_eq!(world.dispatches[&run].progress, []);
    said(&say(&mut world, run, "lines", "1"));
    assert_eq!(latest(&progress(&mut world, run)), ["lines=1"], "of the steps as they stand now");
    assert_eq!(events(&progress(&mut world, run), 0), ["7", "1"]);
    check::check(&world);
}

/// BU-27, BU-30: what was in memory only may be lost with it, and its numbers are never used again.
#[test]
fn numbers_are_not_used_again_after_a_crash() {
    let mut world = world();
    let run = claimed(&mut world);
    said(&say(&mut world, run, "rows", "1"));
    said(&say(&mut world, run, "rows", "2"));
    let seen = progress(&mut world, run).last();
    world.now = world.now.after(1);
    world.crash(Crash::BeforeAppend);
    assert_eq!(latest(&progress(&mut world, run)), [""; 0]);
    said(&say(&mut world, run, "rows", "3"));
    assert_eq!(events(&progress(&mut world, run), seen), ["3"]);
    // A third of the lease later it rides with the heartbeat that is written then.
    world.tick(400);
    said(&say(&mut world, run, "rows", "4"));
    world.crash(Crash::BeforeAppend);
    assert_eq!(latest(&progress(&mut world, run)), ["rows=4"]);
    check::check(&world);
}

/// BU-30: what is kept is bounded, in memory and in the run; the last value of each name stays.
#[test]
fn old_events_are_trimmed_and_last_values_stay() {
    let mut world = world();
    let run = claimed(&mut world);
    said(&say(&mut world, run, "once", "0"));
    for number in 0..3 * PROGRESS_EVENTS_MAX {
        said(&say(&mut world, run, "often", &number.to_string()));
    }
    let last = format!("often={}", 3 * PROGRESS_EVENTS_MAX - 1);
    for crashed in [false, true] {
        let shown = progress(&mut world, run);
        assert_eq!(latest(&shown), ["once=0", &last], "crashed: {crashed}");
        assert_eq!(shown.events.len(), PROGRESS_EVENTS_MAX);
        assert!(shown.trimmed > 0 && shown.trimmed < shown.last());
        world.ask(complete(&world, run, done()));
        world.crash(Crash::BeforeAppend);
    }
    check::check(&world);
}

/// SQ-41: whoever does not hold the claim says nothing, and what is out of bounds is not taken.
#[test]
fn only_the_holder_of_the_claim_is_heard() {
    let mut world = world();
    let run = claimed(&mut world);
    let claim = world.dispatches[&run].claim;
    refused(&say_under(&mut world, claim, "w2", "rows", "1"), "wrong_token");
    refused(&say_under(&mut world, ClaimId { run, number: 9 }, "w1", "rows", "1"), "stale_claim");
    refused(&say(&mut world, run, "", "1"), "invalid");
    refused(&say(&mut world, run, &"n".repeat(201), "1"), "invalid");
    refused(&say(&mut world, run, "rows", &format!("\"{}\"", "x".repeat(PROGRESS_BYTES_MAX))), "too_large");
    for number in 0..PROGRESS_NAMES_MAX {
        said(&say(&mut world, run, &format!("n{number}"), "1"));
    }
    refused(&say(&mut world, run, "one more", "1"), "too_large");
    said(&say(&mut world, run, "n0", "2"));
    world.ask(complete(&world, run, done()));
    refused(&say_under(&mut world, claim, "w1", "rows", "1"), "run_over");
    assert_eq!(progress(&mut world, run).latest.len(), PROGRESS_NAMES_MAX);
    check::check(&world);
}

/// What is just within bounds is taken, and what is not is told with what was found.
#[test]
fn the_bounds_of_a_progress_are_exact() {
    let mut world = world();
    let run = claimed(&mut world);
    said(&say(&mut world, run, &"n".repeat(NAME_BYTES_MAX), "1"));
    said(&say(&mut world, run, "rows", &format!("\"{}\"", "x".repeat(PROGRESS_BYTES_MAX - 2))));
    let Answer::Refused(Refusal::Invalid { found, .. }) = say(&mut world, run, &"n".repeat(NAME_BYTES_MAX + 1), "1")
    else {
        panic!("a name that is too long")
    };
    assert_eq!(found, "n".repeat(80), "enough of it to know it by");
    for number in 2..PROGRESS_NAMES_MAX {
        said(&say(&mut world, run, &format!("n{number}"), "1"));
    }
    let Answer::Refused(Refusal::TooLarge { limit, found, .. }) = say(&mut world, run, "one more", "1") else {
        panic!("a name too many")
    };
    assert_eq!((limit, found), (PROGRESS_NAMES_MAX as u64, PROGRESS_NAMES_MAX as u64 + 1));
}

/// What each claim said is one fact of the next row, and none of a row with which a journal begins anew.
#[test]
fn what_was_said_rides_once_and_not_with_a_beginning() {
    let mut world = world();
    let plan = |step: &str| abide_kernel::PlannedStep { step: step.into(), needs: Vec::new() };
    let run = world.start(abide_kernel::StartSpec { steps: vec![plan("a"), plan("b")], ..flow() });
    assert_eq!(world.claim("w1", 2), 2);
    for (number, value) in [(1, "1"), (2, "2"), (1, "3")] {
        said(&say_under(&mut world, ClaimId { run, number }, "w1", "rows", value));
    }
    world.ask(Command::Compact { run });
    let kinds = |world: &World| -> Vec<&'static str> {
        world.disks[0].rows.last().expect("a row").facts.iter().map(abide_kernel::Fact::kind).collect()
    };
    assert_eq!(kinds(&world)[0], "compacted");
    let request = world.request();
    world.ask(crate::support::act::signal(run, "go", request));
    assert_eq!(kinds(&world), ["progressed", "progressed", "signal_received"]);
    assert_eq!(latest(&progress(&mut world, run)), ["rows=3", "rows=2"]);
}
