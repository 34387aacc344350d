//! Truth: what the world knows beside the store. What was acknowledged, what was really called, and how things end that
//! are called next.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use abide::{Policy, RequestId, RunId, Status, StepError};
use abide_kernel::{Choice, OpId, Rev, Seq, Str};
use abide_store::Store;
use abide_store::memory::MemoryStore;
use parking_lot::Mutex;

use crate::asking::Deed;
use crate::dice::Dice;
use crate::panics;
use crate::profile::Profile;

/// A call of an effect that really took place.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    /// The run.
    pub(crate) run: RunId,
    /// The key of the effect in the run's ledger, if it is one.
    pub(crate) effect: Option<&'static str>,
    /// Its policy.
    pub(crate) policy: Policy,
    /// The process, or the worker outside, that called.
    pub(crate) by: Str,
    /// Where the log of the run's shard ended then.
    pub(crate) head: Seq,
}

/// What somebody was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// A run was started, or found, under a key perhaps.
    Started {
        run: RunId,
        workflow: &'static str,
        input: u64,
        key: Option<String>,
        tenant: &'static str,
        request: RequestId,
        /// Whether this request began it.
        created: bool,
    },
    /// A signal was accepted that was first sent when so many questions had been asked.
    Signalled { run: RunId, dedup: String, asked: u64 },
    /// A cancellation was accepted.
    Cancelled { run: RunId },
    /// An update with this input was answered so.
    Updated { run: RunId, dedup: String, input: u64, answer: u64 },
    /// A run ended well, with this result.
    Ended { run: RunId, result: String },
    /// A person's decision was accepted.
    Decided { run: RunId, op: OpId, choice: Choice },
    /// An effect in doubt was resolved.
    Resolved { run: RunId, key: String, again: bool },
    /// A run ended otherwise.
    Over { run: RunId, status: Status },
    /// A run was as it was at a revision.
    Shown { run: RunId, rev: Rev },
    /// A dead letter went back, or was given up.
    Lettered { run: RunId, requeue: bool },
    /// A record was removed.
    Purged { run: RunId },
    /// The end of an attempt was recorded for a worker outside.
    Reported { run: RunId, claim: u32 },
}

impl Acknowledged {
    /// The run of which it is so.
    pub(crate) fn run(&self) -> RunId {
        match self {
            Self::Started { run, .. }
            | Self::Signalled { run, .. }
            | Self::Cancelled { run }
            | Self::Updated { run, .. }
            | Self::Ended { run, .. }
            | Self::Decided { run, .. }
            | Self::Resolved { run, .. }
            | Self::Over { run, .. }
            | Self::Shown { run, .. }
            | Self::Lettered { run, .. }
            | Self::Purged { run }
            | Self::Reported { run, .. } => *run,
        }
    }
}

/// Shared by the world and the code of its workflows.
#[derive(Default)]
pub(crate) struct Truth {
    /// What was acknowledged, in order, and how many questions had been asked then.
    pub(crate) acknowledged: Vec<(u64, Acknowledged)>,
    /// How many questions have been asked.
    pub(crate) questions: u64,
    /// What was called.
    pub(crate) calls: Vec<Called>,
    /// How often each key was called.
    pub(crate) counts: BTreeMap<String, u32>,
    /// How often a node was opened.
    pub(crate) life: u32,
    /// Whether nothing fails any more.
    pub(crate) healed: bool,
    /// Calls that wait to be let go on.
    pub(crate) slow: Vec<Waker>,
    /// How often slow calls were let go on.
    pub(crate) releases: u64,
    /// How often each fault struck.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// How often each rare thing was seen.
    pub(crate) sometimes: BTreeMap<&'static str, u64>,
    /// Verbs that were accepted, and verbs that were refused.
    pub(crate) verbs: BTreeMap<(&'static str, bool), u64>,
    /// How often something was asked of a run without being told no.
    pub(crate) asks: BTreeMap<(RunId, Deed), u64>,
    /// How often a start was asked for without being told no.
    pub(crate) starts: BTreeMap<RequestId, u64>,
    /// What requests have begun, and what those without a key were answered with.
    pub(crate) begun: BTreeMap<RequestId, RunId>,
}

/// How a call comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Well.
    Well,
    /// It fails, and may be tried again.
    Fails,
    /// It fails for good.
    FailsForGood,
    /// It panics.
    Panics,
}

/// The end of the key of a call that takes long in every world, so that much happens to its run meanwhile.
const WEIGHED: &str = "/calls/weigh";
/// How often it does, in a thousand.
const LONG: u64 = 600;

