//! The engine as its user's process sees it: workers, leases, blocking steps, cancellation, stopping, reopening.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::{
    ClientError, Engine, Fact, Filter, Machine, Notifier, Page, Refusal, RunId, Status, await_signal, child, done,
    next, spawn,
};
use tokio::sync::{Semaphore, mpsc};

async fn end(engine: &Engine) {
    engine.stop(Duration::from_secs(5)).await;
}

/// SE-27, SE-28, GD-36: workers are bounded; the bound is said once, per queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_executes_at_most_as_many_as_it_may() {
    let now = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (running, highest) = (now.clone(), most.clone());
    let machine = Machine::<u32>::new("busy").step("work", move |_, n: u32| {
        let (running, highest) = (running.clone(), highest.clone());
        async move {
            highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(done(&n))
        }
    });
    let engine = Engine::open("memory:").register(machine).queue("default", 3).start().await.unwrap();
    let client = engine.client();
    let starts = (0..50u32).map(|n| client.start("busy", &n));
    for run in client.start_many(starts).await.unwrap() {
        run.unwrap().result::<u32>().await.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
    end(&engine).await;
}

/// SE-26, D11: an idle engine with runs that wait reads and writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_engine_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::<u32>::new("wait").step("wait", async |ctx, n: u32| match ctx.signal::<u32>("go")? {
        None => Ok(await_signal("go", n).deadline(Duration::from_secs(3_600))),
        Some(_) => Ok(done(&n)),
    });
    let url = format!("sqlite:{}", dir.path().join("idle.db").display());
    let engine = Engine::open(&url).register(machine).start().await.unwrap();
    let run = engine.client().start("wait", &1u32).await.unwrap();
    while engine.metrics().behind > 0 || engine.metrics().executing > 0 {
        tokio::task::yield_now().await;
    }
    let before = engine.metrics().store;
    assert!(before.reads > 0 && before.writes > 0);
    // Nothing can be waited for that does not happen; a quarter of a second is long for an engine that would poll.
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(engine.metrics().store, before);
    run.signal("go", &1u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 1);
    end(&engine).await;
}

/// SQ-42, GD-34: the executor keeps the claim of a step that takes longer than its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_step_keeps_its_claim() {
    let attempts = Arc::new(AtomicU32::new(0));
    let seen = attempts.clone();
    let machine = Machine::<u32>::new("long").step("work", move |ctx, n: u32| {
        seen.fetch_add(1, Ordering::SeqCst);
        async move {
            // Three times the lease.
            tokio::time::sleep(Duration::from_millis(600)).await;
            assert!(!ctx.is_cancelled());
            Ok(done(&n))
        }
    });
    let engine = Engine::open("memory:").register(machine).lease(Duration::from_millis(200)).start().await.unwrap();
    let run = engine.client().start("long", &5u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 5);
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    assert!(run.show().await.unwrap().anomalies.is_empty());
    end(&engine).await;
}

/// SE-27: a step that blocks its thread never delays other runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_blocks_delays_nobody() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(Some(blocked)));
    let (began, mut begun) = mpsc::unbounded_channel();
    let block = Machine::<u32>::new("block").step("block", move |_, n: u32| {
        began.send(()).unwrap();
        if let Some(blocked) = blocked.lock().unwrap().take() {
            blocked.recv().unwrap();
        }
        async move { Ok(done(&n)) }
    });
    let quick = Machine::<u32>::new("quick")
        .step("one", async |_, n: u32| Ok(next("two", n)))
        .step("two", async |_, n: u32| Ok(done(&n)));
    let engine = Engine::open("memory:").register(block).register(quick).start().await.unwrap();
    let client = engine.client();
    let stuck = client.start("block", &1u32).await.unwrap();
    begun.recv().await.unwrap();
    for n in 0..20u32 {
        assert_eq!(client.start("quick", &n).await.unwrap().result::<u32>().await.unwrap(), n);
    }
    release.send(()).unwrap();
    assert_eq!(stuck.result::<u32>().await.unwrap(), 1);
    end(&engine).await;
}

