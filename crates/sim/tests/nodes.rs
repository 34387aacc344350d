//! Nodes that share a store, turned by hand: who serves what, and what becomes of those who asked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cluster;

use std::sync::atomic::Ordering;

use abide::{Payload, Status};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{OnConflict, RunId, Seq, ShardId, ShardMap, StartSpec, StatusSet, UniqueKey};
use abide_runtime::Letter;
use abide_store::memory::Rot;
use abide_store::{Filter, Page, Store};
use cluster::{Cluster, LEASE_MS, Stay, poll};

/// Starts runs until one lives in a shard of each node.
fn start_everywhere(cluster: &Cluster, by: usize) -> Vec<RunId> {
    let both: Vec<usize> = (0..cluster.nodes.len()).collect();
    let client = cluster.client(by);
    let start = |n: u64| cluster.wait(&both, async { client.start("order", &n).await.unwrap().id() });
    (0..12).map(start).collect()
}

/// SE-33, SE-35: every node serves as many shards as every other, and takes commands for all of them.
#[test]
fn any_node_takes_any_command() {
    let cluster = Cluster::new(2);
    assert_eq!(cluster.serves(), [2, 2]);
    let runs = start_everywhere(&cluster, 0);
    for (n, run) in runs.into_iter().enumerate() {
        let (there, here) = (cluster.client(1).run(run), cluster.client(0).run(run));
        cluster.wait(&[0, 1], async { there.signal("paid", &100u64).await.unwrap() });
        let result: u64 = cluster.wait(&[0, 1], async { here.result().await.unwrap() });
        assert_eq!(result, 100 + n as u64);
    }
}

/// SE-40: a letter is for a process, not for whoever has its address now. A process that took the place of a dead one, and
/// counted its questions anew, used to take what came for the other as the answer to a question of its own.
#[test]
fn a_letter_to_the_process_before_is_not_taken() {
    let cluster = Cluster::new(2);
    let engine = cluster.node(0).engine().clone();
    // Asked until one has to be answered by the other node.
    let (mut asked, asks) = loop {
        let request = engine.new_request();
        let spec = StartSpec::new("order", Payload::null());
        let slot = spec.admission_slot(request);
        let asked = Box::pin(engine.ask(slot, Command::Start { request, spec: Box::new(spec) }));
        cluster.node(0).turn();
        let letters = std::mem::take(&mut *cluster.post.0.lock().unwrap());
        let id = letters.into_iter().find_map(|(from, to, letter)| match letter {
            Letter::Ask { id, .. } => Some((from, to, id)),
            _ => None,
        });
        if let Some(id) = id {
            break (asked, id);
        }
    };
    let (here, there, id) = asks;
    let answer = || Letter::Answer { id, answer: Box::new(Answer::Settled) };
    engine.receive(&there, "the process before", answer());
    assert!(poll(asked.as_mut()).is_none());
    engine.receive(&there, &here.process, answer());
    assert!(matches!(poll(asked.as_mut()), Some(Ok(Answer::Settled))));
}

/// D36, SE-40: what was refused is not done. A question that was answered, and came once more when the node that had answered it
/// had forgotten that it was asked, began a run under a key that was free by then.
#[test]
fn a_question_that_comes_late_is_not_asked_again() {
    let cluster = Cluster::new(2);
    let start = |by: usize, key: &str, nodes: &[usize]| {
        let mut spec = StartSpec::new("order", Payload::encode(&1u64).unwrap());
        spec.key = Some(UniqueKey { key: key.into(), occupied: StatusSet::OPEN, on_conflict: OnConflict::Reject });
        let engine = cluster.node(by).engine().clone();
        let request = engine.new_request();
        let slot = spec.admission_slot(request);
        let asking = engine.ask(slot, Command::Start { request, spec: Box::new(spec) });
        match cluster.wait(nodes, asking).unwrap() {
            Answer::Started(answer) => answer,
            other => panic!("{other:?}"),
        }
    };
    // Until a key is held at the first node.
    let held = (0..).find_map(|n| {
        let key = format!("key-{n}");
        let StartAnswer::Created(holder) = start(0, &key, &[0, 1]) else { panic!("it is free") };
        cluster.post.2.lock().unwrap().clear();
        let told = start(1, &key, &[0, 1]);
        assert!(matches!(told, StartAnswer::Rejected { by, .. } if by == holder), "{told:?}");
        let letters = std::mem::take(&mut *cluster.post.2.lock().unwrap());
        let asked = letters.into_iter().find(|(.., letter)| matches!(letter, Letter::Ask { .. }))?;
        Some((key, holder, asked))
    });
    let (key, holder, (from, to, letter)) = held.unwrap();
    let holder = cluster.client(0).run(holder);
    cluster.wait(&[0, 1], async { holder.signal("paid", &1u64).await.unwrap() });
    cluster.wait(&[0, 1], async { holder.result::<u64>().await.unwrap() });
    // The second node is gone for so long that nobody remembers what it asked.
    cluster.pass_for(25 * LEASE_MS, &[0]);
    cluster.node(0).engine().receive(&from, &to.process, letter);
    cluster.settle_some(&[0]);
    let told = start(0, &key, &[0]);
    assert!(matches!(told, StartAnswer::Created(_)), "the key is free, and {told:?}");
}

