//! What the journal says of effects, and what follows from what it does not say.

use abide::testing::{TestEngine, TestRun};
use abide::{
    Control, Fact, Failure, FnCtx, Function, InDoubt, Payload, Policy, RetryPolicy, Standing, Status, StepError, days,
};

/// Sends money, and waits a day.
fn send(policy: Policy) -> Function {
    let code = move |ctx: FnCtx, (): ()| async move {
        let key: String =
            ctx.effect("send", async |call| Ok::<_, StepError>(call.key().to_owned())).policy(policy).await?;
        ctx.sleep(days(1)).await?;
        Ok::<_, Failure>(key)
    };
    Function::new(&format!("send {policy}"), code).control(Control::allow())
}

/// The journal of a run as it would be if its store had lost the effect's result, and what came after.
fn without_result(run: &TestRun) -> String {
    let tells = |line: &&str| !line.contains("\"resulted\"");
    run.export().lines().take_while(tells).collect::<Vec<_>>().join("\n")
}

/// A run that was killed inside its effect, in a world of its own.
fn killed_inside(policy: Policy) -> (TestEngine, TestRun) {
    let before = TestEngine::new().register(send(policy));
    let lost = without_result(&before.start(&format!("send {policy}"), &()));
    let engine = TestEngine::new().register(send(policy));
    let run = engine.import(&lost);
    engine.run_until_blocked();
    (engine, run)
}

/// JI-4: the words of the policies, by what follows when nobody knows whether an effect took place: what is pure, what is the
/// same twice and what is only wasteful is called again under the same key; what another one knows, and what is unsafe
/// twice, is not; and only the last needs a control.
#[test]
fn a_policy_is_a_promise_about_twice() {
    for (policy, again, intends_first, needs_control) in [
        (Policy::Pure, true, false, false),
        (Policy::Idempotent, true, false, false),
        (Policy::Dedupe, true, false, false),
        (Policy::Reconcile, false, true, false),
        (Policy::UnsafeOnce, false, true, true),
    ] {
        let (engine, run) = killed_inside(policy);
        let calls = engine.operation("send").calls();
        assert_eq!((calls, run.status() == Status::InDoubt), (u32::from(again), !again), "{policy}");
        if again {
            let key = run.effects().remove(0).idempotency_key;
            assert_eq!(run.result::<String>().unwrap(), key, "{policy}: the other side gets the same key");
        }
        assert_eq!(policy.intends_first(), intends_first, "{policy}: whether the journal knows before it is called");
        let uncontrolled = Function::new("f", async |_: FnCtx, (): ()| Ok::<_, Failure>(())).operation("send", policy);
        assert_eq!(uncontrolled.plan().is_err(), needs_control, "{policy}");
    }
}

/// JI-30: when the store has lost a result, an idempotent effect is called again, under the same key, and only once more.
#[test]
fn a_lost_result_means_another_call() {
    let (engine, run) = killed_inside(Policy::Idempotent);
    assert_eq!(engine.operation("send").calls(), 1, "the call of the world before is not known here");
    engine.restart();
    assert!(run.result::<String>().unwrap().ends_with("/send"));
    assert_eq!(engine.operation("send").calls(), 1, "its result is recorded now");
    assert_eq!(run.effects()[0].standing, Standing::Committed);
}

/// JI-19, JI-28: an effect in doubt is an error with a form of its own: a map with the reason and the intent's id.
#[test]
fn a_doubt_is_a_map() {
    for (policy, reason) in
        [(Policy::UnsafeOnce, "unsafe_once_incomplete_effect"), (Policy::Reconcile, "reconcile_incomplete_effect")]
    {
        let (_engine, run) = killed_inside(policy);
        let effect = run.effects().remove(0);
        let doubt = effect.doubt().expect("a doubt");
        assert!(doubt.to_string().starts_with(reason), "{doubt}");
        let map = Payload::encode(&doubt).unwrap();
        let fields: std::collections::BTreeMap<String, serde_json::Value> = map.decode().unwrap();
        assert_eq!(fields["reason"], reason);
        assert_eq!(fields["intent_id"], effect.idempotency_key.as_str());
        assert_eq!(fields["interrupt"], effect.interrupt.expect("an interrupt"));
        assert_eq!(map.decode::<InDoubt>().unwrap(), doubt);
        assert!(run.resolve("send", "found").effects()[0].doubt().is_none());
    }
}

