//! The net between nodes: letters are lost, doubled, late and out of order, and whole directions are cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_kernel::Str;
use abide_runtime::{Letter, Link};
use abide_store::Member;
use parking_lot::Mutex;

use crate::dice::Dice;

/// One letter of so many is written once more after it was read.
const COMPARED_EVERY: u64 = 8;

/// A letter on its way.
pub(crate) struct Sent {
    pub(crate) from: Member,
    pub(crate) to: Member,
    pub(crate) letter: Letter,
}

/// All letters on their way.
#[derive(Clone, Default)]
pub(crate) struct Net {
    letters: Arc<Mutex<Vec<Sent>>>,
    /// Processes that died: they say nothing more.
    dead: Arc<Mutex<BTreeSet<Str>>>,
    /// Directions in which nothing gets through, by addresses.
    cut: Arc<Mutex<BTreeSet<(Str, Str)>>>,
    /// Letters that were sent.
    sent: Arc<AtomicU64>,
    /// Letters that did not get through for that.
    cut_off: Arc<AtomicU64>,
}

/// What became of the letter that was drawn.
pub(crate) enum Drawn {
    /// There is none.
    None,
    /// It was lost.
    Lost(&'static str),
    /// It arrives, and if so once more later.
    Arrives(Box<Sent>, bool),
}

impl Link for Net {
    fn send(&self, from: &Member, to: &Member, letter: Letter) {
        let cut = self.cut.lock().contains(&(from.address.clone(), to.address.clone()));
        if cut {
            self.cut_off.fetch_add(1, Ordering::Relaxed);
        }
        if cut || self.dead.lock().contains(&from.process) {
            return;
        }
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        self.letters.lock().push(Sent { from: from.clone(), to: to.clone(), letter: as_read(&letter, number) });
    }
}

/// A letter as it arrives: written and read again, as nodes send it. Every so often it is looked whether it says the same.
fn as_read(letter: &Letter, number: u64) -> Letter {
    let written = serde_json::to_vec(letter).expect("a letter can be written");
    let read: Letter = serde_json::from_slice(&written).expect("what was written of a letter can be read");
    if number.is_multiple_of(COMPARED_EVERY) {
        let again = serde_json::to_vec(&read).expect("a letter that was read can be written");
        assert_eq!(written, again, "a letter is read as it was written");
    }
    read
}

impl Net {
    /// Draws a letter, any of those on their way.
    pub(crate) fn draw(&self, dice: &mut Dice, lost: u64, twice: u64) -> Drawn {
        let mut letters = self.letters.lock();
        if letters.is_empty() {
            return Drawn::None;
        }
        let index = dice.below(letters.len() as u64) as usize;
        if dice.chance(lost) {
            letters.swap_remove(index);
            return Drawn::Lost("letter_lost");
        }
        if dice.chance(twice) {
            let Sent { from, to, letter } = &letters[index];
            let copy = Sent { from: from.clone(), to: to.clone(), letter: letter.clone() };
            return Drawn::Arrives(Box::new(copy), true);
        }
        Drawn::Arrives(Box::new(letters.swap_remove(index)), false)
    }

    /// A process dies.
    pub(crate) fn bury(&self, process: &Str) {
        self.dead.lock().insert(process.clone());
    }

    /// Nothing gets through from one node to another from now on.
    pub(crate) fn cut(&self, from: usize, to: usize) {
        self.cut.lock().insert((address(from), address(to)));
    }

    /// How many letters did not get through.
    pub(crate) fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Everything gets through again.
    pub(crate) fn mend(&self) {
        self.cut.lock().clear();
    }
}

/// Where a node is reached: its place in the world.
pub(crate) fn address(place: usize) -> Str {
    place.to_string().into()
}