/// SE-35: a node that leaves hands its shards over at once: no time passes.
#[test]
fn a_node_that_leaves_hands_over_at_once() {
    let mut cluster = Cluster::new(2);
    let runs = start_everywhere(&cluster, 0);
    let before = cluster.clock.load(Ordering::SeqCst);
    cluster.nodes[0].take().unwrap().leave();
    cluster.settle();
    assert_eq!(cluster.serves(), [0, 4]);
    assert_eq!(cluster.clock.load(Ordering::SeqCst), before);
    for run in runs {
        let run = cluster.client(1).run(run);
        cluster.wait(&[1], async { run.signal("paid", &1u64).await.unwrap() });
        cluster.wait(&[1], async { run.result::<u64>().await.unwrap() });
    }
}

/// SE-33: a node that needs longer to open its share than its lease lasts keeps the lease meanwhile, and serves in the end.
/// It used to lose the lease halfway, and so did whoever took the shards from it.
#[test]
fn a_node_that_opens_shards_slowly_renews_its_lease_in_between() {
    let mut cluster = Cluster::new(0);
    cluster.store.faults().slow_opening(LEASE_MS * 2 / 5);
    cluster.add(Stay::Long);
    cluster.settle();
    assert_eq!(cluster.serves(), [4]);
    let expired = cluster.store.faults().stale_writes();
    assert_eq!(expired, 0);
    cluster.store.faults().slow_opening(0);
    let runs = start_everywhere(&cluster, 0);
    let first = cluster.client(0).run(runs[0]);
    cluster.wait(&[0], async { first.signal("paid", &1u64).await.unwrap() });
    cluster.wait(&[0], async { first.result::<u64>().await.unwrap() });
}

/// SE-35: a node that is asked to drain hands its shards over when it renews its lease, takes none, and goes on taking
/// commands; asked to, it takes its share again.
#[test]
fn a_node_that_drains_gives_its_shards_to_the_others() {
    let mut cluster = Cluster::new(2);
    let runs = start_everywhere(&cluster, 0);
    let process = cluster.node(0).engine().process().clone();
    let drain = |cluster: &mut Cluster, draining| {
        let known = cluster.store.cluster().unwrap().drain(&process, draining).unwrap();
        assert!(known, "it lives");
        cluster.pass_for(LEASE_MS, &[0, 1]);
    };
    drain(&mut cluster, true);
    assert_eq!(cluster.serves(), [0, 4]);
    for run in &runs[..6] {
        let run = cluster.client(0).run(*run);
        cluster.wait(&[0, 1], async { run.signal("paid", &1u64).await.unwrap() });
        cluster.wait(&[0, 1], async { run.result::<u64>().await.unwrap() });
    }
    drain(&mut cluster, false);
    assert_eq!(cluster.serves(), [2, 2]);
    assert!(!cluster.store.cluster().unwrap().drain("nobody", true).unwrap());
}

