//! Taking in while another node holds a shard and says nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide_kernel::{RequestId, RunId, ShardEpoch, ShardId, ShardMap, StartSpec, Timestamp};
use abide_store::intake::{Answered, Asked, Ring, Started};
use abide_store::memory::MemoryStore;
use abide_store::{Cluster, Fault, Member, Store, Verdict};
use parking_lot::{Condvar, Mutex};

use super::*;
use crate::{Clock, Config, Engine};

/// Requests in memory, and a bell.
#[derive(Default)]
struct Table {
    asked: Vec<Asked>,
    answers: BTreeMap<RequestId, Answered>,
    /// How many were read so far.
    read: usize,
    /// So many were read and answered.
    through: usize,
    anew: usize,
    bell: Arc<(Mutex<bool>, Condvar)>,
}

impl Intake for Table {
    fn read(&mut self, most: usize) -> Result<Vec<Asked>, Fault> {
        let mut open = Vec::new();
        while open.len() < most
            && let Some(asked) = self.asked.get(self.read)
        {
            open.extend((!self.answers.contains_key(&asked.request)).then(|| asked.clone()));
            self.read += 1;
        }
        Ok(open)
    }

    fn is_through(&mut self) {
        self.through = self.read;
    }

    fn begin_anew(&mut self) {
        self.read = self.through;
        self.anew += 1;
    }

    fn answer(&mut self, _: ShardEpoch, answers: &[Answered]) -> Result<Verdict, Fault> {
        for answer in answers {
            let before = self.answers.insert(answer.request, answer.clone());
            assert!(before.is_none(), "{before:?} {answer:?}");
        }
        Ok(Verdict::Durable)
    }

    fn started(&mut self, request: RequestId) -> Result<Started, Fault> {
        Ok(match self.answers.get(&request) {
            Some(answer) => answer.run.map_or(Started::Nothing, Started::Run),
            None => Started::Waiting,
        })
    }

    fn upkeep(&mut self, _: ShardEpoch) -> Result<(), Fault> {
        Ok(())
    }

    fn wait(&mut self, most: Option<Duration>) {
        let (rung, bell) = &*self.bell;
        let mut rung = rung.lock();
        if !*rung {
            let late = bell.wait_for(&mut rung, most.unwrap_or(Duration::from_secs(60))).timed_out();
            assert!(!late || most.is_some(), "nobody rang");
        }
        *rung = false;
    }

    fn ring(&self) -> Ring {
        let bell = self.bell.clone();
        Arc::new(move || {
            *bell.0.lock() = true;
            bell.1.notify_all();
        })
    }
}

