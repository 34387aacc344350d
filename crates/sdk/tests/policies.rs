//! The policy matrix: what becomes of an effect, by its policy, by what the journal says of it, and by how the attempt
//! that began it came to its end. Read [`TABLE`] as a table; every cell of it is executed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on panics, and the matrix counts its cells"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use abide::{
    Control, Engine, EngineBuilder, Fact, Failure, FnCtx, Function, Policy, RetryPolicy, RunHandle, RunId, Standing,
    Status, StepError,
};
use abide_store::memory::MemoryStore;

/// How the attempt ended that came by the effect first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// It panicked, and the same worker tries again.
    SameWorker,
    /// Its worker never answered, and another goes on: an engine that is stopped, and a second one on the same store.
    OtherWorker,
    /// Its process was killed: a real process, a real store, a real SIGKILL.
    Killed,
}

/// What the journal says of the effect when the attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Journal {
    /// Nothing: the attempt ended before the effect began.
    NoIntent,
    /// At most that it began: the attempt ended inside the call. Policies that may be repeated write their intent with
    /// their result, so for them the journal says nothing here either, which means the same (D35).
    IntentOnly,
    /// Its result.
    Result,
    /// An error that may be cured.
    Retryable,
    /// An error that may not.
    Terminal,
}

/// What the next attempt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It calls for the first time.
    Calls,
    /// It calls once more.
    CallsAgain,
    /// It takes the recorded result, and does not call.
    Replays,
    /// It takes the recorded error, and does not call.
    Errs,
    /// It does not call: the effect is in doubt, and waits to be resolved.
    Doubts,
}

use Ends::{Killed, OtherWorker, SameWorker};
use Journal::{IntentOnly, NoIntent, Result as Recorded, Retryable, Terminal};
use Then::{Calls, CallsAgain, Doubts, Errs, Replays};

const ENDS: [Ends; 3] = [SameWorker, OtherWorker, Killed];
const JOURNALS: [Journal; 5] = [NoIntent, IntentOnly, Recorded, Retryable, Terminal];

/// For each policy, what follows from no intent, an intent, a result, a curable error and an incurable one. Each cell
/// holds for the same worker, another worker, and after a SIGKILL, in this order.
///
/// A curable error is met by another call only when the attempt failed and is tried again, which is the same worker's
/// case: an attempt whose worker was lost goes on from what it had seen. What must not happen twice is never called
/// again by itself.
#[rustfmt::skip]
const TABLE: [(Policy, [[Then; 3]; 5]); 5] = [
    //                     no intent    intent only       result         retryable error            terminal error
    (Policy::Pure,       [[Calls; 3], [CallsAgain; 3], [Replays; 3], [CallsAgain, Errs, Errs], [Errs; 3]]),
    (Policy::Idempotent, [[Calls; 3], [CallsAgain; 3], [Replays; 3], [CallsAgain, Errs, Errs], [Errs; 3]]),
    (Policy::Dedupe,     [[Calls; 3], [CallsAgain; 3], [Replays; 3], [CallsAgain, Errs, Errs], [Errs; 3]]),
    (Policy::Reconcile,  [[Calls; 3], [Doubts; 3],     [Replays; 3], [Errs; 3],                [Errs; 3]]),
    (Policy::UnsafeOnce, [[Calls; 3], [Doubts; 3],     [Replays; 3], [Errs; 3],                [Errs; 3]]),
];

/// One cell: a folder that remembers, from process to process, what was called and whether the first attempt has ended.
#[derive(Clone, Debug)]
struct Cell {
    policy: Policy,
    journal: Journal,
    ends: Ends,
    folder: PathBuf,
}

impl Cell {
    fn calls(&self) -> usize {
        fs::read_to_string(self.folder.join("calls")).unwrap_or_default().lines().count()
    }

    fn call(&self) -> usize {
        let mut file = fs::File::options().create(true).append(true).open(self.folder.join("calls")).unwrap();
        writeln!(file, "call").unwrap();
        self.calls()
    }

    fn has_ended(&self) -> bool {
        self.folder.join("ended").exists()
    }

