//! The same machines and functions as in an engine of their own, executed for a server: chosen by a URL.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{
    Client, ClientError, Control, Ctx, Engine, EngineBuilder, Failure, Filter, FnCtx, Function, Machine, OnConflict,
    Page, Policy, Standing, StartError, Status, StepError, await_signal, child, done, next, secs, sleep, spawn,
};
use desk::Desk;
use serde_json::{Value, json};
use tokio::sync::Notify;

const LONG: Duration = Duration::from_secs(20);

/// An engine without a workflow, and its server.
async fn bare() -> Desk {
    Desk::over(Engine::open("memory:").start().await.unwrap(), |server| server.without_login()).await
}

/// A worker of it.
fn worker(desk: &Desk) -> EngineBuilder {
    Engine::open(&desk.url("")).node("hand-1").namespace("shop")
}

fn client(desk: &Desk) -> Client {
    Client::connect(&desk.url("")).namespace("shop").open().unwrap()
}

/// A machine with a bit of everything: steps, signals, timers, children, a handler for errors.
fn parcel() -> Machine<Value> {
    Machine::<Value>::new("parcel")
        .step("pack", async |_, state: Value| Ok(next("weigh", json!({"item": state, "packed": true}))))
        .step("weigh", async |ctx: Ctx, state: Value| {
            let weight: u32 = ctx.effect("scale", async |_| Ok::<_, StepError>(7)).await?;
            let notice = ctx.start_child("note", "notice", &weight).await?;
            Ok(next("rest", json!({"item": state["item"], "weight": weight, "notice": notice})))
        })
        .step("rest", async |_, state: Value| Ok(sleep(Duration::from_millis(5), state).then("park")))
        .step("park", async |ctx: Ctx, state: Value| match ctx.signal::<String>("go")? {
            Some(word) => Ok(next("split", json!({"word": word, "weight": state["weight"]}))),
            None => Ok(await_signal("go", state)),
        })
        .step("split", async |_, state: Value| {
            let children = [child("note", &1), child("note", &2)];
            Ok(spawn(children, "sum", state))
        })
        .step("sum", async |ctx: Ctx, state: Value| {
            let children = ctx.children();
            let joined = children.iter().filter(|child| child.key().is_none());
            let sum: u32 = joined.map(|child| child.result::<u32>().unwrap().unwrap()).sum();
            assert!(children.iter().all(abide::Child::was_inserted));
            if ctx.attempt() == 0 {
                return Err(StepError::new("not at once").code("shy"));
            }
            Ok(done(&json!({"word": state["word"], "sum": sum})))
        })
        .on_error(async |error: StepError, _, state: Value| {
            assert_eq!(&*error.info().code, "shy");
            abide::replay(state, Duration::ZERO)
        })
}

fn note() -> Machine<u32> {
    Machine::<u32>::new("note").step("keep", async |_, number: u32| Ok(done(&(number * 10))))
}

/// AB-19: the version that is said begins, also the first, and where nobody says one, the newest: for runs and for children, over
/// HTTP and in an engine of its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_version_that_is_said_begins() {
    fn greet(version: u32) -> Machine<u32> {
        Machine::<u32>::new("greet").version(version).step("say", async |ctx: Ctx, _: u32| Ok(done(&ctx.version())))
    }
    let parent = || {
        Machine::<u32>::new("parent")
            .step("split", async |_, state: u32| {
                Ok(spawn(
                    [child("greet", &0).version(1), child("greet", &0).version(2), child("greet", &0)],
                    "sum",
                    state,
                ))
            })
            .step("sum", async |ctx: Ctx, _: u32| {
                let found: Vec<u32> =
                    ctx.children().iter().map(|child| child.result::<u32>().unwrap().unwrap()).collect();
                Ok(done(&found))
            })
    };
    let desk = bare().await;
    let there = worker(&desk).register(greet(1)).register(greet(2)).register(parent()).start().await.unwrap();
    let here = Engine::open("memory:").register(greet(1)).register(greet(2)).register(parent()).start().await.unwrap();
    for client in [client(&desk), here.client()] {
        let children: Vec<u32> = client.start("parent", &0).await.unwrap().result().await.unwrap();
        assert_eq!(children, [1, 2, 2]);
        for (said, begins) in [(Some(1), 1), (Some(2), 2), (None, 2)] {
            let start = client.start("greet", &0);
            let start = said.into_iter().fold(start, |start, version| start.version(version));
            assert_eq!(start.await.unwrap().result::<u32>().await.unwrap(), begins, "{said:?}");
        }
    }
    there.stop(LONG).await;
    here.stop(LONG).await;
}