/// A handle on the truth.
#[derive(Clone)]
pub(crate) struct Witness {
    /// The truth.
    pub(crate) truth: Arc<Mutex<Truth>>,
    profile: Arc<Profile>,
    seed: u64,
    store: MemoryStore,
    /// The process whose code calls, once it lives.
    process: Arc<OnceLock<Str>>,
}

impl Witness {
    /// A witness of a world.
    pub(crate) fn new(seed: u64, profile: &Profile, store: MemoryStore) -> Self {
        Self { truth: Arc::default(), profile: Arc::new(profile.clone()), seed, store, process: Arc::default() }
    }

    /// The same witness, for the code of one process more.
    pub(crate) fn of_another(&self) -> Self {
        Self { process: Arc::default(), ..self.clone() }
    }

    /// The process whose code calls.
    pub(crate) fn lives(&self, process: &Str) {
        // Each life has a witness of its own.
        let _ = self.process.set(process.clone());
    }

    /// Something is called, by the code of this process or by a worker outside.
    pub(crate) fn calls(&self, run: RunId, effect: Option<&'static str>, policy: Policy, worker: Option<Str>) {
        let by = worker.or_else(|| self.process.get().cloned()).unwrap_or_default();
        let head = self.store.head(self.store.map().home(run.slot()));
        self.truth.lock().calls.push(Called { run, effect, policy, by, head });
    }

    /// How hard its world is.
    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// A fault struck.
    pub(crate) fn strike(&self, fault: &'static str) {
        *self.truth.lock().faults.entry(fault).or_default() += 1;
    }

    /// Something rare was seen.
    pub(crate) fn saw(&self, what: &'static str) {
        *self.truth.lock().sometimes.entry(what).or_default() += 1;
    }

    /// Something is asked of a run.
    pub(crate) fn asks(&self, deed: (RunId, Deed)) {
        *self.truth.lock().asks.entry(deed).or_default() += 1;
    }

    /// Whoever asked for something was refused.
    pub(crate) fn refused(&self, deed: &(RunId, Deed)) {
        if let Some(asks) = self.truth.lock().asks.get_mut(deed) {
            *asks -= 1;
        }
    }

    /// Something was acknowledged.
    pub(crate) fn acknowledge(&self, what: Acknowledged) {
        let mut truth = self.truth.lock();
        let when = truth.questions;
        truth.acknowledged.push((when, what));
    }

    /// How the next call under this key comes out, and whether it is slow. It follows from the seed, the key and how often
    /// it was called, whatever else happens.
    fn fate(&self, key: &str, nth: u32, healed: bool) -> (Fate, bool) {
        if healed {
            return (Fate::Well, false);
        }
        let mut dice = Dice::new(self.seed ^ abide_kernel::stable_hash(key.as_bytes()) ^ u64::from(nth) << 40);
        let often = if key.ends_with(WEIGHED) { LONG } else { self.profile.slow };
        let slow = dice.chance(often);
        let fate = if dice.chance(self.profile.fails) {
            Fate::Fails
        } else if dice.chance(self.profile.fails_for_good) {
            Fate::FailsForGood
        } else if dice.chance(self.profile.panics) {
            Fate::Panics
        } else {
            Fate::Well
        };
        (fate, slow)
    }

    /// Something is called from outside: an effect, or a step that does without.
    ///
    /// # Errors
    /// When that is its fate.
    ///
    /// # Panics
    /// When that is its fate.
    pub(crate) async fn call(
        &self,
        run: RunId,
        effect: Option<&'static str>,
        key: String,
        policy: Policy,
    ) -> Result<u64, StepError> {
        self.calls(run, effect, policy, None);
        let (nth, healed, before) = {
            let mut truth = self.truth.lock();
            let count = truth.counts.entry(key.clone()).or_default();
            *count += 1;
            let nth = *count;
            (nth, truth.healed, truth.releases)
        };
        let (fate, slow) = self.fate(&key, nth, healed);
        if slow {
            self.strike("slow_call");
            std::future::poll_fn(|context| {
                let mut truth = self.truth.lock();
                if truth.releases > before {
                    return std::task::Poll::Ready(());
                }
                truth.slow.push(context.waker().clone());
                std::task::Poll::Pending
            })
            .await;
        }
        match fate {
            Fate::Well => Ok(u64::from(nth)),
            Fate::Fails => {
                self.strike("call_fails");
                Err(StepError::new("it did not work this time"))
            }
            Fate::FailsForGood => {
                self.strike("call_fails_for_good");
                Err(StepError::new("it never works").terminal())
            }
            Fate::Panics => {
                self.strike("call_panics");
                std::panic::panic_any(panics::DRAWN)
            }
        }
    }
}