    /// The end of the first attempt, if this is where it comes.
    async fn end_here(&self, here: bool) {
        if !here || self.has_ended() {
            return;
        }
        fs::write(self.folder.join("ended"), "").unwrap();
        match self.ends {
            SameWorker => panic!("the first attempt ends here"),
            OtherWorker => std::future::pending().await,
            Killed => {
                // Whoever comes after must know which run it was.
                while !self.folder.join("run").exists() {
                    std::thread::yield_now();
                }
                let killed = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
                panic!("still here after SIGKILL: {killed:?}");
            }
        }
    }

    fn function(&self) -> Function {
        let cell = self.clone();
        let code = move |ctx: FnCtx, (): ()| {
            let cell = cell.clone();
            async move {
                if cell.journal == NoIntent {
                    let before = async |_| {
                        cell.end_here(true).await;
                        Ok::<_, StepError>(())
                    };
                    ctx.effect("before", before).await?;
                }
                let call = async |_| {
                    let call = cell.call();
                    cell.end_here(cell.journal == IntentOnly).await;
                    match cell.journal {
                        Retryable if call == 1 => Err(StepError::new("down").code("down")),
                        Terminal if call == 1 => Err(StepError::new("no").code("no").terminal()),
                        _ => Ok(call),
                    }
                };
                let effect = ctx.effect("effect", call).policy(cell.policy).await;
                // A call that may not be repeated begins when all that was seen before is durable.
                let durable = async |_| {
                    cell.end_here(true).await;
                    Ok::<_, StepError>(())
                };
                ctx.effect("durable", durable).await?;
                Ok::<_, Failure>(match effect {
                    Ok(call) => format!("call {call}"),
                    Err(error) => format!("error {}", error.info().code),
                })
            }
        };
        Function::new("cell", code).retry(RetryPolicy::exponential(1)).control(Control::allow())
    }

    fn engine(&self, url: &str) -> EngineBuilder {
        Engine::open(url).register(self.function())
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.folder.join("cell.db").display())
    }
}

async fn until(done: impl Fn() -> bool) {
    while !done() {
        tokio::task::yield_now().await;
    }
}

/// Executes a cell: a first attempt that ends as it must, and whatever follows.
async fn execute(cell: &Cell) -> Then {
    let (engine, run) = match cell.ends {
        SameWorker => {
            let engine = cell.engine("memory:").start().await.unwrap();
            let run = engine.client().start("cell", &()).await.unwrap().id();
            until(|| cell.has_ended()).await;
            (engine, run)
        }
        OtherWorker => {
            let store = MemoryStore::new(1);
            let first = cell.engine("memory:").start_on(Box::new(store.clone())).unwrap();
            let run = first.client().start("cell", &()).await.unwrap().id();
            until(|| cell.has_ended()).await;
            first.stop(Duration::ZERO).await;
            (cell.engine("memory:").start_on(Box::new(store)).unwrap(), run)
        }
        Killed => {
            let run = kill_a_child(cell);
            (cell.engine(&cell.url()).start().await.unwrap(), run)
        }
    };
    let then = observe(cell, &engine.client().run(run)).await;
    engine.stop(Duration::from_secs(5)).await;
    then
}

/// Starts this test file again as a process that dies in the cell.
fn kill_a_child(cell: &Cell) -> RunId {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_is_killed", "--ignored", "--nocapture"])
        .env("CELL_FOLDER", &cell.folder)
        .env("CELL_POLICY", cell.policy.name())
        .env("CELL_JOURNAL", JOURNALS.iter().position(|journal| *journal == cell.journal).unwrap().to_string())
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.status.signal(), Some(9), "{}", String::from_utf8_lossy(&child.stdout));
    fs::read_to_string(cell.folder.join("run")).unwrap().parse().unwrap()
}

