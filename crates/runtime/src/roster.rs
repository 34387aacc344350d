//! The workers of all nodes: each node knows who asks at its own desk, and is asked when somebody wants to see them all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::{Str, Timestamp};
use abide_store::Member;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::core::Core;
use crate::desk::Lately;
use crate::driver::Shared;
use crate::engine::Engine;
use crate::link::Letter;

/// How long the other nodes may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The workers of a namespace that were there lately.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    /// The workers, and the name of the node that each asked.
    pub workers: Vec<(Str, Lately)>,
    /// Nodes that did not answer in time: what their workers are is not known.
    pub silent: Vec<Str>,
}

/// Questions to the other nodes that wait for answers.
#[derive(Default)]
pub(crate) struct RollCalls {
    next: u64,
    open: BTreeMap<u64, UnboundedSender<(Str, Vec<Lately>)>>,
}

impl Engine {
    /// The workers outside of this process that serve a namespace, of all nodes.
    pub async fn roster(&self, namespace: &Str) -> Roster {
        self.shared.roster(namespace).await
    }
}

impl Shared {
    async fn roster(self: &Arc<Self>, namespace: &Str) -> Roster {
        let mut roster = Roster::default();
        let (answer, mut answers) = unbounded_channel();
        let (mut waits, call) = {
            let mut core = self.core.lock();
            let here = core.desk.lately_of(self.now(), namespace);
            roster.workers.extend(here.into_iter().map(|lately| (self.node.clone(), lately)));
            let Some(ring) = &mut core.ring else { return roster };
            let others = ring.others().map(|other| (other.process.clone(), other.node.clone()));
            let others: BTreeMap<Str, Str> = others.collect();
            let id = ring.roll_calls.next;
            ring.roll_calls.next += 1;
            ring.roll_calls.open.insert(id, answer);
            ring.tell_all(&Letter::WhoWorks { id, namespace: namespace.clone() });
            (others, RollCall { shared: self.clone(), id })
        };
        let all = async {
            while !waits.is_empty() {
                let Some((process, workers)) = answers.recv().await else { break };
                if let Some(node) = waits.remove(&process) {
                    roster.workers.extend(workers.into_iter().map(|lately| (node.clone(), lately)));
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, all).await;
        drop(call);
        roster.silent = waits.into_values().collect();
        roster
    }
}

/// A question that is over with this.
struct RollCall {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for RollCall {
    fn drop(&mut self) {
        if let Some(ring) = &mut self.shared.core.lock().ring {
            ring.roll_calls.open.remove(&self.id);
        }
    }
}

impl Core {
    /// Another node wants to know who asks at the desk here. What is gone is asked for again by whoever wants to know.
    pub(crate) fn answer_roll_call(&self, now: Timestamp, from: &Member, id: u64, namespace: &Str) {
        let Some(ring) = &self.ring else { return };
        ring.send(from, Letter::Workers { id, workers: self.desk.lately_of(now, namespace) });
    }

    /// Another node said who asks at its desk.
    pub(crate) fn roll_call_answered(&self, from: &Member, id: u64, workers: Vec<Lately>) {
        let call = self.ring.as_ref().and_then(|ring| ring.roll_calls.open.get(&id));
        if let Some(call) = call {
            // Whoever asked may have gone meanwhile.
            let _ = call.send((from.process.clone(), workers));
        }
    }
}
