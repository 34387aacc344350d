//! A disk that is full or fails: what is refused is not there, what was acknowledged is, and the store says which.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod crashed;

use std::fs;
use std::path::Path;
use std::process::Command;

use abide_kernel::shard::{Batch, Flush};
use abide_kernel::{Fact, Row, Seq, ShardEpoch, ShardId};
use abide_store::sqlite::SqliteStore;
use abide_store::{Durability, Fault, FaultKind, Store, Verdict};
use crashed::File;
use tempfile::TempDir;

/// A row with about `bytes` of facts.
fn large(seq: u64, bytes: usize) -> Row {
    let anomaly = abide_kernel::Anomaly { kind: "large".into(), detail: "x".repeat(bytes).into() };
    let mut row = crashed::row(0, seq);
    row.facts = [Fact::Anomaly(Box::new(anomaly))].into_iter().collect();
    row
}

fn batch(epoch: ShardEpoch, row: Row) -> Batch {
    Batch { epoch, rows: vec![row], ..Batch::default() }
}

/// Appends rows until one fails; answers with how many went in and the fault.
fn fill(store: &mut dyn Store, epoch: ShardEpoch, from: u64) -> (u64, Fault) {
    for seq in from.. {
        match store.append(&[batch(epoch, large(seq, 20_000))]) {
            Ok(verdicts) => assert_eq!(verdicts, [Verdict::Durable]),
            Err(fault) => return (seq - 1, fault),
        }
        assert!(seq < 10_000, "the disk must be full by now");
    }
    unreachable!("the loop ends with a fault");
}

fn rows(store: &mut dyn Store) -> u64 {
    let rows = store.scan(ShardId(0), Seq(0), 100_000).unwrap();
    assert!(rows.iter().all(Result::is_ok));
    rows.len() as u64
}

/// SQ-8, SE-25: when there is no room the append is refused, whole, and may be tried again; nothing is lost.
#[test]
fn a_full_file_refuses_and_loses_nothing() {
    let mut file = File::new(1);
    let mut store = file.open();
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    store.limit_pages(100).unwrap();
    let (acknowledged, fault) = fill(&mut store, epoch, 1);
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert!(fault.may_retry());
    assert!(acknowledged > 5);
    assert_eq!(rows(&mut store), acknowledged);
    // A group that does not fit as a whole leaves nothing of itself.
    let next = acknowledged + 1;
    let mut group = batch(epoch, crashed::row(0, next));
    group.rows.push(large(next + 1, 1_000_000));
    assert_eq!(store.append(&[group]).unwrap_err().kind, FaultKind::Refused);
    let flush = Flush { epoch, through: Seq(1), ..Flush::default() };
    assert_eq!(store.flush(&[flush]).unwrap(), [Verdict::Durable], "what fits goes in");
    assert_eq!(rows(&mut store), acknowledged);
    file.crash();
    drop(store);
    let mut store = file.open();
    assert_eq!(rows(&mut store), acknowledged);
    let epoch = store.open_shard(ShardId(0), "b").unwrap().epoch;
    let verdicts = store.append(&[batch(epoch, large(next, 1_000))]).unwrap();
    assert_eq!(verdicts, [Verdict::Durable]);
}

struct Mount(TempDir);

impl Mount {
    /// A small file system of its own; `None` when this user may not mount one.
    fn new() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=3m", "none"]).arg(folder.path()).output();
        mount.is_ok_and(|mount| mount.status.success()).then_some(Self(folder))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

/// SQ-8, SE-25: the same on a real disk without room: refused, nothing lost, and it goes on once there is room.
#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let Some(mount) = Mount::new() else {
        eprintln!("skipped: this user may not mount a tmpfs");
        return;
    };
    let filler = mount.0.path().join("filler");
    fs::write(&filler, vec![1; 1_000_000]).unwrap();
    let path = mount.0.path().join("abide.db");
    let mut store = SqliteStore::open(&path, Durability::Full, 1, "a test").unwrap();
    let epoch = store.open_shard(ShardId(0), "a").unwrap().epoch;
    let (acknowledged, fault) = fill(&mut store, epoch, 1);
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert_eq!(rows(&mut store), acknowledged);
    fs::remove_file(filler).unwrap();
    let (more, fault) = fill(&mut store, epoch, acknowledged + 1);
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert!(more > acknowledged + 10, "{more} after {acknowledged}");
    assert_eq!(rows(&mut store), more);
}

const CHILD: &str = "ABIDE_TEST_STORE";

/// In a process that may not write files beyond a size: a write fails, and what is on the disk is not known.
#[test]
#[ignore = "only as a child of the test after it"]
fn child_whose_writes_fail() {
    let path = std::env::var(CHILD).unwrap();
    let mut store = SqliteStore::open(Path::new(&path), Durability::Full, 1, "child").unwrap();
    let epoch = store.open_shard(ShardId(0), "child").unwrap().epoch;
    let (acknowledged, fault) = fill(&mut store, epoch, 1);
    assert_eq!(fault.kind, FaultKind::Fatal, "{fault}");
    let next = batch(epoch, crashed::row(0, acknowledged + 1));
    let flush = Flush { epoch, through: Seq(1), ..Flush::default() };
    for later in [
        store.append(&[next]).map(|_| ()),
        store.flush(&[flush]).map(|_| ()),
        store.open_shard(ShardId(0), "child").map(|_| ()),
    ] {
        let fault = later.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Fatal, "{fault}");
        assert!(fault.to_string().contains("open it anew"), "{fault}");
    }
    assert_eq!(rows(&mut store), acknowledged, "what is there can be read");
    store.close().unwrap();
    fs::write(format!("{path}.acknowledged"), acknowledged.to_string()).unwrap();
}

/// After a write that failed the store stops for good, also when it closes, and never takes the process with it;
/// opened anew, it has everything that was acknowledged.
#[test]
fn after_a_failed_write_nothing_is_written_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("abide.db");
    let me = std::env::current_exe().unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 800; exec '{}' --exact child_whose_writes_fail --ignored --nocapture",
        me.display()
    );
    let child = Command::new("bash").args(["-c", &script]).env(CHILD, &path).output().unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    let acknowledged = fs::read_to_string(format!("{}.acknowledged", path.display())).unwrap();
    let acknowledged: u64 = acknowledged.parse().unwrap();
    let log = fs::metadata(format!("{}-wal", path.display())).unwrap();
    assert!(log.len() > 0, "closing did not write either");
    let mut store = SqliteStore::open(&path, Durability::Full, 1, "a test").unwrap();
    let found = rows(&mut store);
    assert!(found == acknowledged || found == acknowledged + 1, "{found}");
    let opened = store.open_shard(ShardId(0), "b").unwrap();
    let next = batch(opened.epoch, crashed::row(0, opened.head.0 + 1));
    assert_eq!(store.append(&[next]).unwrap(), [Verdict::Durable]);
}
