//! The test kit's people: pauses, approvals and tasks answered in one line, also while everything is killed.

use abide::testing::{TestEngine, crash_everywhere};
use abide::{Failure, FnCtx, Function, Status, days};

/// A launch that asks for three people, one after the other.
fn launch() -> Function {
    Function::new("launch", async |ctx: FnCtx, (): ()| {
        let held = ctx.pause("hold").await?;
        let spend = ctx.approval("spend").payload(&5).roles(&["finance"]).deadline(days(3)).await?;
        let weight: u32 = ctx.task("pack", "one box").roles(&["store"]).assignee("eve").await?;
        let said = [held.actor(), spend.actor(), spend.note()].map(|text| text.map(str::to_owned));
        Ok::<_, Failure>((said, spend.is_approved(), weight))
    })
}

type Told = ([Option<String>; 3], bool, u32);

/// SQ-56, SQ-57, SE-3: what a run asks is answered by its name, in one line each.
#[test]
fn people_are_one_liners() {
    let engine = TestEngine::new().register(launch());
    let run = engine.start("launch", &());
    assert_eq!(run.asks().expect("a pause").asked.key, "hold".into());
    run.resume("hold", "ada").reject("spend", "bob", "too much").complete("pack", "eve", &3u32);
    let (said, approved, weight): Told = run.result().unwrap();
    assert_eq!(said, ["ada", "bob", "too much"].map(|text| Some(text.to_owned())));
    assert!(!approved && weight == 3 && run.asks().is_none());
    let approved = engine.start("launch", &());
    approved.resume("hold", "ada").approve("spend", "bob").complete("pack", "eve", &3u32);
    assert!(approved.result::<Told>().unwrap().1);
}

/// An answer to what nobody asked, and one that is not allowed, fail the test with what is so.
#[test]
fn a_wrong_answer_fails_the_test() {
    let engine = TestEngine::new().register(launch());
    let run = engine.start("launch", &());
    let fails = |answer: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer)).expect_err("it fails");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    let nobody = fails(&|| {
        run.approve("spend", "ada");
    });
    assert!(nobody.contains("run-1 asks nobody for \"spend\"") && nobody.contains("pause \"hold\""), "{nobody}");
    let kind = fails(&|| {
        run.approve("hold", "ada");
    });
    assert!(kind.contains("\"hold\" of run-1 cannot be decided"), "{kind}");
    run.resume("hold", "ada").approve("spend", "bob");
    let theirs = fails(&|| {
        run.complete("pack", "bob", &1u32);
    });
    assert!(theirs.contains("assigned to eve"), "{theirs}");
    assert_eq!(run.status(), Status::AwaitingDecision);
}

/// AB-3, SQ-59: killed before and after each durable point, the decisions among them, each boundary is decided once and the run
/// ends the same.
#[test]
fn answers_are_given_whenever_a_boundary_opens() {
    let report = crash_everywhere(launch, &())
        .resumes("hold", "ada")
        .approves("spend", "bob")
        .completes("pack", "eve", &3u32)
        .run();
    report.assert_ok();
    assert!(report.points >= 7 && report.undisturbed.contains("\"bob\""), "{report}");
    let rejected = crash_everywhere(launch, &())
        .resumes("hold", "ada")
        .rejects("spend", "bob", "no")
        .completes("pack", "eve", &3u32);
    rejected.run().assert_ok();
}
