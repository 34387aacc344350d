//! The disk of a node: some writes take their time. The turn that writes then has a thread of its own, as the writer of an
//! engine has, and waits at the disk until the world lets it go on: one of the two goes on at a time, so that all still follows from
//! the seed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use abide_runtime::{Crank, Turned};
use abide_store::memory::{Attendant, Stage, Word};
use parking_lot::Mutex;

use crate::panics;

/// Whom a node's writes ask.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// There while a turn takes its time.
    line: Mutex<Option<Line>>,
}

#[derive(Debug)]
struct Line {
    says: Sender<Said>,
    hears: Receiver<Word>,
}

/// What a turn that takes its time says.
#[derive(Debug)]
enum Said {
    /// It is at the disk.
    Writes(Stage),
    /// It is over.
    Over(Turned),
}

impl Attendant for Disk {
    fn attend(&self, stage: Stage) -> Word {
        let line = self.line.lock();
        let Some(Line { says, hears }) = &*line else { return Word::GoOn };
        // Without a world there is nobody to go on for.
        says.send(Said::Writes(stage)).ok().and_then(|()| hears.recv().ok()).unwrap_or(Word::Die)
    }
}

/// A turn that is at the disk.
pub(crate) struct Slow {
    thread: JoinHandle<Option<String>>,
    disk: Arc<Disk>,
    hears: Receiver<Said>,
    says: Sender<Word>,
    stage: Stage,
}

/// How far a turn came.
pub(crate) enum Came {
    /// To the disk.
    There(Slow),
    /// To its end.
    Through(Turned),
}

impl Disk {
    /// Turns a crank on a thread of its own, as far as the disk.
    pub(crate) fn turn(self: &Arc<Self>, crank: Arc<Crank>) -> Came {
        let ((says, hears), (tells, told)) = (channel(), channel());
        *self.line.lock() = Some(Line { says: says.clone(), hears: told });
        let thread = std::thread::spawn(move || {
            let turned = crank.turn();
            // The world may be over.
            let _ = says.send(Said::Over(turned));
            panics::take()
        });
        Slow { thread, disk: self.clone(), hears, says: tells, stage: Stage::Begun }.wait()
    }
}

impl Slow {
    /// How far its write is.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Lets it go on, or die there.
    pub(crate) fn go_on(self, word: Word) -> Came {
        // One whose thread panicked is noticed next.
        let _ = self.says.send(word);
        self.wait()
    }

    /// Its process is dead: what was on its way is written, or not, and nothing after it.
    pub(crate) fn end(self, written: bool) {
        let mut word = if written && self.stage == Stage::Begun { Word::GoOn } else { Word::Die };
        let mut turn = self;
        while let Came::There(slow) = turn.go_on(word) {
            word = Word::Die;
            turn = slow;
        }
    }

    fn wait(mut self) -> Came {
        match self.hears.recv() {
            Ok(Said::Writes(stage)) => {
                self.stage = stage;
                Came::There(self)
            }
            over => {
                *self.disk.line.lock() = None;
                panics::pass_on(self.thread.join().unwrap_or_else(|_| Some("a turn at the disk panicked".into())));
                Came::Through(match over {
                    Ok(Said::Over(turned)) => turned,
                    _ => Turned::Worked,
                })
            }
        }
    }
}