/// AB-19: a machine does over HTTP what it does in an engine of its own, with the same code and the same journal.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_the_same_for_a_server() {
    let desk = bare().await;
    let remote = worker(&desk).register(parcel()).register(note()).start().await.unwrap();
    let embedded = Engine::open("memory:").register(parcel()).register(note()).start().await.unwrap();
    let mut journals = Vec::new();
    for engine in [&remote, &embedded] {
        let run = engine.client().start("parcel", "a lamp").await.unwrap();
        assert!(run.signal("go", "on").dedup("once").await.unwrap());
        assert!(!run.signal("go", "on").dedup("once").await.unwrap());
        let told: Value = run.result().await.unwrap();
        assert_eq!(told, json!({"word": "on", "sum": 30}));
        let rows = run.journal(0).await.unwrap();
        let kinds = rows.iter().flat_map(|row| &row.facts).map(|fact| fact.kind().to_owned());
        // What comes from others comes when it comes.
        let others = ["pinned", "signal_received", "child_ended"];
        journals.push(kinds.filter(|kind| !others.contains(&kind.as_str())).collect::<Vec<_>>());
    }
    assert_eq!(journals[0], journals[1]);
    remote.stop(LONG).await;
    embedded.stop(LONG).await;
    desk.close().await;
}

/// A function with a bit of everything.
fn order(calls: &Arc<AtomicU32>) -> Function {
    let calls = calls.clone();
    Function::new("order", move |ctx: FnCtx, item: String| {
        let counted = calls.clone();
        async move {
            let charged: u32 = ctx
                .effect("charge", async move |_| Ok::<_, Failure>(counted.fetch_add(1, Ordering::SeqCst) + 1))
                .policy(Policy::UnsafeOnce)
                .await?;
            ctx.set_state(&json!({"charged": charged}))?;
            ctx.sleep(Duration::from_millis(5)).await?;
            let word: String = ctx.signal("go").await?;
            let noted: u32 = ctx.child("noted", "note", &charged).await?;
            let asked = ctx.update::<u32>("double").await?;
            let twice = asked.input() * 2;
            asked.answer(&twice)?;
            let decision = ctx.approval("release").payload(&item).await?;
            Ok::<_, Failure>(json!({"word": word, "noted": noted, "twice": twice, "yes": decision.is_approved()}))
        }
    })
    .operation("charge", Policy::UnsafeOnce)
    .control(Control::allow())
}