/// A node that has shard 0, and another that has shard 1 and answers nobody.
struct World {
    engine: Engine,
    clock: Arc<AtomicI64>,
    other: MemoryStore,
    epoch: ShardEpoch,
    table: Table,
    made: u128,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(AtomicI64::new(1_000_000));
        let mut other = MemoryStore::shared(2, clock.clone());
        let member = Member { process: "zed".into(), node: "zed".into(), address: "".into(), draining: false };
        other.renew(&member, Duration::from_secs(3_600)).unwrap();
        let epoch = other.open_shard(ShardId(1), "zed").unwrap().epoch;
        let config = Config { any_workflow: true, clock: Clock::Manual(clock.clone()), ..Config::default() };
        let engine = Engine::open(Box::new(other.clone()), config).unwrap();
        Self { engine, clock, other, epoch, table: Table::default(), made: 0 }
    }

    /// Asks for a run in a shard.
    fn ask(&mut self, shard: u16) -> RequestId {
        loop {
            self.made += 1;
            let request = RequestId::new(Timestamp(1_000_000), self.made);
            let spec = StartSpec::new("order", abide_kernel::Payload::null());
            if ShardMap::new(2).home(spec.admission_slot(request)) == ShardId(shard) {
                let asked = r#"{"workflow":"order"}"#.into();
                self.table.asked.push(Asked { request, what: "start".into(), asked, payload: "null".into() });
                return request;
            }
        }
    }

    /// Signals the run that a request starts.
    fn signal(&mut self, by: RequestId) -> RequestId {
        self.made += 1;
        let request = RequestId::new(Timestamp(1_000_000), self.made);
        let asked = format!(r#"{{"run":"{by}","name":"paid"}}"#);
        self.table.asked.push(Asked { request, what: "signal".into(), asked, payload: "null".into() });
        request
    }

    fn taking(&self) -> Taking {
        let epoch = match self.engine.shared.hosts() {
            Hosting::Here(epoch) => epoch,
            Hosting::Perhaps | Hosting::Elsewhere => panic!("the other node took shard 0"),
        };
        Taking::new(&self.engine.shared, epoch, self.table.ring())
    }

    /// Turns until a request is answered.
    fn turn_until(&mut self, taking: &mut Taking, request: RequestId) -> Answered {
        loop {
            let Ok(Took::All { again }) = taking.turn(&mut self.table) else { panic!("nothing goes wrong here") };
            if let Some(answer) = self.table.answers.get(&request) {
                return answer.clone();
            }
            self.table.wait(again);
        }
    }

    fn forwarded(&self) -> usize {
        self.engine.shared.core.lock().ring.as_ref().unwrap().forwarded().len()
    }

    /// The other node leaves, its shard is free, and it is time to look.
    fn leave(&mut self) {
        self.other.drain("zed", true).unwrap();
        self.other.release(ShardId(1), self.epoch).unwrap();
        self.clock.fetch_add(4_000, Ordering::SeqCst);
        self.engine.shared.bell.ring();
    }
}

/// AB-7, I21: what is asked of a shard that nobody serves waits by itself: what is asked later is answered meanwhile, it is neither
/// read nor given again, and nothing is left of it when another takes in. Then it is done once.
#[test]
fn what_waits_for_another_node_delays_nobody() {
    let mut world = World::new();
    let mut taking = world.taking();
    let stuck = world.ask(1);
    let behind = world.signal(stuck);
    for _ in 0..10 {
        let quick = world.ask(0);
        let signal = world.signal(quick);
        let answer = world.turn_until(&mut taking, signal);
        assert_eq!((answer.run, answer.code.as_str()), (world.table.answers[&quick].run, "accepted"));
        assert_eq!((world.forwarded(), world.table.anew, world.table.through), (1, 0, 0));
    }
    drop(taking);
    assert_eq!(world.forwarded(), 0);
    world.table.begin_anew();
    let mut taking = world.taking();
    world.leave();
    let answer = world.turn_until(&mut taking, behind);
    let run: RunId = answer.run.unwrap();
    assert_eq!((world.table.answers[&stuck].run, answer.code.as_str()), (Some(run), "accepted"));
    let _ = taking.turn(&mut world.table);
    assert_eq!(world.table.through, world.table.asked.len());
}

/// AB-7: of what is asked of a shard that nobody serves, so much is kept. The rest holds nobody up, and is read again when the
/// shard is served.
#[test]
fn more_than_is_kept_for_a_shard_is_read_again() {
    let mut world = World::new();
    let mut taking = world.taking();
    let stuck: Vec<RequestId> = (0..taking::OPEN_MAX + 600).map(|_| world.ask(1)).collect();
    let quick = world.ask(0);
    assert_eq!(world.turn_until(&mut taking, quick).code, "accepted");
    assert_eq!((world.forwarded(), world.table.anew), (taking::OPEN_MAX, 0));
    world.leave();
    assert_eq!(world.turn_until(&mut taking, stuck[stuck.len() - 1]).code, "accepted");
    assert!(stuck.iter().all(|request| world.table.answers[request].code == "accepted"));
    assert!(world.table.anew > 0);
    let _ = taking.turn(&mut world.table);
    assert_eq!(world.table.through, world.table.asked.len());
}
