//! Workers outside of the nodes: whichever node they ask, they are given what any of them has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cluster;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{Claimant, Consume, Fingerprint, Outcome, Payload, RunId, StartSpec, Status, TokenHash};
use abide_runtime::{Claiming, Letter, Offer, QueueRule};
use cluster::{Cluster, LEASE_MS, poll};

const ALL: [usize; 2] = [0, 1];
const TOKEN: TokenHash = TokenHash(7);

fn offer(most: usize) -> Offer {
    let definition =
        Definition { workflow: "parcel".into(), version: 1, fingerprint: Fingerprint(1), first_step: "pack".into() };
    Offer {
        namespace: Some("default".into()),
        queues: vec!["default".into()],
        definitions: vec![definition],
        by: Claimant::new("hand".into(), TOKEN, 30_000, None),
        most,
        waits: true,
    }
}

/// Starts runs that no node has the code of, all over the shards.
fn start(cluster: &Cluster, count: usize) -> BTreeSet<RunId> {
    let engine = cluster.node(0).engine().clone();
    let one = |_| {
        let request = engine.new_request();
        let spec = StartSpec::new("parcel", Payload::null());
        let asked = engine.ask(spec.admission_slot(request), Command::Start { request, spec: Box::new(spec) });
        match cluster.wait(&ALL, asked).unwrap() {
            Answer::Started(StartAnswer::Created(run)) => run,
            other => panic!("expected a run, found {other:?}"),
        }
    };
    (0..count).map(one).collect()
}

fn claim(cluster: &Cluster, at: usize, most: usize) -> Claiming {
    cluster.node(at).engine().claim(&offer(most)).unwrap()
}

/// What one who asks at a node is given.
fn take(cluster: &Cluster, at: usize, most: usize) -> Vec<Dispatch> {
    let claiming = claim(cluster, at, most);
    cluster.wait(&ALL, claiming.work()).unwrap().take()
}

/// Ends the run of an attempt, by way of a node.
fn end(cluster: &Cluster, at: usize, dispatch: &Dispatch) -> Answer {
    let completing = Completing {
        claim: dispatch.claim.number,
        token: TOKEN,
        outcome: Arc::new(Outcome::Done { result: Payload::null() }),
        consume: Consume::default(),
        error: None,
        compact_after: None,
        entries: Vec::new(),
    };
    let run = dispatch.claim.run;
    let command = Command::Complete { run, completing };
    let (answers, _) = cluster.node(at).engine().report(vec![(run.slot(), command)], None);
    cluster.wait(&ALL, answers).unwrap().remove(0)
}

fn reclaims(cluster: &Cluster, at: usize, run: RunId) -> u32 {
    let run = cluster.client(at).run(run);
    cluster.wait(&[at], async move { run.show().await.unwrap() }).cursors[0].reclaims
}

/// AB-19, SE-33: one worker, which knows one node, carries the runs of all of them to their ends.
#[test]
fn a_worker_is_given_what_any_node_has() {
    let cluster = Cluster::new(2);
    assert_eq!(cluster.serves(), [2, 2]);
    let runs = start(&cluster, 12);
    let mut given = BTreeSet::new();
    while given.len() < runs.len() {
        for dispatch in take(&cluster, 0, 3) {
            assert_eq!((&*dispatch.step, dispatch.retries + dispatch.reclaims), ("pack", 0));
            assert!(given.insert(dispatch.claim.run), "{} was given twice", dispatch.claim.run);
            assert!(matches!(end(&cluster, 0, &dispatch), Answer::Recorded { duplicate: false, .. }));
        }
    }
    assert_eq!(given, runs);
    for run in runs {
        let run = cluster.client(1).run(run);
        assert_eq!(cluster.wait(&ALL, async move { run.show().await.unwrap() }).status(), Status::Done);
    }
}