/// AB-19, SQ-30: a function keeps its ledger over HTTP: effects of every kind once, waits of every kind, and the verbs of a
/// client that only knows the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_is_the_same_for_a_server() {
    let desk = bare().await;
    let calls = Arc::new(AtomicU32::new(0));
    let remote = worker(&desk).register(order(&calls)).register(note()).start().await.unwrap();
    let client = client(&desk);
    let run = client.start("order", "a lamp").key("17").label("shop", "north").await.unwrap();
    run.signal("go", "on").await.unwrap();
    let twice: u32 = run.update("double", &21u32).dedup("first").await.unwrap();
    assert_eq!(twice, 42);
    let boundary = loop {
        if let Some(open) = run.boundary().await.unwrap() {
            break open;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(run.state::<Value>().await.unwrap(), json!({"charged": 1}));
    let why = run.explain().await.unwrap();
    assert_eq!(why.reason.code(), "awaiting_decision", "{why:?}");
    assert!(run.approve(boundary.id, "ada").note("fine").await.unwrap());
    let told: Value = run.result().await.unwrap();
    assert_eq!(told, json!({"word": "on", "noted": 10, "twice": 42, "yes": true}));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let effects = run.effects().await.unwrap();
    assert_eq!((&*effects[0].key, effects[0].standing), ("charge", Standing::Committed));
    // What the client folds from the journal is what the engine has.
    let there = desk.engine.client().run(run.id()).show().await.unwrap();
    assert_eq!(run.show().await.unwrap(), there);
    remote.stop(LONG).await;
    desk.close().await;
}

/// AB-19: what a server refuses has its code, and a taken key says by whom.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_what_the_server_refuses() {
    let desk = bare().await;
    let client = client(&desk);
    let run = client.start("order", "a lamp").key("17").await.unwrap();
    match client.start("order", "a vase").key("17").await.unwrap_err() {
        ClientError::Rejected { by, reason } => assert_eq!((by, reason), (run.id(), "key_taken")),
        other => panic!("{other}"),
    }
    let again = client.start("order", "a lamp").key("17").on_conflict(OnConflict::Reuse).await.unwrap();
    assert_eq!((again.id(), again.admission()), (run.id(), abide::Admission::Reused));
    let many = client.start_many([client.start("order", "a").key("18"), client.start("order", "b").key("17")]);
    let many = many.await.unwrap();
    assert!(many[0].is_ok());
    assert!(matches!(many[1], Err(ClientError::Rejected { by, .. }) if by == run.id()));

    match client.start("order", "a lamp").namespace("bank").await.unwrap_err() {
        ClientError::Refused(abide::Refusal::Invalid { what, found, .. }) => {
            assert_eq!((what.as_str(), found.as_str()), ("namespace", "bank"));
        }
        other => panic!("{other}"),
    }
    // A request that was named is the same one in a batch and alone.
    let request = desk.engine.runtime().unwrap().new_request();
    let alone = client.start("parcel", "a").request(request).await.unwrap();
    let batch = client.start_many([client.start("parcel", "a").request(request)]).await.unwrap();
    assert_eq!(batch[0].as_ref().unwrap().id(), alone.id());
    alone.cancel("enough").await.unwrap();

    let listed = client.list(&Filter::default(), &Page { most: 10, before: None }).await.unwrap();
    assert_eq!(listed.len(), 3);
    let one = client.list(&Filter::default(), &Page { most: 1, before: None }).await.unwrap();
    assert_eq!(one[0].run, listed[0].run);
    let why = run.explain().await.unwrap();
    assert!(why.reason.code().starts_with("no_worker"), "{why:?}");
    run.cancel("enough").await.unwrap();
    match run.result::<Value>().await.unwrap_err() {
        ClientError::RunFailed { status, .. } => assert_eq!(status, Status::Cancelled),
        other => panic!("{other}"),
    }
    match run.signal("go", "late").await.unwrap_err() {
        ClientError::Problem(problem) => assert_eq!(problem.code, "run_over"),
        other => panic!("{other}"),
    }
    let stranger = Client::connect(&desk.url("")).namespace("other").open().unwrap();
    match stranger.run(run.id()).show().await.unwrap_err() {
        ClientError::Problem(problem) => assert_eq!(problem.code, "not_found"),
        other => panic!("{other}"),
    }
    assert!(client.dead_letters().await.unwrap().is_empty());
    assert!(matches!(client.stats(), Err(ClientError::Refused(_))));
    desk.close().await;
}

/// What cannot be meant is said before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_way_to_a_server_is_said_at_once() {
    for wrong in ["http://", "http://a b", "http://ada:x@host", "http://host/v1", "https://"] {
        assert!(matches!(Engine::open(wrong).start().await, Err(StartError::Server { .. })), "{wrong}");
        assert!(Client::connect(wrong).open().is_err(), "{wrong}");
    }
    assert!(matches!(Engine::open("memory:").token("x").start().await, Err(StartError::Server { .. })));
    assert!(matches!(Engine::open("http://127.0.0.1:1").shards(4).start().await, Err(StartError::Server { .. })));
}

