//! Compaction: a machine that lives long keeps a short journal, and nothing it needs is dropped.

use std::sync::Arc;
use std::time::Duration;

use abide::{Engine, Fact, Machine, RunHandle, Status, await_signal, done, next};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::signal::Sent;
use abide_kernel::{RunId, Seq, ShardId, StartSpec};
use abide_runtime::{Audit, Snapshot};
use abide_store::memory::MemoryStore;
use abide_store::{Reader, Store};
use tokio::sync::mpsc;

/// Steps that a run takes before it waits, and again after.
const STEPS: u32 = 1_000;

/// Counts to [`STEPS`], waits for `go`, and counts on to twice as many.
fn counter(reached: mpsc::UnboundedSender<u32>) -> Machine<u32> {
    let reached = Arc::new(reached);
    Machine::<u32>::new("counter")
        .compact_after(50)
        .step("count", move |_, n: u32| {
            let reached = reached.clone();
            async move {
                let _ = reached.send(n);
                Ok(match n {
                    STEPS => await_signal("go", n).then("go on"),
                    n if n == 2 * STEPS => done(&n),
                    n => next("count", n + 1),
                })
            }
        })
        .step("go on", async |ctx, n: u32| Ok(next("count", n + ctx.signal::<u32>("go")?.unwrap_or(0))))
}

async fn waiting(run: &RunHandle) {
    while run.show().await.expect("it is answered").status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
}

async fn assert_bounded(run: &RunHandle) {
    let shown = run.show().await.expect("it is answered");
    assert!(shown.rev.0 > u64::from(STEPS), "{:?}", shown.rev);
    let journal = run.journal(0).await.expect("it is answered");
    assert!((1..=51).contains(&journal.len()), "{} rows", journal.len());
    assert!(matches!(journal[0].facts[0], Fact::Compacted(_)), "{:?}", journal[0].facts[0].kind());
    assert_eq!(journal.len() as u64, shown.journal_rows());
}

/// D1: a thousand steps leave at most fifty rows; a reopened store goes on from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_machine_keeps_a_short_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.db");
    let url = format!("sqlite:{}", path.display());
    let (reached, mut counted) = mpsc::unbounded_channel();
    let engine = Engine::open(&url).register(counter(reached.clone())).start().await.unwrap();
    let run = engine.client().start("counter", &0u32).await.unwrap();
    waiting(&run).await;
    assert_bounded(&run).await;
    let (id, before) = (run.id(), run.show().await.unwrap());
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);

    let mut reader = abide_store::sqlite::open_read_only(&path).unwrap();
    let log = reader.scan(ShardId(0), Seq(0), 10_000).unwrap();
    let telling = log.iter().filter(|row| row.as_ref().is_ok_and(|row| !row.facts.is_empty())).count();
    assert!(log.len() > STEPS as usize && telling <= 51, "{telling} of {} rows say something", log.len());
    assert_eq!(Audit::of(&mut reader).unwrap().problems, []);
    drop(reader);

    let engine = Engine::open(&url).register(counter(reached)).start().await.unwrap();
    let run = engine.client().run(id);
    assert_eq!(run.show().await.unwrap(), before);
    run.signal("go", &1u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 2 * STEPS);
    assert_bounded(&run).await;
    engine.stop(Duration::from_secs(5)).await;
    counted.close();
    let mut expected = 0..=2 * STEPS;
    while let Some(n) = counted.recv().await {
        assert_eq!(Some(n), expected.next(), "every step once, in order");
    }
    assert_eq!(expected.next(), None);
}

/// D1: a run may be compacted by hand at any time, also when it has ended; a second time changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_compacted_on_request() {
    let machine = Machine::<u32>::new("wait").step("wait", async |ctx, n: u32| match ctx.signal::<u32>("go")? {
        None => Ok(await_signal("go", n)),
        Some(more) => Ok(done(&(n + more))),
    });
    let engine = Engine::open("memory:").register(machine).start().await.unwrap();
    let run = engine.client().start("wait", &1u32).await.unwrap();
    waiting(&run).await;
    run.compact().await.unwrap();
    let rev = run.show().await.unwrap().rev;
    run.compact().await.unwrap();
    assert_eq!(run.show().await.unwrap().rev, rev);
    assert_eq!(run.journal(0).await.unwrap().len(), 1);
    run.signal("go", &2u32).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 3);
    run.compact().await.unwrap();
    assert_eq!(run.journal(0).await.unwrap().len(), 1);
    assert_eq!(run.result::<u32>().await.unwrap(), 3);
    run.purge().await.unwrap();
    assert!(run.show().await.is_err());
    engine.stop(Duration::from_secs(5)).await;
}

async fn tell(engine: &abide_runtime::Engine, run: RunId, command: Command) {
    let answer = engine.ask(run.slot(), command).await.expect("it is answered");
    assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
}

fn signal(engine: &abide_runtime::Engine, run: RunId) -> Command {
    let request = abide_runtime::new_request(engine.now());
    let sent = Sent { name: "go".into(), payload: abide_kernel::Payload::null(), dedup: None, request };
    Command::Signal { run, sent: Box::new(sent) }
}

/// An engine without workers that writes no index rows by itself.
fn unflushed(store: &MemoryStore) -> abide_runtime::Engine {
    let mut config = abide_runtime::Config::default();
    (config.pools, config.flush_quiet) = (Vec::new(), Duration::from_secs(3_600));
    abide_runtime::Engine::open(Box::new(store.clone()), config).expect("it is answered")
}

/// What a reader sees of the run: its revision, its journal's revisions, and that nothing is wrong.
fn seen(store: &MemoryStore, run: RunId) -> (u64, Vec<u64>) {
    let audit = Audit::of(&mut *store.reader().expect("it is answered")).expect("it is answered");
    assert_eq!((audit.problems, audit.runs), (Vec::new(), 1));
    let mut snapshot = Snapshot::read(store.reader().expect("it is answered")).expect("it is answered");
    let shown = snapshot.show(run).expect("it is answered").expect("it is there").run;
    let journal = snapshot.journal(run, 0).expect("it is answered").expect("it is there");
    (shown.rev.0, journal.iter().map(|row| row.rev.0).collect())
}

/// D1: a compaction confuses no reader, whether its index row is behind, or written, or lost with all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_follow_a_compaction() {
    let store = MemoryStore::new(1);
    let engine = unflushed(&store);
    let request = abide_runtime::new_request(engine.now());
    let spec = StartSpec::new("flow", abide_kernel::Payload::null());
    let run = spec.run_id(request);
    tell(&engine, run, Command::Start { request, spec: Box::new(spec) }).await;
    tell(&engine, run, signal(&engine, run)).await;
    engine.stop(Duration::ZERO).await;

    let engine = unflushed(&store);
    tell(&engine, run, signal(&engine, run)).await;
    tell(&engine, run, Command::Compact { run }).await;
    tell(&engine, run, signal(&engine, run)).await;
    // The index row is of rev 2, before the journal begins.
    assert_eq!(store.reader().unwrap().read_run(run).unwrap().expect("it is there").run.rev.0, 2);
    assert_eq!(seen(&store, run), (5, vec![4, 5]));
    engine.stop(Duration::ZERO).await;
    assert_eq!(seen(&store, run), (5, vec![4, 5]));
    store.faults().lose_index();
    assert_eq!(seen(&store, run), (5, vec![4, 5]));

    // The log alone, with emptied rows in it, is enough to go on.
    let engine = unflushed(&store);
    assert_eq!(engine.show(run).await.unwrap().inbox.len(), 3);
    engine.stop(Duration::ZERO).await;
}