/// JI-18, JI-25, JI-26: a program finds what it must look up: effects in doubt of all runs, of which it takes those whose
/// truth lies elsewhere, and says what became of each. The runs go on, and nothing is called.
#[test]
fn a_program_reconciles_what_it_can() {
    let policies = [Policy::Reconcile, Policy::UnsafeOnce, Policy::Reconcile];
    let before = TestEngine::new().register(send(Policy::Reconcile)).register(send(Policy::UnsafeOnce));
    let runs = policies.map(|policy| before.start(&format!("send {policy}"), &()));
    let engine = TestEngine::new().register(send(Policy::Reconcile)).register(send(Policy::UnsafeOnce));
    let runs = runs.map(|run| engine.import(&without_result(&run)));
    engine.run_until_blocked();
    let wait = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut queue = wait.block_on(engine.client().in_doubt(10)).unwrap();
    assert_eq!(queue.len(), 3);
    queue.retain(|(_, effect)| effect.policy == Policy::Reconcile);
    for (run, effect) in &queue {
        let found = format!("the books have {}", effect.idempotency_key);
        wait.block_on(run.resolve(&effect.key).actor("reconciler").value(&found).into_future()).unwrap();
    }
    for (run, policy) in runs.iter().zip(policies) {
        if policy == Policy::Reconcile {
            assert!(run.result::<String>().unwrap().starts_with("the books have"));
        } else {
            assert_eq!(run.status(), Status::InDoubt);
        }
    }
    assert_eq!(engine.operation("send").calls(), 0);
}

/// JI-29: a ledger is kept whole, over every restart, and it is one life's: a new beginning has an empty one, so that what was
/// recorded before is executed again, under another key.
#[test]
fn a_new_beginning_has_an_empty_ledger() {
    let turns = Function::new("turns", async |ctx: FnCtx, keys: Vec<String>| {
        let key: String = ctx.effect("ask", async |call| Ok::<_, StepError>(call.key().to_owned())).dedupe().await?;
        ctx.sleep(days(1)).await?;
        let keys = [keys, vec![key]].concat();
        if keys.len() < 2 { ctx.continue_as_new(&keys) } else { Ok::<_, Failure>(keys) }
    });
    let engine = TestEngine::new().register(turns);
    let run = engine.start("turns", &Vec::<String>::new());
    engine.lose_checkpoints();
    assert_eq!((engine.operation("ask").calls(), run.effects().len()), (1, 1), "kept whole");
    engine.advance(days(1));
    engine.restart();
    assert_eq!(engine.operation("ask").calls(), 2, "a new turn");
    let keys = run.result::<Vec<String>>().unwrap();
    assert!(keys[0] != keys[1], "{keys:?}");
    assert_eq!(engine.operation("ask").calls(), 2);
}

/// JI-32: a call that fails or panics makes the attempt fail; no retry and no later life calls what must not happen twice.
#[test]
fn what_raised_is_not_raised_again() {
    for panics in [false, true] {
        let raises = Function::new("raises", move |ctx: FnCtx, (): ()| async move {
            let call = async |_| if panics { panic!("it raised") } else { Err::<u32, _>(StepError::new("it raised")) };
            ctx.effect("wire", call).unsafe_once().await
        });
        let engine = TestEngine::new().register(
            raises
                .retry(RetryPolicy { retries_max: Some(3), ..RetryPolicy::exponential(1_000) })
                .control(Control::allow()),
        );
        let run = engine.start("raises", &());
        engine.run_until_blocked();
        engine.restart();
        engine.run_until_blocked();
        let failed = run.journal().iter().flat_map(|row| row.facts.clone()).any(|fact| matches!(fact, Fact::Failed(_)));
        assert!(failed, "the attempt came to an error");
        assert_eq!(engine.operation("wire").calls(), 1, "panics: {panics}");
        let standing = if panics { Standing::InDoubt } else { Standing::Failed };
        assert_eq!(run.effects()[0].standing, standing);
    }
}

/// JI-3, JI-35: the guide asks five questions, from the smallest policy to the largest, each names its policy, and the default
/// is the one that the code has.
#[test]
fn the_guide_asks_for_the_smallest_policy_that_is_right() {
    let guide = include_str!("../../../docs/policies.md");
    for (number, policy) in (1..).zip(Policy::ALL) {
        let question = guide.split(&format!("\n{number}. **")).nth(1).expect("a question for each policy");
        let question = question.split("\n\n").next().unwrap_or_default();
        let question = question.split(&format!("\n{}. **", number + 1)).next().unwrap_or_default();
        assert!(question.contains(&format!("`{policy}`")), "{number}: {question}");
        assert_eq!(
            question.contains("the\n   default") || question.contains("the default"),
            policy == Policy::default()
        );
    }
    assert!(guide.contains("Take the first that is true."));
    assert_eq!(Policy::default(), Policy::Idempotent);
}