/// AB-16: a worker needs a token with its queue's scope; without one it is given nothing, and with one it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_comes_with_its_token() {
    let desk = Desk::over(Engine::open("memory:").start().await.unwrap(), |server| server).await;
    let token = desk.token(&[abide_protocol::Scope::Worker("default".into())], &["shop"]);
    let starter = desk.token(&[abide_protocol::Scope::Start, abide_protocol::Scope::Read], &["shop"]);
    let client = Client::connect(&desk.url("")).token(&starter).namespace("shop").open().unwrap();
    let run = client.start("note", &4u32).await.unwrap();
    let remote = worker(&desk).token(&token).register(note()).start().await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 40);
    let stranger = Client::connect(&desk.url("")).token("abide_wrong").namespace("shop").open().unwrap();
    match stranger.start("note", &1u32).await.unwrap_err() {
        ClientError::Problem(problem) => assert_eq!(problem.code, "unauthenticated"),
        other => panic!("{other}"),
    }
    remote.stop(LONG).await;
    desk.close().await;
}

/// SQ-38, SQ-39: a worker that is gone loses its attempts when their leases end, and another goes on; what is done is not
/// done again.
#[tokio::test(flavor = "multi_thread")]
async fn another_worker_goes_on() {
    let desk = bare().await;
    let (calls, begun) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let slow = |stuck: bool| {
        let (calls, begun) = (calls.clone(), begun.clone());
        Function::new("slow", move |ctx: FnCtx, _: Value| {
            let (counted, told) = (calls.clone(), begun.clone());
            async move {
                let first: u32 = ctx
                    .effect("first", async move |_| Ok::<_, Failure>(counted.fetch_add(1, Ordering::SeqCst)))
                    .policy(Policy::Reconcile)
                    .await?;
                let second: u32 = ctx
                    .effect("second", async move |_| {
                        if stuck {
                            told.notify_one();
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, Failure>(first + 1)
                    })
                    .await?;
                Ok::<_, Failure>(second)
            }
        })
    };
    let lease = Duration::from_millis(300);
    let dying = worker(&desk).lease(lease).register(slow(true)).start().await.unwrap();
    let run = client(&desk).start("slow", &Value::Null).await.unwrap();
    begun.notified().await;
    drop(dying);
    let heir = worker(&desk).lease(lease).register(slow(false)).start().await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    heir.stop(LONG).await;
    desk.close().await;
}

/// SQ-36: while a step executes its lease is extended, and a run that is cancelled meanwhile lets its step know.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_kept_alive_and_told_of_the_end() {
    let desk = bare().await;
    let (begun, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let told = (begun.clone(), ended.clone());
    let long = Machine::<Value>::new("long").step("wait", move |ctx: Ctx, _| {
        let (begun, ended) = told.clone();
        async move {
            begun.notify_one();
            ctx.cancelled().await;
            assert!(ctx.is_cancelled());
            ended.notify_one();
            Ok(done(&Value::Null))
        }
    });
    let remote = worker(&desk).lease(Duration::from_millis(300)).register(long).start().await.unwrap();
    let run = client(&desk).start("long", &Value::Null).await.unwrap();
    begun.notified().await;
    let first = run.show().await.unwrap().cursors[0].reclaims;
    run.cancel("enough").await.unwrap();
    ended.notified().await;
    assert_eq!(first, 0);
    assert_eq!(run.show().await.unwrap().status(), Status::Cancelled);
    assert_eq!(remote.stop(LONG).await.abandoned, 0);
    desk.close().await;
}

/// Stopping waits for what executes, takes nothing more, and what is said last arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_drains() {
    let desk = bare().await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let told = (begun.clone(), go.clone());
    let slow = Machine::<u32>::new("slow").step("wait", move |_, number: u32| {
        let (begun, go) = told.clone();
        async move {
            begun.notify_one();
            go.notified().await;
            Ok(done(&number))
        }
    });
    let remote = worker(&desk).register(slow).queue("default", 1).start().await.unwrap();
    let client = client(&desk);
    let run = client.start("slow", &1u32).await.unwrap();
    begun.notified().await;
    let waits = client.start("slow", &2u32).await.unwrap();
    let stopping = tokio::spawn(async move { remote.stop(LONG).await });
    go.notify_one();
    assert_eq!(stopping.await.unwrap().abandoned, 0);
    assert_eq!(run.result::<u32>().await.unwrap(), 1);
    assert_eq!(waits.show().await.unwrap().status(), Status::Runnable);
    desk.close().await;
}

