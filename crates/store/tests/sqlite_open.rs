//! Opening a SQLite store: what is refused, with what words, and that nothing is touched then.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod crashed;

use std::fs;
use std::path::Path;
use std::process::Command;

use abide_kernel::shard::Batch;
use abide_kernel::transition::claim::Definition;
use abide_kernel::{Fingerprint, Seq, ShardEpoch, ShardId};
use abide_store::sqlite::{SqliteStore, open_read_only};
use abide_store::{Durability, Fault, FaultKind, Serving, Store, Verdict};
use crashed::{File, edit};
use rusqlite::Connection;
use tempfile::TempDir;

fn open(path: &Path) -> Result<SqliteStore, Fault> {
    SqliteStore::open(path, Durability::Full, 2, "a test")
}

fn refused(path: &Path, words: &str) {
    for fault in [open(path).expect_err("it must not open"), open_read_only(path).expect_err("it must not open")] {
        assert_eq!(fault.kind, FaultKind::Unusable, "{fault}");
        assert!(fault.to_string().contains(words), "{fault}");
        assert!(!fault.may_retry());
    }
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// AB-8: a file that was filled in part is opened by nobody.
#[test]
fn a_file_that_was_filled_in_part_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("new.db");
    let mut store = open(&path).unwrap();
    store.import().begin_import().unwrap();
    drop(store);
    let fault = open(&path).expect_err("it must not open");
    assert_eq!(fault.kind, FaultKind::Importing, "{fault}");
    assert!(fault.message.contains("delete") && fault.message.contains("new.db-wal"), "{fault}");
}

/// SQ-14: a path that cannot be a store is refused before anything is made there.
#[test]
fn a_path_that_is_no_file_is_refused() {
    let folder = TempDir::new().unwrap();
    refused(folder.path(), "is a directory; expected the path of a file");
    refused(&folder.path().join("a/b.db"), "does not exist; make it first");
    let text = folder.path().join("notes.txt");
    fs::write(&text, "remember the milk, and more than sixteen bytes of it").unwrap();
    refused(&text, "is not an Abide store");
    fs::write(&text, "short").unwrap();
    refused(&text, "is not an Abide store");
    assert_eq!(names(&folder), ["notes.txt"]);
    let fault = open_read_only(&folder.path().join("new.db")).unwrap_err();
    assert!(fault.to_string().contains("there is no store at"), "{fault}");
    for shards in [0, 5_000] {
        let fault = SqliteStore::open(&folder.path().join("new.db"), Durability::Full, shards, "t");
        assert_eq!(fault.unwrap_err().kind, FaultKind::Unusable);
    }
    assert_eq!(names(&folder), ["notes.txt"]);
}

/// SQ-14: someone else's database is recognised before even a setting of it is changed.
#[test]
fn another_database_is_left_as_it_was() {
    let folder = TempDir::new().unwrap();
    for (name, version) in [("plain.db", 0), ("versioned.db", 1)] {
        let path = folder.path().join(name);
        edit(&path, &format!("CREATE TABLE t (x); PRAGMA user_version = {version}"));
        let before = fs::read(&path).unwrap();
        refused(&path, "is a SQLite database but not an Abide store");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

/// A store of a newer release is not touched, and the message says what to do.
#[test]
fn a_newer_format_is_refused() {
    let file = File::new(2);
    drop(file.open());
    edit(&file.path(), "PRAGMA user_version = 99");
    refused(&file.path(), "has format 99");
    refused(&file.path(), "use the newer release");
}

/// An empty file becomes a store; whoever only reads is told that it is none yet.
#[test]
fn an_empty_file_becomes_a_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("empty.db");
    fs::write(&path, "").unwrap();
    let fault = open_read_only(&path).unwrap_err();
    assert!(fault.to_string().contains("is empty"), "{fault}");
    let mut store = open(&path).unwrap();
    assert_eq!(store.map().count(), 2);
    store.close().unwrap();
    drop(store);
    let store = SqliteStore::open(&path, Durability::Relaxed, 7, "a test").unwrap();
    assert_eq!(store.map().count(), 2, "the number of shards is fixed when a store is made");
    let sqlite = Connection::open(&path).unwrap();
    let id: u32 = sqlite.query_row("PRAGMA application_id", [], |row| row.get(0)).unwrap();
    assert_eq!(&id.to_be_bytes(), b"Abid");
}

/// A damaged setting is a fault, not a panic.
#[test]
fn a_damaged_number_of_shards_is_reported() {
    for value in ["0", "70000", "many"] {
        let file = File::new(2);
        drop(file.open());
        edit(&file.path(), &format!("UPDATE setting SET value = '{value}'"));
        let fault = open(&file.path()).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Corrupt { .. }), "{fault}");
        assert!(fault.to_string().contains(value), "{fault}");
    }
}