/// D12, SQ-60: a cancelled run tells its step, and what the step returns is not recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_learns_of_the_cancellation() {
    let (began, mut begun) = mpsc::unbounded_channel();
    let (ended, mut over) = mpsc::unbounded_channel();
    let machine = Machine::<u32>::new("long").step("work", move |ctx, n: u32| {
        let (began, ended) = (began.clone(), ended.clone());
        async move {
            began.send(()).unwrap();
            ctx.cancelled().await;
            ended.send(()).unwrap();
            Ok(done(&n))
        }
    });
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let run = engine.client().start("long", &1u32).await.unwrap();
    begun.recv().await.unwrap();
    run.cancel("changed my mind").await.unwrap();
    over.recv().await.unwrap();
    match run.result::<u32>().await {
        Err(ClientError::RunFailed { status: Status::Cancelled, error, .. }) => {
            assert_eq!(&*error.message, "changed my mind")
        }
        other => panic!("expected a cancelled run, found {other:?}"),
    }
    let twice = run.cancel("again").await;
    assert!(matches!(twice, Err(ClientError::Refused(Refusal::RunOver { status: Status::Cancelled, .. }))));
    end(&engine).await;
}

/// D12: a cascade ends open children too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cascade_ends_the_children() {
    let leaf = Machine::<u32>::new("leaf").step("wait", async |_, n: u32| Ok(await_signal("never", n)));
    let tree = Machine::<u32>::new("tree")
        .step("fan", async |_, n: u32| Ok(spawn((0..3u32).map(|n| child("leaf", &n)), "end", n)))
        .step("end", async |_, n: u32| Ok(done(&n)));
    let engine = Engine::open("memory:").register(leaf).register(tree).shards(4).start().await.unwrap();
    let client = engine.client();
    let run = client.start("tree", &0u32).await.unwrap();
    let children = loop {
        let mut filter = Filter::default();
        filter.parent = Some(run.id());
        filter.statuses = vec![Status::AwaitingSignal];
        let found = client.list(&filter, &Page::default()).await.unwrap();
        if found.len() == 3 {
            break found;
        }
        tokio::task::yield_now().await;
    };
    run.cancel_all("enough").await.unwrap();
    for child in children {
        let ended = client.run(child.run).result::<u32>().await;
        assert!(matches!(ended, Err(ClientError::RunFailed { status: Status::Cancelled, .. })), "{ended:?}");
    }
    end(&engine).await;
}

/// GD-2, SQ-12, SE-37: what was acknowledged is there after the engine is gone, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reopened_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("abide.db").display());
    let machine = || {
        Machine::<u32>::new("order").step("pay", async |ctx, n: u32| match ctx.signal::<u32>("paid")? {
            None => Ok(await_signal("paid", n)),
            Some(amount) => Ok(done(&(n + amount))),
        })
    };
    let engine = Engine::open(&url).register(machine()).start().await.unwrap();
    let run = engine.client().start("order", &1u32).key("order-1").await.unwrap().id();
    drop(engine);
    let engine = Engine::open(&url).register(machine()).start().await.unwrap();
    let taken = engine.client().start("order", &1u32).key("order-1").await;
    assert!(matches!(taken.map(|run| run.id()), Err(ClientError::Rejected { by, .. }) if by == run));
    engine.client().run(run).signal("paid", &2u32).await.unwrap();
    assert_eq!(engine.client().run(run).result::<u32>().await.unwrap(), 3);
    end(&engine).await;
}

/// SQ-23, SQ-24, SQ-25: the notifier hears of an attempt after its commit; its failure takes nothing back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_notifier_is_told_after_the_commit() {
    struct Moody(Mutex<Vec<RunId>>);
    impl Notifier for Moody {
        fn notify(
            &self,
            run: RunId,
            queue: &str,
            _: &abide_kernel::Scheduled,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            assert_eq!(queue, "default");
            let mut told = self.0.lock().unwrap();
            told.push(run);
            if told.len() == 1 { Err("not in the mood".into()) } else { Ok(()) }
        }
    }
    let notifier = Arc::new(Moody(Mutex::new(Vec::new())));
    let machine = Machine::<u32>::new("count").step("one", async |_, n: u32| Ok(next("two", n + 1))).step(
        "two",
        async |ctx, n: u32| match ctx.signal::<u32>("go")? {
            None => Ok(await_signal("go", n)),
            Some(_) => Ok(done(&n)),
        },
    );
    let engine = Engine::open("memory:").register(machine).notifier(notifier.clone()).start().await.unwrap();
    let run = engine.client().start("count", &0u32).await.unwrap();
    let notified = |rows: &[abide::Row]| {
        rows.iter().flat_map(|row| row.facts.iter()).filter(|fact| matches!(fact, Fact::Notified(_))).count()
    };
    while notified(&run.journal(0).await.unwrap()) == 0 {
        tokio::task::yield_now().await;
    }
    run.signal("go", &1u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 1);
    assert!(notifier.0.lock().unwrap().iter().all(|told| *told == run.id()));
    end(&engine).await;
}