/// The process that is killed: it is started by the matrix, never by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only as a child of the matrix"]
async fn a_process_that_is_killed() {
    let Some(folder) = std::env::var_os("CELL_FOLDER") else { return };
    let journal: usize = std::env::var("CELL_JOURNAL").unwrap().parse().unwrap();
    let policy = std::env::var("CELL_POLICY").unwrap().parse().unwrap();
    let cell = Cell { policy, journal: JOURNALS[journal], ends: Killed, folder: folder.into() };
    let engine = cell.engine(&cell.url()).start().await.unwrap();
    let run = engine.client().start("cell", &()).await.unwrap();
    // In one piece: the kill waits for the file, not for what is in it.
    fs::write(cell.folder.join("run.part"), run.id().to_string()).unwrap();
    fs::rename(cell.folder.join("run.part"), cell.folder.join("run")).unwrap();
    let ended = run.result::<String>().await;
    panic!("the process should have been killed: {ended:?}");
}

/// What the next attempt did, by the journal and by what was called.
async fn observe(cell: &Cell, run: &RunHandle) -> Then {
    let shown = loop {
        let shown = run.show().await.unwrap();
        if shown.end.is_some() || shown.status() == Status::InDoubt {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    let rows = run.journal(0).await.unwrap();
    let effect = shown.effects().find(|effect| &*effect.key == "effect").expect("the effect is in the ledger");
    let facts = |wanted: &dyn Fn(&Fact) -> bool| -> Vec<usize> {
        let has = |row: &abide::Row| row.facts.iter().any(wanted);
        rows.iter().enumerate().filter(|(_, row)| has(row)).map(|(at, _)| at).collect()
    };
    let intents = facts(&|fact| matches!(fact, Fact::Intended(intended) if &*intended.key == "effect"));
    let op = shown.ops().find(|(_, op)| &*op.key == "effect").map(|(id, _)| id);
    let results = facts(&|fact| matches!(fact, Fact::Resulted(resulted) if Some(resulted.op) == op));
    // JI-11, D35: the intent comes before the result, in a row of its own where the policy says so.
    assert!(!intents.is_empty(), "{cell:?}");
    if let (Some(intent), Some(result)) = (intents.first(), results.first()) {
        assert!(intent <= result, "{cell:?}");
        assert_eq!(intent < result, cell.policy.intends_first(), "{cell:?}");
    }
    if shown.status() == Status::InDoubt {
        assert_eq!((effect.standing, cell.calls(), results.len()), (Standing::InDoubt, 1, 0), "{cell:?}");
        return Doubts;
    }
    let result: String = shown.result.expect("a result").decode().unwrap();
    match (cell.journal, result.as_str(), cell.calls()) {
        (NoIntent, "call 1", 1) => Calls,
        (IntentOnly | Retryable, "call 2", 2) => CallsAgain,
        (Recorded, "call 1", 1) => Replays,
        (Retryable, "error down", 1) | (Terminal, "error no", 1) => Errs,
        other => panic!("{cell:?} came to {other:?}"),
    }
}

/// Executes a column of the table: all policies, and all ways to end, for one thing that the journal says.
async fn column(journal: Journal) {
    let place = JOURNALS.iter().position(|known| *known == journal).unwrap();
    let mut cells = 0;
    for (policy, row) in TABLE {
        for (ends, expected) in ENDS.into_iter().zip(row[place]) {
            let folder = tempfile::tempdir().unwrap();
            let cell = Cell { policy, journal, ends, folder: Path::to_path_buf(folder.path()) };
            let found = execute(&cell).await;
            assert_eq!(found, expected, "{policy}, {journal:?}, {ends:?}");
            cells += 1;
        }
    }
    println!("cells {cells}");
    assert_eq!(cells, 15);
}

/// JI-15, JI-33: without an intent it is called, under every policy and however the attempt before ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_intent_it_is_called() {
    column(NoIntent).await;
}

/// JI-1, JI-14, JI-16, JI-18, JI-19, BU-22, BU-26, D19, D35: with an intent and no result its policy alone decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_intent_alone_its_policy_decides() {
    column(IntentOnly).await;
}

/// JI-13, JI-17, BU-21, D18: a recorded result is replayed under every policy, by whichever worker, and never recomputed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_result_is_never_recomputed() {
    column(Recorded).await;
}

/// JI-32, D20: an error that may be cured is met by another call with the retry, where another call does no harm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_curable_error_is_cured_where_it_may_be() {
    column(Retryable).await;
}

/// D20: an error that may not be cured is replayed like a result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incurable_error_stands() {
    column(Terminal).await;
}