/// One engine at a time: the second is told who has the store.
#[test]
fn a_store_in_use_names_its_holder() {
    let file = File::new(2);
    assert_eq!(SqliteStore::holder(&file.path()), None);
    let store = file.open();
    let fault = open(&file.path()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unusable);
    let me = format!("in use by process {} (a test)", std::process::id());
    assert!(fault.to_string().contains(&me), "{fault}");
    let holder = SqliteStore::holder(&file.path()).unwrap();
    assert_eq!((holder.pid, &*holder.name), (std::process::id(), "a test"));
    assert!(open_read_only(&file.path()).is_ok(), "reading beside it is what readers are for");
    drop(store);
    assert_eq!(SqliteStore::holder(&file.path()), None);
    file.open();
}

/// AB-1: a holder says what it can execute, in place of what it said before, and the next one begins with nothing.
#[test]
fn a_holder_says_what_it_serves() {
    let file = File::new(1);
    let mut store = file.open();
    let serving = || SqliteStore::holder(&file.path()).unwrap().serving;
    assert_eq!(serving(), None);
    let definition = Definition {
        workflow: "order".into(),
        version: 2,
        fingerprint: Fingerprint(0xfeed_f00d_dead_beef),
        first_step: "pay".into(),
    };
    let much = Serving { queues: vec!["mail".into(), "a \"name\"\n".into()], definitions: vec![definition; 9] };
    for said in [much, Serving { queues: vec!["default".into()], definitions: Vec::new() }] {
        store.announce(&said).unwrap();
        assert_eq!(serving(), Some(said));
    }
    store.close().unwrap();
    assert_eq!(SqliteStore::holder(&file.path()), None);
    let _store = file.open();
    assert_eq!(serving(), None);
}

/// SQ-13: the fence is checked in the file, in the transaction that writes: when someone removes the lock and opens
/// the store, the one who had it before writes nothing more.
#[test]
fn without_its_lock_the_old_owner_still_writes_nothing() {
    let file = File::new(2);
    let mut old = file.open();
    let epoch = old.open_shard(ShardId(0), "old").unwrap().epoch;
    let other = old.open_shard(ShardId(1), "old").unwrap().epoch;
    fs::remove_file(format!("{}.lock", file.path().display())).unwrap();
    let mut new = file.open();
    new.open_shard(ShardId(0), "new").unwrap();
    let batch = |shard, epoch: ShardEpoch| Batch {
        shard: ShardId(shard),
        epoch,
        rows: vec![crashed::row(shard, 1)],
        ..Batch::default()
    };
    let verdicts = old.append(&[batch(0, epoch), batch(1, other)]).unwrap();
    assert_eq!(verdicts, [Verdict::Stale, Verdict::Durable]);
    assert!(new.scan(ShardId(0), Seq(0), 10).unwrap().is_empty());
    assert_eq!(new.scan(ShardId(1), Seq(0), 10).unwrap().len(), 1);
    let flush = abide_kernel::shard::Flush { epoch, through: Seq(1), ..Default::default() };
    assert_eq!(old.flush(&[flush]).unwrap(), [Verdict::Stale]);
}

/// A file that cannot be written is refused with what to do. Root may write any file but an immutable one.
#[test]
fn a_file_that_cannot_be_written_is_refused() {
    let file = File::new(2);
    drop(file.open());
    let mut permissions = fs::metadata(file.path()).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(file.path(), permissions).unwrap();
    let chattr = |flag: &str| {
        let done = Command::new("chattr").arg(flag).arg(file.path()).output();
        done.is_ok_and(|done| done.status.success())
    };
    chattr("+i");
    if fs::OpenOptions::new().write(true).open(file.path()).is_ok() {
        eprintln!("skipped: this user can write a read-only file and may not make it immutable");
        return;
    }
    let answer = open(&file.path());
    chattr("-i");
    let fault = answer.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unusable);
    assert!(fault.to_string().contains("write permission"), "{fault}");
}

/// After an unclean stop the log is brought into the file, synced, and emptied before the first acknowledgement: what the
/// killed process wrote and did not sync still looks durable.
#[test]
fn after_an_unclean_stop_the_log_is_empty_before_anything_is_acknowledged() {
    let mut file = File::new(2);
    let mut store = file.open();
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    let batch = Batch { epoch, rows: vec![crashed::row(0, 1)], ..Batch::default() };
    assert_eq!(store.append(&[batch]).unwrap(), [Verdict::Durable]);
    file.crash();
    drop(store);
    let log = || fs::metadata(format!("{}-wal", file.path().display())).unwrap().len();
    assert!(log() > 0, "the killed process has left a log");
    let mut store = file.open();
    assert_eq!(log(), 0);
    assert_eq!(store.open_shard(ShardId(0), "b").unwrap().head, Seq(1));
}

/// After an unclean stop the log must be brought into the file before anything is built on it. A program that pins
/// the log prevents that, and is named as the reason; when it is gone the store opens.
#[test]
fn a_log_that_cannot_be_settled_is_refused() {
    let mut file = File::new(2);
    let mut store = file.open();
    store.open_shard(ShardId(0), "a").unwrap();
    file.crash();
    drop(store);
    let reader = Connection::open(file.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM shard").unwrap();
    let fault = open(&file.path()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Refused);
    assert!(fault.to_string().contains("another program"), "{fault}");
    reader.execute_batch("COMMIT").unwrap();
    let mut store = file.open();
    assert_eq!(store.open_shard(ShardId(0), "b").unwrap().epoch, ShardEpoch(2));
}
