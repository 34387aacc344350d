//! Ctrl-C while a verb takes its time: it ends at its next look, tidies up, and says 130.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure};

/// Whether the caller has had enough.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. The thread that does so ends with the process.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let heard = interrupt.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                heard.0.store(true, Ordering::Release);
            }
        });
        Ok(interrupt)
    }

    /// # Errors
    /// When Ctrl-C was pressed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Acquire) {
            return Err(Failure::new(Exit::Interrupted, "interrupted", "interrupted"));
        }
        Ok(())
    }
}