/// AB-19: whoever waits at one node is given what is started in another's shards later, without any time passing.
#[test]
fn one_who_waits_is_found() {
    let cluster = Cluster::new(2);
    let waiting: Vec<Claiming> = (0..8).map(|_| claim(&cluster, 1, 1)).collect();
    cluster.settle();
    let before = cluster.clock.load(Ordering::SeqCst);
    let engine = cluster.node(0).engine().clone();
    let mut asked = Vec::new();
    for _ in 0..8 {
        let request = engine.new_request();
        let spec = StartSpec::new("parcel", Payload::null());
        let slot = spec.admission_slot(request);
        asked.push(Box::pin(engine.ask(slot, Command::Start { request, spec: Box::new(spec) })));
    }
    cluster.settle();
    assert!(asked.iter_mut().all(|asked| poll(asked.as_mut()).is_some()));
    for claiming in waiting {
        let given = poll(Box::pin(claiming.work()).as_mut()).expect("it is there").unwrap().take();
        assert_eq!(given.len(), 1);
    }
    assert_eq!(cluster.clock.load(Ordering::SeqCst), before);
}

/// D25: a run that nobody has the code of waits, and says so; once a worker that has it asks any node, all of them know.
#[test]
fn every_node_knows_who_asks_at_the_others() {
    let cluster = Cluster::new(2);
    let runs = start(&cluster, 8);
    let why = |cluster: &Cluster, run: RunId| -> BTreeSet<String> {
        let one = |at| {
            let run = cluster.client(at).run(run);
            cluster.wait(&ALL, async move { run.explain().await.unwrap() }).reason.code().to_owned()
        };
        [one(0), one(1)].into()
    };
    for run in &runs {
        assert!(why(&cluster, *run).iter().any(|reason| reason.starts_with("no_worker")), "{:?}", why(&cluster, *run));
    }
    let given = take(&cluster, 0, 1);
    cluster.settle();
    let left: Vec<&RunId> = runs.iter().filter(|run| **run != given[0].claim.run).collect();
    for run in left {
        let reasons = why(&cluster, *run);
        assert!(!reasons.iter().any(|reason| reason.starts_with("no_worker")), "{reasons:?}");
    }
}

/// SE-40: letters may be lost. What waits is told again with the next renewal.
#[test]
fn what_is_lost_between_desks_is_said_again() {
    let cluster = Cluster::new(2);
    let mut claiming = Box::pin(claim(&cluster, 0, 12).work());
    cluster.settle();
    let mut given = 0;
    cluster.post.1.store(true, Ordering::SeqCst);
    let runs = {
        // Started where they live, because nobody can be asked.
        let mut started = 0;
        for at in ALL {
            let engine = cluster.node(at).engine().clone();
            for _ in 0..6 {
                let request = engine.new_request();
                let spec = StartSpec::new("parcel", Payload::null());
                let slot = spec.admission_slot(request);
                let mut asked = Box::pin(engine.ask(slot, Command::Start { request, spec: Box::new(spec) }));
                cluster.settle();
                started += usize::from(poll(asked.as_mut()).is_some());
            }
        }
        started
    };
    assert!(runs > 2, "some shards are served by whoever was asked");
    cluster.post.1.store(false, Ordering::SeqCst);
    while given < runs {
        let work = cluster.wait(&ALL, claiming.as_mut()).unwrap().take();
        given += work.len();
        claiming = Box::pin(claim(&cluster, 0, 12).work());
        cluster.pass_for(LEASE_MS, &ALL);
    }
}

/// What was claimed elsewhere for one who left meanwhile goes back, and does not count as delivered.
#[test]
fn who_leaves_while_it_is_offered_is_missed_by_nobody() {
    let cluster = Cluster::new(2);
    let claiming = claim(&cluster, 0, 12);
    cluster.settle();
    let runs = start(&cluster, 12);
    // Some of it was here, and is on its way by now; the rest is offered to the next who asks.
    drop(claiming);
    cluster.settle();
    let mut given = BTreeSet::new();
    while given.len() < runs.len() {
        let claiming = claim(&cluster, 0, 2);
        // The other node is asked, and its answer comes when nobody waits any more.
        for _ in 0..given.len() % 3 {
            cluster.node(0).turn();
            cluster.node(1).turn();
        }
        drop(claiming);
        cluster.settle();
        for dispatch in take(&cluster, 0, 1) {
            assert_eq!(dispatch.reclaims, 0);
            given.insert(dispatch.claim.run);
            end(&cluster, 0, &dispatch);
        }
    }
    for run in runs {
        assert_eq!(reclaims(&cluster, 1, run), 0);
    }
}

