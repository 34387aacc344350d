//! Nodes that share a store, turned by hand: who serves what, and what becomes of those who asked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use abide::{Client, Clock, Machine, Status, Workflow, await_signal, child, done, spawn};
use abide_kernel::{RunId, Str};
use abide_runtime::{Config, Crank, Entropy, Letter, Link, Sharing, Turned};
use abide_store::Member;
use abide_store::memory::MemoryStore;

const LEASE_MS: i64 = 10_000;

/// Letters on their way: from whom, to which process, and what; and whether none goes any more.
#[derive(Clone, Default)]
struct Post(Arc<Mutex<VecDeque<(Member, Str, Letter)>>>, Arc<AtomicBool>);

impl Link for Post {
    fn send(&self, from: &Member, to: &Member, letter: Letter) {
        if !self.1.load(Ordering::SeqCst) {
            self.0.lock().unwrap().push_back((from.clone(), to.process.clone(), letter));
        }
    }
}

/// Whether a node comes to serve, or only to say something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Long,
    Short,
}

/// Several nodes over one store, with one clock.
struct Cluster {
    store: MemoryStore,
    clock: Arc<AtomicI64>,
    post: Post,
    nodes: Vec<Option<Crank>>,
    calls: Arc<AtomicU32>,
}

impl Cluster {
    fn new(nodes: usize) -> Self {
        let clock = Arc::new(AtomicI64::new(1_893_456_000_000));
        let store = MemoryStore::shared(4, clock.clone());
        let mut cluster = Self { store, clock, post: Post::default(), nodes: Vec::new(), calls: Arc::default() };
        for _ in 0..nodes {
            cluster.add(Stay::Long);
        }
        cluster.settle();
        cluster
    }

    fn add(&mut self, stay: Stay) {
        let place = self.nodes.len();
        let calls = self.calls.clone();
        let order = Machine::<u64>::new("order").step("wait", move |ctx, n: u64| {
            calls.fetch_add(1, Ordering::SeqCst);
            async move {
                match ctx.signal::<u64>("paid")? {
                    Some(paid) => Ok(done(&(n + paid))),
                    None => Ok(await_signal("paid", n)),
                }
            }
        });
        let stuck = Machine::<u64>::new("stuck").step("only", async |_, n: u64| {
            std::future::pending::<()>().await;
            Ok(done(&n))
        });
        let family = Machine::<u64>::new("family")
            .step("spawn", async |_, n: u64| {
                let leaves = (0..8u64).map(|leaf| child("leaf", &leaf).key(&format!("leaf-{n}-{leaf}")));
                Ok(spawn(leaves, "end", n))
            })
            .step("end", async |ctx, _: u64| Ok(done(&ctx.children().len())));
        let leaf = Machine::<u64>::new("leaf").step("only", async |_, n: u64| Ok(done(&n)));
        let mut config = Config::default();
        config.node = format!("node-{place}");
        config.programs = [order, stuck, family, leaf].map(|machine| machine.into_program().unwrap()).to_vec();
        config.clock = Clock::Manual(self.clock.clone());
        config.entropy = Entropy::seeded(place as u64);
        config.lease = Duration::from_millis(30_000);
        let (lease, address) = (Duration::from_millis(LEASE_MS as u64), place.to_string());
        config.sharing = Sharing { lease, address, link: Arc::new(self.post.clone()), guest: stay == Stay::Short };
        self.nodes.push(Some(Crank::open(Box::new(self.store.clone()), config).unwrap()));
    }

    fn node(&self, place: usize) -> &Crank {
        self.nodes[place].as_ref().unwrap()
    }

    fn client(&self, place: usize) -> Client {
        Client::new(self.node(place).engine().clone())
    }

    fn serves(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.as_ref().map_or(0, Crank::serves)).collect()
    }

    /// Turns some nodes, and carries their letters, until nothing more happens.
    fn settle_some(&self, places: &[usize]) {
        let mut quiet = 0;
        while quiet < 2 {
            quiet += 1;
            for place in places {
                if let Some(node) = &self.nodes[*place]
                    && !matches!(node.turn(), Turned::Rests(_))
                {
                    quiet = 0;
                }
            }
            let letters = std::mem::take(&mut *self.post.0.lock().unwrap());
            for (from, to, letter) in letters {
                let node = places.iter().filter_map(|place| self.nodes[*place].as_ref());
                for node in node.filter(|node| *node.engine().process() == to) {
                    node.engine().receive(&from, letter.clone());
                    quiet = 0;
                }
            }
        }
    }

    fn settle(&self) {
        self.settle_some(&(0..self.nodes.len()).collect::<Vec<_>>());
    }

    /// Time passes for some nodes, in steps in which they keep their leases; the others do nothing.
    fn pass_for(&self, ms: i64, places: &[usize]) {
        for _ in 0..ms / (LEASE_MS / 5) {
            self.clock.fetch_add(LEASE_MS / 5, Ordering::SeqCst);
            self.settle_some(places);
        }
    }

    /// What comes of a question while these nodes go on.
    fn wait<T>(&self, places: &[usize], question: impl Future<Output = T>) -> T {
        let mut question = Box::pin(question);
        for _ in 0..1_000 {
            if let Some(answer) = poll(question.as_mut()) {
                return answer;
            }
            self.settle_some(places);
            self.clock.fetch_add(100, Ordering::SeqCst);
        }
        panic!("it was not answered");
    }
}

fn poll<T>(question: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match question.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

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

/// SE-35: a node that is asked to drain hands its shards over when it renews its lease, takes none, and goes on taking
/// commands; asked to, it takes its share again.
#[test]
fn a_node_that_drains_gives_its_shards_to_the_others() {
    use abide_store::Store;
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
    assert_eq!(reclaims(&cluster), 0);
    cluster.pass_for(40_000, &[1]);
    assert!(reclaims(&cluster) > 0);
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
