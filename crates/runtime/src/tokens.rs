//! Tokens of a server's clients, and whatever else a server writes down: kept beside the runs, in the same store. The
//! engine reads nothing in it.

use abide_store::{Fault, Kept, StoredToken};

use crate::driver::Shared;
use crate::engine::Engine;

impl Engine {
    /// Keeps what a server wrote down, in place of what has the same kind and id.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn keep(&self, all: &[Kept]) -> Result<(), Fault> {
        self.shared.visit().keep(all)
    }

    /// Forgets something that was kept. Whether there was such a thing.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn forget(&self, kind: &str, id: &str) -> Result<bool, Fault> {
        self.shared.visit().forget(kind, id)
    }

    /// Forgets what was kept of a kind under ids below one, the lowest first and at most so many. How many that were.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn forget_below(&self, kind: &str, id: &str, most: usize) -> Result<u64, Fault> {
        self.shared.visit().forget_below(kind, id, most)
    }

    /// What was kept of a kind, the largest ids first, and only those below `before`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn kept(&self, kind: &str, before: Option<&str>, most: usize) -> Result<Vec<Kept>, Fault> {
        self.shared.reader.lock().kept(kind, before, most)
    }

    /// What was kept of a kind under an id.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn kept_as(&self, kind: &str, id: &str) -> Result<Option<Kept>, Fault> {
        self.shared.reader.lock().kept_as(kind, id)
    }

    /// A token by its id.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn token(&self, id: &str) -> Result<Option<StoredToken>, Fault> {
        self.shared.reader.lock().token(id)
    }
}

impl Shared {
    pub(crate) fn tokens(&self) -> Result<Vec<StoredToken>, Fault> {
        self.reader.lock().tokens()
    }

    pub(crate) fn write_token(&self, token: &StoredToken) -> Result<(), Fault> {
        self.visit().write_token(token)
    }

    pub(crate) fn remove_token(&self, id: &str) -> Result<bool, Fault> {
        self.visit().remove_token(id)
    }
}
