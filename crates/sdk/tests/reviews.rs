//! Reviews: effects that a control interrupts, and the people who let them begin or do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::testing::{Side, TestEngine, TestRun, crash_everywhere};
use abide::{
    BoundaryId, Boxed, ClientError, Control, Fact, Failure, FnCtx, Function, Interrupt, Machine, Policy, Refusal,
    Review, Standing, Status, StepError, days, done, hours, next,
};

async fn ok<T>(value: T) -> Result<T, StepError> {
    Ok(value)
}

fn reviewed() -> Control {
    Control::interrupt().named("wire").roles(&["finance"]).deadline(days(2))
}

/// A refund: the money is wired once somebody has said yes, and a mail tells how it went.
fn refund(controls: &[Control]) -> Function {
    let code = async |ctx: FnCtx, amount: u32| {
        let wired = ctx.effect("wire", |_| ok(amount)).input(&amount).unsafe_once().await;
        let told = match &wired {
            Ok(amount) => format!("wired {amount}"),
            Err(error) => error.to_string(),
        };
        let mail: String = ctx.effect("mail", |_| ok(told)).await?;
        Ok::<_, Failure>(mail)
    };
    let refund = Function::new("refund", code).operation("wire", Policy::UnsafeOnce);
    controls.iter().cloned().fold(refund, Function::control)
}

fn engine(controls: &[Control]) -> (TestEngine, abide::testing::Scripted) {
    let engine = TestEngine::new().register(refund(controls));
    let wire = engine.operation("wire").returns(&5u32);
    (engine, wire)
}

fn id(run: &TestRun) -> BoundaryId {
    BoundaryId { run: run.id(), op: run.asks().expect("a boundary").asked.op }
}

/// The engine's answer to a decision, waited for, or the code of its refusal.
fn sent<T>(decide: impl IntoFuture<Output = Result<T, ClientError>>) -> Result<T, &'static str> {
    let wait = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    wait.block_on(decide.into_future()).map_err(|error| match error {
        ClientError::Refused(refusal) => refusal.code(),
        other => panic!("expected a refusal, found {other}"),
    })
}

/// JI-9, JI-20, JI-22: an effect that a control interrupts waits for a yes, shows what it is, runs once, and is stamped with
/// who said so.
#[test]
fn an_effect_begins_when_a_reviewer_says_so() {
    let (engine, wire) = engine(&[reviewed()]);
    let run = engine.start("refund", &5u32);
    assert_eq!((run.status(), wire.calls()), (Status::AwaitingDecision, 0));
    assert!(run.effects().is_empty(), "it has not begun");
    let shown: Review = run.review().expect("a review");
    assert_eq!((shown.operation.as_str(), shown.effect.as_str(), shown.policy), ("wire", "wire", Policy::UnsafeOnce));
    assert_eq!(shown.input.as_ref().map(abide::Payload::text), Some("5"));
    assert!(run.why().contains("a review of effect \"wire\" by role finance"), "{}", run.why());
    engine.restart();
    let interrupt = id(&run);
    run.approve("wire", "ada");
    assert_eq!(run.result::<String>().unwrap(), "wired 5");
    assert_eq!(wire.calls(), 1);
    let wired = run.effects().remove(0);
    let approval = wired.approval.expect("an approval");
    assert_eq!((approval.interrupt, &*approval.actor), (Interrupt::Review(interrupt.op), "ada"));
    assert_eq!((wired.standing, wired.idempotency_key), (Standing::Committed, shown.idempotency_key));
    let stamped = run.journal().iter().flat_map(|row| row.facts.clone()).any(|fact| match fact {
        Fact::Intended(intended) if &*intended.key == "wire" => json(&intended.kind).contains("\"approval\""),
        _ => false,
    });
    assert!(stamped, "{}", run.history());
}

fn json<T: serde::Serialize>(value: &T) -> String {
    abide::Payload::encode(value).expect("JSON").text().to_owned()
}

