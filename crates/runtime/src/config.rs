//! What an engine is told when it is opened.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::Str;
use abide_kernel::limits::DEFINITION_WAIT_MS_DEFAULT;
use abide_kernel::shard::{Rules, Windows};
use abide_store::Member;

use crate::link::{Link, NoLink};
use crate::ring::Ring;
use crate::{Clock, Entropy, Notifier, Observer, Program, Tracer};

/// How an engine behaves. The defaults suit a process of its own.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The node's name, as inspection shows it.
    pub node: String,
    /// How long a claim lasts without a heartbeat.
    pub lease: Duration,
    /// The workflows it can execute.
    pub programs: Vec<Arc<dyn Program>>,
    /// The queues it serves, and how many attempts at once.
    pub pools: Vec<Pool>,
    /// Caps and rates of queues, workflows and namespaces.
    pub limits: Rules,
    /// How long an attempt waits for its definition, where the engine serves its queue and lacks it, before it becomes
    /// a dead letter.
    pub definition_wait: Duration,
    /// Told of attempts that can be claimed, after they are durable.
    pub notifier: Option<Arc<dyn Notifier>>,
    /// Told of every effect before it is called.
    pub observer: Option<Arc<dyn Observer>>,
    /// Told of spans of attempts and runs when they have ended.
    pub tracer: Option<Arc<dyn Tracer>>,
    /// Where instants come from.
    pub clock: Clock,
    /// Where random numbers come from.
    pub entropy: Entropy,
    /// Whether workflows that neither it nor any worker has are begun all the same when they are asked for by SQL: a worker
    /// that has them may come.
    pub any_workflow: bool,
    /// How many runs may change before their index rows are written.
    pub flush_runs: usize,
    /// How much of what waits and of what is due is kept in memory.
    pub windows: Windows,
    /// How long the engine must be quiet before index rows are written.
    pub flush_quiet: Duration,
    /// How it shares its store with other nodes, where the store can be shared.
    pub sharing: Sharing,
}

/// How a node shares a store with others.
#[derive(Clone)]
pub struct Sharing {
    /// How long the node is believed to live after it last said so. Its shards are taken over after that.
    pub lease: Duration,
    /// Where other nodes reach it.
    pub address: String,
    /// How letters travel to them.
    pub link: Arc<dyn Link>,
    /// Whether the node stays only for a moment: it takes shards only if nobody else would, and gives them up as soon as
    /// somebody does.
    pub guest: bool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { lease: Duration::from_secs(10), address: String::new(), link: NoLink::shared(), guest: false }
    }
}

impl Config {
    /// The node's place among those that share its store.
    pub(crate) fn ring(&self, process: &Str) -> Ring {
        let member = Member {
            process: process.clone(),
            node: self.node.as_str().into(),
            address: self.sharing.address.as_str().into(),
            draining: self.sharing.guest,
        };
        let lease_ms = millis(self.sharing.lease).max(NODE_LEASE_MS_MIN);
        Ring::new(member, self.sharing.link.clone(), lease_ms, self.sharing.guest)
    }
}

/// A duration as the kernel has it.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A shorter lease would be lost to any pause.
const NODE_LEASE_MS_MIN: u64 = 100;

/// Workers for one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The queue.
    pub queue: String,
    /// How many attempts at once.
    pub concurrency: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: format!("node-{}", std::process::id()),
            lease: Duration::from_secs(30),
            programs: Vec::new(),
            pools: vec![Pool { queue: "default".into(), concurrency: 256 }],
            limits: Rules::default(),
            definition_wait: Duration::from_millis(DEFINITION_WAIT_MS_DEFAULT),
            any_workflow: false,
            notifier: None,
            observer: None,
            tracer: None,
            clock: Clock::system(),
            entropy: Entropy::System,
            flush_runs: 4_096,
            windows: Windows::default(),
            flush_quiet: Duration::from_millis(200),
            sharing: Sharing::default(),
        }
    }
}
