//! The end of an engine, and what the next one finds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use abide::{ClientError, Engine, FnCtx, Function, Machine, Refusal, StepError, await_signal, done};
use abide_kernel::StartSpec;
use abide_kernel::shard::{Answer, Command};
use abide_store::memory::{MemoryStore, WriteFault};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on a thread that belongs to no runtime.
fn wait<T>(future: impl IntoFuture<Output = T>) -> T {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn waiting() -> Machine<u32> {
    Machine::<u32>::new("wait").step("wait", async |ctx, n: u32| match ctx.signal::<u32>("go")? {
        None => Ok(await_signal("go", n)),
        Some(_) => Ok(done(&n)),
    })
}

/// SE-28: an engine that made its own runtime is used and stopped by threads that have none.
#[test]
fn an_engine_works_and_stops_outside_a_runtime() {
    let engine = wait(Engine::open("memory:").register(waiting()).start()).unwrap();
    let run = wait(engine.client().start("wait", &7u32)).unwrap();
    wait(run.signal("go", &1u32)).unwrap();
    assert_eq!(wait(run.result::<u32>()).unwrap(), 7);
    assert_eq!(wait(engine.stop(Duration::from_secs(5))).abandoned, 0);
}

/// SQ-15: a row that is damaged behind the index rows sets its run aside at every opening, not only at the first; the
/// key it may hold is not given away, and all other runs go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_behind_the_index_rows_is_never_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.db");
    let url = format!("sqlite:{}", path.display());
    let engine = Engine::open(&url).register(waiting()).start().await.unwrap();
    let run = engine.client().start("wait", &1u32).key("k").await.unwrap().id();
    let other = engine.client().start("wait", &2u32).await.unwrap().id();
    engine.stop(Duration::from_secs(5)).await;
    let file = rusqlite::Connection::open(&path).unwrap();
    let id = run.to_string().replace("run_", "");
    let damaged = file.execute(
        &format!("UPDATE journal SET facts = '[' || facts WHERE run = x'{id}' AND rev = (SELECT max(rev) FROM journal WHERE run = x'{id}')"),
        [],
    );
    assert_eq!(damaged.unwrap(), 1);
    file.execute("UPDATE shard SET watermark = 0", []).unwrap();
    drop(file);
    for life in 0..3u32 {
        let engine = Engine::open(&url).register(waiting()).start().await.unwrap();
        let client = engine.client();
        let shown = client.run(run).show().await;
        assert!(matches!(shown, Err(ClientError::Refused(Refusal::Corrupt { .. }))), "life {life}: {shown:?}");
        let taken = client.start("wait", &3u32).key("k").await;
        assert!(matches!(taken, Err(ClientError::Refused(Refusal::Corrupt { .. }))), "life {life}: {taken:?}");
        let fresh = client.start("wait", &4u32).await.unwrap();
        fresh.signal("go", &1u32).await.unwrap();
        assert_eq!(fresh.result::<u32>().await.unwrap(), 4);
        client.run(other).show().await.unwrap();
        engine.stop(Duration::from_secs(5)).await;
    }
}

/// An attempt that waits holds on to its engine, and the engine to it: an engine that ends lets go of both.
#[test]
fn an_engine_that_ends_lets_go_of_what_its_attempts_hold() {
    let held = Arc::new(());
    let (inside, (begun, begins)) = (held.clone(), std::sync::mpsc::channel());
    let waits = Function::new("waits", move |ctx: FnCtx, (): ()| {
        let (inside, begun) = (inside.clone(), begun.clone());
        async move {
            let call = async |_| {
                begun.send(()).map_err(StepError::new)?;
                std::future::pending::<Result<u32, StepError>>().await
            };
            let number = ctx.effect("wait", call).await;
            drop(inside);
            number
        }
    });
    let engine = wait(Engine::open("memory:").register(waits).start()).unwrap();
    wait(engine.client().start("waits", &())).unwrap();
    begins.recv().unwrap();
    assert!(Arc::strong_count(&held) > 1);
    wait(engine.stop(Duration::ZERO));
    drop(engine);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// SE-25: when the shards cannot be opened anew, everybody who asks is refused; nobody finds an engine without shards.
#[test]
fn callers_are_refused_when_reopening_fails() {
    for _ in 0..15 {
        let store = MemoryStore::new(1);
        let faults = store.faults();
        let mut config = abide_runtime::Config::default();
        (config.pools, config.flush_quiet) = (Vec::new(), Duration::from_secs(3_600));
        let engine = abide_runtime::Engine::open(Box::new(store), config).unwrap();
        let asked = AtomicUsize::new(0);
        let ask = || {
            let request = abide_runtime::new_request(engine.now());
            let spec = StartSpec::new("flow", abide::Payload::null());
            let slot = spec.admission_slot(request);
            let answer = engine.ask(slot, Command::Start { request, spec: Box::new(spec) });
            asked.fetch_add(1, Ordering::SeqCst);
            answer
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        drop(ask());
                    }
                });
            }
            while asked.load(Ordering::SeqCst) < 200 {
                std::thread::yield_now();
            }
            faults.fail_reads(1_000_000);
            faults.fail_append(WriteFault::ALL[0]);
        });
        let refused = wait(ask()).unwrap();
        assert!(matches!(refused, Answer::Refused(Refusal::Closed { .. } | Refusal::Unknown)), "{refused:?}");
    }
}
