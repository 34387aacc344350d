//! Dead letters through the client: what was set aside is seen, and settled once.

use std::sync::Arc;
use std::time::Duration;

use abide::{ClientError, Engine, LetterId, Machine, Refusal, RunId, Status, await_signal};
use abide_kernel::envelope::{DeadEnvelope, Envelope, Message};
use abide_kernel::shard::Batch;
use abide_kernel::{ErrorInfo, RequestId, ShardId, Timestamp};
use abide_store::sqlite::SqliteStore;
use abide_store::{Durability, Store};

fn waits() -> Machine<u32> {
    Machine::<u32>::new("waits").step("wait", async |_, n: u32| Ok(await_signal("go", n)))
}

/// Sets envelopes aside that would cancel the run, as if its record had been damaged when they came.
fn set_aside(path: &std::path::Path, run: RunId, letters: u64) {
    let mut store = SqliteStore::open(path, Durability::default(), 1, "test").expect("the store opens");
    let epoch = store.open_shard(ShardId(0), "node").expect("the shard opens").epoch;
    let dead = |number| {
        let reason = Arc::new(ErrorInfo::terminal("cancelled", "by its parent"));
        let request = RequestId::new(Timestamp(1), 1);
        let message = Message::Cancel { run, request, cascade: false, reason };
        let envelope = Envelope { from: ShardId(0), to: ShardId(0), number, message };
        DeadEnvelope { envelope, reason: "bad checksum".into() }
    };
    let consumed = vec![(ShardId(0), letters)];
    let batch = Batch { epoch, consumed, dead: (1..=letters).map(dead).collect(), ..Batch::default() };
    store.append(&[batch]).expect("it is durable");
    store.close().expect("it closes");
}

fn is_no_letter(answer: &Result<(), ClientError>, letter: LetterId) -> bool {
    matches!(answer, Err(ClientError::Refused(Refusal::NoLetter { letter: found })) if *found == letter)
}

/// D32, SE-42: envelope, reason, node and time are kept; of two who settle one letter one is refused; what is put back
/// is obeyed, what is discarded is not, and a reopened store knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_settled_by_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letters.db");
    let url = format!("sqlite:{}", path.display());
    let engine = Engine::open(&url).register(waits()).start().await.unwrap();
    let run = engine.client().start("waits", &1u32).await.unwrap();
    while run.show().await.unwrap().status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
    let id = run.id();
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);
    set_aside(&path, id, 2);

    let engine = Engine::open(&url).register(waits()).start().await.unwrap();
    let client = engine.client();
    let letters = client.dead_letters().await.unwrap();
    let [first, second] = &letters[..] else { panic!("two letters, found {letters:?}") };
    assert_eq!((first.node.as_str(), &*first.dead.reason), ("node", "bad checksum"));
    assert_eq!(first.dead.envelope.message.target(), Some(id));
    client.discard(first.id).await.unwrap();
    assert_eq!(client.run(id).show().await.unwrap().status(), Status::AwaitingSignal);
    assert!(is_no_letter(&client.requeue(first.id).await, first.id));
    let (one, two) = tokio::join!(client.requeue(second.id), client.requeue(second.id));
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    assert!(is_no_letter(&one.and(two), second.id));
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);

    let engine = Engine::open(&url).register(waits()).start().await.unwrap();
    assert!(engine.client().dead_letters().await.unwrap().is_empty());
    assert_eq!(engine.client().run(id).show().await.unwrap().status(), Status::Cancelled);
    engine.stop(Duration::from_secs(5)).await;
}
