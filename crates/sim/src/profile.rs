//! Profile: how hard a seed's world is on those who live in it. Drawn per seed from ranges, so that some worlds know only
//! one kind of fault and some know all.

use abide_kernel::shard::Windows;

use crate::dice::Dice;

/// How often things happen, in a thousand, unless said otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// Nodes that share the store. One alone owns it.
    pub(crate) nodes: usize,
    /// Shards of the store.
    pub(crate) shards: u16,
    /// Whether everything is looked at after every event.
    pub(crate) watched: bool,
    /// Events of the phase with faults.
    pub(crate) events: u64,
    /// The node dies between two events.
    pub(crate) crash: u64,
    /// Index rows and checkpoints are gone after a crash.
    pub(crate) lose_index: u64,
    /// An append goes wrong.
    pub(crate) append: u64,
    /// A flush goes wrong.
    pub(crate) flush: u64,
    /// A read goes wrong.
    pub(crate) read: u64,
    /// A shard is not taken or released, or a node does not leave, or nobody knows.
    pub(crate) ownership: u64,
    /// A bit of what is kept flips.
    pub(crate) rot: u64,
    /// A write takes its time.
    pub(crate) slow_disk: u64,
    /// The clock of the node jumps ahead.
    pub(crate) jump: u64,
    /// The node does nothing for longer than a lease.
    pub(crate) pause: u64,
    /// A letter between nodes is lost.
    pub(crate) letter_lost: u64,
    /// A letter arrives twice.
    pub(crate) letter_twice: u64,
    /// A direction between two nodes is cut, or all are mended.
    pub(crate) partition: u64,
    /// A node leaves in good order.
    pub(crate) leave: u64,
    /// How much faster or slower a node's clock runs, at most, in a million.
    pub(crate) drift: u64,
    /// The answer to a request is lost.
    pub(crate) lost_answer: u64,
    /// A request is sent twice.
    pub(crate) twice: u64,
    /// A call of an effect, or a step, fails and may be tried again.
    pub(crate) fails: u64,
    /// It fails for good.
    pub(crate) fails_for_good: u64,
    /// It panics.
    pub(crate) panics: u64,
    /// It takes until somebody lets it go on.
    pub(crate) slow: u64,
    /// A worker outside does what it should not.
    pub(crate) worker: u64,
    /// Runs that change before their index rows are written.
    pub(crate) flush_runs: usize,
    /// Attempts that a node executes at once.
    pub(crate) pool: usize,
    /// How much of what waits and of what is due a node keeps in memory.
    pub(crate) windows: Windows,
}

impl Profile {
    /// The profile of a seed.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let mut often = |most: u64| if dice.chance(350) { 0 } else { 1 + dice.below(most) };
        let (crash, lose_index) = (often(25), often(600));
        let (append, flush, read) = (often(25), often(15), often(8));
        let (jump, pause) = (often(8), often(8));
        let (lost_answer, twice) = (often(200), often(500));
        let (letter_lost, letter_twice, partition) = (often(200), often(400), often(10));
        let (leave, drift) = (often(6), often(20_000));
        let (fails, fails_for_good, panics, slow) = (often(250), often(60), often(60), often(150));
        let (worker, ownership, slow_disk) = (often(400), often(12), often(200));
        let rot = if dice.chance(700) { 0 } else { 1 + dice.below(8) };
        let nodes = dice.weighted(&[40, 30, 30]) + 1;
        Self {
            nodes,
            shards: if nodes > 1 || dice.chance(400) { 4 } else { 1 },
            watched: dice.chance(60),
            events: 800 + dice.below(800),
            crash,
            lose_index,
            append,
            flush,
            read,
            ownership,
            rot,
            slow_disk,
            jump,
            pause,
            letter_lost,
            letter_twice,
            partition,
            leave,
            drift,
            lost_answer,
            twice,
            fails,
            fails_for_good,
            panics,
            slow,
            worker,
            flush_runs: 1 + dice.below(12) as usize,
            pool: if dice.chance(400) { 1 + dice.below(8) as usize } else { 256 },
            windows: windows(dice),
        }
    }
}

impl Profile {
    /// A world in which nothing goes wrong by itself, and so short that everything in it can be tried: who asks, asks twice
    /// at times, nodes leave, and index rows are written often.
    pub(crate) fn calm(nodes: usize) -> Self {
        Self {
            nodes,
            shards: if nodes > 1 { 4 } else { 2 },
            watched: false,
            events: CALM_EVENTS,
            crash: 0,
            lose_index: 0,
            append: 0,
            flush: 0,
            read: 0,
            ownership: 0,
            rot: 0,
            slow_disk: 0,
            jump: 0,
            pause: 0,
            letter_lost: 0,
            letter_twice: 0,
            partition: 0,
            leave: 4,
            drift: 0,
            lost_answer: 0,
            twice: 100,
            fails: 50,
            fails_for_good: 10,
            panics: 0,
            slow: 20,
            worker: 0,
            flush_runs: 2,
            pool: 256,
            windows: Windows { lane: 2, key: 2, due: 2, page: 4, visitors: 2 },
        }
    }
}

const CALM_EVENTS: u64 = 250;

/// Half of the worlds keep next to nothing in memory, so that lines and deadlines are left to the store and read again.
fn windows(dice: &mut Dice) -> Windows {
    if dice.chance(500) {
        return Windows::default();
    }
    let mut few = || 1 + dice.below(4) as usize;
    Windows { lane: few(), key: few(), due: few(), page: few(), visitors: few() }
}
