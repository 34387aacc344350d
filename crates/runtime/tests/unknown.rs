//! Commands of which nobody knows what came: what is recognised is given again, and nothing else is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::signal::Sent;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{ErrorInfo, Payload, Refusal, RunId, StartSpec};
use abide_runtime::{Config, Engine, Unanswered};
use abide_store::memory::{Faults, MemoryStore, WriteFault};

fn engine() -> (Engine, Faults) {
    let store = MemoryStore::new(1);
    let faults = store.faults();
    (Engine::open(Box::new(store), Config::default()).unwrap(), faults)
}

fn start(engine: &Engine) -> (abide_kernel::Slot, Command) {
    let spec = StartSpec::new("order", Payload::null());
    let request = engine.new_request();
    (spec.admission_slot(request), Command::Start { request, spec: Box::new(spec) })
}

async fn started(engine: &Engine) -> RunId {
    let (slot, command) = start(engine);
    match engine.ask_until_known(slot, command).await.unwrap() {
        Answer::Started(StartAnswer::Created(run)) => run,
        other => panic!("expected a run, found {other:?}"),
    }
}

async fn cancelled(engine: &Engine) -> RunId {
    let run = started(engine).await;
    let reason = Arc::new(ErrorInfo::terminal("cancelled", "enough"));
    let command = Command::Cancel { run, request: engine.new_request(), cascade: false, reason };
    engine.ask_until_known(run.slot(), command).await.unwrap();
    run
}

/// D36: whoever had a record removed, and was not told, was told that there is no such record: their own word was given
/// again, and found what it had done. They are told that nobody knows, whatever became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_must_not_be_done_twice_is_given_once() {
    let (engine, faults) = engine();
    for (fault, is_gone) in [(WriteFault::UnknownWritten, true), (WriteFault::UnknownLost, false)] {
        let run = cancelled(&engine).await;
        faults.fail_append(fault);
        let purged = engine.ask_until_known(run.slot(), Command::Purge { run }).await;
        assert!(matches!(purged, Err(Unanswered::Refused(Refusal::Unknown))), "{fault:?}: {purged:?}");
        assert_eq!(engine.show(run).await.is_err(), is_gone, "{fault:?}");
    }
}

/// D36: what is recognised by its request is given again, and gets its first answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_recognised_is_given_again() {
    let (engine, faults) = engine();
    for fault in [WriteFault::Refused, WriteFault::UnknownWritten, WriteFault::UnknownLost] {
        let run = started(&engine).await;
        faults.fail_append(fault);
        let sent = Sent { name: "go".into(), payload: Payload::null(), dedup: None, request: engine.new_request() };
        let told = engine.ask_until_known(run.slot(), Command::Signal { run, sent: Box::new(sent) }).await.unwrap();
        assert!(matches!(told, Answer::Signalled(_)), "{fault:?}: {told:?}");
        assert_eq!(engine.show(run).await.unwrap().inbox.len(), 1, "{fault:?}");

        faults.fail_append(fault);
        let two = vec![start(&engine), start(&engine)];
        let told = engine.ask_many_until_known(two).await.unwrap();
        let created = |answer: &Answer| matches!(answer, Answer::Started(StartAnswer::Created(_)));
        assert!(told.iter().all(created), "{fault:?}: {told:?}");
    }
}

/// D36: who waits for the end of a run learns it, however often the store failed meanwhile. They were told that nobody knows it
/// after the twentieth time.
#[tokio::test(start_paused = true)]
async fn who_waits_outlasts_any_number_of_failures() {
    let (engine, faults) = engine();
    let run = started(&engine).await;
    let mut end = pin!(engine.ask_until_known(run.slot(), Command::Watch { run }));
    for _ in 0..50 {
        // Longer than the pause after a failure, so that they wait again when the next one comes.
        let told = tokio::time::timeout(Duration::from_secs(2), end.as_mut()).await;
        assert!(told.is_err(), "nobody knows the end of a run that goes on: {told:?}");
        faults.fail_append(WriteFault::Refused);
        started(&engine).await;
    }
    let reason = Arc::new(ErrorInfo::terminal("cancelled", "enough"));
    let cancel = Command::Cancel { run, request: engine.new_request(), cascade: false, reason };
    engine.ask_until_known(run.slot(), cancel).await.unwrap();
    assert!(matches!(end.await, Ok(Answer::Ended(_))));
}

