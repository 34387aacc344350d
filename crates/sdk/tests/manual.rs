//! People: functions that pause, ask for approval and hand out tasks, and the people who answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{
    BoundaryId, ClientError, Engine, Failure, Filter, FnCtx, Function, OpenBoundary, Page, Refusal, RetryPolicy,
    RunHandle, Status, StepError,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

/// What must come about soon. A test that waits for ever would not say what it waits for.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it comes about")
}

/// What the run asks, once it has parked on it.
async fn asked(run: &RunHandle) -> OpenBoundary {
    soon(async {
        while run.show().await.expect("a run").status() != Status::AwaitingDecision {
            tokio::task::yield_now().await;
        }
    })
    .await;
    run.boundary().await.expect("a run").expect("a boundary")
}

/// What the run came to.
async fn result<T: DeserializeOwned>(run: &RunHandle) -> T {
    soon(run.result()).await.expect("a result")
}

fn refusal(error: ClientError) -> Refusal {
    match error {
        ClientError::Refused(refusal) => refusal,
        other => panic!("expected a refusal, found {other}"),
    }
}

#[derive(Serialize, Deserialize)]
struct Spend {
    amount: u32,
}

fn spend() -> Function {
    Function::new("spend", async |ctx: FnCtx, spend: Spend| {
        let decision = ctx.approval("spend").payload(&spend).roles(&["finance"]).await?;
        let said = decision.payload::<Option<u32>>()?;
        let word = if decision.is_approved() { "yes" } else { "no" };
        assert!(!decision.is_timed_out() && decision.is_approved() != decision.is_rejected());
        Ok::<_, Failure>(format!("{word} {:?} {:?} {said:?}", decision.actor(), decision.note()))
    })
}

/// SQ-57, D27: an approval waits for one of the right role; who, why and what come back to the code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_is_decided_by_the_right_role() {
    let engine = Engine::open("memory:").register(spend()).start().await.unwrap();
    let run = engine.client().start("spend", &Spend { amount: 5 }).await.unwrap();
    let open = asked(&run).await;
    assert_eq!(open.manual.asked.payload.text(), r#"{"amount":5}"#);
    let wrong = refusal(run.approve(open.id, "ada").role("sales").await.unwrap_err());
    assert_eq!(wrong.code(), "wrong_role");
    assert!(run.approve(open.id, "ada").role("finance").note("fine").payload(&7).await.unwrap());
    assert_eq!(result::<String>(&run).await, r#"yes Some("ada") Some("fine") Some(7)"#);

    let run = engine.client().start("spend", &Spend { amount: 6 }).await.unwrap();
    let open = asked(&run).await;
    assert!(run.reject(open.id, "bob").role("finance").await.unwrap());
    assert_eq!(result::<String>(&run).await, r#"no Some("bob") None None"#);
    end(&engine).await;
}

/// SQ-59, D9: a decision for another boundary, and one after the end, are refused and change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_decision_is_refused() {
    let engine = Engine::open("memory:").register(spend()).start().await.unwrap();
    let client = engine.client();
    let one = client.start("spend", &Spend { amount: 1 }).await.unwrap();
    let two = client.start("spend", &Spend { amount: 2 }).await.unwrap();
    let (first, second) = (asked(&one).await.id, asked(&two).await.id);
    assert_eq!(refusal(one.approve(second, "ada").role("finance").await.unwrap_err()).code(), "stale_boundary");
    let other = BoundaryId { op: 9, ..first };
    assert_eq!(refusal(one.approve(other, "ada").role("finance").await.unwrap_err()).code(), "stale_boundary");
    assert!(one.boundary().await.unwrap().is_some());
    one.approve(first, "ada").role("finance").await.unwrap();
    result::<String>(&one).await;
    assert_eq!(refusal(one.reject(first, "ada").role("finance").await.unwrap_err()).code(), "run_over");
    end(&engine).await;
}

/// SE-3, SE-4: a task is listed, taken, given back, handed on and done by whoever has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_taken_and_done() {
    let pack = Function::new("pack", async |ctx: FnCtx, (): ()| {
        let weight: u32 = ctx.task("pack", "one box").roles(&["store"]).assignee("ada").await?;
        Ok::<_, Failure>(weight * 2)
    });
    let engine = Engine::open("memory:").register(pack).start().await.unwrap();
    let run = engine.client().start("pack", &()).await.unwrap();
    let id = asked(&run).await.id;
    let listed = engine.client().boundaries(&Filter::default(), &Page { most: 9, before: None }).await.unwrap();
    assert_eq!(listed.iter().map(|open| (open.id, &*open.workflow)).collect::<Vec<_>>(), [(id, "pack")]);
    let theirs = refusal(run.complete_task(id, "bob", &3).role("store").await.unwrap_err());
    assert_eq!(theirs, Refusal::NotAssignee { op: id.op, assignee: "ada".into() });
    assert!(run.release_task(id, "ada").role("store").note("ill").await.unwrap());
    assert!(run.claim_task(id, "bob").role("store").await.unwrap());
    assert!(!run.claim_task(id, "bob").role("store").await.unwrap());
    assert!(run.claim_task(id, "lead").role("store").to("eve").take_over().await.unwrap());
    assert!(run.complete_task(id, "eve", &3).role("store").await.unwrap());
    assert_eq!(result::<u32>(&run).await, 6);
    let shown = run.show().await.unwrap();
    let events: Vec<&str> = shown.manual[0].events.iter().map(|event| event.kind.name()).collect();
    assert_eq!(events, ["created", "released", "assigned", "reassigned", "completed"]);
    end(&engine).await;
}