/// JI-21, JI-22: a word for another interrupt, a second one and a late one are refused by name, and change nothing.
#[test]
fn a_word_is_for_one_interrupt_and_in_time() {
    let (engine, wire) = engine(&[reviewed()]);
    let (run, other) = (engine.start("refund", &5u32), engine.start("refund", &6u32));
    let (own, foreign) = (id(&run), id(&other));
    let client = engine.client();
    let handle = client.run(run.id());
    assert_eq!(sent(handle.approve(foreign, "ada").role("finance")), Err("stale_boundary"));
    assert_eq!(sent(handle.approve(BoundaryId { op: 9, ..own }, "ada").role("finance")), Err("stale_boundary"));
    assert_eq!(sent(handle.approve(own, "ada").role("sales")), Err("wrong_role"));
    assert_eq!((run.status(), wire.calls()), (Status::AwaitingDecision, 0));
    let (first, second) = (handle.approve(own, "ada").role("finance"), handle.approve(own, "bob").role("finance"));
    assert!(sent(first).unwrap());
    let second = sent(second).unwrap_err();
    assert!(["already_decided", "run_over"].contains(&second), "{second}");
    engine.advance(days(2));
    let late = sent(client.run(other.id()).approve(foreign, "ada").role("finance")).unwrap_err();
    assert!(["decision_late", "run_over"].contains(&late), "{late}");
    assert_eq!(
        other.result::<String>().unwrap(),
        format!("approval_expired: nobody approved effect \"wire\" in time ({foreign})")
    );
    assert_eq!((run.result::<String>().unwrap(), wire.calls()), ("wired 5".to_owned(), 1));
}

/// JI-22: a rejection is an error that names who said no and why; a control that blocks asks nobody.
#[test]
fn a_no_is_an_error_that_names_who_said_it() {
    let asked = Function::new("asked", async |ctx: FnCtx, (): ()| {
        let error = ctx.effect("wire", |_| ok(())).await.expect_err("nobody approves it");
        assert!(!error.info().retryable);
        Ok::<_, Failure>((error.info().code.to_string(), error.rejection()))
    });
    let engine = TestEngine::new().register(asked.control(Control::interrupt()));
    let run = engine.start("asked", &());
    let interrupt = id(&run);
    run.reject("wire", "ada", "too much");
    let (code, rejection): (String, Option<abide::Rejection>) = run.result().unwrap();
    let rejection = rejection.expect("a rejection");
    assert_eq!((code.as_str(), rejection.effect.as_str(), rejection.interrupt), ("rejected", "wire", interrupt));
    assert_eq!((rejection.actor.as_str(), rejection.note.as_deref()), ("ada", Some("too much")));
    let (engine, wire) = self::engine(&[Control::block().named("wire"), reviewed()]);
    let blocked = engine.start("refund", &5u32);
    assert!(blocked.result::<String>().unwrap().starts_with("blocked_by_control"));
    assert_eq!((wire.calls(), blocked.asks()), (0, None));
}

/// JI-5, JI-6: an operation that must not happen twice is accepted under a control that interrupts.
#[test]
fn a_control_that_interrupts_is_a_control() {
    assert_eq!(refund(&[reviewed()]).plan().unwrap().operations.len(), 1);
    assert!(refund(&[]).plan().is_err());
    let wrong = refund(&[Control::allow().deadline(days(1))]).plan().unwrap_err();
    assert!(wrong.to_string().starts_with("bad_control: the control that allows operations"), "{wrong}");
}