/// D36: what fails again and again is given again after longer and longer pauses, in which others have their turn, and not for
/// ever. It was given again at once, and the engine had nothing else to do than to open its shards anew.
#[tokio::test(start_paused = true)]
async fn what_keeps_failing_is_given_again_after_pauses() {
    let (engine, faults) = engine();
    (0..100).for_each(|_| faults.fail_append(WriteFault::Refused));
    let (slot, command) = start(&engine);
    let began = tokio::time::Instant::now();
    let told = engine.ask_until_known(slot, command).await;
    assert!(matches!(told, Err(Unanswered::Refused(Refusal::Unknown))), "{told:?}");
    // By a clock that moves only when everybody waits.
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(faults.struck().appends[&WriteFault::Refused], 21);
}

/// Waits for an answer on a thread that knows of no runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// D36: whoever asks need not be inside a runtime, also when there are pauses.
#[test]
fn pauses_need_no_runtime_of_whoever_asks() {
    let (engine, faults) = engine();
    (0..6).for_each(|_| faults.fail_append(WriteFault::Refused));
    block_on(started(&engine));
    assert_eq!(faults.struck().appends[&WriteFault::Refused], 6);
}

/// D36, G1: whoever asked for something when a sync failed was told that the engine takes no more commands, as if nothing had been
/// done; opened anew, the store had done it. They are told that nobody knows. Who comes later is refused, and nothing of that
/// is ever done.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_was_under_way_when_a_sync_failed_is_not_refused() {
    for (fault, is_gone) in [(WriteFault::FatalWritten, true), (WriteFault::FatalLost, false)] {
        let store = MemoryStore::new(1);
        let (faults, again) = (store.faults(), store.clone());
        let engine = Engine::open(Box::new(store), Config::default()).unwrap();
        let (gone, kept) = (cancelled(&engine).await, cancelled(&engine).await);
        faults.fail_append(fault);
        let purged = engine.ask_until_known(gone.slot(), Command::Purge { run: gone }).await;
        assert!(matches!(purged, Err(Unanswered::Refused(Refusal::Unknown))), "{fault:?}: {purged:?}");
        let late = engine.ask_until_known(kept.slot(), Command::Purge { run: kept }).await;
        assert!(matches!(late, Err(Unanswered::Refused(Refusal::Closed { .. }))), "{fault:?}: {late:?}");
        let engine = Engine::open(Box::new(again), Config::default()).unwrap();
        assert_eq!(engine.show(gone).await.is_err(), is_gone, "{fault:?}");
        assert!(engine.show(kept).await.is_ok(), "{fault:?}");
    }
}

/// D36: the same of what may be given again: that the engine takes nothing more says nothing of what was given before.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_was_given_before_the_engine_closed_is_not_refused() {
    let (engine, faults) = engine();
    let run = started(&engine).await;
    faults.fail_append(WriteFault::FatalWritten);
    let sent = Sent { name: "go".into(), payload: Payload::null(), dedup: None, request: engine.new_request() };
    let told = engine.ask_until_known(run.slot(), Command::Signal { run, sent: Box::new(sent) }).await;
    assert!(matches!(told, Err(Unanswered::Refused(Refusal::Unknown))), "{told:?}");
    let (engine, faults) = self::engine();
    faults.fail_append(WriteFault::FatalWritten);
    let told = engine.ask_many_until_known(vec![start(&engine), start(&engine)]).await.unwrap();
    assert!(told.iter().all(|answer| *answer == Answer::Refused(Refusal::Unknown)), "{told:?}");
}