/// D27: what follows a deadline is the code's to say, or recorded as a decision by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_times_out_or_decides() {
    const SOON: Duration = Duration::from_millis(1);
    let late = Function::new("late", async |ctx: FnCtx, (): ()| {
        let open = ctx.approval("open").deadline(SOON).await?;
        assert!(open.is_timed_out() && open.choice().is_none());
        let no = ctx.approval("no").deadline(SOON).reject_on_timeout().await?;
        assert!(no.is_timed_out() && no.is_rejected());
        let yes = ctx.approval("yes").deadline(SOON).approve_on_timeout().await?;
        assert!(yes.is_timed_out() && yes.is_approved());
        let pause = ctx.pause("pause").deadline(SOON).await?;
        assert!(pause.is_timed_out());
        let usual: u32 = ctx.task("usual", &()).deadline(SOON).result_on_timeout(&4).await?;
        let none = ctx.task::<u32>("none", &()).deadline(SOON).await.unwrap_err();
        assert_eq!(&*none.info().code, "task_timed_out");
        Ok::<_, Failure>(usual)
    });
    let engine = Engine::open("memory:").register(late).start().await.unwrap();
    let run = engine.client().start("late", &()).await.unwrap();
    assert_eq!(result::<u32>(&run).await, 4);
    assert_eq!(run.show().await.unwrap().manual.len(), 6);
    end(&engine).await;
}

/// SQ-56: a pause outlives the process, and is what `explain` names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_outlives_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("abide.db").display());
    let holds = || {
        Function::new("holds", async |ctx: FnCtx, (): ()| {
            let resumed = ctx.pause("before launch").assignee("ada").await?;
            Ok::<_, Failure>(resumed.actor().map(str::to_owned))
        })
    };
    let engine = Engine::open(&url).register(holds()).start().await.unwrap();
    let run = engine.client().start("holds", &()).await.unwrap();
    let id = asked(&run).await.id;
    end(&engine).await;
    drop(engine);
    let engine = Engine::open(&url).register(holds()).start().await.unwrap();
    let run = engine.client().run(id.run);
    let told = run.explain().await.unwrap();
    assert_eq!(told.next_actions, [format!("abide run resume {id} --as ada")]);
    assert!(run.resume(id, "ada").await.unwrap());
    assert_eq!(result::<Option<String>>(&run).await.as_deref(), Some("ada"));
    end(&engine).await;
}