/// JI-19, JI-20, JI-21, D19: what was approved and died inside its call is in doubt; it runs again only by a word for exactly
/// that interrupt, in a role of its review.
#[test]
fn an_approved_effect_that_is_in_doubt_needs_another_word() {
    let (engine, wire) = engine(&[reviewed()]);
    let run = engine.start("refund", &5u32);
    // The call takes place, and its result is lost with the process.
    engine.crash_at_append(2, Side::Before);
    run.approve("wire", "ada");
    assert_eq!((run.status(), wire.calls()), (Status::InDoubt, 1), "{}", run.history());
    let doubt = run.effects()[0].doubt().expect("a doubt");
    let handle = engine.client().run(run.id());
    let resolved = |interrupt: u32, role: &str| {
        let resolve =
            handle.resolve("wire").actor("eve").note("not at the bank").interrupt(interrupt).role(role).retry();
        sent(resolve)
    };
    assert_eq!(resolved(doubt.interrupt + 1, "finance"), Err("wrong_interrupt"));
    assert_eq!(resolved(doubt.interrupt, "sales"), Err("wrong_role"));
    assert_eq!((run.status(), wire.calls()), (Status::InDoubt, 1));
    resolved(doubt.interrupt, "finance").unwrap();
    assert_eq!((run.result::<String>().unwrap(), wire.calls()), ("wired 5".to_owned(), 2));
    let approval = run.effects().remove(0).approval.expect("an approval");
    assert_eq!((approval.interrupt, &*approval.actor), (Interrupt::Doubt(doubt.interrupt), "eve"));
    assert_eq!(approval.note.as_deref(), Some("not at the bank"));
}

/// JI-9: in a step it is the same: the step lets go of its worker, and runs again when somebody has decided.
#[test]
fn a_step_has_its_effects_reviewed_too() {
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    let order = Machine::<u32>::new("order")
        .step("pay", move |ctx, amount: u32| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                let noted: u32 = ctx.effect("note", |_| ok(amount)).await?;
                match ctx.effect("wire", |_| ok(noted)).input(&noted).unsafe_once().await {
                    Ok(paid) => Ok(next("ship", paid)),
                    Err(error) => Ok(done(&error.to_string())),
                }
            }
        })
        .step("ship", async |ctx, paid: u32| {
            let shipped: u32 = ctx.effect("wire", |_| ok(paid + 1)).await?;
            Ok(done(&shipped))
        })
        .control(reviewed());
    let engine = TestEngine::new().register(order);
    let run = engine.start("order", &5u32);
    engine.advance(hours(1));
    assert_eq!((run.status(), attempts.load(Ordering::SeqCst)), (Status::AwaitingDecision, 1), "it holds no worker");
    run.approve("wire", "ada");
    assert_eq!(run.asks().expect("the second step asks for itself").asked.step, "ship".into());
    run.approve("wire", "bob");
    assert_eq!(run.result::<u32>().unwrap(), 6);
    assert_eq!((attempts.load(Ordering::SeqCst), engine.operation("note").calls()), (2, 1));
    let rejected = engine.start("order", &5u32);
    rejected.reject("wire", "ada", "no");
    assert_eq!(rejected.result::<String>().unwrap(), "rejected: effect \"wire\" was rejected by ada: no");
}

