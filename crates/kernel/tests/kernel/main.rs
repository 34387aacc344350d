//! What the kernel promises, shown from outside. One binary, because every change to the kernel links it again, and
//! `cargo xtask mutants` makes two thousand changes.

mod support;

mod commit;
mod damage;
mod decoders;
mod driver;
mod effects;
mod explain;
mod given_up;
mod invariants;
mod join;
mod ledger;
mod letters;
mod limits;
mod manual;
mod orphans;
mod paging;
mod progress;
mod queues;
mod random;
mod reference;
mod state;
mod threads;
mod throttle;
mod torn;
mod transcripts;
mod undo;
mod updates;
mod updates_random;
mod wakeups;
mod words;
