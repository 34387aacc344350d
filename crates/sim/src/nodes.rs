//! The nodes of a world: each has a clock of its own, dies, is paused, and is opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use abide::{Client, Clock};
use abide_runtime::{Config, Crank, Entropy, Letter, OpenError, Pool, Sharing, Turned};
use abide_store::Member;
use abide_store::memory::{MemoryStore, Stage, Word};

use crate::dice::Dice;
use crate::disk::{Came, Disk, Slow};
use crate::net::{Net, address};
use crate::profile::Profile;
use crate::truth::Witness;
use crate::workflows;

/// When time begins: the first day of 2030.
pub(crate) const BEGINNING_MS: i64 = 1_893_456_000_000;
/// How long a claim lasts.
pub(crate) const LEASE_MS: i64 = 30_000;
/// How long a node is believed to live.
pub(crate) const NODE_LEASE_MS: i64 = 60_000;

/// An engine that lives.
pub(crate) struct Life {
    pub(crate) crank: Arc<Crank>,
    pub(crate) client: Client,
    disk: Arc<Disk>,
    /// A turn that is at the disk.
    slow: Option<Slow>,
}

/// A node, living or dead.
pub(crate) struct Node {
    pub(crate) place: usize,
    clock: Arc<AtomicI64>,
    /// How far its clock is ahead of the world's.
    skew_ms: i64,
    /// How much faster it runs, in a million.
    drift: i64,
    pub(crate) life: Option<Life>,
    /// Until when it does nothing.
    pub(crate) paused_until: i64,
}

impl Node {
    pub(crate) fn new(place: usize, profile: &Profile, dice: &mut Dice) -> Self {
        // One alone has the world's clock, which jumps with it.
        let alone = profile.nodes == 1;
        let skew_ms = if alone { 0 } else { dice.below(7_200_000) as i64 - 3_600_000 };
        let drift = if alone { 0 } else { dice.below(2 * profile.drift + 1) as i64 - profile.drift as i64 };
        let clock = Arc::new(AtomicI64::new(BEGINNING_MS + skew_ms));
        Self { place, clock, skew_ms, drift, life: None, paused_until: i64::MIN }
    }

    /// The world's time is now this.
    pub(crate) fn set_time(&self, now: i64) {
        let passed = now - BEGINNING_MS;
        self.clock.store(now + self.skew_ms + passed * self.drift / 1_000_000, Ordering::Release);
    }

    /// Its clock is set, ahead or back.
    pub(crate) fn jump(&mut self, ms: i64) {
        self.skew_ms += ms;
    }

    /// Whether it can do something now.
    pub(crate) fn is_awake(&self, now: i64) -> bool {
        now >= self.paused_until && self.life.as_ref().is_some_and(|life| life.crank.closed().is_none())
    }

    /// Opens the store.
    pub(crate) fn open(
        &mut self,
        store: &MemoryStore,
        net: &Net,
        witness: &Witness,
        seed: u64,
    ) -> Result<(), OpenError> {
        let witness = &witness.of_another();
        let life = witness.truth.lock().life;
        let mut config = Config::default();
        config.node = format!("node-{}", self.place);
        config.programs = workflows::programs(witness);
        config.clock = Clock::Manual(self.clock.clone());
        config.entropy = Entropy::seeded(seed ^ u64::from(life) << 32);
        config.lease = Duration::from_millis(LEASE_MS as u64);
        config.pools = vec![Pool { queue: "default".into(), concurrency: witness.profile().pool }];
        config.flush_runs = witness.profile().flush_runs;
        config.windows = witness.profile().windows;
        config.sharing = Sharing {
            lease: Duration::from_millis(NODE_LEASE_MS as u64),
            address: address(self.place).to_string(),
            link: Arc::new(net.clone()),
            guest: false,
        };
        let disk = Arc::<Disk>::default();
        let crank = Arc::new(Crank::open(Box::new(store.attended(disk.clone())), config)?);
        witness.lives(crank.engine().process());
        let client = Client::new(crank.engine().clone());
        self.life = Some(Life { crank, client, disk, slow: None });
        Ok(())
    }

    pub(crate) fn turn(&self) -> Turned {
        self.life.as_ref().map_or(Turned::Rests(None), |life| life.crank.turn())
    }

    /// Turns as far as the disk, if it comes there.
    pub(crate) fn turn_slowly(&mut self) -> Turned {
        let Some(life) = &mut self.life else { return Turned::Rests(None) };
        life.came(life.disk.turn(life.crank.clone()))
    }

    /// How far its write is, if it is at the disk.
    pub(crate) fn writes(&self) -> Option<Stage> {
        self.life.as_ref()?.slow.as_ref().map(Slow::stage)
    }

    /// Its write goes on.
    pub(crate) fn write(&mut self) -> Turned {
        let Some(life) = &mut self.life else { return Turned::Rests(None) };
        match life.slow.take() {
            Some(slow) => life.came(slow.go_on(Word::GoOn)),
            None => Turned::Rests(None),
        }
    }

    /// Takes in a letter to its address, also if it is for an earlier life of it. Whether it was for this one.
    pub(crate) fn receive(&self, to: &Member, from: &Member, letter: Letter) -> bool {
        let Some(life) = self.life.as_ref().filter(|_| address(self.place) == to.address) else { return false };
        life.crank.engine().receive(from, &to.process, letter);
        *life.crank.engine().process() == to.process
    }

    /// Dies. What it was writing, if it was.
    pub(crate) fn die(&mut self, net: &Net) -> Option<Slow> {
        let life = self.life.take()?;
        net.bury(life.crank.engine().process());
        life.crank.engine().crash();
        life.slow
    }

    /// Leaves in good order.
    pub(crate) fn leave(&mut self) {
        while self.writes().is_some() {
            self.write();
        }
        if let Some(life) = self.life.take() {
            life.crank.leave();
        }
    }
}

impl Life {
    /// A turn came to the disk, or to its end.
    fn came(&mut self, came: Came) -> Turned {
        match came {
            Came::There(slow) => {
                self.slow = Some(slow);
                Turned::Worked
            }
            Came::Through(turned) => turned,
        }
    }
}
