//! Edits under open runs that are guarded by `ctx.patched`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use abide::testing::{Journals, Replayed, TestEngine, TestRun};
use abide::{Failure, FnCtx, Function, RetryPolicy, Status, StepError};

/// Which code is deployed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Code {
    /// Before the edit.
    Old,
    /// With the edit, guarded.
    Guarded,
    /// With the edit alone.
    New,
}

async fn effect(ctx: &FnCtx, name: &str) -> Result<String, Failure> {
    ctx.effect(name, async |_| Ok::<_, StepError>(name.to_owned())).await
}

/// Weighs, waits, and then posts the old way or ships the new way, at two places that must agree.
fn parcel(code: Code) -> Function {
    Function::new("parcel", move |ctx: FnCtx, (): ()| async move {
        let mut done = vec![effect(&ctx, "weigh").await?];
        let new = || code == Code::New || code == Code::Guarded && ctx.patched("courier");
        done.push(effect(&ctx, if new() { "label" } else { "stamp" }).await?);
        ctx.signal::<()>("go").await?;
        done.push(effect(&ctx, if new() { "ship" } else { "post" }).await?);
        ctx.signal::<()>("end").await?;
        Ok::<_, Failure>(done)
    })
}

/// Sends what the run still waits for, restarting in between, and gives what it did.
fn finish(engine: &TestEngine, run: &TestRun) -> Vec<String> {
    for signal in ["go", "end"] {
        run.signal(signal, &());
        engine.lose_checkpoints();
    }
    assert_eq!(run.status(), Status::Done, "{}", run.why());
    run.result().unwrap()
}

fn keys(run: &TestRun) -> Vec<String> {
    run.show().ops().map(|(_, op)| op.key.to_string()).collect()
}

/// AB-5: a run that comes to the edit first goes the new way, one that has passed it the old way, at both places and in
/// every replay.
#[test]
fn an_edit_is_met_whole_or_not_at_all() {
    let engine = TestEngine::new().register(parcel(Code::Old));
    let old = engine.start("parcel", &());
    engine.deploy(parcel(Code::Guarded));
    let new = engine.start("parcel", &());
    assert_eq!(finish(&engine, &old), ["weigh", "stamp", "post"]);
    assert_eq!(finish(&engine, &new), ["weigh", "label", "ship"]);
    assert!(!keys(&old).iter().any(|key| key.starts_with("patch")), "nothing is written for a run that has passed");
    assert_eq!(keys(&new).iter().filter(|key| *key == "patch courier").count(), 1, "one mark, however often asked");
}

/// AB-5: what is recorded behind the edit counts, also what only began: the run waits for a signal that it came to without
/// the edit.
#[test]
fn a_wait_behind_the_edit_means_that_it_was_passed() {
    let waits = |guarded: bool| {
        Function::new("waits", move |ctx: FnCtx, (): ()| async move {
            effect(&ctx, "first").await?;
            let new = guarded && ctx.patched("greet");
            if new {
                effect(&ctx, "greet").await?;
            }
            ctx.signal::<()>("go").await?;
            // A place of its own, which nobody has come to.
            let later = guarded && ctx.patched("part");
            Ok::<_, Failure>((new, later))
        })
    };
    let engine = TestEngine::new().register(waits(false));
    let run = engine.start("waits", &());
    engine.deploy(waits(true));
    run.signal("go", &());
    assert_eq!(run.result::<(bool, bool)>().unwrap(), (false, true));
}

/// AB-5: once the guard is gone, a journal with the mark still fits, and the mark does not stand in the way of other edits.
#[test]
fn a_guard_can_be_removed_again() {
    let engine = TestEngine::new().register(parcel(Code::Guarded));
    let run = engine.start("parcel", &());
    let journal = run.export();
    let report = Journals::new().register(parcel(Code::New)).check_text(&journal);
    assert!(matches!(&report, Replayed::Fits { removed, .. } if removed == &["patch courier"]), "{report}");
    engine.deploy(Function::new("parcel", async |ctx: FnCtx, (): ()| {
        let mut done = vec![effect(&ctx, "weigh").await?, effect(&ctx, "label").await?];
        ctx.signal::<()>("go").await?;
        done.push(effect(&ctx, if ctx.patched("drone") { "fly" } else { "ship" }).await?);
        ctx.signal::<()>("end").await?;
        Ok::<_, Failure>(done)
    }));
    assert_eq!(finish(&engine, &run), ["weigh", "label", "fly"]);
}

/// AB-5: journals of runs that have ended fit the guarded code: their history has passed every edit.
#[test]
fn a_run_that_has_ended_has_passed_every_edit() {
    let short = |guarded: bool| {
        Function::new("short", move |ctx: FnCtx, (): ()| async move {
            let mut done = effect(&ctx, "first").await?;
            if guarded && ctx.patched("more") {
                done = effect(&ctx, "second").await?;
            }
            Ok::<_, Failure>(done)
        })
    };
    let engine = TestEngine::new().register(short(false));
    let run = engine.start("short", &());
    assert_eq!(run.result::<String>().unwrap(), "first");
    let report = Journals::new().register(short(true)).check_text(&run.export());
    assert!(matches!(report, Replayed::Fits { .. }), "{report}");
}

/// AB-5: every scope decides for itself, so that a loop meets the edit with its next round; and an edit is decided before
/// whatever rests on it begins, so that a retry decides the same.
#[test]
fn a_scope_decides_for_itself() {
    let rounds = |guarded: bool| {
        let code = move |ctx: FnCtx, (): ()| async move {
            let mut ways = Vec::new();
            for round in 0..4 {
                let ctx = ctx.scope(&format!("round {round}"));
                ways.push(guarded && ctx.patched("faster"));
                effect(&ctx, "work").await?;
                ctx.signal::<()>("next").await?;
            }
            Ok::<_, Failure>(ways)
        };
        Function::new("rounds", code).retry(RetryPolicy::exponential(1))
    };
    let engine = TestEngine::new().register(rounds(false));
    let run = engine.start("rounds", &());
    run.signal("next", &());
    engine.deploy(rounds(true));
    engine.operation("round 3/work").fails(StepError::new("not yet")).returns("at last");
    for _ in 0..3 {
        run.signal("next", &());
        engine.lose_checkpoints();
    }
    assert_eq!(run.result::<Vec<bool>>().unwrap(), [false, false, true, true]);
}

/// AB-5: a name that cannot be recorded sets the run aside, and nothing is written.
#[test]
fn a_guard_without_a_name_sets_the_run_aside() {
    let wrong = Function::new("wrong", async |ctx: FnCtx, (): ()| Ok::<_, Failure>(ctx.patched("a#b")));
    let engine = TestEngine::new().register(wrong);
    let run = engine.start("wrong", &());
    assert_eq!(run.status(), Status::DeadLettered);
    assert!(run.why().contains("bad_name"), "{}", run.why());
    assert!(keys(&run).is_empty());
}
