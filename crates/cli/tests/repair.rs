//! `store check`, `doctor` and dead letters: what is wrong is found, named, and can be dealt with.

mod shop;

use std::sync::Arc;
use std::time::Duration;

use abide::{Engine, Machine, sleep};
use abide_kernel::envelope::{DeadEnvelope, Envelope, Message};
use abide_kernel::shard::Batch;
use abide_kernel::{ErrorInfo, RequestId, ShardId, Timestamp};
use abide_store::sqlite::SqliteStore;
use abide_store::{Durability, Store};
use serde_json::Value;
use shop::{Shop, eventually};

/// The problems that a check finds, as text.
fn problems(shop: &Shop) -> Vec<String> {
    let checked = shop.abide(&["store", "check"]);
    assert_eq!(checked.code, i32::from(!checked.out.is_empty()), "{checked:?}");
    checked.out.lines().map(str::to_owned).collect()
}

#[test]
fn a_sound_store_has_no_problems() {
    let shop = Shop::new();
    let run = shop.start("greet", &[]);
    shop.abide(&["run", "cancel", &run]).ok();
    let checked = shop.abide(&["store", "check", "--json"]).ok().json();
    assert_eq!((&checked["rows"], &checked["runs"]), (&Value::from(2), &Value::from(1)));
    assert_eq!(problems(&shop), [""; 0]);
}

#[test]
fn a_damaged_row_is_named_with_its_run_and_position() {
    let shop = Shop::new();
    let (sound, hurt) = (shop.start("greet", &[]), shop.start("greet", &["--input", "\"Ada\""]));
    let changed = shop.edit("UPDATE journal SET facts = replace(facts, 'Ada', 'Bob')");
    assert!(changed > 0);
    let found = problems(&shop);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(&format!("{hurt}\t0/2\t")), "{found:?}");
    assert!(found[0].contains("checksum"), "{found:?}");
    let json = shop.abide(&["store", "check", "--json"]).json();
    assert_eq!(json["problems"][0]["position"], 2);
    assert_eq!(json["problems"][0]["run"], hurt);
    // The others go on; the story of this one cannot be told.
    shop.abide(&["run", "history", &sound]).ok();
    let told = shop.abide(&["run", "history", &hurt]);
    assert_eq!(told.code, 1);
    assert!(told.err.contains("code: corrupt"), "{told:?}");
}

#[test]
fn every_kind_of_damage_is_found() {
    for (damage, found) in [
        ("DELETE FROM journal WHERE position = 1", "gap"),
        ("DELETE FROM journal WHERE position = 4", "ends at 3"),
        ("UPDATE run SET checkpoint = replace(checkpoint, 'Ada', 'Bob')", "index row"),
        ("DELETE FROM run WHERE rowid = 1", "expected an index row"),
        ("UPDATE run SET status = 'done'", "index row"),
        ("UPDATE run SET id = zeroblob(16) WHERE rowid = 1", "index row"),
        ("UPDATE run SET workflow = 'other' WHERE rowid = 1", "index row"),
        ("UPDATE shard SET epoch = epoch + 1", "row of shard 0"),
        ("UPDATE shard SET watermark = watermark - 1", "watermark"),
        ("UPDATE setting SET value = 7 WHERE name = 'letters'", "letters"),
        ("UPDATE journal SET prior = 0 WHERE position = 3", "checksum"),
        ("UPDATE journal SET run = zeroblob(15) WHERE position = 2", "16 bytes"),
    ] {
        let shop = Shop::new();
        let run = shop.start("greet", &["--input", "\"Ada\""]);
        shop.start("greet", &["--input", "\"Eve\""]);
        shop.abide(&["run", "signal", &run, "paid"]).ok();
        shop.abide(&["run", "signal", &run, "paid"]).ok();
        assert_eq!(problems(&shop), [""; 0]);
        // What is dropped has no rows.
        assert!(shop.edit(damage) > 0 || damage.starts_with("DROP"), "{damage}");
        let problems = problems(&shop);
        assert!(problems.iter().any(|problem| problem.contains(found)), "{damage}: {problems:?}");
    }
}