/// SE-35: one who comes only to say something takes nothing from those who serve, and serves only if nobody else does.
#[test]
fn a_guest_serves_only_what_nobody_else_would() {
    let mut cluster = Cluster::new(1);
    let runs = start_everywhere(&cluster, 0);
    cluster.add(Stay::Short);
    cluster.settle();
    assert_eq!(cluster.serves(), [4, 0]);
    let run = cluster.client(1).run(runs[0]);
    cluster.wait(&[0, 1], async { run.signal("paid", &1u64).await.unwrap() });
    cluster.nodes[0].take().unwrap().leave();
    cluster.pass_for(LEASE_MS, &[1]);
    assert_eq!(cluster.serves(), [0, 4], "nobody else is there");
    let run = cluster.client(1).run(runs[1]);
    cluster.wait(&[1], async { run.signal("paid", &1u64).await.unwrap() });
    cluster.add(Stay::Long);
    cluster.pass_for(LEASE_MS, &[1, 2]);
    assert_eq!(cluster.serves(), [0, 0, 4]);
    cluster.add(Stay::Short);
    cluster.settle();
    assert_eq!(cluster.serves(), [0, 0, 4, 0]);
}

/// SE-36, SE-37: what a dead node served is served by others when its lease has ended, and not before.
#[test]
fn a_dead_nodes_shards_move_when_its_lease_ends() {
    let mut cluster = Cluster::new(2);
    let runs = start_everywhere(&cluster, 0);
    let dead = cluster.nodes[0].take().unwrap();
    dead.engine().crash();
    cluster.pass_for(LEASE_MS / 2, &[1]);
    assert_eq!(cluster.serves(), [0, 2]);
    cluster.pass_for(LEASE_MS, &[1]);
    assert_eq!(cluster.serves(), [0, 4]);
    for run in runs {
        let run = cluster.client(1).run(run);
        cluster.wait(&[1], async { run.signal("paid", &1u64).await.unwrap() });
        cluster.wait(&[1], async { run.result::<u64>().await.unwrap() });
    }
}

/// SE-36: whoever lives looks when the lease of one that says nothing ends, and not only when its own is to be renewed.
#[test]
fn a_dead_nodes_shards_are_taken_when_its_lease_ends() {
    let mut cluster = Cluster::new(2);
    let dead = cluster.nodes[0].take().unwrap();
    dead.engine().crash();
    let begun = cluster.clock.load(Ordering::SeqCst);
    while cluster.serves() != [0, 4] {
        // Of which renewals every third of a lease fall shortly before the end, and long after it.
        cluster.clock.fetch_add(11, Ordering::SeqCst);
        cluster.settle_some(&[1]);
    }
    let after = cluster.clock.load(Ordering::SeqCst) - begun;
    assert!((LEASE_MS..LEASE_MS * 11 / 10).contains(&after), "{after}");
}

/// G6: a node that was paused past its lease answers from nothing it has in memory, and writes nothing.
#[test]
fn a_node_past_its_lease_neither_answers_nor_writes() {
    let cluster = Cluster::new(2);
    let runs = start_stuck(&cluster);
    // Node 0 does nothing while node 1 takes its shards and ends every run.
    cluster.pass_for(2 * LEASE_MS, &[1]);
    for run in &runs {
        let run = cluster.client(1).run(*run);
        cluster.wait(&[1], async { run.cancel("enough").await.unwrap() });
    }
    let before = cluster.store.faults().stale_writes();
    for run in &runs {
        // While it cannot reach the store it knows only that its lease is over: it does not show what it remembers.
        let run = cluster.client(0).run(*run);
        let mut shown = Box::pin(async move { run.show().await.unwrap() });
        cluster.store.faults().fail_reads(u64::MAX);
        for _ in 0..10 {
            assert!(poll(shown.as_mut()).is_none(), "it answered from what it remembers");
            cluster.node(0).turn();
        }
        cluster.store.faults().fail_reads(0);
        assert_eq!(cluster.wait(&[0, 1], shown).status(), Status::Cancelled);
    }
    assert_eq!(cluster.store.faults().stale_writes(), before, "it noticed before it wrote");
}

/// Starts runs whose steps never return.
fn start_stuck(cluster: &Cluster) -> Vec<RunId> {
    let client = cluster.client(0);
    let start = |n: u64| cluster.wait(&[0, 1], async { client.start("stuck", &n).await.unwrap().id() });
    let runs = (0..8).map(start).collect();
    cluster.settle();
    runs
}

