//! What a server keeps: replaced, removed, read in pages, and there after the process died.

use super::Fixture;
use crate::{Kept, Store};

fn kept(kind: &str, id: &str, body: &str) -> Kept {
    Kept { kind: kind.into(), id: id.into(), body: body.into() }
}

fn read(store: &dyn Store, before: Option<&str>, most: usize) -> Vec<String> {
    let read = store.reader().expect("a reader").kept("queue", before, most).expect("what was kept");
    read.into_iter().map(|kept| format!("{} {}", kept.id, kept.body)).collect()
}

/// AB-16
pub fn what_a_server_wrote_down_is_kept_until_it_is_removed(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    assert_eq!(read(&*store, None, 9), [""; 0]);
    store
        .keep(&[kept("queue", "a", "1"), kept("queue", "b", "2"), kept("audit", "a", "3")])
        .expect("the store is well");
    store.keep(&[kept("queue", "a", "{\"x\":\"\\u0000\\n\"}"), kept("queue", "c", "4")]).expect("the store is well");
    let mut store = fixture.reopen(store);
    assert_eq!(read(&*store, None, 9), ["c 4", "b 2", "a {\"x\":\"\\u0000\\n\"}"]);
    assert_eq!(read(&*store, None, 1), ["c 4"]);
    assert_eq!(read(&*store, Some("c"), 1), ["b 2"]);
    assert_eq!(read(&*store, Some("a"), 1), [""; 0]);
    let mut reader = store.reader().expect("a reader");
    assert_eq!(reader.kept_as("audit", "a").expect("an answer"), Some(kept("audit", "a", "3")));
    assert_eq!(reader.kept_as("audit", "b").expect("an answer"), None);
    drop(reader);
    assert!(store.forget("queue", "b").expect("the store is well"));
    assert!(!store.forget("queue", "b").expect("the store is well"));
    assert_eq!(read(&*store, None, 9).len(), 2);
    // Of this kind alone, the lowest first, so many and no more.
    store.keep(&[kept("queue", "b", "5"), kept("audit", "b", "6")]).expect("the store is well");
    assert_eq!(store.forget_below("queue", "c", 1).expect("the store is well"), 1);
    assert_eq!(read(&*store, None, 9), ["c 4", "b 5"]);
    assert_eq!(store.forget_below("queue", "c", 9).expect("the store is well"), 1);
    assert_eq!(store.forget_below("queue", "c", 9).expect("the store is well"), 0);
    assert_eq!(read(&*store, None, 9), ["c 4"]);
    let audit = store.reader().expect("a reader").kept("audit", None, 9).expect("what was kept");
    assert_eq!(audit.len(), 2);
}
