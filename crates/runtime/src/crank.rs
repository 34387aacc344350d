//! An engine without threads: whoever holds the crank turns it, one thing at a time. The same stages run in the same
//! order as under the driver, so that a test can stop the world between any two of them.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::Timestamp;
use abide_store::Store;

use crate::commit::Turn;
use crate::config::Config;
use crate::driver::Shared;
use crate::engine::{Engine, OpenError};

/// An engine that does nothing by itself.
///
/// Its steps are polled by the one who turns. Timers, sockets and tasks of a runtime do not go on in them.
pub struct Crank {
    engine: Arc<Engine>,
}

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// A step was polled.
    Polled,
    /// Something was let happen, appended, loaded, flushed or let out.
    Worked,
    /// There is nothing to do before this instant, if ever.
    Rests(Option<Timestamp>),
}

impl Crank {
    /// Opens the shards of `store`, and does nothing more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn open(store: Box<dyn Store>, config: Config) -> Result<Self, OpenError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let shared = Shared::open(store, config, handle, true)?;
        Ok(Self { engine: Arc::new(Engine { shared, _runtime: Some(runtime) }) })
    }

    /// The engine, to be asked. Answers come by turns.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Why the engine takes no more commands, if it does not: it has to be opened anew.
    #[must_use]
    pub fn closed(&self) -> Option<String> {
        self.engine.shared.core.lock().closed.clone()
    }

    /// The last invariant that did not hold, if one did not: nothing was written then, and the shards were opened anew.
    #[must_use]
    pub fn bug(&self) -> Option<String> {
        self.engine.shared.core.lock().bug.clone()
    }

    /// Ends the engine in good order: its shards are handed over, where nodes share the store.
    pub fn leave(&self) {
        self.engine.shared.shut_down("the engine was stopped");
    }

    /// The next instant at which something happens by itself to a run, whatever the node has to say to others before.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.engine.shared.core.lock().next_due()
    }

    /// How many shards it serves.
    #[must_use]
    pub fn serves(&self) -> usize {
        self.engine.shared.core.lock().served().count()
    }

    /// Does one thing.
    pub fn turn(&self) -> Turned {
        let shared: &Arc<Shared> = &self.engine.shared;
        if let Some(job) = shared.steps.pop() {
            shared.poll(job);
            return Turned::Polled;
        }
        shared.pass_time();
        let flush = shared.flush_due() == Some(Duration::ZERO);
        let committed = shared.commit(flush);
        let let_out = shared.let_out_ready();
        if committed == Turn::Worked || let_out || !shared.steps.is_empty() {
            return Turned::Worked;
        }
        let core = shared.core.lock();
        Turned::Rests(core.next_wake().into_iter().chain(core.next_beat).min())
    }
}
