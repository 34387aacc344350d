//! Stores that move: what leaves arrives, whatever the number of shards, and what is not whole is refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::Cursor;
use std::time::Duration;

use abide::{Admission, Engine, Machine, OnConflict, RunId, Timestamp, await_signal, done};
use abide_kernel::RequestId;
use abide_runtime::Audit;
use abide_runtime::house::{Contents, HouseError, export, import};
use abide_store::memory::{MemoryStore, WriteFault};
use abide_store::{Cluster, Fault, FaultKind, Member, Store};

const PATIENCE: Duration = Duration::from_secs(20);

fn waits() -> Machine<u64> {
    Machine::<u64>::new("waits").step("wait", async |ctx, n: u64| match ctx.signal::<u64>("paid")? {
        Some(paid) => Ok(done(&(n + paid))),
        None => Ok(await_signal("paid", n)),
    })
}

async fn engine(store: &MemoryStore) -> Engine {
    Engine::open("memory:").register(waits()).start_on(Box::new(store.clone())).unwrap()
}

fn request(n: u64) -> RequestId {
    RequestId::new(Timestamp(1_700_000_000_000), u128::from(n) + 1)
}

/// A run whose business key and concurrency key are at home in different slots.
fn keyed(engine: &Engine, n: u64) -> abide::Start {
    engine.client().start("waits", &n).key(&format!("order {n}")).concurrency(&format!("customer {n}"), 1)
}

/// A store in which every second of 16 keyed runs has ended, one was compacted, and one more is gone.
async fn filled(shards: u16) -> (MemoryStore, Vec<RunId>) {
    let store = MemoryStore::new(shards);
    let engine = engine(&store).await;
    let mut runs = Vec::new();
    for n in 0..16 {
        let run = keyed(&engine, n).request(request(n)).await.unwrap();
        if n % 2 == 1 {
            run.signal("paid", &1u64).await.unwrap();
            assert_eq!(run.result::<u64>().await.unwrap(), n + 1);
        }
        runs.push(run.id());
    }
    let gone = engine.client().start("waits", &99u64).await.unwrap();
    gone.cancel("enough").await.unwrap();
    gone.purge().await.unwrap();
    engine.client().run(runs[4]).signal("other", &1u64).await.unwrap();
    engine.client().run(runs[4]).compact().await.unwrap();
    engine.stop(PATIENCE).await;
    (store, runs)
}

fn packed(store: &MemoryStore) -> (Vec<u8>, Contents) {
    let mut file = Vec::new();
    let open = || Ok(Box::new(store.clone()) as Box<dyn Store>);
    let contents = export(open, "mover", Timestamp(7), &mut file).unwrap();
    (file, contents)
}

fn unpacked(file: &[u8], shards: u16) -> MemoryStore {
    let store = MemoryStore::new(shards);
    let open = || Ok(Box::new(store.clone()) as Box<dyn Store>);
    import(open, "mover", &mut Cursor::new(file)).unwrap();
    store
}

fn sound(store: &MemoryStore) {
    let audit = Audit::of(store.reader().unwrap().as_mut()).unwrap();
    assert_eq!(audit.found, 0, "{:?}", audit.problems);
}

/// AB-8: the same rows, facts and runs arrive, by any number of shards and back, and the store is sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_arrives_by_any_number_of_shards() {
    let (old, _) = filled(1).await;
    tokio::task::spawn_blocking(move || {
        let (file, left) = packed(&old);
        assert_eq!(left.runs.values().sum::<u64>(), 16, "{left}");
        assert!(!String::from_utf8(file.clone()).unwrap().contains("purged"), "what is gone stays gone");
        let mut file = file;
        for shards in [7, 64, 1] {
            let store = unpacked(&file, shards);
            sound(&store);
            let (again, arrived) = packed(&store);
            assert_eq!(arrived, left, "{shards} shards");
            file = again;
        }
    })
    .await
    .unwrap();
}