fn codes(shop: &Shop) -> Vec<String> {
    let visit = shop.abide(&["doctor", "--grace", "0s", "--json"]).json();
    let findings = visit["findings"].as_array().expect("a list").clone();
    findings.iter().map(|finding| finding["code"].as_str().expect("a word").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_what_is_late_foreign_or_changed() {
    let shop = Shop::new();
    let naps = Machine::<u32>::new("naps").step("nap", async |_, n: u32| Ok(sleep(Duration::from_millis(300), n)));
    let engine = Engine::open(&shop.url()).register(naps).start().await.unwrap();
    let run = engine.client().start("naps", &0).await.unwrap().id().to_string();
    shop.await_status(&run, "sleeping");
    engine.stop(Duration::from_secs(5)).await;
    drop(engine);
    eventually(|| codes(&shop).contains(&"overdue_timer".to_owned()).then_some(()));
    let visit = shop.abide(&["doctor", "--grace", "0s"]);
    assert_eq!(visit.code, 1);
    assert!(visit.out.contains(&run) && visit.out.contains("nobody holds it"), "{visit:?}");
    shop.abide(&["doctor", "--grace", "1h"]).ok();

    let foreign = rusqlite::Connection::open(shop.path()).unwrap();
    // Tables of the user's own may stand in the file; ours are not to be changed.
    foreign.execute_batch("CREATE TABLE mine (a)").unwrap();
    assert!(!codes(&shop).contains(&"schema_drift".to_owned()));
    foreign.execute_batch("CREATE INDEX mine_too ON run (updated_at)").unwrap();
    let found = codes(&shop);
    for code in ["foreign_program", "schema_drift"] {
        assert!(found.contains(&code.to_owned()), "{found:?}");
    }
}

/// A worker that dies with every delivery is stopped by the poison guard; a person decides what becomes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_listed_put_back_and_discarded() {
    let shop = Shop::new();
    let deadly = || Machine::<u32>::new("deadly").step("die", async |_, _| std::future::pending().await);
    let engine = Engine::open(&shop.url()).register(deadly()).start().await.unwrap();
    let run = engine.client().start("deadly", &0).deliveries_max(1).await.unwrap().id().to_string();
    shop.await_status(&run, "executing");
    // The engine goes while the step executes: that delivery has no answer.
    engine.stop(Duration::ZERO).await;
    drop(engine);
    shop.abide(&["store", "migrate"]).ok();
    shop.await_status(&run, "dead_lettered");

    let listed = shop.abide(&["dead-letter", "ls"]).ok().out;
    assert!(listed.starts_with(&format!("{run}\tattempt\tdie\t")), "{listed}");
    assert!(codes(&shop).contains(&"dead_letter".to_owned()));
    shop.abide(&["dead-letter", "requeue", &run]).ok();
    shop.await_status(&run, "runnable");
    assert_eq!(shop.abide(&["dead-letter", "list"]).ok().out, "");

    let engine = Engine::open(&shop.url()).register(deadly()).start().await.unwrap();
    shop.await_status(&run, "executing");
    engine.stop(Duration::ZERO).await;
    drop(engine);
    shop.abide(&["store", "migrate"]).ok();
    shop.abide(&["dead-letter", "discard", &run, "--json"]).ok();
    let shown = shop.abide(&["run", "show", &run, "--json"]).ok().json();
    assert_eq!(shown["status"], "failed");
    assert_eq!(shown["last_error"]["code"], "dead_letter_discarded");
}

/// Sets an envelope aside that would cancel the run, as if its record had been damaged when it came.
fn set_aside(shop: &Shop, run: &str) {
    let reason = Arc::new(ErrorInfo::terminal("cancelled", "by its parent"));
    let request = RequestId::new(Timestamp(1), 1);
    let message = Message::Cancel { run: run.parse().expect("a run id"), request, cascade: false, reason };
    let envelope = Envelope { from: ShardId(0), to: ShardId(0), number: 1, message };
    let mut store = SqliteStore::open(&shop.path(), Durability::Full, 1, "test").expect("the store opens");
    let epoch = store.open_shard(ShardId(0), "node").expect("the shard opens").epoch;
    let dead = vec![DeadEnvelope { envelope, reason: "bad checksum".into() }];
    store.append(&[Batch { epoch, dead, ..Batch::default() }]).expect("it is durable");
    store.close().expect("it closes");
}

/// D32, SE-41, SE-42: a message that was set aside is listed with its reason, put back once, or given up.
#[test]
fn a_message_that_was_set_aside_is_put_back_or_discarded() {
    let shop = Shop::new();
    let (first, second) = (shop.start("greet", &[]), shop.start("greet", &[]));
    set_aside(&shop, &first);
    set_aside(&shop, &second);
    let listed = shop.abide(&["dead-letter", "list"]).ok().out;
    let expected = format!("letter_1\tmessage\tcancel to {first}\tbad checksum\tnode\t20");
    assert!(listed.starts_with(&expected), "{listed}");
    let json = shop.abide(&["dead-letter", "list", "--json"]).ok().json();
    assert_eq!(json["dead_letters"][1]["letter"], "letter_2");
    assert!(codes(&shop).contains(&"dead_message".to_owned()));

    shop.abide(&["dead-letter", "requeue", "letter_1"]).ok();
    assert_eq!(shop.abide(&["run", "show", &first, "--json"]).ok().json()["status"], "cancelled");
    let discarded = shop.abide(&["dead-letter", "discard", "letter_2", "--json"]).ok().json();
    assert_eq!(discarded, serde_json::json!({"letter": "letter_2", "discarded": true}));
    assert_eq!(shop.abide(&["run", "show", &second, "--json"]).ok().json()["status"], "runnable");
    assert_eq!(shop.abide(&["dead-letter", "list"]).ok().out, "");
    for verb in ["requeue", "discard"] {
        let twice = shop.abide(&["dead-letter", verb, "letter_1"]);
        assert_eq!(twice.code, 3, "{twice:?}");
        assert!(twice.err.contains("code: no_letter"), "{twice:?}");
        assert_eq!(shop.abide(&["dead-letter", verb, "letter_x"]).code, 2);
    }
    // A number is not given again.
    set_aside(&shop, &second);
    assert!(shop.abide(&["dead-letter", "list"]).ok().out.starts_with("letter_3\t"));
    shop.abide(&["store", "check"]).ok();
}
