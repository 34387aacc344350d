//! Several nodes over one store, turned by hand, with one clock.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use abide::{Client, Clock, Machine, Workflow, await_signal, child, done, spawn};
use abide_runtime::{Config, Crank, Entropy, Letter, Link, Sharing, Turned};
use abide_store::Member;
use abide_store::memory::MemoryStore;

pub const LEASE_MS: i64 = 10_000;

/// Letters on their way: from whom, to whom, and what; whether none goes any more; and all that were ever written.
#[derive(Clone, Default)]
pub struct Post(
    pub Arc<Mutex<VecDeque<(Member, Member, Letter)>>>,
    pub Arc<AtomicBool>,
    pub Arc<Mutex<Vec<(Member, Member, Letter)>>>,
);

impl Link for Post {
    fn send(&self, from: &Member, to: &Member, letter: Letter) {
        self.2.lock().unwrap().push((from.clone(), to.clone(), letter.clone()));
        if !self.1.load(Ordering::SeqCst) {
            self.0.lock().unwrap().push_back((from.clone(), to.clone(), letter));
        }
    }
}

/// Whether a node comes to serve, or only to say something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    Long,
    Short,
}

/// Several nodes over one store, with one clock.
pub struct Cluster {
    pub store: MemoryStore,
    pub clock: Arc<AtomicI64>,
    pub post: Post,
    pub nodes: Vec<Option<Crank>>,
    pub calls: Arc<AtomicU32>,
}

impl Cluster {
    pub fn new(nodes: usize) -> Self {
        let clock = Arc::new(AtomicI64::new(1_893_456_000_000));
        let store = MemoryStore::shared(4, clock.clone());
        let mut cluster = Self { store, clock, post: Post::default(), nodes: Vec::new(), calls: Arc::default() };
        for _ in 0..nodes {
            cluster.add(Stay::Long);
        }
        cluster.settle();
        cluster
    }

    pub fn add(&mut self, stay: Stay) {
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

    pub fn node(&self, place: usize) -> &Crank {
        self.nodes[place].as_ref().unwrap()
    }

    pub fn client(&self, place: usize) -> Client {
        Client::new(self.node(place).engine().clone())
    }

    pub fn serves(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.as_ref().map_or(0, Crank::serves)).collect()
    }

    /// Turns some nodes, and carries their letters, until nothing more happens.
    pub fn settle_some(&self, places: &[usize]) {
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
                // Whoever is at that address now, also if it is not the one that was meant.
                for place in places.iter().filter(|place| place.to_string() == *to.address) {
                    let Some(node) = &self.nodes[*place] else { continue };
                    node.engine().receive(&from, &to.process, letter.clone());
                    quiet = 0;
                }
            }
        }
    }

    pub fn settle(&self) {
        self.settle_some(&(0..self.nodes.len()).collect::<Vec<_>>());
    }

    /// Time passes for some nodes, in steps in which they keep their leases; the others do nothing.
    pub fn pass_for(&self, ms: i64, places: &[usize]) {
        for _ in 0..ms / (LEASE_MS / 5) {
            self.clock.fetch_add(LEASE_MS / 5, Ordering::SeqCst);
            self.settle_some(places);
        }
    }

    /// What comes of a question while these nodes go on.
    pub fn wait<T>(&self, places: &[usize], question: impl Future<Output = T>) -> T {
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

pub fn poll<T>(question: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match question.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}