/// A step that has something else under way hears of a decision where it is, and does not run again for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_hears_of_a_decision_meanwhile() {
    let (attempts, open) = (Arc::new(AtomicU32::new(0)), Arc::new(tokio::sync::Notify::new()));
    let (counted, opened) = (attempts.clone(), open.clone());
    let order = Machine::<u32>::new("order").step("pay", move |ctx, amount: u32| {
        let open = opened.clone();
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let long = ctx.effect("long", async |_| {
                open.notified().await;
                ok(1u32).await
            });
            let wire = async {
                let wired: u32 = ctx.effect("wire", |_| ok(amount)).unsafe_once().await?;
                open.notify_one();
                Ok::<_, StepError>(wired)
            };
            let (long, wired) = tokio::try_join!(long.into_future(), wire)?;
            Ok(done(&(long + wired)))
        }
    });
    let order = order.control(Control::interrupt().named("wire"));
    let engine = abide::Engine::open("memory:").register(order).start().await.unwrap();
    let run = engine.client().start("order", &5u32).await.unwrap();
    let asked = async {
        loop {
            match run.boundary().await.unwrap() {
                Some(open) => return open.id,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let id = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it is asked");
    assert!(run.approve(id, "ada").await.unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(20), run.result::<u32>()).await.expect("it ends");
    assert_eq!((ended.unwrap(), attempts.load(Ordering::SeqCst)), (6, 1));
    engine.stop(Duration::from_secs(5)).await;
}

/// An approval is for an effect, not for a call: what may be repeated is tried again under the same one.
#[test]
fn a_reviewed_effect_is_tried_again_under_one_approval() {
    let fetch = Function::new("fetch", async |ctx: FnCtx, (): ()| {
        let often = abide::RetryPolicy { retries_max: Some(3), ..abide::RetryPolicy::exponential(1_000) };
        ctx.effect("fetch", |_| ok(1u32)).retry(often).await
    });
    let engine = TestEngine::new().register(fetch.control(Control::interrupt()));
    let script = engine.operation("fetch").fails(StepError::new("down")).fails(StepError::new("down")).returns(&1u32);
    let run = engine.start("fetch", &());
    run.approve("fetch", "ada");
    assert_eq!(run.result::<u32>().unwrap(), 1);
    assert_eq!((script.calls(), run.show().manual.len()), (3, 1));
    let fetched = run.effects().remove(0);
    assert_eq!((fetched.failures, fetched.approval.map(|approval| approval.actor.clone())), (2, Some("ada".into())));
}

/// SQ-59: a run asks for one person at a time: reviews that come up side by side wait for their turn.
#[test]
fn reviews_take_turns() {
    let many = || {
        Function::new("many", async |ctx: FnCtx, (): ()| {
            let each = |ctx: FnCtx, n: u32| async move { ctx.effect("wire", |_| ok(n)).await };
            ctx.map("items", (0..3u32).map(|n| (n, n)), each).await
        })
        .control(Control::interrupt())
    };
    let engine = TestEngine::new().register(many());
    let run = engine.start("many", &());
    let mut asked = Vec::new();
    while let Some(manual) = run.asks() {
        let effect = manual.asked.reviews().expect("a review").to_owned();
        engine.restart();
        run.approve(&effect, "ada");
        asked.push(effect);
    }
    assert_eq!(asked, ["items[0]/wire", "items[1]/wire", "items[2]/wire"]);
    assert_eq!(run.result::<Vec<u32>>().unwrap(), [0, 1, 2]);
    assert_eq!(run.show().anomalies.len(), 0);
    crash_everywhere(many, &())
        .approves("items[0]/wire", "ada")
        .approves("items[1]/wire", "ada")
        .approves("items[2]/wire", "ada")
        .run()
        .assert_ok();
}

/// SQ-59: a function that stays in memory, because something else is under way, gives the turn on all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_take_turns_in_memory() {
    let open = Arc::new(tokio::sync::Notify::new());
    let opened = open.clone();
    let three = Function::new("three", move |ctx: FnCtx, (): ()| {
        let open = opened.clone();
        async move {
            // It ends when both others have taken place, and until then the function cannot leave memory.
            let long = ctx.effect("long", async |_| {
                open.notified().await;
                ok(3u32).await
            });
            let second = async {
                let second: u32 = ctx.effect("second", |_| ok(2)).await?;
                open.notify_one();
                Ok::<_, Failure>(second)
            };
            let first = ctx.effect("first", |_| ok(1u32));
            // Only branches that are woken are polled.
            let branches: [Boxed<'_, Result<u32, Failure>>; 3] =
                [long.into_future(), first.into_future(), Box::pin(second)];
            ctx.all(branches).await
        }
    })
    .control(Control::interrupt().when(|operation| operation.name != "long"));
    let engine = abide::Engine::open("memory:").register(three).start().await.unwrap();
    let run = engine.client().start("three", &()).await.unwrap();
    for effect in ["first", "second"] {
        let asked = async {
            loop {
                match run.boundary().await.unwrap() {
                    Some(open) if open.review().is_some_and(|review| review.effect == effect) => return open.id,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        let id = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it is asked");
        assert!(run.approve(id, "ada").await.unwrap());
    }
    assert_eq!(run.result::<Vec<u32>>().await.unwrap(), [3, 1, 2]);
    engine.stop(Duration::from_secs(5)).await;
}

/// A review that gave up its place in a race is withdrawn, and the one that waits for its turn is asked.
#[test]
fn a_review_that_is_dropped_is_withdrawn() {
    let races = Function::new("races", async |ctx: FnCtx, (): ()| {
        let first = async {
            tokio::select! {
                biased;
                _ = async { ctx.effect("first", |_| ok(1u32)).await } => unreachable!("nobody approves it"),
                late = ctx.sleep(hours(1)) => late,
            }
        };
        let second = async { ctx.effect("second", |_| ok(2u32)).await };
        tokio::try_join!(first, second).map(|(_, second)| second)
    });
    let engine = TestEngine::new().register(races.control(Control::interrupt()));
    let run = engine.start("races", &());
    let first = id(&run);
    engine.advance(hours(1));
    let client = engine.client();
    assert_eq!(sent(client.run(run.id()).approve(first, "ada")), Err("stale_boundary"));
    run.approve("second", "ada");
    assert_eq!(run.result::<u32>().unwrap(), 2);
}

/// A function that failed beside a review is tried again, and still asks the same.
#[test]
fn a_function_that_failed_is_still_reviewed() {
    let flaky = Function::new("flaky", async |ctx: FnCtx, (): ()| {
        let wire = async { ctx.effect("wire", |_| ok(1u32)).await };
        let fetch = async { ctx.effect("fetch", |_| ok(2u32)).await };
        tokio::try_join!(wire, fetch)
    });
    let flaky = flaky.retry(abide::RetryPolicy::exponential(1_000)).control(Control::interrupt().named("wire"));
    let engine = TestEngine::new().register(flaky);
    let fetch = engine.operation("fetch").fails(StepError::new("down")).returns(&2u32);
    let run = engine.start("flaky", &());
    let before = id(&run);
    engine.advance(hours(1));
    assert_eq!((fetch.calls(), id(&run)), (2, before));
    run.approve("wire", "ada");
    assert_eq!(run.result::<(u32, u32)>().unwrap(), (1, 2));
    assert_eq!(run.show().manual.len(), 1);
}

/// What is under review stays so when the control goes with a deploy; what has begun is not reviewed afterwards.
#[test]
fn controls_may_change_under_open_runs() {
    let (engine, wire) = engine(&[reviewed()]);
    let run = engine.start("refund", &5u32);
    engine.deploy(refund(&[Control::allow()]));
    assert_eq!((run.status(), wire.calls()), (Status::AwaitingDecision, 0));
    run.approve("wire", "ada");
    assert_eq!(run.result::<String>().unwrap(), "wired 5");
    assert!(run.effects()[0].approval.is_some());
    engine.deploy(refund(&[reviewed()]));
    let rejected = engine.start("refund", &5u32);
    engine.deploy(refund(&[Control::allow()]));
    rejected.reject("wire", "ada", "no");
    assert!(rejected.result::<String>().unwrap().starts_with("rejected"));
    let waits = |controls: &[Control]| {
        let code = async |ctx: FnCtx, (): ()| {
            let wired: u32 = ctx.effect("wire", |_| ok(1)).unsafe_once().await?;
            ctx.sleep(days(1)).await?;
            Ok::<_, Failure>(wired)
        };
        controls.iter().cloned().fold(Function::new("waits", code), Function::control)
    };
    engine.deploy(waits(&[Control::allow()]));
    let run = engine.start("waits", &());
    engine.deploy(waits(&[reviewed()]));
    assert_eq!(run.result::<u32>().unwrap(), 5, "what the script says, as recorded");
    assert!(run.show().manual.is_empty());
}

/// What was approved is what is executed: other input under the same review has diverged, and nothing is called.
#[test]
fn an_approval_is_for_the_input_that_was_shown() {
    let pays = |amount: u32| {
        let code = move |ctx: FnCtx, (): ()| async move { ctx.effect("wire", |_| ok(amount)).input(&amount).await };
        Function::new("pays", code).control(Control::interrupt())
    };
    let engine = TestEngine::new().register(pays(5));
    let run = engine.start("pays", &());
    engine.deploy(pays(5_000));
    run.approve("wire", "ada");
    assert_eq!(run.status(), Status::DeadLettered);
    assert_eq!(engine.operation("wire").calls(), 0);
}

/// AB-3, JI-20: killed at every durable point, a reviewed effect that must not happen twice is never called twice, and nobody
/// is asked twice for one yes.
#[test]
fn a_review_survives_every_crash() {
    let report = crash_everywhere(|| refund(&[reviewed()]), &5u32)
        .approves("wire", "ada")
        .resolves("wire", &5u32)
        .once("wire")
        .run();
    report.assert_ok();
    assert!(report.points >= 4, "{report}");
    crash_everywhere(|| refund(&[reviewed()]), &5u32).rejects("wire", "ada", "no").run().assert_ok();
    let step = || {
        let order = Machine::<u32>::new("order").step("pay", async |ctx, amount: u32| {
            let often = abide::RetryPolicy::exponential(1_000);
            let fetched: u32 = ctx.effect("fetch", |_| ok(amount)).retry(often).await?;
            let wired: u32 = ctx.effect("wire", |_| ok(fetched)).unsafe_once().await?;
            Ok(done(&wired))
        });
        order.control(reviewed())
    };
    let report = crash_everywhere(step, &5u32)
        .fails("fetch", StepError::new("down"))
        .returns("fetch", &5u32)
        .approves("wire", "ada")
        .resolves("wire", &5u32)
        .once("wire")
        .run();
    report.assert_ok();
    assert!(report.points >= 5, "{report}");
}

/// Refusals have a form of their own, for programs.
#[test]
fn a_refusal_says_which_approval_is_missing() {
    let refusal = Refusal::NotApproved { op: 3, key: "wire".into() };
    assert_eq!(json(&refusal), r#"{"code":"not_approved","op":3,"key":"wire"}"#);
    assert!(refusal.to_string().contains("\"wire\" begins only when its review is approved"), "{refusal}");
}

/// A refund that looks again a day after the money was wired, or was not.
fn looks_again(controls: &[Control]) -> Function {
    let code = async |ctx: FnCtx, amount: u32| {
        let wired = ctx.effect("wire", |_| ok(amount)).input(&amount).unsafe_once().await;
        ctx.sleep(days(1)).await?;
        Ok::<_, Failure>(wired.map_or_else(|error| error.info().code.to_string(), |amount| format!("wired {amount}")))
    };
    controls.iter().cloned().fold(Function::new("refund", code), Function::control)
}

/// JI-13, JI-19, JI-22: what is recorded stands, whatever a deploy says about operations to come: a result, a rejection, and
/// a doubt.
#[test]
fn no_control_changes_what_is_recorded() {
    for controls in [vec![Control::block().named("wire")], vec![]] {
        let engine = TestEngine::new().register(looks_again(&[reviewed()]));
        let (approved, rejected) = (engine.start("refund", &5u32), engine.start("refund", &6u32));
        let open = engine.start("refund", &7u32);
        approved.approve("wire", "ada");
        rejected.reject("wire", "ada", "too much");
        engine.settle();
        engine.deploy(looks_again(&controls));
        assert_eq!(approved.result::<String>().unwrap(), "wired 5");
        assert_eq!(rejected.result::<String>().unwrap(), "rejected");
        open.approve("wire", "ada");
        let refused = open.result::<String>().unwrap();
        assert!(refused.contains("control"), "what has not begun does not begin: {refused}");
        // Killed inside the call: nobody knows, and a control does not know it either.
        let engine = TestEngine::new().register(looks_again(&[Control::allow()]));
        engine.crash_at_append(1, Side::After);
        let doubted = engine.start("refund", &8u32);
        engine.settle();
        assert_eq!(doubted.status(), Status::InDoubt);
        engine.deploy(looks_again(&controls));
        assert_eq!(doubted.status(), Status::InDoubt);
        doubted.resolve("wire", &8u32);
        assert_eq!(doubted.result::<String>().unwrap(), "wired 8");
    }
}