/// D37: the claim of a node that died lasts for one more lease from when its shard was taken, because its step may still
/// execute.
#[test]
fn a_claim_of_a_dead_node_lasts_another_lease() {
    let mut cluster = Cluster::new(2);
    let runs = start_stuck(&cluster);
    let dead = cluster.nodes[0].take().unwrap();
    dead.engine().crash();
    cluster.pass_for(LEASE_MS + LEASE_MS / 5, &[1]);
    assert_eq!(cluster.serves(), [0, 4]);
    let reclaims = |cluster: &Cluster| -> u32 {
        let reclaims = runs.iter().map(|run| {
            let run = cluster.client(1).run(*run);
            cluster.wait(&[1], async move { run.show().await.unwrap() }).cursors[0].reclaims
        });
        reclaims.sum()
    };
    // Twelve seconds after the claims of 30 s were made, and again after 36 s: the shards were taken some ten seconds after
    // the death, so that the claims end 40 s after they were made, and not at 30 s as the dead node had it.
    assert_eq!(reclaims(&cluster), 0);
    cluster.pass_for(24_000, &[1]);
    assert_eq!(reclaims(&cluster), 0, "the claims ended with the lease that the dead node had given them");
    cluster.pass_for(16_000, &[1]);
    assert!(reclaims(&cluster) > 0);
}

/// A shard that a node serves, and in which one of the runs lives.
fn shard_of(cluster: &Cluster, place: usize, runs: &[RunId]) -> ShardId {
    let process = cluster.node(place).engine().process().clone();
    let seen = cluster.store.reader().unwrap().membership().unwrap().unwrap();
    let mut homes = runs.iter().map(|run| ShardMap::new(4).home(run.slot()));
    homes.find(|home| seen.shards[usize::from(home.0)].owner.as_ref() == Some(&process)).unwrap()
}

/// Nobody closed, and everybody serves what is whole: runs elsewhere end, of those in the damaged shard each node says what is
/// wrong, and lists leave nothing out.
fn goes_on_without(cluster: &Cluster, places: &[usize], damaged: ShardId, runs: &[RunId]) {
    assert!(cluster.nodes.iter().flatten().all(|node| node.closed().is_none()));
    assert_eq!(cluster.serves().iter().sum::<usize>(), 3);
    let is_whole = |run: &RunId| ShardMap::new(4).home(run.slot()) != damaged;
    assert!(runs.iter().any(|run| !is_whole(run)));
    for (n, run) in runs.iter().enumerate() {
        let by = places[n % places.len()];
        let handle = cluster.client(by).run(*run);
        let said = cluster.wait(places, async { handle.signal("paid", &1u64).await });
        if is_whole(run) {
            said.unwrap();
            cluster.wait(places, async { handle.result::<u64>().await.unwrap() });
        } else {
            assert!(said.unwrap_err().to_string().contains("damaged"));
            let explained = cluster.wait(places, async { handle.explain().await });
            assert!(explained.unwrap_err().to_string().contains("damaged"));
        }
        let listing = async { cluster.client(by).list(&Filter::default(), &Page { most: 100, before: None }).await };
        let listed = cluster.wait(places, listing).unwrap();
        assert!(runs.iter().filter(|run| is_whole(run)).all(|run| listed.iter().any(|listed| listed.run == *run)));
    }
}

/// G10: a shard whose row is damaged is set aside and reported, and the others go on. It used to close the node that took it
/// with everything else that it served, then the next node, and so on.
#[test]
fn a_damaged_shard_is_set_aside_and_the_others_go_on() {
    let mut cluster = Cluster::new(2);
    let runs = start_everywhere(&cluster, 0);
    let damaged = shard_of(&cluster, 0, &runs);
    cluster.store.faults().rot(Rot::Shard(damaged), 0);
    cluster.nodes[0].take().unwrap().engine().crash();
    cluster.pass_for(2 * LEASE_MS, &[1]);
    assert_eq!((cluster.serves(), cluster.node(1).closed()), (vec![0, 3], None));
    // Whoever comes meets the same.
    cluster.add(Stay::Long);
    cluster.pass_for(2 * LEASE_MS, &[1, 2]);
    goes_on_without(&cluster, &[1, 2], damaged, &runs);
}

