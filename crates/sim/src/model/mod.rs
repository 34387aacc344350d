//! The claim protocol, looked at exhaustively: two nodes, two workers, one run, over the real kernel.
//!
//! A node is a real `Shard` with a clock of its own. The store is a small model of what `abide_store::Store` promises:
//! a batch is appended whole or not at all, and one of a stale owner is refused. Every order of every act is tried, up
//! to the bounds; the laws are in `laws`, what can happen is in `act`.

mod act;
mod disk;
mod heal;
mod laws;
mod machine;
mod outputs;
mod print;
mod search;
mod state;

pub use act::{Act, Word};
pub use search::{Broken, Explored, explore};

/// How the workers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hands {
    /// Apart from the nodes: each may be given work by either node, and speak to either.
    Remote,
    /// One in each node's process, and dead with it, on a store of one owner: whoever opens it takes all before for dead.
    Local,
    /// The same on a store that nodes share: both live, and what a worker says reaches whoever has the shard.
    Shared,
}

impl Hands {
    /// Whether a worker lives and dies with a node.
    pub(super) fn live_in_nodes(self) -> bool {
        match self {
            Self::Remote => false,
            Self::Local | Self::Shared => true,
        }
    }
}

/// How much may happen. Within it, everything does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How the workers live.
    pub hands: Hands,
    /// How often a client asks for the run: after the first time it is a retry.
    pub starts: u8,
    /// How often a node takes the shard: for the first time, from the other, or after its own death.
    pub opens: u8,
    /// How often time passes on a node's clock until something is due.
    pub expiries: u8,
    /// How many claims are made.
    pub claims: u8,
    /// How many words workers say, late, twice and to the wrong node included.
    pub words: u8,
    /// Which words they say of their own claims.
    pub says: &'static [Word],
    /// How often index rows are written.
    pub flushes: u8,
    /// How many rows wait to be durable at a time: in one batch, or in one that the store has taken and in the next.
    pub gathered: usize,
}

impl Bounds {
    /// What `cargo xtask sim --model` goes through: workers that answer twice and late; three attempts that may all be lost, or
    /// all be answered; owners that change often; workers that say everything they can, two words of two claims or, with index
    /// rows behind the log, one word of three; and clients that ask again.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let late = Self {
            hands: Hands::Remote,
            starts: 1,
            opens: 2,
            expiries: 2,
            claims: 3,
            words: 2,
            says: FEW,
            flushes: 0,
            gathered: 2,
        };
        let lost = Self { expiries: 3, words: 1, ..late };
        let owners = Self { opens: 3, expiries: 1, words: 1, ..late };
        let wordy = Self { expiries: 1, claims: 2, says: EVERY, ..late };
        let failing = Self { expiries: 1, words: 1, says: EVERY, flushes: 1, ..late };
        let again = Self { starts: 2, expiries: 1, claims: 2, words: 1, flushes: 1, ..late };
        let answered = Self { expiries: 1, words: 3, says: BAD, ..late };
        [late, lost, answered, owners, wordy, failing, again].into_iter().flat_map(Self::of_all_hands).collect()
    }

    /// What a test goes through: few states, and most kinds of acts.
    #[must_use]
    pub fn small() -> Vec<Self> {
        let owners = Self {
            hands: Hands::Remote,
            starts: 1,
            opens: 2,
            expiries: 1,
            claims: 1,
            words: 1,
            says: EVERY,
            flushes: 0,
            gathered: 2,
        };
        let again = Self { starts: 2, claims: 0, words: 0, flushes: 1, ..owners };
        let workers = Self { opens: 1, claims: 2, words: 2, says: FEW, ..owners };
        let written = Self { opens: 2, expiries: 0, flushes: 1, says: FEW, ..owners };
        [owners, workers, written, again].into_iter().flat_map(Self::of_all_hands).collect()
    }

    fn of_all_hands(self) -> [Self; 3] {
        [Hands::Remote, Hands::Local, Hands::Shared].map(|hands| Self { hands, ..self })
    }
}

const FEW: &[Word] = &[Word::Done, Word::Late];
const BAD: &[Word] = &[Word::Done, Word::Failed];
const EVERY: &[Word] = &[Word::Done, Word::Late, Word::Failed, Word::Beat, Word::Returned];
