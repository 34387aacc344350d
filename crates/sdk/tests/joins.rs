//! Children of functions, waited for together.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::time::Duration;

use abide::testing::{TestEngine, crash_everywhere};
use abide::{ChildStart, Failure, FnCtx, Function, Join, Status, child, days, hours};

/// What a parent found of its children.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Found {
    met: bool,
    /// What each gave, `Err` for an error, `None` while it had not ended.
    ended: Vec<Option<Result<u32, String>>>,
}

/// A child that takes so many hours, and fails when its number is odd.
fn works() -> Function {
    Function::new("works", async |ctx: FnCtx, (takes, number): (u64, u32)| {
        ctx.sleep(hours(takes)).await?;
        if number % 2 == 1 { Err(Failure::new("odd").terminal()) } else { Ok(number) }
    })
}

/// A parent of children that take 1, 2, 3 … hours, in this order.
fn parent(join: Join, limit: Option<Duration>) -> Function {
    Function::new("parent", move |ctx: FnCtx, numbers: Vec<u32>| async move {
        let children = numbers.into_iter().zip(1u64..).map(|(number, takes)| (takes, child("works", &(takes, number))));
        let children = ctx.children::<u32, _>("works", children).join(join);
        let joined = match limit {
            Some(limit) => children.within(limit).await?,
            None => children.await?,
        };
        let plain = |ended: &Option<Result<u32, abide::StepError>>| {
            ended.as_ref().map(|ended| ended.as_ref().copied().map_err(|error| error.to_string()))
        };
        let ended = joined.ended().iter().map(plain).collect();
        Ok::<_, Failure>(Found { met: joined.is_met(), ended })
    })
}

fn found(join: Join, limit: Option<Duration>, numbers: &[u32]) -> (Found, u64) {
    let engine = TestEngine::new().register(parent(join, limit)).register(works());
    let run = engine.start("parent", numbers);
    let found = run.result().unwrap();
    (found, engine.elapsed().as_secs() / 3600)
}

fn odd() -> Option<Result<u32, String>> {
    Some(Err("error: odd".into()))
}

/// D14: all children are waited for, however they end.
#[test]
fn all_that_ended() {
    let (found, hours) = found(Join::AllTerminal, None, &[2, 1, 4]);
    assert_eq!(found, Found { met: true, ended: vec![Some(Ok(2)), odd(), Some(Ok(4))] });
    assert_eq!(hours, 3);
}

/// D14: the first that fails ends the wait; the others go on.
#[test]
fn all_that_succeed() {
    let (failed, hours) = found(Join::AllSucceeded, None, &[2, 1, 4]);
    assert_eq!(failed, Found { met: false, ended: vec![Some(Ok(2)), odd(), None] });
    assert_eq!(hours, 2);
    let (well, _) = found(Join::AllSucceeded, None, &[2, 4]);
    assert_eq!(well, Found { met: true, ended: vec![Some(Ok(2)), Some(Ok(4))] });
}

/// D14: one that succeeds is enough; when none does, all have ended.
#[test]
fn any_that_succeeds() {
    let (one, hours) = found(Join::Any, None, &[1, 2, 4]);
    assert_eq!(one, Found { met: true, ended: vec![odd(), Some(Ok(2)), None] });
    assert_eq!(hours, 2);
    let (none, _) = found(Join::Any, None, &[1, 3]);
    assert_eq!(none, Found { met: false, ended: vec![odd(), odd()] });
    let (nobody, _) = found(Join::Any, None, &[]);
    assert_eq!(nobody, Found { met: false, ended: vec![] });
}

/// D14: so many as were asked for, or as soon as that has become impossible.
#[test]
fn a_quorum() {
    let (two, hours) = found(Join::Quorum(2), None, &[2, 1, 4, 6]);
    assert_eq!(two, Found { met: true, ended: vec![Some(Ok(2)), odd(), Some(Ok(4)), None] });
    assert_eq!(hours, 3);
    let (lost, hours) = found(Join::Quorum(2), None, &[1, 3, 4]);
    assert_eq!(lost, Found { met: false, ended: vec![odd(), odd(), None] });
    assert_eq!(hours, 2);
}

/// D14, D30: a deadline ends the wait, and says who had not ended.
#[test]
fn a_deadline() {
    let (late, hours) = found(Join::AllTerminal, Some(hours(2) + Duration::from_secs(60)), &[2, 4, 6, 8]);
    assert_eq!(late, Found { met: false, ended: vec![Some(Ok(2)), Some(Ok(4)), None, None] });
    assert_eq!(hours, 2);
    let (early, _) = found(Join::AllTerminal, Some(days(1)), &[2]);
    assert!(early.met);
}

/// A wait that makes no sense is an error before any child begins.
#[test]
fn what_cannot_be_joined() {
    let twice = Function::new("twice", async |ctx: FnCtx, quorum: u32| {
        let same = |key: &'static str| -> (&str, ChildStart) { (key, child("works", &(1, 2))) };
        let keys = if quorum == 0 { ["a", "b"] } else { ["a", "a"] };
        let joined = ctx.children::<u32, _>("works", keys.map(same)).join(Join::Quorum(quorum)).await?;
        joined.all()
    });
    let engine = TestEngine::new().register(twice).register(works());
    for (quorum, says) in [(0, "expected a quorum from 1 to 2"), (1, "expected keys that differ")] {
        let run = engine.start("twice", &quorum);
        let error = run.result::<Vec<u32>>().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(run.status(), Status::Failed);
        assert!(run.show().children.is_empty(), "no child began");
    }
}

/// AB-3, D14: killed anywhere, the parent finds the same children ended.
#[test]
fn a_join_is_the_same_after_every_crash() {
    crash_everywhere(|| parent(Join::Quorum(2), Some(days(1))), &[2u32, 1, 4, 6]).with(works).run().assert_ok();
}