/// SE-28: stopping waits for steps that execute, and for no longer than it was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_drains() {
    let gate = Arc::new(Semaphore::new(0));
    let (began, mut begun) = mpsc::unbounded_channel();
    let inside = gate.clone();
    let machine = Machine::<u32>::new("slow").step("work", move |_, n: u32| {
        let (gate, began) = (inside.clone(), began.clone());
        async move {
            began.send(()).unwrap();
            gate.acquire().await.unwrap().forget();
            Ok(done(&n))
        }
    });
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let run = engine.client().start("slow", &1u32).await.unwrap();
    begun.recv().await.unwrap();
    let stopped = engine.stop(Duration::from_millis(20)).await;
    assert_eq!(stopped.abandoned, 1);
    let refused = run.show().await;
    assert!(
        matches!(refused, Err(ClientError::Refused(Refusal::Closed { .. }) | ClientError::Engine(_))),
        "{refused:?}"
    );
    gate.add_permits(1);
}

/// SQ-4, D36: a listing shows what was acknowledged, also before its index rows are written, newest first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_complete_and_in_pages() {
    let machine = Machine::<u32>::new("wait").step("wait", async |_, n: u32| Ok(await_signal("go", n)));
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let client = engine.client();
    let mut ids = BTreeSet::new();
    for n in 0..25u32 {
        ids.insert(client.start("wait", &n).await.unwrap().id());
    }
    let mut page = Page { most: 10, before: None };
    let mut found = Vec::new();
    loop {
        let listed = client.list(&Filter::default(), &page).await.unwrap();
        let Some(last) = listed.last() else { break };
        page.before = Some(last.run);
        found.extend(listed.iter().map(|listed| listed.run));
    }
    assert!(found.is_sorted_by(|a, b| a > b));
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), ids);
    end(&engine).await;
}

/// SQ-61: the end of a run clears whatever it waited for; nothing is due for it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_clears_what_a_run_waited_for() {
    let machine = Machine::<u32>::new("wait")
        .step("wait", async |_, n: u32| Ok(await_signal("approved", n).deadline(Duration::from_secs(3_600))));
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let run = engine.client().start("wait", &0u32).await.unwrap();
    while run.show().await.unwrap().status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
    assert!(run.show().await.unwrap().next_due().is_some());
    run.cancel("no").await.unwrap();
    let shown = run.show().await.unwrap();
    assert_eq!((shown.status(), shown.next_due()), (Status::Cancelled, None));
    assert!(shown.cursors.iter().all(|cursor| matches!(cursor.phase, abide_kernel::Phase::Closed)));
    end(&engine).await;
}

/// AB-1: a run says why it does not move, through the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_explains_itself() {
    let machine = Machine::<u32>::new("wait").step("wait", async |_, n: u32| Ok(await_signal("paid", n)));
    let engine = Engine::open("memory:").register(machine).queue("mail", 1).start().await.unwrap();
    let client = engine.client();
    let unserved = client.start("wait", &0u32).await.unwrap().explain().await.unwrap();
    assert!(unserved.sentence.contains("default"), "{}", unserved.sentence);
    let run = client.start("wait", &0u32).queue("mail").await.unwrap();
    while run.show().await.unwrap().status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
    let waiting = run.explain().await.unwrap();
    assert!(waiting.sentence.contains("paid"), "{}", waiting.sentence);
    assert!(!waiting.next_actions.is_empty());
    end(&engine).await;
}