/// G10: the same of an envelope, which its receiver meets while it serves. The shard is released, and whoever takes it next
/// sets it aside too.
#[test]
fn a_shard_whose_mail_is_damaged_is_set_aside_and_the_others_go_on() {
    let cluster = Cluster::new(2);
    let runs = start_everywhere(&cluster, 0);
    let damaged = shard_of(&cluster, 1, &runs);
    cluster.store.faults().rot(Rot::Mail(damaged), 0);
    for n in 0..12u64 {
        // Those that would live there are refused.
        let client = cluster.client(0);
        let _ = cluster.wait(&[0, 1], async { client.start("family", &n).await });
    }
    cluster.pass_for(2 * LEASE_MS, &[0, 1]);
    goes_on_without(&cluster, &[0, 1], damaged, &runs);
    let seen = cluster.store.reader().unwrap().membership().unwrap().unwrap();
    assert_eq!(seen.shards[usize::from(damaged.0)].owner, None, "nobody serves it, and the store says so");
}

/// G10: a run whose index row is damaged, and whose journal begins anew behind the watermark, is as the journal says. It used to
/// be taken as the compacted row left it, without the rows after that one: what had been acknowledged since was gone.
#[test]
fn a_damaged_index_row_takes_nothing_from_a_journal_that_begins_anew() {
    let mut cluster = Cluster::new(1);
    let runs: Vec<_> = start_everywhere(&cluster, 0);
    let home = |run: RunId| ShardMap::new(4).home(run.slot());
    let at_home: Vec<RunId> = runs.iter().copied().filter(|run| home(*run) == home(runs[0])).collect();
    let [damaged, run, ..] = at_home[..] else { panic!("two of twelve runs are in one shard of four") };
    // Behind the first row of a damaged run index rows count for nothing, so that the log is folded from there for good.
    let rows = cluster.store.reader().unwrap().scan(home(run), Seq(0), 100).unwrap();
    let row = rows.into_iter().map(Result::unwrap).find(|row| row.run == damaged).unwrap();
    cluster.store.faults().lose_index();
    cluster.store.faults().rot(Rot::Row(home(run), row.seq), 7);
    restart(&mut cluster, 0, 1);
    let handle = cluster.client(1).run(run);
    cluster.wait(&[1], async { handle.compact().await.unwrap() });
    cluster.wait(&[1], async { handle.signal("later", &7u64).await.unwrap() });
    cluster.pass_for(2 * LEASE_MS, &[1]);
    let kept = cluster.store.reader().unwrap().read_run(run).unwrap().expect("its index row was written");
    assert!(kept.run.inbox.iter().any(|signal| &*signal.name == "later"), "and has the signal");
    cluster.store.faults().rot(Rot::Checkpoint(run), 7);
    restart(&mut cluster, 1, 2);
    let shown = cluster.wait(&[2], async { cluster.client(2).run(run).show().await.unwrap() });
    assert!(shown.inbox.iter().any(|signal| &*signal.name == "later"), "found {shown:?}");
    let told = cluster.wait(&[2], async { cluster.client(2).run(damaged).show().await });
    assert!(told.unwrap_err().to_string().contains("damaged"));
}

/// A node dies, and another comes in its place and serves its shards.
fn restart(cluster: &mut Cluster, dies: usize, comes: usize) {
    cluster.nodes[dies].take().unwrap().engine().crash();
    cluster.add(Stay::Long);
    cluster.pass_for(2 * LEASE_MS, &[comes]);
    assert_eq!(cluster.serves()[comes], 4);
}

/// SE-40: letters between nodes are hints. Without any of them what one shard sends to another still arrives, by the
/// store, when its receiver renews its lease.
#[test]
fn nodes_that_cannot_reach_each_other_go_on_by_the_store() {
    let cluster = Cluster::new(2);
    cluster.post.1.store(true, Ordering::SeqCst);
    let client = cluster.client(0);
    let here = (0..50u64).find_map(|n| {
        let mut start = Box::pin(async { client.start("family", &n).await.unwrap().id() });
        assert!(poll(start.as_mut()).is_none());
        cluster.settle();
        poll(start.as_mut())
    });
    let family = client.run(here.unwrap());
    cluster.pass_for(3 * LEASE_MS, &[0, 1]);
    let ended = cluster.wait(&[0, 1], family.result::<usize>());
    assert_eq!(ended.unwrap(), 8);
}
