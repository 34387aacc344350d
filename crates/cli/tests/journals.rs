//! Journals that leave the store: exported, and looked over.

mod shop;

use abide::testing::{Journals, Replayed};
use shop::Shop;

/// AB-2: a journal is exported beside a running engine, is whole, and is replayed by a program that has the code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exported_journal_is_checked_and_replayed() {
    let shop = Shop::new();
    let engine = shop.engine().start().await.unwrap();
    let run = engine.client().start("waits", "\u{1b}[31m").await.unwrap();
    let id = run.id().to_string();
    shop.await_status(&id, "awaiting_signal");
    let text = shop.abide(&["run", "export", &id]).ok().out;
    engine.stop(std::time::Duration::from_secs(5)).await;
    assert!(!text.contains('\u{1b}'), "{text}");
    let journals = shop.dir().join("journals");
    std::fs::create_dir(&journals).unwrap();
    std::fs::write(journals.join("waits.jsonl"), &text).unwrap();
    let checked = shop.abide(&["check", "--journals", "journals"]).ok();
    assert!(checked.out.contains("waits v1\tawaiting_signal"), "{checked:?}");
    assert!(checked.err.contains("they need waits v1"), "{checked:?}");
    let none = Journals::new().check_text(&text);
    assert_eq!(none, Replayed::NoCode { workflow: "waits".into(), version: 1 });
}

/// AB-2: a journal that is torn ends the check with 1, and the line is named; so that CI sees it.
#[test]
fn a_torn_journal_is_named() {
    let shop = Shop::new();
    let run = shop.start("greet", &[]);
    let text = shop.abide(&["run", "export", &run]).ok().out;
    std::fs::write(shop.dir().join("torn.jsonl"), text.replacen("\"rev\":1", "\"rev\":", 1)).unwrap();
    let torn = shop.abide(&["check", "--journals", "torn.jsonl"]);
    assert_eq!(torn.code, 1, "{torn:?}");
    assert!(torn.out.contains("line 1: "), "{torn:?}");
    let none = shop.abide(&["check", "--journals", "."]);
    assert_eq!(none.code, 1, "{none:?}");
    std::fs::remove_file(shop.dir().join("torn.jsonl")).unwrap();
    let none = shop.abide(&["check", "--journals", "."]);
    assert_eq!(none.code, 3, "{none:?}");
    assert!(none.err.contains("code: no_journals"), "{none:?}");
}