/// A step that panics, and a function that waits for what the engine cannot see, fare as in an engine of their own.
#[tokio::test(flavor = "multi_thread")]
async fn code_that_goes_wrong_is_told_apart() {
    let desk = bare().await;
    let bad = Machine::<Value>::new("bad")
        .step("fall", async |_, _| -> Result<abide::Outcome, StepError> { panic!("over the edge") });
    let foreign = Function::new("foreign", async |_: FnCtx, _: Value| {
        tokio::time::sleep(secs(1)).await;
        Ok::<_, Failure>(())
    });
    let remote = worker(&desk).register(bad).register(foreign).start().await.unwrap();
    let client = client(&desk);
    match client.start("bad", &Value::Null).await.unwrap().result::<Value>().await.unwrap_err() {
        ClientError::RunFailed { error, .. } => assert_eq!((&*error.code, &*error.message), ("panic", "over the edge")),
        other => panic!("{other}"),
    }
    let run = client.start("foreign", &Value::Null).await.unwrap();
    loop {
        let shown = run.show().await.unwrap();
        if shown.status() == Status::DeadLettered {
            assert_eq!(shown.last_error.map(|error| error.code.to_string()).as_deref(), Some("foreign_wait"));
            break;
        }
        tokio::task::yield_now().await;
    }
    run.discard().await.unwrap();
    remote.stop(LONG).await;
    desk.close().await;
}

/// AB-16, AB-19: a worker that will never be given anything is told when it begins, and one that was sent away later says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_not_known_says_so() {
    let desk = Desk::open("memory:").await;
    let begin = |token: String| Engine::open(&desk.url("")).token(&token).namespace("shop").register(note()).start();
    let wrong = format!("abide_{}_{}", "0".repeat(16), "0".repeat(64));
    for (token, code) in
        [(wrong, "unauthenticated"), (desk.token(&[abide_protocol::Scope::Read], &["shop"]), "forbidden")]
    {
        let refused = begin(token).await.err().expect("nobody is let in by it");
        let StartError::Server { problem, .. } = refused else { panic!("{refused}") };
        assert!(problem.contains(code) || problem.contains("token") || problem.contains("scope"), "{code}: {problem}");
    }
    let made = desk.make(&[abide_protocol::Scope::Admin], &["*"], None);
    let worker = begin(made.secret.to_string()).await.unwrap();
    assert_eq!(worker.failure(), None);
    let path = format!("/v1/tokens/{}", made.token.token);
    let gone = desk.admin(&["*"]).send(reqwest::Method::DELETE, &path, &[], None).await;
    assert_eq!(gone.status, 204);
    // Whatever it asks next is refused; a start has the question that waits answered.
    desk.admin(&["shop"]).post("/v1/namespaces/shop/runs", json!({"workflow": "note", "input": 1})).await.good();
    let why = tokio::time::timeout(LONG, worker.failed()).await.unwrap();
    assert!(why.contains("token"), "{why}");
    assert_eq!(worker.failure(), Some(why));
    // One that cannot be reached may come.
    let later = Engine::open("http://127.0.0.1:1").register(note()).start().await.unwrap();
    assert_eq!(later.failure(), None);
    later.stop(Duration::ZERO).await;
}