/// AB-8: a key that is taken stays taken where it is at home now, one that is free can be had, and a start that is sent again
/// finds its run; both from one shard to many and from many to one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_held_where_they_are_at_home() {
    for (from, to) in [(1, 64), (64, 3), (64, 1)] {
        let (old, runs) = filled(from).await;
        let new = tokio::task::spawn_blocking(move || unpacked(&packed(&old).0, to)).await.unwrap();
        let engine = engine(&new).await;
        for (n, run) in (0u64..).zip(&runs) {
            let again = keyed(&engine, n).request(request(n)).await.unwrap();
            assert_eq!(again.id(), *run, "{from} to {to}: the same request");
            let other = keyed(&engine, n).on_conflict(OnConflict::Reuse).await.unwrap();
            let expected = if n % 2 == 0 { Admission::Reused } else { Admission::Created };
            assert_eq!((other.admission(), other.id() == *run), (expected, n % 2 == 0), "{from} to {to}, run {n}");
            let open = engine.client().run(other.id());
            open.signal("paid", &1u64).await.unwrap();
            tokio::time::timeout(PATIENCE, open.result::<u64>()).await.unwrap().unwrap();
            // Its key is free now, wherever it was held.
            let next = keyed(&engine, n).on_conflict(OnConflict::Reuse).await.unwrap();
            assert_eq!(next.admission(), Admission::Created, "{from} to {to}, run {n}");
            next.cancel("enough").await.unwrap();
        }
        engine.stop(PATIENCE).await;
        tokio::task::spawn_blocking(move || sound(&new)).await.unwrap();
    }
}

/// AB-8: a file that was cut off or changed anywhere is refused before the store is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_whole_is_refused_before_anything_is_written() {
    let (old, _) = filled(1).await;
    let (file, _) = tokio::task::spawn_blocking(move || packed(&old)).await.unwrap();
    let refused = |text: &[u8], what: &str| {
        let open = || -> Result<Box<dyn Store>, Fault> { panic!("{what}: the store was opened") };
        match import(open, "mover", &mut Cursor::new(text)) {
            Err(HouseError::BadFile { .. }) => {}
            other => panic!("{what}: expected a bad file, found {other:?}"),
        }
    };
    let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    refused(b"", "nothing");
    for count in 1..lines.len() {
        refused(&lines[..count].concat(), &format!("{count} lines"));
        let mut without = lines.clone();
        without.remove(count - 1);
        refused(&without.concat(), &format!("without line {count}"));
        let mut twice = lines.clone();
        twice.insert(count, lines[count]);
        refused(&twice.concat(), &format!("line {count} twice"));
    }
    for place in (0..file.len()).step_by(37) {
        refused(&file[..place], &format!("cut at {place}"));
        let mut changed = file.clone();
        changed[place] ^= 0x01;
        // The head says when it was made and how many shards there were: that changes nothing that is carried.
        if place >= lines[0].len() {
            refused(&changed, &format!("changed at {place}"));
        }
    }
}

/// AB-8: whatever ends an import in the middle leaves a store that no engine opens; one that holds something is not filled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_filled_in_part_is_opened_by_nobody() {
    let (old, _) = filled(1).await;
    let (file, new) = tokio::task::spawn_blocking(move || {
        let (file, _) = packed(&old);
        let again = import(|| Ok(Box::new(old.clone())), "mover", &mut Cursor::new(&file)).unwrap_err();
        assert!(matches!(&again, HouseError::Store(fault) if fault.kind == FaultKind::Unusable), "{again}");
        sound(&old);
        let new = MemoryStore::new(3);
        new.faults().fail_append(WriteFault::UnknownTorn);
        let torn = import(|| Ok(Box::new(new.clone())), "mover", &mut Cursor::new(&file)).unwrap_err();
        assert!(matches!(torn, HouseError::Store(_)), "{torn}");
        (file, new)
    })
    .await
    .unwrap();
    let opened = Engine::open("memory:").register(waits()).start_on(Box::new(new.clone()));
    let refused = opened.err().expect("nobody opens it").to_string();
    assert!(refused.contains("import again"), "{refused}");
    let again = move || import(|| Ok(Box::new(new)), "mover", &mut Cursor::new(&file)).unwrap_err().to_string();
    let refused = tokio::task::spawn_blocking(again).await.unwrap();
    assert!(refused.contains("import again"), "{refused}");
}

/// AB-8: while a node lives, nothing is exported, and it is said which.
#[test]
fn what_is_served_is_not_exported() {
    let mut store = MemoryStore::shared(2, std::sync::Arc::default());
    let member = Member { process: "p".into(), node: "shop-1".into(), address: "".into(), draining: false };
    store.renew(&member, Duration::from_secs(60)).unwrap();
    let refused = export(|| Ok(Box::new(store.clone())), "mover", Timestamp(7), &mut Vec::new()).unwrap_err();
    assert!(matches!(&refused, HouseError::Served { nodes } if nodes == "shop-1"), "{refused}");
    store.leave("p").unwrap();
    export(|| Ok(Box::new(store.clone())), "mover", Timestamp(7), &mut Vec::new()).unwrap();
}