/// SQ-59: a function cannot ask two people at once, and is told so where it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_at_once_is_an_error() {
    let greedy = Function::new("greedy", async |ctx: FnCtx, (): ()| {
        let (one, two) = tokio::join!(async { ctx.pause("one").await }, async { ctx.pause("two").await });
        assert!(one.is_ok());
        Ok::<_, Failure>(two.unwrap_err().info().code.to_string())
    });
    let engine = Engine::open("memory:").register(greedy).start().await.unwrap();
    let run = engine.client().start("greedy", &()).await.unwrap();
    let open = asked(&run).await;
    assert_eq!(&*open.manual.asked.key, "one");
    run.resume(open.id, "ada").await.unwrap();
    assert_eq!(result::<String>(&run).await, "second_boundary");
    end(&engine).await;
}

/// SQ-59: a wait that lost a race is withdrawn: nobody is asked in vain, and the next one may be asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_dropped_is_withdrawn() {
    let races = Function::new("races", async |ctx: FnCtx, (): ()| {
        tokio::select! {
            biased;
            _ = async { ctx.approval("first").await } => unreachable!("nobody decides it"),
            skipped = async { ctx.signal::<()>("skip").await } => skipped?,
        }
        let second = ctx.approval("second").await?;
        Ok::<_, Failure>(second.is_approved())
    });
    let engine = Engine::open("memory:").register(races).start().await.unwrap();
    let run = engine.client().start("races", &()).await.unwrap();
    let first = asked(&run).await.id;
    run.signal("skip", &()).await.unwrap();
    soon(async {
        while run.show().await.unwrap().manual.len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let second = asked(&run).await;
    assert_eq!(&*second.manual.asked.key, "second");
    assert_eq!(refusal(run.approve(first, "ada").await.unwrap_err()).code(), "stale_boundary");
    run.approve(second.id, "ada").await.unwrap();
    assert!(result::<bool>(&run).await);
    let ends: Vec<_> = run.show().await.unwrap().manual.iter().map(|m| m.end.as_ref().map(|end| end.name())).collect();
    assert_eq!(ends, [Some("withdrawn"), Some("approved")]);
    end(&engine).await;
}

/// A function that failed beside a wait for a person used to come back to a question that nobody could answer: the
/// failure had dropped the wait. It asks for the same when it is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_failed_still_asks() {
    let tries = Arc::new(AtomicU32::new(0));
    let inside = tries.clone();
    let flaky = Function::new("flaky", move |ctx: FnCtx, panics: bool| {
        let tries = inside.clone();
        async move {
            let approval = async { ctx.approval("both").await };
            let effect = async {
                ctx.effect("count", async |_| match tries.fetch_add(1, Ordering::SeqCst) % 2 {
                    0 if panics => panic!("not yet"),
                    0 => Err(StepError::new("not yet")),
                    n => Ok(n),
                })
                .await
            };
            let (decision, _) = tokio::try_join!(approval, effect)?;
            Ok::<_, Failure>(decision.is_approved())
        }
    })
    .retry(RetryPolicy::exponential(1));
    let engine = Engine::open("memory:").register(flaky).start().await.unwrap();
    for (round, panics) in [(1, false), (2, true)] {
        let run = engine.client().start("flaky", &panics).await.unwrap();
        soon(async {
            while tries.load(Ordering::SeqCst) < 2 * round {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let open = asked(&run).await;
        run.approve(open.id, "ada").await.unwrap();
        assert!(result::<bool>(&run).await);
        let shown = run.show().await.unwrap();
        assert_eq!((shown.manual.len(), shown.anomalies.len()), (1, 0), "{panics}");
    }
    end(&engine).await;
}

/// D27: what cannot be asked is said where it is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_asked_is_an_error() {
    let wrong = Function::new("wrong", async |ctx: FnCtx, (): ()| {
        let role = ctx.approval("a").roles(&[""]).await.unwrap_err();
        let choice = ctx.pause("b").deadline(Duration::ZERO).reject_on_timeout().await.unwrap_err();
        let map = std::collections::BTreeMap::from([((1, 2), 3)]);
        let payload = ctx.approval("c").payload(&map).await.is_err();
        Ok::<_, Failure>((role.info().code.to_string(), choice.info().code.to_string(), payload))
    });
    let engine = Engine::open("memory:").register(wrong).start().await.unwrap();
    let run = engine.client().start("wrong", &()).await.unwrap();
    let found: (String, String, bool) = result(&run).await;
    assert_eq!(found, ("invalid".into(), "invalid".into(), true));
    end(&engine).await;
}