/// Six who ask at one node, of whom some are offered to the other, which has something for them; and those offers.
fn offered(cluster: &Cluster) -> Vec<Claiming> {
    // So that the other node knows who asks here, and says that it has something.
    drop(claim(cluster, 0, 1));
    cluster.settle();
    start(cluster, 6);
    cluster.settle();
    let offered: Vec<Claiming> = (0..6).map(|_| claim(cluster, 0, 1)).collect();
    assert!(cluster.post.0.lock().unwrap().iter().any(|(_, _, letter)| is_seat(letter)), "none was offered");
    offered
}

fn is_seat(letter: &Letter) -> bool {
    matches!(letter, Letter::Seat { .. })
}

/// How much those who ask were given.
fn given(claiming: Vec<Claiming>) -> usize {
    let come = claiming.into_iter().filter_map(|claiming| poll(Box::pin(claiming.work()).as_mut()));
    come.map(|work| work.unwrap().take().len()).sum()
}

/// Whoever was offered to a node that died waits for what others have.
#[test]
fn a_seat_that_was_offered_to_the_dead_is_free_again() {
    let mut cluster = Cluster::new(2);
    let offered = offered(&cluster);
    cluster.nodes[1].take().unwrap().engine().crash();
    cluster.pass_for(2 * LEASE_MS, &[0]);
    assert_eq!(given(offered), 6);
}

/// SE-40: an offer that is lost is made again. Whoever was offered so used to be offered to nobody any more, and waited
/// until it hung up.
#[test]
fn an_offer_that_is_lost_is_made_again() {
    let cluster = Cluster::new(2);
    let offered = offered(&cluster);
    cluster.post.0.lock().unwrap().retain(|(_, _, letter)| !is_seat(letter));
    cluster.pass_for(LEASE_MS, &ALL);
    assert_eq!(given(offered), 6);
}

/// A node that serves nothing any more offers nothing, and gives an answer all the same.
#[test]
fn a_seat_is_answered_also_with_nothing() {
    let cluster = Cluster::new(2);
    let mut claiming = Box::pin(claim(&cluster, 0, 1).work());
    cluster.settle();
    let from = cluster.node(1).engine().process().clone();
    start(&cluster, 1);
    let given = cluster.wait(&ALL, claiming.as_mut()).unwrap().take();
    assert_eq!(given.len(), 1);
    // An answer for a seat that nobody has is given back.
    let member = abide_store::Member { process: from, node: "1".into(), address: "1".into(), draining: false };
    let here = cluster.node(0).engine();
    here.receive(&member, here.process(), Letter::Handed { seat: 999, attempts: given });
    cluster.settle();
    let again = take(&cluster, 0, 1);
    assert_eq!((again.len(), again[0].reclaims), (1, 0));
}

/// AB-17, AB-19: what is paused or at its cap is nothing to come for. A node that had such work called workers from another's desk,
/// had nothing for them, and called them again, without end and as fast as letters travel. They are called when it may begin.
#[test]
fn nobody_is_called_for_what_may_not_begin() {
    let cluster = Cluster::new(2);
    let rule = |paused: bool, at_most: Option<u32>| {
        for node in 0..2 {
            let change = |rule: &mut QueueRule| (rule.paused, rule.at_most) = (paused, at_most);
            cluster.node(node).engine().change_queue(&"default".into(), &"default".into(), change).unwrap();
        }
    };
    rule(true, None);
    start(&cluster, 12);
    let mut waiting: Vec<_> = (0..12).map(|_| Box::pin(claim(&cluster, 1, 1).work())).collect();
    let mut given = |cluster: &Cluster| {
        // It does not come to rest while letters go to and fro.
        cluster.settle();
        let before = waiting.len();
        waiting.retain_mut(|work| poll(work.as_mut()).is_none());
        before - waiting.len()
    };
    assert_eq!(given(&cluster), 0);
    rule(false, Some(1));
    assert_eq!(given(&cluster), 2, "one of each node");
    rule(false, None);
    assert_eq!(given(&cluster), 10);
}
